//! A daemon with real processes, which are killed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
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
use tidemill_link::remote::{Address, Certificates, Security};

#[path = "../../link/tests/remote/authority.rs"]
mod authority;
#[path = "daemon/batches.rs"]
mod batches;

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

/// Starts this program in a role, gives it a line, and waits for a line of its standard error with this.
fn start(role: &str, test: &str, line: &impl serde::Serialize, says: &str) -> (Child, String) {
    let mut command = again(role, test);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.as_ref().unwrap();
    serde_json::to_writer(&mut input, line).unwrap();
    input.write_all(b"\n").unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    // The process of a session may have written a part of the line.
    let found = std::iter::from_fn(|| {
        let mut line = String::new();
        let read = errors.read_line(&mut line).unwrap();
        said += &line;
        (read > 0).then_some(line)
    })
    .find_map(|line| Some(line.split_once(says)?.1.trim().to_owned()));
    // What it says later is not waited for, and must not block it.
    std::thread::spawn(move || errors.read_to_string(&mut String::new()));
    let Some(found) = found else {
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("{role} said only: {said}");
    };
    (child, found)
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
        batching: None,
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
        // A process that another test starts has all descriptors for a moment.
        until("the name", || (!devices().unwrap().contains(&self.device)).then_some(()));
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
    // The limit is only a watch-dog.
    for _ in 0..10_000 {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("waited for {what}")
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
    let at_file = Address::unix(socket.path().join("device").display().to_string());
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
    // Tensors are freed after the reply.
    let is_free = |listing: &Listing| listing.sessions.iter().all(|session| session.memory == 12);
    let listing = served.until("figures", |listing| listing.runs == 2 && is_free(listing));
    assert_eq!(listing.sessions.len(), 2);
    assert_eq!(
        (listing.sessions[0].client.as_str(), listing.sessions[0].tenant.as_str()),
        ("test", "default")
    );
    assert!(listing.sessions.iter().all(|session| session.models == 1), "{listing:?}");
    drop(other);
    served.until("the end of a session", |listing| listing.sessions.len() == 1);
    served.end();
    drop(session);
    assert_eq!(std::fs::read_dir(socket.path()).unwrap().count(), 0);
}

#[test]
fn a_client_that_is_killed_gives_everything_back() {
    let served = Served::start("client", |_| {}, &profile(0.0));
    let other = served.open("other").unwrap();
    let model = load(&other, "m");
    let address = served.daemon().addresses()[0].clone();
    let (mut client, _) = start("client", "client_process", &(address, "killed"), "computed");
    let listing = served.until("both sessions", |listing| listing.sessions.len() == 2);
    let killed = listing.sessions.iter().find(|session| session.client == "killed").unwrap();
    assert!(killed.memory > 0 && killed.models == 1, "{killed:?}");
    client.kill().unwrap();
    client.wait().unwrap();
    until("the end of its process", || (!lives(killed.process)).then_some(()));
    served.until("the end of its session", |listing| listing.sessions.len() == 1);
    run(&other, model, 10).unwrap();
    drop(other);
    served.end();
}

#[test]
fn a_client_that_is_killed_during_a_run_does_too() {
    // The run takes an hour.
    let served = Served::start("long-run", |_| {}, &profile(3_600_000.0));
    let session = served.open("me").unwrap();
    let model = load(&session, "m");
    let mut lane = session.lane();
    let input = lane.upload(Element::Float32, &[1], &[0; 4]).unwrap();
    let outputs = lane.run(model, &[input], &[0]).unwrap();
    let pending = lane.read(outputs[0]).unwrap();
    drop(lane);
    let listing = served.until("the run", |listing| listing.runs == 1);
    drop(session);
    assert!(matches!(pending.wait(), Err(CallError::Lost { may_have_run: true, .. })));
    until("the end of its process", || (!lives(listing.sessions[0].process)).then_some(()));
    let listing = served.until("the end of its session", |listing| listing.sessions.is_empty());
    assert_eq!((listing.runs, listing.queue), (1, 0));
    served.end();
}

#[test]
fn a_process_that_is_killed_ends_its_session_alone() {
    let served = Served::start("process", |_| {}, &profile(0.0));
    let (mut session, other) = (served.open("me").unwrap(), served.open("other").unwrap());
    let (mut model, of_other) = (load(&session, "m"), load(&other, "m"));
    let expected = run(&session, model, 100).unwrap();
    for _ in 0..3 {
        let listing = served.until("both sessions", |listing| listing.sessions.len() == 2);
        let mine = listing.sessions.iter().find(|session| session.session != 2).unwrap();
        kill(mine.process);
        let lost = until("the loss", || run(&session, model, 100).err());
        assert!(matches!(lost, CallError::Lost { .. }) && session.lost().is_some(), "{lost:?}");
        assert!(!session.is_dismissed());
        assert_eq!(run(&other, of_other, 100).unwrap(), expected);
        session = served.open("me").unwrap();
        model = load(&session, "m");
        assert_eq!(run(&session, model, 100).unwrap(), expected);
    }
    drop((session, other));
    served.end();
}

fn stop(process: u32) {
    let id = rustix::process::Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::STOP).unwrap();
    // A thread that runs on another processor stops a moment later.
    let stands = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap_or_default();
        stat.contains(") T ")
    };
    let threads = || std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    until("its threads", || threads().all(stands).then_some(()));
}

