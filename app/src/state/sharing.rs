//! Redistributes the state of an operator to other stages, by its keys.
use crate::state::change::instance_names;
use crate::state::checkpoint::stage_past;
use std::collections::BTreeMap;
use tidemill_engine::{Program, instance_name, state_of};
use tidemill_operators::api::{BoundOperator, Computation, Instance, Spread, Stateful};
use tidemill_spec::plan::Plan;
use tidemill_state::{Manifest, State};

/// Shares that differ by less count as equal.
const TOLERANCE: f64 = 1e-9;

fn fresh(bound: &BoundOperator) -> Option<Box<dyn Stateful>> {
    match (bound.make)() {
        Ok(Instance::Stateful(operator)) => Some(operator),
        _ => None,
    }
}

/// Whether the state of an operator can be redistributed to other stages of a plan: it can be divided, and the key of the
/// division has one meaning in both plans.
pub(crate) fn can_be_shared(old: &Plan, program: &Program, operator: &str) -> bool {
    let Some(bound) = program.operators.values().find(|bound| bound.id == operator) else { return false };
    let near = |a: f64, b: f64| (a - b).abs() < TOLERANCE;
    let [before, now] = [&old.classes, &program.plan.classes];
    // A record got its class at its source.
    let same_classes = before.len() == now.len()
        && before.iter().zip(now).all(|(before, now)| near(before.share, now.share));
    bound.computation == Computation::Stateful
        && (matches!(bound.spread, Spread::Group(_)) || same_classes)
        && fresh(bound).is_some_and(|instance| instance.is_divisible())
}

/// Returns the snapshots at the checkpoint, by instance of an operator in the new plan.
///
/// # Errors
/// The state cannot be read or divided; the text has advice.
pub(crate) fn shared(
    state: &State,
    manifest: &Manifest,
    old: &Plan,
    program: &Program,
    operator: &str,
) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let mut all = BTreeMap::new();
    let stages = || program.plan.stages.iter().filter(|stage| stage.operator == operator);
    let bound = stages().find_map(|stage| program.operators.get(&stage.id));
    let bound = bound.ok_or_else(|| format!("operator `{operator}` is not in the plan"))?;
    let mut snapshots = Vec::new();
    for name in instance_names(old, operator) {
        let Some(kept) = manifest.stages.get(&name).filter(|kept| !kept.objects.is_empty()) else { continue };
        let past = stage_past(state, kept).map_err(|error| error.to_string())?;
        snapshots.push(state_of(&bound.make, &past)?);
    }
    for stage in stages() {
        for partition in 0..stage.partitions.max(1) {
            let share = program.share(stage, partition);
            let mut own = fresh(bound).ok_or_else(|| format!("operator `{operator}` keeps no state"))?;
            for snapshot in &snapshots {
                own.take_in(snapshot, &|keys| share.takes(keys)).map_err(|error| error.message)?;
            }
            let snapshot = own.snapshot().map_err(|error| error.message)?;
            all.insert(instance_name(stage, partition), snapshot);
        }
    }
    Ok(all)
}
