//! Sources, models, plans and writers that misbehave are reported, and nothing is lost silently.
use crate::parts::*;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidemill_engine::clock::{Clock, ManualClock};
use tidemill_engine::{LetterWriter, Run, RunError, RunOptions};
use tidemill_operators::api::*;
use tidemill_operators::record::*;

struct Faulty {
    reads: usize,
    act: Arc<dyn Fn(usize) + Send + Sync>,
}

impl Source for Faulty {
    fn read(&mut self, _rows: usize, _bytes: usize) -> Result<SourceRead, OperatorError> {
        (self.act)(self.reads);
        if self.reads == 5 {
            return Ok(SourceRead::End);
        }
        let n = self.reads as i64;
        self.reads += 1;
        let columns: Vec<arrow_array::ArrayRef> =
            vec![Arc::new(StringArray::from(vec![format!("k{n}")])), Arc::new(Int64Array::from(vec![n]))];
        let payload = RecordBatch::try_new(payload_schema(&stream()), columns).expect("two columns");
        Ok(SourceRead::Rows { payload, times: None, dead_letters: vec![], offsets: None })
    }
    fn position(&self) -> SourcePosition {
        SourcePosition(self.reads.to_string())
    }
    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        self.reads = position.0.parse().map_err(|_| OperatorError::new("not a position"))?;
        Ok(())
    }
}

fn faulty(id: &str, act: impl Fn(usize) + Send + Sync + 'static) -> BoundSource {
    let mut source = rows_source(id, vec![], None, None, 1);
    let act: Arc<dyn Fn(usize) + Send + Sync> = Arc::new(act);
    source.make = Arc::new(move || Ok(Box::new(Faulty { reads: 0, act: Arc::clone(&act) })));
    source
}

/// A source that panics is distinguished from one that ended.
#[test]
fn a_panic_of_a_source_is_told() {
    let mut b = Builder::new(&[1.0]);
    let (out, _) = sink("out");
    let (seen, rows) = crossbeam_channel::unbounded();
    let source = faulty("src", move |read| {
        // The slot waits for more: it has passed on everything read before.
        if read > 0 {
            rows.recv().expect("the row of the last read");
        }
        assert!(read < 3, "the fourth read panics");
    });
    let tell = pass("tell", move |batch| values(batch).iter().for_each(|_| seen.send(()).expect("counted")));
    b.source(source, "a").operator("tell", tell, "a", &[]).edge("src", "tell", 0);
    b.sink(out, "a").edge("tell", "out", 0);
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    let result = result_within(&run, 5);
    assert!(result.is_err(), "{result:?}");
}

/// A panic of the reader that the slot notices later.
#[test]
fn a_panic_of_a_source_that_reads_ahead_is_told() {
    let mut b = Builder::new(&[1.0]);
    let (out, _) = sink("out");
    let mut source = faulty("src", |read| assert!(read < 3, "the third read panics"));
    source.rate_per_second = Some(10.0);
    b.source(source, "a").sink(out, "a").edge("src", "out", 0);
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    let result = result_within(&run, 5);
    assert!(result.is_err(), "{result:?}");
}

struct CountingWriter {
    commits: Arc<AtomicUsize>,
    fails: bool,
}

impl LetterWriter for CountingWriter {
    fn write(&mut self, _: &str, _: &DeadLetter, _: u64) -> Result<(), OperatorError> {
        if self.fails { Err(OperatorError::new("disk full")) } else { Ok(()) }
    }
    fn commit(&mut self, _: u64) -> Result<(), OperatorError> {
        self.commits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn close(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }
}

struct Refuse;

impl Stateless for Refuse {
    fn process(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let metadata = Metadata::of(batch);
        for row in 0..batch.num_rows() {
            output.dead_letters.push(DeadLetter {
                id: Some(metadata.id(row)),
                time: None,
                reason: "refused".into(),
                detail: String::new(),
                values: Default::default(),
            });
        }
        Ok(())
    }
}

fn refusing(fails: bool) -> (Run, Arc<ManualClock>, Arc<AtomicUsize>) {
    let mut b = Builder::new(&[1.0]);
    let (out, _) = sink("out");
    b.source(rows_source("src", numbered(100_000), Some(1000.0), Some(0), 40), "a");
    b.operator(
        "r",
        operator("r", Computation::Stateless, || Instance::Stateless(Box::new(Refuse))),
        "a",
        &[],
    );
    b.edge("src", "r", 0).sink(out, "a").edge("r", "out", 0);
    let commits = Arc::new(AtomicUsize::new(0));
    let writer = CountingWriter { commits: Arc::clone(&commits), fails };
    let clock = Arc::new(ManualClock::new());
    let options =
        RunOptions { letters: Some(Box::new(writer)), clock: clock.clone(), ..RunOptions::default() };
    (Run::start(b.program, options).expect("starts"), clock, commits)
}

/// Dead letters become durable during the run.
#[test]
fn dead_letters_are_committed_with_checkpoints() {
    let (run, clock, commits) = refusing(false);
    // Checkpoints are 50 ms apart, and a source with a rate completes an epoch after its last record, a millisecond before
    // the end.
    passes(&clock, MILLISECOND, || commits.load(Ordering::Relaxed) > 5);
    run.stopper().abort();
    run.wait().expect("aborts well");
    assert!(clock.now() >= 299 * MILLISECOND, "{} ms", clock.now() / MILLISECOND);
}

#[test]
fn dead_letters_that_cannot_be_written_stop_the_run() {
    let (run, clock, _) = refusing(true);
    let result = outcome(&run, &clock);
    assert!(result.is_err(), "{result:?}");
}

/// `on_panic: restart` continues for any number of bad records in one checkpoint interval.
#[test]
fn many_guilty_records_go_to_dead_letters() {
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(500), None, Some(0), 40), "a");
    let fragile = pass("fragile", |batch| {
        assert!(values(batch).iter().all(|value| *value >= 100), "poison");
    });
    b.operator("fragile", fragile, "b", &[]).edge("src", "fragile", 0);
    b.sink(out, "c").edge("fragile", "out", 0);
    b.restart_on_panic("fragile");
    let report = ended(&Run::start(b.program, RunOptions::default()).expect("starts"), 30);
    assert_eq!((report.dead_letters, collected.lock().expect("not poisoned").len()), (100, 400));
}

