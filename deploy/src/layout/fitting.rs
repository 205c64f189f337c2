//! Checks a plan against an infrastructure, and maps workers to its machines.
use crate::error::DeployError;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::infrastructure::{Infrastructure, WorkerType};
use tidemill_spec::plan::{PlanFile, PlanWorker, SOURCE_DEVICE};
use tidemill_spec::value::Step::{Index, Key};

/// Checks that tier, location and type of every worker exist in the infrastructure.
pub(super) fn check(plan: &PlanFile, infrastructure: &Infrastructure) -> Result<(), DeployError> {
    let found: Diagnostics = (0..)
        .zip(&plan.plan.workers)
        .filter_map(|(index, worker)| {
            let (key, message, help) = unknown(worker, infrastructure)?;
            let place = plan.tree().span_at(&[Key("workers"), Index(index), Key(key)]);
            Some(Diagnostic::error("E0951", message).at(place).with_help(help))
        })
        .collect();
    if found.is_empty() { Ok(()) } else { Err(DeployError::Plan(found)) }
}

/// Returns the unknown attribute of a worker: its key, and the message.
fn unknown(worker: &PlanWorker, infrastructure: &Infrastructure) -> Option<(&'static str, String, String)> {
    let name = &infrastructure.name;
    let Some(tier) = infrastructure.tier(&worker.tier) else {
        let tiers = infrastructure.tiers.iter().map(|tier| tier.id.as_str());
        let message = format!("infrastructure `{name}` has no tier `{}`", worker.tier);
        return Some(("tier", message, suggestion(&worker.tier, tiers, "tiers")));
    };
    if let Some(location) = &worker.location
        && !tier.locations.iter().any(|known| known.value == *location)
    {
        let known = tier.locations.iter().map(|known| known.as_str());
        let message = format!("tier `{}` of infrastructure `{name}` has no location `{location}`", tier.id);
        return Some(("location", message, suggestion(location, known, "locations")));
    }
    if worker.worker_type != SOURCE_DEVICE && tier.worker_type(&worker.worker_type).is_none() {
        let known = tier.workers.iter().map(|known| known.worker_type.as_str());
        let message =
            format!("tier `{}` of infrastructure `{name}` has no `{}`", tier.id, worker.worker_type);
        return Some(("worker_type", message, suggestion(&worker.worker_type, known, "types of workers")));
    }
    None
}

/// Returns the machine of a worker: the one of its name, else one of its type at its location.
pub(super) fn machine<'a>(worker: &PlanWorker, infrastructure: &'a Infrastructure) -> Option<&'a WorkerType> {
    let machines = &infrastructure.tier(&worker.tier)?.workers;
    let of_type = |machine: &&WorkerType| machine.worker_type.value == worker.worker_type;
    let of_name = |machine: &&WorkerType| machine.names.iter().any(|name| name.value == worker.id);
    let at = worker.location.as_deref();
    machines
        .iter()
        .find(|machine| of_type(machine) && of_name(machine))
        .or_else(|| machines.iter().find(|machine| of_type(machine) && machine.is_at(at)))
        .or_else(|| machines.iter().find(of_type))
}
