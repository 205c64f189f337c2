//! Latency limits as rows of the program: a budget per operator and per link, safe for every routing, or means.
//!
//! A route through a fast worker of one operator may take a slow one of the next; budgets do not know such pairs, so the
//! least cost under budgets may be above that of the cheapest plan. For a bound, the budget is replaced by the mean over
//! the keys: where every route ends in time, the mean of the routes does, and the mean of a sum is the sum of the means.
//!
//! A budget takes one of the latencies that occur, so it is a ladder: binary `h` says that the budget is above step
//! `h`, and what is slower than step `h` has no share without it. No big-M.
use super::latency_times;
use super::model::Model;
use super::prepared::{LatencyRule, Prepared};
use super::program::{Column, Terms};
use crate::problem::Producer;

/// Most steps of a ladder. Latencies between are rounded up: the plan stays safe and may cost more than needed.
const STEPS: usize = 12;

/// A budget: a constant and what binaries add to it.
struct Budget {
    constant: f64,
    terms: Terms,
}

/// Adds the rows, where there is a latency limit.
pub(super) fn add(model: &mut Model, prepared: &Prepared<'_>) {
    if prepared.problem.limits.latency.is_empty() {
        return;
    }
    if let Some(grid) = &prepared.grid {
        latency_times::add(model, prepared, grid);
    }
    let operators = prepared.problem.operators.len();
    let mut ends: Vec<Option<Column>> = vec![None; operators];
    for operator in 0..operators {
        let Some(deadline) = prepared.deadline[operator] else { continue };
        let end = model.program.real(0.0, 0.0, deadline.max(0.0));
        ends[operator] = Some(end);
        let choices = &prepared.choices[operator];
        let own: Vec<(f64, Column)> =
            model.shares[operator].iter().map(|&(index, column)| (choices[index].latency, column)).collect();
        let limit = |model: &mut Model, latencies: &[(f64, Column)]| match prepared.latency {
            LatencyRule::Budgets => budget(model, latencies),
            LatencyRule::Means | LatencyRule::Times => mean(latencies),
        };
        let budget = limit(model, &own);
        let mut starts: Vec<(Terms, f64)> = Vec::new();
        let mut has_source = false;
        for edge in prepared.problem.inputs_of(operator) {
            if let Producer::Source(source) = prepared.problem.edges[edge].from {
                has_source |= prepared.source_node[source].is_none();
            }
        }
        if has_source {
            let transfer: Vec<(f64, Column)> = model.shares[operator]
                .iter()
                .map(|&(index, column)| (choices[index].source_latency + choices[index].latency, column))
                .collect();
            let together = limit(model, &transfer);
            add_end(model, end, &together, &[], 0.0);
        }
        for (index, link) in prepared.links.iter().enumerate().filter(|(_, link)| link.to == operator) {
            let transfer: Vec<(f64, Column)> = model
                .link_columns(index)
                .map(|(group, from, to, column)| (prepared.link_seconds(link, group, from, to), column))
                .collect();
            let transfer = limit(model, &transfer);
            let mut terms = transfer.terms;
            if let Some(Some(before)) = ends.get(link.from) {
                terms.push((*before, 1.0));
            }
            starts.push((terms, transfer.constant));
        }
        for (terms, constant) in starts {
            add_end(model, end, &budget, &terms, constant);
        }
    }
}

/// `end >= start + budget`.
fn add_end(model: &mut Model, end: Column, budget: &Budget, start: &[(Column, f64)], start_constant: f64) {
    let mut terms: Terms = vec![(end, 1.0)];
    terms.extend(budget.terms.iter().chain(start).map(|(column, value)| (*column, -value)));
    model.program.at_least(terms, budget.constant + start_constant);
}

/// The mean latency over the keys; the shares add up to 1.
fn mean(latencies: &[(f64, Column)]) -> Budget {
    let terms = latencies.iter().filter(|(seconds, _)| *seconds > 0.0);
    Budget { constant: 0.0, terms: terms.map(|(seconds, column)| (*column, *seconds)).collect() }
}

/// The largest latency with a share above 0; the shares add up to 1.
fn budget(model: &mut Model, latencies: &[(f64, Column)]) -> Budget {
    let mut steps: Vec<f64> = latencies.iter().map(|(seconds, _)| *seconds).collect();
    steps.sort_by(f64::total_cmp);
    steps.dedup_by(|a, b| *a - *b < 1e-9);
    if steps.len() > STEPS {
        // The fastest, the slowest, and evenly spread ones between.
        steps = (0..STEPS).map(|step| steps[step * (steps.len() - 1) / (STEPS - 1)]).collect();
    }
    let Some(&constant) = steps.first() else { return Budget { constant: 0.0, terms: Vec::new() } };
    let mut terms = Terms::new();
    let mut before: Option<Column> = None;
    for pair in steps.windows(2) {
        let above = model.program.integer(0.0, 0, 1);
        let slower = latencies.iter().filter(|(seconds, _)| *seconds > pair[0] + 1e-9);
        let mut row: Terms = slower.map(|(_, column)| (*column, 1.0)).collect();
        row.push((above, -1.0));
        model.program.at_most(row, 0.0);
        if let Some(before) = before {
            model.program.at_most(vec![(above, 1.0), (before, -1.0)], 0.0);
        }
        terms.push((above, pair[1] - pair[0]));
        before = Some(above);
    }
    Budget { constant, terms }
}
