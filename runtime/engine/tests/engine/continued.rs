//! Runs that another process continues: from any checkpoint on, the committed output equals that of an undisturbed run.
use crate::parts::*;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tidemill_engine::clock::{Clock, ManualClock};
use tidemill_engine::{
    Checkpoint, CheckpointWriter, Durability, Past, Program, Run, RunError, RunOptions, StagePast,
};
use tidemill_operators::api::{OperatorError, Source, SourcePosition, SourceRead};

/// Every checkpoint of a run, each with all data written before it.
#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<Vec<(Past, bool)>>>);

impl Kept {
    pub(crate) fn all(&self) -> Vec<(Past, bool)> {
        self.0.lock().expect("not poisoned").clone()
    }
}

impl CheckpointWriter for Kept {
    fn write(&mut self, checkpoint: Checkpoint) -> Result<(), String> {
        let mut kept = self.0.lock().expect("not poisoned");
        let mut past = kept.last().map(|(past, _)| past.clone()).unwrap_or_default();
        let Checkpoint { epoch, elapsed, is_complete, stages, sources, sinks, letters, .. } = checkpoint;
        for (stage, change) in stages {
            let of = past.stages.entry(stage).or_default();
            match change.snapshot {
                Some((epoch, state)) => {
                    *of = StagePast { snapshot: (epoch, state.to_vec()), calls: vec![change.calls] };
                }
                None => of.calls.push(change.calls),
            }
        }
        past = Past { epoch, elapsed, sources, sinks, letters, ..past };
        kept.push((past, is_complete));
        Ok(())
    }
}

pub(crate) fn options(clock: &Arc<ManualClock>, kept: &Kept, past: Option<Past>) -> RunOptions {
    let interval = Duration::from_millis(1);
    let durability = Durability { writer: Box::new(kept.clone()), past, interval };
    RunOptions { clock: clock.clone(), durability: Some(durability), ..RunOptions::default() }
}

/// Runs a program to its end, with its initial state and the initial content of its sink.
fn lines_of(
    make: &dyn Fn() -> (Program, Collected),
    before: &[String],
    past: Option<Past>,
) -> (Vec<String>, Kept) {
    let (program, collected) = make();
    collected.lock().expect("not poisoned").extend_from_slice(before);
    let (clock, kept) = (Arc::new(ManualClock::new()), Kept::default());
    let run = Run::start(program, options(&clock, &kept, past)).expect("starts");
    let report = drive(&run, &clock);
    assert!(report.complete);
    (lines(&collected), kept)
}

/// Continues every checkpoint of a run; later output is still present.
fn continues(make: &dyn Fn() -> (Program, Collected), least: usize) {
    let (expected, kept) = lines_of(make, &[], None);
    let all = kept.all();
    assert!(all.len() >= least, "{} checkpoints", all.len());
    assert!(all.iter().rev().skip(1).all(|(_, is_complete)| !is_complete) && all[all.len() - 1].1);
    for (past, _) in all.iter().filter(|(_, is_complete)| !is_complete).step_by(all.len().div_ceil(12)) {
        let mut before = expected.clone();
        before.push("more than was committed".to_owned());
        let (found, _) = lines_of(make, &before, Some(past.clone()));
        assert!(found == expected, "from epoch {}: {} lines for {}", past.epoch, found.len(), expected.len());
    }
}

fn paced() -> (Program, Collected) {
    let mut b = Builder::new(&[0.5, 0.5]);
    let (out, collected) = sink("out");
    b.source(rows_source("left", numbered(1200), Some(1000.0), Some(0), 40), "a");
    b.source(rows_source("right", numbered(1200), Some(1000.0), Some(0), 40), "b");
    b.operator("m", model("m", |_| {}), "c", &[0]);
    b.operator("m-2", model("m", |_| {}), "d", &[1]);
    b.edge("left", "m", 0).edge("left", "m-2", 0);
    b.operator("j", join("j", 100_000), "e", &[]);
    b.edge("m", "j", 0).edge("m-2", "j", 0).edge("right", "j", 1);
    b.operator("w", window("w", 10_000), "f", &[]).edge("j", "w", 0);
    b.sink(out, "g").edge("w", "out", 0);
    (b.program, collected)
}

#[test]
fn a_paced_run_with_routes_a_join_and_a_window() {
    continues(&paced, 10);
}

/// They cut their epochs together, by event time.
fn side_by_side() -> (Program, Collected) {
    let rows = |n: i64, step: i64| -> Vec<Row> {
        (0..n).map(|i| Row { key: format!("k{:03}", i % 50), value: i, time: i * step }).collect()
    };
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    b.source(rows_source("left", rows(60_000, 1000), None, Some(0), 500), "a");
    b.source(rows_source("right", rows(20_000, 3000), None, Some(0), 300), "b");
    b.operator("j", join("j", 10_000), "c", &[]);
    b.edge("left", "j", 0).edge("right", "j", 1);
    b.operator("w", window("w", 500_000), "d", &[]).edge("j", "w", 0);
    b.sink(out, "d").edge("w", "out", 0);
    (b.program, collected)
}

#[test]
fn sources_that_are_read_side_by_side() {
    continues(&side_by_side, 3);
}

