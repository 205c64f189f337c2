//! `tidemill run --emulate` with models on devices, and devices that options choose; through the built binary.
use crate::command::{Place, tidemill};
use crate::devices;
use crate::emulation::{self, answers, emulate};
use serde_json::Value;

/// The example with a plan whose first model is on a device of the server. Both workers are enforced.
fn place() -> Place {
    let place = emulation::place();
    place.change(
        "plan.yaml",
        "stages:",
        "devices:
  - {id: cloud-server-0/card, kind: card, worker: cloud-server-0, memory: 1GiB, share: 50%, price: 0.05 $/h}
stages:",
    );
    place.change(
        "plan.yaml",
        "variant: scene-features-tiny, backend: rten, worker",
        "variant: scene-features-tiny, backend: rten, device: 'device:cloud-server-0/card', remote_run: {sent: 50kB, \
         received: 1kB, round_trip: 30ms, transfer: 40800ns, queue: 0s, compute: 8ms, share: 16%}, worker",
    );
    // So fast that the frames of the edges hardly delay the tensors.
    place.change("infrastructure.yaml", "100Mbps, delay: 15ms", "10Gbps, delay: 15ms, direction: both");
    place.change(
        "profile.yaml",
        "worker_type: gateway, how: published, batches",
        "worker_type: gateway, how: published, model_part: 75%, batches",
    );
    place.change(
        "profile.yaml",
        "{worker_type: server, how: published}",
        "{worker_type: server, how: published}, {worker_type: card, how: published}",
    );
    place.change(
        "profile.yaml",
        "services:",
        "services:
  - {operator: scene_features, variant: scene-features-tiny, worker_type: card, how: published, peak_memory: 20MiB, batches: [{batch: 1, mean: 4ms}]}",
    );
    place
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn find<'a>(all: &'a Value, key: &str, of: &str) -> &'a Value {
    let found = all.as_array().and_then(|all| all.iter().find(|one| one[key] == of));
    found.unwrap_or_else(|| panic!("no {of} in {all:#}"))
}

/// The four parts of the report are those of the emulated device, and the records those of any other run.
fn split_is_as_predicted(more: &[&str]) {
    let place = place();
    let [workflow, plan] = ["workflow.yaml", "plan.yaml"].map(|file| place.argument(file));
    let on_processors =
        ["run", &workflow, "--plan", &plan, "--device", "scene_features=cpu", "--records", "40", "--quiet"];
    tidemill(&on_processors).expect(0);
    let expected = answers(&place);
    let fixed = ["--records", "40", "--dilation", "3", "--output", "json"];
    let report = emulate(&place, &[&fixed[..], more].concat()).expect(0).json();
    assert_eq!(expected.len(), 40);
    assert_eq!(answers(&place), expected);
    let stage = find(&report["stages"], "stage", "scene_features");
    assert_eq!(stage["device"], "emulated:cloud-server-0/card");
    let split = &stage["on_device"];
    let part = |part: &str| number(&split[part]["p50_ms"]);
    let near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.15;
    // 4 ms on a device of which the run has half; two delays, and 51 kB at 10 Gbit/s.
    assert!(near(part("compute"), number(&split["predicted"]["compute_ms"])), "{split:#}");
    assert!(near(part("network"), number(&split["predicted"]["network_ms"])), "{split:#}");
    assert!(
        near(part("client"), 3.0),
        "a quarter of 12 ms, however late this machine wakes threads: {split:#}"
    );
    assert_eq!((number(&split["sent_bytes"]), number(&split["received_bytes"])), (2e6, 4e4));
    let emulation = &report["emulation"];
    let tensors = |from: &str| number(&find(&emulation["links"], "from", from)["tensor_bytes"]);
    assert_eq!((tensors("edge"), tensors("cloud")), (2e6, 4e4));
    let device = &emulation["devices"][0];
    assert_eq!((&device["device"], &device["place"]), (&"cloud-server-0/card".into(), &"cloud".into()));
    assert!(near(number(&device["busy_seconds"]), 40.0 * 0.008), "{device:#}");
    let busy = find(&emulation["comparison"], "of", "cloud-server-0/card");
    // How long the run takes depends on this machine.
    assert!(near(number(&busy["predicted"]), 16.0) && number(&busy["measured"]) > 0.0, "{busy:#}");
    let rows = emulation["comparison"].as_array().unwrap();
    let cost =
        |quantity: &str| number(&rows.iter().find(|row| row["quantity"] == quantity).unwrap()["measured"]);
    let machines = cost("cost") - cost("cost_network");
    assert!((machines - 0.48).abs() < 1e-9, "two workers and the device: {machines}");
}

