//! Checks whether a profile made on another machine fits this one, and corrects it if not.
//!
//! A few of its figures are measured again briefly: for every operator with models the fastest and the slowest variant at
//! the smallest batch. An operator's factor is the geometric mean of measured over profiled times.
use crate::statistics::rounded;
use crate::tasks::{Kind, Task};
use std::collections::BTreeMap;
use tidemill_spec::profile::{BatchTime, How, Profile, Service};
use tidemill_spec::units::TimeSpan;

/// Largest factor (or its inverse) without a correction: medians of a few samples on a shared machine differ by as much.
pub const TOLERANCE: f64 = 1.25;

/// One figure, profiled and measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Operator id.
    pub operator: String,
    /// Id of the model manifest.
    pub variant: String,
    /// Backend.
    pub backend: String,
    /// Median of the profile, nanoseconds.
    pub profiled: f64,
    /// Median here, nanoseconds.
    pub measured: f64,
}

impl Comparison {
    /// Returns measured over profiled.
    pub fn ratio(&self) -> f64 {
        self.measured / self.profiled
    }
}

/// Comparison of a profile with this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The compared figures.
    pub comparisons: Vec<Comparison>,
    /// Slowdown of each operator with models against the profile.
    pub factors: BTreeMap<String, f64>,
    /// The overall factor, which operators without models get.
    pub overall: f64,
}

impl Fit {
    /// Computes the operators' factors; `None` without figures.
    pub fn from_comparisons(comparisons: Vec<Comparison>) -> Option<Self> {
        let mut logarithms: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for comparison in &comparisons {
            let ratio = comparison.ratio().ln();
            logarithms.entry(comparison.operator.clone()).or_default().push(ratio);
        }
        let mean = |values: &[f64]| (values.iter().sum::<f64>() / values.len() as f64).exp();
        let factors: BTreeMap<String, f64> =
            logarithms.iter().map(|(operator, values)| (operator.clone(), mean(values))).collect();
        let all: Vec<f64> = logarithms.into_values().flatten().collect();
        (!all.is_empty()).then(|| Self { overall: mean(&all), comparisons, factors })
    }

    /// Whether the profile may be used as it is: every compared figure agrees. A mean would hide two that differ in
    /// opposite directions.
    pub fn fits(&self) -> bool {
        self.comparisons.iter().all(|one| (1.0 / TOLERANCE..=TOLERANCE).contains(&one.ratio()))
    }

    /// Returns the operators whose models' ratios differ by more than the tolerance, each with the least and the largest
    /// ratio: one factor for the operator fits neither.
    pub fn apart(&self) -> BTreeMap<String, (f64, f64)> {
        let mut ends: BTreeMap<String, (f64, f64)> = BTreeMap::new();
        for comparison in &self.comparisons {
            let ratio = comparison.ratio();
            let (least, largest) = ends.entry(comparison.operator.clone()).or_insert((ratio, ratio));
            (*least, *largest) = (least.min(ratio), largest.max(ratio));
        }
        ends.retain(|_, (least, largest)| *largest > *least * TOLERANCE);
        ends
    }

