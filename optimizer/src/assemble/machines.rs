//! Tiers, sites, machines and links as locations, worker classes and routes.
use super::Site;
use crate::problem::{Location, Route, WorkerClass};
use tidemill_spec::infrastructure::{Device, Infrastructure, Link, Tier, WorkerType};

/// The infrastructure as numbers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Machines {
    pub(super) sites: Vec<Site>,
    pub(super) locations: Vec<Location>,
    pub(super) classes: Vec<WorkerClass>,
    /// Names, and the share of time that other programs take, by class.
    pub(super) names: Vec<Vec<String>>,
    pub(super) busy: Vec<f64>,
    pub(super) routes: Vec<Vec<Option<Route>>>,
    /// Facts of the classes of devices; none for workers.
    pub(super) devices: Vec<Option<DeviceFacts>>,
}

/// Devices of one kind in the machines of one class.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceFacts {
    /// Class of the machines.
    pub owner: usize,
    /// Names of the machines, by device.
    pub machines: Vec<String>,
    /// As the infrastructure states.
    pub of: Device,
}

impl Machines {
    /// Types of workers, each once, in the order of the infrastructure.
    pub(super) fn worker_types(&self) -> Vec<&str> {
        let mut types: Vec<&str> = Vec::new();
        for (class, device) in self.classes.iter().zip(&self.devices) {
            if device.is_none() && !types.contains(&class.worker_type.as_str()) {
                types.push(&class.worker_type);
            }
        }
        types
    }

    /// Locations of a source with the share of its records: as the infrastructure states, else the lowest tier; spread
    /// evenly over the sites of a tier.
    pub(super) fn source(&self, infrastructure: &Infrastructure, id: &str) -> Vec<(usize, f64)> {
        let place = infrastructure.source(id);
        let lowest = infrastructure.tiers.first().map(|tier| &tier.id.value);
        let tier = place.map(|place| &place.tier.value).or(lowest);
        let named = place.and_then(|place| place.location.as_ref()).map(|name| &name.value);
        let is_there = |at: &usize| {
            Some(&self.sites[*at].tier) == tier
                && (named.is_none() || self.sites[*at].location.as_ref() == named)
        };
        let all: Vec<usize> = (0..self.sites.len()).filter(is_there).collect();
        all.iter().map(|&at| (at, 1.0 / all.len() as f64)).collect()
    }

    /// Whether no traffic has a price or a bound, so that sizes of messages do not matter.
    pub(super) fn traffic_is_free(&self) -> bool {
        self.routes.iter().flatten().flatten().all(|route| route.price == 0.0 && route.bandwidth.is_none())
    }
}

/// Builds the machines: each site of a tier is a location with all worker types of the tier.
pub(super) fn machines(infrastructure: &Infrastructure) -> Machines {
    let (mut sites, mut locations, mut classes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut all_names, mut busy) = (Vec::new(), Vec::new());
    for (number, tier) in infrastructure.tiers.iter().enumerate() {
        let names: Vec<Option<String>> = match tier.locations.is_empty() {
            true => vec![None],
            false => tier.locations.iter().map(|site| Some(site.value.clone())).collect(),
        };
        for site in names {
            let name =
                site.as_ref().map_or_else(|| tier.id.value.clone(), |site| format!("{}/{site}", tier.id));
            for worker in tier.workers.iter().filter(|worker| worker.is_at(site.as_deref())) {
                all_names.push(names_at(tier, worker, site.as_deref()));
                busy.push(worker.busy.as_ref().map_or(0.0, |busy| busy.0 / 100.0));
                classes.push(WorkerClass {
                    location: locations.len(),
                    worker_type: worker.worker_type.value.clone(),
                    count: worker.count.value,
                    price: worker.price.0,
                    memory_bytes: worker.memory.as_ref().map(|memory| memory.0 as f64),
                });
            }
            locations.push(Location { name, tier: number });
            sites.push(Site { tier: tier.id.value.clone(), location: site });
        }
    }
    let devices = add_devices(infrastructure, &sites, &mut classes, &mut all_names);
    busy.resize(classes.len(), 0.0);
    let route = |from: usize, to: usize| route(infrastructure, &sites, from, to);
    let routes = (0..sites.len()).map(|from| (0..sites.len()).map(|to| route(from, to)).collect()).collect();
    Machines { sites, locations, classes, names: all_names, busy, routes, devices }
}

/// Adds a class for the devices of one kind in the machines of one class; returns the facts of all classes.
fn add_devices(
    infrastructure: &Infrastructure,
    sites: &[Site],
    classes: &mut Vec<WorkerClass>,
    names: &mut Vec<Vec<String>>,
) -> Vec<Option<DeviceFacts>> {
    let mut facts = vec![None; classes.len()];
    for owner in 0..classes.len() {
        let machine = classes[owner].clone();
        let site = &sites[machine.location];
        let types = infrastructure.tier(&site.tier).map(|tier| tier.workers.iter()).into_iter().flatten();
        // Types with names may be several times in a tier: these have the same devices (E0309).
        let here = types.filter(|of| of.is_at(site.location.as_deref()));
        let named = |of: &&WorkerType| {
            names[owner].first().is_none_or(|name| of.names.iter().any(|own| own == name.as_str()))
        };
        let mut own = here.filter(|of| of.worker_type.value == machine.worker_type).filter(named);
        let Some(worker) = own.next() else { continue };
        for device in &worker.devices {
            let name = |index: u32| {
                let named = names[owner].get(index as usize).cloned();
                named.unwrap_or_else(|| site.machine(&machine.worker_type, index))
            };
            let count = device.count.value;
            let all = (0..machine.count).flat_map(|machine| (0..count).map(move |device| (machine, device)));
            let id = |(machine, number): (u32, u32)| match count {
                1 => format!("{}/{}", name(machine), device.kind),
                _ => format!("{}/{}-{number}", name(machine), device.kind),
            };
            let ids: Vec<String> = all.clone().map(id).collect();
            let machines = all.map(|(machine, _)| name(machine)).collect();
            facts.push(Some(DeviceFacts { owner, machines, of: device.clone() }));
            names.push(ids);
            classes.push(WorkerClass {
                location: machine.location,
                worker_type: device.kind.value.clone(),
                count: machine.count.saturating_mul(count),
                price: device.price(),
                memory_bytes: device.memory.as_ref().map(|memory| memory.0 as f64),
            });
        }
    }
    facts
}

/// Names of the machines of a type at a site; empty: they are numbered.
fn names_at(tier: &Tier, worker: &WorkerType, site: Option<&str>) -> Vec<String> {
    worker.names_at(tier, site).iter().map(|name| name.value.clone()).collect()
}

/// Returns the route: between tiers and between sites of a tier as a link states. Inside a site traffic is free, unless
/// the tier has one site and a link to itself.
fn route(infrastructure: &Infrastructure, sites: &[Site], from: usize, to: usize) -> Option<Route> {
    let link = infrastructure.link(&sites[from].tier, &sites[to].tier);
    if from != to {
        return link.map(|link| of_link(infrastructure, link));
    }
    let alone = sites[from].location.is_none();
    Some(link.filter(|_| alone).map(|link| of_link(infrastructure, link)).unwrap_or_default())
}

fn of_link(infrastructure: &Infrastructure, link: &Link) -> Route {
    Route {
        price: infrastructure.traffic_price(link).0,
        bandwidth: link.bandwidth.as_ref().map(|bandwidth| bandwidth.0 as f64 / 8.0),
        delay: super::seconds(link.delay.value),
    }
}
