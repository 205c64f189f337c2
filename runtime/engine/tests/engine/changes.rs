//! Consecutive plans of a running job: stages on other hosts, other models, with hosts that are ready before the previous
//! plan ends.
use crate::hosts::{Picky, RUN};
use crate::parts::*;
use crate::takeover::{Kept, TestLetters};
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidemill_engine::remote::{Address, Security};
use tidemill_engine::{
    Durability, HostLauncher, HostOptions, Hosts, Listen, Program, Run, RunError, RunOptions, RunReport,
    Standby,
};
use tidemill_operators::api::{BoundOperator, Computation, Inference, Instance, OperatorError, Output};
use tidemill_random::Random;

const HOSTS: [&str; 4] = ["a", "b", "c", "d"];

type Ends = Arc<Mutex<Vec<(u64, String, Result<(), RunError>)>>>;

/// Hosts of one plan, as threads.
struct Threads {
    program: Program,
    version: u64,
    started: HostThreads,
    /// Results of hosts, by version of the plan and name.
    ends: Ends,
}

impl HostLauncher for Threads {
    fn launch(&mut self, worker: &str, coordinator: &Address) -> Result<(), String> {
        let mut options = HostOptions::local(worker, RUN, coordinator.clone());
        options.plan_version = self.version;
        self.started.start(&self.program, options);
        Ok(())
    }

    fn ended(&mut self) -> Vec<String> {
        self.started.ended()
    }

    fn fate(&mut self, worker: &str) -> Option<String> {
        self.started.fate(worker)
    }

    fn end(&mut self) {
        let ended = self.started.end().into_iter().map(|(worker, ended)| (self.version, worker, ended));
        self.ends.lock().expect("not poisoned").extend(ended);
    }
}

/// A run whose plan changes.
pub(crate) struct Job {
    pub(crate) program: Program,
    kept: Kept,
    pub(crate) letters: Arc<Mutex<Vec<String>>>,
    pub(crate) collected: Collected,
    pub(crate) ends: Ends,
}

impl Job {
    pub(crate) fn new(program: Program, collected: Collected) -> Self {
        let (kept, letters, ends) = (Kept::default(), Arc::default(), Ends::default());
        Self { program, kept, letters, collected, ends }
    }

    pub(crate) fn hosts(&self, program: &Program, version: u64) -> Hosts {
        let launcher = Threads {
            program: program.clone(),
            version,
            started: HostThreads::default(),
            ends: Arc::clone(&self.ends),
        };
        Hosts {
            launcher: Box::new(launcher),
            run: RUN,
            plan_version: version,
            listen: Listen::At(Address::tcp("127.0.0.1:0"), Security::none()),
        }
    }

    /// Continues from the last checkpoint.
    pub(crate) fn start(&self, program: &Program, hosts: Hosts) -> Run {
        let past = self.kept.last();
        let letters = TestLetters::behind(&self.letters, past.as_ref());
        let durability =
            Durability { writer: Box::new(self.kept.clone()), past, interval: Duration::from_millis(20) };
        let options = RunOptions {
            hosts: Some(hosts),
            durability: Some(durability),
            letters: Some(Box::new(letters)),
            ..RunOptions::default()
        };
        Run::start(program.clone(), options).expect("starts")
    }

