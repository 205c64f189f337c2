//! Predicts times of models and machines that were not measured from those that were.
//!
//! Three steps, each with few parameters, because a profile has few models and few machines:
//!
//! 1. **Whole machines**, of one processor or more. The logarithm of a time is that of the task (operator, model, backend,
//!    batch) plus that of the machine, `a ln cores`: the gain from more processors. `a` comes from tasks that were measured
//!    on several such machines. A machine with times has its own effect.
//! 2. **Shares of a processor.** A call takes its time on a whole machine while the quota lasts ([`Quota`]): short calls do
//!    not reach it, so they are no part of step 1. If a profile has the whole machine ([`Profile::whole_of`]), its share
//!    adds no information; else its mean times the share is the processor time of a call.
//! 3. **Models.** By backend, the processor time of a call of `n` records on a machine with effect 0 is
//!    `c0 + c1 parameters + n (c2 FLOPs + c3 bytes + c_operator)`, no coefficient below 0: the fixed cost of a call,
//!    weights that are read once per call, arithmetic, input by its size, and the cost of preparing a record of that
//!    operator for any model (decoding a picture). Relative errors count.
//!
//! The error is estimated by leaving out each model, and each machine, in turn, and predicting it from the rest
//! ([`Predictor::left_out_models`], [`Predictor::left_out_machines`]); a prediction has the factor that covers nine in ten
//! of those times. Accelerators are not predicted: the number of cores does not describe them.
//!
//! [`Quota`]: tidemill_spec::quota::Quota
mod completion;
pub mod regression;
mod shape;

pub use completion::{Predicted, Target, complete};

use regression::{nonnegative_relative_fit, slope};
use shape::Shape;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_spec::profile::{How, Profile, Service};

/// Facts about a model that need no run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Features {
    /// Floating-point operations of one record.
    pub flops: f64,
    /// Number of weights.
    pub parameters: f64,
}

/// Features by operator and variant.
pub type Models = BTreeMap<(String, String), Features>;

/// Least number of models of a backend from which four prices and a constant can be fitted.
const LEAST_MODELS: usize = 4;
/// Share of left-out times within the factor of a prediction.
pub const LEVEL: f64 = 0.9;
/// Errors from which a quantile of [`LEVEL`] exists; with fewer the largest counts.
const ENOUGH_ERRORS: usize = 9;

/// A timed task on any machine: operator, variant, backend, records of a batch.
type Task = (String, Option<String>, Option<String>, u32);

/// One time.
#[derive(Debug, Clone, PartialEq)]
struct Figure {
    task: Task,
    machine: String,
    /// Natural logarithm of nanoseconds of processor time: the median.
    logarithm: f64,
}

/// Error of the prediction of a model or machine when its figures were left out.
#[derive(Debug, Clone, PartialEq)]
pub struct LeftOut {
    /// The model (with its operator), or the type of worker.
    pub name: String,
    /// Typical factor between predicted and measured, at least 1: of the root mean square of logarithms.
    pub factor: f64,
    /// Geometric mean of predicted over measured: above 1 the prediction is too slow.
    pub bias: f64,
    /// Figures that were predicted.
    pub figures: usize,
}

/// A predicted time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Nanoseconds of processor time: the median. On a share of a processor a call ends later, by its quota.
    pub nanoseconds: f64,
    /// Factor that covers nine in ten of the left-out times in both directions; `None` if nothing could be left out.
    pub within: Option<f64>,
}

/// Dependence of a time on the number of processors, of one or more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speedup {
    /// A time is that of one processor times `cores` to the power of this; 0: more processors do not help.
    pub exponent: f64,
    /// Whether it was observed, or is assumed.
    pub is_seen: bool,
}

impl Speedup {
    /// At least one processor: the cost of a share is in its quota.
    fn effect(&self, cores: f64) -> f64 {
        self.exponent * cores.max(1.0).ln()
    }
}

/// Errors of left-out figures: records of the batch, and the logarithm of the factor.
#[derive(Debug, Clone, Default, PartialEq)]
struct Errors(Vec<(u32, f64)>);

