//! Completes a profile with predictions.
use super::shape::middle_of;
use super::{LEAST_MODELS, Prediction, Predictor, measured};
use crate::statistics::rounded;
use std::collections::BTreeSet;
use tidemill_spec::profile::{AfterPause, BatchTime, How, Machine, Profile, Service};
use tidemill_spec::units::{Bytes, TimeSpan};

/// A type of worker to predict for.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// Name in the infrastructure.
    pub worker_type: String,
    /// Its processors.
    pub cores: f64,
}

impl Target {
    /// Its share of a processor, if it has less than one.
    fn share(&self) -> Option<f64> {
        Some(self.cores).filter(|cores| *cores < 1.0)
    }
}

/// Result of completing a profile.
#[derive(Debug, Clone)]
pub struct Predicted {
    /// The profile with the predictions.
    pub profile: Profile,
    /// Number of services added, at the end.
    pub added: usize,
    /// Number of missing services that cannot be predicted.
    pub missing: usize,
    /// Predictions that failed, with the reason.
    pub notes: Vec<String>,
}

impl Predicted {
    /// The services that were added.
    pub fn new_services(&self) -> &[Service] {
        &self.profile.services[self.profile.services.len() - self.added..]
    }
}

/// Key of a service: operator, variant, backend.
type Wanted = (String, Option<String>, Option<String>);

/// Adds predictions to a profile: for every target all operators, models and backends of `wanted` (operator, variant,
/// backend) without times there.
pub fn complete(
    profile: &Profile,
    predictor: &Predictor,
    wanted: &[Wanted],
    targets: &[Target],
) -> Predicted {
    let mut completed = profile.clone();
    let (mut added, mut missing, mut notes) = (0, 0, BTreeSet::new());
    for target in targets {
        for one in wanted {
            let (operator, variant, backend) = one;
            let is_known = profile.services.iter().any(|service| {
                service.worker_type == target.worker_type
                    && (&service.operator, &service.variant) == (operator, variant)
                    && (service.backend.is_none() || service.backend == *backend)
            });
            if is_known {
                continue;
            }
            let rows = predictions(profile, predictor, one, target);
            if rows.is_empty() {
                missing += 1;
                let what = [Some(operator), variant.as_ref(), backend.as_ref()];
                let what: Vec<&str> = what.into_iter().flatten().map(String::as_str).collect();
                notes.insert(format!(
                    "{} is not predicted: it takes the FLOPs and parameters in the manifest, and times of {LEAST_MODELS} \
                     models or more with the same backend",
                    what.join(" ")
                ));
                continue;
            }
            // The largest of all batches; `None` if one has none.
            let within: Option<Vec<f64>> = rows.iter().map(|(_, predicted)| predicted.within).collect();
            let within = within.map(|factors| factors.into_iter().fold(1.0, f64::max));
            let row = |(batch, predicted): &(u32, Prediction)| {
                predictor.shape.row(*batch, predicted.nanoseconds, target.share())
            };
            let mut batches: Vec<BatchTime> = rows.iter().map(row).collect();
            grow(&mut batches);
            let after_pause = after_pause(profile, predictor, one, batches.first(), target);
            completed.services.push(Service {
                operator: operator.clone(),
                variant: variant.clone(),
                backend: backend.clone(),
                worker_type: target.worker_type.clone(),
                how: How::Predicted,
                model: None,
                load_time: None,
                // The memory of a model hardly depends on the machine.
                peak_memory: largest_memory(profile, one),
                model_part: None,
                within: within.map(|factor| (factor * 100.0).ceil() / 100.0),
                batches,
                after_pause,
            });
            added += 1;
            if !completed.machines.iter().any(|machine| machine.worker_type == target.worker_type) {
                completed.machines.push(Machine {
                    worker_type: target.worker_type.clone(),
                    how: How::Predicted,
                    cpu: None,
                    cores: Some(target.cores),
                    memory: None,
                    factor: None,
                    source: Some(
                        "predicted from the times of other types by the number of processors".to_owned(),
                    ),
                    overheads: None,
                });
            }
        }
    }
    Predicted { profile: completed, added, missing, notes: notes.into_iter().collect() }
}

