//! Taps: records of a running workflow, for whoever looks, without an effect on it.
use crate::hosts::{on_workers, with_hosts};
use crate::parts::*;
use arrow_array::RecordBatch;
use std::sync::{Arc, Barrier, Once};
use std::time::Duration;
use tidemill_engine::{Observer, Program, Run, RunOptions, Tap, TapError};

const ROWS: usize = 100_000;
/// Most reads until records come.
const READS: usize = 6000;

/// A source, an operator and a sink; the source takes minutes.
fn program() -> Program {
    let mut b = Builder::new(&[1.0]);
    let (out, _) = sink("out");
    b.source(rows_source("rows", numbered(ROWS), Some(500.0), Some(0), 64), "s");
    b.operator("some1", pass("some", |_| {}), "s", &[0]).sink(out, "b");
    b.edge("rows", "some1", 0).edge("some1", "out", 0);
    b.program
}

/// The records of a tap, until there are this many.
fn taken(tap: &Tap, most: usize) -> Vec<String> {
    let mut all = Vec::new();
    for _ in 0..READS {
        let read = tap.read(Duration::from_millis(10));
        assert_eq!(read.missed, 0);
        all.extend(read.batch.iter().flat_map(keys));
        if all.len() >= most {
            return all;
        }
    }
    panic!("{} of {most} records came", all.len());
}

fn error(observer: &Observer, edge: &str) -> TapError {
    observer.tap(edge).err().expect("it cannot be tapped")
}

#[test]
fn records_are_seen_where_they_pass_by_several_at_a_time() {
    let run = Run::start(program(), RunOptions::default()).expect("starts");
    let observer = run.observer();
    assert_eq!(observer.edges(), ["rows", "some"]);
    let (first, second) = (observer.tap("some").expect("taps"), observer.tap("rows").expect("taps"));
    assert_eq!(first.stream(), &stream());
    for tap in [&first, &second] {
        let seen = taken(tap, 100);
        let numbers: Vec<usize> = seen.iter().map(|key| key[1..].parse().expect("a number")).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "none is left out: {numbers:?}");
    }
    drop(first);
    taken(&second, 10);
    assert_eq!(
        error(&observer, "nothing").to_string(),
        "the workflow has no source or operator `nothing`; it has rows, some"
    );
    assert_eq!(
        error(&observer, "out").to_string(),
        "`out` is a sink; it writes what comes from `some`: tap that"
    );
    run.stopper().abort();
    let _ = run.wait();
}

#[test]
fn a_tap_that_nobody_reads_holds_up_nothing() {
    let mut b = Builder::new(&[1.0]);
    let (out, written) = sink("out");
    // The tap is there before the first record passes: the operator waits for it.
    let gate = Arc::new(Barrier::new(2));
    let (is_passed, opened) = (Once::new(), Arc::clone(&gate));
    let some = pass("some", move |_| {
        is_passed.call_once(|| {
            opened.wait();
        })
    });
    b.source(rows_source("rows", numbered(ROWS), None, Some(0), 64), "s");
    b.operator("some1", some, "s", &[0]).sink(out, "s");
    b.edge("rows", "some1", 0).edge("some1", "out", 0);
    let program = b.program;
    let run = Run::start(program, RunOptions::default()).expect("starts");
    let tap = run.observer().tap("some").expect("taps");
    gate.wait();
    wait(&run);
    assert_eq!(written.lock().expect("not poisoned").len(), ROWS);
    let mut read = tap.read(Duration::ZERO);
    let (mut seen, mut missed) = (0, 0);
    loop {
        missed += read.missed;
        let Some(batch) = read.batch else { break };
        seen += RecordBatch::num_rows(&batch);
        read = tap.read(Duration::ZERO);
    }
    assert!(seen > 0 && missed > 0, "{seen} seen, {missed} missed");
    assert_eq!(seen + missed as usize, ROWS);
}

#[test]
fn records_of_other_processes_are_refused() {
    let program = on_workers(program());
    let (options, _ended) = with_hosts(&program, |_| true);
    let run = Run::start(program, options).expect("starts");
    assert_eq!(error(&run.observer(), "rows"), TapError::Elsewhere);
    run.stopper().abort();
    let _ = run.wait();
}
