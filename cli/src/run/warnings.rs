//! Warnings about a run that has ended.
use crate::account::Account;
use crate::terminal::Terminal;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_app::figures::grouped;
use tidemill_app::judgement::Judgement;
use tidemill_app::letters::{causes, spoilt};
use tidemill_app::listener::Listener;
use tidemill_app::machine::event_date;
use tidemill_app::preparation::{Prepared, kinds};
use tidemill_engine::{Program, RunReport};

pub(super) fn warn(
    judgement: &Judgement,
    account: Option<&Account<'_>>,
    report: &RunReport,
    prepared: &Prepared,
    terminal: &Terminal,
) {
    for warning in account.iter().flat_map(|account| account.warnings()) {
        terminal.warning(&warning);
    }
    let spoilt = spoilt(report, &prepared.program);
    for source in &spoilt {
        terminal.alarm(&format!(
            "all records of source `{}` are dead letters, {} of them, mostly for the reason `{}`: do its \
             columns and their types match the data?",
            source.id,
            grouped(source.letters),
            source.reasons[0]
        ));
    }
    if spoilt.is_empty() && report.dead_letters > 0 && report.sinks.iter().all(|sink| sink.records == 0) {
        let letters = grouped(report.dead_letters);
        terminal.alarm(&format!("no record reached a sink: {letters} dead letters and no results"));
    }
    for join in without_matches(report, &prepared.program) {
        terminal.alarm(&join);
    }
    if let Some(letters) = judgement.letters.filter(|letters| letters.is_passed) {
        terminal.error(&letters.text(), Some(&causes(report)));
    }
}

/// Joins that got records on all inputs and matched none, with the times of these: those of another clock never meet.
fn without_matches(report: &RunReport, program: &Program) -> Vec<String> {
    let joins = program.operators.values().filter(|operator| kinds().operator(&operator.kind).joins);
    let empty = joins.filter(|join| {
        let stages = || report.stages.iter().filter(|stage| stage.operator == join.id);
        let unmatched = stages().any(|stage| stage.drops.get("unmatched").is_some_and(|rows| *rows > 0));
        unmatched && stages().all(|stage| stage.records_out == 0)
    });
    let told = empty.filter_map(|join| {
        let inputs = newest_times(report, program, &join.id);
        let all_came = inputs.len() > 1 && inputs.values().all(|(_, records)| *records > 0);
        let times: Vec<String> = inputs
            .iter()
            .map(|(source, (newest, _))| {
                format!("of `{source}` {}", newest.map_or_else(|| "none".to_owned(), event_date))
            })
            .collect();
        all_came.then(|| {
            format!(
                "join `{}` matched nothing: the newest event times are {}. Do the keys and `event_time` \
                 match the data, and is `within` longer than the difference of the times?",
                join.id,
                times.join(", ")
            )
        })
    });
    told.collect()
}

/// The newest event time and the records of each source before an operator.
fn newest_times<'a>(
    report: &'a RunReport,
    program: &Program,
    operator: &str,
) -> BTreeMap<&'a str, (Option<i64>, u64)> {
    let of = |id: &str| {
        program.plan.stages.iter().find(|stage| stage.id == id).map(|stage| stage.operator.as_str())
    };
    let mut before: BTreeSet<&str> = BTreeSet::from([operator]);
    loop {
        let edges =
            program.plan.edges.iter().filter(|edge| of(&edge.to).is_some_and(|to| before.contains(to)));
        let more: Vec<&str> =
            edges.filter_map(|edge| of(&edge.from)).filter(|from| !before.contains(from)).collect();
        if more.is_empty() {
            break;
        }
        before.extend(more);
    }
    let mut all: BTreeMap<&str, (Option<i64>, u64)> = BTreeMap::new();
    for stage in &report.stages {
        let is_source =
            program.sources.contains_key(&stage.operator) && before.contains(stage.operator.as_str());
        if is_source {
            let known = all.entry(stage.operator.as_str()).or_default();
            *known = (known.0.max(stage.newest_time), known.1 + stage.records_out);
        }
    }
    all
}
