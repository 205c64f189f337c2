//! Service times of variants on machines.
use super::machines::Machines;
use super::{Inputs, Level, Model, Options, devices, listed, profile_command, seconds, slowdown};
use crate::problem::{ServiceMode, Variant};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::profile::{BatchTime, Profile, Service};
use tidemill_spec::units::Percentile;
use tidemill_spec::workflow::Operator;

/// Variants with their modes, by operator of the workflow. An operator without models and without figures is weightless
/// and has no entry.
pub(super) type Services = BTreeMap<String, Vec<Variant>>;

/// All service times that count. None if an operator with models cannot run anywhere; `found` then names it.
pub(super) fn services(
    inputs: &Inputs<'_>,
    options: &Options,
    machines: &Machines,
    meeting: &BTreeSet<&str>,
    notes: &mut Vec<String>,
    found: &mut Diagnostics,
) -> Option<Services> {
    let mut all = Services::new();
    let mut complete = true;
    for operator in &inputs.workflow.operators {
        let id = operator.id.value.as_str();
        let models = inputs.models.get(id).map(Vec::as_slice).unwrap_or_default();
        if models.is_empty() {
            let reader = Reader { inputs, options, machines, operator, model: None };
            let variant = reader.variant(notes);
            if variant.modes.iter().any(|modes| !modes.is_empty()) {
                all.insert(id.to_owned(), vec![variant]);
            } else if meeting.contains(id) {
                // Fused with another operator, it would restrict that one to one worker too.
                notes.push(format!("{id} has no figures: the plan assumes that it takes no time, on one worker where its records meet"));
                all.insert(id.to_owned(), vec![Variant { id: id.to_owned(), modes: nothing(machines) }]);
            }
            continue;
        }
        let usable: Vec<&Model> = models.iter().filter(|model| model.obstacle.is_none()).collect();
        let usable = match usable.is_empty() {
            true => {
                notes.push(format!("{id}: no model is on this machine; the plan uses only figures"));
                models.iter().collect()
            }
            false => {
                for model in models {
                    let has_figures = |service: &Service| {
                        service.operator == id && service.variant.as_ref() == Some(&model.id)
                    };
                    if let Some(obstacle) = &model.obstacle
                        && inputs.profile.services.iter().any(has_figures)
                    {
                        notes.push(format!("{id}/{} is left out: {obstacle}", model.id));
                    }
                }
                usable
            }
        };
        let read = |model: &&Model| {
            Reader { inputs, options, machines, operator, model: Some(model) }.variant(notes)
        };
        let variants: Vec<Variant> = usable.iter().map(read).collect();
        let runs = |variant: &Variant| variant.modes.iter().any(|modes| !modes.is_empty());
        let kept: Vec<Variant> = variants.into_iter().filter(runs).collect();
        if kept.is_empty() {
            complete = false;
            let message = match operator.device.as_ref().and_then(|device| device.kind()) {
                Some(kind) => {
                    format!("no figures of `{id}` on a device `{kind}` and on a worker that reaches it")
                }
                None => {
                    let types = listed(machines.worker_types());
                    format!("no figures of `{id}` on any worker of the infrastructure ({types})")
                }
            };
            found.push(
                Diagnostic::error("E0902", message)
                    .at(operator.id.span.clone())
                    .with_help(profile_command(inputs.workflow)),
            );
        }
        all.insert(id.to_owned(), kept);
    }
    complete.then_some(all)
}

/// Modes on all workers that take no time.
fn nothing(machines: &Machines) -> Vec<Vec<ServiceMode>> {
    let of =
        |device: &Option<_>| if device.is_some() { Vec::new() } else { vec![ServiceMode::constant(0.0)] };
    machines.devices.iter().map(of).collect()
}

/// Reads the figures of one variant.
pub(super) struct Reader<'a> {
    pub(super) inputs: &'a Inputs<'a>,
    pub(super) options: &'a Options,
    pub(super) machines: &'a Machines,
    pub(super) operator: &'a Operator,
    model: Option<&'a Model>,
}

