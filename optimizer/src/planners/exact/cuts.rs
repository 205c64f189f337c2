//! Rows that every plan keeps and that the relaxation breaks: mixed-integer rounding of the rows that count workers.
//!
//! `y` workers, whole, carry `sum a_j phi_j <= y`, and a share `phi_j` is at most the binary `b_j` of its variant. For
//! any set `S` of shares, with `A = sum_S a_j` and its fraction `f`, a mixed-integer rounding gives
//!
//! ```text
//! y + sum_S G(a_j) (1 - b_j) + sum_S a_j (b_j - phi_j) / f >= ceil(A),  G(a) = floor(a) + min(1, frac(a) / f)
//! ```
//!
//! (Nemhauser and Wolsey 1990; Marchand and Wolsey 2001, with the binaries complemented). The relaxation rents
//! fractions of workers; where the shares of `S` are whole, this row asks for whole ones. A program with these rows has
//! the same points, and a better bound.
use super::live::Live;
use super::model::Model;
use super::prepared::Prepared;
use super::program::{Column, SolverForm, Terms};

/// Rounds of looking for rows.
const ROUNDS: usize = 12;
/// By so much of a worker a row must be broken.
const BROKEN: f64 = 0.01;
/// Fractions nearer to 0 or 1 give rows with large coefficients.
const FRACTION: f64 = 0.02;
/// The rounds end where all rows of one raise the bound by less than this part.
const RISE: f64 = 1e-5;

/// A share that takes time of the workers of a count.
#[derive(Debug, Clone, Copy)]
struct Item {
    /// Workers for the whole of the operator.
    load: f64,
    share: Column,
    binary: Option<Column>,
}

/// A row of the program that counts workers.
struct Counted {
    count: Column,
    items: Vec<Item>,
}

/// Adds rows to the program of a model while they raise the bound of its relaxation; returns the better relaxation.
pub(super) fn strengthen(
    prepared: &Prepared<'_>,
    model: &mut Model,
    form: &SolverForm,
    mut live: Live,
    seconds: impl Fn() -> f64,
) -> Live {
    let rows = counted(prepared, model);
    for _ in 0..ROUNDS {
        let before = live.cost(form);
        let values = live.values(form);
        let found: Vec<(Terms, f64)> = rows.iter().filter_map(|row| separated(row, &values)).collect();
        if found.is_empty() || seconds() <= 0.0 {
            break;
        }
        for (terms, right) in found {
            let Ok(next) = live.clone().with_row(form, &terms, right) else { return live };
            live = next;
            model.program.at_least(terms, right);
        }
        if live.cost(form) < before * (1.0 + RISE) {
            break;
        }
    }
    live
}

fn counted(prepared: &Prepared<'_>, model: &Model) -> Vec<Counted> {
    let exclusive = prepared.problem.limits.one_operator_per_worker;
    let mut rows = Vec::new();
    for (class, counts) in model.counts.iter().enumerate() {
        for &(only, count) in counts {
            for of in [|load: f64, _: f64| load, |_: f64, wait: f64| wait] {
                let mut items = Vec::new();
                for (operator, columns) in model.shares.iter().enumerate() {
                    if exclusive && only != Some(operator) {
                        continue;
                    }
                    for &(index, share) in columns {
                        let choice = &prepared.choices[operator][index];
                        let load = of(choice.load, choice.wait_load);
                        if choice.class == Some(class) && load > 0.0 {
                            items.push(Item {
                                load,
                                share,
                                binary: model.binaries[operator][choice.variant],
                            });
                        }
                    }
                }
                if !items.is_empty() {
                    rows.push(Counted { count, items });
                }
            }
        }
    }
    rows
}

