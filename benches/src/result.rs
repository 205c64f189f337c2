//! The schema of all results.
use crate::machine::{Machine, machine};
use anyhow::Context;
use serde::Serialize;
use std::path::Path;

/// One measured quantity.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Measurement {
    /// The measured quantity.
    name: String,
    /// Unit of all values.
    unit: &'static str,
    /// Number of samples.
    samples: usize,
    median: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    p90: Option<f64>,
    p99: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    min: Option<f64>,
    max: f64,
    /// The project's goal in the same unit; the benchmark never fails on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    goal: Option<f64>,
    /// Other measurements are compared with this one.
    baseline: bool,
}

impl Measurement {
    pub(crate) fn new(name: impl Into<String>, unit: &'static str, mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        // Interpolate between two samples: the median of two is their mean.
        let at = |share: f64| {
            let place = (samples.len() - 1) as f64 * share;
            let (low, high) = (samples[place.floor() as usize], samples[place.ceil() as usize]);
            low + (high - low) * place.fract()
        };
        Self {
            name: name.into(),
            unit,
            samples: samples.len(),
            median: at(0.5),
            p90: Some(at(0.9)),
            p99: at(0.99),
            min: Some(at(0.0)),
            max: at(1.0),
            goal: None,
            baseline: false,
        }
    }

    /// Creates a measurement from a summary: median, p90, p99 and the largest.
    pub(crate) fn summed_up(
        name: impl Into<String>,
        unit: &'static str,
        samples: usize,
        [median, p90, p99, max]: [f64; 4],
    ) -> Self {
        Self {
            name: name.into(),
            unit,
            samples,
            median,
            p90: Some(p90),
            p99,
            min: None,
            max,
            goal: None,
            baseline: false,
        }
    }

    pub(crate) fn goal(mut self, goal: f64) -> Self {
        self.goal = Some(goal);
        self
    }

    pub(crate) fn baseline(mut self) -> Self {
        self.baseline = true;
        self
    }

    pub(crate) fn median(&self) -> f64 {
        self.median
    }

    pub(crate) fn p99(&self) -> f64 {
        self.p99
    }
}

/// The answer to one question.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Answer {
    schema: u32,
    question: &'static str,
    name: &'static str,
    machine: Machine,
    measurements: Vec<Measurement>,
}

impl Answer {
    pub(crate) fn new(name: &'static str, question: &'static str, measurements: Vec<Measurement>) -> Self {
        Self { schema: 1, question, name, machine: machine(), measurements }
    }

    pub(crate) fn print(&self) {
        println!("{}", self.question);
        for m in &self.measurements {
            let goal = m.goal.map_or(String::new(), |goal| format!("   goal {goal}"));
            let role = if m.baseline { "   (baseline)" } else { "" };
            let min = m.min.map_or_else(|| "?".to_owned(), |min| format!("{min:.3}"));
            println!(
                "  {:<58} median {:>10.3}  p99 {:>10.3}  ({min} to {:.3}) {}{goal}{role}",
                m.name, m.median, m.p99, m.max, m.unit
            );
        }
    }

    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join(format!("{}.json", self.name));
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}
