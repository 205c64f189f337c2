//! Choice of variants before workers are assigned.
use crate::problem::{ACCURACY_TOLERANCE, AccuracyModel, Problem, Producer, ResponseRow};

/// Whether a variant runs on some worker of the allowed classes.
fn runs(problem: &Problem, allowed: &[bool], operator: usize, variant: usize) -> bool {
    let operator = &problem.operators[operator];
    let mut modes = operator.variants[variant].modes.iter().zip(allowed);
    operator.weightless || modes.any(|(modes, allowed)| *allowed && !modes.is_empty())
}

/// Seconds per record on the fastest worker, JellyBean's estimate of a variant's cost before it assigns workers.
fn fastest(problem: &Problem, operator: usize, variant: usize) -> f64 {
    let modes = problem.operators[operator].variants[variant].modes.iter().flatten();
    let seconds = modes.map(|mode| mode.seconds_per_record).reduce(f64::min);
    seconds.unwrap_or(if problem.operators[operator].weightless { 0.0 } else { f64::INFINITY })
}

/// Variants, one per operator, that run on allowed classes (`allowed[class]`) and have the highest end-to-end accuracy;
/// without an accuracy model, the slowest ones. None where they do not meet the accuracy limit or do not run.
pub(super) fn most_accurate(problem: &Problem, allowed: &[bool]) -> Option<Vec<usize>> {
    let operators = 0..problem.operators.len();
    let best_of = |operator: usize, value: &dyn Fn(usize) -> f64| {
        let variants = 0..problem.operators[operator].variants.len();
        let runnable = variants.filter(|&variant| runs(problem, allowed, operator, variant));
        // The first of equals: the order of the manifest decides.
        runnable.reduce(|best, variant| if value(variant) > value(best) { variant } else { best })
    };
    let variants: Option<Vec<usize>> = match &problem.accuracy {
        AccuracyModel::None => operators.map(|v| best_of(v, &|m| fastest(problem, v, m))).collect(),
        AccuracyModel::Table(rows) => rows
            .iter()
            .filter(|row| row.variants.iter().enumerate().all(|(v, &m)| runs(problem, allowed, v, m)))
            .reduce(|best, row| if row.accuracy > best.accuracy { row } else { best })
            .map(|row| row.variants.clone()),
        AccuracyModel::Additive { contributions, .. } => {
            operators.map(|v| best_of(v, &|m| contributions[v][m])).collect()
        }
        AccuracyModel::RowLookup(rows) => {
            // Outputs rise with inputs, so the best of each operator in turn is the best of all.
            let mut outputs: Vec<Option<f64>> = Vec::new();
            let mut chosen = Vec::new();
            for v in operators {
                let inputs = inputs_of(problem, v, &outputs);
                let output = |m: usize| response(&rows[v][m], &inputs).unwrap_or(f64::NEG_INFINITY);
                let best = best_of(v, &output)?;
                outputs.push(response(&rows[v][best], &inputs));
                chosen.push(best);
            }
            Some(chosen)
        }
    };
    variants.filter(|variants| problem.accepts(variants))
}

/// Accuracies of the inputs of an operator; none where a producer has no applicable row.
fn inputs_of(problem: &Problem, operator: usize, outputs: &[Option<f64>]) -> Option<Vec<f64>> {
    let edges = problem.inputs_of(operator).into_iter();
    edges
        .map(|edge| match problem.edges[edge].from {
            Producer::Source(_) => Some(100.0),
            Producer::Operator(producer) => outputs[producer],
        })
        .collect()
}

/// Output accuracy of a variant by its rows; none where no row applies.
fn response(rows: &[ResponseRow], inputs: &Option<Vec<f64>>) -> Option<f64> {
    let inputs = inputs.as_ref()?;
    if rows.is_empty() {
        return Some(inputs.iter().copied().fold(100.0, f64::min));
    }
    rows.iter().filter(|row| row.applies(inputs)).map(|row| row.output).reduce(f64::max)
}

/// Joint variants that meet the accuracy limit, cheapest first by the sum of seconds per second on the fastest workers: a
/// beam search over the operators in reverse topological order (section 5.4.2 of JellyBean). At most `width` of them.
pub(super) fn beam(problem: &Problem, width: usize) -> Vec<Vec<usize>> {
    let mut partial: Vec<(f64, Vec<Option<usize>>)> = vec![(0.0, vec![None; problem.operators.len()])];
    for operator in (0..problem.operators.len()).rev() {
        let rate = problem.operators[operator].rate;
        let mut next = Vec::new();
        for (cost, variants) in &partial {
            for variant in 0..problem.operators[operator].variants.len() {
                let seconds = fastest(problem, operator, variant);
                let mut variants = variants.clone();
                variants[operator] = Some(variant);
                if seconds.is_finite() && can_be_completed(problem, &variants) {
                    next.push((cost + rate * seconds, variants));
                }
            }
        }
        next.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        next.truncate(width);
        partial = next;
    }
    let complete = partial.into_iter().filter_map(|(_, variants)| variants.into_iter().collect());
    complete.filter(|variants: &Vec<usize>| problem.accepts(variants)).collect()
}

