//! Sessions that share models, beside sessions that do not.
use super::*;
use crate::emulated::{Clock, Emulated, Faults, ModelTimes, Profile, artifact_of};
use crate::proxy::Everybody;
use crate::value::Element;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

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

fn profile() -> Profile {
    let times = |has_rows| ModelTimes { run_ms: 8.0, row_ms: 1.0, memory: 1000, has_rows };
    let models = [("rows".to_owned(), times(true)), ("fixed".to_owned(), times(false))];
    Profile { models: models.into(), ..Profile::default() }
}

fn emulated(profile: Profile) -> Emulated {
    Emulated::new(profile).with_clock(Arc::new(Virtual::default()))
}

fn loadable(name: &str) -> Loadable {
    Loadable { artifact: artifact_of(name, name.as_bytes(), 1, 2), path: "none".into() }
}

fn input(rows: usize, fill: u8) -> Value {
    let bytes: Vec<u8> = (0..rows * 3).map(|at| fill.wrapping_mul(31) ^ at as u8).collect();
    Value::new(Element::Uint8, vec![rows, 3], bytes).unwrap()
}

/// Turns that a test gives, and the times of the batches.
struct Turns {
    given: Receiver<()>,
    ran: Sender<Option<Duration>>,
    apart: Arc<AtomicU64>,
}

impl Admission for Turns {
    fn admit(&mut self, _: &crate::call::Hello) -> Result<Limits, String> {
        Ok(Limits::default())
    }

    fn turn(&mut self) {
        // Without an end of the test there are always more.
        let _ = self.given.recv();
    }

    fn ran(&mut self, computes: Option<Duration>) {
        let _ = self.ran.send(computes);
    }

    fn apart(&mut self, models: u64) {
        self.apart.store(models, Ordering::Release);
    }
}

/// Several sessions of one emulated device, whose turns the test gives.
struct Shared {
    together: Option<Together>,
    turns: Option<Sender<()>>,
    ran: Receiver<Option<Duration>>,
    apart: Arc<AtomicU64>,
    inner: Arc<Inner>,
    threads: Vec<std::thread::JoinHandle<()>>,
    held: Arc<Mutex<(u64, u64)>>,
}

/// Memory of all models, which is limited.
struct Memory {
    held: Arc<Mutex<(u64, u64)>>,
    limit: u64,
}

impl Admission for Memory {
    fn admit(&mut self, _: &crate::call::Hello) -> Result<Limits, String> {
        Ok(Limits::default())
    }

    fn holds(&mut self, bytes: u64, models: u64) {
        *self.held.lock().unwrap() = (bytes, models);
    }

    fn room(&mut self, held: u64, wanted: u64, _: &Limits) -> Result<(), DeviceError> {
        Everybody::default().room(held, wanted, &Limits { memory: Some(self.limit), ..Limits::default() })
    }
}

impl Shared {
    fn start(profile: Profile, batching: Batching, limit: u64) -> Self {
        Self::start_with(emulated(profile), batching, limit)
    }

    fn start_with(opener: impl Opener + 'static, batching: Batching, limit: u64) -> Self {
        let (together, loads, computes) = Together::new(batching);
        let held = Arc::new(Mutex::default());
        let mut memory = Memory { held: Arc::clone(&held), limit };
        let (turns, given) = channel();
        let (to, ran) = channel();
        let (inner, apart) = (Arc::clone(&together.inner), Arc::new(AtomicU64::new(0)));
        let counted = Arc::clone(&apart);
        let threads = vec![
            std::thread::spawn(move || loads.work(&opener, &mut memory)),
            std::thread::spawn(move || computes.work(&mut Turns { given, ran: to, apart: counted })),
        ];
        Self { together: Some(together), turns: Some(turns), ran, apart, inner, threads, held }
    }

    fn open(&self) -> Box<dyn Device> {
        self.together.as_ref().unwrap().open()
    }

    /// Waits until this number of runs waits.
    fn until_waiting(&self, count: usize) {
        let mut state = self.inner.state();
        while state.queue.len() < count {
            state = self.inner.changed.wait(state).unwrap();
        }
    }

    fn turn(&self) {
        self.turns.as_ref().unwrap().send(()).unwrap();
    }

    /// Ends it, and waits for its threads: they end when no session is left.
    fn end(mut self) {
        drop((self.together.take(), self.turns.take()));
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*self.held.lock().unwrap(), (0, 0), "all models are freed");
    }
}

