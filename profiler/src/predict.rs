//! Times of models and machines that nobody has measured, from those that somebody has.
//!
//! Two steps, each with few parameters, because a profile has few models and few machines:
//!
//! 1. **Machines.** The logarithm of a time is that of the task (operator, model, backend, batch) plus that of the
//!    machine, `a ln min(cores, 1) + b ln max(cores, 1)`: what a share of one processor costs, and what more of them
//!    save. Slopes come from tasks that were measured on several machines. A machine with times has its own effect.
//! 2. **Models.** By backend, the time of a call of `n` records on a machine with effect 0 is
//!    `c0 + c1 parameters + n (c2 FLOPs + c3 bytes + c_operator)`, no coefficient below 0: what a call costs, weights
//!    that are read once a call, arithmetic, input by its size, and what preparing a record of that operator costs
//!    whatever its model (decoding a picture). Relative errors count.
//!
//! How far this is off is measured by leaving out each model, and each machine, in turn, and predicting it from the rest
//! ([`Predictor::left_out_models`], [`Predictor::left_out_machines`]); the factor of nine in ten of those is what a prediction
//! is `within`. Accelerators are not predicted: two numbers of cores say nothing about them.
pub mod regression;

use crate::statistics::rounded;
use regression::{nonnegative_relative_fit, slopes};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_spec::profile::{BatchTime, How, Machine, Profile, Service};
use tidemill_spec::units::TimeSpan;

/// What is known of a model without running it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Features {
    /// Floating-point operations of one record.
    pub flops: f64,
    /// Number of weights.
    pub parameters: f64,
}

/// Features by operator and variant.
pub type Models = BTreeMap<(String, String), Features>;

/// Fewer models of a backend than this are not enough for four prices and a start.
const LEAST_MODELS: usize = 4;
/// The share of left-out models or machines that is within the factor of a prediction.
pub const LEVEL: f64 = 0.9;

/// What is timed, whatever the machine: operator, variant, backend, records of a batch.
type Task = (String, Option<String>, Option<String>, u32);

/// One time.
#[derive(Debug, Clone, PartialEq)]
struct Figure {
    task: Task,
    machine: String,
    /// Natural logarithm of nanoseconds.
    logarithm: f64,
}

/// How far a model or machine was from its prediction when its figures were left out.
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
    /// Nanoseconds: the median.
    pub nanoseconds: f64,
    /// Nine in ten of what was left out were within this factor, either way; none where nothing could be left out.
    pub within: Option<f64>,
}

/// How a time follows from the number of processors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MachineSlopes {
    /// Below one processor; -1: half a processor takes twice as long.
    pub below_one: f64,
    /// Above one processor; 0: more do not help.
    pub above_one: f64,
    /// Whether each of the two was seen, or assumed.
    pub seen: [bool; 2],
}

impl MachineSlopes {
    fn effect(&self, cores: f64) -> f64 {
        self.below_one * cores.min(1.0).ln() + self.above_one * cores.max(1.0).ln()
    }
}

/// Predicts times from a profile.
#[derive(Debug, Clone)]
pub struct Predictor {
    figures: Vec<Figure>,
    cores: BTreeMap<String, f64>,
    models: Models,
    /// Operators that have models.
    operators: BTreeSet<String>,
    /// Bytes that a record of an operator's inputs has.
    bytes: BTreeMap<String, f64>,
    fitted: Fitted,
    left_out_models: Vec<LeftOut>,
    left_out_machines: Vec<LeftOut>,
    within_models: Option<f64>,
    within_machines: Option<f64>,
}

/// What was fitted to some figures.
#[derive(Debug, Clone)]
struct Fitted {
    slopes: MachineSlopes,
    effects: BTreeMap<String, f64>,
    backends: BTreeMap<Option<String>, Vec<f64>>,
}

