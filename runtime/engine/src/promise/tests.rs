use super::*;
use crate::failure::OnPanic;
use std::sync::Arc;
use tidemill_operators::api::{
    BoundSink, BoundSource, JournalledReading, MakeDurableSink, MakeSink, MakeSource, OperatorError,
};
use tidemill_spec::plan::{Plan, PlanEdge, PlanWorkflow, Stage};
use tidemill_spec::types::StreamType;
use tidemill_spec::workflow::Journal;

fn source(id: &str) -> BoundSource {
    BoundSource {
        id: id.into(),
        kind: "test".into(),
        output: StreamType::new([]),
        key: None,
        rate_per_second: None,
        out_of_order_microseconds: 0,
        live: false,
        waits_for_all: false,
        rereads: false,
        has_event_times: false,
        at_one_time: 1,
        stream: None,
        journalled: None,
        input: None,
        journal: None,
        feeds: None,
        requests: None,
        make: Arc::new(|| Err(OperatorError::new("nothing is read here"))),
    }
}

fn stream(id: &str) -> BoundSource {
    let make = |_| -> MakeSource { Arc::new(|| Err(OperatorError::new("nothing is read here"))) };
    let journalled = Some(JournalledReading { make: Arc::new(make), place: |_| None, unread: Unread::Stays });
    BoundSource { stream: Some("standard input".into()), journalled, ..source(id) }
}

fn journalled(id: &str) -> BoundSource {
    BoundSource { journal: Some(Journal::default()), ..stream(id) }
}

fn connections(id: &str) -> BoundSource {
    let source = journalled(id);
    let reading = source.journalled.map(|reading| JournalledReading { unread: Unread::IsLost, ..reading });
    BoundSource { stream: Some("connections to `:4100`".into()), journalled: reading, ..source }
}

fn subscription(id: &str) -> BoundSource {
    let source = journalled(id);
    let reading =
        source.journalled.map(|reading| JournalledReading { unread: Unread::IsSentAgain, ..reading });
    BoundSource { stream: Some("`a/#` of the broker `b:1`".into()), journalled: reading, ..source }
}

fn live(id: &str) -> BoundSource {
    BoundSource { live: true, ..source(id) }
}

fn growing(id: &str) -> BoundSource {
    BoundSource { rereads: true, ..live(id) }
}

fn sink(id: &str, durable: bool) -> BoundSink {
    let make: MakeSink = Arc::new(|| Err(OperatorError::new("nothing is written here")));
    let again: MakeDurableSink = Arc::new(|_| Err(OperatorError::new("nothing is written here")));
    BoundSink {
        id: id.into(),
        kind: "test".into(),
        input: StreamType::new([]),
        ground_truth: None,
        files: Vec::new(),
        is_standard_output: !durable,
        answers: None,
        repeats: false,
        make,
        durable: durable.then_some(again),
    }
}

/// `ways`: from and to, with stages named like their operators; an id that is no source and no sink is an operator.
fn program(sources: Vec<BoundSource>, ways: &[(&str, &str)], sinks: Vec<BoundSink>) -> Program {
    let mut plan = Plan::new(PlanWorkflow { name: "test".into(), digest: None });
    let names: BTreeSet<&str> = ways.iter().flat_map(|(from, to)| [*from, *to]).collect();
    plan.stages = names.into_iter().map(|id| Stage::new(id, id, "here")).collect();
    plan.edges = ways.iter().map(|(from, to)| PlanEdge::new(*from, *to, 0)).collect();
    Program {
        plan,
        sources: sources.into_iter().map(|source| (source.id.clone(), source)).collect(),
        operators: BTreeMap::new(),
        sinks: sinks.into_iter().map(|sink| (sink.id.clone(), sink)).collect(),
        on_panic: BTreeMap::new(),
        when_cut: BTreeMap::new(),
    }
}

fn told(program: &Program, keeps_state: bool) -> Vec<String> {
    let promises = promises(program, keeps_state).into_iter();
    promises.map(|(sink, promise)| format!("{sink}: {promise}")).collect()
}

