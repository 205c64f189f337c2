//! Models on executors of another kind, which may die.
use crate::parts::*;
use arrow_array::RecordBatch;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::Duration;
use tidemill_engine::{
    Completion, ExecutorFactory, ExecutorRequest, Job, JobResult, ModelExecutor, Notifier, Run, RunError,
    RunOptions, RunReport, batches_away, register_executors, start_local,
};
use tidemill_operators::api::{DeviceTimes, Instance, OperatorError, Output};
use tidemill_spec::plan::RemoteRun;
use tidemill_spec::units::{Bytes, Percent, TimeSpan};

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    done: VecDeque<Completion>,
    notifier: Option<Notifier>,
    dead: bool,
    dropped: bool,
}

impl State {
    fn complete(&mut self, job: &Job, result: JobResult) {
        let (id, incarnation) = (job.id, job.incarnation);
        self.done.push_back(Completion { id, incarnation, result, started: 0, finished: 1 });
        self.notifier.iter().for_each(Notifier::notify);
    }
}

/// Where the time of a batch went: a millisecond on the way and two at the device, with 8 bytes there for each record, and 4 back.
fn there(job: &Job) -> DeviceTimes {
    let rows: u64 = job.parts.iter().map(|part| part.num_rows() as u64).sum();
    let [network, compute] = [1, 2].map(Duration::from_millis);
    DeviceTimes {
        network,
        compute,
        round_trips: 1,
        sent: 8 * rows,
        received: 4 * rows,
        ..DeviceTimes::default()
    }
}

