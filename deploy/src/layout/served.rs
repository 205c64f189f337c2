//! Devices of a plan that the deployment serves: those without an address.
use super::{Site, fitting, site_of};
use crate::deployment::all_addresses;
use crate::error::DeployError;
use crate::names::{Names, of_worker, plain};
use crate::request::{NetworkMode, Request, Target};
use std::collections::BTreeMap;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::infrastructure::{Infrastructure, WorkerType, numbered_machine};
use tidemill_spec::plan::{PlanDevice, device_of};
use tidemill_spec::units::{Bytes, Percent};
use tidemill_spec::value::Step::{Index, Key};

/// Port of the first device.
pub(crate) const DEVICE_PORT: u16 = 7440;
/// Longest name of a device on its machine and in the cluster.
const LONGEST: usize = 63;

/// A device that the deployment serves.
#[derive(Debug)]
pub(crate) struct Served {
    /// Id in the plan.
    pub(crate) id: String,
    /// Name for containers and files: small letters, digits, dashes.
    pub(crate) short: String,
    /// Name on its machine and in the cluster, which other deployments do not have.
    pub(crate) name: String,
    pub(crate) kind: String,
    /// Its memory, if it is limited.
    pub(crate) memory: Option<Bytes>,
    /// Part of its time for the workflow.
    pub(crate) share: Percent,
    /// Name of its machine in the plan.
    machine: String,
    /// Processors of its machine, if known.
    pub(crate) processors: Option<f64>,
    /// Memory of its machine, if known.
    pub(crate) machine_memory: Option<Bytes>,
    /// Accelerators of its machine.
    accelerators: u32,
    /// Index of the one that it gets.
    pub(crate) accelerator: Option<u32>,
    pub(crate) port: u16,
    pub(crate) metrics_port: u16,
    /// Where it listens, as `HOST:PORT`.
    pub(crate) listens: String,
    /// Where stages reach it.
    pub(crate) address: String,
}

impl Served {
    /// Name of its container.
    pub(crate) fn service(&self) -> String {
        format!("device-{}", self.short)
    }

    /// Name of the secret that it joins with.
    pub(crate) fn join(&self) -> String {
        format!("join-{}", self.service())
    }
}

/// Devices without an address, with their positions in the plan.
fn wanted<'a>(request: &Request<'a>) -> impl Iterator<Item = (usize, &'a PlanDevice)> {
    let devices = &request.plan.plan.devices;
    devices.iter().enumerate().filter(|(_, device)| device.address.is_none())
}

/// Adds the devices to the sites of their machines, which may have no worker.
pub(super) fn place(
    request: &Request<'_>,
    infrastructure: Option<&Infrastructure>,
    sites: &mut Vec<Site>,
) -> Result<(), DeployError> {
    if let Some((_, device)) = wanted(request).next()
        && request.target != Target::Compose
    {
        return Err(DeployError::NoDevices { device: device.id.clone(), target: request.target });
    }
    let mut shorts = Names::default();
    for (index, device) in wanted(request) {
        let machine = machine(request, infrastructure, (index, device))?;
        let (tier, location) = (machine.tier, machine.location);
        let at = site_of(sites, tier, location, infrastructure);
        let short = shorts.take(plain(&device.id));
        sites[at].served.push(Served {
            id: device.id.clone(),
            short,
            name: String::new(),
            kind: device.kind.clone(),
            memory: device.memory,
            share: device.share.unwrap_or(Percent(100.0)),
            machine: device.worker.clone(),
            processors: machine.of.and_then(|of| of.vcpu.as_ref()).map(|vcpu| vcpu.value),
            machine_memory: machine.of.and_then(|of| of.memory.as_ref()).map(|memory| memory.value),
            accelerators: machine
                .of
                .map_or(0, |of| of.accelerators.iter().map(|accelerator| accelerator.count.value).sum()),
            accelerator: None,
            port: DEVICE_PORT,
            metrics_port: crate::WORKER_METRICS_PORT,
            listens: String::new(),
            address: String::new(),
        });
    }
    Ok(())
}

struct Found<'a> {
    tier: &'a str,
    location: Option<&'a str>,
    of: Option<&'a WorkerType>,
}

/// Finds the machine of a device: that of a worker of the plan, or one of the infrastructure.
fn machine<'a>(
    request: &Request<'a>,
    infrastructure: Option<&'a Infrastructure>,
    (index, device): (usize, &PlanDevice),
) -> Result<Found<'a>, DeployError> {
    let workers = &request.plan.plan.workers;
    if let Some(worker) = workers.iter().find(|worker| worker.id == device.worker) {
        let of = infrastructure.and_then(|infrastructure| fitting::machine(worker, infrastructure));
        return Ok(Found { tier: &worker.tier, location: worker.location.as_deref(), of });
    }
    let Some(infrastructure) = infrastructure else {
        return Err(DeployError::NoMachine { device: device.id.clone(), machine: device.worker.clone() });
    };
    if let Some(found) = infrastructure.machine(&device.worker) {
        return Ok(Found { tier: found.tier.id.as_str(), location: found.location, of: Some(found.of) });
    }
    let known = names(infrastructure);
    let place = request.plan.tree().span_at(&[Key("devices"), Index(index), Key("worker")]);
    let message = format!("infrastructure `{}` has no machine `{}`", infrastructure.name, device.worker);
    let help = suggestion(&device.worker, known.iter().map(String::as_str), "machines");
    let found: Diagnostics =
        std::iter::once(Diagnostic::error("E0951", message).at(place).with_help(help)).collect();
    Err(DeployError::Plan(found))
}

