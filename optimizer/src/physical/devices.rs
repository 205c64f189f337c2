//! Devices of a plan, and what is expected of the models on them.
use super::nanoseconds;
use crate::assemble::Assembly;
use crate::solution::{Hosting, Solution};
use tidemill_spec::plan::{DEVICE_SCHEME, PlanDevice, RemoteRun};
use tidemill_spec::units::{Bytes, HourlyPrice, Percent};

/// The devices in use; `names` has the ids of the solution's workers, devices included.
pub(super) fn devices(assembly: &Assembly, solution: &Solution, names: &[String]) -> Vec<PlanDevice> {
    let used = solution.workers.iter().zip(names).filter_map(|(used, id)| {
        let facts = assembly.devices.get(used.class)?.as_ref()?;
        let device = &facts.of;
        Some(PlanDevice {
            id: id.clone(),
            kind: device.kind.value.clone(),
            worker: facts.machines.get(used.index as usize)?.clone(),
            address: device.address.as_ref().map(|address| address.value.clone()),
            spares: device.spares.iter().map(|address| address.value.clone()).collect(),
            memory: device.memory.as_ref().map(|memory| memory.value),
            share: device.share.as_ref().map(|share| share.value),
            price: device.price.as_ref().map(|price| HourlyPrice(price.0)),
        })
    });
    used.collect()
}

/// The device of a hosting as its stage names it.
pub(super) fn named(hosting: &Hosting, names: &[String]) -> Option<String> {
    let device = names.get(hosting.device?.worker)?;
    Some(format!("{DEVICE_SCHEME}:{device}"))
}

/// What is expected of the model of a hosting on its device.
pub(super) fn remote_run(assembly: &Assembly, solution: &Solution, hosting: &Hosting) -> Option<RemoteRun> {
    let problem = &assembly.problem;
    let (remote, device) = (problem.remote_of(solution, hosting)?, hosting.device?);
    let way = problem.way(hosting.location, remote)?;
    let rate = problem.operator_rate(hosting.operator, &solution.variants) * hosting.share;
    // Times on the device are those of a device of which the workflow has all.
    let share = assembly.devices.get(remote.class)?.as_ref()?.of.share();
    let part = rate * remote.run.seconds_per_record * share * 100.0;
    Some(RemoteRun {
        sent: Bytes(remote.sent_bytes.round() as u64),
        received: Bytes(remote.received_bytes.round() as u64),
        round_trip: nanoseconds(way.round_trip),
        transfer: nanoseconds(way.transfer),
        queue: nanoseconds(device.wait_seconds.unwrap_or(0.0)),
        compute: nanoseconds(remote.run.call_seconds),
        share: Percent((part * 1e4).round() / 1e4),
    })
}
