//! `tidemill device serve` and the verbs that look at it, through the built binary.
use crate::command::{Place, command, tidemill};
use crate::devices;
use crate::live::{end, get, interrupt, until};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Stdio};
use tidemill_device::dial;
use tidemill_device::emulated::artifact_of;
use tidemill_device::session::{CallError, Session};
use tidemill_device::value::Element;
use tidemill_engine::remote::{Address, Security};

const PROFILE: &str = r#"{"kind": "gpu", "others": {"run_ms": 1}}"#;

/// A device that is served by a process of its own.
struct Served {
    place: Place,
    device: String,
    process: Option<Child>,
    address: Address,
}

impl Served {
    fn start(name: &str, more: &[&str]) -> Self {
        let place = Place::empty(name);
        place.write("profile.json", PROFILE);
        let device = format!("{name}-{}", std::process::id());
        let (cache, profile) = (place.argument("cache"), place.argument("profile.json"));
        let socket = format!("unix://{}", place.argument("device.sock"));
        let arguments =
            ["device", "serve", "--listen", "tcp://127.0.0.1:0", "--listen", &socket, "--device", &device];
        let of_backend: &[&str] =
            if more.contains(&"--backend") { &[] } else { &["--backend", "emulated", "--profile", &profile] };
        let arguments = [&arguments[..], of_backend, &["--cache", &cache], more].concat();
        let process = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let serves = || devices_of(&device).is_some_and(|listed| listed["addresses"][1].is_string());
        until(serves);
        let listed = devices_of(&device).expect("it serves");
        let address = listed["addresses"][0].as_str().unwrap().parse().unwrap();
        Self { place, device, process: Some(process), address }
    }

    fn listed(&self) -> Value {
        devices_of(&self.device).expect("it serves")
    }

    fn open(&self, tenant: &str) -> Result<Session, CallError> {
        dial::open(&self.address, &Security::none(), tenant, "a test")
    }

    fn verb(&self, arguments: &[&str]) -> crate::command::Outcome {
        tidemill(&[&["device"], arguments, &["--device", &self.device]].concat())
    }