/// A model that panics while it is created again fails the run.
#[test]
fn a_model_that_cannot_be_made_again_is_told() {
    let mut b = Builder::new(&[1.0]);
    let (out, _) = sink("out");
    b.source(rows_source("src", numbered(100), None, Some(0), 40), "a");
    let mut m = model("m", |batch| assert!(!values(batch).contains(&50), "poison"));
    let (made, make) = (AtomicUsize::new(0), Arc::clone(&m.make));
    m.make = Arc::new(move || {
        assert!(made.fetch_add(1, Ordering::Relaxed) == 0, "the library is gone");
        make()
    });
    b.operator("m", m, "b", &[]).edge("src", "m", 0);
    b.sink(out, "c").edge("m", "out", 0);
    b.restart_on_panic("m");
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    let result = result_within(&run, 5);
    assert!(result.is_err(), "{result:?}");
}

/// A plan without classes is refused.
#[test]
fn a_plan_without_classes_is_refused_or_runs() {
    let mut b = Builder::new(&[]);
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(10), None, Some(0), 40), "a");
    b.sink(out, "a").edge("src", "out", 0);
    match Run::start(b.program, RunOptions::default()) {
        Err(error) => assert!(matches!(error, RunError::Plan(_)), "{error}"),
        Ok(run) => {
            ended(&run, 5);
            assert_eq!(collected.lock().expect("not poisoned").len(), 10);
        }
    }
}

/// Partitions of a source would each read everything.
#[test]
fn a_partitioned_source_is_refused_or_reads_once() {
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(10), None, Some(0), 40), "a");
    b.program.plan.stages.last_mut().expect("just added").partitions = 2;
    b.sink(out, "b").edge("src", "out", 0);
    match Run::start(b.program, RunOptions::default()) {
        Err(error) => assert!(matches!(error, RunError::Plan(_)), "{error}"),
        Ok(run) => {
            ended(&run, 5);
            assert_eq!(collected.lock().expect("not poisoned").len(), 10);
        }
    }
}

/// Also the replay of a run that was stopped.
#[test]
fn a_replay_of_a_stopped_run_is_equal() {
    let build = || {
        let mut b = Builder::new(&[1.0]);
        let (out, collected) = sink("out");
        b.source(rows_source("sparse", numbered(100), Some(0.5), Some(0), 40), "a");
        b.source(rows_source("dense", numbered(10_000), Some(500.0), Some(0), 40), "a");
        b.operator("w", window("w", 10_000_000), "a", &[]).edge("sparse", "w", 0);
        b.sink(out, "a").edge("w", "out", 0).edge("dense", "out", 0);
        (b.program, collected)
    };
    let (program, first) = build();
    let clock = Arc::new(ManualClock::new());
    let options = RunOptions { keep_epoch_log: true, clock: clock.clone(), ..RunOptions::default() };
    let run = Run::start(program, options).expect("starts");
    passes(&clock, MILLISECOND, || run.progress().emitted >= 400);
    run.stopper().stop();
    drive(&run, &clock);
    let (program, again) = build();
    let clock = Arc::new(ManualClock::new());
    let options = RunOptions { replay: Some(run.epoch_log()), clock: clock.clone(), ..RunOptions::default() };
    drive(&Run::start(program, options).expect("starts"), &clock);
    let (first, again) = (first.lock().expect("not poisoned"), again.lock().expect("not poisoned"));
    assert_eq!(first.len(), again.len());
    let of = |lines: &[String]| lines.iter().position(|line| line.starts_with('w'));
    assert_eq!(of(&again), of(&first), "place of the window among {} lines", first.len());
}

#[test]
fn a_duration_ends_a_source_without_data() {
    let mut b = Builder::new(&[1.0]);
    let (out, _) = sink("out");
    let (clock, gate) = (Arc::new(ManualClock::new()), Gate::closed());
    let held = Arc::clone(&gate);
    b.source(faulty("quiet", move |_| held.pass()), "a");
    b.sink(out, "a").edge("quiet", "out", 0);
    let options = RunOptions {
        duration: Some(Duration::from_millis(200)),
        clock: clock.clone(),
        ..RunOptions::default()
    };
    let run = Run::start(b.program, options).expect("starts");
    until(&clock, || gate.holds());
    drive(&run, &clock);
    assert!(gate.holds(), "the source has given nothing");
    gate.open();
}