impl Reader<'_> {
    fn variant(&self, notes: &mut Vec<String>) -> Variant {
        let id = self.model.map_or(&self.operator.id.value, |model| &model.id).clone();
        let mut by_type: BTreeMap<&str, Vec<ServiceMode>> = BTreeMap::new();
        let (mut missing, mut no_percentile) = (Vec::new(), Vec::new());
        for worker_type in self.machines.worker_types() {
            let rows: Vec<&Service> = self.rows(worker_type).collect();
            let modes = rows.iter().flat_map(|row| self.modes(row)).collect();
            let modes = undominated(modes, self.latency_counts());
            if rows.is_empty() {
                missing.push(worker_type);
            } else if modes.is_empty() {
                no_percentile.push(worker_type);
            }
            by_type.insert(worker_type, modes);
        }
        let name = self.name();
        // An operator without any figure is weightless or refused.
        if missing.len() < by_type.len() && !missing.is_empty() {
            notes.push(format!("{name} has no figures on {}: not planned there", listed(missing)));
        }
        if !no_percentile.is_empty() {
            notes.push(format!(
                "{name} has no {} of a batch of allowed size on {}: not planned there",
                self.options.percentile,
                listed(no_percentile)
            ));
        }
        let classes = self.machines.classes.iter().zip(&self.machines.busy).zip(&self.machines.devices);
        let modes = classes.map(|((class, busy), device)| {
            if device.is_some() || !devices::may_stay(self.operator) {
                return Vec::new();
            }
            let modes = by_type.get(class.worker_type.as_str()).cloned().unwrap_or_default();
            match slowdown(*busy, self.options.max_utilization) {
                Some(factor) => modes.into_iter().map(|mode| slowed(mode, factor)).collect(),
                None => Vec::new(),
            }
        });
        let mut modes: Vec<Vec<ServiceMode>> = modes.collect();
        if let Some(model) = self.model {
            devices::add(self, model, &mut modes, notes);
        }
        Variant { id, modes }
    }

    /// Whether latency is bounded; otherwise only capacity and memory matter.
    pub(super) fn latency_counts(&self) -> bool {
        let wanted = self.options.latency.is_some() || self.inputs.workflow.slo.latency.is_some();
        wanted && !self.options.without.contains(&Level::Latency)
    }

    pub(super) fn name(&self) -> String {
        match self.model {
            Some(model) => format!("{}/{}", self.operator.id, model.id),
            None => self.operator.id.value.clone(),
        }
    }

    /// Figures on a type of worker, for the allowed backends.
    pub(super) fn rows(&self, worker_type: &str) -> impl Iterator<Item = &Service> {
        let variant = self.model.map(|model| model.id.as_str());
        let asked = self.operator.named_backend();
        let named = self.model.map(|model| model.backends.as_slice()).unwrap_or_default();
        let allowed = move |backend: &Option<String>| match (backend, asked) {
            (None, _) => true,
            (Some(backend), Some(asked)) => backend == asked,
            (Some(backend), None) => named.is_empty() || named.contains(backend),
        };
        self.inputs.profile.services.iter().filter(move |service| {
            service.operator == self.operator.id.value
                && service.variant.as_deref() == variant
                && service.worker_type == worker_type
                && allowed(&service.backend)
        })
    }

    /// A mode for each measured batch that the operator may form.
    pub(super) fn modes(&self, service: &Service) -> Vec<ServiceMode> {
        let batching = self.operator.batching.as_ref();
        let most = match (batching, self.model) {
            (Some(batching), _) => batching.max_batch.value,
            (None, Some(_)) => u32::MAX,
            (None, None) => 1,
        };
        let allowed = service.batches.iter().filter(|times| times.batch <= most);
        let profile = self.inputs.profile;
        let mode = |times: &BatchTime| {
            let percentile = self.options.percentile;
            // A worker that runs several operators, or is not always busy, pauses between calls.
            let longer = profile.longer_after_pause(service, |times| guaranteed(times, percentile)) / 1e9;
            let call = seconds(guaranteed(times, percentile)?) + longer;
            let longer = profile.longer_after_pause(service, BatchTime::typical) / 1e9;
            let measured = times.typical().map_or(call, |mean| seconds(mean) + longer);
            // A row of percentiles alone has no mean, and the simulated one is no figure to plan with.
            let has_mean = times.mean.is_some() || !times.points.is_empty();
            let drawn = if has_mean { simulated(profile, service, times.batch) } else { 0.0 };
            let mean = measured.max(drawn);
            let around = self.around(&service.worker_type);
            Some(ServiceMode {
                backend: service.backend.clone(),
                batch: times.batch,
                // A worker serves no more than the mean allows. Short calls under a quota have percentiles below it,
                // and times of few calls under a quota differ from the whole processors and the quota.
                seconds_per_record: call.max(mean) / f64::from(times.batch),
                call_seconds: call + around,
                fill_seconds: self.fill_seconds(times.batch),
                mean_call_seconds: mean,
                variance_call_seconds: variance(times, measured),
                memory_bytes: memory(profile, service),
                samples: samples(times, mean),
                remote: None,
            })
        };
        allowed.filter_map(mode).collect()
    }

    /// Seconds of the engine around a call, in which the worker is free.
    pub(super) fn around(&self, worker_type: &str) -> f64 {
        let percentile = self.options.percentile;
        let machine = self.inputs.profile.machine(worker_type);
        machine.and_then(|machine| machine.overheads).map_or(0.0, |overheads| {
            let model = self.model.map_or(0.0, |_| overheads.call.at(percentile));
            overheads.hand_over.at(percentile) + model
        })
    }

    /// Seconds that a record may wait for a batch of this size to fill.
    pub(super) fn fill_seconds(&self, batch: u32) -> f64 {
        let batching = self.operator.batching.as_ref();
        let budget = batching.map_or(DEFAULT_FILL_SECONDS, |batching| seconds(batching.budget));
        if batch > 1 { budget } else { 0.0 }
    }
}

