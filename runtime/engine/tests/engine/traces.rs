//! Traces: the path of a record over hosts with wrong clocks, and the letters of those that do not arrive.
use crate::hosts::{Picky, finished, on_workers, with_clocks};
use crate::parts::*;
use std::collections::BTreeMap;
use tidemill_engine::clock::ClockError;
use tidemill_engine::{Happening, Program, Run, RunOptions, Span, TraceId, TraceOptions, trace_name};

const ROWS: usize = 200;
/// Nanoseconds.
const HOUR: i64 = 3_600_000_000_000;

/// A source, an operator that rejects some records, a model and a sink, each on a worker of its own.
fn program() -> Program {
    let mut b = Builder::new(&[1.0]);
    let (out, _) = sink("out");
    b.source(rows_source("rows", numbered(ROWS), None, Some(0), 64), "s");
    b.operator("some1", pass("some", |_| {}), "a", &[0]).operator("big1", model("big", |_| {}), "a", &[0]);
    b.sink(out, "b");
    b.edge("rows", "some1", 0).edge("some1", "big1", 0).edge("big1", "out", 0);
    let mut program = on_workers(b.program);
    if let Some(bound) = program.operators.get_mut("some1") {
        bound.make =
            std::sync::Arc::new(|| Ok(tidemill_operators::api::Instance::Stateless(Box::new(Picky))));
    }
    program
}

fn by_trace(spans: Vec<Span>) -> BTreeMap<TraceId, Vec<Span>> {
    let mut traces: BTreeMap<TraceId, Vec<Span>> = BTreeMap::new();
    spans.into_iter().for_each(|span| traces.entry(span.trace).or_default().push(span));
    traces
}

/// The spans of a record from its source on, each the parent of the next.
fn way(spans: &[Span]) -> Vec<(Happening, String, String)> {
    let mut found = Vec::new();
    let mut parent = None;
    while let Some(span) = spans.iter().find(|span| span.parent == parent) {
        found.push((span.what, span.operator.clone(), span.worker.clone()));
        assert!(span.begin <= span.end, "{span:?}");
        parent = Some(span.id);
    }
    assert_eq!(found.len(), spans.len(), "all of them are on one way: {spans:?}");
    found
}

fn traced(mut options: RunOptions, share: f64) -> (Vec<Span>, tidemill_engine::RunReport, u64) {
    options.traces = Some(TraceOptions::new(share, 11));
    let run = Run::start(program(), options).expect("starts");
    let report = wait(&run);
    let traces = run.observer().traces().expect("records are traced");
    (traces.take(100_000), report, traces.dropped())
}

fn letters(report: &tidemill_engine::RunReport) -> Vec<String> {
    let values = report.dead_letter_samples.iter().map(|letter| &letter.values);
    values.filter_map(|values| Some(values.get("trace_id")?.as_str()?.to_owned())).collect()
}

#[test]
fn the_way_of_a_record_over_hosts_is_one_trace_whatever_their_clocks_say() {
    let program = program();
    let (options, ended) = with_clocks(
        &program,
        |_| true,
        |worker| match worker {
            "a" => ClockError { ahead: HOUR, drift: 0.0 },
            "b" => ClockError { ahead: -HOUR, drift: 0.0 },
            _ => ClockError::default(),
        },
    );
    let (spans, report, dropped) = traced(options, 1.0);
    finished(&ended);
    assert_eq!(dropped, 0);
    let traces = by_trace(spans);
    assert_eq!(traces.len(), ROWS);
    let expected = [
        (Happening::Source, "rows", "s"),
        (Happening::Transfer, "some", "a"),
        (Happening::Compute, "some", "a"),
        (Happening::Queue, "big", "a"),
        (Happening::Compute, "big", "a"),
        (Happening::Transfer, "out", "b"),
        (Happening::Sink, "out", "b"),
    ];
    let expected = expected.map(|(what, operator, worker)| (what, operator.to_owned(), worker.to_owned()));
    let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as i64;
    let refused: Vec<String> = traces
        .iter()
        .filter(|(_, spans)| {
            let found = way(spans);
            let (first, last) =
                (spans.iter().map(|span| span.begin).min(), spans.iter().map(|span| span.end).max());
            let (first, last) = (first.expect("one"), last.expect("one"));
            // Clocks are an hour wrong, times at most minutes.
            assert!(
                last - first < HOUR / 20 && (now - last).abs() < HOUR / 2,
                "{first} to {last}, now {now}"
            );
            assert!(found == expected || found == expected[..3], "{found:?}");
            found.len() == 3
        })
        .map(|(trace, _)| trace_name(trace))
        .collect();
    assert_eq!(refused.len(), ROWS / 10);
    let mut told = letters(&report);
    assert!(!told.is_empty());
    told.retain(|trace| !refused.contains(trace));
    assert_eq!(told, Vec::<String>::new(), "letters have the names of their traces");
}

/// Each process finds the same records: no record is marked as traced.
#[test]
fn a_share_of_the_records_is_traced_and_the_same_ones_again() {
    let (spans, report, _) = traced(RunOptions::default(), 0.2);
    let (again, ..) = traced(RunOptions::default(), 0.2);
    let (traces, again) = (by_trace(spans), by_trace(again));
    assert!((ROWS / 10..ROWS / 3).contains(&traces.len()), "{}", traces.len());
    assert_eq!(traces.keys().collect::<Vec<_>>(), again.keys().collect::<Vec<_>>());
    assert!(traces.values().all(|spans| [3, 7].contains(&way(spans).len())));
    assert!(letters(&report).len() < ROWS / 10, "those that are not traced have no trace");
    let run = Run::start(program(), RunOptions::default()).expect("starts");
    wait(&run);
    assert!(run.observer().traces().is_none(), "nobody wants any");
}
