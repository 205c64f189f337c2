//! A plan after the loss of workers: the same stages on the others, with other routes.
//!
//! The planner writes a [`Fallback`] for each loss that it has proven; [`Plan::without`] applies it. For any other loss
//! it spreads the classes of lost stages over the surviving stages of the operator by their shares, which keeps no
//! promise on loads.
//!
//! ```
//! use std::collections::BTreeSet;
//! use tidemill_spec::plan::Plan;
//! let plan = Plan::parse("
//! version: 1
//! workflow: {name: copy}
//! workers:
//!   - {id: camera, tier: edge, worker_type: source-device}
//!   - {id: box-0, tier: edge, worker_type: box}
//!   - {id: box-1, tier: edge, worker_type: box}
//! stages:
//!   - {id: rows, operator: rows, worker: camera}
//!   - {id: detect@box-0, operator: detect, worker: box-0, variant: small, share: 0.5}
//!   - {id: detect@box-1, operator: detect, worker: box-1, variant: small, share: 0.5}
//! classes:
//!   - {id: 0, share: 0.5, route: {rows: rows, detect: detect@box-0}}
//!   - {id: 1, share: 0.5, route: {rows: rows, detect: detect@box-1}}
//! edges: [{from: rows, to: detect@box-0}, {from: rows, to: detect@box-1}]
//! ", "plan.yaml")?;
//! let after = plan.without(&BTreeSet::from(["box-0".to_owned()])).unwrap();
//! assert_eq!(after.stages.iter().map(|stage| stage.id.as_str()).collect::<Vec<_>>(), ["rows", "detect@box-1"]);
//! assert_eq!(after.stages[1].share, 1.0);
//! let all = BTreeSet::from(["box-0".to_owned(), "box-1".to_owned()]);
//! assert!(plan.without(&all).unwrap_err().to_string().contains("`detect`"));
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
mod check;
mod spread;

use super::{Plan, PlanEdge, RouteClass, Stage, device_of};
use crate::units::Rate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Routes after the loss of some workers of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fallback {
    /// Ids of the lost workers, in alphabetical order.
    pub lost: Vec<String>,
    /// Stages that start again on other workers: sinks, and operators that survive only with a restart. The other stages of the
    /// surviving workers go on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub starts: Vec<Stage>,
    /// Shares of the key space over the remaining and the started stages.
    pub classes: Vec<RouteClass>,
}

/// Why a plan cannot go on without some workers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LossError {
    /// The plan has no worker of that name.
    #[error("the plan has no worker `{0}`")]
    Worker(String),
    /// All stages of these sources and operators are lost.
    #[error("no stage is left of {}", named(.0))]
    NothingLeft(Vec<String>),
    /// More route classes than a plan can number.
    #[error("{0} route classes; a plan has at most 65536")]
    Classes(usize),
}

fn named(operators: &[String]) -> String {
    let named: Vec<String> = operators.iter().map(|operator| format!("`{operator}`")).collect();
    named.join(", ")
}

impl Plan {
    /// Returns the plan without these workers: its surviving stages as they are, and routes over them.
    ///
    /// If the plan has a fallback for exactly these workers, those are its routes. Otherwise each class whose stage is lost is
    /// divided among the surviving stages of the operator in proportion to their shares; a lost operator without models
    /// (a sink, a join) starts again beside the operator before it. Classes whose source is lost end, and the others keep their
    /// proportions. Stages without any class, and unused workers, are left out; so call it on the plan that was made, with all
    /// workers that are lost by now. The result has no predictions and no fallbacks, and the same `plan_version`.
    ///
    /// # Errors
    /// A worker that the plan does not have; a source, or an operator with models, that has no stage left.
    pub fn without(&self, lost: &BTreeSet<String>) -> Result<Self, LossError> {
        if let Some(unknown) = lost.iter().find(|id| self.workers.iter().all(|worker| worker.id != **id)) {
            return Err(LossError::Worker(unknown.clone()));
        }
        let proven = self.fallbacks.iter().find(|fallback| fallback.lost.iter().eq(lost.iter()));
        let after = match proven {
            Some(fallback) => fallback.clone(),
            None => spread::spread(self, lost)?,
        };
        Ok(self.after(lost, after))
    }