const LINE: &[(&str, &str)] = &[("s", "f"), ("f", "out")];

#[test]
fn one_source_one_sink() {
    let stdin = "at most once: source `s` reads standard input without a journal";
    let stdout = "at least once: sink `out` writes to standard output, which takes nothing back";
    let unread = "source `s` receives connections to `:4100`: data that was sent and is not in its journal is lost with the process";
    let again = "source `s` receives `a/#` of the broker `b:1`: what it had not acknowledged when a connection or a process broke off is sent again";
    let is_live = "source `s` is live: data that is not read in time is lost";
    let here = "exactly once within this process";
    let table: &[(BoundSource, bool, &str, &str)] = &[
        (source("s"), true, "exactly once", here),
        (source("s"), false, stdout, here),
        (stream("s"), true, stdin, here),
        (journalled("s"), true, "exactly once", here),
        (journalled("s"), false, stdout, here),
        (connections("s"), true, &format!("at most once: {unread}"), here),
        (
            subscription("s"),
            true,
            &format!("at least once: {again}"),
            &format!("at least once within this process: {again}"),
        ),
        (
            live("s"),
            true,
            &format!("at most once: {is_live}"),
            &format!("at most once within this process: {is_live}"),
        ),
        (growing("s"), true, "exactly once", here),
        (growing("s"), false, stdout, here),
    ];
    for (source, durable, with_state, without) in table {
        let program = program(vec![source.clone()], LINE, vec![sink("out", *durable)]);
        assert_eq!(told(&program, true), [format!("out: {with_state}")]);
        assert_eq!(told(&program, false), [format!("out: {without}")]);
    }
}

#[test]
fn the_weakest_source_counts_and_only_where_it_reaches() {
    let ways =
        [("a", "join"), ("b", "join"), ("join", "window"), ("window", "both"), ("a", "f"), ("f", "alone")];
    let program =
        program(vec![source("a"), stream("b")], &ways, vec![sink("both", true), sink("alone", true)]);
    assert_eq!(
        told(&program, true),
        ["alone: exactly once", "both: at most once: source `b` reads standard input without a journal"]
    );
}

#[test]
fn every_reason_is_told() {
    let program = program(vec![stream("s")], LINE, vec![sink("out", false)]);
    let promise = &promises(&program, true)["out"];
    assert_eq!(promise.guarantee, Guarantee::AtMostOnce);
    assert_eq!(promise.because.len(), 2, "{promise}");
}

#[test]
fn restarts_repeat_what_cannot_be_taken_back() {
    let mut program = program(vec![source("s")], LINE, vec![sink("out", false)]);
    program.on_panic.insert("f".into(), OnPanic::Stop);
    assert_eq!(told(&program, false), ["out: exactly once within this process"]);
    program.on_panic.insert("f".into(), OnPanic::Restart);
    let why = "sink `out` writes to standard output, which takes nothing back";
    assert_eq!(told(&program, false), [format!("out: at least once within this process: {why}")]);
}

#[test]
fn what_is_dropped_for_freshness_does_not_come() {
    let mut program = program(vec![source("s")], LINE, vec![sink("out", true)]);
    program.plan.edges[1].freshness = Some(Freshness::Block);
    assert_eq!(told(&program, true), ["out: exactly once"]);
    program.plan.edges[0].freshness = Some(Freshness::Latest);
    assert_eq!(
        told(&program, true),
        ["out: at most once: from `s` to `f` records are dropped for freshness"]
    );
}

#[test]
fn a_file_that_grows_comes_again_if_its_worker_alone_is_lost() {
    let mut program = program(vec![growing("s")], LINE, vec![sink("out", true)]);
    program.plan.stages[0].worker = "there".into();
    let again = "source `s` ends its epochs by the clock: if its worker alone is lost, records since the checkpoint come again";
    assert_eq!(told(&program, true), [format!("out: at least once: {again}")]);
    assert_eq!(told(&program, false), ["out: exactly once within this process"]);
}
