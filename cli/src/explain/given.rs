//! A plan from a file, judged by present figures.
use super::Story;
use crate::plan::{Planned, dollars};
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_app::expectation::Expectation;
use tidemill_app::figures::milliseconds;
use tidemill_app::weak_figures::AccuracyInterval;
use tidemill_optimizer::assemble::Assembly;
use tidemill_optimizer::check::Violation;
use tidemill_optimizer::explain::{Binding, binding};
use tidemill_optimizer::summary::PathLatency;
use tidemill_spec::plan::LatencyBasis;

/// A plan from a file.
pub(super) struct Given {
    /// The problem with the checkpoints of this plan.
    pub(super) assembly: Assembly,
    pub(super) planned: Planned,
    pub(super) violations: Vec<Violation>,
    /// For a plan that meets the latency level by a simulation: its present expectation. Its bounds are no violations.
    pub(super) expected: Option<Expectation>,
}

impl Given {
    /// Whether it violates a level, as far as known.
    pub(super) fn is_broken(&self) -> bool {
        !self.violations.is_empty() || self.expected.as_ref().is_some_and(|expected| !is_kept(expected))
    }
}

/// Whether a simulation expects that all levels are met.
fn is_kept(expected: &Expectation) -> bool {
    matches!(expected, Expectation::Known { .. }) && expected.contradictions().is_empty()
}

/// A service level and the plan's value.
struct Level {
    name: &'static str,
    wanted: Option<String>,
    given: String,
    is_kept: bool,
}

