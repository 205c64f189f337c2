//! Latency counts to the moment at which readers of the sink can see a row.
use crate::parts::*;
use std::sync::Arc;
use tidemill_engine::clock::ManualClock;
use tidemill_engine::{Run, RunOptions, RunReport};
use tidemill_spec::publication::Publication;

/// Rows, one a millisecond; an epoch is 10 ms, a checkpoint 50 ms.
const ROWS: u64 = 300;

/// Rows visible to readers once everything due `at` ms after the start has reached the sink: those of groups whose last row
/// is among them.
fn visible(publication: Publication, at: u64) -> u64 {
    match publication {
        Publication::OnArrival => at + 1,
        Publication::EachEpoch => (at + 1) / 10 * 10,
        Publication::EachCheckpoint => (at + 1) / 50 * 50,
        Publication::AtEnd => 0,
    }
}

/// Runs on a clock that advances by a millisecond once all consequences of the previous time have happened. The slot of the
/// sink is killed after `kill_at` milliseconds.
fn run(is_apart: bool, publication: Publication, kill_at: Option<u64>) -> RunReport {
    let clock = Arc::new(ManualClock::new());
    let mut b = Builder::new(&[1.0]);
    b.is_apart = is_apart;
    let (out, collected) = sink_that_publishes("out", publication, |_| {});
    b.source(rows_source("src", numbered(ROWS as usize), Some(1000.0), Some(0), 40), "a");
    b.sink(out, "b").edge("src", "out", 0);
    let kills = Kills::new();
    let options = RunOptions { clock: clock.clone(), faults: Some(kills.clone()), ..RunOptions::default() };
    let run = Run::start(b.program, options).expect("starts");
    let metrics = run.observer().sink("out").expect("it is there");
    let mut again = 0;
    // The last row is due when the clock stands at its time; then the run ends.
    for at in 0..ROWS - 1 {
        let seen = || metrics.records.load(std::sync::atomic::Ordering::Relaxed);
        until(&clock, || {
            seen() == at + 1 + again && metrics.latency.summary().count == visible(publication, at)
        });
        // Rows that were shown before are committed with their epoch.
        if !matches!(publication, Publication::AtEnd | Publication::OnArrival) {
            let shown = collected.lock().expect("not poisoned").len() as u64;
            assert_eq!(shown, visible(publication, at), "{publication:?} at {at} ms");
        }
        if kill_at == Some(at) {
            kills.kill(if is_apart { "b/b" } else { "w/b" }, &clock);
            again = at + 1 - collected.lock().expect("not poisoned").len() as u64;
            assert!(again > 0, "something was rolled back");
        }
        clock.advance(MILLISECOND);
    }
    // Time stands still: rows published at the end are visible now.
    let report = ended(&run, 30);
    kills.check(&report);
    assert_eq!(sorted(&collected).len() as u64, ROWS);
    report
}

/// `(p50, max)` in whole milliseconds. The last row of a group does not wait, the first one waits for all others.
fn milliseconds(report: &RunReport) -> (u64, u64) {
    let latency = &report.sinks[0].latency;
    assert_eq!(latency.count, ROWS);
    // Repeated rows arrive again.
    let arrival = report.sinks[0].arrival;
    assert!(report.restarts > 0 || arrival.max_ms < 0.01, "{arrival:?}");
    (latency.p50_ms.round() as u64, latency.max_ms.round() as u64)
}

#[test]
fn rows_wait_for_nothing_the_checkpoint_the_epoch_or_the_end() {
    for is_apart in APART {
        let report = run(is_apart, Publication::EachCheckpoint, None);
        assert_eq!(milliseconds(&report), (24, 49));
        let report = run(is_apart, Publication::EachEpoch, None);
        assert_eq!(milliseconds(&report), (4, 9));
        let report = run(is_apart, Publication::OnArrival, None);
        assert_eq!(milliseconds(&report), (0, 0));
        let report = run(is_apart, Publication::AtEnd, None);
        assert_eq!(milliseconds(&report), (149, 299));
        assert_eq!(report.sinks[0].publication, Publication::AtEnd);
    }
}

/// Waiting rows are rolled back and repeated: each counts once, from its due time.
#[test]
fn rows_that_come_again_count_once() {
    for is_apart in APART {
        let report = run(is_apart, Publication::EachCheckpoint, Some(70));
        assert_eq!((milliseconds(&report), report.restarts), ((24, 49), 1));
        let report = run(is_apart, Publication::AtEnd, Some(70));
        assert_eq!((milliseconds(&report), report.restarts), ((149, 299), 1));
        // Of the rows repeated since the previous checkpoint, at 50 ms, readers have seen all until 70 ms.
        let report = run(is_apart, Publication::EachEpoch, Some(73));
        assert_eq!((milliseconds(&report), report.restarts), ((4, 9), 1));
    }
}
