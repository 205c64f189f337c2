//! Losses of workers that a plan must survive, and which operators need no restart for it.
use super::{Inputs, Level, Options};
use crate::planners::exact::restarts;
use crate::problem::{Limits, Operator};
use tidemill_spec::workflow::Slo;

/// Sets the losses to survive: of the plan, and of each operator without a restart.
pub(super) fn survive(
    inputs: &Inputs<'_>,
    options: &Options,
    mut operators: Vec<Operator>,
    limits: &mut Limits,
    notes: &mut Vec<String>,
) -> Vec<Operator> {
    if options.without.contains(&Level::Survive) {
        return operators;
    }
    let mut slo: Slo = inputs.workflow.slo.clone();
    if let Some(losses) = options.survive {
        slo.survive = Some(losses.into());
    }
    limits.survive = slo.survive.as_ref().map_or(0, |losses| losses.value);
    for operator in &mut operators {
        let members = std::iter::once(&operator.id).chain(&operator.fused);
        let of_workflow =
            members.filter_map(|id| inputs.workflow.operators.iter().find(|of| of.id.value == *id));
        let asked = of_workflow.map(|of| of.survives(&slo)).max().unwrap_or(0);
        limits.survive = limits.survive.max(asked);
        match restarts(operator) {
            false => operator.survive = asked,
            true if asked > 0 && !operator.weightless => notes.push(format!(
                "{} has state: after a loss it continues from the last checkpoint, on another worker where its own is lost",
                operator.id
            )),
            true => {}
        }
    }
    operators
}