/// The call that waits ends without the end of the process; then the daemon ends that, too.
#[test]
fn a_process_that_is_stopped_loses_its_session() {
    // The run takes an hour.
    let served = Served::start("stopped", |_| {}, &profile(3_600_000.0));
    let session = served.open("me").unwrap();
    let model = load(&session, "m");
    let mut lane = session.lane();
    let input = lane.upload(Element::Float32, &[1], &[0; 4]).unwrap();
    let outputs = lane.run(model, &[input], &[0]).unwrap();
    let pending = lane.read(outputs[0]).unwrap();
    drop(lane);
    let process = served.until("the run", |listing| listing.runs == 1).sessions[0].process;
    stop(process);
    match pending.wait() {
        Err(CallError::Lost { may_have_run: true, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(session.lost().is_some());
    until("the end of its process", || (!lives(process)).then_some(()));
    served.until("the end of its session", |listing| listing.sessions.is_empty());
    // Others are served.
    let again = served.open("me").unwrap();
    load(&again, "m");
    again.flush().unwrap();
    drop((session, again));
    served.end();
}

#[test]
fn a_daemon_that_is_stopped_loses_the_sessions_that_need_it() {
    let cache = tempfile::tempdir().unwrap();
    let device = format!("stopped-daemon-{}", std::process::id());
    let line = (&device, cache.path(), profile(0.0));
    let (mut daemon, address) = start("daemon", "daemon_process", &line, "serves");
    let session = dial::open(&address.parse().unwrap(), &Security::none(), "me", "test").unwrap();
    let model = load(&session, "m");
    session.flush().unwrap();
    let process = ask(&device, &Question::List).unwrap().unwrap().sessions[0].process;
    stop(daemon.id());
    // It needs a turn. The process of the session lives and gives signs of life, but none gives the turn.
    let lost = run(&session, model, 10).unwrap_err();
    assert!(matches!(lost, CallError::Lost { .. }), "{lost:?}");
    until("the end of its process", || (!lives(process)).then_some(()));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

#[test]
fn a_daemon_that_is_killed_leaves_no_process() {
    let cache = tempfile::tempdir().unwrap();
    let device = format!("killed-{}", std::process::id());
    let line = (&device, cache.path(), profile(0.0));
    let (mut daemon, address) = start("daemon", "daemon_process", &line, "serves");
    let session = dial::open(&address.parse().unwrap(), &Security::none(), "me", "test").unwrap();
    let model = load(&session, "m");
    run(&session, model, 10).unwrap();
    let listing = ask(&device, &Question::List).unwrap().unwrap();
    assert_eq!(listing.process, daemon.id());
    // A second one of this name is refused while it lives.
    let error = Daemon::start(options(&device, cache.path(), &profile(0.0))).unwrap_err();
    assert!(error.to_string().contains("already"), "{error}");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    until("the end of the session", || session.flush().err());
    until("the end of its process", || (!lives(listing.sessions[0].process)).then_some(()));
    until("the end of its folder", || left_in(cache.path()).is_empty().then_some(()));
    until("the name", || (!devices().unwrap().contains(&device)).then_some(()));
    // The name is free, and so is the folder.
    drop(Daemon::start(options(&device, cache.path(), &profile(0.0))).unwrap());
}

#[test]
fn tenants_have_their_memory_and_neighbours_notice_nothing() {
    let tenant = |memory| Tenant { share: 0.5, memory: Some(memory) };
    let listed = [("a".to_owned(), tenant(10_000)), ("b".to_owned(), tenant(10_000))];
    let tenants = Tenants::new(listed, true).unwrap();
    let served = Served::start("memory", |options| options.tenants = tenants, &profile(0.0));
    let error = served.open("c").unwrap_err();
    assert!(matches!(&error, CallError::Refused(reason) if reason.contains("--tenant c=SHARE")), "{error}");
    let (first, second, other) =
        (served.open("a").unwrap(), served.open("a").unwrap(), served.open("b").unwrap());
    assert_eq!(first.snapshot().memory, Some(10_000));
    let [model, _, of_other] = [&first, &second, &other].map(|session| load(session, "m"));
    run(&first, model, 600).unwrap();
    let held = {
        let mut lane = first.lane();
        let held = lane.upload(Element::Uint8, &[6_000], &[0; 6_000]).unwrap();
        drop(lane);
        first.flush().unwrap();
        held
    };
    // Both sessions of the tenant together.
    let too_much = {
        let mut lane = second.lane();
        lane.upload(Element::Uint8, &[5_000], &[0; 5_000]).unwrap();
        lane.flush().unwrap()
    };
    let failure = match too_much.wait().unwrap_err() {
        CallError::Failed(failure) => failure.error,
        other => panic!("{other}"),
    };
    assert!(matches!(failure, DeviceError::OutOfMemory { wanted: 5_000, limit: ..5_000, .. }), "{failure}");
    run(&other, of_other, 1000).unwrap();
    // Outputs count, which are known only after the run: 1,000 B of the model, and twice 6,000 B.
    match run(&other, of_other, 1500) {
        Err(CallError::Failed(failure)) => {
            assert!(matches!(failure.error, DeviceError::OutOfMemory { limit: 10_000, .. }), "{failure}");
        }
        other => panic!("{other:?}"),
    }
    // At once.
    let limits = Question::Limits { tenant: "a".to_owned(), share: None, memory: Some(20_000), new: false };
    let listing = served.ask(&limits).unwrap();
    assert_eq!(listing.tenants[0].memory_limit, Some(20_000));
    {
        let mut lane = second.lane();
        lane.upload(Element::Uint8, &[5_000], &[0; 5_000]).unwrap();
        lane.flush().unwrap()
    }
    .wait()
    .unwrap();
    served
        .ask(&Question::Limits { tenant: "a".to_owned(), share: Some(0.1), memory: Some(100), new: false })
        .unwrap();
    assert!(run(&first, model, 10).is_err());
    first.lane().free(&[held]).unwrap();
    let listing = served.until("free memory", |listing| listing.sessions[0].memory < 6_000);
    assert!((listing.tenants[0].share - 0.1).abs() < 1e-9);
    drop((first, second, other));
    served.end();
}

#[test]
fn sessions_of_a_drained_device_end_at_a_run_and_lose_nothing() {
    let served = Served::start("drain", |_| {}, &profile(1.0));
    let (idle, session) = (served.open("idle").unwrap(), served.open("me").unwrap());
    let model = load(&session, "m");
    let expected = run(&session, model, 10).unwrap();
    let mut pending = Vec::new();
    for _ in 0..20 {
        let mut lane = session.lane();
        let input = lane.upload(Element::Float32, &[10], &[1; 40]).unwrap();
        let outputs = lane.run(model, &[input], &[0]).unwrap();
        pending.push(lane.read(outputs[0]).unwrap());
    }
    assert!(served.ask(&Question::Drain { session: Some(99) }).unwrap_err().contains("device ls"));
    served.ask(&Question::Drain { session: None }).unwrap();
    let outcomes: Vec<_> = pending.into_iter().map(tidemill_device::session::Pending::wait).collect();
    // Every run has its value, or none has it from some run on.
    let whole = outcomes.iter().take_while(|outcome| outcome.is_ok()).count();
    for (at, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(answer) => assert!(at < whole && answer.value().unwrap().bytes()[..] == expected[..]),
            Err(error) => assert!(at >= whole && error.to_string().contains("drained"), "{error}"),
        }
    }
    until("the end of both", || (idle.is_dismissed() && session.is_dismissed()).then_some(()));
    assert!(matches!(served.open("me"), Err(CallError::Refused(reason)) if reason.contains("drained")));
    assert!(served.daemon().wait_until_over(Duration::from_secs(50)));
    served.end();
}

#[test]
fn one_session_is_drained_and_the_others_stay() {
    let served = Served::start("drain-one", |_| {}, &profile(0.0));
    let (first, second) = (served.open("a").unwrap(), served.open("b").unwrap());
    served.ask(&Question::Drain { session: Some(1) }).unwrap();
    served.until("the end of the first", |listing| listing.sessions.len() == 1);
    match first.flush() {
        Err(CallError::Lost { reason, .. }) => assert!(reason.contains("drain"), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert!(first.is_dismissed() && !second.is_dismissed());
    let model = load(&second, "m");
    run(&second, model, 10).unwrap();
    // It may come again.
    assert!(served.open("a").is_ok());
    served.end();
}

#[test]
fn alone_two_tenants_have_about_their_shares_of_a_real_queue() {
    let tenant = |share| Tenant { share, memory: None };
    let listed = [("a".to_owned(), tenant(0.75)), ("b".to_owned(), tenant(0.25))];
    let tenants = Tenants::new(listed, true).unwrap();
    let served = Served::start("shares", |options| options.tenants = tenants, &profile(5.0));
    let computed = |listing: &Listing, tenant: &str| -> f64 {
        let its = listing.sessions.iter().filter(|session| session.tenant == tenant);
        its.map(|session| session.computed_seconds).sum()
    };
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for tenant in ["a", "a", "a", "b", "b", "b"] {
            let (served, is_over) = (&served, &is_over);
            scope.spawn(move || {
                let session = served.open(tenant).unwrap();
                let model = load(&session, "m");
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    run(&session, model, 1).unwrap();
                }
            });
        }
        let all_run =
            |listing: &Listing| listing.sessions.iter().filter(|session| session.runs > 5).count() == 6;
        let begun = served.until("all of them", all_run);
        let before = (computed(&begun, "a"), computed(&begun, "b"));
        let listing = served.until("some time", |listing| {
            computed(listing, "b") + computed(listing, "a") > before.0 + before.1 + 1.0
        });
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        let (of_a, of_b) = (computed(&listing, "a") - before.0, computed(&listing, "b") - before.1);
        let share = of_a / (of_a + of_b);
        // Their exact shares are tested on a manual clock: here a client may be late with its next run.
        assert!(share > 0.55, "{share}: {listing:?}");
        assert!(listing.sessions.iter().any(|session| session.state != SessionState::Greeting));
    });
    served.end();
}

/// A host's certificate and its trusted authority.
fn certificates() -> Certificates {
    authority::Authority::named("tests").certify("tidemill", |_| {})
}

#[test]
fn connections_without_a_socket_of_their_own_are_relayed() {
    tidemill_session::install().unwrap();
    let ways = [
        (Address::tcp("127.0.0.1:0"), Security::mutual(&certificates()).unwrap()),
        (tidemill_session::address("127.0.0.1:0"), Security::none()),
    ];
    for (at, (address, security)) in ways.into_iter().enumerate() {
        let with = security.clone();
        let change = |options: &mut Options| (options.listen, options.security) = (vec![address], with);
        let served = Served::start(&format!("relayed-{at}"), change, &profile(0.0));
        let address = &served.daemon().addresses()[0];
        let open = || dial::open(address, &security, "me", "test").unwrap();
        let (session, killed) = (open(), open());
        // More than any buffer holds, both ways.
        let model = load(&session, "m");
        let (small, large) = (run(&session, model, 10).unwrap(), run(&session, model, 4 << 20).unwrap());
        assert_eq!((small.len(), large.len()), (40, 16 << 20));
        // Without TLS where it is wanted nobody is served.
        if at == 0 {
            assert!(dial::connect(address, &Security::none(), "me", "test").is_err());
        }
        let listing = served.until("both", |listing| listing.sessions.len() == 2);
        kill(listing.sessions[1].process);
        until("the loss", || killed.flush().err());
        assert_eq!(run(&session, model, 10).unwrap(), small);
        let process = listing.sessions[0].process;
        // The last words of the device arrive, too.
        let drained = open();
        load(&drained, "m");
        let last = served.until("a third one", |listing| listing.sessions.len() == 2).sessions[1].session;
        served.ask(&Question::Drain { session: Some(last) }).unwrap();
        until("the goodbye", || drained.is_dismissed().then_some(()));
        drop(session);
        until("the end of its process", || (!lives(process)).then_some(()));
        served.until("the end of both", |listing| listing.sessions.is_empty());
        served.end();
    }
}