impl Story<'_> {
    /// Writes about the given plan, before the best one is explained.
    pub(super) fn write_given(&self, given: &Given, out: &mut dyn Write) -> io::Result<()> {
        let (workflow, infrastructure) = (&self.case.workflow.name, &self.case.infrastructure.name);
        let summary = &given.planned.summary;
        let cost = &summary.cost;
        let than_best =
            self.best.cost.map(|best| format!(", the best {}", dollars(best))).unwrap_or_default();
        writeln!(
            out,
            "{workflow} on {infrastructure}: the given plan costs {}{than_best}",
            dollars(cost.total())
        )?;
        for violation in &given.violations {
            writeln!(out, "  it does not keep: {}", self.told(given, violation))?;
        }
        for contradiction in given.expected.iter().flat_map(Expectation::contradictions) {
            writeln!(out, "  it is not expected to keep the levels: {}", contradiction.text())?;
        }
        writeln!(out, "\nthe given plan")?;
        writeln!(out, "  variants: {}", self.variants(&given.planned.solution))?;
        writeln!(out, "  cost: compute {}, network {}", dollars(cost.compute), dollars(cost.network))?;
        for traffic in summary.traffic.iter().filter(|traffic| traffic.cost > 0.0) {
            let places = &self.problem().locations;
            let (from, to) = (&places[traffic.from].name, &places[traffic.to].name);
            writeln!(out, "  traffic: {from} -> {to} costs {}", dollars(traffic.cost))?;
        }
        for (name, load) in given.planned.workers.iter().zip(&summary.workers) {
            let most = self.problem().limits.max_utilization;
            writeln!(out, "  {name}: {:.1} % busy, limit {:.0} %", 100.0 * load.utilization, 100.0 * most)?;
        }
        for level in self.levels(given) {
            let wanted = match level.wanted {
                Some(wanted) => {
                    format!(", wanted {wanted}: {}", if level.is_kept { "kept" } else { "not kept" })
                }
                None => String::new(),
            };
            writeln!(out, "  {}: {}{wanted}", level.name, level.given)?;
        }
        writeln!(out, "\nbinding limits of the given plan")?;
        let binding = self.binding_of(given);
        for binding in &binding {
            writeln!(out, "  {}", self.binding(binding))?;
        }
        if binding.is_empty() {
            writeln!(out, "  nothing: every limit has room")?;
        }
        if let (Some(best), Some(total)) = (&self.best.solution, self.best.cost) {
            writeln!(out, "\nchanges by the best plan")?;
            let less = cost.total() - total;
            let change = match less.abs() < 5e-5 {
                true => "as much".to_owned(),
                false if less > 0.0 => format!("{} less", dollars(less)),
                false => format!("{} more", dollars(-less)),
            };
            writeln!(out, "  {}", self.between(&given.planned.solution, best))?;
            writeln!(out, "  cost: {change}")?;
        }
        writeln!(out)
    }

    /// Limits that the given plan uses up, without bounds on latency if the plan does not use them.
    fn binding_of(&self, given: &Given) -> Vec<Binding> {
        let mut found = binding(&given.assembly.problem, &given.planned.solution);
        found.retain(|one| given.expected.is_none() || !matches!(one, Binding::Latency { .. }));
        found
    }

    fn levels(&self, given: &Given) -> Vec<Level> {
        let (problem, summary) = (&given.assembly.problem, &given.planned.summary);
        let is = |kind: fn(&Violation) -> bool| given.violations.iter().any(kind);
        let most = summary.headroom.map(|factor| self.assembly.rate * factor);
        let mut all = vec![Level {
            name: "rate",
            wanted: Some(crate::plan::rate(self.assembly.rate)),
            given: most.map_or_else(|| "any".to_owned(), |most| format!("up to {most:.1}/s")),
            is_kept: !is(|violation| {
                matches!(violation, Violation::Load { .. } | Violation::Bandwidth { .. })
            }),
        }];
        let interval = AccuracyInterval::of(self.case, &given.planned.plan);
        let interval = interval.map(|interval| interval.text()).unwrap_or_default();
        all.push(Level {
            name: "accuracy",
            wanted: problem.limits.accuracy.map(|limit| format!("{limit} %")),
            given: summary
                .accuracy
                .map_or_else(|| "not known".to_owned(), |accuracy| format!("{accuracy:.2} %{interval}")),
            is_kept: !is(|violation| matches!(violation, Violation::Accuracy { .. })),
        });
        let limit = problem.limits.latency.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        all.push(Level {
            name: "latency",
            wanted: limit
                .map(|limit| format!("p{} below {}", limit.percentile, milliseconds(limit.seconds * 1e3))),
            given: match &given.expected {
                Some(expected) => Self::expected_latency(expected),
                None => summary.slowest().map_or_else(|| "not known".to_owned(), latency),
            },
            is_kept: given.expected.as_ref().is_none_or(is_kept)
                && !is(|violation| {
                    matches!(
                        violation,
                        Violation::Latency { .. } | Violation::Wait { .. } | Violation::Shape(_)
                    )
                }),
        });
        all
    }

    /// The simulated latency at the percentile of the level, else at the 99th.
    fn expected_latency(expected: &Expectation) -> String {
        let figures = match (expected, expected.slowest_level()) {
            (Expectation::Unknown(why), _) => return format!("not known: {why}"),
            (_, Some(level)) => (level.percentile, level.seconds),
            (Expectation::Known { latency, .. }, None) => (99.0, latency.p99),
        };
        format!("p{} {} expected, not guaranteed", figures.0, milliseconds(figures.1 * 1e3))
    }

    /// Describes a violation with the names of the plan.
    fn told(&self, given: &Given, violation: &Violation) -> String {
        let name = |worker: &usize| given.planned.workers.get(*worker).cloned().unwrap_or_default();
        match violation {
            Violation::Load { worker, load, allowed } => {
                format!("{} is {:.1} % busy, limit {:.1} %", name(worker), 100.0 * load, 100.0 * allowed)
            }
            Violation::Wait { worker, .. } => {
                format!("the waiting time for {} has no bound", name(worker))
            }
            Violation::Latency { sink, seconds, allowed } => format!(
                "latency: {} at {sink}, limit {}",
                milliseconds(seconds * 1e3),
                milliseconds(allowed * 1e3)
            ),
            Violation::Accuracy { found, needed } => match found {
                Some(found) => format!("accuracy: {found:.2} %, required {needed} %"),
                None => format!("accuracy: not known, required {needed} %"),
            },
            Violation::Memory { worker, needed, available } => format!(
                "{} has {} of memory, but needs {}",
                name(worker),
                tidemill_app::figures::bytes(*available as u64),
                tidemill_app::figures::bytes(*needed as u64)
            ),
            Violation::Shared { worker, count } => {
                format!("{} runs {count} operators, but may run only one", name(worker))
            }
            Violation::Loss { lost, violation } => {
                let lost: Vec<String> = lost.iter().map(name).collect();
                // Workers are numbered without the lost ones then, so only limits are compared by name.
                let what = match &**violation {
                    Violation::Load { load, allowed, .. } => {
                        format!("another is {:.1} % busy, limit {:.1} %", 100.0 * load, 100.0 * allowed)
                    }
                    Violation::Wait { .. } => "the waiting time for another has no bound".to_owned(),
                    Violation::Memory { .. } => "models do not fit into the memory of another".to_owned(),
                    violation => self.told(given, violation),
                };
                format!("after the loss of {}: {what}", lost.join(" and "))
            }
            other => other.to_string(),
        }
    }

    /// The given plan for programs.
    pub(super) fn given_value(&self, given: &Given) -> Value {
        let summary = &given.planned.summary;
        let cost = &summary.cost;
        let levels = self.levels(given).into_iter().map(|level| {
            json!({
                "level": level.name,
                "wanted": level.wanted,
                "given": level.given,
                "kept": level.wanted.is_some().then_some(level.is_kept),
            })
        });
        let workers = given
            .planned
            .workers
            .iter()
            .zip(&summary.workers)
            .map(|(name, load)| json!({"id": name, "utilization": load.utilization}));
        let binding = self.binding_of(given);
        let changes = self.best.solution.as_ref().map(|best| self.between(&given.planned.solution, best));
        json!({
            "cost": cost.total(),
            "compute": cost.compute,
            "network": cost.network,
            "accuracy": summary.accuracy,
            "latency_ms": summary.slowest().filter(|path| path.is_bounded).map(|path| path.total() * 1e3),
            "variants": self.variants(&given.planned.solution),
            "workers": workers.collect::<Vec<_>>(),
            "levels": levels.collect::<Vec<_>>(),
            "latency_basis": match given.expected {
                Some(_) => LatencyBasis::Expected,
                None => LatencyBasis::Guaranteed,
            },
            "violations": given.violations.iter().map(|one| self.told(given, one)).collect::<Vec<_>>(),
            "binding": binding.iter().map(|one| self.binding(one)).collect::<Vec<_>>(),
            "best_changes": changes,
        })
    }
}

/// The slowest path, bounded.
fn latency(path: &PathLatency) -> String {
    let sum = milliseconds(path.total() * 1e3);
    if path.is_bounded { format!("{sum} at most") } else { format!("{sum} and waiting") }
}
