//! A daemon with real processes, which are killed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tidemill_device::child;
use tidemill_device::daemon::control::{Question, ask, devices};
use tidemill_device::daemon::tenants::{Tenant, Tenants};
use tidemill_device::daemon::views::{Listing, SessionState};
use tidemill_device::daemon::{Daemon, Options};
use tidemill_device::device::{Artifact, DeviceError, ModelId};
use tidemill_device::dial;
use tidemill_device::emulated::{Emulated, Profile, artifact_of};
use tidemill_device::session::{CallError, Session};
use tidemill_device::value::Element;
use tidemill_link::remote::{Address, Security};

/// The profile of the emulated device in the process of a session.
const PROFILE: &str = "TIDEMILL_TEST_PROFILE";
/// What the process of a test does instead.
const ROLE: &str = "TIDEMILL_TEST_ROLE";

/// No test: the process of a session, whose standard input is its control socket.
#[test]
fn proxy_process() {
    if std::env::var(ROLE).as_deref() == Ok("proxy") {
        let profile: Profile = serde_json::from_str(&std::env::var(PROFILE).unwrap()).unwrap();
        let served = child::main(&Emulated::new(profile));
        std::process::exit(i32::from(served.is_err()));
    }
}

/// No test: a daemon as a process of its own, which can be killed.
#[test]
fn daemon_process() {
    if std::env::var(ROLE).as_deref() == Ok("daemon") {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        let (device, cache, profile) = serde_json::from_str::<(String, PathBuf, Profile)>(&line).unwrap();
        let daemon = Daemon::start(options(&device, &cache, &profile)).unwrap();
        eprintln!("serves {}", daemon.addresses()[0]);
        // Until it is killed, or the test is gone.
        let _ = std::io::stdin().read_line(&mut line);
        drop(daemon);
        std::process::exit(0);
    }
}

/// No test: a client that loads a model and computes once, and then stays.
#[test]
fn client_process() {
    if std::env::var(ROLE).as_deref() == Ok("client") {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        let (address, tenant) = serde_json::from_str::<(Address, String)>(&line).unwrap();
        let session = dial::open(&address, &Security::none(), &tenant, "killed").unwrap();
        let model = load(&session, "m");
        run(&session, model, 1000).unwrap();
        eprintln!("computed");
        let _ = std::io::stdin().read_line(&mut line);
        std::process::exit(0);
    }
}

fn again(role: &str, test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// Starts this program in a role, gives it a line, and waits for a line of its standard error that begins so.
fn start(role: &str, test: &str, line: &impl serde::Serialize, begins: &str) -> (Child, String) {
    let mut command = again(role, test);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.as_ref().unwrap();
    serde_json::to_writer(&mut input, line).unwrap();
    input.write_all(b"\n").unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    loop {
        let mut line = String::new();
        assert!(errors.read_line(&mut line).unwrap() > 0, "{role} said only: {said}");
        if let Some(rest) = line.trim_end().strip_prefix(begins) {
            let rest = rest.trim().to_owned();
            // What it says later is not waited for, and must not block it.
            std::thread::spawn(move || errors.read_to_string(&mut said));
            return (child, rest);
        }
        said += &line;
    }
}

fn options(device: &str, cache: &Path, profile: &Profile) -> Options {
    let program = std::env::current_exe().unwrap().display().to_string();
    let set = [format!("{ROLE}=proxy"), format!("{PROFILE}={}", serde_json::to_string(profile).unwrap())];
    let arguments = ["proxy_process", "--exact", "--nocapture", "--test-threads=1"].map(str::to_owned);
    Options {
        device: device.to_owned(),
        kind: Some("test".to_owned()),
        listen: vec![Address::tcp("127.0.0.1:0")],
        security: Security::none(),
        command: ["env".to_owned()].into_iter().chain(set).chain([program]).chain(arguments).collect(),
        cache: cache.to_owned(),
        cache_limit: 1 << 30,
        memory: None,
        slots: 1,
        tenants: Tenants::new([], false).unwrap(),
        most_sessions: 16,
        longest_run: Duration::from_secs(60),
    }
}

/// A daemon on this thread's process, with everything that it must not leave.
struct Served {
    daemon: Option<Daemon>,
    cache: tempfile::TempDir,
    device: String,
}

impl Served {
    fn start(device: &str, change: impl FnOnce(&mut Options), profile: &Profile) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let device = format!("{device}-{}", std::process::id());
        let mut options = options(&device, cache.path(), profile);
        change(&mut options);
        Self { daemon: Some(Daemon::start(options).unwrap()), cache, device }
    }

    fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    fn open(&self, tenant: &str) -> Result<Session, CallError> {
        dial::open(&self.daemon().addresses()[0], &Security::none(), tenant, "test")
    }

    fn ask(&self, question: &Question) -> Result<Listing, String> {
        ask(&self.device, question).unwrap()
    }

    /// Waits until the listing is so.
    fn until(&self, what: &str, is_so: impl Fn(&Listing) -> bool) -> Listing {
        until(what, || Some(self.daemon().listing()).filter(&is_so))
    }

    /// Ends the daemon, and looks for what it left.
    fn end(mut self) {
        let processes: Vec<u32> =
            self.daemon().listing().sessions.iter().map(|session| session.process).collect();
        drop(self.daemon.take());
        assert!(processes.iter().all(|process| !lives(*process)), "{processes:?}");
        assert!(!devices().unwrap().contains(&self.device));
        assert_eq!(left_in(self.cache.path()), Vec::<PathBuf>::new());
    }
}

