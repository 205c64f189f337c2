//! Sessions over each kind of connection, beside the same device without one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_device::call::Op;
use tidemill_device::carrier::Carrier;
use tidemill_device::device::{
    Artifact, Device, DeviceError, Limits, Loadable, ModelId, Opener, Run, Snapshot, TensorId,
};
use tidemill_device::emulated::{Clock, Emulated, Faults, Profile, artifact_of};
use tidemill_device::memory::Traffic;
use tidemill_device::proxy::{Everybody, serve};
use tidemill_device::session::{CallError, Session};
use tidemill_device::store::Store;
use tidemill_device::value::{Element, Value};

/// Time that passes only when a device waits.
#[derive(Default)]
struct Virtual(Mutex<Duration>);

impl Clock for Virtual {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn wait_until(&self, time: Duration) {
        let mut now = self.0.lock().unwrap();
        *now = time.max(*now);
    }
}

fn emulated(profile: Profile) -> Emulated {
    Emulated::new(profile).with_clock(Arc::new(Virtual::default()))
}

fn content(name: &str) -> Vec<u8> {
    format!("content of {name}").into_bytes()
}

/// A device on a thread, and a session with it.
struct Served {
    session: Option<Session>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
    _folder: tempfile::TempDir,
}

impl Served {
    fn start(opener: impl Opener + 'static, limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let place = folder.path().to_owned();
        let thread = std::thread::spawn(move || {
            let mut store = Store::open(&place.join("models"), 1 << 30).unwrap();
            let carrier = Carrier::of_socket(theirs)?;
            serve(carrier, &opener, &mut Everybody(limits), &mut store, &place.join("session"))
        });
        let session = Session::open(Carrier::of_socket(ours).unwrap(), "tests", "lanes").unwrap();
        Self { session: Some(session), thread: Some(thread), _folder: folder }
    }

    fn session(&self) -> &Session {
        self.session.as_ref().unwrap()
    }

    fn load(&self, artifact: &Artifact) -> ModelId {
        let bytes = content(&artifact.name);
        self.session().load(artifact, |_| Ok(Box::new(std::io::Cursor::new(bytes.clone())))).unwrap()
    }

    /// Ends the session, and returns how the proxy ended.
    fn end(mut self) -> std::io::Result<()> {
        drop(self.session.take());
        self.thread.take().unwrap().join().unwrap()
    }
}

fn artifact(name: &str) -> Artifact {
    artifact_of(name, &content(name), 1, 2)
}

#[test]
fn an_error_names_its_call_and_surfaces_once() {
    let faults = Faults { fail_each: 1, ..Faults::default() };
    let served = Served::start(emulated(Profile { faults, ..Profile::default() }), Limits::default());
    let model = served.load(&artifact("m"));
    let mut lane = served.session().lane();
    let input = lane.upload(Element::Uint8, &[1], &[7]).unwrap();
    let output = lane.run(model, &[input], &[0]).unwrap()[0];
    lane.run(model, &[output], &[0]).unwrap();
    let (first, second) = (lane.read(output).unwrap(), lane.read(input).unwrap());
    let run = first.sequence() - 2;
    drop(lane);
    match first.wait() {
        Err(CallError::Failed(failure)) => assert_eq!((failure.sequence, failure.op), (run, Op::Run)),
        other => panic!("{other:?}"),
    }
    assert_eq!(second.wait().unwrap().value().unwrap().bytes()[..], [7]);
    served.end().unwrap();
}

#[test]
fn a_file_is_uploaded_once() {
    let served = Served::start(emulated(Profile::default()), Limits::default());
    let (artifact, large) = (artifact_of("l", &vec![5; 3 << 20], 1, 1), vec![5u8; 3 << 20]);
    let mut opened = 0;
    for _ in 0..2 {
        let open = |_: usize| -> std::io::Result<Box<dyn Read>> {
            opened += 1;
            Ok(Box::new(std::io::Cursor::new(large.clone())))
        };
        served.session().load(&artifact, open).unwrap();
    }
    served.session().flush().unwrap();
    assert_eq!(opened, 1);
    served.end().unwrap();
}

#[test]
fn a_session_keeps_to_its_memory() {
    let limits = Limits { memory: Some(1000), ..Limits::default() };
    let served = Served::start(emulated(Profile::default()), limits);
    assert_eq!(served.session().snapshot().memory, Some(1000));
    let mut lane = served.session().lane();
    let small = lane.upload(Element::Uint8, &[600], &[0; 600]).unwrap();
    lane.upload(Element::Uint8, &[600], &[0; 600]).unwrap();
    let flush = lane.flush().unwrap();
    lane.free(&[small]).unwrap();
    lane.upload(Element::Uint8, &[600], &[0; 600]).unwrap();
    let again = lane.flush().unwrap();
    drop(lane);
    let expected = DeviceError::OutOfMemory { wanted: 600, held: 600, limit: 1000 };
    assert!(matches!(flush.wait(), Err(CallError::Failed(failure)) if failure.error == expected));
    assert!(again.wait().is_ok());
    served.end().unwrap();
}

