//! Slots die at random points while windows and joins run; the results equal those of the undisturbed run.
//! `TIDEMILL_CHAOS_ROUNDS` sets the number of deaths (default 40).
use crate::parts::*;
use arrow_array::RecordBatch;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tidemill_engine::clock::ManualClock;
use tidemill_engine::faults::Point;
use tidemill_engine::{Program, Run, RunOptions};
use tidemill_operators::api::*;

const ROWS: usize = 6000;

fn program(is_apart: bool, rate: f64) -> (Program, Vec<Collected>) {
    let mut b = Builder::new(&[0.4, 0.6]);
    b.is_apart = is_apart;
    let (pairs, pairs_out) = sink("pairs");
    let (windows, windows_out) = sink("windows");
    b.source(rows_source("left", numbered(ROWS), Some(rate), Some(0), 64), "s1");
    b.source(rows_source("right", numbered(ROWS), Some(rate), Some(0), 64), "s2");
    b.operator("f1", pass("f", |_| {}), "a", &[0]).operator("f2", pass("f", |_| {}), "b", &[1]);
    b.operator("m", model("m", |_| {}), "c", &[]);
    b.edge("left", "f1", 0).edge("left", "f2", 0).edge("right", "m", 0);
    b.operator("j1", join("j", 0), "d", &[0]).operator("j2", join("j", 0), "e", &[1]);
    for (from, to, port) in [("f1", "j1", 0), ("f2", "j2", 0), ("m", "j1", 1), ("m", "j2", 1)] {
        b.edge(from, to, port);
    }
    b.operator("w", window("w", 50_000), "g", &[]).edge("j1", "w", 0).edge("j2", "w", 0);
    b.sink(pairs, "x").edge("j1", "pairs", 0).edge("j2", "pairs", 0);
    b.sink(windows, "g").edge("w", "windows", 0);
    (b.program, vec![pairs_out, windows_out])
}

/// Number of deaths in each of the long tests.
fn kills() -> u64 {
    std::env::var("TIDEMILL_CHAOS_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(40)
}

/// Deaths in one run.
const TIMES: u64 = 10;

fn disturbed(is_apart: bool, seed: u64) {
    let rounds = (kills() / 2).div_ceil(TIMES);
    let disturbance = Disturbance { rounds, times: TIMES, together: 1, seed: 1000 * seed };
    let deaths = survives(|| program(is_apart, 4000.0), RunOptions::default, disturbance);
    println!("deaths: {deaths:?}");
    assert_eq!(deaths.values().sum::<u64>(), rounds * TIMES);
    for kind in ["emitted", "committing"] {
        assert!(deaths.contains_key(kind), "none at a point '{kind}': {deaths:?}");
    }
}

#[test]
fn recovery_of_random_slots_in_process() {
    disturbed(false, 1);
}

#[test]
fn recovery_of_random_slots_of_several_workers() {
    disturbed(true, 2);
}

#[test]
fn recovery_of_one_slot_with_everything_in_it() {
    let build = || {
        let (mut program, found) = program(false, 4000.0);
        program.plan.stages.iter_mut().for_each(|stage| stage.slot_group = "all".into());
        (program, found)
    };
    let deaths =
        survives(build, RunOptions::default, Disturbance { rounds: 1, times: 10, together: 1, seed: 3 });
    assert_eq!(deaths.values().sum::<u64>(), 10);
}

/// A slot that dies repeatedly while it is restored is restored in the end.
#[test]
fn recovery_of_a_slot_that_dies_while_it_recovers() {
    let run = |kills: &Arc<Kills>| {
        let clock = Arc::new(ManualClock::new());
        let (program, found) = program(false, 4000.0);
        let options =
            RunOptions { clock: clock.clone(), faults: Some(kills.clone()), ..RunOptions::default() };
        let report = kills.drive(&Run::start(program, options).expect("starts"), &clock);
        (found.iter().map(lines).collect::<Vec<_>>(), report.restarts)
    };
    let kills = Kills::new();
    kills.order("w/g", |seen| seen.emitted("j1") > 1000 && matches!(seen.point, Point::Snapshot { .. }));
    for _ in 0..3 {
        kills.order("w/g", |seen| matches!(seen.point, Point::Restoring { .. }));
    }
    let ((found, restarts), (expected, _)) = (run(&kills), run(&Kills::new()));
    assert_eq!(restarts, 4);
    assert!(found == expected);
}

/// Keeps 256 bytes of every row and records the size of its snapshots.
struct Growing {
    rows: usize,
    snapshots: Arc<Mutex<Vec<usize>>>,
    /// Counter of received rows, if any; the first snapshot then lasts until twice as many rows have come.
    slow: Option<Arc<AtomicUsize>>,
    is_captured: bool,
}

impl Stateful for Growing {
    fn apply(
        &mut self,
        _port: usize,
        batch: &RecordBatch,
        _output: &mut Output,
    ) -> Result<(), OperatorError> {
        self.rows += batch.num_rows();
        if let Some(come) = &self.slow {
            come.store(self.rows, Ordering::Release);
        }
        Ok(())
    }
    fn advance(&mut self, _watermark: i64, _output: &mut Output) -> Result<(), OperatorError> {
        Ok(())
    }
    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        self.snapshots.lock().expect("not poisoned").push(self.rows * 256);
        Ok(vec![0; self.rows * 256])
    }
    fn capture(&mut self) -> Result<WriteSnapshot, OperatorError> {
        let (rows, snapshots) = (self.rows, Arc::clone(&self.snapshots));
        let slow = self.slow.clone().filter(|_| !std::mem::replace(&mut self.is_captured, true));
        Ok(Box::new(move || {
            while slow.as_ref().is_some_and(|come| come.load(Ordering::Acquire) < 2 * rows) {
                std::thread::yield_now();
            }
            snapshots.lock().expect("not poisoned").push(rows * 256);
            Ok(vec![0; rows * 256])
        }))
    }
    fn state_bytes(&self) -> usize {
        self.rows * 256
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), OperatorError> {
        self.rows = snapshot.len() / 256;
        Ok(())
    }
}

