//! Reads a plan back into numbers, so that a plan from a file can be priced, checked and explained.
use super::DUST;
use crate::assemble::{Assembly, Inputs};
use crate::solution::{Fallback, Hosting, OnDevice, RouteClass, Solution, UsedWorker};
use std::collections::BTreeMap;
use tidemill_spec::plan::{Plan, SOURCE_DEVICE, Sends, Stage, device_of};

/// Why a plan does not fit the problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// A worker that is not in the infrastructure.
    #[error("the infrastructure has no worker `{0}` of that type in that tier")]
    Worker(String),
    /// A variant without figures.
    #[error("`{operator}` has no variant `{variant}` with figures")]
    Variant {
        /// Operator.
        operator: String,
        /// Variant in the plan.
        variant: String,
    },
    /// A stage runs in a mode without figures.
    #[error("stage `{stage}` has no figures on `{worker_type}` for batches of up to {batch}")]
    Mode {
        /// Stage.
        stage: String,
        /// Type of its worker.
        worker_type: String,
        /// Its largest batch.
        batch: u32,
    },
    /// A stage sends its device what is not known of its records or the device.
    #[error("stage `{stage}` sends {} to its device, for which there are no figures", if *sends == Sends::Rows { "rows" } else { "tensors" })]
    Sends {
        /// Stage.
        stage: String,
        /// The form that it sends.
        sends: Sends,
    },
    /// A device that is not in the infrastructure.
    #[error("the infrastructure has no device `{0}`")]
    Device(String),
    /// A route without a stage for an operator or source.
    #[error("class {class} has no stage for `{operator}`")]
    Route {
        /// Class.
        class: u16,
        /// Operator or source.
        operator: String,
    },
}

