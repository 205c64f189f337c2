//! Routes of a plan after each loss, with the stages that start again.
use super::placement::Placement;
use super::{DUST, PhysicalError, Route, stage};
use crate::assemble::{Assembly, Inputs};
use crate::solution::{Fallback, Hosting, Solution};
use std::collections::BTreeMap;
use tidemill_spec::plan::{Fallback as PlanFallback, RouteClass, Stage};

pub(super) fn fallbacks(
    inputs: &Inputs<'_>,
    assembly: &Assembly,
    solution: &Solution,
    placement: &mut Placement<'_>,
    variants: &BTreeMap<String, String>,
) -> Result<Vec<PlanFallback>, PhysicalError> {
    let one = |fallback: &Fallback| {
        let mut lost: Vec<String> =
            fallback.lost.iter().map(|worker| placement.names()[*worker].clone()).collect();
        lost.sort();
        After { inputs, assembly, solution, fallback, variants, lost, starts: BTreeMap::new() }
            .made(placement)
    };
    solution.fallbacks.iter().map(one).collect()
}

/// A fallback in the making.
struct After<'a> {
    inputs: &'a Inputs<'a>,
    assembly: &'a Assembly,
    solution: &'a Solution,
    fallback: &'a Fallback,
    variants: &'a BTreeMap<String, String>,
    /// Names of the lost workers, in alphabetical order.
    lost: Vec<String>,
    /// Stages that start, by id.
    starts: BTreeMap<String, Stage>,
}

impl After<'_> {
    fn made(mut self, placement: &mut Placement<'_>) -> Result<PlanFallback, PhysicalError> {
        let kept = || self.fallback.classes.iter().filter(|class| class.share > DUST);
        let whole: f64 = kept().map(|class| class.share).sum();
        let mut routes: Vec<(Route, f64)> = Vec::new();
        for class in self.fallback.classes.iter().filter(|class| class.share > DUST) {
            let mut route = Route::new();
            for (index, source) in self.assembly.problem.sources.iter().enumerate() {
                route.insert(source.id.clone(), placement.source(&source.id, class.sources[index]));
            }
            for (operator, host) in &self.assembly.hosts {
                let id = self.stage_of(operator, class.hostings[*host], placement);
                route.insert(operator.clone(), id);
            }
            match routes.iter_mut().find(|(other, _)| *other == route) {
                Some((_, share)) => *share += class.share / whole,
                None => routes.push((route, class.share / whole)),
            }
        }
        for sink in &self.inputs.workflow.sinks {
            let id = &sink.id.value;
            if self.is_lost(&placement.of(id).worker) {
                let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
                for (route, share) in &routes {
                    *shares.entry(&route[&sink.input.from.value]).or_default() += share;
                }
                let most = shares.iter().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(a.0)));
                let beside = most.map(|(stage, _)| match self.starts.get(*stage) {
                    Some(started) => started.worker.clone(),
                    None => placement.of(stage).worker.clone(),
                });
                if let Some(worker) = beside {
                    self.starts.insert(id.clone(), Stage::new(id, id, worker));
                }
            }
            routes.iter_mut().for_each(|(route, _)| drop(route.insert(id.clone(), id.clone())));
        }
        let classes: Vec<RouteClass> = (0..=u16::MAX)
            .zip(&routes)
            .map(|(id, (route, share))| RouteClass { id, share: *share, route: route.clone() })
            .collect();
        if classes.len() < routes.len() {
            return Err(PhysicalError::Classes(routes.len()));
        }
        let mut starts: Vec<Stage> = self.starts.into_values().collect();
        for start in &mut starts {
            let shares = classes.iter().filter(|class| class.route.get(&start.operator) == Some(&start.id));
            start.share = shares.map(|class| class.share).sum::<f64>().min(1.0);
        }
        Ok(PlanFallback { lost: self.lost, starts, classes })
    }

    fn is_lost(&self, worker: &str) -> bool {
        self.lost.iter().any(|lost| lost == worker)
    }

    /// The stage of an operator of the workflow; starts it where it is not there any more, or never was.
    fn stage_of(&mut self, operator: &str, hosting: usize, placement: &mut Placement<'_>) -> String {
        let own = self.solution.hostings.get(hosting);
        if own.is_some() {
            let id = placement.operator(operator, hosting);
            if !self.is_lost(&placement.of(&id).worker) {
                return id;
            }
        }
        let Some(facts) = own.or_else(|| self.fallback.starts.get(hosting - self.solution.hostings.len()))
        else {
            return operator.to_owned(); // the check of the plan names it
        };
        let worker = self.worker_of(facts, placement);
        let mut id = format!("{operator}@{worker}");
        while placement.knows(&id) && !self.is_lost(&placement.of(&id).worker) {
            id.push('.');
        }
        let start = Stage::new(&id, operator, worker);
        let names = placement.names();
        let start =
            stage(self.inputs, self.assembly, self.solution, (Some(facts), names), self.variants, start);
        self.starts.insert(id.clone(), start);
        id
    }

    /// The worker of a hosting; for one without, the first that is left at its location.
    fn worker_of(&self, hosting: &Hosting, placement: &Placement<'_>) -> String {
        let problem = &self.assembly.problem;
        let at = hosting.worker.or_else(|| {
            (0..self.solution.workers.len()).find(|worker| {
                let class = self.solution.workers[*worker].class;
                problem.worker_classes[class].location == hosting.location
                    && !self.fallback.lost.contains(worker)
            })
        });
        at.map_or_else(String::new, |worker| placement.names()[worker].clone())
    }
}
