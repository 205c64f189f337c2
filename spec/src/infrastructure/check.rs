//! Checks of an infrastructure beyond its syntax.
use super::{Direction, Infrastructure, Link, Tier, WorkerType};
use crate::diagnostic::{Diagnostic, Diagnostics, ENOUGH, suggestion};
use crate::identifier;
use crate::policies::{self, Home};
use crate::span::Located;
use std::collections::{HashMap, HashSet};

impl Infrastructure {
    /// Returns all findings; no errors after [`Infrastructure::load`].
    pub fn check(&self) -> Diagnostics {
        let mut found = Diagnostics::new();
        if self.tiers.is_empty() {
            found.push(
                Diagnostic::error("E0301", "the infrastructure has no tiers")
                    .at(self.name.span.clone())
                    .with_help("add at least one: `tiers: [{id: edge, workers: [{type: ..., price: ...}]}]`"),
            );
        }
        let mut ids = HashMap::new();
        for tier in &self.tiers {
            if found.len() >= ENOUGH {
                return found;
            }
            found.extend(identifier::check(&tier.id, ""));
            if let Some(first) = ids.insert(tier.id.as_str(), &tier.id) {
                found.push(twice("E0302", "tier", &tier.id, first));
            }
            tier.check(&mut found);
        }
        self.check_same_types(&mut found);
        self.check_names(&mut found);
        self.check_links(&mut found);
        self.check_sources(&mut found);
        self.check_hosts(&mut found);
        self.check_policies(&mut found);
        found
    }

    /// Profiles belong to worker types, so a type must be the same machine everywhere (its price may differ).
    fn check_same_types(&self, found: &mut Diagnostics) {
        let mut firsts: HashMap<&str, &WorkerType> = HashMap::new();
        for worker in self.tiers.iter().flat_map(|tier| tier.workers.iter()) {
            let first = *firsts.entry(worker.worker_type.as_str()).or_insert(worker);
            if found.len() >= ENOUGH {
                return;
            }
            // Machines with names are distinct: their remaining memory may differ.
            let told_apart = !first.names.is_empty() && !worker.names.is_empty();
            let memory = |w: &WorkerType| w.memory.clone().filter(|_| !told_apart);
            // Prices, shares and addresses of devices may differ, as prices of machines do.
            let devices = |w: &WorkerType| -> Vec<_> {
                w.devices.iter().map(|of| (of.kind.clone(), of.count.clone(), of.memory.clone())).collect()
            };
            let facts = |w: &WorkerType| (w.vcpu.clone(), memory(w), w.accelerators.clone(), devices(w));
            if facts(first) != facts(worker) {
                found.push(
                    Diagnostic::error(
                        "E0309",
                        format!("worker type `{}` has other properties here than before", worker.worker_type),
                    )
                    .at(worker.worker_type.span.clone())
                    .with_related(first.worker_type.span.clone(), "before")
                    .with_help("give it another name, or the same vcpu, memory, accelerators and devices"),
                );
            }
        }
    }

    /// Names of machines are names of workers in plans.
    fn check_names(&self, found: &mut Diagnostics) {
        let mut names: HashMap<&str, &Located<String>> = HashMap::new();
        for tier in &self.tiers {
            for worker in tier.workers.iter().filter(|worker| !worker.names.is_empty()) {
                if found.len() >= ENOUGH {
                    return;
                }
                let sites = if worker.locations.is_empty() { &tier.locations } else { &worker.locations };
                let machines = worker.count.value as usize * sites.len().max(1);
                if worker.names.len() != machines {
                    let text = format!("{} names for {machines} machines", worker.names.len());
                    found.push(
                        Diagnostic::error("E0313", text)
                            .at(worker.names[0].span.clone())
                            .with_help("write a name for each machine, or none at all"),
                    );
                }
                for name in &worker.names {
                    found.extend(identifier::check(name, "."));
                    if let Some(first) = names.insert(name.as_str(), name) {
                        found.push(twice("E0313", "machine", name, first));
                    }
                }
            }
        }
    }

    fn check_links(&self, found: &mut Diagnostics) {
        let ids: HashSet<&str> = self.tiers.iter().map(|tier| tier.id.as_str()).collect();
        let mut firsts: HashMap<(&str, &str), &Link> = HashMap::new();
        for link in &self.links {
            if found.len() >= ENOUGH {
                return;
            }
            for end in [&link.from, &link.to] {
                if !ids.contains(end.as_str()) {
                    let tiers = self.tiers.iter().map(|tier| tier.id.as_str());
                    found.push(
                        Diagnostic::error("E0305", format!("there is no tier `{end}`"))
                            .at(end.span.clone())
                            .with_help(suggestion(end, tiers, "tiers")),
                    );
                }
            }
            let way = (link.from.as_str(), link.to.as_str());
            let mut first = firsts.insert(way, link);
            if link.direction == Direction::Both && way.0 != way.1 {
                first = firsts.insert((way.1, way.0), link).or(first);
            }
            if let Some(first) = first {
                found.push(
                    Diagnostic::error(
                        "E0306",
                        format!("there is already a link between `{}` and `{}`", link.from, link.to),
                    )
                    .at(link.from.span.clone())
                    .with_related(first.from.span.clone(), "the first one")
                    .with_help("keep one; a link with `direction: both` also leads back"),
                );
            }
            if let Some(bandwidth) = link.bandwidth.as_ref().filter(|bandwidth| bandwidth.0 == 0) {
                found.push(
                    Diagnostic::error("E0307", "a link without bandwidth carries nothing")
                        .at(bandwidth.span.clone())
                        .with_help("write its bandwidth, such as `10Mbps`, or leave the link out"),
                );
            }
        }
    }
}