/// A model on a thread that dies of some records.
#[derive(Default)]
struct Mortal {
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Mortal {
    fn start(request: &ExecutorRequest, kills: impl Fn(i64) -> bool + Send + 'static) -> Self {
        let executor = Self::default();
        let state = Arc::clone(&executor.state);
        let Ok(Instance::Inference(mut model)) = (request.make)() else { panic!("no model") };
        std::thread::spawn(move || {
            let (state, woken) = &*state;
            loop {
                let mut open = state.lock().expect("not poisoned");
                while open.jobs.is_empty() && !open.dropped {
                    open = woken.wait(open).expect("not poisoned");
                }
                let Some(job) = open.jobs.pop_front() else { return };
                if job.parts.iter().any(|part| values(part).into_iter().any(&kills)) {
                    open.dead = true;
                    for job in std::iter::once(job).chain(std::mem::take(&mut open.jobs)) {
                        open.complete(&job, JobResult::Lost("the connection broke".to_owned()));
                    }
                    return;
                }
                drop(open);
                let mut output = Output::default();
                let result = model.infer_parts(&job.parts, &mut output).map(|()| output);
                let result = result.map(|output| Output { device: Some(there(&job)), ..output });
                let result = result.map_or_else(JobResult::Failed, JobResult::Done);
                state.lock().expect("not poisoned").complete(&job, result);
            }
        });
        executor
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.state.0.lock().expect("not poisoned").dropped = true;
        self.state.1.notify_all();
    }
}

impl ModelExecutor for Mortal {
    fn submit(&self, job: Job) {
        let mut state = self.state.0.lock().expect("not poisoned");
        if state.dead {
            return state.complete(&job, JobResult::Lost("it is dead".to_owned()));
        }
        state.jobs.push_back(job);
        self.state.1.notify_all();
    }
    fn completion(&self) -> Option<Completion> {
        self.state.0.lock().expect("not poisoned").done.pop_front()
    }
    fn attach(&self, notifier: Notifier, _incarnation: u32) {
        self.state.0.lock().expect("not poisoned").notifier = Some(notifier);
    }
    fn device(&self) -> &str {
        "a thread"
    }
    fn bytes_in_flight(&self) -> usize {
        self.state.0.lock().expect("not poisoned").jobs.iter().map(|job| job.bytes).sum()
    }
}

/// Executors that die when they see one of these values, at most `deaths` times in total.
struct Mortals {
    scheme: String,
    poison: &'static [i64],
    deaths: Arc<AtomicUsize>,
    started: Arc<AtomicUsize>,
}

impl ExecutorFactory for Mortals {
    fn scheme(&self) -> &str {
        &self.scheme
    }
    fn loads_here(&self) -> bool {
        true
    }
    fn start(&self, request: &ExecutorRequest) -> Result<Arc<dyn ModelExecutor>, OperatorError> {
        let (spec, device) = (&request.spec, format!("{}:0", self.scheme));
        let expected = ("model", "model", device.as_str());
        assert_eq!((spec.stage.as_str(), request.operator.as_str(), spec.device.as_str()), expected);
        let before = self.started.fetch_add(1, Ordering::Relaxed);
        assert_eq!(request.again, before > 0, "the run has begun with the first one");
        let (poison, deaths) = (self.poison, Arc::clone(&self.deaths));
        let take_one = move || {
            let less = |left: usize| left.checked_sub(1);
            deaths.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
        };
        Ok(Arc::new(Mortal::start(request, move |value| poison.contains(&value) && take_one())))
    }
}

/// Runs 500 records through a model and a window in one slot; returns the output, and how many executors were started.
fn run(
    poison: &'static [i64],
    deaths: usize,
    restart: bool,
) -> (Result<RunReport, RunError>, Vec<String>, usize) {
    let mut b = Builder::new(&[1.0]);
    let (out, rows) = sink("out");
    let (counted, windows) = sink("counted");
    b.source(rows_source("src", numbered(500), None, Some(0), 40), "a");
    b.operator("model", model("model", |_| {}), "b", &[]).edge("src", "model", 0);
    b.operator("window", window("window", 50_000), "b", &[]).edge("model", "window", 0);
    b.sink(out, "c").edge("model", "out", 0);
    b.sink(counted, "c").edge("window", "counted", 0);
    if restart {
        b.restart_on_panic("model");
    }
    let started = Arc::new(AtomicUsize::new(0));
    let deaths = Arc::new(AtomicUsize::new(deaths));
    // Each run has a scheme of its own: the tests of one process share the factories.
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let scheme = format!("mortal-{}", RUNS.fetch_add(1, Ordering::Relaxed));
    b.program.plan.stages[1].device = Some(format!("{scheme}:0"));
    assert!(register_executors(Arc::new(Mortals { scheme, poison, deaths, started: Arc::clone(&started) })));
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    let result = result_within(&run, 50);
    let all = [sorted(&rows), sorted(&windows)].concat();
    (result, all, started.load(Ordering::Relaxed))
}

#[test]
fn an_executor_that_dies_is_started_again_and_nothing_is_lost() {
    let (report, undisturbed, started) = run(&[], 0, false);
    assert_eq!((report.expect("ends").restarts, undisturbed.len(), started), (0, 510, 1));
    let (report, rows, started) = run(&[230], 1, false);
    let report = report.expect("goes on");
    assert!(report.complete);
    assert_eq!((report.restarts, report.dead_letters, started), (1, 0, 2));
    let stage = report.stages.iter().find(|stage| stage.stage == "model").expect("there");
    assert_eq!((stage.restarts, stage.device.as_deref()), (1, Some("a thread")));
    assert_eq!(rows, undisturbed);
}

#[test]
fn the_report_splits_the_time_of_a_model_on_a_device() {
    let (report, ..) = run(&[], 0, false);
    let report = report.expect("ends");
    let stage = report.stages.iter().find(|stage| stage.stage == "model").expect("there");
    let split = stage.on_device.as_ref().expect("a device has computed");
    assert_eq!((split.batches, split.round_trips, split.sessions_lost), (stage.batches, stage.batches, 0));
    assert_eq!((split.sent_bytes, split.received_bytes), (4000, 2000));
    assert_eq!((split.sent_bytes_per_record, split.received_bytes_per_record), (8.0, 4.0));
    let parts = [&split.network, &split.compute].map(|part| (part.count, part.p50_ms, part.p95_ms));
    assert_eq!(parts, [(500, 1.0, 1.0), (500, 2.0, 2.0)]);
    let others = report.stages.iter().filter(|stage| stage.stage != "model");
    assert!(others.into_iter().all(|stage| stage.on_device.is_none()));
}

#[test]
fn an_executor_that_dies_again_and_again_ends_the_run() {
    let (result, _, started) = run(&[230], usize::MAX, false);
    let error = result.expect_err("ends").to_string();
    assert_eq!(error, "'model' failed: its executor is lost: the connection broke");
    assert!(started > 2, "{started}");
}

#[test]
fn the_record_that_kills_executors_becomes_a_dead_letter() {
    let (result, rows, started) = run(&[230], usize::MAX, true);
    let report = result.expect("goes on");
    assert_eq!(report.dead_letters, 1, "{:?}", report.dead_letter_samples);
    let letter = &report.dead_letter_samples[0];
    assert!(letter.detail.contains("its executor is lost: the connection broke"), "{}", letter.detail);
    assert!(!rows.contains(&"k000230=230".to_owned()) && rows.contains(&"k000231=231".to_owned()));
    assert_eq!(rows.len(), 509);
    assert!(started > 2, "{started}");
}

/// Starts executors of this process for a device of the plan.
struct Devices;

impl ExecutorFactory for Devices {
    fn scheme(&self) -> &str {
        "away"
    }
    fn loads_here(&self) -> bool {
        true
    }
    fn start(&self, request: &ExecutorRequest) -> Result<Arc<dyn ModelExecutor>, OperatorError> {
        start_local(request, &request.make, &request.spec.device)
    }
}

/// Each batch ends only when as many are away as the plan expects.
#[test]
fn as_many_batches_are_away_as_the_plan_expects() {
    const AWAY: usize = 3;
    let together = Arc::new(Barrier::new(AWAY));
    let mut b = Builder::new(&[1.0]);
    let (out, rows) = sink("out");
    b.source(rows_source("src", numbered(30), None, Some(0), 40), "a");
    let wait = move |_: &RecordBatch| {
        together.wait();
    };
    b.operator("model", model("model", wait), "b", &[]).edge("src", "model", 0);
    b.sink(out, "c").edge("model", "out", 0);
    let [ms, none] = [TimeSpan(1_000_000), TimeSpan(0)];
    let stage = &mut b.program.plan.stages[1];
    stage.max_batch = 1;
    stage.device = Some("away:0".to_owned());
    // One batch of a millisecond in ten, each away for nine: 0.9, and twice 0.95 more.
    stage.remote_run = Some(RemoteRun {
        sent: Bytes(1),
        received: Bytes(1),
        round_trip: TimeSpan(8 * ms.0),
        transfer: none,
        queue: none,
        compute: ms,
        share: Percent(10.0),
    });
    assert_eq!(batches_away(stage, &[]) as usize, AWAY);
    assert!(register_executors(Arc::new(Devices)));
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    let report = result_within(&run, 50).expect("ends");
    assert_eq!((report.stages[1].batches, sorted(&rows).len()), (30, 30));
    assert_eq!(report.stages[1].copies_added, 0, "none was missing");
}

/// Cannot start anything.
struct Refusing;

impl ExecutorFactory for Refusing {
    fn scheme(&self) -> &str {
        "refusing"
    }
    fn start(&self, _request: &ExecutorRequest) -> Result<Arc<dyn ModelExecutor>, OperatorError> {
        Err(OperatorError::new("there is no interpreter"))
    }
}

#[test]
fn a_device_that_has_no_factory_is_refused() {
    for (device, refused) in [(None, false), (Some("cpu"), false), (Some("accelerator"), true)] {
        let mut b = Builder::new(&[1.0]);
        b.source(rows_source("src", numbered(5), None, Some(0), 40), "a");
        b.operator("model", model("model", |_| {}), "b", &[]).edge("src", "model", 0);
        b.sink(sink("out").0, "c").edge("model", "out", 0);
        b.program.plan.stages[1].device = device.map(str::to_owned);
        match Run::start(b.program, RunOptions::default()) {
            Ok(run) => {
                let report = ended(&run, 50);
                assert_eq!((refused, report.stages[1].device.as_deref()), (false, Some("cpu")));
                assert_eq!(report.stages[1].on_device, None);
                assert_eq!(report.stages[0].device, None, "no model");
            }
            Err(error) => {
                let text = error.to_string();
                assert!(
                    refused && text.contains("on the device 'accelerator': this program serves 'cpu'"),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn an_executor_that_cannot_be_started_ends_the_start() {
    let mut b = Builder::new(&[1.0]);
    b.source(rows_source("src", numbered(5), None, Some(0), 40), "a");
    b.operator("model", model("model", |_| {}), "b", &[]).edge("src", "model", 0);
    b.sink(sink("out").0, "c").edge("model", "out", 0);
    b.program.plan.stages[1].device = Some("refusing".to_owned());
    assert!(register_executors(Arc::new(Refusing)));
    let error = Run::start(b.program, RunOptions::default()).err().expect("is refused");
    assert_eq!(error.to_string(), "'model' failed: there is no interpreter");
}
