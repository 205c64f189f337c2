//! Models on device proxies: the same rows as in this process, also when a proxy is killed; through the built binary.
use crate::command::{Place, command, tidemill};
use image::RgbImage;
use std::path::Path;
use std::process::Child;

const WORKFLOW: &str = "version: 1
name: seen
sources:
  - {id: images, kind: image_directory, key: key, rate: 200/s, options: {path: pictures}}
operators:
  - {id: features, kind: ml, input: images, variants: [../../models/vqa/scene-features-tiny.yaml]}
sinks:
  - {id: seen, kind: jsonl, input: features, options: {path: out/seen.jsonl}}
";

fn plan(device: &str) -> String {
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

fn place(pictures: u32) -> Place {
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

fn arguments<'a>(workflow: &'a str, plan: &'a str, report: &'a str) -> [&'a str; 7] {
    ["run", workflow, "--plan", plan, "--report-json", report, "--quiet"]
}

/// The rows of a run with the model on this device.
fn run(place: &Place, device: &str) -> (String, serde_json::Value) {
    place.write("plan.yaml", plan(device));
    let [workflow, plan, report] = ["workflow.yaml", "plan.yaml", "report.json"].map(|file| place.argument(file));
    tidemill(&arguments(&workflow, &plan, &report)).expect(0);
    (place.read("out/seen.jsonl"), serde_json::from_str(&place.read("report.json")).unwrap())
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
    let stage = report["stages"].as_array().unwrap().iter().find(|stage| stage["stage"] == "features").unwrap();
    assert_eq!(stage["device"], "proxy");
}

#[test]
fn a_proxy_that_is_killed_costs_no_row() {
    let place = place(200);
    let (expected, _) = run(&place, "cpu");
    place.write("plan.yaml", plan("proxy:rten"));
    std::fs::remove_dir_all(place.path("out")).unwrap();
    let [workflow, plan, report] = ["workflow.yaml", "plan.yaml", "report.json"].map(|file| place.argument(file));
    let mut child = command(&arguments(&workflow, &plan, &report)).spawn().unwrap();
    let proxy = proxy_of(&mut child, &place).expect("it runs for a second");
    let process = rustix::process::Pid::from_raw(i32::try_from(proxy).unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(place.read("out/seen.jsonl") == expected, "the rows differ");
}

#[test]
fn a_device_that_is_not_there_is_found_before_the_run() {
    let place = place(2);
    place.write("plan.yaml", plan("device:unix:///nowhere/device.sock"));
    let [workflow, plan, report] = ["workflow.yaml", "plan.yaml", "report.json"].map(|file| place.argument(file));
    let outcome = tidemill(&arguments(&workflow, &plan, &report));
    assert_ne!(outcome.code, Some(0));
    assert!(outcome.stderr.contains("device:unix:///nowhere/device.sock"), "{}", outcome.stderr);
}