/// Seconds of work per second with these variants, each on its fastest workers.
pub(super) fn seconds_per_second(problem: &Problem, variants: &[usize]) -> f64 {
    let operators = problem.operators.iter().enumerate().zip(variants);
    operators.map(|((index, operator), variant)| operator.rate * fastest(problem, index, *variant)).sum()
}

/// Whether the accuracy limit may still be met; exact for tables and sums, optimistic for row look-up on diamonds.
fn can_be_completed(problem: &Problem, variants: &[Option<usize>]) -> bool {
    let Some(limit) = problem.limits.accuracy else { return true };
    let limit = limit - ACCURACY_TOLERANCE;
    match &problem.accuracy {
        AccuracyModel::None => false,
        AccuracyModel::Table(rows) => rows.iter().any(|row| {
            row.accuracy >= limit
                && row.variants.iter().zip(variants).all(|(has, chosen)| chosen.is_none_or(|m| m == *has))
        }),
        AccuracyModel::Additive { base, contributions } => {
            let best = |(values, chosen): (&Vec<f64>, &Option<usize>)| match chosen {
                Some(variant) => values[*variant],
                None => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            };
            base + contributions.iter().zip(variants).map(best).sum::<f64>() >= limit
        }
        AccuracyModel::RowLookup(rows) => {
            let mut outputs: Vec<Option<f64>> = Vec::new();
            for (operator, chosen) in variants.iter().enumerate() {
                let inputs = inputs_of(problem, operator, &outputs);
                let output = match chosen {
                    Some(variant) => response(&rows[operator][*variant], &inputs),
                    None => rows[operator].iter().filter_map(|rows| response(rows, &inputs)).reduce(f64::max),
                };
                outputs.push(output);
            }
            problem
                .last_operators()
                .into_iter()
                .all(|last| outputs[last].is_some_and(|output| output >= limit))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::{PublishedSetting, published_vqa_problem, small_problem};
    use std::collections::BTreeSet;

    /// All joint variants that run somewhere.
    fn all(problem: &Problem) -> Vec<Vec<usize>> {
        let everywhere = vec![true; problem.worker_classes.len()];
        let mut all = vec![Vec::new()];
        for operator in 0..problem.operators.len() {
            let variants = (0..problem.operators[operator].variants.len())
                .filter(|&variant| runs(problem, &everywhere, operator, variant))
                .collect::<Vec<usize>>();
            all = all
                .iter()
                .flat_map(|chosen: &Vec<usize>| variants.iter().map(|&m| [chosen.as_slice(), &[m]].concat()))
                .collect();
        }
        all
    }

    #[test]
    fn most_accurate_is_what_trying_all_finds() {
        for seed in 1..=400 {
            let mut problem = small_problem(seed);
            let everywhere = vec![true; problem.worker_classes.len()];
            problem.limits.accuracy = None;
            let chosen = most_accurate(&problem, &everywhere).and_then(|chosen| problem.accuracy_of(&chosen));
            let best = all(&problem).iter().filter_map(|chosen| problem.accuracy_of(chosen)).reduce(f64::max);
            assert_eq!(chosen, best, "seed {seed}");
        }
    }

    #[test]
    fn a_wide_beam_keeps_all_accepted_variants_cheapest_first() {
        for seed in 1..=400 {
            let problem = small_problem(seed);
            let found = beam(&problem, 1000);
            let accepted = all(&problem).into_iter().filter(|chosen| problem.accepts(chosen));
            assert_eq!(found.iter().cloned().collect::<BTreeSet<_>>(), accepted.collect(), "seed {seed}");
            let cost = |chosen: &Vec<usize>| -> f64 {
                (0..chosen.len()).map(|v| problem.operators[v].rate * fastest(&problem, v, chosen[v])).sum()
            };
            assert!(found.windows(2).all(|two| cost(&two[0]) <= cost(&two[1]) + 1e-12), "seed {seed}");
            assert!(beam(&problem, 1).len() <= 1);
        }
    }

    #[test]
    fn the_published_case_has_its_variants() {
        let problem = published_vqa_problem(40.0, 56.0, PublishedSetting::Shared);
        assert_eq!(most_accurate(&problem, &[true; 9]), Some(vec![4, 1, 0]));
        assert_eq!(beam(&problem, 16)[0], [0, 1, 0], "the small image model and the large speech model");
    }
}