    /// Waits for more checkpoints; false if the run is over before.
    pub(crate) fn checkpoints(&self, run: &Run, more: u64) -> bool {
        let until = self.kept.number() + more;
        while self.kept.number() < until {
            if run.is_closing() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Changes the run to another plan.
    fn change(&self, run: Run, program: &Program, version: u64) -> Run {
        let mut standby = Standby::start(program, self.hosts(program, version)).expect("starts");
        assert!(standby.wait_for(Duration::from_secs(40)).expect("loads"), "{:?}", standby.missing());
        run.stopper().stop();
        let before = ended(&run, 40);
        assert!(!before.complete, "it came to its end before it was changed: the test needs more rows");
        drop(run);
        self.start(program, standby.into_hosts().expect("they stand ready"))
    }

    /// All hosts have left in order.
    fn all_left(&self, at_least: usize) {
        let ends = self.ends.lock().expect("not poisoned");
        assert!(ends.len() >= at_least, "{} hosts", ends.len());
        for (version, worker, end) in ends.iter() {
            assert_eq!(*end, Ok(()), "{worker} of plan {version}");
        }
    }
}

/// Two sources with a rate, routes, dead letters, a join and a window.
pub(crate) fn pipeline(rows: usize) -> (Program, Collected) {
    let mut b = Builder::new(&[0.5, 0.5]);
    let (out, collected) = sink("out");
    let mut picky = pass("f", |_| {});
    picky.make = Arc::new(|| Ok(Instance::Stateless(Box::new(Picky))));
    b.source(rows_source("left", numbered(rows), Some(2000.0), Some(0), 40), "left");
    b.source(rows_source("right", numbered(rows), Some(2000.0), Some(0), 40), "right");
    b.operator("f1", picky.clone(), "f1", &[0]).operator("f2", picky, "f2", &[1]);
    b.edge("left", "f1", 0).edge("left", "f2", 0);
    b.operator("j", join("j", 0), "j", &[]);
    b.edge("f1", "j", 0).edge("f2", "j", 0).edge("right", "j", 1);
    b.operator("w", window("w", 10_000), "w", &[]).edge("j", "w", 0);
    b.sink(out, "out").edge("w", "out", 0);
    (b.program, collected)
}

/// The stages of a program on random hosts.
fn scattered(program: &Program, random: &mut Random) -> Program {
    let mut program = program.clone();
    for stage in &mut program.plan.stages {
        stage.worker = HOSTS[random.below(HOSTS.len())].to_owned();
    }
    program
}

/// A round takes about a second, not a hundredth as elsewhere: at most a hundred.
fn rounds(default: usize) -> usize {
    let wanted = std::env::var("TIDEMILL_CHAOS_ROUNDS").ok().and_then(|text| text.parse().ok());
    wanted.unwrap_or(default).min(100)
}

/// For any placement of stages, with their states, the output equals that of an undisturbed run.
#[test]
fn chaos_stages_move_while_the_run_goes_on() {
    let rounds = rounds(4);
    let rows = 1200 * rounds + 1000;
    let patience = 55.max(4 * rounds as u64);
    let undisturbed = {
        let (program, collected) = pipeline(rows);
        let job = Job::new(program, collected);
        let mut random = Random::of_seed(1);
        let program = scattered(&job.program, &mut random);
        assert!(ended(&job.start(&program, job.hosts(&program, 1)), patience).complete);
        (lines(&job.collected), job.letters.lock().expect("not poisoned").clone())
    };
    assert_eq!(undisturbed.0.len(), rows / 10);
    let (program, collected) = pipeline(rows);
    let job = Job::new(program, collected);
    let mut random = Random::of_seed(20);
    let mut placed = scattered(&job.program, &mut random);
    let mut run = job.start(&placed, job.hosts(&placed, 1));
    let mut moved = BTreeSet::new();
    for version in 2..rounds as u64 + 2 {
        assert!(job.checkpoints(&run, 1 + random.below(3) as u64), "it is over before plan {version}");
        let next = scattered(&job.program, &mut random);
        let stages = placed.plan.stages.iter().zip(&next.plan.stages);
        moved.extend(stages.filter(|(a, b)| a.worker != b.worker).map(|(stage, _)| stage.id.clone()));
        run = job.change(run, &next, version);
        placed = next;
    }
    let report: RunReport = ended(&run, patience);
    assert!(report.complete);
    assert_eq!(report.restarts, 0, "a change is no restart");
    drop(run);
    assert_eq!(lines(&job.collected), undisturbed.0);
    let sorted = |letters: &[String]| -> BTreeSet<String> { letters.iter().cloned().collect() };
    let letters = job.letters.lock().expect("not poisoned").clone();
    assert_eq!(letters.len(), undisturbed.1.len(), "dead letters");
    assert_eq!(sorted(&letters), sorted(&undisturbed.1));
    assert!(moved.contains("j") && moved.contains("w") && moved.contains("f1"), "{moved:?}");
    job.all_left(rounds);
}

/// A model that returns its tag.
struct Tagged(i64);

impl Inference for Tagged {
    fn infer(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let mut columns = batch.columns().to_vec();
        let tagged: Int64Array = values(batch).into_iter().map(|value| value * 10 + self.0).collect();
        let Some(last) = columns.last_mut() else { return Err(OperatorError::new("there is no column")) };
        *last = Arc::new(tagged) as ArrayRef;
        let batch =
            RecordBatch::try_new(batch.schema(), columns).map_err(|e| OperatorError::new(e.to_string()))?;
        output.push(batch);
        Ok(())
    }
}

/// `loads` counts its loads.
pub(crate) fn tagged(tag: i64, loads: &Arc<AtomicU64>) -> BoundOperator {
    let loads = Arc::clone(loads);
    operator("m", Computation::Inference, move || {
        loads.fetch_add(1, Ordering::Relaxed);
        Instance::Inference(Box::new(Tagged(tag)))
    })
}

fn with_model(rows: usize, bound: BoundOperator) -> (Program, Collected) {
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    b.source(rows_source("rows", numbered(rows), Some(2000.0), Some(0), 40), "rows");
    b.operator("m", bound, "m", &[]).edge("rows", "m", 0);
    b.sink(out, "out").edge("m", "out", 0);
    for stage in &mut b.program.plan.stages {
        stage.worker = if stage.id == "m" { "a".to_owned() } else { "b".to_owned() };
    }
    (b.program, collected)
}

/// Every record passes one model or the other, once; each model is loaded once, before the previous one ends.
#[test]
fn models_are_swapped_and_no_record_is_lost_or_doubled() {
    const ROWS: usize = 6000;
    let loads: Vec<Arc<AtomicU64>> = (0..4).map(|_| Arc::default()).collect();
    let (program, collected) = with_model(ROWS, tagged(0, &loads[0]));
    let job = Job::new(program, collected);
    let mut run = job.start(&job.program, job.hosts(&job.program, 1));
    for (tag, loads) in loads.iter().enumerate().skip(1) {
        assert!(job.checkpoints(&run, 2), "it is over before model {tag}");
        let mut next = job.program.clone();
        next.operators.insert("m".to_owned(), tagged(tag as i64, loads));
        let mut standby = Standby::start(&next, job.hosts(&next, tag as u64 + 1)).expect("starts");
        assert!(standby.wait_for(Duration::from_secs(40)).expect("loads"));
        let loaded = loads.load(Ordering::Relaxed);
        assert_eq!(loaded, 1, "model {tag} is there before the one before it is ended");
        run.stopper().stop();
        assert!(!ended(&run, 40).complete);
        drop(run);
        run = job.start(&next, standby.into_hosts().expect("they stand ready"));
    }
    assert!(ended(&run, 50).complete);
    drop(run);
    let found = lines(&job.collected);
    let parsed: Vec<(i64, i64)> = found
        .iter()
        .map(|line| {
            let value: i64 = line.split_once('=').expect("a value").1.parse().expect("a number");
            (value / 10, value % 10)
        })
        .collect();
    let records: Vec<i64> = parsed.iter().map(|(record, _)| *record).collect();
    assert_eq!(records, (0..ROWS as i64).collect::<Vec<_>>(), "each once, in order");
    let models: BTreeSet<i64> = parsed.iter().map(|(_, model)| *model).collect();
    assert_eq!(models.len(), loads.len(), "{models:?}");
    assert!(parsed.is_sorted_by_key(|(_, model)| *model), "a model came back");
    assert!(loads.iter().all(|loads| loads.load(Ordering::Relaxed) == 1), "a model was loaded twice");
    job.all_left(2 * loads.len());
}

/// The present plan continues, and nothing is left of the new one.
#[test]
fn a_model_that_cannot_be_loaded_stops_nothing() {
    const ROWS: usize = 3000;
    let loads = Arc::default();
    let (program, collected) = with_model(ROWS, tagged(0, &loads));
    let job = Job::new(program, collected);
    let run = job.start(&job.program, job.hosts(&job.program, 1));
    assert!(job.checkpoints(&run, 1));
    let mut next = job.program.clone();
    let mut bound = tagged(1, &loads);
    bound.make = Arc::new(|| Err(OperatorError::new("the weights are elsewhere")));
    next.operators.insert("m".to_owned(), bound);
    let mut standby = Standby::start(&next, job.hosts(&next, 2)).expect("starts");
    let error = standby.wait_for(Duration::from_secs(40)).expect_err("it cannot be loaded").to_string();
    assert!(
        error.contains("worker 'a' is not ready") && error.contains("the weights are elsewhere"),
        "{error}"
    );
    drop(standby);
    let of_next = job.ends.lock().expect("not poisoned").clone();
    let left: Vec<&str> =
        of_next.iter().filter(|(.., end)| end.is_ok()).map(|(_, name, _)| &name[..]).collect();
    assert!(of_next.iter().all(|(version, ..)| *version == 2) && left == ["b"], "{of_next:?}");
    assert!(ended(&run, 40).complete);
    assert_eq!(lines(&job.collected).len(), ROWS);
}

/// Hosts of two plans of one run do not connect.
#[test]
fn a_host_of_another_plan_is_refused() {
    let loads = Arc::default();
    let (program, _) = with_model(10, tagged(0, &loads));
    let job = Job::new(program, Collected::default());
    let other = Threads { version: 1, ..threads(&job) };
    let hosts = Hosts { launcher: Box::new(other), ..job.hosts(&job.program, 2) };
    let mut standby = Standby::start(&job.program, hosts).expect("starts");
    let error = standby.wait_for(Duration::from_secs(40)).expect_err("they have plan 1").to_string();
    assert!(error.contains("this coordinator has plan 2"), "{error}");
    assert_eq!(loads.load(Ordering::Relaxed), 0);
}

fn threads(job: &Job) -> Threads {
    Threads {
        program: job.program.clone(),
        version: 0,
        started: HostThreads::default(),
        ends: Arc::clone(&job.ends),
    }
}

/// The costs of a change are the delay of the schedule, and the time without records at the sinks.
#[test]
fn the_pause_can_be_measured() {
    let loads = Arc::default();
    let (program, collected) = with_model(3000, tagged(0, &loads));
    let job = Job::new(program, collected);
    let run = job.start(&job.program, job.hosts(&job.program, 1));
    assert!(job.checkpoints(&run, 3));
    let observer = run.observer();
    let mut standby = Standby::start(&job.program, job.hosts(&job.program, 2)).expect("starts");
    assert!(standby.wait_for(Duration::from_secs(40)).expect("loads"));
    run.stopper().stop();
    assert!(!ended(&run, 40).complete);
    drop(run);
    let before = observer.timing();
    std::thread::sleep(Duration::from_millis(300));
    let run = job.start(&job.program, standby.into_hosts().expect("they stand ready"));
    let observer_after = run.observer();
    assert!(ended(&run, 40).complete);
    // Both at one moment.
    let (before_now, after) = (observer.timing(), observer_after.timing());
    assert!(before_now.since_beginning > before.since_beginning);
    let gap = before_now.since_beginning.saturating_sub(after.since_beginning);
    assert!(gap >= Duration::from_millis(250), "{gap:?}");
    let last = before_now.arrivals["out"].1;
    let first = after.arrivals["out"].0;
    let pause = last.saturating_sub(first);
    assert!(pause >= Duration::from_millis(300), "{pause:?}");
}
