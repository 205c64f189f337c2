//! A proxy or a client is killed while it works: the other side ends what it waits for, and nothing of the dead one is left there. This is
//! the only test of its program, so that no other test opens or closes anything meanwhile.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use tidemill_device::call::Hello;
use tidemill_device::carrier::Carrier;
use tidemill_device::daemon::tenants::Tenants;
use tidemill_device::daemon::views::Listing;
use tidemill_device::daemon::{Daemon, Options};
use tidemill_device::device::{Limits, Loadable, ModelId, Opener, Run, TensorId};
use tidemill_device::emulated::{Emulated, ModelTimes, Profile, artifact_of};
use tidemill_device::proxy::{Admission, Everybody, serve};
use tidemill_device::session::{CallError, Pending, Session};
use tidemill_device::store::Store;
use tidemill_device::value::{Element, Value};
use tidemill_device::{child, dial};
use tidemill_link::remote::{Address, Security};
use tidemill_random::Random;

/// Set where the test runs as the other process: a folder for models, or the address of a daemon.
const STARTED: &str = "TIDEMILL_DEVICE_STARTED";
const CONTENT: &[u8] = b"content";
const INPUTS: u8 = 12;
/// Inputs that are on their way at once.
const WINDOW: usize = 4;
/// Bytes of the even inputs and of the odd ones.
const BYTES: [usize; 2] = [100, 100_000];

#[expect(clippy::disallowed_methods, reason = "how long to wait for the end of a process is real time")]
fn now() -> Instant {
    Instant::now()
}

fn emulated() -> Emulated {
    let others = ModelTimes { run_ms: 0.05, ..ModelTimes::default() };
    Emulated::new(Profile { others, ..Profile::default() })
}

fn input(number: u8) -> Vec<u8> {
    vec![number; BYTES[usize::from(number) % 2]]
}

/// Starts an ignored test of this program as a process, and returns it with a socket to it.
fn start(test: &str, place: &str) -> (Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored", "--nocapture"])
        .env(STARTED, place)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (child, ours)
}

/// The place and the socket that this process was started with; none: a person did.
fn started() -> Option<(String, UnixStream)> {
    let place = std::env::var(STARTED).ok()?;
    Some((place, std::io::stdin().as_fd().try_clone_to_owned().unwrap().into()))
}

#[test]
#[ignore = "started by chaos_of_killed_clients_and_proxies_leaves_nothing_on_the_other_side"]
fn proxy_to_be_killed() {
    let Some((folder, socket)) = started() else { return };
    let folder = Path::new(&folder);
    let mut store = Store::open(&folder.join("models"), 1 << 20).unwrap();
    let place = folder.join(std::process::id().to_string());
    serve(Carrier::of_socket(socket).unwrap(), &emulated(), &mut Everybody::default(), &mut store, &place)
        .unwrap();
}

#[test]
#[ignore = "started by chaos_of_killed_clients_and_proxies_leaves_nothing_on_the_other_side"]
fn client_to_be_killed() {
    let Some((_, socket)) = started() else { return };
    let (session, model) = open(socket).unwrap();
    loop {
        infer(&session, model, &mut BTreeMap::new(), || ()).unwrap();
    }
}

#[test]
#[ignore = "started by chaos_of_killed_clients_and_proxies_leaves_nothing_on_the_other_side"]
fn proxy_of_a_daemon() {
    if std::env::var_os(STARTED).is_some() {
        let served = child::main(&emulated());
        // Without the report of a test.
        std::process::exit(i32::from(served.is_err()));
    }
}

#[test]
#[ignore = "started by chaos_of_killed_clients_and_proxies_leaves_nothing_on_the_other_side"]
fn client_of_a_daemon() {
    let Some((address, _)) = started() else { return };
    let (session, model) = open_at(&Address::tcp(address)).unwrap();
    loop {
        infer(&session, model, &mut BTreeMap::new(), || ()).unwrap();
    }
}

fn open(socket: UnixStream) -> Result<(Session, ModelId), CallError> {
    loaded(Session::open(Carrier::of_socket(socket).unwrap(), "tests", "chaos")?)
}

fn open_at(address: &Address) -> Result<(Session, ModelId), CallError> {
    loaded(dial::open(address, &Security::none(), "tests", "chaos")?)
}

fn loaded(session: Session) -> Result<(Session, ModelId), CallError> {
    let model = session.load(&artifact_of("m", CONTENT, 1, 1), |_| Ok(Box::new(CONTENT)))?;
    Ok((session, model))
}

fn post(session: &Session, model: ModelId, number: u8) -> Result<Pending, CallError> {
    let bytes = input(number);
    let mut lane = session.lane();
    let uploaded = lane.upload(Element::Uint8, &[bytes.len()], &bytes)?;
    let outputs = lane.run(model, &[uploaded], &[0])?;
    let pending = lane.read(outputs[0])?;
    lane.free(&[uploaded, outputs[0]])?;
    lane.send()?;
    Ok(pending)
}

