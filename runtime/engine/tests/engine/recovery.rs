//! Slots die at random moments while windows and joins run; the results equal the undisturbed run's.
//! `TIDEMILL_CHAOS_ROUNDS` sets the number of kills (default 50).
use crate::parts::*;
use arrow_array::RecordBatch;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidemill_engine::{Program, Run, RunOptions};
use tidemill_operators::api::*;
use tidemill_spec::plan::LinkKind;

const ROWS: usize = 6000;

fn program(link: LinkKind, rate: f64) -> (Program, Collected, Collected) {
    let mut b = Builder::new(link, &[0.4, 0.6]);
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
    (b.program, pairs_out, windows_out)
}

/// A small generator, so that a failing round can be told by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

fn kills() -> u64 {
    std::env::var("TIDEMILL_CHAOS_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(50)
}

fn disturbed(link: LinkKind, seed: u64) {
    let (undisturbed, pairs, windows) = program(link, 4000.0);
    wait(&Run::start(undisturbed, killable()).expect("starts"));
    assert_eq!(pairs.lock().expect("not poisoned").len(), ROWS);

    let mut random = Random(seed);
    let mut killed = 0;
    while killed < kills() / 2 {
        let (program, pairs_again, windows_again) = program(link, 4000.0);
        let run = Run::start(program, killable()).expect("starts");
        let slots = run.slots().to_vec();
        let mut done = None;
        while killed < kills() / 2 && done.is_none() {
            done = run.wait_for(Duration::from_millis(5 + random.below(50)));
            if done.is_none() {
                run.kill_slot(&slots[random.below(slots.len() as u64) as usize]);
                killed += 1;
            }
        }
        match done {
            Some(result) => assert!(result.expect("succeeds").complete),
            None => assert!(wait(&run).complete),
        }
        // Not only the same records: the same order, for a reader of the file must not see a difference.
        let of = |collected: &Collected| collected.lock().expect("not poisoned").clone();
        assert_eq!(of(&pairs_again), of(&pairs), "seed {seed}");
        assert_eq!(of(&windows_again), of(&windows), "seed {seed}");
    }
}

#[test]
fn recovery_of_random_slots_in_process() {
    disturbed(LinkKind::InProcess, 1);
}

#[test]
fn recovery_of_random_slots_over_memfd() {
    disturbed(LinkKind::Memfd, 2);
}

#[test]
fn recovery_of_one_slot_with_everything_in_it() {
    let (undisturbed, pairs, windows) = program(LinkKind::InProcess, 4000.0);
    wait(&Run::start(undisturbed, killable()).expect("starts"));
    let (mut program, pairs_again, windows_again) = program(LinkKind::InProcess, 4000.0);
    program.plan.stages.iter_mut().for_each(|stage| stage.slot_group = "all".into());
    let run = Run::start(program, killable()).expect("starts");
    assert_eq!(run.slots(), ["w/all"]);
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(60));
        run.kill_slot("w/all");
    }
    assert!(wait(&run).restarts >= 9);
    let of = |collected: &Collected| collected.lock().expect("not poisoned").clone();
    assert_eq!(of(&pairs_again), of(&pairs));
    assert_eq!(of(&windows_again), of(&windows));
}

/// Keeps 256 bytes of every row and tells how large its snapshots were.
struct Growing {
    rows: usize,
    snapshots: Arc<Mutex<Vec<usize>>>,
}

impl Stateful for Growing {
    fn apply(
        &mut self,
        _port: usize,
        batch: &RecordBatch,
        _output: &mut Output,
    ) -> Result<(), OperatorError> {
        self.rows += batch.num_rows();
        Ok(())
    }
    fn advance(&mut self, _watermark: i64, _output: &mut Output) -> Result<(), OperatorError> {
        Ok(())
    }
    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        self.snapshots.lock().expect("not poisoned").push(self.rows * 256);
        Ok(vec![0; self.rows * 256])
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), OperatorError> {
        self.rows = snapshot.len() / 256;
        Ok(())
    }
}

/// Bytes of the snapshots that are taken of a state that grows with every record.
fn snapshots(restart: bool) -> Vec<usize> {
    let mut b = Builder::new(LinkKind::InProcess, &[1.0]);
    let (out, _) = sink("out");
    let snapshots = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&snapshots);
    let growing = operator("growing", Computation::Stateful, move || {
        Instance::Stateful(Box::new(Growing { rows: 0, snapshots: Arc::clone(&seen) }))
    });
    b.source(rows_source("src", numbered(100_000), None, Some(0), 40), "a");
    b.operator("growing", BoundOperator { spread: Spread::One, ..growing }, "a", &[]);
    b.edge("src", "growing", 0).sink(out, "a").edge("growing", "out", 0);
    if restart {
        b.restart_on_panic("growing");
    }
    assert!(wait(&Run::start(b.program, RunOptions::default()).expect("starts")).complete);
    let taken = snapshots.lock().expect("not poisoned");
    taken.clone()
}

#[test]
fn what_nothing_restarts_takes_no_snapshots() {
    assert_eq!(snapshots(false), Vec::<usize>::new());
}

#[test]
fn snapshots_of_a_growing_state_do_not_cost_its_square() {
    let snapshots = snapshots(true);
    let (all, last) = (snapshots.iter().sum::<usize>(), snapshots.last().copied().unwrap_or(0));
    assert!(last > 500_000, "{snapshots:?}");
    assert!(all < 3 * last, "{snapshots:?}");
}
