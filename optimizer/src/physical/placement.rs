//! Names of workers and stages, and the place of each stage.
use super::SOURCE_DEVICE;
use crate::assemble::Assembly;
use crate::solution::{Solution, UsedWorker};
use std::collections::BTreeMap;
use tidemill_spec::plan::{PlanWorker, Stage};
use tidemill_spec::units::HourlyPrice;

/// The place of a stage.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Place {
    /// Worker id.
    pub(super) worker: String,
    /// Position of the location in the problem.
    pub(super) location: usize,
    /// Position in the solution's hostings; none for sources and sinks.
    pub(super) hosting: Option<usize>,
}

/// Assigns names.
#[derive(Debug)]
pub(super) struct Placement<'a> {
    assembly: &'a Assembly,
    solution: &'a Solution,
    /// Ids of the workers in use, by position in the solution.
    workers: Vec<String>,
    /// All workers of the plan: those in use and devices.
    all: BTreeMap<String, PlanWorker>,
    stages: BTreeMap<String, Place>,
    /// Number of locations of each source.
    origins: BTreeMap<String, usize>,
}

impl<'a> Placement<'a> {
    pub(super) fn new(assembly: &'a Assembly, solution: &'a Solution) -> Self {
        let mut placement = Self {
            assembly,
            solution,
            workers: Vec::new(),
            all: BTreeMap::new(),
            stages: BTreeMap::new(),
            origins: BTreeMap::new(),
        };
        for used in &solution.workers {
            let class = &assembly.problem.worker_classes[used.class];
            let named = assembly.names.get(used.class).and_then(|names| names.get(used.index as usize));
            let site = &assembly.sites[class.location];
            let id = named.cloned().unwrap_or_else(|| site.machine(&class.worker_type, used.index));
            let id = placement.add(id, class.location, &class.worker_type, Some(HourlyPrice(class.price)));
            placement.workers.push(id);
        }
        for (index, source) in assembly.problem.sources.iter().enumerate() {
            let mut locations: Vec<usize> =
                solution.classes.iter().map(|class| class.sources[index]).collect();
            locations.sort_unstable();
            locations.dedup();
            placement.origins.insert(source.id.clone(), locations.len());
        }
        placement
    }

    /// Ids of the workers in use, as in the solution.
    pub(super) fn names(&self) -> &[String] {
        &self.workers
    }

    fn site_name(&self, location: usize) -> String {
        let site = &self.assembly.sites[location];
        match &site.location {
            Some(name) => format!("{}-{name}", site.tier),
            None => site.tier.clone(),
        }
    }

    /// Adds a worker; of two with the same name (`a-b` and `c`, `a` and `b-c`), the later one is renamed.
    fn add(
        &mut self,
        mut id: String,
        location: usize,
        worker_type: &str,
        price: Option<HourlyPrice>,
    ) -> String {
        let site = &self.assembly.sites[location];
        while self.all.contains_key(&id) {
            id.push('.');
        }
        let worker = PlanWorker {
            id: id.clone(),
            tier: site.tier.clone(),
            location: site.location.clone(),
            worker_type: worker_type.to_owned(),
            price,
        };
        self.all.insert(id.clone(), worker);
        id
    }

    /// The device of sources at a location.
    fn device(&mut self, location: usize) -> String {
        let id = format!("device-{}", self.site_name(location));
        match self.all.get(&id).is_some_and(|worker| worker.worker_type == SOURCE_DEVICE) {
            true => id,
            false => self.add(id, location, SOURCE_DEVICE, None),
        }
    }

    /// Stage id of a source at a location.
    pub(super) fn source(&mut self, source: &str, location: usize) -> String {
        let worker = self.device(location);
        let several = self.origins.get(source).is_some_and(|count| *count > 1);
        let id = if several { format!("{source}@{worker}") } else { source.to_owned() };
        self.stages.insert(id.clone(), Place { worker, location, hosting: None });
        id
    }

    /// Stage id of an operator of the workflow in a hosting.
    pub(super) fn operator(&mut self, operator: &str, hosting: usize) -> String {
        let of = &self.solution.hostings[hosting];
        let location = of.location;
        let worker = match of.worker {
            Some(worker) => self.workers[worker].clone(),
            None => self.worker_at(location),
        };
        let used = |other: &usize| self.solution.classes.iter().any(|class| class.hostings.contains(other));
        let hostings: Vec<usize> = (0..self.solution.hostings.len())
            .filter(|other| self.solution.hostings[*other].operator == of.operator && used(other))
            .collect();
        let mut id = match hostings.len() {
            0 | 1 => operator.to_owned(),
            _ => format!("{operator}@{worker}"),
        };
        // A worker that runs the operator in several modes has a stage for each.
        while self.stages.get(&id).is_some_and(|place| place.hosting != Some(hosting)) {
            id.push('.');
        }
        self.stages.insert(id.clone(), Place { worker, location, hosting: Some(hosting) });
        id
    }

    fn worker_at(&mut self, location: usize) -> String {
        let classes = &self.assembly.problem.worker_classes;
        let is_device = |class: usize| self.assembly.devices.get(class).is_some_and(Option::is_some);
        let is_here = |used: &UsedWorker| classes[used.class].location == location && !is_device(used.class);
        let here = self.solution.workers.iter().position(is_here);
        match here {
            Some(worker) => self.workers[worker].clone(),
            None => self.device(location),
        }
    }

    /// Places a sink with another stage.
    pub(super) fn sink(&mut self, sink: &str, beside: &str) {
        let place = self.stages[beside].clone();
        self.stages.insert(sink.to_owned(), Place { hosting: None, ..place });
    }

    /// Whether a stage has that id.
    pub(super) fn knows(&self, stage: &str) -> bool {
        self.stages.contains_key(stage)
    }

    /// The place of a stage.
    pub(super) fn of(&self, stage: &str) -> &Place {
        &self.stages[stage]
    }

    /// Workers with stages: devices first, then in the order of the solution.
    pub(super) fn used_workers(&self, stages: &[Stage]) -> Vec<PlanWorker> {
        let used = |id: &&String| stages.iter().any(|stage| stage.worker == **id);
        let devices = self.all.keys().filter(|id| self.all[*id].worker_type == SOURCE_DEVICE);
        let ids = devices.chain(&self.workers).filter(used);
        ids.map(|id| self.all[id].clone()).collect()
    }
}