#[test]
fn a_tensor_that_is_larger_than_window_and_memory_fails_alone() {
    let limits = Limits { memory: Some(1 << 20), window: 64 << 10, ..Limits::default() };
    let served = Served::start(emulated(Profile::default()), limits);
    let bytes = 80 << 20;
    let mut lane = served.session().lane();
    // It fits into no region of shared memory, and is dropped as it comes.
    let large = lane.upload(Element::Uint8, &[bytes], &vec![1; bytes]).unwrap();
    let (flush, read) = (lane.flush().unwrap(), lane.read(large).unwrap());
    drop(lane);
    match flush.wait() {
        Err(CallError::Failed(failure)) => match failure.error {
            DeviceError::OutOfMemory { wanted, limit, .. } => {
                assert!(wanted >= bytes as u64 && limit == 1 << 20, "{failure}");
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    assert!(matches!(read.wait(), Err(CallError::Failed(failure)) if failure.op == Op::Read));
    // After a failure nothing is asked for it.
    let mut lane = served.session().lane();
    lane.free(&[TensorId(1 << 40)]).unwrap();
    lane.read(TensorId(1 << 40)).map(drop).unwrap();
    let small = lane.upload(Element::Uint8, &[1000], &[7; 1000]).unwrap();
    let read = lane.read(small).unwrap();
    drop(lane);
    assert_eq!(read.wait().unwrap().value().unwrap().bytes()[..], [7; 1000]);
    served.end().unwrap();
}

#[test]
fn zeros_that_no_machine_holds_fail_one_call() {
    let served = Served::start(emulated(Profile::default()), Limits::default());
    let mut lane = served.session().lane();
    lane.create(Element::Float32, &[1 << 40]).unwrap();
    let flush = lane.flush().unwrap();
    let small = lane.create(Element::Float32, &[4]).unwrap();
    let read = lane.read(small).unwrap();
    drop(lane);
    match flush.wait() {
        Err(CallError::Failed(failure)) => {
            assert!(failure.op == Op::Create && failure.to_string().contains("memory"), "{failure}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(read.wait().unwrap().value().unwrap().bytes()[..], [0; 16]);
    served.end().unwrap();
}

#[test]
fn a_full_window_waits_and_drops_nothing() {
    let served =
        Served::start(emulated(Profile::default()), Limits { window: 64 << 10, ..Limits::default() });
    let mut tensors = Vec::new();
    for at in 0..200u8 {
        let mut lane = served.session().lane();
        // Larger than the window: alone. Smaller: several.
        let bytes = vec![at; if at.is_multiple_of(50) { 100_000 } else { 5_000 }];
        tensors.push(lane.upload(Element::Uint8, &[bytes.len()], &bytes).unwrap());
    }
    for (at, tensor) in tensors.into_iter().enumerate() {
        let pending = served.session().lane().read(tensor).unwrap();
        assert_eq!(pending.wait().unwrap().value().unwrap().bytes()[0], at as u8);
    }
    served.end().unwrap();
}

const IMAGE: usize = 4 * 3 * 224 * 224;

#[test]
fn large_tensors_go_through_memory_whose_blocks_come_back() {
    let served = Served::start(emulated(Profile::default()), Limits::default());
    // More than fit at once.
    for at in 0..200u8 {
        let mut lane = served.session().lane();
        let tensor = lane.upload(Element::Float32, &[3, 224, 224], &vec![at; IMAGE]).unwrap();
        let pending = lane.read(tensor).unwrap();
        lane.free(&[tensor]).unwrap();
        drop(lane);
        let answer = pending.wait().unwrap();
        assert!(answer.bytes() > IMAGE && answer.payload.len() < 100);
        assert!(answer.value().unwrap().bytes().iter().all(|byte| *byte == at));
    }
    let expected = Traffic { sent_in_memory: 200, received_in_memory: 200, ..Traffic::default() };
    assert_eq!(served.session().traffic(), expected);
    served.end().unwrap();
}

/// The client returns blocks with its next call, and there is none.
#[test]
fn without_a_free_block_values_go_over_the_socket() {
    let served = Served::start(emulated(Profile::default()), Limits::default());
    let mut lane = served.session().lane();
    let tensor = lane.upload(Element::Uint8, &[9 << 20], &vec![3; 9 << 20]).unwrap();
    let pending: Vec<_> = (0..6).map(|_| lane.read(tensor).unwrap()).collect();
    drop(lane);
    for pending in pending {
        assert!(pending.wait().unwrap().value().unwrap().bytes().iter().all(|byte| *byte == 3));
    }
    // A region holds one of them.
    let expected = Traffic {
        sent_in_memory: 1,
        received_in_memory: 4,
        received_over_connection: 2,
        ..Traffic::default()
    };
    assert_eq!(served.session().traffic(), expected);
    served.session().flush().unwrap();
    let again = served.session().lane().read(tensor).unwrap();
    assert_eq!(again.wait().unwrap().value().unwrap().bytes().len(), 9 << 20);
    assert_eq!(served.session().traffic().received_in_memory, 5);
    served.end().unwrap();
}

#[test]
fn a_device_that_computes_gives_no_block_back() {
    let (open, gate) = std::sync::mpsc::channel();
    let limits = Limits { window: 256 << 20, ..Limits::default() };
    let served = Served::start(Gated(Arc::new(Mutex::new(gate))), limits);
    let model = served.load(&artifact("m"));
    let mut lane = served.session().lane();
    let small = lane.upload(Element::Uint8, &[1], &[7]).unwrap();
    lane.run(model, &[small], &[0]).unwrap();
    let tensors: Vec<_> =
        (0..6u8).map(|at| lane.upload(Element::Uint8, &[9 << 20], &vec![at; 9 << 20]).unwrap()).collect();
    let traffic = served.session().traffic();
    assert_eq!((traffic.sent_in_memory, traffic.sent_over_connection), (4, 2));
    let pending: Vec<_> = tensors.iter().map(|tensor| lane.read(*tensor).unwrap()).collect();
    drop(lane);
    drop(open);
    for (at, pending) in (0..6u8).zip(pending) {
        assert!(pending.wait().unwrap().value().unwrap().bytes().iter().all(|byte| *byte == at));
    }
    served.end().unwrap();
}

/// A device that waits for a word before each run.
struct Gated(Arc<Mutex<std::sync::mpsc::Receiver<()>>>);

impl Opener for Gated {
    fn snapshot(&self, limits: &Limits) -> Snapshot {
        Snapshot { window: limits.window, ..Snapshot::default() }
    }

    fn open(&self, limits: &Limits) -> Result<Box<dyn Device>, DeviceError> {
        let inner = emulated(Profile::default()).open(limits)?;
        Ok(Box::new(GatedDevice { inner, gate: Arc::clone(&self.0) }))
    }
}

struct GatedDevice {
    inner: Box<dyn Device>,
    gate: Arc<Mutex<std::sync::mpsc::Receiver<()>>>,
}

impl Device for GatedDevice {
    fn create(&mut self, tensor: TensorId, element: Element, shape: &[usize]) -> Result<(), DeviceError> {
        self.inner.create(tensor, element, shape)
    }
    fn upload(&mut self, tensor: TensorId, value: Value) -> Result<(), DeviceError> {
        self.inner.upload(tensor, value)
    }
    fn load(&mut self, model: ModelId, loadable: &Loadable) -> Result<(), DeviceError> {
        self.inner.load(model, loadable)
    }
    fn run(&mut self, run: &Run) -> Result<Duration, DeviceError> {
        // Without a sender it is not needed any more.
        let _ = self.gate.lock().unwrap().recv();
        self.inner.run(run)
    }
    fn read(&mut self, tensor: TensorId) -> Result<Value, DeviceError> {
        self.inner.read(tensor)
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn free(&mut self, tensor: TensorId) {
        self.inner.free(tensor);
    }
    fn unload(&mut self, model: ModelId) {
        self.inner.unload(model);
    }
    fn memory(&self) -> u64 {
        self.inner.memory()
    }
}

#[test]
fn a_lost_device_ends_each_call_with_whether_it_may_have_run() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let cut = theirs.try_clone().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_owned();
    let (open, gate) = std::sync::mpsc::channel();
    let gated = Gated(Arc::new(Mutex::new(gate)));
    let device = std::thread::spawn(move || {
        let mut store = Store::open(&place.join("models"), 1 << 30).unwrap();
        let carrier = Carrier::of_socket(theirs).unwrap();
        serve(carrier, &gated, &mut Everybody::default(), &mut store, &place.join("session"))
    });
    let session = Session::open(Carrier::of_socket(ours).unwrap(), "tests", "lanes").unwrap();
    let model = session.load(&artifact("m"), |_| Ok(Box::new(std::io::Cursor::new(content("m"))))).unwrap();
    let mut lane = session.lane();
    let input = lane.upload(Element::Uint8, &[1], &[7]).unwrap();
    let output = lane.run(model, &[input], &[0]).unwrap()[0];
    let sent = lane.read(output).unwrap();
    lane.send().unwrap();
    // It computes, or is about to: the last call is not even written.
    let held = lane.read(input).unwrap();
    let (sequence, next) = (sent.sequence(), held.sequence());
    cut.shutdown(std::net::Shutdown::Both).unwrap();
    match sent.wait() {
        Err(CallError::Lost { sequence: lost, may_have_run: true, .. }) => assert_eq!(lost, sequence),
        other => panic!("{other:?}"),
    }
    match held.wait() {
        Err(CallError::Lost { sequence: lost, may_have_run: false, .. }) => assert_eq!(lost, next),
        other => panic!("{other:?}"),
    }
    drop(lane);
    assert!(session.lost().is_some());
    assert!(matches!(session.flush(), Err(CallError::Lost { may_have_run: false, .. })));
    drop(open);
    device.join().unwrap().ok();
}

#[test]
fn a_run_that_takes_too_long_loses_its_session() {
    let (open, gate) = std::sync::mpsc::channel();
    let limits = Limits { longest_run: Duration::from_millis(10), ..Limits::default() };
    let served = Served::start(Gated(Arc::new(Mutex::new(gate))), limits);
    let model = served.load(&artifact("m"));
    let mut lane = served.session().lane();
    let input = lane.upload(Element::Uint8, &[1], &[7]).unwrap();
    let output = lane.run(model, &[input], &[0]).unwrap()[0];
    let read = lane.read(output).unwrap();
    drop(lane);
    match read.wait() {
        Err(CallError::Lost { may_have_run: true, reason, .. }) => {
            assert!(reason.contains("at most 0.01 s are allowed"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert!(served.session().is_stalled());
    drop(open);
    // Its reply finds nobody.
    let _ = served.end();
}

#[test]
fn posted_calls_wait_for_nothing() {
    let (open, gate) = std::sync::mpsc::channel();
    let served = Served::start(Gated(Arc::new(Mutex::new(gate))), Limits::default());
    let model = served.load(&artifact("m"));
    let mut lane = served.session().lane();
    let mut last = lane.upload(Element::Uint8, &[1], &[7]).unwrap();
    // As many as an inference of a published application posts. The device has not ended the first one.
    for _ in 0..534 {
        last = lane.run(model, &[last], &[0]).unwrap()[0];
        lane.send().unwrap();
    }
    let pending = lane.read(last).unwrap();
    drop(lane);
    (0..534).for_each(|_| open.send(()).unwrap());
    assert_eq!(pending.wait().unwrap().value().unwrap().shape(), [1]);
    served.end().unwrap();
}

#[test]
fn a_client_that_is_not_admitted_is_told_why() {
    struct Nobody;
    impl tidemill_device::proxy::Admission for Nobody {
        fn admit(&mut self, hello: &tidemill_device::call::Hello) -> Result<Limits, String> {
            Err(format!("nobody admits {}", hello.tenant))
        }
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_owned();
    let device = std::thread::spawn(move || {
        let mut store = Store::open(&place.join("models"), 1 << 30).unwrap();
        let carrier = Carrier::of_socket(theirs).unwrap();
        serve(carrier, &emulated(Profile::default()), &mut Nobody, &mut store, &place.join("session"))
    });
    let refused = Session::open(Carrier::of_socket(ours).unwrap(), "tests", "lanes").unwrap_err();
    assert!(
        matches!(&refused, CallError::Refused(reason) if reason.contains("nobody admits tests")),
        "{refused}"
    );
    assert!(device.join().unwrap().is_err());
}

#[test]
fn a_back_end_that_panics_loses_its_session() {
    let gate = Arc::new(Mutex::new(std::sync::mpsc::channel().1));
    let poisons = Arc::clone(&gate);
    let poisoned = std::thread::spawn(move || {
        let _held = poisons.lock().unwrap();
        panic!("runs of the device panic");
    });
    assert!(poisoned.join().is_err());
    let mut served = Served::start(Gated(gate), Limits::default());
    let model = served.load(&artifact("m"));
    let mut lane = served.session().lane();
    let input = lane.upload(Element::Uint8, &[1], &[7]).unwrap();
    let output = lane.run(model, &[input], &[0]).unwrap()[0];
    let read = lane.read(output).unwrap();
    drop(lane);
    assert!(matches!(read.wait(), Err(CallError::Lost { .. })));
    assert!(served.thread.take().unwrap().join().is_err(), "it panicked");
}