/// A stopped run keeps windows open, and another one continues.
#[test]
fn a_run_that_is_stopped_is_continued() {
    let (expected, _) = lines_of(&paced, &[], None);
    let (mut past, mut before, mut stops) = (None, Vec::new(), 0);
    loop {
        let (program, collected) = paced();
        collected.lock().expect("not poisoned").extend(before);
        let (clock, kept) = (Arc::new(ManualClock::new()), Kept::default());
        let old = past.clone();
        if let Some(old) = past {
            kept.0.lock().expect("not poisoned").push((old, false));
        }
        let run = Run::start(program, options(&clock, &kept, old)).expect("starts");
        let begun = kept.all().len();
        passes(&clock, 1_000_000, || {
            let kept = kept.all();
            kept.len() >= begun + 3 || kept.last().is_some_and(|(_, is_complete)| *is_complete)
        });
        run.stopper().stop();
        let report = drive(&run, &clock);
        before = lines(&collected);
        let (last, is_complete) = kept.all().pop().expect("there are checkpoints");
        past = Some(last);
        assert_eq!(report.complete, is_complete);
        if is_complete {
            break;
        }
        stops += 1;
    }
    assert!(stops >= 3, "{stops} stops");
    assert_eq!(before, expected);
}

#[test]
fn what_cannot_be_read_again_is_refused() {
    let (mut program, _) = paced();
    program.sources.get_mut("left").expect("it is there").stream = Some("standard input".into());
    let (clock, kept) = (Arc::new(ManualClock::new()), Kept::default());
    let refused = Run::start(program, options(&clock, &kept, None)).err().expect("refused");
    assert!(
        matches!(&refused, RunError::Plan(text) if text.contains("'left' reads standard input")),
        "{refused}"
    );
}

/// Has space for this number.
struct Full(u32);

impl CheckpointWriter for Full {
    fn write(&mut self, _: Checkpoint) -> Result<(), String> {
        let left = self.0.checked_sub(1);
        left.map(|left| self.0 = left).ok_or_else(|| "no space left".into())
    }
}

#[test]
fn a_run_that_cannot_keep_checkpoints_fails_after_a_while() {
    for (space, fails_at) in [(3, 30_000_000_000), (0, 0)] {
        let mut b = Builder::new(&[1.0]);
        let (out, collected) = sink("out");
        b.source(rows_source("src", numbered(40_000), Some(1000.0), Some(0), 40), "a");
        b.sink(out, "b").edge("src", "out", 0);
        let clock = Arc::new(ManualClock::new());
        let interval = Duration::from_millis(100);
        let durability = Durability { writer: Box::new(Full(space)), past: None, interval };
        let options =
            RunOptions { clock: clock.clone(), durability: Some(durability), ..RunOptions::default() };
        let run = Run::start(b.program, options).expect("starts");
        let failed = outcome(&run, &clock).expect_err("it fails");
        assert!(failed.to_string().contains("no space left"), "{failed}");
        assert!(clock.now() >= fails_at, "at {}", clock.now());
        assert_eq!(lines(&collected).is_empty(), space == 0, "before the first one nothing is read");
    }
}

/// Emits its rows, then waits for permission to end.
struct Silent {
    inner: Box<dyn Source>,
    may_end: Arc<(Mutex<bool>, Condvar)>,
}

impl Source for Silent {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        let read = self.inner.read(rows, bytes)?;
        if matches!(read, SourceRead::End) {
            let (may_end, changed) = &*self.may_end;
            let held = may_end.lock().expect("not poisoned");
            drop(changed.wait_while(held, |may_end| !*may_end).expect("not poisoned"));
        }
        Ok(read)
    }

    fn position(&self) -> SourcePosition {
        self.inner.position()
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        self.inner.seek(position)
    }
}

/// All rows of a source are durable before the next checkpoint is due, although nothing more happens.
#[test]
fn what_a_source_gave_that_is_silent_is_in_a_checkpoint() {
    let mut b = Builder::new(&[1.0]);
    let (out, _) = sink("out");
    let may_end = Arc::new((Mutex::new(false), Condvar::new()));
    let mut source = rows_source("src", numbered(200), Some(1000.0), Some(0), 40);
    let (make, gate) = (Arc::clone(&source.make), Arc::clone(&may_end));
    source.make = Arc::new(move || Ok(Box::new(Silent { inner: make()?, may_end: Arc::clone(&gate) })));
    b.source(source, "a");
    b.sink(out, "b").edge("src", "out", 0);
    let kept = Kept::default();
    let durability =
        Durability { writer: Box::new(kept.clone()), past: None, interval: Duration::from_millis(500) };
    let options = RunOptions { durability: Some(durability), ..RunOptions::default() };
    let run = Run::start(b.program, options).expect("starts");
    let has_checkpoint = (0..10_000).any(|_| {
        assert!(run.wait_for(Duration::from_millis(2)).is_none(), "its source has not ended");
        kept.all().iter().any(|(past, _)| past.epoch > 0)
    });
    let (last, is_complete) = kept.all().pop().expect("the first one is there at once");
    assert!(has_checkpoint && !is_complete, "epoch {}", last.epoch);
    *may_end.0.lock().expect("not poisoned") = true;
    may_end.1.notify_all();
    let report = run.wait_for(Duration::from_secs(60)).expect("it ends").expect("well");
    assert!(report.complete);
}
