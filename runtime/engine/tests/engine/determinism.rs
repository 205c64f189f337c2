//! Windows and joins give equal results for any arrival order within the bound, any speed, any batch size; a replay of
//! logged epochs is bit-equal.
use crate::parts::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tidemill_engine::{Run, RunOptions};

/// Rows in event-time order, and in arrival order: each at most `bound` late.
fn arrivals() -> impl Strategy<Value = (Vec<Row>, Vec<Row>, i64)> {
    (1usize..120, 0i64..50_000).prop_flat_map(|(n, bound)| {
        let row = (0..12u8, 0..1000i64, 0..300_000i64, 0..=bound);
        proptest::collection::vec(row, n).prop_map(move |rows| {
            let rows: Vec<(Row, i64)> = rows
                .into_iter()
                .map(|(key, value, time, delay)| (Row { key: format!("k{key}"), value, time }, time + delay))
                .collect();
            let mut by_arrival = rows.clone();
            by_arrival.sort_by_key(|(_, arrival)| *arrival);
            let arriving = by_arrival.into_iter().map(|(row, _)| row).collect();
            (rows.into_iter().map(|(row, _)| row).collect(), arriving, bound)
        })
    })
}

fn reference_windows(rows: &[Row], size: i64) -> Vec<String> {
    let mut windows: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
    for row in rows {
        let window = windows.entry(row.time.div_euclid(size)).or_default();
        *window = (window.0 + 1, window.1 + row.value);
    }
    windows.iter().map(|(w, (count, sum))| format!("w{w:06}={}", count * 1_000_000_000 + sum)).collect()
}

fn reference_pairs(left: &[Row], right: &[Row], within: i64) -> Vec<String> {
    let mut pairs = Vec::new();
    for l in left {
        for r in right.iter().filter(|r| r.key == l.key && (l.time - r.time).abs() <= within) {
            pairs.push(format!("{}={}", l.key, l.value * 1_000_000 + r.value));
        }
    }
    pairs.sort();
    pairs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 12, max_shrink_iters: 40, ..ProptestConfig::default() })]

    #[test]
    fn results_do_not_depend_on_arrival_speed_or_batches(
        (left, left_arriving, left_bound) in arrivals(),
        (right, right_arriving, right_bound) in arrivals(),
        within in 0i64..40_000,
        chunks in (1usize..70, 1usize..70),
        rates in (prop_oneof![Just(None), (2_000.0..50_000.0f64).prop_map(Some)],
                  prop_oneof![Just(None), (2_000.0..50_000.0f64).prop_map(Some)]),
        is_apart in any::<bool>(),
        one_slot in any::<bool>(),
    ) {
        let mut b = Builder::new(&[0.5, 0.5]);
        b.is_apart = is_apart && !one_slot;
        let (pairs, pairs_out) = sink("pairs");
        let (windows, windows_out) = sink("windows");
        b.source(rows_source("left", left_arriving, rates.0, Some(left_bound), chunks.0), "a");
        b.source(rows_source("right", right_arriving, rates.1, Some(right_bound), chunks.1), "b");
        b.operator("m", model("m", |_| {}), "a", &[]).edge("left", "m", 0);
        b.operator("j1", join("j", within), "c", &[0]).operator("j2", join("j", within), "d", &[1]);
        for (from, to, port) in [("m", "j1", 0), ("m", "j2", 0), ("right", "j1", 1), ("right", "j2", 1)] {
            b.edge(from, to, port);
        }
        b.operator("w", window("w", 20_000), "c", &[]).edge("m", "w", 0);
        b.sink(pairs, "b").edge("j1", "pairs", 0).edge("j2", "pairs", 0);
        b.sink(windows, "d").edge("w", "windows", 0);
        if one_slot {
            b.program.plan.stages.iter_mut().for_each(|stage| stage.slot_group = "one".into());
        }
        wait(&Run::start(b.program, RunOptions::default()).expect("starts"));
        prop_assert_eq!(sorted(&windows_out), reference_windows(&left, 20_000));
        prop_assert_eq!(sorted(&pairs_out), reference_pairs(&left, &right, within));
    }
}

#[test]
fn a_replay_of_logged_epochs_is_equal() {
    let build = |rate: Option<f64>| {
        let mut b = Builder::new(&[1.0]);
        let (out, collected) = sink("out");
        b.source(rows_source("a", numbered(3000), rate, Some(0), 91), "a");
        b.source(rows_source("b", numbered(3000), rate, Some(0), 13), "b");
        b.operator("j", join("j", 0), "c", &[]).edge("a", "j", 0).edge("b", "j", 1);
        b.sink(out, "c").edge("j", "out", 0);
        (b.program, collected)
    };
    let (program, first) = build(Some(6000.0));
    let run =
        Run::start(program, RunOptions { keep_epoch_log: true, ..RunOptions::default() }).expect("starts");
    wait(&run);
    let log = run.epoch_log();
    assert!(log["a"].cuts.len() > 10, "{} epochs", log["a"].cuts.len());
    // The replay has no rate of its own: only the log assigns records to epochs.
    let (program, again) = build(None);
    let options = RunOptions { replay: Some(log.clone()), keep_epoch_log: true, ..RunOptions::default() };
    let run = Run::start(program, options).expect("starts");
    wait(&run);
    assert_eq!(*again.lock().expect("not poisoned"), *first.lock().expect("not poisoned"));
    let cuts = |log: &std::collections::BTreeMap<String, tidemill_engine::EpochLog>, id: &str| {
        log[id].cuts.iter().map(|(epoch, cut)| (*epoch, cut.sequence)).collect::<Vec<_>>()
    };
    for id in ["a", "b"] {
        assert_eq!(cuts(&run.epoch_log(), id), cuts(&log, id));
    }
}
