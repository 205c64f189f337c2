//! Plans with several stages per operator: shares are followed and both inputs of every join meet.
use crate::parts::*;
use tidemill_engine::{Run, RunOptions, RunReport};

const KEYS: usize = 10_000;

fn assert_share(report: &RunReport, stage: &str, share: f64) {
    let stage = report.stages.iter().find(|found| found.stage == stage).expect("the stage is reported");
    let expected = KEYS as f64 * share;
    assert!(
        (stage.records_in as f64 - expected).abs() <= 0.01 * expected,
        "{}: {} records, {expected} expected",
        stage.stage,
        stage.records_in
    );
}

fn expected_pairs() -> Vec<String> {
    (0..KEYS).map(|i| format!("k{i:06}={}", i * 1_000_001)).collect()
}

fn in_tree(is_apart: bool) {
    let mut b = Builder::new(&[0.3, 0.7]);
    b.is_apart = is_apart;
    let (out, collected) = sink("out");
    b.source(rows_source("left", numbered(KEYS), None, Some(0), 256), "s");
    b.source(rows_source("right", numbered(KEYS), None, Some(0), 256), "s");
    for (operator, input) in [("f", "left"), ("g", "right")] {
        b.operator(&format!("{operator}1"), pass(operator, |_| {}), "a", &[0]);
        b.operator(&format!("{operator}2"), pass(operator, |_| {}), "b", &[1]);
        b.edge(input, &format!("{operator}1"), 0).edge(input, &format!("{operator}2"), 0);
    }
    b.operator("j1", join("j", 0), "c", &[0]).operator("j2", join("j", 0), "d", &[1]);
    for (from, to, port) in [("f1", "j1", 0), ("f2", "j2", 0), ("g1", "j1", 1), ("g2", "j2", 1)] {
        b.edge(from, to, port);
    }
    b.sink(out, "e").edge("j1", "out", 0).edge("j2", "out", 0);
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    let report = wait(&run);
    assert_eq!(sorted(&collected), expected_pairs());
    for (stage, share) in [("f1", 0.3), ("f2", 0.7), ("g1", 0.3), ("g2", 0.7)] {
        assert_share(&report, stage, share);
    }
}

#[test]
fn shares_and_joins_on_an_in_tree() {
    APART.into_iter().for_each(in_tree);
}

fn diamond(is_apart: bool) {
    let mut b = Builder::new(&[0.3, 0.7]);
    b.is_apart = is_apart;
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(KEYS), None, Some(0), 256), "s");
    b.operator("d1", pass("detect", |_| {}), "a", &[0]).operator("d2", pass("detect", |_| {}), "b", &[1]);
    b.operator("e1", pass("embed", |_| {}), "c", &[0]).operator("e2", pass("embed", |_| {}), "a", &[1]);
    b.operator("j1", join("j", 0), "b", &[0]).operator("j2", join("j", 0), "d", &[1]);
    b.edge("src", "d1", 0).edge("src", "d2", 0);
    b.edge("d1", "e1", 0).edge("d2", "e2", 0);
    for (from, to, port) in [("d1", "j1", 0), ("d2", "j2", 0), ("e1", "j1", 1), ("e2", "j2", 1)] {
        b.edge(from, to, port);
    }
    b.sink(out, "s").edge("j1", "out", 0).edge("j2", "out", 0);
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    let report = wait(&run);
    assert_eq!(sorted(&collected), expected_pairs());
    for (stage, share) in [("d1", 0.3), ("d2", 0.7), ("e1", 0.3), ("e2", 0.7)] {
        assert_share(&report, stage, share);
    }
}

#[test]
fn shares_and_joins_on_a_diamond() {
    APART.into_iter().for_each(diamond);
}

#[test]
fn partitions_of_a_stage_share_its_keys() {
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    b.source(rows_source("left", numbered(KEYS), None, Some(0), 256), "s");
    b.source(rows_source("right", numbered(KEYS), None, Some(0), 256), "s");
    b.operator("j", join("j", 0), "p", &[]);
    b.program.plan.stages.last_mut().expect("just added").partitions = 3;
    b.edge("left", "j", 0).edge("right", "j", 1);
    b.sink(out, "s").edge("j", "out", 0);
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    assert_eq!(run.slots().len(), 4);
    wait(&run);
    assert_eq!(sorted(&collected), expected_pairs());
}

#[test]
fn a_group_by_receives_by_its_own_column() {
    let mut b = Builder::new(&[0.5, 0.5]);
    let (out, collected) = sink("out");
    // The route key is the record's; the grouping column is `value` modulo 8.
    let rows: Vec<Row> = numbered(800).into_iter().map(|row| Row { value: row.value % 8, ..row }).collect();
    b.source(rows_source("src", rows, None, Some(0), 64), "s");
    let seen =
        [std::sync::Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new())), Default::default()];
    for (stage, seen) in seen.iter().enumerate() {
        let seen = std::sync::Arc::clone(seen);
        let mut bound = pass("group", move |batch| seen.lock().expect("not poisoned").extend(values(batch)));
        bound.spread = tidemill_operators::api::Spread::by_group(["value"]);
        b.operator(&format!("g{stage}"), bound, &format!("g{stage}"), &[stage]);
        b.edge("src", &format!("g{stage}"), 0);
    }
    b.sink(out, "s").edge("g0", "out", 0).edge("g1", "out", 0);
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    wait(&run);
    assert_eq!(collected.lock().expect("not poisoned").len(), 800);
    let (a, b) = (seen[0].lock().expect("not poisoned"), seen[1].lock().expect("not poisoned"));
    assert!(a.is_disjoint(&b) && a.len() + b.len() == 8 && !a.is_empty() && !b.is_empty(), "{a:?} {b:?}");
}

/// Plans that would silently differ from one stage are refused, with advice.
#[test]
fn stages_whose_records_would_miss_each_other_are_refused() {
    let build = |key: Option<&str>, windows: usize| {
        let mut b = Builder::new(&[0.5, 0.5]);
        let (out, _) = sink("out");
        let mut left = rows_source("left", numbered(10), None, Some(0), 4);
        left.key = key.map(Into::into);
        b.source(left, "s").source(rows_source("right", numbered(10), None, Some(0), 4), "s");
        b.operator("m", pass("m", |_| {}), "s", &[]).edge("left", "m", 0);
        b.operator("j1", join("j", 0), "c", &[0]).operator("j2", join("j", 0), "d", &[1]);
        for (from, to, port) in [("m", "j1", 0), ("m", "j2", 0), ("right", "j1", 1), ("right", "j2", 1)] {
            b.edge(from, to, port);
        }
        for w in 0..windows {
            let (stage, classes) = (format!("w{w}"), if windows == 1 { vec![] } else { vec![w] });
            b.operator(&stage, window("w", 1000), "s", &classes).edge("j1", &stage, 0).edge("j2", &stage, 0);
            b.edge(&stage, "out", 0);
        }
        b.sink(out, "s");
        Run::start(b.program, RunOptions::default()).map(|run| wait(&run)).map_err(|error| error.to_string())
    };
    let error = build(None, 1).expect_err("left is routed by its sequence");
    assert!(error.contains("source 'left' `key: key`") && error.contains("'j'"), "{error}");
    assert!(build(Some("value"), 1).is_err());
    let error = build(Some("key"), 2).expect_err("two windows of all records");
    assert!(error.contains("'w'") && error.contains("group_by"), "{error}");
    build(Some("key"), 1).expect("sound");
}
