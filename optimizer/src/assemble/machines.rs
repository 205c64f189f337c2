//! Tiers, sites, machines and links as locations, worker classes and routes.
use super::Site;
use crate::problem::{Location, Route, WorkerClass};
use tidemill_spec::infrastructure::{Infrastructure, Link, Tier, WorkerType};

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
}

impl Machines {
    /// Types of workers, each once, in the order of the infrastructure.
    pub(super) fn worker_types(&self) -> Vec<&str> {
        let mut types: Vec<&str> = Vec::new();
        for class in &self.classes {
            if !types.contains(&class.worker_type.as_str()) {
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
    let route = |from: usize, to: usize| route(infrastructure, &sites, from, to);
    let routes = (0..sites.len()).map(|from| (0..sites.len()).map(|to| route(from, to)).collect()).collect();
    Machines { sites, locations, classes, names: all_names, busy, routes }
}

/// Names of the machines of a type at a site; empty: they are numbered.
fn names_at(tier: &Tier, worker: &WorkerType, site: Option<&str>) -> Vec<String> {
    let sites = if worker.locations.is_empty() { &tier.locations } else { &worker.locations };
    let before = sites.iter().position(|other| Some(other.as_str()) == site).unwrap_or(0);
    let count = worker.count.value as usize;
    worker.names.iter().skip(before * count).take(count).map(|name| name.value.clone()).collect()
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
