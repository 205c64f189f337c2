//! Random sequences of calls over each kind of connection, beside the same device without one: values and errors are those of the device
//! itself, bit by bit, whatever fails on purpose.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidemill_device::carrier::Carrier;
use tidemill_device::device::{Artifact, DeviceError, Limits, Loadable, ModelId, Opener, Run, TensorId};
use tidemill_device::emulated::{Clock, Emulated, Faults, Profile, artifact_of};
use tidemill_device::proxy::{Everybody, serve};
use tidemill_device::session::{CallError, Session};
use tidemill_device::store::Store;
use tidemill_device::value::{Element, Value};
use tidemill_link::remote::{
    Address, Certificates, Connection, Greeting, Listener, Purpose, Security, Serving, dial,
};

#[path = "../../link/tests/remote/authority.rs"]
mod authority;

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

fn artifact(name: &str) -> Artifact {
    artifact_of(name, name.as_bytes(), 1, 2)
}

/// A call of a random sequence; tensors and models by their place among those made before.
#[derive(Debug, Clone)]
enum Step {
    Create(usize),
    Upload(usize, u8),
    Run { model: usize, input: usize, output: u32 },
    Free(usize),
    Read(usize),
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0usize..5).prop_map(Step::Create),
        // The long ones are written at once, and go through shared memory where there is some.
        (prop_oneof![4 => 0usize..5, 1 => Just(40_000usize)], any::<u8>())
            .prop_map(|(rows, fill)| Step::Upload(rows, fill)),
        (0usize..3, 0usize..12, 0u32..3).prop_map(|(model, input, output)| Step::Run {
            model,
            input,
            output
        }),
        (0usize..12).prop_map(Step::Free),
        (0usize..12).prop_map(Step::Read),
        Just(Step::Flush),
    ];
    proptest::collection::vec(step, 1..40)
}

/// The first failure since the last call that waited, as a lane reports it, by calls of the device itself.
#[derive(Default)]
struct Direct {
    tensors: Vec<TensorId>,
    failed: Option<DeviceError>,
    handle: u64,
}

impl Direct {
    fn next(&mut self) -> TensorId {
        self.handle += 1;
        let tensor = TensorId(self.handle);
        self.tensors.push(tensor);
        tensor
    }

    fn tensor(&self, place: usize) -> TensorId {
        self.tensors.get(place).copied().unwrap_or(TensorId(u64::MAX))
    }

    fn keep(&mut self, result: Result<(), DeviceError>) {
        if let (None, Err(error)) = (&self.failed, result) {
            self.failed = Some(error);
        }
    }

    fn sync<T>(&mut self, result: impl FnOnce() -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => result(),
        }
    }
}

type Seen = Vec<Result<Option<Value>, DeviceError>>;

fn directly(steps: &[Step], profile: &Profile) -> Seen {
    let mut device = emulated(profile.clone()).open(&Limits::default()).unwrap();
    let mut direct = Direct::default();
    for name in ["a", "b"] {
        direct.handle += 1;
        let loadable = Loadable { artifact: artifact(name), path: "x".into() };
        device.load(ModelId(direct.handle), &loadable).unwrap();
    }
    let mut seen = Vec::new();
    for step in steps {
        let skipped = direct.failed.is_some();
        match step {
            Step::Create(rows) => {
                let tensor = direct.next();
                if !skipped {
                    let made = device.create(tensor, Element::Float32, &[*rows]);
                    direct.keep(made);
                }
            }
            Step::Upload(rows, fill) => {
                let tensor = direct.next();
                if !skipped {
                    let value = Value::new(Element::Uint8, vec![*rows], vec![*fill; *rows]).unwrap();
                    let made = device.upload(tensor, value);
                    direct.keep(made);
                }
            }
            Step::Run { model, input, output } => {
                let input = direct.tensor(*input);
                let tensor = direct.next();
                if !skipped {
                    let run = Run {
                        model: ModelId(*model as u64 + 1),
                        inputs: vec![input],
                        outputs: vec![(*output, tensor)],
                    };
                    let ran = device.run(&run);
                    direct.keep(ran.map(drop));
                }
            }
            Step::Free(tensor) => device.free(direct.tensor(*tensor)),
            Step::Read(tensor) => {
                let tensor = direct.tensor(*tensor);
                seen.push(direct.sync(|| device.read(tensor).map(Some)));
            }
            Step::Flush => seen.push(direct.sync(|| device.flush().map(|()| None))),
        }
    }
    seen
}