impl Infrastructure {
    /// Their edges may be of workflows that are not known here.
    fn check_policies(&self, found: &mut Diagnostics) {
        policies::check(self.policies.iter().map(|of| &of.policy), Home::Infrastructure, found);
        for name in self.policies.iter().filter_map(|of| of.workflow.as_ref()).take(ENOUGH) {
            found.extend(identifier::check(name, ""));
        }
    }

    fn check_sources(&self, found: &mut Diagnostics) {
        let mut ids = HashMap::new();
        for source in &self.sources {
            if found.len() >= ENOUGH {
                return;
            }
            found.extend(identifier::check(&source.id, ""));
            if let Some(first) = ids.insert(source.id.as_str(), &source.id) {
                found.push(
                    twice("E0311", "source", &source.id, first)
                        .with_help("a source is at one location, or at all of a tier: leave `location` out"),
                );
            }
            let Some(tier) = self.tier(source.tier.as_str()) else {
                let tiers = self.tiers.iter().map(|tier| tier.id.as_str());
                found.push(
                    Diagnostic::error("E0305", format!("there is no tier `{}`", source.tier))
                        .at(source.tier.span.clone())
                        .with_help(suggestion(&source.tier, tiers, "tiers")),
                );
                continue;
            };
            let is_there =
                |name: &Located<String>| tier.locations.iter().any(|other| other.value == name.value);
            if let Some(location) = source.location.as_ref().filter(|name| !is_there(name)) {
                let locations = tier.locations.iter().map(|location| location.as_str());
                found.push(
                    Diagnostic::error("E0310", format!("tier `{}` has no location `{location}`", tier.id))
                        .at(location.span.clone())
                        .with_help(suggestion(location, locations, "locations")),
                );
            }
        }
    }
}

impl Tier {
    fn check(&self, found: &mut Diagnostics) {
        let mut names = HashMap::new();
        for location in &self.locations {
            if found.len() >= ENOUGH {
                return;
            }
            found.extend(identifier::check(location, ""));
            if let Some(first) = names.insert(location.as_str(), location) {
                found.push(twice("E0308", "location", location, first));
            }
        }
        if self.workers.is_empty() {
            found.push(
                Diagnostic::error("E0303", format!("tier `{}` has no workers", self.id))
                    .at(self.workers.span.clone())
                    .with_help(
                        "add at least one: `workers: [{type: ..., price: 0.1 $/h}]`, or leave the tier out",
                    ),
            );
        }
        let mut types = HashMap::new();
        for worker in self.workers.iter() {
            if found.len() >= ENOUGH {
                return;
            }
            found.extend(identifier::check(&worker.worker_type, "."));
            for location in &worker.locations {
                if !self.locations.iter().any(|known| known.value == location.value) {
                    let known = self.locations.iter().map(|known| known.as_str());
                    found.push(
                        Diagnostic::error(
                            "E0310",
                            format!("tier `{}` has no location `{location}`", self.id),
                        )
                        .at(location.span.clone())
                        .with_help(suggestion(location, known, "locations")),
                    );
                }
            }
            // Types with names are distinct by these.
            if worker.names.is_empty()
                && let Some(first) = types.insert(worker.worker_type.as_str(), &worker.worker_type)
            {
                found.push(
                    twice("E0304", "worker type", &worker.worker_type, first)
                        .with_help("merge them with `count`"),
                );
            }
            worker.check(found);
            worker.check_devices(found);
        }
    }
}

impl WorkerType {
    fn check(&self, found: &mut Diagnostics) {
        let mut at_least_one = |count: &Located<u32>, what: &str| {
            if count.value == 0 {
                found.push(
                    Diagnostic::error("E0307", format!("`count: 0` of {what}"))
                        .at(count.span.clone())
                        .with_help("write 1 or more, or leave the entry out"),
                );
            }
        };
        at_least_one(&self.count, "a worker type");
        for accelerator in &self.accelerators {
            at_least_one(&accelerator.count, "an accelerator");
        }
        if let Some(vcpu) = self.vcpu.as_ref().filter(|vcpu| !(vcpu.value > 0.0 && vcpu.value.is_finite())) {
            found.push(
                Diagnostic::error("E0307", format!("`{vcpu}` is not a number of processors"))
                    .at(vcpu.span.clone())
                    .with_help("write a number above 0, such as `4` or `0.5`"),
            );
        }
        if let Some(memory) = self.memory.as_ref().filter(|memory| memory.0 == 0) {
            found.push(
                Diagnostic::error("E0307", "a machine without memory runs nothing")
                    .at(memory.span.clone())
                    .with_help("write its memory, such as `4GiB`, or leave it out if it is unknown"),
            );
        }
    }
}

pub(super) fn twice(
    code: &'static str,
    what: &str,
    second: &Located<String>,
    first: &Located<String>,
) -> Diagnostic {
    Diagnostic::error(code, format!("{what} `{second}` is given twice"))
        .at(second.span.clone())
        .with_related(first.span.clone(), "the first one")
        .with_help("give it another name")
}
