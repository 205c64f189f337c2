//! An edge that is cut off from the model that answers it: another variant answers there meanwhile, and each record is
//! answered once, including those in transit.
use crate::cut::{Job, until};
use crate::parts::*;
use arrow_array::{RecordBatch, StringArray};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidemill_engine::{Alone, EdgeMetrics, Run, RunReport};
use tidemill_operators::api::*;
use tidemill_operators::record::METADATA_COLUMNS;
use tidemill_spec::units::TimeSpan;
use tidemill_spec::workflow::{CutDegrade, WhenCut};

/// Writes the answering side into the key.
struct Marks {
    mark: &'static str,
    rows: Arc<AtomicU64>,
}

impl Inference for Marks {
    fn infer(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let keys: StringArray =
            keys(batch).into_iter().map(|key| Some(format!("{key} {}", self.mark))).collect();
        let mut columns = batch.columns().to_vec();
        columns[METADATA_COLUMNS] = Arc::new(keys);
        self.rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        output.push(RecordBatch::try_new(batch.schema(), columns).expect("the same columns"));
        Ok(())
    }
}

fn marks(mark: &'static str, rows: &Arc<AtomicU64>) -> BoundOperator {
    let rows = Arc::clone(rows);
    operator("m", Computation::Inference, move || {
        Instance::Inference(Box::new(Marks { mark, rows: Arc::clone(&rows) }))
    })
}

/// A source and a sink at the edge; the answering model is in the cloud.
struct Answers {
    job: Job,
    rows: usize,
    /// Rows computed by each side.
    here: Arc<AtomicU64>,
    there: Arc<AtomicU64>,
}

impl Answers {
    /// `slots`: of the source, the stand-in and the sink.
    fn new(rows: usize, rate: f64, time: Duration, slots: [&str; 3]) -> Self {
        let (here, there) = (Arc::default(), Arc::default());
        let mut b = Builder::new(&[0.5, 0.5]);
        let (out, collected) = sink("out");
        b.source(rows_source("src", numbered(rows), Some(rate), Some(0), 40), slots[0]);
        b.operator("m", marks("there", &there), "m", &[]).edge("src", "m", 0);
        b.sink(out, slots[2]).edge("m", "out", 0);
        let mut program = b.program;
        for stage in &mut program.plan.stages {
            stage.worker = if stage.id == "m" { "cloud" } else { "edge" }.into();
        }
        let span = |time: Duration| Some(TimeSpan(time.as_nanos() as u64).into());
        let degrade = CutDegrade {
            after: span(Duration::from_millis(300)),
            time: span(time),
            ..CutDegrade::new("tiny")
        };
        program.when_cut.insert(("m".to_owned(), 0), WhenCut::Degrade(degrade));
        program.plan.place_stand_ins(&program.when_cut).expect("the answers are read at the edge");
        let stand_in = program.plan.stages.last_mut().expect("was added");
        assert_eq!((stand_in.id.as_str(), stand_in.worker.as_str()), ("m-stand-in", "edge"));
        stand_in.slot_group = slots[1].into();
        program.operators.insert("m-stand-in".into(), marks("here", &here));
        Self { job: Job::of(program, collected), rows, here, there }
    }

    fn metrics(&self, run: &Run) -> Arc<EdgeMetrics> {
        run.observer().edge("src", "m", 0).expect("is in the plan")
    }

    fn degrades(&self, run: &Run) -> bool {
        self.metrics(run).degraded.get() > 0
    }

    fn there(&self) -> u64 {
        self.there.load(Ordering::Relaxed)
    }

    fn here(&self) -> u64 {
        self.here.load(Ordering::Relaxed)
    }

    /// Checks that all rows are in order, each answered once, and the rows of an epoch (of 10 ms) by one side. Returns how
    /// many were answered here.
    fn check(&self, rate: f64) -> usize {
        let mut epochs: Vec<BTreeSet<String>> = Vec::new();
        let mut numbers = Vec::new();
        let mut here = 0;
        for line in lines(&self.job.collected) {
            let (key, number) = line.split_once('=').expect("a row");
            let (key, mark) = key.split_once(' ').expect("was answered");
            let number: usize = number.parse().expect("a number");
            assert_eq!(key, format!("k{number:06}"));
            numbers.push(number);
            here += usize::from(mark == "here");
            let epoch = (number as f64 / rate / 0.01 + 1e-9) as usize;
            epochs.resize_with(epochs.len().max(epoch + 1), BTreeSet::new);
            epochs[epoch].insert(mark.to_owned());
        }
        assert!(numbers == (0..self.rows).collect::<Vec<_>>(), "{} rows of {}", numbers.len(), self.rows);
        assert!(epochs.iter().all(|answers| answers.len() == 1), "an epoch that both have answered");
        here
    }
}