/// Bytes of the snapshots of a state that grows with every record.
fn snapshots(restart: bool, slow: Option<Arc<AtomicUsize>>) -> Arc<Mutex<Vec<usize>>> {
    let mut b = Builder::new(&[1.0]);
    let (out, _) = sink("out");
    let snapshots = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&snapshots);
    let growing = operator("growing", Computation::Stateful, move || {
        let (snapshots, slow) = (Arc::clone(&seen), slow.clone());
        Instance::Stateful(Box::new(Growing { rows: 0, snapshots, slow, is_captured: false }))
    });
    b.source(rows_source("src", numbered(100_000), None, Some(0), 40), "a");
    b.operator("growing", BoundOperator { spread: Spread::One, ..growing }, "a", &[]);
    b.edge("src", "growing", 0).sink(out, "a").edge("growing", "out", 0);
    if restart {
        b.restart_on_panic("growing");
    }
    assert!(wait(&Run::start(b.program, RunOptions::default()).expect("starts")).complete);
    snapshots
}

#[test]
fn what_nothing_restarts_takes_no_snapshots() {
    assert!(snapshots(false, None).lock().expect("not poisoned").is_empty());
}

#[test]
fn snapshots_of_a_growing_state_do_not_cost_its_square() {
    let snapshots = snapshots(true, None).lock().expect("not poisoned").clone();
    let (all, last) = (snapshots.iter().sum::<usize>(), snapshots.last().copied().unwrap_or(0));
    assert!(last > 500_000, "{snapshots:?}");
    assert!(all < 3 * last, "{snapshots:?}");
}

/// The first large snapshot is not done before twice its number of rows have arrived: they arrive all the same.
#[test]
fn a_stage_goes_on_while_its_state_is_written() {
    let come = Arc::new(AtomicUsize::new(0));
    let snapshots = snapshots(true, Some(Arc::clone(&come)));
    assert_eq!(come.load(Ordering::Acquire), 100_000);
    let is_there = || snapshots.lock().expect("not poisoned").iter().any(|bytes| *bytes >= 64 << 10);
    while !is_there() {
        std::thread::yield_now();
    }
}
