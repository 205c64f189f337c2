//! Plans workflows for the joined workers with the library of `tidemill plan`, using the capacity that other runs leave.
//!
//! | question | module |
//! |---|---|
//! | how do workers become an infrastructure? | `machines` |
//! | which part do other runs use? | `taken` |
//! | which plan, and where must its sinks stay? | `plans` |
//! | why this plan, or why none? | `explanation` |
mod explanation;
mod machines;
mod plans;
mod taken;

pub(crate) use crate::replanning::assessment::mark_of;
pub(crate) use machines::{LinkFact, Machine, infrastructure, machine_names, named, rank};
pub(crate) use plans::{PlanningRequest, pinned};
pub(crate) use taken::{Taken, part_of_quota, taken};

use super::link_hints::{For, Nominal, choose, rate};
use super::measured_links::STALE;
use super::{Shared, locked};
use crate::api::{InfrastructureView, RateSource, WorkerView};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_spec::infrastructure::Infrastructure;

/// Rate in bits per second assumed for a link that other runs use fully.
const LEAST_RATE: f64 = 1000.0;

impl Machine {
    fn of(view: &WorkerView) -> Self {
        Self {
            name: view.name.clone(),
            tier: view.tier.clone(),
            location: view.location.clone(),
            worker_type: view.worker_type.clone(),
            price: view.price,
            processors: view.capacity.processors,
            memory_bytes: view.capacity.memory_bytes,
            accelerators: view.capacity.accelerators.clone(),
        }
    }
}

impl Shared {
    /// Workers that are alive and accept work.
    pub(crate) fn machines(&self) -> Vec<Machine> {
        let views = self.worker_views();
        views.iter().filter(|view| view.is_alive && !view.is_drained).map(Machine::of).collect()
    }

    /// Usage of each worker by all runs except one.
    pub(crate) fn taken(&self, except: Option<&str>) -> BTreeMap<String, Taken> {
        let processors: BTreeMap<String, f64> =
            self.worker_views().into_iter().map(|view| (view.name, view.capacity.processors)).collect();
        let measured = self.measured_uses(&processors);
        self.facts.look(|document| taken(document, &measured, except))
    }

    /// Measured share of a worker's time, by run and role.
    fn measured_uses(&self, processors: &BTreeMap<String, f64>) -> BTreeMap<(String, String), f64> {
        let observers: Vec<_> = {
            let runs = locked(&self.runs);
            runs.iter().filter_map(|(name, live)| Some((name.clone(), live.observer.clone()?))).collect()
        };
        let mut measured = BTreeMap::new();
        for (run, observer) in observers {
            let placed: BTreeMap<String, Option<String>> = self.facts.look(|document| {
                let roles = document.runs.get(&run).map(|run| &run.roles);
                roles.into_iter().flatten().map(|(role, of)| (role.clone(), of.worker.clone())).collect()
            });
            let report = observer.report();
            let mut seconds: BTreeMap<String, f64> = BTreeMap::new();
            for slot in &report.slots {
                let worker = slot.slot.split('/').next().unwrap_or_default();
                *seconds.entry(worker.to_owned()).or_default() += slot.processor_seconds;
            }
            for stage in &report.stages {
                *seconds.entry(stage.worker.clone()).or_default() += stage.processor_seconds;
            }
            for (role, seconds) in seconds {
                let of = placed.get(&role).cloned().flatten().and_then(|worker| processors.get(&worker));
                let part = seconds / report.seconds.max(1.0) / of.copied().unwrap_or(1.0).max(0.01);
                measured.insert((run.clone(), role), part.min(1.0));
            }
        }
        measured
    }

    /// Links between workers, less the traffic of all runs except one, with notes about those whose rate follows from hints. `file` has
    /// their nominal rates.
    fn link_facts(&self, file: Option<&Nominal>, except: Option<&str>) -> (Vec<LinkFact>, Vec<String>) {
        let (traffic, places) = (self.traffic(), self.places());
        let fresh = self.way_views().into_iter().filter(|link| link.age_seconds < STALE.as_secs_f64());
        let mut notes = BTreeSet::new();
        let facts = fresh.map(|link| {
            let others = traffic.between(&link.from, &link.to, except).bits_per_second;
            let probe = link.bits_per_second.map(|rate| (rate - others).max(LEAST_RATE)).zip(link.shown_by);
            let nominal = self.nominal_rate(file, &link.from, &link.to);
            let hint = match places.get(&link.from).zip(places.get(&link.to)) {
                Some(ends) => self.link_hint(ends, nominal, For::Run(except), &traffic),
                None => Err("its workers have left".to_owned()),
            };
            let chosen = choose(nominal, &hint, probe);
            if let (Some(RateSource::Hint), Some(bits)) = (chosen.by, chosen.bits_per_second) {
                let (bits, why) = (rate(bits), &chosen.why);
                notes.insert(format!("the link from {} to {} has {bits} by hint: {why}", link.from, link.to));
            }
            let is_measured = chosen.by != Some(RateSource::Nominal);
            LinkFact {
                delay_seconds: link.delay_seconds,
                bits_per_second: chosen
                    .bits_per_second
                    .filter(|_| is_measured)
                    .map(|bits| bits.max(LEAST_RATE)),
                from: link.from,
                to: link.to,
            }
        });
        let facts = facts.collect();
        (facts, notes.into_iter().collect())
    }

    /// Describes the joined workers as an infrastructure, less the usage of all runs except one, with notes. `file` gives machines, prices
    /// and links instead.
    ///
    /// # Errors
    /// There is nothing to plan with.
    pub(crate) fn infrastructure(
        &self,
        file: Option<&Infrastructure>,
        except: Option<&str>,
    ) -> Result<(Infrastructure, Vec<String>), String> {
        let (machines, taken) = (self.machines(), self.taken(except));
        let (links, of_links) = self.link_facts(file.map(Nominal::of).as_ref(), except);
        let (infrastructure, mut notes) = match file {
            Some(file) => named(file, &machines, &taken, &links)?,
            None => infrastructure(&machines, &taken, &links)?,
        };
        notes.extend(of_links);
        Ok((infrastructure, notes))
    }

    /// Renders the infrastructure as a file.
    ///
    /// # Errors
    /// As [`Shared::infrastructure`].
    pub(crate) fn infrastructure_view(&self) -> Result<InfrastructureView, String> {
        let (infrastructure, notes) = self.infrastructure(None, None)?;
        let yaml = infrastructure.to_yaml().map_err(|error| error.to_string())?;
        Ok(InfrastructureView { yaml, notes })
    }
}