impl Predictor {
    /// Learns from the figures of a profile that are not predicted themselves, on machines whose `cores` it knows and
    /// that are not `excluded` (because they have accelerators).
    pub fn new(profile: &Profile, models: Models, excluded: &BTreeSet<String>) -> Self {
        let cores: BTreeMap<String, f64> = profile
            .machines
            .iter()
            .filter(|machine| !excluded.contains(&machine.worker_type))
            .filter_map(|machine| Some((machine.worker_type.clone(), machine.cores?)))
            .collect();
        let mut figures = Vec::new();
        for service in &profile.services {
            if service.how == How::Predicted || !cores.contains_key(&service.worker_type) {
                continue;
            }
            for row in &service.batches {
                let Some(time) = row.p50.or(row.mean).filter(|time| time.0 > 0) else { continue };
                figures.push(Figure {
                    task: (
                        service.operator.clone(),
                        service.variant.clone(),
                        service.backend.clone(),
                        row.batch,
                    ),
                    machine: service.worker_type.clone(),
                    logarithm: (time.0 as f64).ln(),
                });
            }
        }
        let mut bytes: BTreeMap<String, f64> = BTreeMap::new();
        for message in &profile.messages {
            *bytes.entry(message.to.clone()).or_default() += message.bytes_per_record.0 as f64;
        }
        let mut predictor = Self {
            fitted: Fitted {
                slopes: MachineSlopes { below_one: -1.0, above_one: 0.0, seen: [false; 2] },
                effects: BTreeMap::new(),
                backends: BTreeMap::new(),
            },
            operators: models.keys().map(|(operator, _)| operator.clone()).collect(),
            figures,
            cores,
            models,
            bytes,
            left_out_models: Vec::new(),
            left_out_machines: Vec::new(),
            within_models: None,
            within_machines: None,
        };
        predictor.fitted = predictor.fit(&predictor.figures);
        predictor.left_out_models = predictor.without_each_model();
        predictor.left_out_machines = predictor.without_each_machine();
        predictor.within_models = within(&predictor.left_out_models);
        predictor.within_machines = within(&predictor.left_out_machines);
        predictor
    }

    /// What processors are worth.
    pub fn slopes(&self) -> MachineSlopes {
        self.fitted.slopes
    }

