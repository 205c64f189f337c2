//! Service times from the profile, which knows more than a planning problem: all sizes of calls.
use super::{Distribution, ServiceTimes, Times, modes_of, of_mode};
use tidemill_optimizer::assemble::{Assembly, Inputs};
use tidemill_optimizer::solution::{Hosting, Solution};
use tidemill_spec::profile::BatchTime;
use tidemill_spec::units::TimeSpan;

impl Times {
    /// From the profile: for each stage the distributions that were measured for its variant, backend and type of
    /// worker, of calls with up to its largest batch. Evenly spaced quantiles where the profile has them, else named
    /// percentiles, else the mean.
    pub fn measured(inputs: &Inputs<'_>, assembly: &Assembly, solution: &Solution) -> Self {
        let problem = &assembly.problem;
        let of = |hosting: &Hosting| {
            let (_, mode) = modes_of(problem, solution, hosting)?;
            let class = &problem.worker_classes[solution.workers[hosting.worker?].class];
            let operator = &problem.operators[hosting.operator];
            let with_model = inputs.models.contains_key(&operator.id);
            let variant =
                with_model.then(|| operator.variants[solution.variants[hosting.operator]].id.as_str());
            let rows = inputs.profile.services.iter().filter(|service| {
                service.operator == operator.id
                    && service.variant.as_deref() == variant
                    && service.worker_type == class.worker_type
                    && service.backend == mode.backend
            });
            let times = rows.flat_map(|service| &service.batches).filter(|times| times.batch <= mode.batch);
            let known = times.filter_map(|times| Some((times.batch, distribution(times)?))).collect();
            ServiceTimes::new(known).or_else(|| Some(ServiceTimes::of_any_batch(of_mode(mode))))
        };
        Self { by_hosting: solution.hostings.iter().map(of).collect() }
    }
}

fn distribution(times: &BatchTime) -> Option<Distribution> {
    let mean = times.mean.map(seconds);
    let points: Vec<f64> = times.points.iter().copied().map(seconds).collect();
    let known =
        times.percentiles().into_iter().filter_map(|(part, time)| Some((part / 100.0, seconds(time?))));
    let known: Vec<(f64, f64)> = known.collect();
    Distribution::of_points(&points, mean)
        .or_else(|| Distribution::of_percentiles(&known, mean))
        .or(mean.map(Distribution::Mean))
}

fn seconds(span: TimeSpan) -> f64 {
    span.0 as f64 / 1e9
}
