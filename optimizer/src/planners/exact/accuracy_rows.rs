//! The accuracy limit as rows of the program.
use super::model::{Allowed, Model};
use super::prepared::Prepared;
use super::program::{Column, Terms};
use crate::problem::{ACCURACY_TOLERANCE, AccuracyModel, Producer, ResponseRow};

/// Adds the rows. A single allowed joint variant needs none: the caller has checked it.
pub(super) fn add(model: &mut Model, prepared: &Prepared<'_>, allowed: &Allowed) {
    let problem = prepared.problem;
    if allowed.is_one() {
        return;
    }
    if let Some(list) = &allowed.list {
        add_table(model, allowed, list);
        return;
    }
    let Some(limit) = problem.limits.accuracy else { return };
    let limit = limit - ACCURACY_TOLERANCE;
    match &problem.accuracy {
        AccuracyModel::None => model.program.at_least(Vec::new(), 1.0), // never holds
        AccuracyModel::Additive { base, contributions } => {
            add_sum(model, allowed, limit - base, contributions)
        }
        AccuracyModel::Table(rows) => {
            let accepted: Vec<Vec<usize>> = rows
                .iter()
                .filter(|row| row.accuracy >= limit)
                .map(|row| row.variants.clone())
                .filter(|joint| joint.iter().enumerate().all(|(v, &m)| allowed.variants[v][m]))
                .collect();
            add_table(model, allowed, &accepted);
        }
        AccuracyModel::RowLookup(tables) => add_responses(model, prepared, allowed, limit, tables),
    }
}

fn add_sum(model: &mut Model, allowed: &Allowed, needed: f64, contributions: &[Vec<f64>]) {
    let mut terms = Terms::new();
    let mut needed = needed;
    for (operator, values) in contributions.iter().enumerate() {
        match allowed.single(operator) {
            Some(variant) => needed -= values[variant],
            None => {
                let binaries = model.binaries[operator].iter().zip(values);
                terms.extend(binaries.filter_map(|(binary, value)| binary.map(|binary| (binary, *value))));
            }
        }
    }
    model.program.at_least(terms, needed);
}

/// Adds one row set for the accepted joint variants: a share of each, which the binaries make 0 or 1.
fn add_table(model: &mut Model, allowed: &Allowed, accepted: &[Vec<usize>]) {
    let lambdas: Vec<Column> = accepted.iter().map(|_| model.program.real(0.0, 0.0, 1.0)).collect();
    model.program.equal(lambdas.iter().map(|&lambda| (lambda, 1.0)).collect(), 1.0);
    for operator in 0..allowed.variants.len() {
        for variant in allowed.of(operator) {
            let Some(binary) = model.binaries[operator][variant] else { continue };
            let with = lambdas.iter().zip(accepted).filter(|(_, joint)| joint[operator] == variant);
            let mut terms: Terms = with.map(|(&lambda, _)| (lambda, 1.0)).collect();
            terms.push((binary, -1.0));
            model.program.equal(terms, 0.0);
        }
    }
}

/// Adds rows chosen along the stream: a row needs upstream rows whose output is not below its requirement. For every
/// level that a row of the operator requires of an input: the rows requiring at least that weigh no more than the
/// upstream rows providing at least that.
fn add_responses(
    model: &mut Model,
    prepared: &Prepared<'_>,
    allowed: &Allowed,
    limit: f64,
    tables: &[Vec<Vec<ResponseRow>>],
) {
    let problem = prepared.problem;
    let last = problem.last_operators();
    // Per operator: (column, row).
    let mut chosen: Vec<Vec<(Column, ResponseRow)>> = Vec::new();
    for (operator, table) in tables.iter().enumerate() {
        let inputs = problem.inputs_of(operator);
        let mut rows_of_operator = Vec::new();
        for variant in allowed.of(operator) {
            let rows = if table[variant].is_empty() {
                passing_on(prepared, &chosen, &inputs)
            } else {
                table[variant].clone()
            };
            let needed = if last.contains(&operator) { limit } else { f64::NEG_INFINITY };
            let columns: Vec<(Column, ResponseRow)> = rows
                .into_iter()
                .filter(|row| row.output >= needed)
                .map(|row| (model.program.real(0.0, 0.0, 1.0), row))
                .collect();
            let mut terms: Terms = columns.iter().map(|(column, _)| (*column, 1.0)).collect();
            match model.binaries[operator][variant] {
                None => model.program.equal(terms, 1.0),
                Some(binary) => {
                    terms.push((binary, -1.0));
                    model.program.equal(terms, 0.0);
                }
            }
            rows_of_operator.extend(columns);
        }
        for (input, &edge) in inputs.iter().enumerate() {
            let mut levels: Vec<f64> = rows_of_operator.iter().map(|(_, row)| row.inputs[input]).collect();
            levels.sort_by(f64::total_cmp);
            levels.dedup();
            for level in levels {
                let asking = rows_of_operator.iter().filter(|(_, row)| row.inputs[input] >= level);
                let mut terms: Terms = asking.map(|(column, _)| (*column, 1.0)).collect();
                match problem.edges[edge].from {
                    Producer::Source(_) if level <= 100.0 + ACCURACY_TOLERANCE => continue,
                    Producer::Source(_) => {}
                    Producer::Operator(producer) => {
                        let giving = chosen[producer]
                            .iter()
                            .filter(|(_, row)| row.output >= level - ACCURACY_TOLERANCE);
                        terms.extend(giving.map(|(column, _)| (*column, -1.0)));
                    }
                }
                model.program.at_most(terms, 0.0);
            }
        }
        chosen.push(rows_of_operator);
    }
}

/// The rows of an operator without its own: each level that an input can have, passed on.
fn passing_on(
    prepared: &Prepared<'_>,
    chosen: &[Vec<(Column, ResponseRow)>],
    inputs: &[usize],
) -> Vec<ResponseRow> {
    let mut levels = vec![100.0];
    for &edge in inputs {
        if let Producer::Operator(producer) = prepared.problem.edges[edge].from {
            levels.extend(chosen[producer].iter().map(|(_, row)| row.output));
        }
    }
    levels.sort_by(f64::total_cmp);
    levels.dedup();
    levels.into_iter().map(|level| ResponseRow { inputs: vec![level; inputs.len()], output: level }).collect()
}