/// Returns the largest measured memory of a model on any type.
fn largest_memory(profile: &Profile, (operator, variant, backend): &Wanted) -> Option<Bytes> {
    let is_same = |service: &&Service| {
        (&service.operator, &service.variant) == (operator, variant)
            && (backend.is_none() || service.backend == *backend)
    };
    profile.services.iter().filter(is_same).filter_map(|service| service.peak_memory).max()
}

/// Predicts processor times for all batch sizes that the operator was measured with.
fn predictions(
    profile: &Profile,
    predictor: &Predictor,
    (operator, variant, backend): &Wanted,
    target: &Target,
) -> Vec<(u32, Prediction)> {
    let services = profile.services.iter().filter(|service| service.operator == *operator);
    let sizes: BTreeSet<u32> =
        services.flat_map(|service| service.batches.iter().map(|row| row.batch)).collect();
    let sizes = if sizes.is_empty() { BTreeSet::from([1]) } else { sizes };
    let machine = (target.worker_type.as_str(), target.cores);
    let (variant, backend) = (variant.as_deref(), backend.as_deref());
    sizes
        .into_iter()
        .filter_map(|batch| Some((batch, predictor.predict(operator, variant, backend, batch, machine)?)))
        .collect()
}

/// Makes times non-decreasing in the batch size, since sizes may come from different machines.
fn grow(rows: &mut [BatchTime]) {
    for place in 1..rows.len() {
        let (before, rest) = rows.split_at_mut(place);
        let (before, row) = (&before[place - 1], &mut rest[0]);
        for (time, least) in [
            (&mut row.mean, before.mean),
            (&mut row.p50, before.p50),
            (&mut row.p75, before.p75),
            (&mut row.p90, before.p90),
            (&mut row.p99, before.p99),
        ] {
            *time = (*time).max(least);
        }
    }
}

/// Predicts times of calls of a model after a pause: the extra time is the median of the measured ones, each on its
/// machine: those of the model itself, else of the operator, else all with that backend.
fn after_pause(
    profile: &Profile,
    predictor: &Predictor,
    (operator, variant, backend): &Wanted,
    row: Option<&BatchTime>,
    target: &Target,
) -> Option<AfterPause> {
    variant.as_ref()?;
    let row = row.filter(|row| row.batch == 1)?;
    let known: Vec<(&Service, &AfterPause, &BatchTime)> = measured(profile)
        .filter(|service| service.backend == *backend && service.variant.is_some())
        .filter_map(|service| Some((service, service.after_pause.as_ref()?, service.batch(1)?)))
        .collect();
    let is_same = |level: usize, service: &Service| match level {
        0 => (&service.operator, &service.variant) == (operator, variant),
        1 => service.operator == *operator,
        _ => true,
    };
    let near = (0..3)
        .map(|level| known.iter().filter(|(service, ..)| is_same(level, service)).collect::<Vec<_>>())
        .find(|near| !near.is_empty())?;
    let (here, _) = predictor.effect(&predictor.fitted, &target.worker_type, target.cores);
    let longer = |figure: fn(&BatchTime) -> Option<TimeSpan>| {
        let differences = near.iter().filter_map(|(service, after, before)| {
            let longer = figure(&after.times)?.0 as f64 - figure(before)?.0 as f64;
            let there = predictor.fitted.effects.get(&service.worker_type).copied().unwrap_or(here);
            Some(longer.max(0.0) * (here - there).exp() / target.share().unwrap_or(1.0))
        });
        middle_of(differences.collect())
    };
    let mut least = TimeSpan(0);
    let mut of = |figure: fn(&BatchTime) -> Option<TimeSpan>| {
        let time = rounded(figure(row)?.0 as f64 + longer(figure)?).max(least);
        least = time;
        Some(time)
    };
    let (p50, p75, p90, p99) =
        (of(|times| times.p50), of(|times| times.p75), of(|times| times.p90), of(|times| times.p99));
    let mean = row.mean.zip(longer(|times| times.mean)).map(|(mean, more)| rounded(mean.0 as f64 + more));
    p50.or(mean)?;
    let (samples, deviation, points) = (None, row.deviation, Vec::new());
    let times = BatchTime { batch: 1, samples, mean, deviation, p50, p75, p90, p99, points };
    Some(AfterPause { pause: near[0].1.pause, times })
}
