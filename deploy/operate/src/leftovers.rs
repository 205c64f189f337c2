//! Remains of a deployment's earlier plans: containers of locations, workers and machines that the present one lacks.
use crate::cause::{Cause, OperateError};
use crate::control::Control;
use crate::engine::Engine;
use crate::equipment::causes;
use crate::machine::Machine;
use crate::site::Site;

/// Returns the machines of the deployment, including earlier plans, each once.
pub(crate) fn machines(site: &Site) -> Vec<&Machine> {
    let all = site.places().iter().map(|place| &place.machine);
    let mut machines: Vec<&Machine> = Vec::new();
    for machine in all.chain(site.former().iter().map(|former| &former.machine)) {
        if !machines.contains(&machine) {
            machines.push(machine);
        }
    }
    machines
}

/// Describes containers of the deployment that are not in its plan. Reports unreachable machines as such.
pub(crate) fn find(site: &Site, control: Control<'_>) -> Result<Vec<String>, OperateError> {
    let Some(id) = site.id() else { return Ok(Vec::new()) };
    let mut left = Vec::new();
    for machine in machines(site) {
        let mut wrong: Vec<Cause> = Vec::new();
        let found = causes(Engine::of(machine, control).of_deployment(id), &mut wrong)?;
        let is_wanted = |project: &str, service: &str| {
            if !site.is_own(project) {
                return true; // of another workflow with this id
            }
            let of_machine = site.places().iter().filter(|place| place.machine == *machine);
            of_machine.map(|place| &place.location).any(|location| {
                location.project == project && location.services.iter().any(|one| one.service == service)
            })
        };
        let other = found.into_iter().flatten().filter(|[_, project, service]| !is_wanted(project, service));
        left.extend(other.map(|[name, ..]| format!("container {name} on {}", machine.name())));
        let of_former = site.former().iter().filter(|former| former.machine == *machine);
        let places = of_former.map(|former| former.name.as_str()).collect::<Vec<_>>().join(", ");
        left.extend(wrong.iter().map(|cause| format!("possible remains of {places}: {cause}")));
    }
    Ok(left)
}