/// Runs the model on all inputs that have no result yet, and keeps the results. Calls `step` between its calls.
fn infer(
    session: &Session,
    model: ModelId,
    results: &mut BTreeMap<u8, Value>,
    mut step: impl FnMut(),
) -> Result<(), CallError> {
    let mut wanted = (0..INPUTS).filter(|number| !results.contains_key(number)).collect::<VecDeque<_>>();
    let (mut waiting, mut lost) = (VecDeque::new(), Ok(()));
    loop {
        if let (true, true, Some(number)) = (lost.is_ok(), waiting.len() < WINDOW, wanted.front().copied()) {
            step();
            match post(session, model, number) {
                Ok(pending) => waiting.push_back((number, pending)),
                Err(error) => lost = Err(error),
            }
            wanted.pop_front();
            continue;
        }
        let Some((number, pending)) = waiting.pop_front() else { return lost };
        step();
        match pending.wait() {
            Ok(answer) => assert!(results.insert(number, answer.value().unwrap()).is_none(), "twice"),
            Err(error) => lost = Err(error),
        }
    }
}

fn expected() -> BTreeMap<u8, Value> {
    let mut device = emulated().open(&Limits::default()).unwrap();
    let artifact = artifact_of("m", CONTENT, 1, 1);
    device.load(ModelId(1), &Loadable { artifact, path: "m".into() }).unwrap();
    let values = (0..INPUTS).map(|number| {
        let bytes = input(number);
        let value = Value::new(Element::Uint8, vec![bytes.len()], bytes).unwrap();
        device.upload(TensorId(1), value).unwrap();
        let run = Run { model: ModelId(1), inputs: vec![TensorId(1)], outputs: vec![(0, TensorId(2))] };
        device.run(&run).unwrap();
        (number, device.read(TensorId(2)).unwrap())
    });
    values.collect()
}

fn end(child: &mut Child) {
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9), "the kill is what ended it");
}

/// Runs the model on all inputs, and calls `kill` at a random moment. Each call ends; the results of those that were not lost are kept.
fn disturbed(
    random: &mut Random,
    open: impl FnOnce() -> Result<(Session, ModelId), CallError>,
    results: &mut BTreeMap<u8, Value>,
    mut kill: impl FnMut(),
) {
    let (moment, mut steps) = (random.below(2 * usize::from(INPUTS)) + 1, 0);
    let ended = open().and_then(|(session, model)| {
        infer(&session, model, results, || {
            steps += 1;
            if steps == moment {
                // Between two instructions of the other, whichever they are.
                (0..random.below(20_000)).for_each(|_| std::hint::spin_loop());
                kill();
            }
        })
    });
    assert!(steps >= moment, "{ended:?}");
    assert_eq!(results.len() == usize::from(INPUTS), ended.is_ok());
    assert!(matches!(ended, Ok(()) | Err(CallError::Lost { .. })), "{ended:?}");
}

/// The client survives: what is lost is repeated on another proxy.
fn kill_proxy(random: &mut Random, folder: &str, expected: &BTreeMap<u8, Value>) {
    let mut results = BTreeMap::new();
    let (mut child, socket) = start("proxy_to_be_killed", folder);
    disturbed(random, || open(socket), &mut results, || end(&mut child));
    let (mut other, socket) = start("proxy_to_be_killed", folder);
    let (session, model) = open(socket).unwrap();
    infer(&session, model, &mut results, || ()).unwrap();
    assert_eq!(&results, expected);
    assert_eq!(session.traffic().sent_over_connection, 0, "long inputs go through shared memory");
    drop(session);
    assert!(other.wait().unwrap().success(), "it ends with its session");
}

/// The daemon survives, too, and starts another proxy.
fn kill_proxy_of(daemon: &Daemon, random: &mut Random, expected: &BTreeMap<u8, Value>) {
    let (mut results, address) = (BTreeMap::new(), &daemon.addresses()[0]);
    disturbed(random, || open_at(address), &mut results, || kill(daemon.listing().sessions[0].process));
    let (session, model) = open_at(address).unwrap();
    infer(&session, model, &mut results, || ()).unwrap();
    assert_eq!(&results, expected);
    drop(session);
    until(daemon, "the end of both sessions", |listing| listing.sessions.is_empty());
}

fn kill_client_of(daemon: &Daemon, random: &mut Random) {
    let (mut child, _socket) = start("client_of_a_daemon", daemon.addresses()[0].place());
    let runs = random.below(10) as u64;
    let is_there = |listing: &Listing| listing.sessions.iter().any(|session| session.runs >= runs);
    until(daemon, "a client", is_there);
    (0..random.below(20_000)).for_each(|_| std::hint::spin_loop());
    end(&mut child);
    let is_gone = |listing: &Listing| {
        listing.sessions.is_empty() && listing.tenants.iter().all(|tenant| tenant.memory == 0)
    };
    until(daemon, "the end of its session", is_gone);
}

fn kill(process: u32) {
    let process = rustix::process::Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
}