impl Errors {
    /// Returns the factor that covers nine in ten of the left-out times of batches of that size, or of all sizes if there
    /// are too few: the value of rank `0.9 (n + 1)`, rounded up, which covers a new one of this kind with that probability
    /// (Vovk, Gammerman and Shafer 2005, section 2.2); with fewer than nine the largest.
    fn within(&self, batch: u32) -> Option<f64> {
        let sized = |wanted: Option<u32>| -> Vec<f64> {
            let fits = |(size, _): &&(u32, f64)| wanted.is_none_or(|wanted| wanted == *size);
            self.0.iter().filter(fits).map(|(_, error)| error.abs()).collect()
        };
        let own = sized(Some(batch));
        let mut errors = if own.len() >= ENOUGH_ERRORS { own } else { sized(None) };
        errors.sort_by(f64::total_cmp);
        let rank = (LEVEL * (errors.len() as f64 + 1.0)).ceil() as usize;
        errors.get(rank.clamp(1, errors.len().max(1)) - 1).map(|error| error.exp())
    }
}

/// Combines two errors that are assumed independent.
fn together(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    Some((one?.ln().powi(2) + other?.ln().powi(2)).sqrt().exp())
}

/// Predicts times from a profile.
#[derive(Debug, Clone)]
pub struct Predictor {
    /// All figures, including those not used for fitting.
    figures: Vec<Figure>,
    /// Figures used for fitting.
    learnt: Vec<Figure>,
    cores: BTreeMap<String, f64>,
    /// Types with a share of a processor, and the whole type.
    whole: BTreeMap<String, String>,
    models: Models,
    /// Operators that have models.
    operators: BTreeSet<String>,
    /// Bytes per record of an operator's inputs.
    bytes: BTreeMap<String, f64>,
    shape: Shape,
    fitted: Fitted,
    left_out_models: Vec<LeftOut>,
    left_out_machines: Vec<LeftOut>,
    model_errors: Errors,
    /// Errors for types with one processor or more, and for types with less.
    whole_errors: Errors,
    share_errors: Errors,
}

/// Fitted parameters.
#[derive(Debug, Clone)]
struct Fitted {
    speedup: Speedup,
    effects: BTreeMap<String, f64>,
    backends: BTreeMap<Option<String>, Vec<f64>>,
}

/// Returns the measured or published services of a profile. Of those marked as predicted it includes the ones with numbers
/// of samples, which were measured once and then multiplied (`profile fit`), but not exact copies of another type's
/// figures.
fn measured(profile: &Profile) -> impl Iterator<Item = &Service> {
    let is_copy = |place: usize, service: &Service| {
        profile.services.iter().enumerate().any(|(other_place, other)| {
            (&other.operator, &other.variant, &other.backend)
                == (&service.operator, &service.variant, &service.backend)
                && other.batches == service.batches
                && other.worker_type != service.worker_type
                && (other.how != How::Predicted || other_place < place)
        })
    };
    let is_measured = move |(place, service): &(usize, &Service)| {
        service.how != How::Predicted
            || (service.batches.iter().any(|row| row.samples.is_some()) && !is_copy(*place, service))
    };
    profile.services.iter().enumerate().filter(is_measured).map(|(_, service)| service)
}