    /// Returns the profile with all measured times multiplied by the factors of their operators and marked as predicted;
    /// published ones, and those of `devices`, stay: this processor says nothing about them.
    ///
    /// ```
    /// use tidemill_profiler::fit::{Comparison, Fit};
    /// use tidemill_spec::profile::Profile;
    /// let text = "
    /// version: 1
    /// workflow: {name: w}
    /// machines: [{worker_type: small, how: measured}]
    /// services:
    ///   - {operator: speech, variant: a, worker_type: small, how: measured, batches: [{batch: 1, p50: 10ms}]}
    /// ";
    /// let profile = Profile::parse(text, "profile.yaml")?;
    /// let (operator, variant, backend) = ("speech".to_owned(), "a".to_owned(), "rten".to_owned());
    /// let one = Comparison { operator, variant, backend, profiled: 10e6, measured: 15e6 };
    /// let fit = Fit::from_comparisons(vec![one]).expect("there is one");
    /// assert!(!fit.fits());
    /// let corrected = fit.corrected(&profile, "another processor", &[]);
    /// assert_eq!(corrected.services[0].batches[0].p50.map(|time| time.0), Some(15_000_000));
    /// # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
    /// ```
    pub fn corrected(&self, profile: &Profile, cpu: &str, devices: &[&str]) -> Profile {
        let mut corrected = profile.clone();
        let is_ours = |how: How, name: &str| how != How::Published && !devices.contains(&name);
        for service in
            corrected.services.iter_mut().filter(|service| is_ours(service.how, &service.worker_type))
        {
            let factor = self.factors.get(&service.operator).copied().unwrap_or(self.overall);
            service.how = How::Predicted;
            service.load_time = service.load_time.map(|time| times(time, factor));
            let scaled = |row: &BatchTime| row.map(|time| times(time, factor));
            service.batches = service.batches.iter().map(scaled).collect();
            if let Some(after) = &mut service.after_pause {
                after.times = scaled(&after.times);
            }
        }
        for machine in
            corrected.machines.iter_mut().filter(|machine| is_ours(machine.how, &machine.worker_type))
        {
            let before = machine.source.take().unwrap_or_else(|| "a profile".to_owned());
            machine.source = Some(format!(
                "{before}; times multiplied by {:.2} on average after a short measurement on: {cpu}",
                self.overall
            ));
            machine.overheads = machine.overheads.map(|own| own.map(|time| times(time, self.overall)));
            machine.how = How::Predicted;
            machine.cpu = None;
        }
        corrected
    }
}

fn times(time: TimeSpan, factor: f64) -> TimeSpan {
    rounded(time.0 as f64 * factor)
}

