//! Models on device proxies: the same rows as in this process, also when a proxy is killed; through the built binary.
use crate::command::{Place, command, root, tidemill};
use image::RgbImage;
use std::path::Path;
use std::process::{Child, Stdio};

const WORKFLOW: &str = "version: 1
name: seen
sources:
  - {id: images, kind: image_directory, key: key, rate: 200/s, options: {path: pictures}}
operators:
  - {id: features, kind: ml, input: images, variants: [../../models/vqa/scene-features-tiny.yaml]}
sinks:
  - {id: seen, kind: jsonl, input: features, options: {path: out/seen.jsonl}}
";

pub(crate) fn plan(device: &str) -> String {
    format!(
        "version: 1
workflow: {{name: seen}}
workers: [{{id: here, tier: edge, worker_type: any}}]
stages:
  - {{id: images, operator: images, worker: here}}
  - {{id: features, operator: features, variant: scene-features-tiny, backend: rten, device: \"{device}\", worker: here, max_batch: 4}}
  - {{id: seen, operator: seen, worker: here}}
edges:
  - {{from: images, to: features}}
  - {{from: features, to: seen}}
classes:
  - {{id: 0, share: 1.0, route: {{images: images, features: features, seen: seen}}}}
"
    )
}

pub(crate) fn place(pictures: u32) -> Place {
    let place = Place::empty("seen");
    place.write("workflow.yaml", WORKFLOW);
    std::fs::create_dir_all(place.path("pictures")).unwrap();
    for number in 0..pictures {
        let picture = RgbImage::from_fn(48, 32, |x, y| {
            image::Rgb([(x * 5 + number) as u8, (y * 7 + 3 * number) as u8, (x * y + number) as u8])
        });
        picture.save(place.path(&format!("pictures/p{number:03}.png"))).unwrap();
    }
    place
}

pub(crate) fn arguments<'a>(workflow: &'a str, plan: &'a str, report: &'a str) -> [&'a str; 7] {
    ["run", workflow, "--plan", plan, "--report-json", report, "--quiet"]
}

/// The rows of a run with the model on this device.
pub(crate) fn run(place: &Place, device: &str) -> (String, serde_json::Value) {
    place.write("plan.yaml", plan(device));
    let [workflow, plan, report] =
        ["workflow.yaml", "plan.yaml", "report.json"].map(|file| place.argument(file));
    tidemill(&arguments(&workflow, &plan, &report)).expect(0);
    (place.read("out/seen.jsonl"), serde_json::from_str(&place.read("report.json")).unwrap())
}

/// The figures of the stage with the model.
fn of_features(report: &serde_json::Value) -> &serde_json::Value {
    report["stages"].as_array().unwrap().iter().find(|stage| stage["stage"] == "features").unwrap()
}

/// The processes that a process has started.
fn children(of: u32) -> Vec<u32> {
    let of = of.to_string();
    let parent = |process: &str| {
        let stat = std::fs::read_to_string(Path::new("/proc").join(process).join("stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1).map(str::to_owned)
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let names = processes.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| parent(name).as_ref() == Some(&of)).filter_map(|name| name.parse().ok()).collect()
}

/// Waits until the run has written rows, and returns its proxy.
fn proxy_of(run: &mut Child, place: &Place) -> Option<u32> {
    loop {
        if run.try_wait().unwrap().is_some() {
            return None;
        }
        let written = std::fs::metadata(place.path("out/seen.jsonl")).map(|facts| facts.len()).unwrap_or(0);
        if let (true, Some(proxy)) = (written > 0, children(run.id()).first()) {
            return Some(*proxy);
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_model_in_a_proxy_gives_the_rows_of_this_process() {
    let place = place(40);
    let (expected, _) = run(&place, "cpu");
    assert_eq!(expected.lines().count(), 40);
    let (found, report) = run(&place, "proxy");
    assert!(found == expected, "the rows differ");
    assert_eq!(of_features(&report)["device"], "proxy");
}

/// The plan expects many batches on their way: as many copies of the model wait for them, and share what the device has loaded.
#[test]
fn batches_that_are_away_at_one_time_keep_their_order() {
    let place = place(40);
    let (expected, _) = run(&place, "cpu");
    for sends in ["tensors", "rows"] {
        let away = format!(
            "max_batch: 1, sends: {sends}, remote_run: {{sent: 5kB, received: 2kB, round_trip: 200ms, transfer: 1ms, \
             queue: 0s, compute: 10ms, share: 50%}}"
        );
        place.write("plan.yaml", plan("proxy").replace("max_batch: 4", &away));
        let [workflow, plan, report] =
            ["workflow.yaml", "plan.yaml", "report.json"].map(|file| place.argument(file));
        tidemill(&arguments(&workflow, &plan, &report)).expect(0);
        assert!(place.read("out/seen.jsonl") == expected, "{sends}: the rows differ");
        let report: serde_json::Value = serde_json::from_str(&place.read("report.json")).unwrap();
        let stage = of_features(&report);
        assert_eq!(
            (&stage["batches"], &stage["on_device"]["batches_here"]),
            (&40.into(), &0.into()),
            "{stage}"
        );
    }
}

#[test]
fn the_reports_split_the_time_of_a_model_in_a_proxy() {
    let place = place(12);
    let (_, report) = run(&place, "cpu");
    let stage = of_features(&report);
    assert!(stage["device"] == "cpu" && stage.get("on_device").is_none(), "{stage}");
    place.write("plan.yaml", plan("proxy"));
    let files = ["workflow.yaml", "plan.yaml", "report.json", "report.html"].map(|file| place.argument(file));
    let [workflow, plan, report, page] = &files;
    let arguments = ["run", workflow, "--plan", plan, "--report-json", report, "--report", page];
    let told = tidemill(&arguments).expect(0).stdout;
    assert!(told.contains("features: network") && told.contains("features on proxy: "), "{told}");
    assert!(place.read("report.html").contains("features on proxy: "));
    let report: serde_json::Value = serde_json::from_str(&place.read("report.json")).unwrap();
    let (stage, split) = (of_features(&report), &of_features(&report)["on_device"]);
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or_else(|| panic!("{stage}"));
    assert_eq!((&split["batches"], &split["sessions_lost"]), (&stage["batches"], &0.into()), "{stage}");
    assert!(number(&split["round_trips_per_batch"]) >= 1.0 && split.get("predicted").is_none(), "{stage}");
    let parts = ["client", "network", "queue", "compute"].map(|part| &split[part]);
    assert!(parts.iter().all(|part| part["count"] == 12), "{stage}");
    assert!(number(&split["network"]["mean_ms"]) > 0.0 && number(&split["compute"]["mean_ms"]) > 0.0);
    // To the microseconds that each part is rounded to.
    let sum: f64 = parts.iter().map(|part| number(&part["mean_ms"])).sum();
    assert!((sum - number(&stage["compute"]["mean_ms"])).abs() < 0.01, "{stage}");
    let sent = number(&split["sent_bytes_per_record"]);
    assert!(sent > 0.0 && number(&split["sent_bytes"]) == 12.0 * sent, "{stage}");
    assert!(number(&split["received_bytes"]) > 0.0, "{stage}");
}

#[test]
fn a_proxy_that_is_killed_costs_no_row() {
    let place = place(200);
    let (expected, _) = run(&place, "cpu");
    place.write("plan.yaml", plan("proxy:rten"));
    std::fs::remove_dir_all(place.path("out")).unwrap();
    let [workflow, plan, report] =
        ["workflow.yaml", "plan.yaml", "report.json"].map(|file| place.argument(file));
    let mut child = command(&arguments(&workflow, &plan, &report)).spawn().unwrap();
    let proxy = proxy_of(&mut child, &place).expect("it runs for a second");
    let process = rustix::process::Pid::from_raw(i32::try_from(proxy).unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(place.read("out/seen.jsonl") == expected, "the rows differ");
    let report = serde_json::from_str(&place.read("report.json")).unwrap();
    let lost = &of_features(&report)["on_device"]["sessions_lost"];
    assert!(lost.as_u64() >= Some(1), "{lost}");
}

#[test]
fn a_device_that_is_not_there_is_found_before_the_run() {
    let place = place(2);
    place.write("plan.yaml", plan("device:unix:///nowhere/device.sock"));
    let [workflow, plan, report] =
        ["workflow.yaml", "plan.yaml", "report.json"].map(|file| place.argument(file));
    let outcome = tidemill(&arguments(&workflow, &plan, &report));
    assert_ne!(outcome.code, Some(0));
    assert!(outcome.stderr.contains("device:unix:///nowhere/device.sock"), "{}", outcome.stderr);
}

#[test]
fn a_back_end_that_does_not_exist_is_one_error() {
    let place = place(2);
    place.write("plan.yaml", plan("proxy:nix").replace("backend: rten, ", ""));
    let [workflow, plan, report] =
        ["workflow.yaml", "plan.yaml", "report.json"].map(|file| place.argument(file));
    let told = tidemill(&arguments(&workflow, &plan, &report));
    assert_ne!(told.code, Some(0));
    let told = told.stderr;
    assert!(told.contains("there is no back end `nix`") && told.contains("rten"), "{told}");
    assert_eq!(told.matches("nix").count(), 2, "{told}");
}

#[test]
fn a_run_is_the_tenant_with_the_name_of_its_workflow() {
    let place = place(12);
    let (expected, _) = run(&place, "cpu");
    let socket = format!("unix://{}", place.argument("device.sock"));
    let device = format!("tenant-{}", std::process::id());
    let arguments = ["device", "serve", "--listen", &socket, "--device", &device, "--backend", "rten"];
    let cache = place.argument("cache");
    let arguments = [&arguments[..], &["--cache", &cache, "--tenant", "seen=50%", "--only-tenants"]].concat();
    let mut serving = command(&arguments).stderr(Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufReader::new(serving.stderr.take().unwrap());
    let serves = std::io::BufRead::lines(lines).map_while(Result::ok).any(|line| line.contains("serves at"));
    let (found, report) = run(&place, &format!("device:{socket}"));
    serving.kill().unwrap();
    serving.wait().unwrap();
    assert!(serves && found == expected, "the rows differ");
    assert!(of_features(&report)["device"].as_str().unwrap().starts_with("device:unix://"));
}

const NORMS: &str = r#"version: 1
name: norms
sources: [{id: rows, kind: jsonl, options: {path: rows.jsonl, columns: {x: "tensor<float32>[4]"}}}]
operators: [{id: norm, kind: ml, input: rows, variants: [identity.yaml]}]
sinks: [{id: norms, kind: jsonl, input: norm, options: {path: norms.jsonl}}]
"#;

/// A server of the Open Inference Protocol is none of the backends that manifests name, and a plan cannot ask for it.
#[test]
fn a_model_on_a_server_gives_the_rows_of_this_process() {
    let python = std::env::var("TIDEMILL_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let asked = ["-c", "import sys; sys.exit(sys.version_info < (3, 10))"];
    if !std::process::Command::new(&python).args(asked).status().is_ok_and(|status| status.success()) {
        println!("skipped: {python} is no Python 3.10 or newer; TIDEMILL_TEST_PYTHON names one");
        return;
    }
    let place = Place::empty("norms");
    for file in ["identity.yaml", "identity.onnx"] {
        place.write(file, std::fs::read(root().join("operators/inference/testdata").join(file)).unwrap());
    }
    place.write("workflow.yaml", NORMS);
    place
        .write("rows.jsonl", (0..20).map(|row| format!("{{\"x\": [{row}, 1, 2, 3]}}\n")).collect::<String>());
    let workflow = place.argument("workflow.yaml");
    tidemill(&["run", &workflow, "--quiet"]).expect(0);
    let expected = place.read("norms.jsonl");
    let mut server = std::process::Command::new(python);
    server.arg(root().join("operators/remote/tests/server.py")).arg("http");
    let mut serving = server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(serving.stdout.take().unwrap()), &mut line)
        .unwrap();
    let port = serde_json::from_str::<serde_json::Value>(&line).unwrap()["port"].as_u64().unwrap();
    place.write(
        "plan.yaml",
        format!(
            "version: 1
workflow: {{name: norms}}
workers: [{{id: here, tier: here, worker_type: here}}]
stages:
  - {{id: rows, operator: rows, worker: here}}
  - {{id: norm, operator: norm, variant: identity, device: \"oip:http://127.0.0.1:{port}\", worker: here, max_batch: 4}}
  - {{id: norms, operator: norms, worker: here}}
classes: [{{id: 0, share: 1.0, route: {{rows: rows, norm: norm, norms: norms}}}}]
edges: [{{from: rows, to: norm}}, {{from: norm, to: norms}}]
"
        ),
    );
    let outcome = tidemill(&["run", &workflow, "--plan", &place.argument("plan.yaml"), "--quiet"]);
    serving.kill().unwrap();
    serving.wait().unwrap();
    outcome.expect(0);
    assert_eq!(place.read("norms.jsonl"), expected);
}

#[test]
fn a_model_whose_back_end_is_a_program_of_its_own_is_checked_without_it() {
    let place = place(1);
    let manifest = std::fs::read_to_string(root().join("models/vqa/scene-features-tiny.yaml")).unwrap();
    let module = b"\x7fELF is no library, which only its program would notice";
    place.write("module.so", module);
    let artifact = format!("{{file: module.so, sha256: {}}}", tidemill_spec::digest::sha256(module));
    let models = root().join("models/vqa");
    let manifest = manifest
        .replace("backends: [", &format!("artifacts: {{tvm: {artifact}}}\nbackends: [tvm, "))
        .replace(
            "file: scene-features-tiny.onnx",
            &format!("file: {}/scene-features-tiny.onnx", models.display()),
        );
    place.write("model.yaml", manifest);
    let workflow = |more: &str| {
        let variants = format!("variants: [model.yaml], backend: tvm{more}");
        place.write(
            "workflow.yaml",
            WORKFLOW.replace("variants: [../../models/vqa/scene-features-tiny.yaml]", &variants),
        );
        place.argument("workflow.yaml")
    };
    tidemill(&["validate", &workflow(", device: proxy")]).expect(0);
    let refused = tidemill(&["validate", &workflow("")]).expect(78).stderr;
    assert!(refused.contains("scripts/backends.sh tvm builds it"), "{refused}");
}