impl Predictor {
    /// Fits the measured or published figures of a profile, on machines with known `cores` that are not `excluded` (because
    /// they have accelerators).
    pub fn new(profile: &Profile, models: Models, excluded: &BTreeSet<String>) -> Self {
        let cores: BTreeMap<String, f64> = profile
            .machines
            .iter()
            .filter(|machine| !excluded.contains(&machine.worker_type))
            .filter_map(|machine| Some((machine.worker_type.clone(), machine.cores?)))
            .collect();
        let whole_of = |name: &String| Some((name.clone(), profile.whole_of(name)?.1.worker_type.clone()));
        let whole: BTreeMap<String, String> = cores
            .iter()
            .filter(|(_, cores)| **cores < 1.0)
            .filter_map(|(name, _)| whole_of(name))
            .filter(|(_, whole)| cores.contains_key(whole))
            .collect();
        let shape = Shape::of(measured(profile).filter(|service| {
            let cores = profile.machine(&service.worker_type).and_then(|machine| machine.cores);
            cores.is_none_or(|cores| cores >= 1.0)
        }));
        let mut figures = Vec::new();
        for service in measured(profile) {
            let Some(cores) = cores.get(&service.worker_type) else { continue };
            for row in &service.batches {
                let median = row.p50.or(row.mean).map(|time| time.0 as f64);
                // Under a quota the mean of consecutive calls is their processor time by the share; a median is not.
                let under_quota = row.mean.map(|mean| mean.0 as f64 / shape.mean()).or(median);
                let time = match *cores < 1.0 {
                    true => under_quota.map(|time| time * cores),
                    false => median,
                };
                let Some(time) = time.filter(|time| *time > 0.0) else { continue };
                figures.push(Figure {
                    task: (
                        service.operator.clone(),
                        service.variant.clone(),
                        service.backend.clone(),
                        row.batch,
                    ),
                    machine: service.worker_type.clone(),
                    logarithm: time.ln(),
                });
            }
        }
        let mut bytes: BTreeMap<String, f64> = BTreeMap::new();
        for message in &profile.messages {
            *bytes.entry(message.to.clone()).or_default() += message.bytes_per_record.0 as f64;
        }
        let mut predictor = Self {
            fitted: Fitted {
                speedup: Speedup { exponent: 0.0, is_seen: false },
                effects: BTreeMap::new(),
                backends: BTreeMap::new(),
            },
            operators: models.keys().map(|(operator, _)| operator.clone()).collect(),
            figures,
            learnt: Vec::new(),
            cores,
            whole,
            models,
            bytes,
            shape,
            left_out_models: Vec::new(),
            left_out_machines: Vec::new(),
            model_errors: Errors::default(),
            whole_errors: Errors::default(),
            share_errors: Errors::default(),
        };
        predictor.learnt = predictor.without(None);
        predictor.fitted = predictor.fit(&predictor.learnt);
        predictor.leave_out_models();
        predictor.leave_out_machines();
        predictor
    }

    /// The gain from more processors.
    pub fn speedup(&self) -> Speedup {
        self.fitted.speedup
    }

    /// Number of times used for fitting.
    pub fn learnt(&self) -> usize {
        self.learnt.len()
    }

    /// Returns the figures for fitting without a machine: shares of a processor only if their whole machine is missing or
    /// lacks that task.
    fn without(&self, machine: Option<&str>) -> Vec<Figure> {
        let is_there = |figure: &&Figure| machine != Some(figure.machine.as_str());
        let is_by_whole = |figure: &Figure| {
            let (operator, variant, backend, _) = &figure.task;
            self.whole.get(&figure.machine).is_some_and(|whole| {
                self.figures.iter().filter(is_there).any(|other| {
                    other.machine == *whole
                        && (&other.task.0, &other.task.1, &other.task.2) == (operator, variant, backend)
                })
            })
        };
        self.figures.iter().filter(is_there).filter(|figure| !is_by_whole(figure)).cloned().collect()
    }

    /// Returns the effect of a machine, and whether it comes from its own times or, for a share, from those of the whole
    /// machine.
    fn effect(&self, fitted: &Fitted, worker_type: &str, cores: f64) -> (f64, bool) {
        let own = |name: &str| fitted.effects.get(name).copied();
        // A share is one of a single processor, whatever the whole machine gains by several.
        let single = |whole: &String| Some(own(whole)? - fitted.speedup.effect(self.cores[whole]));
        let of_whole = self.whole.get(worker_type).filter(|_| cores < 1.0).and_then(single);
        let known = of_whole.or_else(|| own(worker_type));
        (known.unwrap_or_else(|| fitted.speedup.effect(cores)), known.is_some())
    }