const AT_ONCE: Batching = Batching { rows: 8, wait: Duration::ZERO };

/// Runs a model, and returns its outputs and the time of the run.
fn infer(device: &mut dyn Device, model: u64, input: &Value) -> Result<(Vec<Value>, Duration), DeviceError> {
    device.upload(TensorId(1), input.clone())?;
    let outputs = vec![(1, TensorId(2)), (0, TensorId(3))];
    let time = device.run(&Run { model: ModelId(model), inputs: vec![TensorId(1)], outputs })?;
    Ok((vec![device.read(TensorId(2))?, device.read(TensorId(3))?], time))
}

fn alone(name: &str, value: &Value) -> Vec<Value> {
    let mut device = emulated(profile()).open(&Limits::default()).unwrap();
    device.load(ModelId(1), &loadable(name)).unwrap();
    infer(&mut *device, 1, value).unwrap().0
}

/// Computes a run of each session while they wait for one turn, and returns what each has.
fn at_the_same_time(
    shared: &Shared,
    runs: &[(&str, Value)],
    turns: usize,
) -> Vec<Result<(Vec<Value>, Duration), DeviceError>> {
    std::thread::scope(|scope| {
        let threads = runs.iter().map(|(name, value)| {
            let mut device = shared.open();
            device.load(ModelId(1), &loadable(name)).unwrap();
            scope.spawn(move || infer(&mut *device, 1, value))
        });
        let threads: Vec<_> = threads.collect();
        shared.until_waiting(runs.len());
        (0..turns).for_each(|_| shared.turn());
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn runs_that_wait_are_one_turn_and_its_time_is_divided_by_rows() {
    let shared = Shared::start(profile(), AT_ONCE, u64::MAX);
    let runs = [("rows", input(1, 1)), ("rows", input(2, 2)), ("rows", input(3, 3))];
    let results = at_the_same_time(&shared, &runs, 1);
    // 8 ms, and 1 ms of each of six rows.
    assert_eq!(shared.ran.recv().unwrap(), Some(Duration::from_millis(14)));
    for ((name, value), result) in runs.iter().zip(results) {
        let (values, time) = result.unwrap();
        assert_eq!(values, alone(name, value));
        assert_eq!(time, Duration::from_millis(14).mul_f64(value.shape()[0] as f64 / 6.0));
    }
    shared.end();
}

#[test]
fn runs_of_a_model_without_rows_have_a_turn_each() {
    let shared = Shared::start(profile(), AT_ONCE, u64::MAX);
    let runs = [("fixed", input(1, 1)), ("fixed", input(1, 2)), ("rows", input(1, 3))];
    let results = at_the_same_time(&shared, &runs, 3);
    for ((name, value), result) in runs.iter().zip(results) {
        assert_eq!(result.unwrap(), (alone(name, value), Duration::from_millis(9)));
    }
    assert_eq!((0..3).map(|_| shared.ran.recv().unwrap().unwrap().as_millis()).sum::<u128>(), 27);
    shared.end();
}

#[test]
fn a_batch_that_fails_is_repeated_and_only_the_wrong_run_has_an_error() {
    // The batch is the first run of the device, and each second one fails: the batch succeeds, then one of two.
    let faults = Faults { fail_each: 2, ..Faults::default() };
    let shared = Shared::start(Profile { faults, ..profile() }, AT_ONCE, u64::MAX);
    let runs = [("rows", input(1, 1)), ("rows", input(1, 2)), ("rows", input(1, 3))];
    assert!(at_the_same_time(&shared, &runs, 1).iter().all(Result::is_ok));
    assert_eq!(shared.ran.recv().unwrap(), Some(Duration::from_millis(11)));
    shared.end();
    let shared = Shared::start(Profile { faults, ..profile() }, AT_ONCE, u64::MAX);
    let mut first = shared.open();
    first.load(ModelId(1), &loadable("rows")).unwrap();
    shared.turn();
    infer(&mut *first, 1, &input(1, 0)).unwrap();
    // The second run of the device is a batch of three and fails; then two of them succeed, and one fails.
    let results = at_the_same_time(&shared, &runs, 1);
    let failed: Vec<&DeviceError> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(matches!(failed[..], [DeviceError::Run { .. }]), "{failed:?}");
    for ((name, value), result) in runs.iter().zip(&results) {
        assert!(result.as_ref().is_err() || result.as_ref().unwrap().0 == alone(name, value));
    }
    let times: Vec<_> = (0..2).map(|_| shared.ran.recv().unwrap()).collect();
    assert_eq!(times, [Some(Duration::from_millis(9)), Some(Duration::from_millis(18))], "two of three");
    drop(first);
    shared.end();
}

#[test]
fn a_model_is_loaded_once_and_freed_with_its_last_session() {
    let shared = Shared::start(profile(), AT_ONCE, 2500);
    let held = || *shared.held.lock().unwrap();
    let (mut first, mut second) = (shared.open(), shared.open());
    first.load(ModelId(1), &loadable("rows")).unwrap();
    second.load(ModelId(7), &loadable("rows")).unwrap();
    // It counts in its own memory once, also where a session calls it otherwise.
    let mut renamed = loadable("rows");
    renamed.artifact.name = "other".to_owned();
    second.load(ModelId(8), &renamed).unwrap();
    second.load(ModelId(9), &loadable("fixed")).unwrap();
    assert_eq!((held(), first.memory(), second.memory()), ((2000, 2), 0, 0));
    assert_eq!(second.load(ModelId(9), &loadable("fixed")), Err(DeviceError::Taken(9)));
    let mut other = loadable("fixed");
    other.artifact.options = serde_json::json!({"other": 1});
    match second.load(ModelId(10), &other) {
        Err(DeviceError::OutOfMemory { held: 3000, limit: 2500, .. }) => {}
        result => panic!("{result:?}"),
    }
    second.unload(ModelId(9));
    // The next load comes after what was freed.
    second.load(ModelId(10), &other).unwrap();
    assert_eq!(held(), (2000, 2));
    drop(second);
    first.load(ModelId(2), &loadable("rows")).unwrap();
    assert_eq!(held(), (1000, 1));
    assert!(matches!(
        first.run(&Run { model: ModelId(3), inputs: vec![], outputs: vec![] }),
        Err(DeviceError::NoModel(3))
    ));
    let run = Run { model: ModelId(1), inputs: vec![TensorId(5)], outputs: vec![] };
    assert_eq!(first.run(&run), Err(DeviceError::NoTensor(5)));
    assert_eq!(shared.apart.load(Ordering::Acquire), 0, "one of them was wrong");
    drop(first);
    shared.end();
}

/// A device whose model says that it has rows, and gives one row whatever it has got, or fails if it gets more.
struct OneRow {
    input: Option<Value>,
    fails: bool,
}

impl Device for OneRow {
    fn create(&mut self, _: TensorId, _: Element, _: &[usize]) -> Result<(), DeviceError> {
        Ok(())
    }
    fn upload(&mut self, _: TensorId, value: Value) -> Result<(), DeviceError> {
        self.input = Some(value);
        Ok(())
    }
    fn load(&mut self, _: ModelId, _: &Loadable) -> Result<(), DeviceError> {
        Ok(())
    }
    fn run(&mut self, _: &Run) -> Result<Duration, DeviceError> {
        let rows = self.input.as_ref().map_or(0, |value| value.shape()[0]);
        if self.fails && rows > 1 {
            return Err(DeviceError::Run { model: "rows".to_owned(), reason: format!("{rows} rows") });
        }
        Ok(Duration::ZERO)
    }
    fn read(&mut self, _: TensorId) -> Result<Value, DeviceError> {
        let bytes = self.input.as_ref().map(|value| value.bytes().slice(..1)).unwrap_or_default();
        Value::new(Element::Uint8, vec![1], bytes).map_err(|error| DeviceError::Value(error.to_string()))
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn free(&mut self, _: TensorId) {}
    fn unload(&mut self, _: ModelId) {}
    fn has_rows(&self, _: ModelId) -> bool {
        true
    }
    fn memory(&self) -> u64 {
        0
    }
}

/// Opens them.
struct OneRows {
    fail: bool,
}

impl Opener for OneRows {
    fn snapshot(&self, _: &Limits) -> Snapshot {
        Snapshot::default()
    }
    fn open(&self, _: &Limits) -> Result<Box<dyn Device>, DeviceError> {
        Ok(Box::new(OneRow { input: None, fails: self.fail }))
    }
}

#[test]
fn a_model_whose_outputs_have_other_rows_is_put_together_once_and_no_more() {
    is_put_together_once(false);
}

#[test]
fn a_model_whose_runs_fail_together_and_succeed_one_by_one_is_put_together_no_more() {
    is_put_together_once(true);
}

fn is_put_together_once(fail: bool) {
    let shared = Shared::start_with(OneRows { fail }, AT_ONCE, u64::MAX);
    // A batch of two, whose runs are repeated; then a turn for each of two.
    let mut first = shared.open();
    first.load(ModelId(1), &loadable("rows")).unwrap();
    for turns in [1, 2] {
        let results = at_the_same_time(&shared, &[("rows", input(1, 1)), ("rows", input(1, 2))], turns);
        for (fill, result) in [1, 2].into_iter().zip(results) {
            assert_eq!(result.unwrap().0[0].bytes()[..], input(1, fill).bytes()[..1]);
        }
        (0..turns).for_each(|_| assert!(shared.ran.recv().unwrap().is_some()));
    }
    assert!(shared.ran.try_recv().is_err(), "no further batch");
    assert_eq!(shared.apart.load(Ordering::Acquire), 1);
    drop(first);
    // Loaded again, it is apart from the beginning.
    let results = at_the_same_time(&shared, &[("rows", input(1, 1)), ("rows", input(1, 2))], 2);
    assert!(results.iter().all(Result::is_ok));
    (0..2).for_each(|_| assert!(shared.ran.recv().unwrap().is_some()));
    shared.end();
}

/// Calls of a session, one after another.
#[derive(Debug, Clone)]
enum Step {
    Upload { tensor: u64, rows: usize, fill: u8 },
    Run { model: u64, input: u64, output: u64 },
    Read(u64),
    Free(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let tensor = 1u64..4;
    prop_oneof![
        (tensor.clone(), 1usize..4, any::<u8>()).prop_map(|(tensor, rows, fill)| Step::Upload {
            tensor,
            rows,
            fill
        }),
        (1u64..4, tensor.clone(), tensor.clone()).prop_map(|(model, input, output)| Step::Run {
            model,
            input,
            output
        }),
        tensor.clone().prop_map(Step::Read),
        tensor.prop_map(Step::Free),
    ]
}

type Seen = Vec<Result<Option<Value>, DeviceError>>;

/// Makes calls, and returns what each has led to. The third model does not exist.
fn seen(device: &mut dyn Device, steps: &[Step]) -> Seen {
    for (model, name) in [(1, "rows"), (2, "fixed")] {
        device.load(ModelId(model), &loadable(name)).unwrap();
    }
    let make = |step: &Step| match *step {
        Step::Upload { tensor, rows, fill } => {
            device.upload(TensorId(tensor), input(rows, fill)).map(|()| None)
        }
        Step::Run { model, input, output } => {
            let run = Run {
                model: ModelId(model),
                inputs: vec![TensorId(input)],
                outputs: vec![(0, TensorId(output))],
            };
            device.run(&run).map(|_| None)
        }
        Step::Read(tensor) => device.read(TensorId(tensor)).map(Some),
        Step::Free(tensor) => {
            device.free(TensorId(tensor));
            Ok(None)
        }
    };
    steps.iter().map(make).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn each_session_has_the_bits_that_it_has_alone(
        sessions in proptest::collection::vec(proptest::collection::vec(step(), 1..30), 1..5),
        rows in 1usize..9, wait in 0u64..2,
    ) {
        let batching = Batching { rows, wait: Duration::from_micros(200 * wait) };
        let shared = Shared::start(profile(), batching, u64::MAX);
        // One turn after another.
        sessions.iter().flatten().for_each(|_| shared.turn());
        let found: Vec<Seen> = std::thread::scope(|scope| {
            let threads: Vec<_> = sessions.iter().map(|steps| {
                let mut device = shared.open();
                scope.spawn(move || seen(&mut *device, steps))
            }).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut times = BTreeMap::new();
        while let Ok(time) = shared.ran.try_recv() {
            *times.entry(time).or_insert(0) += 1;
        }
        shared.end();
        let mut succeeded = 0;
        for (steps, found) in sessions.iter().zip(found) {
            let mut device = emulated(profile()).open(&Limits::default()).unwrap();
            let expected = seen(&mut *device, steps);
            let runs = steps.iter().zip(&expected);
            succeeded += runs.filter(|(step, seen)| matches!(step, Step::Run { .. }) && seen.is_ok()).count();
            prop_assert_eq!(found, expected);
        }
        // No batch fails, and there are no more of them than runs.
        prop_assert!(times.keys().all(Option::is_some));
        prop_assert!(times.values().sum::<usize>() <= succeeded);
    }
}