    fn fit(&self, figures: &[Figure]) -> Fitted {
        let mut by_task: BTreeMap<&Task, Vec<&Figure>> = BTreeMap::new();
        for figure in figures {
            by_task.entry(&figure.task).or_default().push(figure);
        }
        let shape = |machine: &str| {
            let cores = self.cores[machine];
            [cores.min(1.0).ln(), cores.max(1.0).ln()]
        };
        let (mut rows, mut values) = (Vec::new(), Vec::new());
        for group in by_task.values().filter(|group| group.len() > 1) {
            let n = group.len() as f64;
            let mean = |f: &dyn Fn(&Figure) -> f64| group.iter().map(|figure| f(figure)).sum::<f64>() / n;
            let middle =
                [mean(&|figure| shape(&figure.machine)[0]), mean(&|figure| shape(&figure.machine)[1])];
            let level = mean(&|figure| figure.logarithm);
            for figure in group {
                let [below, above] = shape(&figure.machine);
                rows.push([below - middle[0], above - middle[1]]);
                values.push(figure.logarithm - level);
            }
        }
        let found = slopes(&rows, &values);
        let slopes = MachineSlopes {
            below_one: found[0].unwrap_or(-1.0),
            above_one: found[1].unwrap_or(0.0),
            seen: found.map(|slope| slope.is_some()),
        };
        // A machine is what its processors say, and by how much its times differ from that on average.
        let mut residuals: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for group in by_task.values() {
            let of = |figure: &Figure| figure.logarithm - slopes.effect(self.cores[&figure.machine]);
            let level = group.iter().map(|figure| of(figure)).sum::<f64>() / group.len() as f64;
            for figure in group {
                residuals.entry(&figure.machine).or_default().push(of(figure) - level);
            }
        }
        let effects: BTreeMap<String, f64> = residuals
            .into_iter()
            .map(|(machine, values)| {
                let own = values.iter().sum::<f64>() / values.len() as f64;
                (machine.to_owned(), slopes.effect(self.cores[machine]) + own)
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
            // The least sum of relative squares leans to times that are too short: bring the middle to the middle.
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
        Fitted { slopes, effects, backends }
    }

    /// What the time of a task is made of: call, weights, arithmetic, input, and the records of each operator.
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

    /// Logarithm of the time by the model of models, on a machine with this effect.
    fn by_features(&self, fitted: &Fitted, task: &Task, effect: f64) -> Option<f64> {
        let time = product(&self.row(task)?, fitted.backends.get(&task.2)?);
        (time > 0.0).then(|| time.ln() + effect)
    }

    /// Logarithm of the time by what the task takes on other machines.
    fn by_machines(&self, fitted: &Fitted, figures: &[Figure], task: &Task, effect: f64) -> Option<f64> {
        let levels: Vec<f64> = figures
            .iter()
            .filter(|figure| figure.task == *task)
            .map(|figure| figure.logarithm - fitted.effects[&figure.machine])
            .collect();
        (!levels.is_empty()).then(|| levels.iter().sum::<f64>() / levels.len() as f64 + effect)
    }

    /// The time of a batch on a type of worker with so many cores; none where the profile has too few models for that
    /// backend, or the model's FLOPs are not known.
    pub fn predict(
        &self,
        operator: &str,
        variant: Option<&str>,
        backend: Option<&str>,
        batch: u32,
        (worker_type, cores): (&str, f64),
    ) -> Option<Prediction> {
        let task = (operator.to_owned(), variant.map(str::to_owned), backend.map(str::to_owned), batch);
        let known = self.fitted.effects.get(worker_type).copied();
        let effect = known.unwrap_or_else(|| self.fitted.slopes.effect(cores));
        if let Some(logarithm) = self.by_machines(&self.fitted, &self.figures, &task, effect) {
            return Some(Prediction { nanoseconds: logarithm.exp(), within: self.within_machines });
        }
        let logarithm = self.by_features(&self.fitted, &task, effect)?;
        let within = match (known, self.within_models, self.within_machines) {
            (Some(_), models, _) => models,
            // Errors of the two are taken for independent.
            (None, Some(models), Some(machines)) => {
                Some((models.ln().powi(2) + machines.ln().powi(2)).sqrt().exp())
            }
            (None, ..) => None,
        };
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

    fn without_each_model(&self) -> Vec<LeftOut> {
        let names: BTreeSet<(&String, &String)> = self
            .figures
            .iter()
            .filter_map(|figure| Some((&figure.task.0, figure.task.1.as_ref()?)))
            .collect();
        let mut all = Vec::new();
        for (operator, variant) in names {
            let is_it =
                |figure: &&Figure| figure.task.0 == *operator && figure.task.1.as_ref() == Some(variant);
            let rest: Vec<Figure> = self.figures.iter().filter(|figure| !is_it(figure)).cloned().collect();
            let fitted = self.fit(&rest);
            let errors = self.figures.iter().filter(is_it).filter_map(|figure| {
                let effect = fitted.effects.get(&figure.machine)?;
                Some(self.by_features(&fitted, &figure.task, *effect)? - figure.logarithm)
            });
            all.extend(left_out(format!("{operator} {variant}"), &errors.collect::<Vec<_>>()));
        }
        all
    }

    fn without_each_machine(&self) -> Vec<LeftOut> {
        let names: BTreeSet<&String> = self.figures.iter().map(|figure| &figure.machine).collect();
        let mut all = Vec::new();
        for machine in names {
            let is_it = |figure: &&Figure| figure.machine == *machine;
            let rest: Vec<Figure> = self.figures.iter().filter(|figure| !is_it(figure)).cloned().collect();
            let fitted = self.fit(&rest);
            let effect = fitted.slopes.effect(self.cores[machine]);
            let errors = self.figures.iter().filter(is_it).filter_map(|figure| {
                Some(self.by_machines(&fitted, &rest, &figure.task, effect)? - figure.logarithm)
            });
            all.extend(left_out(machine.clone(), &errors.collect::<Vec<_>>()));
        }
        all
    }
}

fn product(row: &[f64], coefficients: &[f64]) -> f64 {
    row.iter().zip(coefficients).map(|(x, c)| x * c).sum()
}

fn left_out(name: String, errors: &[f64]) -> Option<LeftOut> {
    let n = errors.len() as f64;
    (!errors.is_empty()).then(|| LeftOut {
        name,
        factor: (errors.iter().map(|error| error * error).sum::<f64>() / n).sqrt().exp(),
        bias: (errors.iter().sum::<f64>() / n).exp(),
        figures: errors.len(),
    })
}

/// The factor that nine in ten of what was left out are within: the value of rank `0.9 (n + 1)`, rounded up, which for
/// a new one of the same kind is met with that probability (Vovk, Gammerman and Shafer 2005, section 2.2); with fewer
/// than nine the largest.
fn within(all: &[LeftOut]) -> Option<f64> {
    let mut factors: Vec<f64> = all.iter().map(|one| one.factor).collect();
    factors.sort_by(f64::total_cmp);
    let rank = (LEVEL * (factors.len() as f64 + 1.0)).ceil() as usize;
    factors.get(rank.clamp(1, factors.len().max(1)) - 1).copied()
}

/// A type of worker to predict for.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// Name in the infrastructure.
    pub worker_type: String,
    /// Its processors.
    pub cores: f64,
}

/// What became of a profile.
#[derive(Debug, Clone)]
pub struct Predicted {
    /// The profile with the predictions.
    pub profile: Profile,
    /// How many services were added.
    pub added: usize,
    /// What could not be predicted and why.
    pub notes: Vec<String>,
}

/// Adds predictions to a profile: for every target all operators, models and backends of `wanted` (operator, variant,
/// backend) that it has no times of there.
pub fn complete(
    profile: &Profile,
    predictor: &Predictor,
    wanted: &[(String, Option<String>, Option<String>)],
    targets: &[Target],
) -> Predicted {
    let mut completed = profile.clone();
    let (mut added, mut notes) = (0, BTreeSet::new());
    let shape = Shape::of(profile);
    for target in targets {
        for (operator, variant, backend) in wanted {
            let is_known = profile.services.iter().any(|service| {
                service.worker_type == target.worker_type
                    && (&service.operator, &service.variant) == (operator, variant)
                    && (service.backend.is_none() || service.backend == *backend)
            });
            if is_known {
                continue;
            }
            let sizes: BTreeSet<u32> = profile
                .services
                .iter()
                .filter(|service| service.operator == *operator)
                .flat_map(|service| service.batches.iter().map(|row| row.batch))
                .collect();
            let sizes = if sizes.is_empty() { BTreeSet::from([1]) } else { sizes };
            let machine = (target.worker_type.as_str(), target.cores);
            let rows: Vec<(u32, Prediction)> = sizes
                .into_iter()
                .filter_map(|batch| {
                    let predicted = predictor.predict(
                        operator,
                        variant.as_deref(),
                        backend.as_deref(),
                        batch,
                        machine,
                    )?;
                    Some((batch, predicted))
                })
                .collect();
            let Some(within) = rows.first().map(|(_, first)| first.within) else {
                let what = [Some(operator), variant.as_ref(), backend.as_ref()];
                let what: Vec<&str> = what.into_iter().flatten().map(String::as_str).collect();
                notes.insert(format!(
                    "{} is not predicted: it takes the FLOPs and parameters in the manifest, and times of {LEAST_MODELS} \
                     models or more with the same backend",
                    what.join(" ")
                ));
                continue;
            };
            completed.services.push(Service {
                operator: operator.clone(),
                variant: variant.clone(),
                backend: backend.clone(),
                worker_type: target.worker_type.clone(),
                how: How::Predicted,
                model: None,
                load_time: None,
                peak_memory: None,
                within: within.map(|factor| (factor * 100.0).ceil() / 100.0),
                batches: rows.iter().map(|(batch, one)| shape.row(*batch, one.nanoseconds)).collect(),
                after_pause: None,
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
                });
            }
        }
    }
    Predicted { profile: completed, added, notes: notes.into_iter().collect() }
}

/// How the figures of a distribution lie to its median, in the middle of all services of a profile.
struct Shape {
    mean: Option<f64>,
    deviation: Option<f64>,
    percentiles: [Option<f64>; 3],
}

impl Shape {
    fn of(profile: &Profile) -> Self {
        let middle = |time: &dyn Fn(&BatchTime) -> Option<TimeSpan>| {
            let rows = profile.services.iter().flat_map(|service| &service.batches);
            let mut ratios: Vec<f64> = rows
                .filter_map(|row| Some((time(row)?.0 as f64, row.p50?.0 as f64)))
                .filter(|(_, median)| *median > 0.0)
                .map(|(time, median)| time / median)
                .collect();
            ratios.sort_by(f64::total_cmp);
            ratios.get(ratios.len() / 2).copied()
        };
        Self {
            mean: middle(&|row| row.mean),
            deviation: middle(&|row| row.deviation),
            percentiles: [middle(&|row| row.p75), middle(&|row| row.p90), middle(&|row| row.p99)],
        }
    }

    fn row(&self, batch: u32, median: f64) -> BatchTime {
        let of = |ratio: Option<f64>| ratio.map(|ratio| rounded(median * ratio));
        BatchTime {
            batch,
            samples: None,
            mean: of(self.mean),
            deviation: of(self.deviation),
            p50: Some(rounded(median)),
            p75: of(self.percentiles[0]),
            p90: of(self.percentiles[1]),
            p99: of(self.percentiles[2]),
            points: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
