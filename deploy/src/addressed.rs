//! Copies of the plan and of the infrastructure with the addresses of the devices that the deployment serves.
use crate::error::DeployError;
use crate::layout::Layout;
use crate::request::Request;
use tidemill_spec::infrastructure::{Device, WorkerType};
use tidemill_spec::yaml::print;

const PLAN: &str =
    "# The plan, with the addresses of the devices that the deployment serves; made by `tidemill deploy`.\n";
const INFRASTRUCTURE: &str = "# The infrastructure, with the addresses of the devices that the deployment serves; made by `tidemill deploy`.\n";

/// Returns the text of the plan.
pub(crate) fn plan(layout: &Layout, request: &Request<'_>) -> Result<String, DeployError> {
    if layout.served().next().is_none() {
        return Ok(request.plan_text.to_owned());
    }
    let mut plan = request.plan.plan.clone();
    for device in plan.devices.iter_mut().filter(|device| device.address.is_none()) {
        let mut served = layout.served().filter(|(_, served)| served.id == device.id);
        device.address = served.next().map(|(_, served)| served.address.clone());
    }
    Ok(PLAN.to_owned() + &print(&plan).map_err(DeployError::Yaml)?)
}

/// Returns the text of the infrastructure, if there is one, and the kinds of served devices that a later plan does not reach by
/// it: a type of several machines has one address, and so have several devices of a kind; and the controller plans with machines
/// that have joined as workers.
pub(crate) fn infrastructure(
    layout: &Layout,
    request: &Request<'_>,
) -> Result<(Option<String>, Vec<String>), DeployError> {
    let Some((infrastructure, text)) = request.infrastructure else { return Ok((None, Vec::new())) };
    if layout.served().next().is_none() {
        return Ok((Some(text.to_owned()), Vec::new()));
    }
    let (mut changed, mut left) = (infrastructure.clone(), Vec::new());
    for device in &request.plan.plan.devices {
        let Some((_, served)) = layout.served().find(|(_, served)| served.id == device.id) else { continue };
        if request.plan.plan.workers.iter().all(|worker| worker.id != device.worker) {
            left.push(device.kind.clone());
        }
        let own = infrastructure.machine(&device.worker).and_then(|machine| {
            let tiers = infrastructure.tiers.iter().zip(&mut changed.tiers);
            let mut types = tiers.flat_map(|(before, now)| before.workers.iter().zip(&mut now.workers.value));
            let (_, of) = types.find(|(before, _)| std::ptr::eq(*before, machine.of))?;
            only(machine.tier.locations.len(), of, &device.kind)
        });
        match own {
            Some(own) => own.address = Some(served.address.clone().into()),
            None => left.push(device.kind.clone()),
        }
    }
    left.sort_unstable();
    left.dedup();
    Ok((Some(INFRASTRUCTURE.to_owned() + &print(&changed).map_err(DeployError::Yaml)?), left))
}

/// The device of a kind in a type that is one machine with one such device.
fn only<'a>(locations: usize, of: &'a mut WorkerType, kind: &str) -> Option<&'a mut Device> {
    let sites = if of.locations.is_empty() { locations.max(1) } else { of.locations.len() };
    let machines = sites * of.count.value as usize;
    let own = of.devices.iter_mut().find(|own| own.kind.value == kind)?;
    (machines == 1 && own.count.value == 1).then_some(own)
}
