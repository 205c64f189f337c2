//! Service times: the measured distribution of each stage's calls, by the number of records in a call.
pub use tidemill_spec::service_times::{Distribution, Knowledge, Quantiles, ServiceTimes};

use tidemill_optimizer::assemble::{Assembly, Inputs};
use tidemill_optimizer::problem::{Problem, ServiceMode};
use tidemill_optimizer::solution::{Hosting, Solution, UsedWorker};
use tidemill_spec::overheads::Overheads;

/// Service times of all stages of a solution, by position of its hostings; none for a hosting that takes no time.
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    by_hosting: Vec<Option<ServiceTimes>>,
    /// Those of the models on devices, by hosting; empty: there are none.
    by_device: Vec<Option<ServiceTimes>>,
    /// The engine's overheads on the worker, by hosting; empty: none are known.
    engine: Vec<Option<EngineTimes>>,
}

/// The engine's overheads until a stage has a record, drawn for each.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EngineTimes {
    /// From its due time until its source has emitted it.
    pub(crate) source: Distribution,
    /// From another slot, at one location and over a link.
    pub(crate) hand_over: Distribution,
    pub(crate) frame: Distribution,
    pub(crate) seconds_per_byte: f64,
    /// To the executor of the stage's model and back, where it has one.
    pub(crate) call: Option<Distribution>,
}

impl EngineTimes {
    fn of(overheads: &Overheads, with_model: bool) -> Self {
        Self {
            source: overheads.source.distribution(),
            hand_over: overheads.hand_over.distribution(),
            frame: overheads.frame.distribution(),
            seconds_per_byte: overheads.of_bytes(1.0),
            call: with_model.then(|| overheads.call.distribution()),
        }
    }
}

impl Times {
    /// Creates times, one for each hosting of the solution in order.
    pub fn new(by_hosting: Vec<Option<ServiceTimes>>) -> Self {
        Self { by_hosting, by_device: Vec::new(), engine: Vec::new() }
    }

    /// Derives times from the problem alone: the samples of each mode, else its mean. Calls with fewer records than the
    /// mode's batch take as long as smaller modes of its backend; without such modes, as long as a full one.
    pub fn of_modes(problem: &Problem, solution: &Solution) -> Self {
        let of = |hosting: &Hosting| {
            let (modes, chosen) = modes_of(problem, solution, hosting)?;
            ServiceTimes::new(alike(modes, chosen).map(|mode| (mode.batch, of_mode(mode))).collect())
        };
        let by_device = devices(problem, solution);
        Self { by_device, ..Self::new(solution.hostings.iter().map(of).collect()) }
    }

    /// Takes times from the profile: for each stage the distributions measured for its variant, backend and type of
    /// worker, for calls up to its largest batch.
    pub fn measured(inputs: &Inputs<'_>, assembly: &Assembly, solution: &Solution) -> Self {
        let problem = &assembly.problem;
        let of = |hosting: &Hosting| {
            let (modes, mode) = modes_of(problem, solution, hosting)?;
            if mode.remote.is_some() {
                // The profile has the times of a stage with its model.
                return ServiceTimes::new(
                    alike(modes, mode).map(|mode| (mode.batch, of_mode(mode))).collect(),
                );
            }
            let number = solution.workers[hosting.worker?].class;
            let class = &problem.worker_classes[number];
            let operator = &problem.operators[hosting.operator];
            let with_model = inputs.models.contains_key(&operator.id);
            let variant =
                with_model.then(|| operator.variants[solution.variants[hosting.operator]].id.as_str());
            let backend = mode.backend.as_deref();
            let known =
                inputs.profile.service_times(&operator.id, variant, backend, &class.worker_type, mode.batch);
            match known {
                Some(known) => Some(known.slowed(assembly.slowdown(number))),
                None => Some(ServiceTimes::of_any_batch(of_mode(mode))), // slowed as all modes there
            }
        };
        let engine = |hosting: &Hosting| {
            let class = &problem.worker_classes[solution.workers[slot_of(problem, solution, hosting)?].class];
            let overheads = inputs.profile.machine(&class.worker_type)?.overheads?;
            let with_model = inputs.models.contains_key(&problem.operators[hosting.operator].id);
            Some(EngineTimes::of(&overheads, with_model))
        };
        Self {
            by_hosting: solution.hostings.iter().map(of).collect(),
            by_device: devices(problem, solution),
            engine: solution.hostings.iter().map(engine).collect(),
        }
    }