/// Bytes that a model needs; where that was not measured on this type of worker, the most that it needs on another one.
fn memory(profile: &Profile, service: &Service) -> f64 {
    let is_same = |other: &&Service| {
        (&other.operator, &other.variant, &other.backend)
            == (&service.operator, &service.variant, &service.backend)
    };
    let elsewhere = || profile.services.iter().filter(is_same).filter_map(|other| other.peak_memory).max();
    service.peak_memory.or_else(elsewhere).map_or(0.0, |memory| memory.0 as f64)
}

/// A mode with all times scaled.
pub(super) fn slowed(mode: ServiceMode, factor: f64) -> ServiceMode {
    if factor <= 1.0 {
        return mode;
    }
    ServiceMode {
        seconds_per_record: mode.seconds_per_record * factor,
        call_seconds: mode.call_seconds * factor,
        mean_call_seconds: mode.mean_call_seconds * factor,
        variance_call_seconds: mode.variance_call_seconds * factor * factor,
        samples: mode.samples.into_iter().map(|sample| sample * factor).collect(),
        ..mode
    }
}

/// Batching budget in seconds of an operator without one in the workflow.
const DEFAULT_FILL_SECONDS: f64 = 0.02;

/// Mean seconds of a worker's call in a simulation of the plan; 0 without anything to draw from.
fn simulated(profile: &Profile, service: &Service, batch: u32) -> f64 {
    let (variant, backend) = (service.variant.as_deref(), service.backend.as_deref());
    let times = profile.service_times(&service.operator, variant, backend, &service.worker_type, batch);
    times.map_or(0.0, |times| times.worker_seconds(batch))
}

/// The points of a batch, each lengthened equally so that their mean is not below that of a call.
fn samples(times: &BatchTime, mean: f64) -> Vec<f64> {
    let points = || times.points.iter().map(|point| seconds(*point));
    let longer = (mean - points().sum::<f64>() / times.points.len().max(1) as f64).max(0.0);
    points().map(|point| point + longer).collect()
}

/// The time at a percentile, else at the lowest known one above it.
fn guaranteed(times: &BatchTime, percentile: Percentile) -> Option<tidemill_spec::units::TimeSpan> {
    let higher = times.percentiles().into_iter().find(|(p, time)| *p >= percentile.0 && time.is_some());
    times.at(percentile).or(higher.and_then(|(_, time)| time))
}

/// Variance of a call in seconds squared: as measured, else of the points, else an upper estimate from the named
/// percentiles, in which all calls between two of them take as long as the upper one.
fn variance(times: &BatchTime, mean: f64) -> f64 {
    if let Some(deviation) = times.deviation {
        return seconds(deviation).powi(2);
    }
    if !times.points.is_empty() {
        let points = times.points.iter().map(|point| seconds(*point));
        let average = points.clone().sum::<f64>() / times.points.len() as f64;
        return points.map(|point| (point - average).powi(2)).sum::<f64>() / times.points.len() as f64;
    }
    let known = times.percentiles().into_iter().filter_map(|(p, time)| Some((p / 100.0, seconds(time?))));
    let known: Vec<(f64, f64)> = known.collect();
    let (mut below, mut sum, mut last) = (0.0, 0.0, mean);
    for (part, time) in known {
        sum += (part - below) * (time - mean).powi(2);
        (below, last) = (part, time);
    }
    sum + (1.0 - below) * (last - mean).powi(2)
}

/// Keeps modes that no other one equals or beats in every figure that counts.
pub(super) fn undominated(modes: Vec<ServiceMode>, latency_counts: bool) -> Vec<ServiceMode> {
    let figures = |mode: &ServiceMode| {
        let latency = [mode.call_seconds, mode.fill_seconds, mode.variance_call_seconds];
        let latency = latency.map(|figure| if latency_counts { figure } else { 0.0 });
        [mode.seconds_per_record, mode.memory_bytes, latency[0], latency[1], latency[2]]
    };
    let mut kept: Vec<ServiceMode> = Vec::new();
    for (index, mode) in modes.iter().enumerate() {
        let beaten = modes.iter().enumerate().any(|(other, rival)| {
            let (ours, theirs) = (figures(mode), figures(rival));
            let no_worse = ours.iter().zip(&theirs).all(|(ours, theirs)| theirs <= ours);
            other != index && no_worse && (ours != theirs || other < index)
        });
        if !beaten {
            kept.push(mode.clone());
        }
    }
    kept
}
