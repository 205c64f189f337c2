use super::*;
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
    let wrong = |text: &str| text.parse::<DeviceSetting>().unwrap_err();
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
    let chosen = devices.place(&mut planned, &workflow(), true).unwrap();
    assert_eq!(planned.stages[1].device.as_deref(), Some("device:tcp://hub:7440"));
    let told = chosen[0].to_string();
    assert_eq!(
        told,
        "detect computes on device:tcp://hub:7440, by `--device`, not on device:hub/card as in the plan"
    );
    // Without a plan there is nothing to contradict.
    let chosen = devices.place(&mut plan("cpu"), &workflow(), false).unwrap();
    assert_eq!(chosen[0].to_string(), "detect computes on device:tcp://hub:7440, by `--device`");
    assert!(devices.choose("detect") && !devices.choose("large"));
}

#[test]
fn operators_and_devices_that_are_not_there_are_named() {
    let place = |texts: &[&str]| {
        let settings: Vec<DeviceSetting> = texts.iter().map(|text| setting(text)).collect();
        let devices = Devices { settings: &settings, are_emulated: false };
        let error = devices.place(&mut plan("cpu"), &workflow(), true).unwrap_err();
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
        let placed = Devices { settings: &[], are_emulated: true }.place(&mut plan, &workflow(), true);
        placed.map(|_| plan.stages[1].device.clone())
    };
    assert_eq!(emulated("device:hub/card").unwrap().as_deref(), Some("emulated:hub/card"));
    assert_eq!(emulated("proxy:rten").unwrap(), None);
    assert_eq!(emulated("cpu").unwrap().as_deref(), Some("cpu"));
    for device in ["device:tcp://hub:7440", "oip:http://hub:8000"] {
        assert!(emulated(device).unwrap_err().to_string().contains(device));
    }
}
