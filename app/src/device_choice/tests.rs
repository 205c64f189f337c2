use super::*;
use crate::choice::Candidate;
use tidemill_spec::manifest::Manifest;
use tidemill_spec::plan::PlanFile;

const WORKFLOW: &str = "version: 1
name: seen
sources: [{id: images, kind: image_directory, key: key, options: {path: pictures}}]
operators:
  - {id: detect, kind: ml, input: images, variants: [detect.yaml]}
  - {id: large, kind: filter, input: detect, options: {where: \"true\"}}
sinks: [{id: seen, kind: jsonl, input: large, options: {path: out/seen.jsonl}}]
";

fn workflow() -> Workflow {
    Workflow::parse(WORKFLOW, "workflow.yaml").unwrap()
}

fn plan(device: &str) -> Plan {
    let text = format!(
        "version: 1
workflow: {{name: seen}}
workers: [{{id: edge, tier: edge, worker_type: small}}]
devices: [{{id: hub/card, kind: card, worker: hub}}]
stages:
  - {{id: images, operator: images, worker: edge}}
  - {{id: detect, operator: detect, worker: edge, device: '{device}'}}
  - {{id: large, operator: large, worker: edge}}
  - {{id: seen, operator: seen, worker: edge}}
edges: [{{from: images, to: detect}}, {{from: detect, to: large}}, {{from: large, to: seen}}]
classes: [{{id: 0, share: 1, route: {{images: images, detect: detect, large: large, seen: seen}}}}]
"
    );
    PlanFile::parse(&text, "plan.yaml").unwrap().plan
}

fn setting(text: &str) -> DeviceSetting {
    text.parse().unwrap()
}

#[test]
fn every_form_of_a_device_can_be_written() {
    for (text, device) in [
        ("detect=tcp://hub:7440", "device:tcp://hub:7440"),
        ("detect=tls://hub:7440", "device:tls://hub:7440"),
        ("detect=unix:///run/a=b.sock", "device:unix:///run/a=b.sock"),
        ("detect=session://hub", "device:session://hub"),
        ("detect=device:tcp://hub:7440", "device:tcp://hub:7440"),
        ("detect=device:hub/card", "device:hub/card"),
        ("detect=proxy", "proxy"),
        ("detect=proxy:torch", "proxy:torch"),
        ("detect=oip:http://hub:8000", "oip:http://hub:8000"),
        ("detect=cpu", "cpu"),
    ] {
        assert_eq!(setting(text).device, device);
    }
    for (text, sends) in [
        ("detect=tcp://hub:7440", None),
        ("detect=tcp://hub:7440,sends=rows", Some(Sends::Rows)),
        ("detect=session://a:1,b:2,sends=tensors", Some(Sends::Tensors)),
    ] {
        assert_eq!(setting(text).sends, sends);
    }
    assert_eq!(setting("detect=session://a:1,b:2,sends=tensors").device, "device:session://a:1,b:2");
    let wrong = |text: &str| text.parse::<DeviceSetting>().unwrap_err();
    assert_eq!(
        wrong("detect=tcp://hub:7440,sends=row"),
        "a stage sends rows or tensors, not `row`: write `detect=tcp://hub:7440,sends=rows` or \
         `detect=tcp://hub:7440,sends=tensors`"
    );
    for text in ["detect", "detect=", "=cpu", ""] {
        assert!(wrong(text).contains("`detect=tcp://hub:7440`"), "{text}");
    }
    assert_eq!(wrong("detect=hub:7440"), "write the address with its scheme: `detect=tcp://hub:7440`");
    assert!(wrong("detect=device:hub:7440").ends_with("`detect=device:tcp://hub:7440`"));
    assert!(wrong("detect=oip:hub:8000").ends_with("`detect=oip:http://hub:8000`"));
    for text in ["detect=http://hub:7440/x", "detect=gpu"] {
        let error = wrong(text);
        assert!(
            ["tcp://HOST:PORT", "unix:///PATH", "session://PLACES"].iter().all(|form| error.contains(form))
        );
    }
}

#[test]
fn a_setting_overrides_the_plan_and_says_so() {
    let settings = [setting("detect=tcp://hub:7440")];
    let devices = Devices { settings: &settings, are_emulated: false };
    let mut planned = plan("device:hub/card");
    let chosen = devices.place(&mut planned, (&workflow(), &Candidates::new()), true).unwrap();
    assert_eq!(planned.stages[1].device.as_deref(), Some("device:tcp://hub:7440"));
    let told = chosen[0].to_string();
    assert_eq!(
        told,
        "detect computes on device:tcp://hub:7440, by `--device`, not on device:hub/card as in the plan"
    );
    // Without a plan there is nothing to contradict.
    let chosen = devices.place(&mut plan("cpu"), (&workflow(), &Candidates::new()), false).unwrap();
    assert_eq!(chosen[0].to_string(), "detect computes on device:tcp://hub:7440, by `--device`");
    assert!(devices.choose("detect") && !devices.choose("large"));
}

#[test]
fn operators_and_devices_that_are_not_there_are_named() {
    let place = |texts: &[&str]| {
        let settings: Vec<DeviceSetting> = texts.iter().map(|text| setting(text)).collect();
        let devices = Devices { settings: &settings, are_emulated: false };
        let error = devices.place(&mut plan("cpu"), (&workflow(), &Candidates::new()), true).unwrap_err();
        format!("{error}: {}", error.help().unwrap_or_default())
    };
    assert_eq!(
        place(&["detct=cpu"]),
        "--device names `detct`, which is no operator of `seen`: did you mean `detect`?"
    );
    assert!(place(&["large=cpu"]).contains("which has no models"));
    assert!(place(&["detect=device:hub/crd"]).ends_with("did you mean `hub/card`?"));
    assert!(place(&["detect=cpu", "detect=proxy"]).contains("twice"));
}

#[test]
fn devices_of_the_plan_are_emulated_and_others_refused() {
    let emulated = |device: &str| {
        let mut plan = plan(device);
        let placed = Devices { settings: &[], are_emulated: true }.place(
            &mut plan,
            (&workflow(), &Candidates::new()),
            true,
        );
        placed.map(|_| plan.stages[1].device.clone())
    };
    assert_eq!(emulated("device:hub/card").unwrap().as_deref(), Some("emulated:hub/card"));
    assert_eq!(emulated("proxy:rten").unwrap(), None);
    assert_eq!(emulated("cpu").unwrap().as_deref(), Some("cpu"));
    for device in ["device:tcp://hub:7440", "oip:http://hub:8000"] {
        assert!(emulated(device).unwrap_err().to_string().contains(device));
    }
}

/// The example, whose `detect` gets pictures: with the plan's bytes of a record before and after it.
fn example(bytes: Option<(u64, u64)>, sends: &str) -> (Workflow, Candidates, Plan) {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/aicity/workflow.yaml");
    let mut workflow = Workflow::load(file).unwrap_or_else(|found| panic!("{found}"));
    let written = workflow.operators.iter().find(|of| of.id == *"detect").unwrap().variants[0].clone();
    let manifest = Manifest::load(workflow.resolve(&written.value)).unwrap_or_else(|found| panic!("{found}"));
    // Without the profile beside it.
    workflow.directory.0 = workflow.directory.0.join("nowhere");
    let id = manifest.id.value.clone();
    let candidate =
        Candidate { written: written.value, manifest, bytes: None, obstacle: None, absent: false };
    let (before, after) = bytes.map_or_else(Default::default, |(before, after)| {
        (format!(", bytes_per_record: {before}B"), format!(", bytes_per_record: {after}B"))
    });
    let text = format!(
        "version: 1
workflow: {{name: aicity}}
workers: [{{id: edge, tier: edge, worker_type: small}}]
devices: [{{id: hub/card, kind: card, worker: hub}}]
stages:
  - {{id: frames, operator: frames, worker: edge}}
  - {{id: detect, operator: detect, worker: edge, variant: {id}, max_batch: 4, device: 'device:hub/card'{sends}}}
  - {{id: found, operator: found, worker: edge}}
edges: [{{from: frames, to: detect{before}}}, {{from: detect, to: found{after}}}]
classes: [{{id: 0, share: 1, route: {{frames: frames, detect: detect, found: found}}}}]
"
    );
    let plan = PlanFile::parse(&text, "plan.yaml").unwrap().plan;
    (workflow, Candidates::from([("detect".to_owned(), vec![candidate])]), plan)
}

/// The form of the stage's records, and what is said of it.
fn formed(text: &str, bytes: Option<(u64, u64)>, sends: &str) -> Result<(Sends, String), String> {
    let (workflow, candidates, mut plan) = example(bytes, sends);
    let settings = [setting(text)];
    let devices = Devices { settings: &settings, are_emulated: false };
    let chosen =
        devices.place(&mut plan, (&workflow, &candidates), true).map_err(|error| error.to_string())?;
    let told = chosen[0].to_string();
    let said = told.split_once("; ").map_or("", |(_, said)| said).to_owned();
    Ok((plan.stages[1].sends, said))
}

#[test]
fn the_form_with_fewer_bytes_goes_to_a_device() {
    let auto = |bytes| formed("detect=tcp://hub:7440", bytes, "");
    // 63 KiB of uint8 there, 8 KiB of floats back.
    let (sends, said) = auto(Some((12_000, 12_500))).unwrap();
    assert_eq!(sends, Sends::Rows);
    assert_eq!(said, "it gets rows: 13 KiB a record there and back, 71 KiB as tensors");
    let (sends, said) = auto(Some((200_000, 201_000))).unwrap();
    assert_eq!(sends, Sends::Tensors);
    assert!(said.starts_with("it gets tensors: 71 KiB a record there and back, 19"), "{said}");
    // Of bytes that are not known, nothing is said.
    assert_eq!(auto(None), Ok((Sends::Tensors, String::new())));
    for elsewhere in ["cpu", "proxy", "oip:http://hub:8000"] {
        let (sends, said) = formed(&format!("detect={elsewhere}"), Some((12_000, 12_500)), "").unwrap();
        assert_eq!((sends, said.as_str()), (Sends::Tensors, ""), "{elsewhere}");
    }
}

#[test]
fn a_form_that_is_named_or_planned_stays() {
    let (rows, tensors) = (", sends: rows", ",sends=tensors");
    let of = |text: &str, sends| formed(text, Some((12_000, 12_500)), sends).unwrap().0;
    assert_eq!(of("detect=tcp://hub:7440,sends=tensors", rows), Sends::Tensors);
    assert_eq!(of("detect=tcp://hub:7440,sends=rows", ""), Sends::Rows);
    assert_eq!(
        formed("detect=tcp://hub:7440", None, rows),
        Ok((Sends::Rows, "it gets rows, as in the plan".into()))
    );
    // Keys that a model on the processors has no use for leave with the device.
    assert_eq!(of("detect=cpu", rows), Sends::Tensors);
    assert_eq!(of(&format!("detect=cpu{tensors}"), rows), Sends::Tensors);
    let refused = |device: &str| formed(&format!("detect={device},sends=rows"), None, "").unwrap_err();
    assert!(refused("cpu").contains("computes in the process of its stage"), "{}", refused("cpu"));
    assert!(refused("oip:http://hub:8000").contains("a server of models"));
}