/// Names of the first machines of each type.
fn names(infrastructure: &Infrastructure) -> Vec<String> {
    let of_tier = infrastructure.tiers.iter().flat_map(|tier| {
        let locations = tier.locations.iter().map(|location| Some(location.as_str()));
        let locations: Vec<Option<&str>> =
            if tier.locations.is_empty() { vec![None] } else { locations.collect() };
        tier.workers.iter().flat_map(move |of| {
            let here = locations.clone().into_iter().filter(|location| of.is_at(*location));
            here.map(|location| match of.names_at(tier, location).first() {
                Some(name) => name.value.clone(),
                None => numbered_machine(tier.id.as_str(), location, of.worker_type.as_str(), 0),
            })
            .collect::<Vec<_>>()
        })
    });
    of_tier.collect()
}

/// Gives each device one of the accelerators of its machine, in turn. Workers of the machine keep theirs: containers may share
/// an accelerator.
pub(super) fn give_accelerators(site: &mut Site, next: &mut u32) {
    let mut machines: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    for served in site.served.iter_mut().filter(|served| served.accelerators > 0) {
        let (first, given) = machines.entry(served.machine.clone()).or_insert_with(|| {
            let name = of_worker(&served.machine);
            let unit = site.workers.iter().find(|unit| unit.name == name && unit.accelerators > 0);
            let first = unit.map_or(*next, |unit| unit.first_accelerator);
            if unit.is_none() {
                *next = next.saturating_add(served.accelerators);
            }
            (first, 0)
        });
        served.accelerator = Some(first.saturating_add(*given % served.accelerators));
        *given += 1;
    }
}

/// Names the devices, and decides where they listen and how stages reach them; their ports are known.
pub(super) fn address(
    request: &Request<'_>,
    network: NetworkMode,
    project: &str,
    sites: &mut [Site],
) -> Result<(), DeployError> {
    let users = users(request, sites);
    for site in sites {
        let (here, name) = (site.host.clone(), site.name.clone());
        for served in &mut site.served {
            served.name = tail(&format!("{}-{}", project.trim_start_matches("tidemill-"), served.short));
            let (listens, reached) = match (network, &site.reached_at) {
                (NetworkMode::Bridge, _) => ("0.0.0.0", served.service()),
                (NetworkMode::Host, Some(address)) if !site.only_dials => {
                    (all_addresses(address), super::before_port(address))
                }
                (NetworkMode::Host, _) => {
                    let hosts = users.get(&served.id).map(Vec::as_slice).unwrap_or_default();
                    if hosts.iter().any(|host| *host != here) {
                        return Err(DeployError::UnreachedDevice {
                            device: served.id.clone(),
                            location: name,
                            entry: match &site.location {
                                Some(location) => {
                                    format!("- {{tier: {}, location: {location}, address: HOST}}", site.tier)
                                }
                                None => format!("- {{tier: {}, address: HOST}}", site.tier),
                            },
                        });
                    }
                    ("127.0.0.1", "127.0.0.1".to_owned())
                }
            };
            served.listens = format!("{listens}:{}", served.port);
            served.address = format!("tls://{reached}:{}", served.port);
        }
    }
    Ok(())
}

/// Machines of the stages on each device.
fn users(request: &Request<'_>, sites: &[Site]) -> BTreeMap<String, Vec<Option<String>>> {
    let plan = &request.plan.plan;
    let mut users: BTreeMap<String, Vec<Option<String>>> = BTreeMap::new();
    for stage in &plan.stages {
        let Some(id) = stage.device.as_deref().and_then(device_of) else { continue };
        let Some(worker) = plan.workers.iter().find(|worker| worker.id == stage.worker) else { continue };
        let is_it = |site: &&Site| site.tier == worker.tier && site.location == worker.location;
        let host = sites.iter().find(is_it).and_then(|site| site.host.clone());
        users.entry(id.to_owned()).or_default().push(host);
    }
    users
}

/// The last characters of a name, which have its id and the device in them.
fn tail(name: &str) -> String {
    let start = name.len().saturating_sub(LONGEST);
    name[start..].trim_start_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_keeps_what_differs() {
        let name = format!("{}-5c1e9a04-hub-gpu", "w".repeat(60));
        assert_eq!(tail(&name).len(), LONGEST);
        assert!(tail(&name).ends_with("-5c1e9a04-hub-gpu"));
        assert_eq!(tail("vqa-live-gpu"), "vqa-live-gpu");
    }
}