fn answered(report: &RunReport) -> u64 {
    let edge = report.edges.iter().find(|edge| edge.answered.is_some()).expect("one has a stand-in");
    edge.answered.map_or(0, |answered| answered.here)
}

const MINUTES: Duration = Duration::from_secs(600);

/// These are the slots of the source, the stand-in and the sink.
fn is_answered_at_the_edge(slots: [&str; 3]) {
    let rate = 1000.0;
    let answers = Answers::new(6000, rate, MINUTES, slots);
    let job = &answers.job;
    assert_eq!(job.program.alone("edge"), Some(Alone::GoesOn(MINUTES)));
    let run = job.run();
    until("some rows are answered there", || answers.there() > 500 && job.arrived() > 300);
    assert_eq!(answers.here(), 0);
    job.data.close();
    until("the edge answers", || answers.degrades(&run));
    let before = job.arrived();
    until("it goes on", || job.arrived() > before + 500);
    job.data.open();
    until("the cloud answers again", || !answers.degrades(&run));
    let before = answers.there();
    until("it gets new rows", || answers.there() > before + 200);
    let report = wait(&run);
    let here = answers.check(rate);
    assert!(here > 500 && here < answers.rows - 500, "{here} rows were answered at the edge");
    assert_eq!(answered(&report), here as u64);
    assert!(answers.there() < answers.rows as u64, "what was answered here is not computed there, too");
    assert_eq!(job.launched.load(Ordering::Relaxed), 2);
}

#[test]
fn an_edge_that_is_cut_is_answered_there_and_goes_on() {
    is_answered_at_the_edge(["e", "e", "e"]);
}

#[test]
#[ignore = "long: make test-long"]
fn an_edge_of_several_slots_that_is_cut_is_answered_there_and_goes_on() {
    is_answered_at_the_edge(["s", "v", "o"]);
}

/// The source ends while it is cut.
#[test]
fn what_ends_while_it_is_cut_is_answered() {
    let rate = 2000.0;
    let answers = Answers::new(2000, rate, MINUTES, ["e"; 3]);
    let job = &answers.job;
    job.data.close();
    let run = job.run();
    until("all is answered", || job.arrived() == answers.rows);
    assert!(run.wait_for(Duration::ZERO).is_none(), "the cloud does not know of its end");
    job.data.open();
    wait(&run);
    assert_eq!(answers.check(rate), answers.rows);
    assert_eq!(answers.there(), 0);
}

/// The cloud has skipped epochs answered at the edge, and then the edge restarts from an earlier checkpoint: only the edge
/// has those records, and only the cloud's reports show it.
#[test]
#[ignore = "long: make test-long"]
fn an_edge_that_begins_again_answers_what_the_cloud_was_not_asked_for() {
    let rate = 500.0;
    let answers = Answers::new(6000, rate, Duration::from_secs(5), ["e"; 3]);
    let job = &answers.job;
    let run = job.run();
    until("a checkpoint is there, and some rows", || job.kept.number() > 2 && job.arrived() > 200);
    job.control.close();
    job.data.close();
    until("the edge answers", || answers.here() > 300);
    let (kept, there) = (job.kept.number(), answers.there());
    job.data.open();
    until("the cloud is asked again", || answers.there() > there + 100);
    until("the edge has ended", || !job.ends().is_empty());
    assert!(job.kept.number() <= kept + 1, "there was no checkpoint of what was answered here");
    let here = answers.here();
    job.control.open();
    wait(&run);
    assert_eq!(job.launched.load(Ordering::Relaxed), 3, "it began again with the last checkpoint");
    assert!(answers.here() > here, "and answered once more what it had answered");
    answers.check(rate);
}

/// Cut at random moments, for random times.
#[test]
#[ignore = "long: make test-long"]
fn each_record_is_answered_once_whenever_the_link_is_cut() {
    let rate = 1500.0;
    let mut taken_over = 0;
    for seed in 0..3 {
        let mut random = Random(seed);
        let slots = if seed % 2 == 0 { ["s", "e", "e"] } else { ["e", "e", "o"] };
        let answers = Answers::new(9000, rate, MINUTES, slots);
        let job = &answers.job;
        let run = job.run();
        until("it begins", || answers.there() > 0);
        while job.arrived() < answers.rows * 9 / 10 && run.wait_for(Duration::ZERO).is_none() {
            let goal = job.arrived() + random.below(600) as usize;
            until("some rows arrive", || job.arrived() >= goal.min(answers.rows * 9 / 10));
            job.data.close();
            run.wait_for(Duration::from_millis(random.below(900)));
            job.data.open();
        }
        wait(&run);
        taken_over += answers.check(rate);
    }
    assert!(taken_over > 0, "no cut was long enough");
}

/// Deterministic random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        xxhash_rust::xxh3::xxh3_64(&self.0.to_le_bytes()) % end
    }
}