    /// Waits for its end; it must leave nothing.
    fn end(mut self, code: i32) -> String {
        let (found, _, told) = end(self.process.take().unwrap());
        assert_eq!(found, Some(code), "{told}");
        assert!(!self.place.path("device.sock").exists());
        assert_eq!(std::fs::read_dir(self.place.path("cache/sessions")).unwrap().count(), 0);
        told
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn devices_of(device: &str) -> Option<Value> {
    let outcome = tidemill(&["device", "ls", "--device", device, "--output", "json"]);
    (outcome.code == Some(0)).then(|| outcome.json()["devices"][0].clone())
}

fn compute(session: &Session, bytes: usize) -> Result<(), CallError> {
    let artifact = artifact_of("m", b"m", 1, 1);
    let model = session.load(&artifact, |_| Ok(Box::new(&b"m"[..])))?;
    let mut lane = session.lane();
    let input = lane.upload(Element::Uint8, &[bytes], &vec![1; bytes])?;
    let outputs = lane.run(model, &[input], &[0])?;
    let pending = lane.read(outputs[0])?;
    drop(lane);
    pending.wait().map(drop)
}

fn lives(process: &Value) -> bool {
    let path = Path::new("/proc").join(process.to_string()).join("stat");
    std::fs::read_to_string(path).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_device_is_listed_limited_and_drained() {
    let served =
        Served::start("listed", &["--tenant", "a=50%,1MiB", "--only-tenants", "--metrics", "127.0.0.1:0"]);
    let refused = served.open("b").unwrap_err();
    assert!(
        matches!(&refused, CallError::Refused(reason) if reason.contains("--tenant b=SHARE")),
        "{refused}"
    );
    let session = served.open("a").unwrap();
    compute(&session, 1000).unwrap();
    let listed = served.listed();
    assert_eq!(listed["tenants"].as_array().unwrap().len(), 1);
    let of_session = &listed["sessions"][0];
    assert_eq!((&of_session["tenant"], &of_session["runs"]), (&"a".into(), &1.into()), "{listed}");
    assert!(of_session["memory"].as_u64().unwrap() >= 2000 && of_session["models"] == 1, "{listed}");
    let table = served.verb(&["ls"]).expect(0).stdout;
    assert!(table.contains("50 %") && table.contains("1.0 MiB") && table.contains("a test"), "{table}");
    assert_eq!(served.verb(&["top", "--once"]).expect(0).stdout.lines().count(), table.lines().count());
    let limits = served.verb(&["limits", "a", "--share", "30%", "--memory", "2KiB", "--output", "json"]);
    let limits = limits.expect(0).json()["devices"][0]["tenants"][0].clone();
    assert_eq!((&limits["share"], &limits["memory_limit"]), (&0.3.into(), &2048.into()), "{limits}");
    let told = served.verb(&["limits", "b", "--share", "30%"]).expect(1).stderr;
    assert!(told.contains("no tenant `b`; it has a") && told.contains("--new"), "{told}");
    let told = served.verb(&["limits", "b", "--new", "--share", "80%"]).expect(1).stderr;
    assert!(told.contains("the shares add to 110 %"), "{told}");
    let added = served.verb(&["limits", "b", "--new", "--share", "70%", "--output", "json"]).expect(0).json();
    assert_eq!(added["devices"][0]["tenants"][1]["share"], 0.7, "{added}");
    let error = compute(&session, 5000).unwrap_err();
    assert!(error.to_string().contains("device limits"), "{error}");
    assert_eq!(served.verb(&["limits", "a"]).expect(2).stdout, "");
    served.verb(&["drain", "99"]).expect(1);
    assert!(served.verb(&["drain"]).expect(0).stderr.contains("no session any more"));
    assert!(session.is_dismissed());
    let told = served.end(0);
    let metrics = told.lines().find_map(|line| line.strip_prefix("metrics at ")).unwrap();
    assert!(metrics.starts_with("http://127.0.0.1:"), "{told}");
    assert!(told.contains("without TLS") && told.contains("drained"), "{told}");
}

#[test]
fn an_interrupt_ends_a_device_with_all_sessions() {
    let served = Served::start("interrupted", &[]);
    let session = served.open("a").unwrap();
    compute(&session, 10).unwrap();
    let process = served.listed()["sessions"][0]["process"].clone();
    assert!(lives(&process));
    interrupt(served.process.as_ref().unwrap());
    let device = served.device.clone();
    served.end(130);
    until(|| !lives(&process) && session.lost().is_some());
    let told = tidemill(&["device", "drain", "--device", &device]).expect(66).stderr;
    assert!(told.contains("does not answer") && told.contains("device ls"), "{told}");
}

#[test]
fn runs_of_one_tenant_share_a_process_and_each_has_its_rows() {
    let served = Served::start("shared", &["--backend", "rten", "--batch", "8", "--batch-wait", "1ms"]);
    let sessions = [served.open("a").unwrap(), served.open("b").unwrap()];
    let listed = served.listed();
    assert_eq!(listed["sessions"][0]["process"], listed["sessions"][1]["process"], "both are `default`");
    let at = format!("device:{}", served.address);
    let places = [devices::place(20), devices::place(30)];
    let expected = places.each_ref().map(|place| devices::run(place, "cpu").0);
    std::thread::scope(|scope| {
        for (place, expected) in places.iter().zip(&expected) {
            scope.spawn(|| assert!(devices::run(place, &at).0 == *expected, "the rows differ"));
        }
    });
    until(|| served.listed()["sessions"].as_array().is_some_and(|left| left.len() == 2));
    let (runs, batches) = (served.listed()["runs"].as_u64(), served.listed()["batches"].as_u64());
    assert!(batches > Some(0) && batches <= runs, "{runs:?} runs, {batches:?} batches");
    assert!(served.verb(&["ls"]).expect(0).stdout.contains(" batches, "));
    drop(sessions);
    interrupt(served.process.as_ref().unwrap());
    served.end(130);
}

#[test]
fn metrics_of_a_device_are_those_of_the_list() {
    let port = crate::command::free_port();
    let address = format!("127.0.0.1:{port}");
    let served = Served::start("measured", &["--metrics", &address]);
    let session = served.open("a").unwrap();
    compute(&session, 10).unwrap();
    let text = get(&address, "/metrics");
    let body = text.split_once("\r\n\r\n").map_or(text.as_str(), |(_, body)| body);
    assert!(body.contains("tidemill_device_runs_total{device="), "{text}");
    assert_eq!(crate::metrics_inventory::unknown(body), Vec::<String>::new());
}

#[test]
fn mistakes_have_a_fix() {
    let place = Place::empty("mistakes-of-devices");
    place.write("profile.json", "{\"models\": 1}");
    let profile = place.argument("profile.json");
    let serve = |more: &[&str]| {
        tidemill(
            &[&["device", "serve", "--listen", "tcp://127.0.0.1:0", "--backend", "emulated"], more].concat(),
        )
    };
    let told = serve(&["--profile", &profile]).expect(78).stderr;
    assert!(told.contains("profile.json") && told.contains("run_ms"), "{told}");
    assert!(serve(&["--device", "a/b"]).expect(2).stderr.contains("no name of a device"));
    assert!(serve(&["--tenant", "a=50%", "--tenant", "a=10%"]).expect(2).stderr.contains("twice"));
    assert!(serve(&["--tenant", "a=0%"]).expect(2).stderr.contains("above 0"));
    let told = serve(&["--tenant", "a=70%", "--tenant", "b=50%"]).expect(2).stderr;
    assert!(told.contains("the shares add to 120 % (a 70 %, b 50 %)"), "{told}");
    assert!(serve(&["--tenant", "a=100%"]).expect(2).stderr.contains("--only-tenants"));
    let cache = place.argument("cache");
    let told = tidemill(&[
        "device",
        "serve",
        "--listen",
        "tcp://127.0.0.1:0",
        "--proxy-program",
        "/bin/true",
        "--cache",
        &cache,
        "--device",
        "without-program",
    ]);
    let told = told.expect(69).stderr;
    assert!(told.contains("cannot start") && told.contains("before it was ready"), "{told}");
}

/// Starts a run on the device, drains it, and checks the rows. Returns the log, and the figures of the stage on the device.
fn drained_in_a_run(served: Served, place: &Place, plan: &str, expected: &str) -> (String, Value) {
    place.write("plan.yaml", plan);
    std::fs::remove_dir_all(place.path("out")).unwrap();
    let [workflow, plan, report] =
        ["workflow.yaml", "plan.yaml", "report.json"].map(|file| place.argument(file));
    let child = command(&devices::arguments(&workflow, &plan, &report)).spawn().unwrap();
    until(|| served.listed()["runs"].as_u64() > Some(5));
    served.verb(&["drain"]).expect(0);
    served.end(0);
    let (code, _, told) = end(child);
    assert_eq!(code, Some(0), "{told}");
    assert!(place.read("out/seen.jsonl") == expected, "the rows differ");
    (told, on_device(place))
}

/// The figures of the stage on the device, in the report.
fn on_device(place: &Place) -> Value {
    let report: Value = serde_json::from_str(&place.read("report.json")).unwrap();
    let stages = report["stages"].as_array().unwrap();
    stages.iter().find(|stage| stage["stage"] == "features").unwrap()["on_device"].clone()
}

fn signal(process: u32, signal: rustix::process::Signal) {
    let process = rustix::process::Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    rustix::process::kill_process(process, signal).unwrap();
}

#[test]
fn a_device_that_stands_still_in_a_run_costs_no_row() {
    let place = devices::place(200);
    let (expected, _) = devices::run(&place, "cpu");
    let served = Served::start("stopped-in-a-run", &["--backend", "rten"]);
    let device = format!("device:{}", served.address);
    place.write("plan.yaml", devices::plan(&device));
    std::fs::remove_dir_all(place.path("out")).unwrap();
    let [workflow, plan, report] =
        ["workflow.yaml", "plan.yaml", "report.json"].map(|file| place.argument(file));
    let child =
        command(&devices::arguments(&workflow, &plan, &report)).stderr(Stdio::piped()).spawn().unwrap();
    until(|| served.listed()["runs"].as_u64() > Some(5));
    let process = served.listed()["sessions"][0]["process"].as_u64().unwrap() as u32;
    // Nobody ends a connection: only their silence shows it.
    let all = [served.process.as_ref().unwrap().id(), process];
    all.iter().for_each(|process| signal(*process, rustix::process::Signal::STOP));
    let ended = child.wait_with_output().unwrap();
    all.iter().for_each(|process| signal(*process, rustix::process::Signal::CONT));
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(place.read("out/seen.jsonl") == expected, "the rows differ");
    let split = on_device(&place);
    assert!(
        split["sessions_lost"].as_u64() >= Some(1) && split["sessions_stalled"].as_u64() >= Some(1),
        "{split}"
    );
    interrupt(served.process.as_ref().unwrap());
    served.end(130);
}

#[test]
fn a_device_that_is_drained_in_a_run_costs_no_row() {
    let place = devices::place(200);
    let (expected, _) = devices::run(&place, "cpu");
    let served = Served::start("drained-in-a-run", &["--backend", "rten"]);
    let plan = devices::plan(&format!("device:{}", served.address));
    let (told, split) = drained_in_a_run(served, &place, &plan, &expected);
    assert!(split["batches_here"].as_u64() >= Some(1) && split["batches_on_spares"] == 0, "{split}");
    assert!(told.contains("the device is drained: this process computes instead"), "{told}");
    assert!(!told.contains("start `tidemill device serve`"), "{told}");
}

#[test]
fn the_spare_of_a_drained_device_computes() {
    let place = devices::place(200);
    let (expected, _) = devices::run(&place, "cpu");
    let [served, spare] =
        ["first", "spare"].map(|name| Served::start(&format!("drained-{name}"), &["--backend", "rten"]));
    let [first, second] = [&served, &spare].map(|served| served.address.place().to_owned());
    let listed = format!(
        "devices: [{{id: gpu, kind: gpu, worker: here, address: '{first}', spares: ['{second}']}}]\n"
    );
    let plan = devices::plan("device:gpu").replace("stages:\n", &format!("{listed}stages:\n"));
    let (_, split) = drained_in_a_run(served, &place, &plan, &expected);
    assert!(split["batches_on_spares"].as_u64() >= Some(1) && split["batches_here"] == 0, "{split}");
    assert!(spare.listed()["runs"].as_u64() > Some(0), "{}", spare.listed());
}
