//! Rows of accuracy.
use super::streams::{Streams, models_before, unknown_operators};
use super::{Inputs, listed, profile_command};
use crate::problem::{AccuracyModel, AccuracyRow, Operator, Producer, ResponseRow};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::profile::Accuracy;
use tidemill_spec::units::Percent;
use tidemill_spec::workflow::Workflow;

/// Builds the accuracy model from the profile: rows measured end to end, else responses of operators.
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
            format!("an accuracy of at least {wanted}% is required, but the profile has no accuracies");
        let slo = inputs.workflow.slo.accuracy.as_ref();
        found.push(
            Diagnostic::error("E0903", message)
                .at(slo.map(|slo| slo.span.clone()).unwrap_or_default())
                .with_help(profile_command(inputs.workflow)),
        );
    }
    model
}

/// An accuracy in percent that no input reaches.
const NEVER: f64 = 1000.0;
/// Most combinations of variants that one row may cover.
const MOST_COMBINATIONS: usize = 10_000;

/// Rows measured end to end, of variants that can be planned. A row without a variant of an operator that does not feed
/// the sink holds for all variants of that operator.
fn table(
    accuracy: &Accuracy,
    inputs: &Inputs<'_>,
    operators: &[Operator],
    notes: &mut Vec<String>,
) -> Vec<AccuracyRow> {
    let heard = accuracy.sink.as_ref().and_then(|sink| before_sink(inputs.workflow, sink));
    let is_heard = |id: &String| heard.as_ref().is_none_or(|heard| heard.contains(id.as_str()));
    let (mut incomplete, mut too_many, mut rows) = (0, 0, Vec::new());
    for row in &accuracy.end_to_end {
        let mut combinations = vec![Vec::with_capacity(operators.len())];
        for operator in operators {
            let of_operator = match row.variants.get(&operator.id) {
                _ if !inputs.models.contains_key(&operator.id) => 0..1,
                // No position: a variant that cannot be planned.
                Some(named) => match operator.variants.iter().position(|variant| variant.id == *named) {
                    Some(position) => position..position + 1,
                    None => 0..0,
                },
                None if is_heard(&operator.id) => {
                    incomplete += 1;
                    combinations.clear();
                    break;
                }
                None => 0..operator.variants.len(),
            };
            if combinations.len() * of_operator.len() > MOST_COMBINATIONS {
                too_many += 1;
                combinations.clear();
                break;
            }
            let longer = combinations.iter().flat_map(|known: &Vec<usize>| {
                of_operator.clone().map(|position| [known.as_slice(), &[position]].concat())
            });
            combinations = longer.collect();
        }
        let accuracy = row.accuracy.0;
        rows.extend(combinations.into_iter().map(|variants| AccuracyRow { variants, accuracy }));
    }
    if incomplete > 0 {
        notes.push(format!(
            "{incomplete} rows of accuracy do not name a variant of every operator before the sink: ignoring them"
        ));
    }
    if too_many > 0 {
        notes.push(format!(
            "{too_many} rows of accuracy match more than {MOST_COMBINATIONS} combinations of variants: \
             ignoring them; name the variants of more operators in them"
        ));
    }
    rows
}

/// Operators that feed a sink; none if the sink does not exist.
fn before_sink<'a>(workflow: &'a Workflow, sink: &str) -> Option<BTreeSet<&'a str>> {
    let sink = workflow.sinks.iter().find(|known| known.id.value == sink)?;
    let (mut found, mut open) = (BTreeSet::new(), vec![sink.input.from.value.as_str()]);
    while let Some(id) = open.pop() {
        let operator = workflow.operators.iter().find(|operator| operator.id.value == id);
        if let Some(operator) = operator.filter(|_| found.insert(id)) {
            open.extend(operator.inputs.iter().map(|input| input.from.value.as_str()));
        }
    }
    Some(found)
}

/// Responses of operators. An operator fed by sources has the accuracy of its model alone, where that is known. A row
/// states the accuracy that it needs per operator; an input that several of them feed needs the highest.
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
        notes.push(format!("rows of accuracy name {unknown}, which is not planned: ignoring them"));
    }
    let mut any = false;
    let mut unknown = Vec::new();
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
        // A variant without figures is not assumed perfect where others have figures.
        if of_operator.iter().any(|rows| !rows.is_empty()) {
            for (variant, rows) in operator.variants.iter().zip(&mut of_operator) {
                if rows.is_empty() {
                    unknown.push(format!("{} {}", operator.id, variant.id));
                    rows.push(ResponseRow { inputs: vec![NEVER; behind.len()], output: 0.0 });
                }
            }
        }
        all.push(of_operator);
    }
    if !unknown.is_empty() {
        notes.push(format!(
            "the accuracy of {} is not known: not chosen if an accuracy is required",
            listed(unknown.iter().map(String::as_str))
        ));
    }
    if any { AccuracyModel::RowLookup(all) } else { AccuracyModel::None }
}

/// The nearest operators with models upstream of each input.
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
