//! Checks of the fallbacks of a plan.
use super::{Fallback, Plan};
use crate::plan::check::{Check, LOOSE};
use crate::value::Step::{Index, Key};
use crate::workflow::Slo;
use std::collections::{BTreeMap, BTreeSet};

const CODE: &str = "E0421";

impl Check<'_> {
    pub(in crate::plan) fn fallbacks(&mut self, plan: &Plan) {
        if plan.survive > Slo::MOST_LOSSES {
            let message = format!("a plan for {} lost workers at a time", plan.survive);
            self.report(&[Key("survive")], CODE, message, format!("write at most {}", Slo::MOST_LOSSES));
        }
        let mut seen = BTreeSet::new();
        for (index, fallback) in plan.fallbacks.iter().enumerate() {
            let found = wrong(plan, fallback).or_else(|| {
                (!seen.insert(&fallback.lost)).then(|| "the same loss is given twice".to_owned())
            });
            if let Some(message) = found {
                let help = "plan again with `tidemill plan`, or remove the fallback: other losses are spread by the shares";
                self.report(&[Key("fallbacks"), Index(index)], CODE, message, help);
            }
        }
    }
}

fn wrong(plan: &Plan, fallback: &Fallback) -> Option<String> {
    if let Some(unknown) = fallback.lost.iter().find(|id| plan.workers.iter().all(|worker| worker.id != **id))
    {
        return Some(format!("the fallback is for the loss of `{unknown}`, which the plan does not have"));
    }
    if fallback.lost.is_empty() || !fallback.lost.is_sorted_by(|a, b| a < b) {
        return Some("the lost workers of a fallback are not in alphabetical order".to_owned());
    }
    let is_lost = |worker: &String| fallback.lost.contains(worker);
    let known = plan.stages.iter().filter(|stage| !is_lost(&stage.worker));
    let operators: BTreeMap<&str, &str> =
        known.chain(&fallback.starts).map(|stage| (stage.id.as_str(), stage.operator.as_str())).collect();
    for stage in &fallback.starts {
        let is_there = plan.workers.iter().any(|worker| worker.id == stage.worker);
        if plan.stages.iter().any(|known| known.id == stage.id && !is_lost(&known.worker)) {
            return Some(format!("stage `{}` starts in a fallback, and is not lost", stage.id));
        }
        if is_lost(&stage.worker) || !is_there {
            return Some(format!(
                "stage `{}` starts on `{}`, which is lost or unknown",
                stage.id, stage.worker
            ));
        }
    }
    let total: f64 = fallback.classes.iter().map(|class| class.share).sum();
    if (total - 1.0).abs() > LOOSE {
        return Some(format!("the shares of a fallback's classes add up to {total:.9}"));
    }
    let all: BTreeSet<&str> = plan.stages.iter().map(|stage| stage.operator.as_str()).collect();
    for (index, class) in fallback.classes.iter().enumerate() {
        if usize::from(class.id) != index || class.share.is_nan() || class.share <= 0.0 {
            return Some(format!("class {} of a fallback has a wrong number or share", class.id));
        }
        if let Some(operator) = all.iter().find(|operator| !class.route.contains_key(**operator)) {
            return Some(format!("class {} of a fallback has no stage for `{operator}`", class.id));
        }
        for (operator, stage) in &class.route {
            if operators.get(stage.as_str()) != Some(&operator.as_str()) {
                return Some(format!(
                    "class {} of a fallback names the stage `{stage}` for `{operator}`, which is lost or unknown",
                    class.id
                ));
            }
        }
    }
    None
}