    /// Applies a fallback.
    fn after(&self, lost: &BTreeSet<String>, fallback: Fallback) -> Self {
        let Fallback { starts, classes, .. } = fallback;
        let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
        for class in &classes {
            class.route.values().for_each(|stage| *shares.entry(stage).or_default() += class.share);
        }
        let surviving = self.stages.iter().filter(|stage| !lost.contains(&stage.worker)).cloned();
        let mut stages: Vec<Stage> = surviving.chain(starts).collect();
        stages.retain_mut(|stage| match shares.get(stage.id.as_str()) {
            Some(share) => {
                stage.share = share.min(1.0);
                true
            }
            None => false,
        });
        let edges = self.edges_of(&stages, &classes);
        let is_used = |worker: &String| stages.iter().any(|stage| stage.worker == *worker);
        let has_device = |device: &String| {
            stages.iter().any(|stage| stage.device.as_deref().and_then(device_of) == Some(device.as_str()))
        };
        Self {
            workers: self.workers.iter().filter(|worker| is_used(&worker.id)).cloned().collect(),
            devices: self.devices.iter().filter(|device| has_device(&device.id)).cloned().collect(),
            stages,
            classes,
            edges,
            survive: 0,
            fallbacks: Vec::new(),
            predicted: None,
            ..self.clone()
        }
    }

