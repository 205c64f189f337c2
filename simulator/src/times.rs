//! Service times: the measured distribution of each stage's calls, by the number of records in a call.
pub use tidemill_spec::service_times::{Distribution, Knowledge, Quantiles, ServiceTimes};

use tidemill_optimizer::assemble::{Assembly, Inputs};
use tidemill_optimizer::problem::{Problem, ServiceMode};
use tidemill_optimizer::solution::{Hosting, Solution};

/// Service times of all stages of a solution, by position of its hostings; none for what costs no time.
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    by_hosting: Vec<Option<ServiceTimes>>,
}

impl Times {
    /// One for each hosting of the solution, in its order.
    pub fn new(by_hosting: Vec<Option<ServiceTimes>>) -> Self {
        Self { by_hosting }
    }

    /// From the problem alone: the samples of each mode, else its mean. Calls with fewer records than the mode's batch
    /// take what smaller modes of the same backend take; where there is none, as long as a full one.
    pub fn of_modes(problem: &Problem, solution: &Solution) -> Self {
        let of = |hosting: &Hosting| {
            let (modes, chosen) = modes_of(problem, solution, hosting)?;
            let same =
                modes.iter().filter(|mode| mode.backend == chosen.backend && mode.batch <= chosen.batch);
            ServiceTimes::new(same.map(|mode| (mode.batch, of_mode(mode))).collect())
        };
        Self { by_hosting: solution.hostings.iter().map(of).collect() }
    }

    /// From the profile: for each stage the distributions that were measured for its variant, backend and type of worker,
    /// of calls with up to its largest batch.
    pub fn measured(inputs: &Inputs<'_>, assembly: &Assembly, solution: &Solution) -> Self {
        let problem = &assembly.problem;
        let of = |hosting: &Hosting| {
            let (_, mode) = modes_of(problem, solution, hosting)?;
            let class = &problem.worker_classes[solution.workers[hosting.worker?].class];
            let operator = &problem.operators[hosting.operator];
            let with_model = inputs.models.contains_key(&operator.id);
            let variant =
                with_model.then(|| operator.variants[solution.variants[hosting.operator]].id.as_str());
            let backend = mode.backend.as_deref();
            let known =
                inputs.profile.service_times(&operator.id, variant, backend, &class.worker_type, mode.batch);
            known.or_else(|| Some(ServiceTimes::of_any_batch(of_mode(mode))))
        };
        Self { by_hosting: solution.hostings.iter().map(of).collect() }
    }

    /// That of a hosting.
    pub fn of(&self, hosting: usize) -> Option<&ServiceTimes> {
        self.by_hosting.get(hosting)?.as_ref()
    }

    /// What is known of each hosting that takes time.
    pub fn knowledge(&self) -> impl Iterator<Item = (usize, Knowledge)> {
        let all = self.by_hosting.iter().enumerate();
        all.filter_map(|(hosting, times)| Some((hosting, times.as_ref()?.knowledge())))
    }
}

fn of_mode(mode: &ServiceMode) -> Distribution {
    Distribution::of_points(&mode.samples, &[], Some(mode.mean_call_seconds))
        .unwrap_or(Distribution::Mean(mode.mean_call_seconds))
}

/// The ways in which a hosting could run its variant where it is, and the chosen one.
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
