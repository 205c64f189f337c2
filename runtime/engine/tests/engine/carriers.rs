//! Channels over links that stall, lose, reorder and truncate. A delay changes nothing, also while slots die with frames in
//! transit. A wrong frame ends the run with the channel's name before anything wrong is committed.
use crate::parts::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidemill_engine::clock::ManualClock;
use tidemill_engine::faults::Faults;
use tidemill_engine::{Program, Run, RunError, RunOptions};

fn program(is_apart: bool) -> (Program, Vec<Collected>) {
    let mut b = Builder::new(&[0.5, 0.5]);
    b.is_apart = is_apart;
    let (rows, rows_out) = sink("rows");
    let (windows, windows_out) = sink("windows");
    b.source(rows_source("src", numbered(3000), Some(3000.0), Some(0), 40), "a");
    b.operator("f1", pass("f", |_| {}), "b", &[0]).operator("f2", pass("f", |_| {}), "c", &[1]);
    b.operator("w", window("w", 20_000), "d", &[]);
    for stage in ["f1", "f2"] {
        b.edge("src", stage, 0).edge(stage, "w", 0).edge(stage, "rows", 0);
    }
    b.sink(rows, "e").sink(windows, "e").edge("w", "windows", 0);
    (b.program, vec![rows_out, windows_out])
}

struct Outcome {
    result: Result<tidemill_engine::RunReport, RunError>,
    found: Vec<Vec<String>>,
    counts: Arc<FaultCounts>,
}

fn run(is_apart: bool, fault: Fault, from: Option<&'static str>, deaths: Arc<dyn Faults>) -> Outcome {
    run_counted(is_apart, fault, from, deaths, Arc::default())
}

fn run_counted(
    is_apart: bool,
    fault: Fault,
    from: Option<&'static str>,
    deaths: Arc<dyn Faults>,
    counts: Arc<FaultCounts>,
) -> Outcome {
    let clock = Arc::new(ManualClock::new());
    let faults = OnEdges { fault, from, counts: Arc::clone(&counts), deaths };
    let (program, found) = program(is_apart);
    let options =
        RunOptions { clock: clock.clone(), faults: Some(Arc::new(faults)), ..RunOptions::default() };
    let result = outcome(&Run::start(program, options).expect("starts"), &clock);
    assert_eq!(counts.wrong_credits.load(Ordering::Relaxed), 0, "{counts:?}");
    Outcome { result, found: found.iter().map(lines).collect(), counts }
}

#[test]
fn frames_that_are_held_up_change_nothing() {
    for is_apart in APART {
        let expected = run(is_apart, Fault::None, None, Kills::new());
        assert_eq!((expected.counts.all(), expected.found[1].len()), (0, 150));
        for every in [1, 3, 7] {
            let stalled = run(is_apart, Fault::Stall(every), None, Kills::new());
            stalled.result.expect("the run succeeds");
            assert!(stalled.counts.stalled.load(Ordering::Relaxed) > 20, "{:?}", stalled.counts);
            assert!(stalled.found == expected.found, "every {every} frames");
        }
    }
}

/// Frames that a link has not carried are lost with the sender: all of them come again, once and in order.
#[test]
fn frames_that_are_lost_with_their_sender_come_again_once() {
    for is_apart in APART {
        let expected = run(is_apart, Fault::None, None, Kills::new()).found;
        for (slot, from) in [("a", "src"), ("b", "f1"), ("d", "w")] {
            let slot = &format!("{}/{slot}", if is_apart { slot } else { "w" });
            let (kills, counts) = (Kills::new(), Arc::new(FaultCounts::default()));
            for death in 1..=3 {
                let counts = Arc::clone(&counts);
                kills.order(slot, move |seen| {
                    seen.emitted("src") >= 600 * death && counts.held.load(Ordering::Relaxed) > 0
                });
            }
            let again = run_counted(is_apart, Fault::Stall(8), Some(from), kills.clone(), counts);
            kills.check(&again.result.expect("the run succeeds"));
            let lost = again.counts.lost.load(Ordering::Relaxed);
            assert!(lost >= 3, "{lost} frames of '{from}' were on their way when {slot} died three times");
            assert!(again.found == expected, "frames of '{from}'");
        }
    }
}

/// Random deaths on all channels, with and without frames in transit.
#[test]
fn frames_that_are_held_up_while_slots_die_come_once() {
    for is_apart in APART {
        let expected = run(is_apart, Fault::None, None, Kills::new()).found;
        for seed in 0..4 {
            let chaos = Chaos::new(seed, 10, 1, 12_000);
            let again = run(is_apart, Fault::Stall(3), None, chaos.clone());
            let restarts = again.result.expect("the run succeeds").restarts;
            assert_eq!((restarts, chaos.deaths()), (10, 10), "seed {seed}");
            assert!(again.counts.stalled.load(Ordering::Relaxed) > 20, "{:?}", again.counts);
            assert!(again.found == expected, "seed {seed}");
        }
    }
}

#[test]
fn what_arrives_wrongly_ends_the_run_and_is_not_committed() {
    let expected = run(false, Fault::None, None, Kills::new()).found;
    for is_apart in APART {
        for (fault, text) in [
            (Fault::Lose(20), "came instead of"),
            (Fault::Reorder(20), "came instead of"),
            (Fault::Truncate(20), "damaged frame"),
        ] {
            let wrong = run(is_apart, fault, Some("f1"), Kills::new());
            assert!(wrong.counts.all() > 0, "{fault:?} did not happen");
            let error = wrong.result.expect_err("the run must not go on").to_string();
            assert!(error.starts_with("channel f1->") && error.contains(text), "{fault:?}: {error}");
            for (found, expected) in wrong.found.iter().zip(&expected) {
                assert!(found.len() < expected.len() && expected.starts_with(found), "{fault:?}: a gap");
            }
        }
    }
}
