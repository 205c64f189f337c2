//! Extracts a placement from a point of the program.
use super::best::realised_placement;
use super::model::Model;
use super::prepared::Prepared;
use super::program::Point;
use crate::problem::{Problem, Producer};
use crate::realise::{Factor, Part, Pattern, Placement, RealiseError, SMALL_SHARE, WorkerGroup, join};
use crate::solution::Solution;

/// The placement of a point with whole numbers.
pub(super) fn placement(prepared: &Prepared<'_>, model: &Model, values: &[f64]) -> Placement {
    let variants = model.joint(values);
    Placement {
        groups: groups(prepared, model, values, &variants),
        variants,
        patterns: patterns(prepared, model, values),
    }
}

fn groups(prepared: &Prepared<'_>, model: &Model, values: &[f64], variants: &[usize]) -> Vec<WorkerGroup> {
    let mut groups = Vec::new();
    for (class, counts) in model.counts.iter().enumerate() {
        let facts = &prepared.classes[class];
        for &(only, count) in counts {
            let count = values[count].round() as u32;
            let mut parts = Vec::new();
            for (operator, columns) in model.shares.iter().enumerate() {
                if only.is_some_and(|only| only != operator) {
                    continue;
                }
                for &(index, column) in columns {
                    let choice = &prepared.choices[operator][index];
                    let is_here = choice.class == Some(class) && choice.variant == variants[operator];
                    if is_here && values[column] > SMALL_SHARE {
                        parts.push(Part { operator, mode: choice.mode, share: values[column] });
                    }
                }
            }
            if count > 0 && !parts.is_empty() {
                groups.push(WorkerGroup { class: facts.class, count, wait_seconds: facts.wait, parts });
            }
        }
    }
    groups
}

fn patterns(prepared: &Prepared<'_>, model: &Model, values: &[f64]) -> Vec<Pattern> {
    if !prepared.plans_routes {
        return in_order(prepared, model, values);
    }
    let operators = prepared.problem.operators.len();
    let mut large = model.tuples.iter();
    let mut factors = Vec::new();
    for clique in &prepared.tree.cliques {
        let table: Vec<(Vec<usize>, f64)> = match clique.nodes.as_slice() {
            [node] => shares_of(prepared, model, values, *node),
            [a, b] => {
                let link = Model::link_between(prepared, *a, *b);
                let columns = link.map(|link| (prepared.links[link].from == *a, model.link_columns(link)));
                columns.map_or_else(Vec::new, |(is_forward, columns)| {
                    let mut table: Vec<(Vec<usize>, f64)> = Vec::new();
                    for (_, from, to, column) in columns {
                        let tuple = if is_forward { vec![from, to] } else { vec![to, from] };
                        match table.iter_mut().find(|(other, _)| *other == tuple) {
                            Some((_, share)) => *share += values[column],
                            None => table.push((tuple, values[column])),
                        }
                    }
                    table
                })
            }
            _ => large.next().map_or_else(Vec::new, |tuples| {
                tuples.iter().map(|(tuple, column)| (tuple.clone(), values[*column])).collect()
            }),
        };
        factors.push(Factor { nodes: clique.nodes.clone(), separator: clique.separator.clone(), table });
    }
    let joined = join(prepared.nodes(), &factors);
    let source = |locations: &[Option<usize>], source: usize| match prepared.node_of(Producer::Source(source))
    {
        Some(node) => locations[node].unwrap_or(0),
        None => prepared.problem.sources[source].locations[0].0,
    };
    joined
        .into_iter()
        .map(|(locations, share)| Pattern {
            share,
            sources: (0..prepared.problem.sources.len()).map(|index| source(&locations, index)).collect(),
            operators: (0..operators).map(|operator| locations[operator].unwrap_or(0)).collect(),
            lanes: Vec::new(),
        })
        .collect()
}

/// Every operator assigns the keys to its locations in the same order, lowest tier first. Where traffic only goes up
/// this finds a routing whenever there is one; where the price of a route grows evenly with its length, it is the
/// cheapest.
fn in_order(prepared: &Prepared<'_>, model: &Model, values: &[f64]) -> Vec<Pattern> {
    let problem = prepared.problem;
    let operators = 0..problem.operators.len();
    let mut left: Vec<Vec<(usize, f64)>> = operators
        .map(|operator| {
            let mut shares = shares_of(prepared, model, values, operator);
            shares.retain(|(_, share)| *share > SMALL_SHARE);
            shares.sort_by_key(|(at, _)| std::cmp::Reverse((problem.locations[at[0]].tier, at[0])));
            shares.into_iter().map(|(at, share)| (at[0], share)).collect()
        })
        .collect();
    let mut patterns = Vec::new();
    let mut rest = 1.0;
    while rest > SMALL_SHARE {
        let next = left.iter().map(|of| if of.len() > 1 { of[of.len() - 1].1 } else { rest });
        let share = next.fold(rest, f64::min);
        if share > SMALL_SHARE {
            patterns.push(Pattern {
                share,
                sources: problem.sources.iter().map(|source| source.locations[0].0).collect(),
                operators: left.iter().map(|of| of.last().map_or(0, |(at, _)| *at)).collect(),
                lanes: Vec::new(),
            });
        }
        for of in &mut left {
            if let Some(last) = of.last_mut() {
                last.1 -= share;
            }
            if of.len() > 1 && of[of.len() - 1].1 <= SMALL_SHARE {
                of.pop();
            }
        }
        rest -= share;
    }
    patterns
}

/// Shares of a node by location.
fn shares_of(prepared: &Prepared<'_>, model: &Model, values: &[f64], node: usize) -> Vec<(Vec<usize>, f64)> {
    let operators = prepared.problem.operators.len();
    if node >= operators {
        let locations = prepared.origins[node - operators].iter();
        return locations.map(|&(location, share)| (vec![location], share)).collect();
    }
    let there = |location: usize| -> f64 {
        let columns = model.shares[node].iter();
        columns
            .filter(|(i, _)| prepared.choices[node][*i].location == location)
            .map(|(_, c)| values[*c])
            .sum()
    };
    prepared.domains[node].iter().map(|&location| (vec![location], there(location))).collect()
}

/// Realises a point, with up to two more workers of a class whose models do not fit. Its cost counts them.
pub(super) fn realised(
    problem: &Problem,
    prepared: &Prepared<'_>,
    model: &Model,
    point: &Point,
) -> Result<Solution, RealiseError> {
    realised_placement(problem, placement(prepared, model, &point.values))
}
