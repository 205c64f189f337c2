//! Service times from the profile, which knows more than a planning problem: all sizes of calls.
use super::{Distribution, Knowledge, ServiceTimes, Times, modes_of, of_mode};
use tidemill_optimizer::assemble::{Assembly, Inputs};
use tidemill_optimizer::solution::{Hosting, Solution};
use tidemill_spec::profile::{BatchTime, Service};
use tidemill_spec::units::TimeSpan;

impl Times {
    /// From the profile: for each stage the distributions that were measured for its variant, backend and type of
    /// worker, of calls with up to its largest batch. Evenly spaced quantiles where the profile has them, else those of
    /// another size of batch, else named percentiles, else the mean. Of a type with a share of a processor, the times of
    /// a type with whole processors of the same machine, and the quota.
    pub fn measured(inputs: &Inputs<'_>, assembly: &Assembly, solution: &Solution) -> Self {
        let problem = &assembly.problem;
        let of = |hosting: &Hosting| {
            let (_, mode) = modes_of(problem, solution, hosting)?;
            let class = &problem.worker_classes[solution.workers[hosting.worker?].class];
            let operator = &problem.operators[hosting.operator];
            let with_model = inputs.models.contains_key(&operator.id);
            let variant =
                with_model.then(|| operator.variants[solution.variants[hosting.operator]].id.as_str());
            let services = |worker_type: &str| -> Vec<&Service> {
                let all = inputs.profile.services.iter().filter(|service| {
                    service.operator == operator.id
                        && service.variant.as_deref() == variant
                        && service.worker_type == worker_type
                        && service.backend == mode.backend
                });
                all.collect()
            };
            // A share of a processor: the times of whole ones and the quota say more than times under a quota, which
            // depend on what came before.
            let whole = inputs.profile.whole_of(&class.worker_type);
            let known = whole.and_then(|(share, whole)| {
                Some(of_services(&services(&whole.worker_type), mode.batch)?.of_share(Some(share)))
            });
            known
                .or_else(|| of_services(&services(&class.worker_type), mode.batch))
                .or_else(|| Some(ServiceTimes::of_any_batch(of_mode(mode))))
        };
        Self { by_hosting: solution.hostings.iter().map(of).collect() }
    }
}

fn of_services(services: &[&Service], most: u32) -> Option<ServiceTimes> {
    let all = || services.iter().flat_map(|service| &service.batches).filter(|times| times.batch <= most);
    let known: Vec<(u32, Distribution)> =
        all().filter_map(|times| Some((times.batch, distribution(times)?))).collect();
    let shaped = all().filter_map(|times| Some((times.batch, borrowed(times, &known)?))).collect();
    let after = services.iter().find_map(|service| distribution(&service.after_pause.as_ref()?.times));
    Some(ServiceTimes::new(shaped)?.with_pauses(after))
}

/// The distribution of a batch; where too few of that size were measured for one, that of the nearest size with one, stretched
/// to the mean.
fn borrowed(times: &BatchTime, known: &[(u32, Distribution)]) -> Option<Distribution> {
    let own = distribution(times)?;
    let Some(mean) = times.mean.map(seconds).filter(|_| own.knowledge() < Knowledge::Distribution) else {
        return Some(own);
    };
    let shapes = known.iter().filter_map(|(batch, shape)| match shape {
        Distribution::Quantiles(quantiles) => Some((batch.abs_diff(times.batch), quantiles)),
        _ => None,
    });
    let nearest = shapes.min_by_key(|(distance, _)| *distance);
    nearest.map(|(_, quantiles)| Distribution::Quantiles(quantiles.stretched(mean))).or(Some(own))
}

fn distribution(times: &BatchTime) -> Option<Distribution> {
    let mean = times.mean.map(seconds);
    let points: Vec<f64> = times.points.iter().copied().map(seconds).collect();
    let known =
        times.percentiles().into_iter().filter_map(|(part, time)| Some((part / 100.0, seconds(time?))));
    let known: Vec<(f64, f64)> = known.collect();
    Distribution::of_points(&points, &known, mean)
        .or_else(|| Distribution::of_percentiles(&known, mean))
        .or(mean.map(Distribution::Mean))
}

fn seconds(span: TimeSpan) -> f64 {
    span.0 as f64 / 1e9
}