    /// The edges that other routes need, with the figures of those that the plan has between the same operators.
    fn edges_of(&self, stages: &[Stage], classes: &[RouteClass]) -> Vec<PlanEdge> {
        let operator_of = |id: &str| {
            let stage = self.stages.iter().find(|stage| stage.id == id)?;
            Some(stage.operator.as_str())
        };
        let place_of = |stage: &Stage| {
            let worker = self.workers.iter().find(|worker| worker.id == stage.worker)?;
            Some((worker.tier.as_str(), worker.location.as_deref()))
        };
        let mut connections: Vec<(&str, &str, u32)> = Vec::new();
        for edge in &self.edges {
            let Some((from, to)) = operator_of(&edge.from).zip(operator_of(&edge.to)) else { continue };
            if !connections.contains(&(from, to, edge.input)) {
                connections.push((from, to, edge.input));
            }
        }
        let mut edges = Vec::new();
        for (from, to, input) in connections {
            let of_operators = |edge: &&PlanEdge| {
                (operator_of(&edge.from), operator_of(&edge.to), edge.input) == (Some(from), Some(to), input)
            };
            let known: Vec<&PlanEdge> = self.edges.iter().filter(of_operators).collect();
            let rate: Option<f64> = known.iter().map(|edge| edge.rate.map(|rate| rate.0)).sum();
            let mut hops: BTreeMap<(&str, &str), f64> = BTreeMap::new();
            for class in classes {
                let Some((sender, receiver)) = class.route.get(from).zip(class.route.get(to)) else {
                    continue;
                };
                *hops.entry((sender, receiver)).or_default() += class.share;
            }
            for ((sender, receiver), share) in hops {
                let ends = |stages: &[Stage], from: &str, to: &str| {
                    let place = |id: &str| place_of(stages.iter().find(|stage| stage.id == id)?);
                    place(from).zip(place(to)).map(|((a, b), (c, d))| {
                        (a.to_owned(), b.map(str::to_owned), c.to_owned(), d.map(str::to_owned))
                    })
                };
                let way = ends(stages, sender, receiver);
                let alike = known.iter().find(|edge| ends(&self.stages, &edge.from, &edge.to) == way);
                edges.push(PlanEdge {
                    freshness: known.iter().find_map(|edge| edge.freshness),
                    bytes_per_record: known.iter().find_map(|edge| edge.bytes_per_record),
                    rate: rate.map(|rate| Rate((rate * share * 1e6).round() / 1e6)),
                    price: alike.and_then(|edge| edge.price),
                    ..PlanEdge::new(sender, receiver, input)
                });
            }
        }
        edges
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const PLAN: &str = "
version: 1
workflow: {name: copy}
workers:
  - {id: camera, tier: edge, worker_type: source-device}
  - {id: box-0, tier: edge, worker_type: box}
  - {id: box-1, tier: edge, worker_type: box}
  - {id: box-2, tier: edge, worker_type: box}
stages:
  - {id: rows, operator: rows, worker: camera}
  - {id: small@box-0, operator: small, worker: box-0, variant: s, share: 0.25}
  - {id: small@box-1, operator: small, worker: box-1, variant: s, share: 0.25}
  - {id: small@box-2, operator: small, worker: box-2, variant: s, share: 0.5}
  - {id: out, operator: out, worker: box-2}
survive: 1
fallbacks:
  - lost: [box-2]
    starts: [{id: out, operator: out, worker: box-1}]
    classes:
      - {id: 0, share: 0.4, route: {rows: rows, small: small@box-0, out: out}}
      - {id: 1, share: 0.6, route: {rows: rows, small: small@box-1, out: out}}
classes:
  - {id: 0, share: 0.25, route: {rows: rows, small: small@box-0, out: out}}
  - {id: 1, share: 0.25, route: {rows: rows, small: small@box-1, out: out}}
  - {id: 2, share: 0.5, route: {rows: rows, small: small@box-2, out: out}}
edges:
  - {from: rows, to: small@box-0, rate: 10/s}
  - {from: rows, to: small@box-1, rate: 10/s}
  - {from: rows, to: small@box-2, rate: 20/s}
  - {from: small@box-0, to: out}
  - {from: small@box-1, to: out}
  - {from: small@box-2, to: out}
";

    fn after(lost: &[&str]) -> Result<Plan, LossError> {
        let plan = Plan::parse(PLAN, "plan.yaml").unwrap_or_else(|found| panic!("{found}"));
        let after = plan.without(&lost.iter().map(|id| (*id).to_owned()).collect())?;
        let found = after.check(None);
        assert!(!found.has_errors(), "{found}");
        Ok(after)
    }

    fn shares(plan: &Plan) -> Vec<(&str, f64)> {
        plan.stages.iter().map(|stage| (stage.id.as_str(), (stage.share * 1e6).round() / 1e6)).collect()
    }

    #[test]
    fn a_fallback_of_the_plan_is_applied() {
        let plan = after(&["box-2"]).unwrap();
        assert_eq!(shares(&plan), [("rows", 1.0), ("small@box-0", 0.4), ("small@box-1", 0.6), ("out", 1.0)]);
        assert_eq!(plan.stages[3].worker, "box-1");
        let rates: Vec<f64> = plan.edges.iter().filter_map(|edge| edge.rate).map(|rate| rate.0).collect();
        assert_eq!(rates, [16.0, 24.0]);
        assert_eq!((plan.survive, plan.fallbacks.len(), plan.workers.len()), (0, 0, 3));
    }

    #[test]
    fn any_other_loss_is_spread_by_the_shares() {
        let plan = after(&["box-0"]).unwrap();
        let third = 0.333_333;
        let left = [("rows", 1.0), ("small@box-1", third), ("small@box-2", 0.666_667), ("out", 1.0)];
        assert_eq!(shares(&plan), left);
        let plan = after(&["box-0", "box-2"]).unwrap();
        assert_eq!(shares(&plan), [("rows", 1.0), ("small@box-1", 1.0), ("out", 1.0)]);
        assert_eq!(plan.stages[2].worker, "box-1", "the sink starts again beside what feeds it");
    }

    #[test]
    fn what_nothing_replaces_is_named() {
        let all = after(&["box-0", "box-1", "box-2"]).unwrap_err();
        assert_eq!(all, LossError::NothingLeft(vec!["small".to_owned()]));
        assert_eq!(after(&["camera"]).unwrap_err(), LossError::NothingLeft(vec!["rows".to_owned()]));
        assert_eq!(after(&["box-9"]).unwrap_err(), LossError::Worker("box-9".to_owned()));
    }

    #[test]
    fn fallbacks_of_a_file_are_checked() {
        for (wrong, right, expected) in [
            ("lost: [box-9]", "lost: [box-2]", "does not have"),
            ("small: small@box-2, out: out}}\nclasses", "small: small@box-1, out: out}}\nclasses", "lost"),
            (
                "share: 0.5, route: {rows: rows, small: small@box-0",
                "share: 0.4, route: {rows: rows, small: small@box-0",
                "add up",
            ),
        ] {
            let text = PLAN.replacen(right, wrong, 1);
            assert_ne!(text, PLAN);
            let found = Plan::parse(&text, "plan.yaml").unwrap_err().to_string();
            assert!(found.contains("E0421") && found.contains(expected), "{found}");
        }
    }
}