fn until(daemon: &Daemon, what: &str, is_so: impl Fn(&Listing) -> bool) {
    let begun = now();
    while !is_so(&daemon.listing()) {
        assert!(begun.elapsed() < Duration::from_secs(50), "waited for {what}: {:?}", daemon.listing());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn daemon(cache: &Path) -> Daemon {
    let program = std::env::current_exe().unwrap().display().to_string();
    let arguments = ["proxy_of_a_daemon", "--exact", "--ignored", "--nocapture"].map(str::to_owned);
    let environment = ["env".to_owned(), format!("{STARTED}=1"), program];
    let options = Options {
        device: format!("chaos-{}", std::process::id()),
        kind: None,
        listen: vec![Address::tcp("127.0.0.1:0")],
        security: Security::none(),
        command: environment.into_iter().chain(arguments).collect(),
        cache: cache.to_owned(),
        cache_limit: 1 << 30,
        memory: None,
        slots: 1,
        tenants: Tenants::new([], false).unwrap(),
        most_sessions: 16,
        longest_run: Duration::from_secs(60),
        batching: None,
    };
    Daemon::start(options).unwrap()
}

/// Folders of sessions, and files that arrive.
fn left_in(cache: &Path) -> usize {
    let entries = |folder: &str| std::fs::read_dir(cache.join(folder)).unwrap().flatten();
    let arriving = entries("models").filter(|entry| entry.file_name().to_string_lossy().starts_with('.'));
    entries("sessions").chain(arriving).count()
}

/// Tells when the session has run a model.
struct Runs(Sender<()>);

impl Admission for Runs {
    fn admit(&mut self, _: &Hello) -> Result<Limits, String> {
        Ok(Limits::default())
    }

    fn ran(&mut self, _: Option<Duration>) {
        // The test does not listen after the kill.
        let _ = self.0.send(());
    }
}

/// The proxy survives until it sees that its client is gone.
fn kill_client(random: &mut Random, folder: &str) {
    let (mut child, socket) = start("client_to_be_killed", folder);
    let (to, runs) = channel();
    let place = Path::new(folder).to_owned();
    let mut watch = socket.try_clone().unwrap();
    let proxy = std::thread::spawn(move || {
        let mut store = Store::open(&place.join("models"), 1 << 20).unwrap();
        let carrier = Carrier::of_socket(socket).unwrap();
        // Broken in the middle of a message, or ended between two.
        let _ = serve(carrier, &emulated(), &mut Runs(to), &mut store, &place.join("here"));
    });
    (0..random.below(40)).for_each(|_| runs.recv().unwrap());
    (0..random.below(20_000)).for_each(|_| std::hint::spin_loop());
    end(&mut child);
    proxy.join().unwrap();
    assert_eq!(watch.read(&mut [0]).unwrap_or(0), 0, "the client is gone");
}

/// Possessions of this process by kind: descriptors, threads, mappings of shared memory, and children.
fn possessions() -> BTreeMap<String, usize> {
    let entries = |folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut counts = BTreeMap::new();
    let mut count = |kind: String, more: usize| *counts.entry(kind).or_default() += more;
    // The one of the folder itself leads nowhere any more.
    for target in entries("/proc/self/fd").filter_map(|path| std::fs::read_link(path).ok()) {
        // Without the number of a socket.
        count(target.display().to_string().split(':').next().unwrap_or_default().to_owned(), 1);
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    count("shared memory".to_owned(), maps.lines().filter(|line| line.contains("memfd:")).count());
    for task in entries("/proc/self/task") {
        // A thread may have ended meanwhile.
        let children = std::fs::read_to_string(task.join("children")).unwrap_or_default();
        count("children".to_owned(), children.split_whitespace().count());
        count("threads".to_owned(), 1);
    }
    counts
}

/// Waits until this process has no more than before: the system removes threads and processes a moment after they have ended.
fn settle(before: &BTreeMap<String, usize>, what: &str) {
    let begun = now();
    loop {
        let mut found = possessions();
        found.retain(|kind, count| *count > before.get(kind).copied().unwrap_or_default());
        if found.is_empty() {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}: {found:?}, before {before:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn chaos_of_killed_clients_and_proxies_leaves_nothing_on_the_other_side() {
    let rounds = std::env::var("TIDEMILL_CHAOS_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let (folder, expected) = (tempfile::tempdir().unwrap(), expected());
    let alone = possessions();
    let of_own = folder.path().join("own").display().to_string();
    std::fs::create_dir(&of_own).unwrap();
    for round in 0..rounds / 2 {
        let mut random = Random::of_seed(round);
        if round % 2 == 0 {
            kill_proxy(&mut random, &of_own, &expected);
        } else {
            kill_client(&mut random, &of_own);
        }
        settle(&alone, &format!("round {round}"));
    }
    let cache = folder.path().join("cache");
    let daemon = daemon(&cache);
    kill_proxy_of(&daemon, &mut Random::of_seed(0), &expected);
    let idle = possessions();
    for round in rounds / 2..rounds {
        let mut random = Random::of_seed(round);
        if round % 2 == 0 {
            kill_proxy_of(&daemon, &mut random, &expected);
        } else {
            kill_client_of(&daemon, &mut random);
        }
        settle(&idle, &format!("round {round}"));
        assert_eq!(left_in(&cache), 0, "round {round}");
    }
    drop(daemon);
    settle(&alone, "the end of the daemon");
}