/// The most broken row over sets of the shares that are in use; none where none is broken.
fn separated(row: &Counted, values: &[f64]) -> Option<(Terms, f64)> {
    let one = |item: &Item| item.binary.map_or(1.0, |binary| values[binary]);
    let mut used: Vec<Item> = row.items.iter().copied().filter(|item| values[item.share] > 1e-6).collect();
    used.sort_by(|a, b| values[b.share].total_cmp(&values[a.share]).then(a.share.cmp(&b.share)));
    let count = values[row.count];
    // How much a set is broken: its sum of loads decides the fraction, on which all else depends.
    let broken = |set: &[bool]| -> f64 {
        let chosen = || used.iter().zip(set).filter(|(_, is)| **is).map(|(item, _)| item);
        let sum: f64 = chosen().map(|item| item.load).sum();
        let fraction = sum - sum.floor();
        if !(FRACTION..=1.0 - FRACTION).contains(&fraction) {
            return f64::NEG_INFINITY;
        }
        let slack: f64 = chosen()
            .map(|item| {
                rounded(item.load, fraction) * (1.0 - one(item))
                    + item.load * (one(item) - values[item.share]) / fraction
            })
            .sum();
        sum.ceil() - count - slack
    };
    let mut set = vec![false; used.len()];
    let (mut best, mut most) = (set.clone(), f64::NEG_INFINITY);
    for index in 0..used.len() {
        set[index] = true;
        let by = broken(&set);
        if by > most {
            (best, most) = (set.clone(), by);
        }
    }
    // One share in or out, while it helps.
    for _ in 0..2 * used.len() {
        let mut better = None;
        for index in 0..used.len() {
            best[index] = !best[index];
            let by = broken(&best);
            if by > most + 1e-9 {
                (better, most) = (Some(index), by);
            }
            best[index] = !best[index];
        }
        match better {
            Some(index) => best[index] = !best[index],
            None => break,
        }
    }
    if most < BROKEN {
        return None;
    }
    let chosen: Vec<Item> = used.iter().zip(&best).filter(|(_, is)| **is).map(|(item, _)| *item).collect();
    let sum: f64 = chosen.iter().map(|item| item.load).sum();
    let fraction = sum - sum.floor();
    let mut right = sum.ceil();
    let mut terms: Terms = vec![(row.count, 1.0)];
    for item in chosen {
        let slope = item.load / fraction;
        terms.push((item.share, -slope));
        match item.binary {
            Some(binary) => {
                let g = rounded(item.load, fraction);
                terms.push((binary, slope - g));
                right -= g;
            }
            None => right -= slope,
        }
    }
    Some((merged(terms), right))
}

/// `floor(a) + min(1, frac(a) / f)`.
fn rounded(load: f64, fraction: f64) -> f64 {
    load.floor() + ((load - load.floor()) / fraction).min(1.0)
}

/// Each column once: an operator may have several shares with one binary (waits, modes).
fn merged(mut terms: Terms) -> Terms {
    terms.sort_by_key(|(column, _)| *column);
    terms.dedup_by(|later, earlier| {
        let is_same = later.0 == earlier.0;
        if is_same {
            earlier.1 += later.1;
        }
        is_same
    });
    terms
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every whole point keeps the row; the relaxation's point breaks it.
    #[test]
    fn a_row_cuts_off_fractions_of_workers_only() {
        let (count, share, binary, single) = (0, 1, 2, 3);
        let items = vec![
            Item { load: 1.3, share, binary: Some(binary) },
            Item { load: 0.5, share: single, binary: None },
        ];
        let row = Counted { count, items };
        let relaxed = [1.3 + 0.45, 1.0, 1.0, 0.9];
        let (terms, right) = separated(&row, &relaxed).expect("is broken");
        let left = |point: &[f64]| terms.iter().map(|(column, value)| value * point[*column]).sum::<f64>();
        assert!(left(&relaxed) < right - BROKEN);
        for chosen in [0.0, 1.0] {
            for step in 0..=20 {
                for other in 0..=20 {
                    let (share, single) = (chosen * f64::from(step) / 20.0, f64::from(other) / 20.0);
                    let workers = (1.3 * share + 0.5 * single - 1e-9).ceil().max(0.0);
                    let point = [workers, share, chosen, single];
                    assert!(left(&point) >= right - 1e-9, "{point:?} breaks {terms:?} >= {right}");
                }
            }
        }
    }
}