/// Returns the tasks to measure again, each with its profiled median in nanoseconds: on the least restrained kind of
/// machine, for each operator the fastest and the slowest variant of the profile.
pub fn tasks_to_compare(profile: &Profile, kinds: &[Kind], tasks: &[Task]) -> Vec<(Task, f64)> {
    let speed = |kind: &&Kind| kind.cpus.unwrap_or(f64::INFINITY);
    let Some(kind) = kinds.iter().max_by(|a, b| speed(a).total_cmp(&speed(b))) else { return Vec::new() };
    let mut by_operator: BTreeMap<&str, Vec<(f64, &Task, u32)>> = BTreeMap::new();
    for task in tasks.iter().filter(|task| task.cpus == kind.cpus && task.variant.is_some()) {
        let service = profile.service(
            &task.operator,
            task.variant.as_deref(),
            task.backend.as_deref(),
            &kind.worker_type,
        );
        let same_backend = |service: &&Service| service.backend == task.backend;
        let row = service.filter(same_backend).and_then(|service| service.batches.first());
        let median = row.and_then(|row| Some((row.p50?.0 as f64 / kind.factor, row.batch)));
        if let Some((median, batch)) = median.filter(|(median, _)| *median > 0.0) {
            by_operator.entry(&task.operator).or_default().push((median, task, batch));
        }
    }
    let mut chosen = Vec::new();
    for mut known in by_operator.into_values() {
        known.sort_by(|a, b| a.0.total_cmp(&b.0));
        let last = known.len() - 1;
        let ends = if last == 0 { vec![0] } else { vec![0, last] };
        chosen.extend(ends.into_iter().map(|place| {
            let (median, task, batch) = known[place];
            (Task { batches: vec![batch], ..task.clone() }, median)
        }));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(operator: &str, profiled: f64, measured: f64) -> Comparison {
        let (variant, backend) = ("v".to_owned(), "rten".to_owned());
        Comparison { operator: operator.to_owned(), variant, backend, profiled, measured }
    }

    #[test]
    fn factors_are_geometric_means() {
        let fit = Fit::from_comparisons(vec![
            comparison("a", 10.0, 20.0),
            comparison("a", 10.0, 5.0),
            comparison("b", 10.0, 20.0),
        ])
        .unwrap();
        assert!((fit.factors["a"] - 1.0).abs() < 1e-12 && (fit.factors["b"] - 2.0).abs() < 1e-12);
        assert!((fit.overall - 2f64.powf(1.0 / 3.0)).abs() < 1e-12);
        assert!(!fit.fits());
        assert!(Fit::from_comparisons(vec![comparison("a", 10.0, 12.0)]).unwrap().fits());
        assert!(!Fit::from_comparisons(vec![comparison("a", 10.0, 7.0)]).unwrap().fits());
        assert_eq!(Fit::from_comparisons(Vec::new()), None);
        let of_two = |one, other| {
            Fit::from_comparisons(vec![comparison("a", 10.0, one), comparison("a", 10.0, other)]).unwrap()
        };
        let apart = of_two(10.9, 6.3);
        assert!((apart.factors["a"] - 0.83).abs() < 0.01 && !apart.fits());
        let (least, largest) = apart.apart()["a"];
        assert!((least - 0.63).abs() < 1e-9 && (largest - 1.09).abs() < 1e-9);
        assert!(of_two(9.0, 11.0).fits() && of_two(9.0, 11.0).apart().is_empty());
        // Both deviate equally: correct them, but not as apart.
        assert!(!of_two(20.0, 20.0).fits() && of_two(20.0, 20.0).apart().is_empty());
    }

    #[test]
    fn times_of_devices_are_not_corrected() {
        let text = "
version: 1
workflow: {name: w}
machines: [{worker_type: small, how: measured}, {worker_type: card, how: measured}]
services:
  - {operator: a, variant: v, worker_type: small, how: measured, batches: [{batch: 1, p50: 10ms}]}
  - {operator: a, variant: v, worker_type: card, how: measured, batches: [{batch: 1, p50: 10ms}]}
";
        let profile = Profile::parse(text, "p").unwrap_or_else(|error| panic!("{error}"));
        let fit = Fit::from_comparisons(vec![comparison("a", 10.0, 20.0)]).unwrap();
        let corrected = fit.corrected(&profile, "c", &["card"]);
        let found: Vec<_> =
            corrected.services.iter().map(|service| (service.how, service.batches[0].p50)).collect();
        let ms = |ms: u64| Some(TimeSpan(ms * 1_000_000));
        assert_eq!(found, [(How::Predicted, ms(20)), (How::Measured, ms(10))]);
        assert_eq!(corrected.machines[1], profile.machines[1]);
    }

    #[test]
    fn the_ends_of_every_operator_are_measured_on_the_fastest_kind() {
        let services: String = [("a1", 3), ("a2", 9), ("a3", 5)]
            .map(|(variant, p50)| {
                format!(
                    "  - {{operator: a, variant: {variant}, backend: rten, worker_type: large, how: measured, \
                     batches: [{{batch: 1, p50: {p50}ms}}, {{batch: 8, p50: 90ms}}]}}\n"
                )
            })
            .concat();
        let text = format!(
            "version: 1\nworkflow: {{name: w}}\nmachines: [{{worker_type: large, how: measured}}]\nservices:\n{services}"
        );
        let profile = Profile::parse(&text, "p").unwrap_or_else(|error| panic!("{error}"));
        let kind = |name: &str, cpus| Kind {
            worker_type: name.to_owned(),
            how: How::Measured,
            cpus,
            factor: 1.0,
            cores: None,
            memory: None,
            device: None,
        };
        let task = |variant: &str, cpus| Task {
            operator: "a".to_owned(),
            variant: Some(variant.to_owned()),
            backend: Some("rten".to_owned()),
            cpus,
            device: None,
            batches: vec![1, 8],
        };
        let tasks: Vec<Task> = ["a1", "a2", "a3", "a4"]
            .iter()
            .flat_map(|variant| [task(variant, Some(0.5)), task(variant, None)])
            .collect();
        let chosen = tasks_to_compare(&profile, &[kind("small", Some(0.5)), kind("large", None)], &tasks);
        let names: Vec<_> =
            chosen.iter().map(|(task, median)| (task.variant.as_deref().unwrap(), *median)).collect();
        assert_eq!(names, [("a1", 3e6), ("a2", 9e6)]);
        assert!(chosen.iter().all(|(task, _)| task.cpus.is_none() && task.batches == [1]));
    }
}
