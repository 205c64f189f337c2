//! Permitted losses on an edge, and their counters.
use crate::parts::*;
use std::sync::Arc;
use tidemill_engine::clock::ManualClock;
use tidemill_engine::{Run, RunOptions, RunReport};
use tidemill_spec::plan::Freshness;

fn slow_model(freshness: Option<Freshness>, separate: bool) -> (RunReport, Collected) {
    let mut b = Builder::new(&[1.0]);
    b.byte_budget = 1 << 12;
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(400), Some(1000.0), Some(0), 40), "a");
    let slot = if separate { "b" } else { "a" };
    let clock = Arc::new(ManualClock::new());
    let slow = model("m", takes(&clock, 4 * MILLISECOND));
    b.operator("m", slow, slot, &[]).edge_with("src", "m", 0, freshness);
    b.program.plan.stages.last_mut().expect("just added").max_batch = 1;
    b.sink(out, "a").edge("m", "out", 0);
    let options = RunOptions { clock: clock.clone(), ..RunOptions::default() };
    (drive(&Run::start(b.program, options).expect("starts"), &clock), collected)
}

fn drops(report: &RunReport) -> u64 {
    let edges = report.edges.iter().flat_map(|edge| edge.drops.values());
    edges.chain(report.stages.iter().flat_map(|stage| stage.drops.values())).sum()
}

#[test]
fn block_loses_nothing_and_tells_the_lag() {
    for separate in [false, true] {
        let (report, collected) = slow_model(Some(Freshness::Block), separate);
        assert_eq!(collected.lock().expect("not poisoned").len(), 400);
        assert_eq!(drops(&report), 0);
        // 400 records of 4 ms each are due within 0.4 s: the last ones are very late.
        assert!(report.sinks[0].latency.max_ms > 500.0, "{:?}", report.sinks[0].latency);
    }
}

#[test]
fn latest_keeps_up_and_counts_every_drop() {
    for separate in [false, true] {
        let (report, collected) = slow_model(Some(Freshness::Latest), separate);
        let arrived = collected.lock().expect("not poisoned").len() as u64;
        assert!(arrived < 300, "{arrived} arrived");
        assert_eq!(arrived + drops(&report), 400, "{report:#?}");
        assert!(report.sinks[0].latency.p50_ms < 200.0, "{:?}", report.sinks[0].latency);
    }
}

#[test]
fn drop_oldest_bounds_the_queue_and_counts_every_drop() {
    let (report, collected) = slow_model(Some(Freshness::DropOldest), false);
    let arrived = collected.lock().expect("not poisoned").len() as u64;
    assert!(arrived < 400, "{arrived} arrived");
    assert_eq!(arrived + drops(&report), 400, "{report:#?}");
}