#[test]
fn the_split_of_an_emulated_device_is_as_predicted() {
    split_is_as_predicted(&[]);
}

#[test]
#[ignore = "long: make test-long"]
fn processes_share_an_emulated_device() {
    split_is_as_predicted(&["--processes"]);
}

#[test]
fn devices_that_cannot_be_emulated_are_refused_before_the_run() {
    let refused = |from: &str, to: &str, file: &str| {
        let place = place();
        place.change(file, from, to);
        let outcome = emulate(&place, &["--records", "2"]);
        assert_ne!(outcome.code, Some(0));
        outcome.stderr
    };
    let told = refused("device:cloud-server-0/card", "device:tcp://hub:7440", "plan.yaml");
    assert!(told.contains("no profile says how long that takes") && told.contains("`device:ID`"), "{told}");
    let told = refused("memory: 1GiB", "memory: 10MiB", "plan.yaml");
    assert!(told.contains("need 20MiB on `cloud-server-0/card`, which has 10MiB"), "{told}");
    let told = refused(
        "worker_type: card, how: published, peak",
        "worker_type: server, how: published, peak",
        "profile.yaml",
    );
    assert!(told.contains("no times of `scene_features/scene-features-tiny` on the device `card`"), "{told}");
    let told = refused(", direction: both", "", "infrastructure.yaml");
    assert!(told.contains("add `- {from: cloud, to: edge}`"), "{told}");
}

#[test]
fn an_option_names_the_device_of_an_operator() {
    let place = devices::place(12);
    let (expected, _) = devices::run(&place, "cpu");
    let [workflow, plan, report] =
        ["workflow.yaml", "plan.yaml", "report.json"].map(|file| place.argument(file));
    let own = ["--device", "features=proxy:rten", "--report-json", &report];
    let of_features = || {
        let report: Value = serde_json::from_str(&place.read("report.json")).unwrap();
        find(&report["stages"], "operator", "features").clone()
    };
    let outcome = tidemill(&[&["run", &workflow][..], &own].concat()).expect(0);
    assert!(
        outcome.stdout.contains("features computes on proxy:rten, by `--device`\n"),
        "{}",
        outcome.stdout
    );
    assert!(place.read("out/seen.jsonl") == expected, "the rows differ");
    assert!(of_features()["device"] == "proxy:rten" && of_features().get("device_of_plan").is_none());
    // A plan that says otherwise is overridden, and the reports say so.
    place.write("plan.yaml", devices::plan("device:unix:///nowhere/device.sock"));
    let outcome = tidemill(&[&["run", &workflow, "--plan", &plan][..], &own].concat()).expect(0);
    let told = "features computes on proxy:rten, by `--device`, not on device:unix:///nowhere/device.sock as in the plan";
    assert!(outcome.stdout.contains(told) && outcome.stderr.contains(told), "{}", outcome.stdout);
    assert!(place.read("out/seen.jsonl") == expected, "the rows differ");
    assert_eq!(of_features()["device_of_plan"], "device:unix:///nowhere/device.sock");
    // The device prepares the rows: a compressed picture is smaller than its tensor.
    let rows = ["--device", "features=proxy:rten,sends=rows", "--report-json", &report];
    let tensors = of_features()["on_device"]["sent_bytes"].clone();
    let outcome = tidemill(&[&["run", &workflow][..], &rows].concat()).expect(0);
    assert!(outcome.stdout.contains("by `--device`; it gets rows\n"), "{}", outcome.stdout);
    assert!(place.read("out/seen.jsonl") == expected, "the rows differ");
    let sent = of_features()["on_device"]["sent_bytes"].clone();
    assert!(number(&sent) > 0.0 && number(&sent) < 0.5 * number(&tensors), "{sent} and {tensors}");
    let refused = |device: &str| tidemill(&["run", &workflow, "--device", device]).stderr;
    let here = refused("features=cpu,sends=rows");
    assert!(here.contains("`features` computes in the process of its stage"), "{here}");
    assert!(refused("features=proxy,sends=row").contains("`features=proxy,sends=rows`"));
    assert!(refused("featres=proxy").contains("did you mean `features`?"), "{}", refused("featres=proxy"));
    assert!(refused("features=hub:7440").contains("`features=tcp://hub:7440`"));
    let nowhere = refused("features=unix:///nowhere/device.sock");
    assert!(nowhere.contains("nothing answers at unix:///nowhere/device.sock"), "{nowhere}");
}