/// The same over a session, which ends then.
fn by_session(steps: &[Step], session: &Session) -> Seen {
    let load =
        |name: &'static str| session.load(&artifact(name), move |_| Ok(Box::new(name.as_bytes()))).unwrap();
    let models = [load("a"), load("b"), ModelId(3)];
    let (mut tensors, mut pending): (Vec<TensorId>, _) = (Vec::new(), Vec::new());
    let of = |tensors: &[TensorId], place: usize| tensors.get(place).copied().unwrap_or(TensorId(u64::MAX));
    let mut lane = session.lane();
    for step in steps {
        match step {
            Step::Create(rows) => tensors.push(lane.create(Element::Float32, &[*rows]).unwrap()),
            Step::Upload(rows, fill) => {
                tensors.push(lane.upload(Element::Uint8, &[*rows], &vec![*fill; *rows]).unwrap());
            }
            Step::Run { model, input, output } => {
                let input = of(&tensors, *input);
                tensors.extend(lane.run(models[*model], &[input], &[*output]).unwrap());
            }
            Step::Free(tensor) => lane.free(&[of(&tensors, *tensor)]).unwrap(),
            Step::Read(tensor) => pending.push((true, lane.read(of(&tensors, *tensor)).unwrap())),
            Step::Flush => pending.push((false, lane.flush().unwrap())),
        }
    }
    drop(lane);
    let seen = pending.into_iter().map(|(has_value, pending)| match pending.wait() {
        Ok(answer) if has_value => Ok(Some(answer.value().unwrap())),
        Ok(_) => Ok(None),
        Err(CallError::Failed(failure)) => Err(failure.error),
        Err(other) => panic!("{other}"),
    });
    seen.collect()
}

/// Kinds of connections.
enum Way {
    /// On one host, with shared memory or without.
    Socket { memory: bool },
    /// A transport between hosts, with TLS or without.
    Between { serving: Serving, security: Security, accepted: Mutex<Receiver<Connection>> },
}

fn greeting() -> Greeting {
    Greeting {
        run: 1,
        plan_version: 1,
        purpose: Purpose::Device { client: "tests".to_owned(), tenant: None },
    }
}

impl Way {
    fn between(address: &Address, security: &Security) -> Self {
        let (to, accepted): (Sender<Connection>, _) = channel();
        let listener = Listener::bind(address, security).unwrap();
        let serving = listener.serve(move |incoming| to.send(incoming.accept(&greeting()).unwrap()).unwrap());
        Self::Between {
            serving: serving.unwrap(),
            security: security.clone(),
            accepted: Mutex::new(accepted),
        }
    }

    /// Both ends of a new connection.
    fn connect(&self) -> [Carrier; 2] {
        match self {
            Self::Socket { memory } => {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let [ours, theirs] = [ours, theirs].map(|end| Carrier::of_socket(end).unwrap());
                [if *memory { ours } else { ours.without_memory() }, theirs]
            }
            Self::Between { serving, security, accepted } => {
                let ours = dial(serving.address(), security, &greeting(), Duration::from_secs(20)).unwrap();
                let theirs = accepted.lock().unwrap().recv().unwrap();
                [ours, theirs].map(|end| Carrier::of_stream(end.into_bytes()))
            }
        }
    }
}

/// A host's certificate and its trusted authority.
fn certificates() -> Certificates {
    authority::Authority::named("tests").certify("tidemill", |_| {})
}

/// Compares the two for this number of sequences.
fn compare(way: &Way, sequences: u32) {
    let mut runner = TestRunner::new(Config { cases: sequences, ..Config::with_source_file(file!()) });
    let compared = runner.run(&(steps(), 0u64..5, 0u64..5), |(steps, fail_each, no_memory_each)| {
        let faults = Faults { fail_each, no_memory_each, ..Faults::default() };
        let profile = Profile { faults, ..Profile::default() };
        let [ours, theirs] = way.connect();
        let seen = std::thread::scope(|scope| {
            let device = scope.spawn(|| {
                let folder = tempfile::tempdir().unwrap();
                let mut store = Store::open(&folder.path().join("models"), 1 << 30).unwrap();
                let place = folder.path().join("session");
                serve(theirs, &emulated(profile.clone()), &mut Everybody::default(), &mut store, &place)
            });
            let session = Session::open(ours, "tests", "carriers").unwrap();
            let seen = by_session(&steps, &session);
            let long = steps.iter().filter(|step| matches!(step, Step::Upload(40_000, _))).count() as u64;
            let traffic = session.traffic();
            let sent = [traffic.sent_over_connection, traffic.sent_in_memory];
            let has_memory = matches!(way, Way::Socket { memory: true });
            assert_eq!(sent, if has_memory { [0, long] } else { [long, 0] });
            drop(session);
            device.join().unwrap().unwrap();
            seen
        });
        prop_assert_eq!(seen, directly(&steps, &profile));
        Ok(())
    });
    compared.unwrap();
}

/// All of them, without shared memory and TLS, and with.
fn all_ways() -> [Way; 5] {
    tidemill_session::install().unwrap();
    let (tcp, tls) = (Security::none(), Security::mutual(&certificates()).unwrap());
    [
        Way::Socket { memory: false },
        Way::Socket { memory: true },
        Way::between(&Address::tcp("127.0.0.1:0"), &tcp),
        Way::between(&Address::tcp("127.0.0.1:0"), &tls),
        Way::between(&tidemill_session::address("127.0.0.1:0"), &tcp),
    ]
}

#[test]
fn a_lane_computes_what_the_device_computes() {
    all_ways().iter().for_each(|way| compare(way, 40));
}

#[test]
#[ignore = "long: make test-long"]
fn a_thousand_sequences_over_each_carrier_are_those_of_the_device() {
    all_ways().iter().for_each(|way| compare(way, 1_000));
}