    fn fit(&self, figures: &[Figure]) -> Fitted {
        let mut by_task: BTreeMap<&Task, Vec<&Figure>> = BTreeMap::new();
        for figure in figures {
            by_task.entry(&figure.task).or_default().push(figure);
        }
        let (mut rows, mut values) = (Vec::new(), Vec::new());
        for group in by_task.values() {
            let whole: Vec<(f64, f64)> = group
                .iter()
                .map(|figure| (self.cores[&figure.machine], figure.logarithm))
                .filter(|(cores, _)| *cores >= 1.0)
                .map(|(cores, logarithm)| (cores.ln(), logarithm))
                .collect();
            let n = whole.len() as f64;
            let middle = whole.iter().map(|(cores, _)| cores).sum::<f64>() / n;
            let level = whole.iter().map(|(_, logarithm)| logarithm).sum::<f64>() / n;
            rows.extend(whole.iter().map(|(cores, _)| cores - middle));
            values.extend(whole.iter().map(|(_, logarithm)| logarithm - level));
        }
        let found = slope(&rows, &values);
        let speedup = Speedup { exponent: found.unwrap_or(0.0), is_seen: found.is_some() };
        // The effect of a machine is that of its processors plus the mean deviation of its times.
        let mut residuals: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for group in by_task.values() {
            let of = |figure: &Figure| figure.logarithm - speedup.effect(self.cores[&figure.machine]);
            let level = group.iter().map(|figure| of(figure)).sum::<f64>() / group.len() as f64;
            for figure in group {
                residuals.entry(&figure.machine).or_default().push(of(figure) - level);
            }
        }
        let effects: BTreeMap<String, f64> = residuals
            .into_iter()
            .map(|(machine, values)| {
                let own = values.iter().sum::<f64>() / values.len() as f64;
                (machine.to_owned(), speedup.effect(self.cores[machine]) + own)
            })
            .collect();
        let mut backends = BTreeMap::new();
        let names: BTreeSet<&Option<String>> = figures.iter().map(|figure| &figure.task.2).collect();
        for backend in names {
            let of_backend = figures.iter().filter(|figure| figure.task.2 == *backend);
            let known: Vec<(&Figure, Vec<f64>)> =
                of_backend.filter_map(|figure| Some((figure, self.row(&figure.task)?))).collect();
            let variants: BTreeSet<_> =
                known.iter().map(|(figure, _)| (&figure.task.0, &figure.task.1)).collect();
            if variants.len() < LEAST_MODELS {
                continue;
            }
            let times: Vec<f64> =
                known.iter().map(|(figure, _)| (figure.logarithm - effects[&figure.machine]).exp()).collect();
            let rows: Vec<Vec<f64>> = known.into_iter().map(|(_, row)| row).collect();
            let mut fit = nonnegative_relative_fit(&rows, &times);
            // Least relative squares are biased to short times: scale so that the median fits.
            let mut ratios: Vec<f64> = rows
                .iter()
                .zip(&times)
                .map(|(row, time)| time / product(row, &fit).max(f64::MIN_POSITIVE))
                .filter(|ratio| ratio.is_finite())
                .collect();
            ratios.sort_by(f64::total_cmp);
            if let Some(middle) = ratios.get(ratios.len() / 2) {
                fit.iter_mut().for_each(|coefficient| *coefficient *= middle);
            }
            backends.insert(backend.clone(), fit);
        }
        Fitted { speedup, effects, backends }
    }

    /// Returns the terms of a task's time: call, weights, arithmetic, input, and the records of each operator.
    fn row(&self, task: &Task) -> Option<Vec<f64>> {
        let (operator, variant, _, batch) = task;
        let features = self.models.get(&(operator.clone(), variant.clone()?))?;
        let records = f64::from(*batch);
        let bytes = self.bytes.get(operator).copied().unwrap_or(0.0);
        let mut row =
            vec![1.0, features.parameters / 1e6, records * features.flops / 1e6, records * bytes / 1e3];
        row.extend(self.operators.iter().map(|one| if one == operator { records } else { 0.0 }));
        Some(row)
    }

    /// Logarithm of the time by the model features, on a machine with this effect.
    fn by_features(&self, fitted: &Fitted, task: &Task, effect: f64) -> Option<f64> {
        let time = product(&self.row(task)?, fitted.backends.get(&task.2)?);
        (time > 0.0).then(|| time.ln() + effect)
    }

    /// Logarithm of the time by the task's times on other machines.
    fn by_machines(&self, fitted: &Fitted, figures: &[Figure], task: &Task, effect: f64) -> Option<f64> {
        let levels: Vec<f64> = figures
            .iter()
            .filter(|figure| figure.task == *task)
            .map(|figure| figure.logarithm - fitted.effects[&figure.machine])
            .collect();
        (!levels.is_empty()).then(|| levels.iter().sum::<f64>() / levels.len() as f64 + effect)
    }

