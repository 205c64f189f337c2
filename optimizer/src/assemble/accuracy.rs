//! Rows of accuracy.
use super::streams::{Streams, models_before, unknown_operators};
use super::{Inputs, profile_command};
use crate::problem::{AccuracyModel, AccuracyRow, Operator, Producer, ResponseRow};
use std::collections::BTreeMap;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::profile::Accuracy;
use tidemill_spec::units::Percent;

/// What the profile knows of accuracy: rows measured end to end, else responses of operators.
pub(super) fn model(
    inputs: &Inputs<'_>,
    streams: &Streams,
    operators: &[Operator],
    wanted: Option<f64>,
    notes: &mut Vec<String>,
    found: &mut Diagnostics,
) -> AccuracyModel {
    let accuracy = inputs.profile.accuracy.as_ref();
    let model = accuracy.map_or(AccuracyModel::None, |accuracy| {
        let table = table(accuracy, inputs, operators, notes);
        match table.is_empty() {
            false => AccuracyModel::Table(table),
            true => responses(accuracy, inputs, streams, operators, notes),
        }
    });
    if let (AccuracyModel::None, Some(wanted)) = (&model, wanted) {
        let message =
            format!("an accuracy of at least {wanted}% is wanted, but the profile has no accuracies");
        let slo = inputs.workflow.slo.accuracy.as_ref();
        found.push(
            Diagnostic::error("E0903", message)
                .at(slo.map(|slo| slo.span.clone()).unwrap_or_default())
                .with_help(profile_command(inputs.workflow)),
        );
    }
    model
}

/// Rows measured end to end, of variants that can be planned.
fn table(
    accuracy: &Accuracy,
    inputs: &Inputs<'_>,
    operators: &[Operator],
    notes: &mut Vec<String>,
) -> Vec<AccuracyRow> {
    let mut incomplete = 0;
    let rows = accuracy.end_to_end.iter().filter_map(|row| {
        let mut variants = Vec::with_capacity(operators.len());
        for operator in operators {
            if !inputs.models.contains_key(&operator.id) {
                variants.push(0);
                continue;
            }
            let Some(named) = row.variants.get(&operator.id) else {
                incomplete += 1;
                return None;
            };
            variants.push(operator.variants.iter().position(|variant| variant.id == *named)?);
        }
        Some(AccuracyRow { variants, accuracy: row.accuracy.0 })
    });
    let rows = rows.collect();
    if incomplete > 0 {
        notes.push(format!(
            "{incomplete} rows of accuracy do not name a variant of every operator: they do not count"
        ));
    }
    rows
}

/// Responses of operators. An operator fed by sources has the accuracy of its model alone, where that is known. A row
/// says which accuracy it needs by operator; an input behind which several of them stand needs the largest of theirs.
fn responses(
    accuracy: &Accuracy,
    inputs: &Inputs<'_>,
    streams: &Streams,
    operators: &[Operator],
    notes: &mut Vec<String>,
) -> AccuracyModel {
    let named = accuracy.response.iter().map(|row| row.operator.clone());
    let named = named.chain(accuracy.models.iter().map(|metric| metric.operator.clone()));
    if let Some(unknown) = unknown_operators(streams, named) {
        notes.push(format!("rows of accuracy name {unknown}, which is not planned: they do not count"));
    }
    let mut any = false;
    let mut all = Vec::with_capacity(operators.len());
    for (index, operator) in operators.iter().enumerate() {
        let behind = behind(inputs, streams, index);
        let mut of_operator = Vec::with_capacity(operator.variants.len());
        for variant in &operator.variants {
            let rows = accuracy.response.iter().filter(|row| {
                row.operator == operator.id && row.variant.as_ref().is_none_or(|named| *named == variant.id)
            });
            let mut rows: Vec<ResponseRow> = rows
                .map(|row| ResponseRow {
                    inputs: behind.iter().map(|models| needed(&row.inputs, models)).collect(),
                    output: row.output.0,
                })
                .collect();
            let alone = accuracy.models.iter().find(|m| m.operator == operator.id && m.variant == variant.id);
            let fed_by_sources = behind.iter().all(Vec::is_empty);
            if let Some(alone) =
                alone.and_then(|metric| metric.accuracy).filter(|_| rows.is_empty() && fed_by_sources)
            {
                rows.push(ResponseRow { inputs: vec![0.0; behind.len()], output: alone.0 });
            }
            any |= !rows.is_empty();
            of_operator.push(rows);
        }
        all.push(of_operator);
    }
    if any { AccuracyModel::RowLookup(all) } else { AccuracyModel::None }
}

/// Operators with models nearest before each input.
fn behind(inputs: &Inputs<'_>, streams: &Streams, operator: usize) -> Vec<Vec<String>> {
    let mut edges: Vec<_> = streams.edges.iter().filter(|edge| edge.to == operator).collect();
    edges.sort_by_key(|edge| edge.input);
    let models = |edge: &&crate::problem::Edge| match edge.from {
        Producer::Source(_) => Vec::new(),
        Producer::Operator(producer) => models_before(inputs, streams.id(producer)),
    };
    edges.iter().map(models).collect()
}

fn needed(row: &BTreeMap<String, Percent>, models: &[String]) -> f64 {
    models.iter().filter_map(|model| row.get(model)).map(|percent| percent.0).fold(0.0, f64::max)
}
