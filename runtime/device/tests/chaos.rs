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
use std::time::Duration;
use tidemill_device::call::Hello;
use tidemill_device::carrier::Carrier;
use tidemill_device::device::{Limits, Loadable, ModelId, Opener, Run, TensorId};
use tidemill_device::emulated::{Emulated, ModelTimes, Profile, artifact_of};
use tidemill_device::proxy::{Admission, Everybody, serve};
use tidemill_device::session::{CallError, Pending, Session};
use tidemill_device::store::Store;
use tidemill_device::value::{Element, Value};
use tidemill_random::Random;

/// Set where the test runs as the other process: a folder for models.
const STARTED: &str = "TIDEMILL_DEVICE_STARTED";
const CONTENT: &[u8] = b"content";
const INPUTS: u8 = 12;
/// Inputs that are on their way at once.
const WINDOW: usize = 4;
/// Bytes of the even inputs and of the odd ones.
const BYTES: [usize; 2] = [100, 100_000];

fn emulated() -> Emulated {
    let others = ModelTimes { run_ms: 0.05, ..ModelTimes::default() };
    Emulated::new(Profile { others, ..Profile::default() })
}

fn input(number: u8) -> Vec<u8> {
    vec![number; BYTES[usize::from(number) % 2]]
}

/// Starts an ignored test of this program as a process, and returns it with a socket to it.
fn start(test: &str, folder: &Path) -> (Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored", "--nocapture"])
        .env(STARTED, folder)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (child, ours)
}

/// The folder and the socket that this process was started with; none: a person did.
fn started() -> Option<(std::path::PathBuf, UnixStream)> {
    let folder = std::env::var_os(STARTED)?;
    Some((folder.into(), std::io::stdin().as_fd().try_clone_to_owned().unwrap().into()))
}

#[test]
#[ignore = "started by chaos_of_killed_clients_and_proxies_leaves_nothing_on_the_other_side"]
fn proxy_to_be_killed() {
    let Some((folder, socket)) = started() else { return };
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

fn open(socket: UnixStream) -> Result<(Session, ModelId), CallError> {
    let session = Session::open(Carrier::of_socket(socket).unwrap(), "tests", "chaos")?;
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

/// The client survives: each call ends, and what is lost is repeated on another proxy.
fn kill_proxy(random: &mut Random, folder: &Path, expected: &BTreeMap<u8, Value>) {
    let mut results = BTreeMap::new();
    let (mut child, socket) = start("proxy_to_be_killed", folder);
    let moment = random.below(2 * usize::from(INPUTS) + 2);
    if moment == 0 {
        end(&mut child);
    }
    let mut steps = 0;
    let ended = open(socket).and_then(|(session, model)| {
        let ended = infer(&session, model, &mut results, || {
            steps += 1;
            if steps == moment {
                // Between two instructions of the other, whichever they are.
                (0..random.below(20_000)).for_each(|_| std::hint::spin_loop());
                end(&mut child);
            }
        });
        if steps < moment {
            end(&mut child);
        }
        assert_eq!(results.len() == usize::from(INPUTS), ended.is_ok());
        ended
    });
    assert!(matches!(ended, Ok(()) | Err(CallError::Lost { .. })), "{ended:?}");
    assert!(child.try_wait().unwrap().is_some(), "it has been killed");
    let (mut other, socket) = start("proxy_to_be_killed", folder);
    let (session, model) = open(socket).unwrap();
    infer(&session, model, &mut results, || ()).unwrap();
    assert_eq!(&results, expected);
    drop(session);
    assert!(other.wait().unwrap().success(), "it ends with its session");
}

/// Tells when the session has run a model.
struct Runs(Sender<()>);

impl Admission for Runs {
    fn admit(&mut self, _: &Hello) -> Result<Limits, String> {
        Ok(Limits::default())
    }

    fn ran(&mut self, _: Option<Duration>) {
        // Nobody listens any more after the kill.
        let _ = self.0.send(());
    }
}

/// The proxy survives until it sees that its client is gone.
fn kill_client(random: &mut Random, folder: &Path) {
    let (mut child, socket) = start("client_to_be_killed", folder);
    let (to, runs) = channel();
    let place = folder.to_owned();
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

/// Possessions of this process: descriptors, threads, and mappings of shared memory.
fn possessions() -> (Vec<String>, usize, usize) {
    let entries = |folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    // The one of the folder itself leads nowhere any more.
    let mut open: Vec<String> = entries("/proc/self/fd")
        .filter_map(|path| Some(std::fs::read_link(path).ok()?.display().to_string()))
        .collect();
    open.sort();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let maps = maps.lines().filter(|line| line.contains("memfd:")).count();
    (open, entries("/proc/self/task").count(), maps)
}

#[test]
fn chaos_of_killed_clients_and_proxies_leaves_nothing_on_the_other_side() {
    let rounds = std::env::var("TIDEMILL_CHAOS_ROUNDS").ok().and_then(|text| text.parse().ok());
    let (folder, expected) = (tempfile::tempdir().unwrap(), expected());
    let before = possessions();
    for round in 0..rounds.unwrap_or(20) {
        let mut random = Random::of_seed(round);
        if round % 2 == 0 {
            kill_proxy(&mut random, folder.path(), &expected);
        } else {
            kill_client(&mut random, folder.path());
        }
        // The system removes a thread that was joined a moment later.
        for _ in 0..100_000 {
            if possessions() == before {
                break;
            }
            std::thread::yield_now();
        }
        assert_eq!(possessions(), before, "round {round}");
    }
}
