//! Weak figures used by a plan: of few calls, of wide intervals, of a busy machine, of calls without pause.
use crate::planning::Case;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tidemill_spec::plan::Plan;
use tidemill_spec::profile::{BatchTime, How};

/// Number of calls below which a figure is weak.
const FEW: u64 = 20;
/// Half-width of the 95 % interval of a mean above which it is wide, in percent of the mean.
const WIDE: f64 = 20.0;
/// Text in the source of a machine's figures if it was busy.
const BUSY: &str = "it was busy, ";

/// A weak figure used by a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct WeakFigure {
    /// The model, else the operator; `None` for a busy machine.
    pub what: Option<String>,
    /// Type of worker.
    pub worker_type: String,
    /// Its weakness.
    pub why: Weakness,
}

/// Weakness of a figure.
#[derive(Debug, Clone, PartialEq)]
pub enum Weakness {
    /// Only this number of calls was measured.
    Few(u64),
    /// Half of the 95 % interval of the mean, in percent of it.
    Wide(f64),
    /// The machine was busy during the measurement: in words.
    Busy(String),
    /// Calls after a pause were not measured.
    NoPause,
}

/// Weak figures of the stages of a plan, each once.
pub fn weak_figures(case: &Case, plan: &Plan) -> Vec<WeakFigure> {
    let mut all: Vec<WeakFigure> = Vec::new();
    for stage in &plan.stages {
        let Some(worker) = plan.workers.iter().find(|worker| worker.id == stage.worker) else { continue };
        let (variant, worker_type) = (stage.variant.as_deref(), worker.worker_type.as_str());
        let service = case.profile.service(&stage.operator, variant, stage.backend.as_deref(), worker_type);
        // Published and predicted figures have no known measurement.
        let Some(service) = service.filter(|service| matches!(service.how, How::Measured | How::Limited))
        else {
            continue;
        };
        let mut add = |what: Option<String>, why| {
            let one = WeakFigure { what, worker_type: worker_type.to_owned(), why };
            if !all.contains(&one) {
                all.push(one);
            }
        };
        let name = || Some(variant.unwrap_or(&stage.operator).to_owned());
        // The largest batch of the profile that the stage may form.
        let times = service.batches.iter().rfind(|times| times.batch <= stage.max_batch);
        if let Some(times) = times {
            if let Some(samples) = times.samples.filter(|samples| *samples < FEW) {
                add(name(), Weakness::Few(samples));
            }
            if let Some(width) = half_width(times).filter(|width| *width > WIDE) {
                add(name(), Weakness::Wide(width));
            }
            let of_whole = || {
                let (_, whole) = case.profile.whole_of(worker_type)?;
                let backend = service.backend.as_deref();
                let whole = case.profile.service(&stage.operator, variant, backend, &whole.worker_type)?;
                whole.after_pause.as_ref()
            };
            let is_measured = variant.is_some() && times.samples.is_some();
            if is_measured && service.after_pause.is_none() && of_whole().is_none() {
                add(name(), Weakness::NoPause);
            }
        }
        let source = case.profile.machine(worker_type).and_then(|machine| machine.source.as_deref());
        if let Some((_, load)) = source.and_then(|source| source.split_once(BUSY)) {
            add(None, Weakness::Busy(load.to_owned()));
        }
    }
    all
}

/// Half the width of the 95 % interval of the mean, in percent of it.
pub fn half_width(times: &BatchTime) -> Option<f64> {
    let (mean, deviation, samples) = (times.mean?.0 as f64, times.deviation?.0 as f64, times.samples? as f64);
    (mean > 0.0 && samples > 1.0).then(|| 196.0 * deviation / samples.sqrt() / mean)
}

/// A line for each kind of weakness.
pub fn weak_lines(figures: &[WeakFigure]) -> Vec<String> {
    let named = |told: &dyn Fn(&Weakness) -> Option<String>| {
        let all = figures.iter().filter_map(|figure| {
            let more = told(&figure.why)?;
            let of = figure.what.as_ref().map(|what| format!("{what} on ")).unwrap_or_default();
            Some(format!("{of}{}{more}", figure.worker_type))
        });
        all.collect::<Vec<_>>().join(", ")
    };
    let groups = [
        (
            "few calls were measured",
            named(&|why| match why {
                Weakness::Few(samples) => Some(format!(" (n = {samples})")),
                _ => None,
            }),
        ),
        (
            "the mean time is uncertain",
            named(&|why| match why {
                Weakness::Wide(width) => Some(format!(" (+-{width:.0} %)")),
                _ => None,
            }),
        ),
        (
            "measured on a busy machine, so times are too long",
            named(&|why| match why {
                Weakness::Busy(load) => Some(format!(" ({load})")),
                _ => None,
            }),
        ),
        (
            "calls after a pause were not measured",
            named(&|why| matches!(why, Weakness::NoPause).then(String::new)),
        ),
    ];
    let told = groups.into_iter().filter(|(_, names)| !names.is_empty());
    told.map(|(what, names)| format!("weak figures: {what}: {names}")).collect()
}

/// Formats the figures for programs.
pub fn weak_value(figures: &[WeakFigure]) -> Value {
    let all = figures.iter().map(|figure| {
        let (why, value) = match &figure.why {
            Weakness::Few(samples) => ("few_samples", json!({"samples": samples})),
            Weakness::Wide(width) => ("wide_interval", json!({"half_width_percent": width})),
            Weakness::Busy(load) => ("busy_machine", json!({"source": load})),
            Weakness::NoPause => ("no_times_after_a_pause", json!({})),
        };
        let mut value = value;
        value["why"] = json!(why);
        value["worker_type"] = json!(figure.worker_type);
        if let Some(what) = &figure.what {
            value["model"] = json!(what);
        }
        value
    });
    Value::Array(all.collect())
}

/// The 95 % interval of the accuracy with the models of a plan, and how many samples it comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AccuracyInterval {
    /// Its ends, in percent.
    pub ends: (f64, f64),
    /// Samples.
    pub samples: Option<u64>,
}

impl AccuracyInterval {
    /// Returns the interval of a plan, if the profile has it.
    pub fn of(case: &Case, plan: &Plan) -> Option<Self> {
        let accuracy = case.profile.accuracy.as_ref()?;
        let chosen =
            plan.stages.iter().filter_map(|stage| Some((stage.operator.clone(), stage.variant.clone()?)));
        let chosen: BTreeMap<String, String> = chosen.collect();
        let row = case.profile.accuracy_row(&chosen)?;
        let (low, high) = row.interval?;
        Some(Self { ends: (low.0, high.0), samples: row.samples.or(accuracy.samples) })
    }

    /// ` (81.1 to 90.5, n = 200)`.
    pub fn text(&self) -> String {
        let samples = self.samples.map(|samples| format!(", n = {samples}")).unwrap_or_default();
        format!(" ({:.1} to {:.1}{samples})", self.ends.0, self.ends.1)
    }

    /// Formats for programs.
    pub fn value(&self) -> Value {
        json!({"from": self.ends.0, "to": self.ends.1, "samples": self.samples})
    }
}
