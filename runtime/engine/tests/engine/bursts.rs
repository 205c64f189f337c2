//! Operators with more results than fit into one epoch.
use crate::parts::*;
use arrow_array::RecordBatch;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tidemill_engine::clock::ManualClock;
use tidemill_engine::{Program, Run, RunOptions};
use tidemill_operators::api::*;

/// A sink that records the most rows of one commit, and waits at a gate once it has committed a tenth.
struct Measured {
    staged: Vec<String>,
    committed: Collected,
    largest: Arc<AtomicUsize>,
    gate: Option<Arc<Gate>>,
}

impl Sink for Measured {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        self.staged.extend(keys(batch));
        Ok(())
    }
    fn commit(&mut self, _epoch: u64) -> Result<(), OperatorError> {
        self.largest.fetch_max(self.staged.len(), Ordering::AcqRel);
        let committed = {
            let mut committed = self.committed.lock().expect("not poisoned");
            committed.append(&mut self.staged);
            committed.len()
        };
        if let Some(gate) = self.gate.as_ref().filter(|_| committed >= WINDOWS / 10) {
            gate.pass();
        }
        Ok(())
    }
    fn rollback(&mut self) -> Result<(), OperatorError> {
        self.staged.clear();
        Ok(())
    }
    fn close(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }
    fn exactly_once(&self) -> bool {
        true
    }
}

const WINDOWS: usize = 3000;
/// Results of one epoch.
const MOST: usize = 20;
/// Epochs from checkpoint to checkpoint, as in the builder.
const EVERY: usize = 5;

/// Sends `rows` through windows of one row each to a measured sink; followed by a second window if `chained`.
fn bursts(
    rows: Vec<Row>,
    out_of_order: i64,
    is_apart: bool,
    slots: [&str; 3],
    chained: bool,
    gate: Option<&Arc<Gate>>,
) -> (Program, Collected, Arc<AtomicUsize>) {
    let (b, committed, largest) = building(rows, out_of_order, is_apart, slots, chained, gate);
    (b.program, committed, largest)
}

fn building(
    rows: Vec<Row>,
    out_of_order: i64,
    is_apart: bool,
    slots: [&str; 3],
    chained: bool,
    gate: Option<&Arc<Gate>>,
) -> (Builder, Collected, Arc<AtomicUsize>) {
    let mut b = Builder::new(&[1.0]);
    b.is_apart = is_apart;
    b.byte_budget = 1 << 12;
    let (committed, largest) = (Collected::default(), Arc::new(AtomicUsize::new(0)));
    let (mut out, _) = sink("out");
    let gate = gate.cloned();
    let (sink_committed, sink_largest) = (Arc::clone(&committed), Arc::clone(&largest));
    out.make = Arc::new(move || {
        let (committed, largest) = (Arc::clone(&sink_committed), Arc::clone(&sink_largest));
        Ok(Box::new(Measured { staged: vec![], committed, largest, gate: gate.clone() }))
    });
    b.source(rows_source("src", rows, None, Some(out_of_order), 200), slots[0]);
    b.operator("w", window_in_parts("w", 1000, MOST), slots[1], &[]).edge("src", "w", 0);
    if chained {
        b.operator("v", window_in_parts("v", 1000, MOST / 2), slots[2], &[]).edge("w", "v", 0);
    }
    b.sink(out, slots[2]).edge(if chained { "v" } else { "w" }, "out", 0);
    (b, committed, largest)
}

fn expected(windows: impl Iterator<Item = usize>) -> Vec<String> {
    windows.map(|i| format!("w{i:06}")).collect()
}

/// No window closes before the end; then all close at once.
#[test]
fn results_of_the_end_are_spread_over_epochs() {
    let (program, committed, largest) =
        bursts(numbered(WINDOWS), 1 << 40, false, ["a", "a", "a"], false, None);
    ended(&Run::start(program, RunOptions::default()).expect("starts"), 30);
    assert_eq!(*committed.lock().expect("not poisoned"), expected(0..WINDOWS));
    let largest = largest.load(Ordering::Acquire);
    assert!((1..=MOST * EVERY).contains(&largest), "{largest} rows in one commit");
}

/// A gap in the data closes everything before it; the rows after it come while results still wait.
#[test]
fn results_of_a_gap_are_spread_over_the_epochs_behind_it() {
    let gap = 1 << 42;
    let mut rows = numbered(WINDOWS);
    rows.extend(numbered(WINDOWS).into_iter().map(|row| Row { time: row.time + gap, ..row }));
    let after = (gap / 1000) as usize;
    let (program, committed, _) = bursts(rows, 1 << 40, false, ["a", "a", "a"], false, None);
    ended(&Run::start(program, RunOptions::default()).expect("starts"), 30);
    let found = committed.lock().expect("not poisoned").clone();
    assert_eq!(found.len(), 2 * WINDOWS);
    assert_eq!(found[..WINDOWS], expected(0..WINDOWS));
    assert_eq!(found[WINDOWS], format!("w{:06}", after));
}

#[test]
fn results_that_wait_survive_a_restart() {
    for (is_apart, killed, chained) in
        [(false, "w/b", false), (true, "c/c", false), (false, "w/b", true), (false, "w/c", true)]
    {
        let slots = ["a", "b", "c"];
        let (program, committed, _) = bursts(numbered(WINDOWS), 1 << 40, is_apart, slots, chained, None);
        let kills = Kills::new();
        for part in [WINDOWS / 10, WINDOWS / 2] {
            let committed = Arc::clone(&committed);
            // Each slot is killed by its own progress: the progress of the other may come after its last turn.
            kills.order(killed, move |seen| match killed {
                "w/b" => seen.emitted("w") >= part as u64,
                _ => lines(&committed).len() >= part,
            });
        }
        let options = RunOptions { faults: Some(kills.clone()), ..RunOptions::default() };
        kills.check(&ended(&Run::start(program, options).expect("starts"), 30));
        assert_eq!(lines(&committed), expected(0..WINDOWS), "{killed} {chained}");
    }
}

/// An operator that signals when its slot is gone.
struct Watch(Arc<AtomicBool>);

impl Stateless for Watch {
    fn process(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        output.push(batch.clone());
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A stop ends the sources; an abort ends the run between two epochs, without waiting for the results. Slots get the
/// command in order: once the second is gone, the first, which waits at the gate, has it.
#[test]
fn an_abort_is_heeded_while_results_wait() {
    let (clock, gate, gone) = (ManualClock::new(), Gate::closed(), Arc::new(AtomicBool::new(false)));
    let (mut b, committed, _) =
        building(numbered(WINDOWS), 1 << 40, false, ["a", "a", "a"], false, Some(&gate));
    let (mut passing, watch) = (pass("passing", |_| {}), Arc::clone(&gone));
    passing.make = Arc::new(move || Ok(Instance::Stateless(Box::new(Watch(Arc::clone(&watch))))));
    b.source(rows_source("slow", numbered(WINDOWS), Some(1.0), None, 1), "b");
    b.operator("passing", passing, "b", &[]).edge("slow", "passing", 0);
    b.sink(nowhere("last"), "b").edge("passing", "last", 0);
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    until(&clock, || gate.holds());
    assert!(!gone.load(Ordering::Acquire));
    run.stopper().abort();
    until(&clock, || gone.load(Ordering::Acquire));
    gate.open();
    let report = ended(&run, 10);
    assert!(!report.complete);
    let found = committed.lock().expect("not poisoned").len();
    assert!(
        (WINDOWS / 10..WINDOWS).contains(&found),
        "{found} of {WINDOWS} results were given before it ended"
    );
}
