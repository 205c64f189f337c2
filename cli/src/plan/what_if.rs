//! `tidemill plan --what-if lose=N`: what is left of a plan after losses of workers, by trying every set of them.
use super::table::percent;
use super::{Planned, variant_of};
use crate::table::{Side, Table, paragraph};
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::planning::{Case, failed};
use tidemill_optimizer::planners::exact::{Capacity, capacity};
use tidemill_optimizer::problem::Problem;
use tidemill_optimizer::solution::Solution;

/// Most sets of workers of one size to try.
const MOST_SETS: u64 = 5_000;

/// Share of the rate from which on all of it is carried.
const ALL: f64 = 1.0 - 1e-6;

/// Effects of the loss of a number of workers.
#[derive(Debug, Clone, PartialEq)]
struct Loss {
    count: u32,
    /// Sets of that many workers.
    sets: usize,
    /// Sets after which the others keep all levels.
    kept: usize,
    /// Sets after which every operator has a stage.
    staffed: usize,
    worst: Option<Worst>,
}

/// The loss that leaves least.
#[derive(Debug, Clone, PartialEq)]
struct Worst {
    workers: Vec<String>,
    carried: f64,
    without_stage: Vec<String>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WhatIf(Vec<Loss>);

impl WhatIf {
    /// Tries every set of up to so many workers of a plan. The solution has the waits that the planner chose, which leave room for more
    /// load than the least ones.
    ///
    /// # Errors
    /// Too many sets; a failure of the solver.
    pub(crate) fn new(
        case: &Case,
        problem: &Problem,
        (planned, chosen): (&Planned, &Solution),
        most: u32,
    ) -> anyhow::Result<Self> {
        let workers = planned.workers.len() as u64;
        let none = Loss { count: 0, sets: 1, kept: 1, staffed: 1, worst: None };
        let mut all = vec![none];
        for count in 1..=most.min(u32::try_from(workers).unwrap_or(u32::MAX)) {
            let sets = binomial(workers, u64::from(count));
            if sets > MOST_SETS {
                let message = format!(
                    "{workers} workers have {sets} sets of {count}, and at most {MOST_SETS} are tried"
                );
                let help = format!("write `--what-if lose={}`", count - 1);
                return Err(Failure::new(Kind::Usage, message).with_help(help).into());
            }
            let left = capacity(problem, chosen, count).map_err(failed)?;
            all.push(loss(case, problem, planned, count, &left));
        }
        Ok(Self(all))
    }

    /// Writes a table.
    ///
    /// # Errors
    /// Errors of `out`.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\nwhat if workers are lost")?;
        let mut table = Table::new(&[
            ("lost", Side::Right),
            ("all levels kept", Side::Right),
            ("every model left", Side::Right),
            ("worst loss", Side::Left),
            ("carries", Side::Right),
            ("not available", Side::Left),
        ]);
        for loss in &self.0 {
            let of = |part: usize| {
                format!("{part} of {} ({})", loss.sets, percent(part as f64 / loss.sets as f64))
            };
            let worst = loss.worst.as_ref();
            table.row([
                loss.count.to_string(),
                of(loss.kept),
                of(loss.staffed),
                worst.map_or_else(|| "-".to_owned(), |worst| worst.workers.join(", ")),
                worst.map_or_else(|| percent(1.0), |worst| percent(worst.carried)),
                worst.map_or_else(String::new, |worst| worst.without_stage.join(", ")),
            ]);
        }
        table.write(out)?;
        paragraph(
            out,
            "of all sets of so many workers of the plan; `carries` is the part of the rate that the others carry within all levels, \
             with the models that they have. The devices of sources are no part of it: each takes its own records with it",
        )
    }

    /// The rows for programs.
    pub(crate) fn value(&self) -> Value {
        let row = |loss: &Loss| {
            let worst = loss.worst.as_ref().map(|worst| {
                json!({
                    "workers": worst.workers,
                    "carried_share": worst.carried,
                    "not_available": worst.without_stage,
                })
            });
            json!({
                "lost": loss.count,
                "sets": loss.sets,
                "sets_with_all_levels": loss.kept,
                "chance_of_all_levels": loss.kept as f64 / loss.sets as f64,
                "sets_with_every_model": loss.staffed,
                "chance_of_every_model": loss.staffed as f64 / loss.sets as f64,
                "worst": worst,
            })
        };
        Value::Array(self.0.iter().map(row).collect())
    }
}

fn loss(case: &Case, problem: &Problem, planned: &Planned, count: u32, left: &[Capacity]) -> Loss {
    let worst = left.iter().min_by(|a, b| {
        a.carried.total_cmp(&b.carried).then(b.without_stage.len().cmp(&a.without_stage.len()))
    });
    let worst = worst.map(|of| Worst {
        workers: of.lost.iter().map(|worker| planned.workers[*worker].clone()).collect(),
        carried: of.carried,
        without_stage: of
            .without_stage
            .iter()
            .map(|operator| match variant_of(case, problem, &planned.solution, *operator) {
                Some(variant) => format!("{} ({variant})", problem.operators[*operator].id),
                None => problem.operators[*operator].id.clone(),
            })
            .collect(),
    });
    Loss {
        count,
        sets: left.len(),
        kept: left.iter().filter(|of| of.carried >= ALL).count(),
        staffed: left.iter().filter(|of| of.without_stage.is_empty()).count(),
        worst,
    }
}

/// Number of sets of `k` of `n`, saturating.
fn binomial(n: u64, k: u64) -> u64 {
    (0..k).fold(1u64, |sets, index| sets.saturating_mul(n - index) / (index + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_counted() {
        assert_eq!([binomial(3, 1), binomial(3, 2), binomial(3, 3), binomial(10, 4)], [3, 3, 1, 210]);
    }
}
