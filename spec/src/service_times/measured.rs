//! Service times from a profile.
use super::{Distribution, Knowledge, ServiceTimes};
use crate::profile::{BatchTime, Profile, Service};
use crate::units::TimeSpan;

impl Profile {
    /// Returns the measured distributions of an operator, variant, backend and type of worker, for calls with up to
    /// `most` records; none without a figure. Evenly spaced quantiles where the profile has them, else those of another
    /// size of batch, else named percentiles, else the mean. For a type with a share of a processor, the times of a
    /// type with whole processors of that machine, and the quota.
    pub fn service_times(
        &self,
        operator: &str,
        variant: Option<&str>,
        backend: Option<&str>,
        worker_type: &str,
        most: u32,
    ) -> Option<ServiceTimes> {
        let services = |worker_type: &str| -> Vec<&Service> {
            let all = self.services.iter().filter(|service| {
                service.operator == operator
                    && service.variant.as_deref() == variant
                    && service.worker_type == worker_type
                    && service.backend.as_deref() == backend
            });
            all.collect()
        };
        // For a share of a processor, the times of whole ones and the quota are more precise than times under a quota,
        // which depend on earlier calls.
        let whole = self.whole_of(worker_type);
        let known = whole.and_then(|(share, whole)| {
            Some(of_services(&services(&whole.worker_type), most)?.of_share(Some(share)))
        });
        known.or_else(|| of_services(&services(worker_type), most))
    }
}

impl BatchTime {
    /// Returns the distribution of these calls; none without a time.
    pub fn distribution(&self) -> Option<Distribution> {
        let mean = self.mean.map(seconds);
        let points: Vec<f64> = self.points.iter().copied().map(seconds).collect();
        let known =
            self.percentiles().into_iter().filter_map(|(part, time)| Some((part / 100.0, seconds(time?))));
        let known: Vec<(f64, f64)> = known.collect();
        Distribution::of_points(&points, &known, mean)
            .or_else(|| Distribution::of_percentiles(&known, mean))
            .or(mean.map(Distribution::Mean))
    }
}

fn of_services(services: &[&Service], most: u32) -> Option<ServiceTimes> {
    let all = || services.iter().flat_map(|service| &service.batches).filter(|times| times.batch <= most);
    let known: Vec<(u32, Distribution)> =
        all().filter_map(|times| Some((times.batch, times.distribution()?))).collect();
    let shaped = all().filter_map(|times| Some((times.batch, borrowed(times, &known)?))).collect();
    let after = services.iter().find_map(|service| service.after_pause.as_ref()?.times.distribution());
    Some(ServiceTimes::new(shaped)?.with_pauses(after))
}

/// The distribution of a batch; where too few of that size were measured, that of the nearest size, stretched to the
/// mean.
fn borrowed(times: &BatchTime, known: &[(u32, Distribution)]) -> Option<Distribution> {
    let own = times.distribution()?;
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

fn seconds(span: TimeSpan) -> f64 {
    span.0 as f64 / 1e9
}