/// Folders of sessions, and files that arrive.
fn left_in(cache: &Path) -> Vec<PathBuf> {
    let entries = |folder: &str| std::fs::read_dir(cache.join(folder)).unwrap().flatten();
    let arriving = entries("models").filter(|entry| entry.file_name().to_string_lossy().starts_with('.'));
    entries("sessions").chain(arriving).map(|entry| entry.path()).collect()
}

fn lives(process: u32) -> bool {
    // A process that nobody has waited for has ended, too.
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(50), "waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn artifact(name: &str) -> (Artifact, Vec<u8>) {
    let content = format!("content of {name}").into_bytes();
    (artifact_of(name, &content, 1, 1), content)
}

fn load(session: &Session, name: &str) -> ModelId {
    let (artifact, content) = artifact(name);
    session.load(&artifact, |_| Ok(Box::new(std::io::Cursor::new(content.clone())))).unwrap()
}

fn run(session: &Session, model: ModelId, elements: usize) -> Result<Vec<u8>, CallError> {
    let mut lane = session.lane();
    let input = lane.upload(Element::Float32, &[elements], &vec![1; 4 * elements])?;
    let outputs = lane.run(model, &[input], &[0])?;
    let pending = lane.read(outputs[0])?;
    lane.free(&[input, outputs[0]])?;
    drop(lane);
    Ok(pending.wait()?.value()?.bytes().to_vec())
}

fn kill(process: u32) {
    let process = rustix::process::Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
}

fn profile(run_ms: f64) -> Profile {
    let others = tidemill_device::emulated::ModelTimes { run_ms, ..Default::default() };
    Profile { others, ..Profile::default() }
}

#[test]
fn sessions_compute_and_leave_nothing() {
    let socket = tempfile::tempdir().unwrap();
    let at_file = Address::unix(&socket.path().join("device").display().to_string());
    let listens = at_file.clone();
    let served = Served::start("compute", |options| options.listen.push(listens), &profile(0.1));
    let session = served.open("me").unwrap();
    assert_eq!(session.snapshot().name, served.device);
    assert_eq!(session.snapshot().kind, "test");
    let model = load(&session, "m");
    let first = run(&session, model, 10).unwrap();
    let other = dial::open(&at_file, &Security::none(), "me", "other").unwrap();
    let model = load(&other, "m");
    assert_eq!(run(&other, model, 10).unwrap(), first);
    let listing = served.until("figures", |listing| listing.runs == 2);
    assert_eq!(listing.sessions.len(), 2);
    assert_eq!(
        (listing.sessions[0].client.as_str(), listing.sessions[0].tenant.as_str()),
        ("test", "default")
    );
    assert!(
        listing.sessions.iter().all(|session| session.models == 1 && session.memory == 12),
        "{listing:?}"
    );
    drop(other);
    served.until("the end of a session", |listing| listing.sessions.len() == 1);
    served.end();
    drop(session);
    assert_eq!(std::fs::read_dir(socket.path()).unwrap().count(), 0);
}