    /// The engine's overheads until a hosting has a record; none: not known.
    pub(crate) fn engine(&self, hosting: usize) -> Option<&EngineTimes> {
        self.engine.get(hosting)?.as_ref()
    }

    /// Whether the engine's overheads are known for every hosting.
    pub fn knows_engine(&self) -> bool {
        self.engine.len() == self.by_hosting.len() && self.engine.iter().all(Option::is_some)
    }

    /// Returns the service times of a hosting.
    pub fn of(&self, hosting: usize) -> Option<&ServiceTimes> {
        self.by_hosting.get(hosting)?.as_ref()
    }

    /// Returns the times of a hosting's model on its device.
    pub(crate) fn device(&self, hosting: usize) -> Option<&ServiceTimes> {
        self.by_device.get(hosting)?.as_ref()
    }

    /// Returns the origin of the times of each hosting that takes time.
    pub fn knowledge(&self) -> impl Iterator<Item = (usize, Knowledge)> {
        let all = self.by_hosting.iter().enumerate();
        all.filter_map(|(hosting, times)| Some((hosting, times.as_ref()?.knowledge())))
    }
}

/// The worker whose thread runs a hosting; one that takes no time runs with the first worker of its location. None: on
/// a device.
pub(crate) fn slot_of(problem: &Problem, solution: &Solution, hosting: &Hosting) -> Option<usize> {
    let is_device = |position: usize| {
        let devices = solution.hostings.iter().filter_map(|hosting| hosting.device);
        devices.into_iter().any(|device| device.worker == position)
    };
    let there = |(position, worker): (usize, &UsedWorker)| {
        let is_here = problem.worker_classes[worker.class].location == hosting.location;
        (is_here && !is_device(position)).then_some(position)
    };
    hosting.worker.or_else(|| solution.workers.iter().enumerate().find_map(there))
}

fn of_mode(mode: &ServiceMode) -> Distribution {
    Distribution::of_points(&mode.samples, &[], Some(mode.mean_call_seconds))
        .unwrap_or(Distribution::Mean(mode.mean_call_seconds))
}

/// Modes of the same backend and device as the chosen one, with batches that are no larger.
fn alike<'a>(modes: &'a [ServiceMode], chosen: &ServiceMode) -> impl Iterator<Item = &'a ServiceMode> {
    let device = |mode: &ServiceMode| {
        mode.remote.as_ref().map(|remote| (remote.class, remote.sends, remote.run.backend.clone()))
    };
    let (own, backend, batch) = (device(chosen), chosen.backend.clone(), chosen.batch);
    modes.iter().filter(move |mode| mode.backend == backend && mode.batch <= batch && device(mode) == own)
}

/// Times of the models on devices, by hosting.
fn devices(problem: &Problem, solution: &Solution) -> Vec<Option<ServiceTimes>> {
    let of = |hosting: &Hosting| {
        let (modes, chosen) = modes_of(problem, solution, hosting)?;
        chosen.remote.as_ref()?;
        let runs = alike(modes, chosen).filter_map(|mode| mode.remote.as_ref()).map(|remote| &remote.run);
        ServiceTimes::new(runs.map(|run| (run.batch, of_mode(run))).collect())
    };
    solution.hostings.iter().map(of).collect()
}

/// The modes of a hosting's variant on its worker, and the chosen one.
fn modes_of<'a>(
    problem: &'a Problem,
    solution: &Solution,
    hosting: &Hosting,
) -> Option<(&'a [ServiceMode], &'a ServiceMode)> {
    let worker = solution.workers.get(hosting.worker?)?;
    let operator = problem.operators.get(hosting.operator)?;
    let variant = operator.variants.get(*solution.variants.get(hosting.operator)?)?;
    let modes = variant.modes.get(worker.class)?;
    Some((modes, modes.get(hosting.mode)?))
}
