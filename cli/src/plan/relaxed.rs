//! Relaxations of levels, in words and for programs.
use super::expected::{Nearest, glimpse};
use crate::table::paragraph;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_app::figures::milliseconds;
use tidemill_app::planning::{Case, failed};
use tidemill_app::relaxation::in_words;
use tidemill_optimizer::assemble::Assembly;
use tidemill_optimizer::explain::{Relaxation, Relaxed, combination, relaxations};
use tidemill_optimizer::planner::Planner;
use tidemill_optimizer::solution::{Outcome, Status};

/// Changes that make a plan possible.
#[derive(Debug, Clone)]
pub(crate) struct GiveWay {
    /// Each of these alone suffices.
    alone: Vec<Relaxation>,
    /// If none suffices alone: these together do.
    together: Vec<Relaxation>,
    /// If only the bound on latency is the obstacle: the expected behaviour of a plan that ignores it.
    expected: Option<Nearest>,
}

/// Searches the levels to relax if there is no plan, or if the exact planner found none.
pub(crate) fn give_way(
    case: &Case,
    assembly: &Assembly,
    outcome: &Outcome,
    planner: &dyn Planner,
) -> anyhow::Result<Option<GiveWay>> {
    if outcome.status != Status::Infeasible || !(is_proven(outcome) || outcome.planner == "exact") {
        return Ok(None);
    }
    let problem = &assembly.problem;
    let alone = relaxations(problem, &case.limits).map_err(failed)?;
    let together = match alone.is_empty() {
        true => combination(problem, &case.limits).map_err(failed)?,
        false => Vec::new(),
    };
    let latency = alone.iter().find_map(|relaxation| match relaxation.relaxed {
        Relaxed::Latency { to, .. } => Some(to),
        _ => None,
    });
    let expected = match latency {
        Some(to) => glimpse(case, assembly, planner, to)?,
        None => None,
    };
    Ok(Some(GiveWay { alone, together, expected }))
}

/// Whether the absence of a plan is proven.
pub(super) fn is_proven(outcome: &Outcome) -> bool {
    outcome.bound == Some(f64::INFINITY)
}

impl GiveWay {
    /// Writes a line for each change, and the expected behaviour of plans without a guarantee.
    ///
    /// # Errors
    /// Errors of `out`.
    pub(crate) fn write(&self, case: &Case, assembly: &Assembly, out: &mut dyn Write) -> io::Result<()> {
        let (all, head) = match (self.alone.is_empty(), self.together.is_empty()) {
            (false, _) => (&self.alone, "each of these changes alone makes a plan possible:"),
            (true, false) => {
                (&self.together, "no single change makes a plan possible, but these together do:")
            }
            (true, true) => {
                let text = "found no single change, and no combined change of the service levels, that makes a plan possible";
                return paragraph(out, text);
            }
        };
        writeln!(out, "{head}")?;
        for relaxation in all {
            writeln!(out, "  {}", in_words(case, assembly, relaxation))?;
        }
        let Some(expected) = &self.expected else { return Ok(()) };
        let (seconds, cost) = (milliseconds(expected.seconds * 1e3), super::dollars(expected.cost));
        let what = format!("p{} {seconds}, {cost}", expected.percentile);
        writeln!(out)?;
        let text = match expected.is_kept {
            true => format!(
                "this uses the bound on latency; in a simulation, a plan above the bound keeps the level \
                 ({what}): `--latency expected` plans by simulation"
            ),
            false => format!(
                "this uses the bound on latency; `--latency expected` plans by simulation (of the plans \
                 above the bound, the nearest to the level has {what})"
            ),
        };
        paragraph(out, &text)
    }

    /// Formats for programs: sufficient changes, changes that suffice together, and the expected behaviour.
    pub(crate) fn values(&self, assembly: &Assembly) -> [(&'static str, Value); 3] {
        let all = |relaxations: &[Relaxation]| {
            Value::Array(relaxations.iter().map(|relaxation| value(assembly, relaxation)).collect())
        };
        [
            ("relaxations", all(&self.alone)),
            ("relaxations_together", all(&self.together)),
            ("without_latency_bound", json!(self.expected.as_ref().map(Nearest::value))),
        ]
    }
}

/// Formats one change for programs.
fn value(assembly: &Assembly, relaxation: &Relaxation) -> Value {
    let problem = &assembly.problem;
    let relative = relaxation.relative;
    match &relaxation.relaxed {
        Relaxed::Rate { factor } => {
            json!({"level": "rate", "from": assembly.rate, "to": assembly.rate * factor, "unit": "/s", "relative": relative})
        }
        Relaxed::Accuracy { from, to } => {
            json!({"level": "accuracy", "from": from, "to": to, "unit": "%", "relative": relative})
        }
        Relaxed::Latency { from, to } => {
            json!({"level": "latency", "from": from * 1e3, "to": to * 1e3, "unit": "ms", "relative": relative})
        }
        Relaxed::Utilization { from, to } => {
            json!({"level": "utilization", "from": from, "to": to, "relative": relative})
        }
        Relaxed::Bandwidth { factor } => {
            json!({"level": "bandwidth", "factor": factor, "relative": relative})
        }
        Relaxed::ReturnTraffic => json!({"level": "return_traffic", "from": "forbid", "to": "priced"}),
        Relaxed::Survive { from, to } => {
            json!({"level": "survive", "from": from, "to": to, "unit": "workers", "relative": relative})
        }
        Relaxed::Workers(missing) => {
            let all: Vec<Value> = missing
                .iter()
                .map(|missing| {
                    let class = &problem.worker_classes[missing.class];
                    json!({
                        "location": problem.locations[class.location].name,
                        "worker_type": class.worker_type,
                        "count": missing.count,
                        "price": class.price,
                    })
                })
                .collect();
            json!({"level": "workers", "add": all, "relative": relative})
        }
    }
}