/// Returns the numbers of a plan for the same workflow and infrastructure. Waiting times are not in a plan: see
/// [`Hosting::wait_seconds`].
///
/// # Errors
/// Workers, variants, modes or routes that the problem does not have.
pub fn solution_of(inputs: &Inputs<'_>, assembly: &Assembly, plan: &Plan) -> Result<Solution, ReadError> {
    let problem = &assembly.problem;
    let location_of = |tier: &str, site: &Option<String>| {
        assembly.sites.iter().position(|known| known.tier == tier && known.location == *site)
    };
    let mut workers: Vec<UsedWorker> = Vec::new();
    let mut places: BTreeMap<&str, (usize, Option<usize>)> = BTreeMap::new();
    for worker in &plan.workers {
        let missing = || ReadError::Worker(worker.id.clone());
        let location = location_of(&worker.tier, &worker.location).ok_or_else(missing)?;
        if worker.worker_type == SOURCE_DEVICE {
            places.insert(&worker.id, (location, None));
            continue;
        }
        let is_there = |class: usize| {
            let class = &problem.worker_classes[class];
            class.location == location && class.worker_type == worker.worker_type
        };
        let classes = || (0..problem.worker_classes.len()).filter(|class| is_there(*class));
        let names = |class: usize| assembly.names.get(class).map(Vec::as_slice).unwrap_or_default();
        let named = classes()
            .find_map(|class| Some((class, names(class).iter().position(|name| *name == worker.id)?)));
        let (class, index) = match named {
            Some(named) => named,
            None => {
                let class = classes().find(|class| names(*class).is_empty()).ok_or_else(missing)?;
                // Its number is in its name; a plan that lost workers has gaps.
                let is_free = |index: &usize| {
                    workers.iter().all(|used| (used.class, used.index as usize) != (class, *index))
                };
                let number = |index: u32| assembly.sites[location].machine(&worker.worker_type, index);
                let own = (0..problem.worker_classes[class].count).find(|index| number(*index) == worker.id);
                let own = own.map(|index| index as usize).filter(is_free);
                (class, own.or_else(|| (0..).find(is_free)).unwrap_or(usize::MAX))
            }
        };
        places.insert(&worker.id, (location, Some(workers.len())));
        workers.push(UsedWorker { class, index: u32::try_from(index).unwrap_or(u32::MAX) });
    }
    let mut devices: BTreeMap<&str, usize> = BTreeMap::new();
    for device in &plan.devices {
        let is_it = |name: &String| *name == device.id;
        let found =
            assembly.names.iter().zip(&assembly.devices).enumerate().find_map(|(class, (names, facts))| {
                facts.as_ref()?;
                Some((class, names.iter().position(is_it)?))
            });
        let (class, index) = found.ok_or_else(|| ReadError::Device(device.id.clone()))?;
        devices.insert(&device.id, workers.len());
        workers.push(UsedWorker { class, index: u32::try_from(index).unwrap_or(u32::MAX) });
    }
    let stage_of = |class: &tidemill_spec::plan::RouteClass, operator: &str| -> Result<&Stage, ReadError> {
        let missing = || ReadError::Route { class: class.id, operator: operator.to_owned() };
        let id = class.route.get(operator).ok_or_else(missing)?;
        plan.stages.iter().find(|stage| stage.id == *id).ok_or_else(missing)
    };
    let mut variants = Vec::new();
    for operator in &problem.operators {
        let named = plan.stages.iter().find(|stage| stage.operator == operator.id);
        let named = named.and_then(|stage| stage.variant.as_deref());
        let position = match named.filter(|_| inputs.models.contains_key(&operator.id)) {
            None => Some(0),
            Some(named) => operator.variants.iter().position(|variant| variant.id == named),
        };
        variants.push(position.ok_or_else(|| ReadError::Variant {
            operator: operator.id.clone(),
            variant: named.unwrap_or_default().to_owned(),
        })?);
    }
    let hosting_of = |index: usize, stage: &Stage| -> Result<Hosting, ReadError> {
        let operator = &problem.operators[index];
        let (location, worker) = places.get(stage.worker.as_str()).copied().unwrap_or_default();
        let worker = worker.filter(|_| !operator.weightless);
        let modes =
            worker.map(|worker| operator.variants[variants[index]].modes[workers[worker].class].as_slice());
        let device = stage.device.as_deref().and_then(device_of);
        let device = device.and_then(|id| devices.get(id).copied());
        let fits = |mode: &crate::problem::ServiceMode| {
            let class = device.map(|device| workers[device].class);
            mode.batch == stage.max_batch
                && mode.remote.as_ref().map(|remote| remote.class) == class
                && (stage.backend.is_none() || mode.backend.is_none() || mode.backend == stage.backend)
        };
        let sends = |mode: &crate::problem::ServiceMode| {
            mode.remote.as_ref().is_none_or(|remote| remote.sends == stage.sends)
        };
        let of = |modes: &[_]| modes.iter().position(|mode| fits(mode) && sends(mode));
        let mode = modes.map_or(Some(0), of);
        let mode = mode.ok_or_else(|| match modes.is_some_and(|modes| modes.iter().any(fits)) {
            true => ReadError::Sends { stage: stage.id.clone(), sends: stage.sends },
            false => ReadError::Mode {
                stage: stage.id.clone(),
                worker_type: plan
                    .workers
                    .iter()
                    .find(|worker| worker.id == stage.worker)
                    .map(|worker| worker.worker_type.clone())
                    .unwrap_or_default(),
                batch: stage.max_batch,
            },
        })?;
        Ok(Hosting {
            operator: index,
            worker,
            location,
            mode,
            share: 0.0,
            wait_seconds: None,
            device: device.map(|worker| OnDevice { worker, wait_seconds: None }),
        })
    };
    let mut hostings: Vec<Hosting> = Vec::new();
    let mut stages: Vec<&str> = Vec::new();
    let mut classes = Vec::new();
    for class in plan.classes.iter().filter(|class| class.share > DUST) {
        let mut of_class = Vec::new();
        for (index, operator) in problem.operators.iter().enumerate() {
            let stage = stage_of(class, &operator.id)?;
            let known = stages.iter().position(|id| *id == stage.id);
            let position = match known {
                Some(position) => position,
                None => {
                    stages.push(&stage.id);
                    hostings.push(hosting_of(index, stage)?);
                    hostings.len() - 1
                }
            };
            hostings[position].share += class.share;
            of_class.push(position);
        }
        let mut sources = Vec::new();
        for source in &problem.sources {
            let stage = stage_of(class, &source.id)?;
            sources.push(places.get(stage.worker.as_str()).copied().unwrap_or_default().0);
        }
        classes.push(RouteClass { share: class.share, sources, hostings: of_class });
    }
    let mut fallbacks = Vec::new();
    for fallback in &plan.fallbacks {
        let lost = fallback.lost.iter().map(|id| {
            let place = places.get(id.as_str()).copied().unwrap_or_default();
            place.1.ok_or_else(|| ReadError::Worker(id.clone()))
        });
        let mut after =
            Fallback { lost: lost.collect::<Result<_, _>>()?, starts: Vec::new(), classes: Vec::new() };
        after.lost.sort_unstable();
        let mut started: Vec<&str> = Vec::new();
        for class in fallback.classes.iter().filter(|class| class.share > DUST) {
            let missing =
                |operator: &str| ReadError::Route { class: class.id, operator: operator.to_owned() };
            let stage_of = |operator: &str| -> Result<&Stage, ReadError> {
                let id = class.route.get(operator).ok_or_else(|| missing(operator))?;
                let mut all = fallback.starts.iter().chain(&plan.stages);
                all.find(|stage| stage.id == *id).ok_or_else(|| missing(operator))
            };
            let mut of_class = Vec::new();
            for (index, operator) in problem.operators.iter().enumerate() {
                let stage = stage_of(&operator.id)?;
                let is_start = fallback.starts.iter().any(|start| start.id == stage.id);
                let known = stages.iter().position(|id| *id == stage.id).filter(|_| !is_start);
                let begun = started.iter().position(|id| *id == stage.id).map(|at| hostings.len() + at);
                of_class.push(match known.or(begun) {
                    Some(position) => position,
                    None => {
                        started.push(&stage.id);
                        after.starts.push(hosting_of(index, stage)?);
                        hostings.len() + started.len() - 1
                    }
                });
            }
            let source_of = |source: &crate::problem::Source| -> Result<usize, ReadError> {
                let stage = stage_of(&source.id)?;
                Ok(places.get(stage.worker.as_str()).copied().unwrap_or_default().0)
            };
            let sources = problem.sources.iter().map(source_of).collect::<Result<_, _>>()?;
            after.classes.push(RouteClass { share: class.share, sources, hostings: of_class });
        }
        fallbacks.push(after);
    }
    Ok(Solution { variants, workers, hostings, classes, fallbacks })
}
