//! Latency limits as rows of a bound: the flow over time, and the mean latency over the keys. Where every route ends in
//! time, so does the mean of the routes, and the mean of a sum is the sum of the means.
use super::latency_times;
use super::model::Model;
use super::prepared::Prepared;
use super::program::{Column, Terms};
use super::time_grid::TimeGrid;
use crate::problem::Producer;

/// Adds the rows.
pub(super) fn add(model: &mut Model, prepared: &Prepared<'_>, grid: &TimeGrid) {
    latency_times::add(model, prepared, grid);
    let operators = prepared.problem.operators.len();
    let mut ends: Vec<Option<Column>> = vec![None; operators];
    for operator in 0..operators {
        let Some(deadline) = prepared.deadline[operator] else { continue };
        let end = model.program.real(0.0, 0.0, deadline.max(0.0));
        ends[operator] = Some(end);
        let choices = &prepared.choices[operator];
        let shares = || model.shares[operator].iter().map(|&(index, column)| (column, &choices[index]));
        let own: Terms = shares().map(|(column, choice)| (column, -choice.latency)).collect();
        let from_source: Terms = shares()
            .map(|(column, choice)| (column, -choice.source_latency - choice.latency))
            .chain([(end, 1.0)])
            .collect();
        let has_source = prepared.problem.inputs_of(operator).into_iter().any(|edge| {
            let from = prepared.problem.edges[edge].from;
            matches!(from, Producer::Source(source) if prepared.source_node[source].is_none())
        });
        if has_source {
            model.program.at_least(from_source, 0.0);
        }
        for (index, link) in prepared.links.iter().enumerate().filter(|(_, link)| link.to == operator) {
            let transfer = model
                .link_columns(index)
                .map(|(group, from, to, column)| (column, -prepared.link_seconds(link, group, from, to)));
            let before = ends.get(link.from).copied().flatten().map(|before| (before, -1.0));
            let terms: Terms =
                [(end, 1.0)].into_iter().chain(own.iter().copied()).chain(transfer).chain(before).collect();
            model.program.at_least(terms, 0.0);
        }
    }
}