    /// Predicts the processor time of a batch on a worker type with `cores` cores; `None` if the profile has too few models
    /// for that backend, or the model's FLOPs are unknown.
    pub fn predict(
        &self,
        operator: &str,
        variant: Option<&str>,
        backend: Option<&str>,
        batch: u32,
        (worker_type, cores): (&str, f64),
    ) -> Option<Prediction> {
        let task = (operator.to_owned(), variant.map(str::to_owned), backend.map(str::to_owned), batch);
        let (effect, is_known) = self.effect(&self.fitted, worker_type, cores);
        let is_share = cores < 1.0;
        let machines = if is_share { &self.share_errors } else { &self.whole_errors }.within(batch);
        if let Some(logarithm) = self.by_machines(&self.fitted, &self.learnt, &task, effect) {
            return Some(Prediction { nanoseconds: logarithm.exp(), within: machines });
        }
        let logarithm = self.by_features(&self.fitted, &task, effect)?;
        let models = self.model_errors.within(batch);
        let within = if is_known && !is_share { models } else { together(models, machines) };
        Some(Prediction { nanoseconds: logarithm.exp(), within })
    }

    /// Each model predicted from all others, on the machines where it was measured.
    pub fn left_out_models(&self) -> &[LeftOut] {
        &self.left_out_models
    }

    /// Each machine predicted from all others, by its number of cores; only tasks that were measured on others.
    pub fn left_out_machines(&self) -> &[LeftOut] {
        &self.left_out_machines
    }

    fn leave_out_models(&mut self) {
        let names: BTreeSet<(&String, &String)> =
            self.learnt.iter().filter_map(|figure| Some((&figure.task.0, figure.task.1.as_ref()?))).collect();
        let (mut all, mut pooled) = (Vec::new(), Errors::default());
        for (operator, variant) in names {
            let is_it =
                |figure: &&Figure| figure.task.0 == *operator && figure.task.1.as_ref() == Some(variant);
            let rest: Vec<Figure> = self.learnt.iter().filter(|figure| !is_it(figure)).cloned().collect();
            let fitted = self.fit(&rest);
            let errors = self.learnt.iter().filter(is_it).filter_map(|figure| {
                let effect = fitted.effects.get(&figure.machine)?;
                let predicted = self.by_features(&fitted, &figure.task, *effect)?;
                Some((figure.task.3, predicted - figure.logarithm))
            });
            let errors: Vec<(u32, f64)> = errors.collect();
            all.extend(left_out(format!("{operator} {variant}"), &errors));
            pooled.0.extend(errors);
        }
        (self.left_out_models, self.model_errors) = (all, pooled);
    }

    fn leave_out_machines(&mut self) {
        let names: BTreeSet<&String> = self.figures.iter().map(|figure| &figure.machine).collect();
        let (mut all, mut of_whole, mut of_shares) = (Vec::new(), Errors::default(), Errors::default());
        for machine in names {
            let rest = self.without(Some(machine));
            let fitted = self.fit(&rest);
            let cores = self.cores[machine];
            let (effect, _) = self.effect(&fitted, machine, cores);
            let errors =
                self.figures.iter().filter(|figure| figure.machine == *machine).filter_map(|figure| {
                    let predicted = self.by_machines(&fitted, &rest, &figure.task, effect)?;
                    Some((figure.task.3, predicted - figure.logarithm))
                });
            let errors: Vec<(u32, f64)> = errors.collect();
            all.extend(left_out(machine.clone(), &errors));
            let pooled = if cores < 1.0 { &mut of_shares } else { &mut of_whole };
            pooled.0.extend(errors);
        }
        self.left_out_machines = all;
        (self.whole_errors, self.share_errors) = (of_whole, of_shares);
    }
}

fn product(row: &[f64], coefficients: &[f64]) -> f64 {
    row.iter().zip(coefficients).map(|(x, c)| x * c).sum()
}

fn left_out(name: String, errors: &[(u32, f64)]) -> Option<LeftOut> {
    let n = errors.len() as f64;
    (!errors.is_empty()).then(|| LeftOut {
        name,
        factor: (errors.iter().map(|(_, error)| error * error).sum::<f64>() / n).sqrt().exp(),
        bias: (errors.iter().map(|(_, error)| error).sum::<f64>() / n).exp(),
        figures: errors.len(),
    })
}

#[cfg(test)]
mod tests;
