//! Compares predictions of the plan and the profile with measurements of an emulated run.
mod devices;

use super::dilation::{stage_rate, up};
use super::speeds::{Basis, StageSpeed};
use super::{Emulated, Worker};
use crate::figures::wilson_percent_of;
use crate::levels::SHORT_TICKS;
use crate::slo::{RATE_TOLERANCE, delivered_rate, given_rate, is_short};
use serde::Serialize;
use std::collections::BTreeSet;
use tidemill_engine::{EmulationReport, Program, RunReport, SinkReport, WireReport};
use tidemill_spec::plan::{Predicted, PredictedValue};
use tidemill_spec::units::TimeSpan;

/// Tolerated relative difference.
const TOLERANCE: f64 = 0.1;
/// Tolerated difference of a 99th percentile of few records, which varies more by chance.
const TOLERANCE_P99: f64 = 0.2;
const MANY: u64 = 2000;
/// Tolerated percentage points of utilisation, because relative differences of small shares mean nothing.
const TOLERANCE_POINTS: f64 = 5.0;
/// Tolerated share of calls that overrun: the first ones of a model do.
const OVERRUNS: f64 = 0.01;
/// Factor on the real seconds of overruns for the proposed dilation.
const PROPOSED_HEADROOM: f64 = 1.1;

/// Least records for a mean or median, a 90th and a 99th percentile: some must be beyond.
const LEAST_P50: u64 = 20;
const LEAST_P90: u64 = 100;
const LEAST_P99: u64 = 200;
/// Percentage points of a 95 % interval of accuracy, above which nearly everything agrees with it.
const WIDEST: f64 = 20.0;
/// Reason why a run with a too small dilation proves little.
pub const BEHIND: &str = "this machine did not keep up";

/// Reason why a run at another rate does not show the plan's speed.
const OTHER_RATE: &str = "the rate of the run was not that of the plan";

/// Reason why a median differs although nothing else does.
const BETWEEN: &str = "the latencies have two peaks and the median is between them: a few more records in \
                       one peak move it from one end of its predicted range to the other";

/// Verdict on a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Measured as predicted.
    Confirmed,
    /// Measured differently.
    Differs,
    /// As predicted, but enforced by the emulator, so it proves nothing.
    Enforced,
    /// The run proves nothing about it, for any measurement.
    NoEvidence,
    /// Nothing was predicted.
    NoPrediction,
    /// Nothing was measured.
    NotMeasured,
}

/// One quantity.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// `rate`, `latency_mean`, `latency_p50`, `latency_p90`, `latency_p99`, `accuracy`, `cost`, `cost_compute`, `cost_network`, `utilization`,
    /// `traffic`.
    pub quantity: &'static str,
    /// Sink, worker, device or link; empty: all.
    pub of: String,
    /// Unit of the figures.
    pub unit: &'static str,
    /// Given by the plan, or computed from plan and profile.
    pub predicted: Option<f64>,
    /// Range compatible with the prediction: a median between two peaks, the confidence interval of an accuracy.
    pub predicted_range: Option<(f64, f64)>,
    /// In plan time.
    pub measured: Option<f64>,
    /// The 95 % confidence interval of an accuracy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_range: Option<(f64, f64)>,
    /// Parts that the emulator enforces.
    pub enforced_by: Vec<String>,
    /// Verdict on the prediction.
    pub verdict: Verdict,
    /// Reason why the run proves nothing about it, or why it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Row {
    /// Measured minus predicted, in percent of predicted.
    pub fn difference_percent(&self) -> Option<f64> {
        let (predicted, measured) = (self.predicted?, self.measured?);
        (predicted != 0.0).then(|| (measured - predicted) * 100.0 / predicted)
    }

    /// Accepts a difference of few percentage points.
    fn tolerate_points(&mut self) {
        let points =
            self.predicted.zip(self.measured).map(|(predicted, measured)| (predicted - measured).abs());
        if self.verdict == Verdict::Differs && points.is_some_and(|points| points <= TOLERANCE_POINTS) {
            self.verdict = as_predicted(&self.enforced_by);
        }
    }

    /// Explains a median that differs but is within the range of the prediction.
    fn explain_two_peaks(&mut self) {
        if let (Verdict::Differs, Some((from, to)), Some(found)) =
            (self.verdict, self.predicted_range, self.measured)
            && (from * (1.0 - TOLERANCE)..=to * (1.0 + TOLERANCE)).contains(&found)
        {
            self.reason = Some(BETWEEN.to_owned());
        }
    }
}

/// Whether this machine kept up with the emulation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Overruns {
    /// Calls that took longer than permitted.
    pub calls: u64,
    /// Total number of calls.
    pub of: u64,
    /// A sufficient factor, if there were too many.
    pub proposed_dilation: Option<f64>,
}

/// Predictions and measurements.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// All quantities.
    pub rows: Vec<Row>,
    /// Whether this machine kept up.
    pub overruns: Overruns,
    /// Ratio of the calls' processor time to that of the profile for such calls on this machine.
    pub processor_time_ratio: Option<f64>,
}

impl Comparison {
    /// Compares.
    pub fn of(emulated: &Emulated, program: &Program, report: &RunReport) -> Self {
        let nothing = EmulationReport::default();
        let meters = report.emulation.as_ref().unwrap_or(&nothing);
        let comparing = Comparing {
            emulated,
            program,
            report,
            meters,
            seconds: plan_seconds(report, program),
            rate_factor: rate_factor(program, report),
        };
        let overruns = comparing.overruns();
        let mut rows = comparing.rows();
        rows.iter_mut().for_each(|row| comparing.doubt(row, &overruns));
        Self { rows, overruns, processor_time_ratio: comparing.processor_time_ratio() }
    }

    /// Reason why the run proves nothing about latency, if this machine did not keep up.
    pub fn doubt(&self) -> Option<&'static str> {
        self.overruns.proposed_dilation.map(|_| BEHIND)
    }
}

/// Plan seconds in which the records were emitted: start and end of a run, when little happens, do not represent an hour of
/// it.
fn plan_seconds(report: &RunReport, program: &Program) -> f64 {
    let given = program.sources.keys().map(|source| {
        let stages = report.stages.iter().filter(|stage| stage.operator == *source);
        stages.map(|stage| stage.records_out).sum::<u64>()
    });
    let given = given.min().unwrap_or(0) as f64;
    given_rate(report, program).map_or(report.seconds, |rate| given / rate).max(1e-9)
}

/// Ratio of the sources' requested rate to the plan's: 1 without `--rate`. For sources at full speed, the ratio of their
/// actual rate.
fn rate_factor(program: &Program, report: &RunReport) -> f64 {
    let predicted = program.plan.predicted.as_ref();
    let planned = predicted.and_then(|predicted| Some(predicted.rate.as_ref()?.value.0));
    let sources = || program.sources.values();
    // The rate of a stream varies; other sources have none if they run at full speed.
    let now = match sources().any(|source| source.rate_per_second.is_none() && !source.is_stream()) {
        true => given_rate(report, program),
        false => sources().filter_map(|source| source.rate_per_second).reduce(f64::min),
    };
    factor_of(now, planned)
}

/// Ratio to the planned rate; 1 if they are equal, or one of them is unknown.
fn factor_of(now: Option<f64>, planned: Option<f64>) -> f64 {
    let factor = now.zip(planned.filter(|planned| *planned > 0.0)).map(|(now, planned)| now / planned);
    factor.filter(|factor| (factor - 1.0).abs() > RATE_TOLERANCE).unwrap_or(1.0)
}

struct Comparing<'a> {
    emulated: &'a Emulated,
    program: &'a Program,
    report: &'a RunReport,
    meters: &'a EmulationReport,
    seconds: f64,
    /// Traffic is proportional to the rate of the sources, and so is its cost.
    rate_factor: f64,
}

impl Comparing<'_> {
    fn predicted(&self) -> Option<&Predicted> {
        self.program.plan.predicted.as_ref()
    }

    fn rows(&self) -> Vec<Row> {
        let predicted = self.predicted();
        let mut rows = Vec::new();
        let rate = predicted.and_then(|predicted| Some(predicted.rate.as_ref()?.value.0));
        rows.push(row(
            "rate",
            "",
            "1/s",
            rate,
            delivered_rate(self.report, self.program),
            self.speed(),
            TOLERANCE,
        ));
        self.latencies(&mut rows);
        self.accuracy(&mut rows);
        self.costs(&mut rows);
        for worker in &self.emulated.workers {
            rows.extend(self.utilization(worker));
        }
        rows.extend(self.emulated.devices.iter().filter_map(|device| self.device_utilization(device)));
        for (way, wire) in self.emulated.ways.iter().zip(&self.meters.wires) {
            let measured = priced_bytes(wire) as f64 / self.seconds;
            rows.push(row(
                "traffic",
                &way.name(),
                "B/s",
                way.predicted().map(|predicted| predicted * self.rate_factor),
                Some(measured),
                Vec::new(),
                TOLERANCE,
            ));
        }
        rows
    }

    /// Marks a figure for which the run is no evidence, either positive or negative.
    fn doubt(&self, row: &mut Row, overruns: &Overruns) {
        if matches!(row.verdict, Verdict::NoPrediction | Verdict::NotMeasured) {
            return;
        }
        let sink = self.report.sinks.iter().find(|sink| sink.sink == row.of);
        let arrived = sink.map_or(0, |sink| sink.latency.count);
        let few = |least: u64| {
            (arrived < least).then(|| format!("{arrived} records are too few, {least} are needed"))
        };
        let behind = || overruns.proposed_dilation.map(|_| BEHIND.to_owned());
        let short = || {
            is_short(self.report, self.program)
                .then(|| format!("the run was shorter than {SHORT_TICKS} ticks"))
        };
        let is_of_speed =
            matches!(row.quantity, "rate" | "utilization") || row.quantity.starts_with("latency_");
        let reason = match row.quantity {
            _ if !self.report.complete => Some("the run did not complete".to_owned()),
            _ if is_of_speed && self.rate_factor != 1.0 => Some(OTHER_RATE.to_owned()),
            // Lateness of a slow machine proves nothing about the plan.
            "rate" if row.verdict == Verdict::Differs => behind().or_else(short),
            "rate" => short(),
            "latency_mean" | "latency_p50" => behind().or_else(|| few(LEAST_P50)),
            "latency_p90" => behind().or_else(|| few(LEAST_P90)),
            "latency_p99" => behind().or_else(|| few(LEAST_P99)),
            "utilization" => behind().or_else(short),
            "accuracy" => self.accuracy_doubt(row.verdict == Verdict::Differs),
            _ => None,
        };
        if reason.is_some() {
            (row.verdict, row.reason) = (Verdict::NoEvidence, reason);
        }
    }

    /// The samples are those that the profile was scored on, or too few to show a difference.
    fn accuracy_doubt(&self, differs: bool) -> Option<String> {
        let sinks = self.report.sinks.iter().filter(|sink| sink.scored > 0);
        let worst = sinks
            .min_by(|a, b| a.accuracy_percent.unwrap_or(0.0).total_cmp(&b.accuracy_percent.unwrap_or(0.0)))?;
        doubt_of(worst, self.emulated.scored_on.unwrap_or(0), differs)
    }

    /// Enforced parts of the rate: speeds of workers and the dilation.
    fn speed(&self) -> Vec<String> {
        let workers = self.emulated.workers.iter().filter(|worker| worker.basis == Some(Basis::Enforced));
        let types: BTreeSet<&str> = workers.map(|worker| worker.worker_type.as_str()).collect();
        let kinds = self.emulated.devices.iter().map(|device| device.kind.as_str());
        let types: BTreeSet<&str> = types.into_iter().chain(kinds).collect();
        let mut by: Vec<String> = types.into_iter().map(|name| format!("speed of {name}")).collect();
        if self.emulated.dilation.factor != 1.0 {
            by.push(format!("dilation {}", self.emulated.dilation.factor));
        }
        by
    }

    /// For the latency also bandwidth and delay.
    fn latency(&self) -> Vec<String> {
        let ways = self.emulated.ways.iter().filter(|way| way.enforces());
        self.speed().into_iter().chain(ways.map(|way| format!("link {}", way.name()))).collect()
    }

    fn latencies(&self, rows: &mut Vec<Row>) {
        let one = self.report.sinks.len() == 1;
        for sink in &self.report.sinks {
            let is_of =
                |predicted: &&Predicted| predicted.latency_at.as_ref().map_or(one, |at| *at == sink.sink);
            let planned = self.predicted().filter(is_of);
            let ms = |value: Option<&PredictedValue<TimeSpan>>| value.map(|value| value.value.0 as f64 / 1e6);
            let tolerance_p99 = if sink.latency.count < MANY { TOLERANCE_P99 } else { TOLERANCE };
            let figures = [
                ("latency_mean", planned.and_then(|p| p.mean.as_ref()), sink.latency.mean_ms, TOLERANCE),
                ("latency_p50", planned.and_then(|p| p.p50.as_ref()), sink.latency.p50_ms, TOLERANCE),
                ("latency_p90", planned.and_then(|p| p.p90.as_ref()), sink.latency.p90_ms, TOLERANCE),
                ("latency_p99", planned.and_then(|p| p.p99.as_ref()), sink.latency.p99_ms, tolerance_p99),
            ];
            for (quantity, predicted, measured, tolerance) in figures {
                let measured = (sink.latency.count > 0).then_some(measured);
                let mut row =
                    row(quantity, &sink.sink, "ms", ms(predicted), measured, self.latency(), tolerance);
                row.predicted_range = predicted.and_then(|predicted| {
                    let range = (predicted.from?.0 as f64 / 1e6, predicted.to?.0 as f64 / 1e6);
                    (range.0 < range.1).then_some(range)
                });
                row.explain_two_peaks();
                rows.push(row);
            }
        }
    }

    fn accuracy(&self, rows: &mut Vec<Row>) {
        let predicted = self.predicted().and_then(|predicted| Some(predicted.accuracy.as_ref()?.value.0));
        let worst =
            self.report.sinks.iter().filter(|sink| sink.scored > 0).min_by(|a, b| {
                a.accuracy_percent.unwrap_or(0.0).total_cmp(&b.accuracy_percent.unwrap_or(0.0))
            });
        if predicted.is_none() && worst.is_none() {
            return;
        }
        let mut row = row(
            "accuracy",
            "",
            "%",
            predicted,
            worst.and_then(|sink| sink.accuracy_percent),
            Vec::new(),
            TOLERANCE,
        );
        let said = self.predicted().and_then(|predicted| predicted.accuracy.as_ref());
        row.predicted_range = said.and_then(|said| Some((said.from?.0, said.to?.0)));
        // The accuracy of a share of this number of records is limited, here and in the profile.
        if let (Some(predicted), Some(sink)) = (predicted, worst)
            && let Some((low, high)) = interval(sink)
        {
            row.measured_range = Some((low, high));
            let (from, to) = row.predicted_range.unwrap_or((predicted, predicted));
            row.verdict = if from <= high && low <= to { Verdict::Confirmed } else { Verdict::Differs };
        }
        rows.push(row);
    }

    /// Adds prices of the workers and devices, and bytes as transmitted at the prices of the links: the optimizer's cost function.
    fn costs(&self, rows: &mut Vec<Row>) {
        let workers = self.emulated.workers.iter().map(|worker| worker.dollars_per_hour);
        let devices = self.emulated.devices.iter().map(|device| device.dollars_per_hour);
        let compute: f64 = workers.chain(devices).sum();
        let per_hour = |wire: &WireReport| priced_bytes(wire) as f64 / self.seconds * 3600.0;
        let ways = self.emulated.ways.iter();
        let network: f64 = ways
            .clone()
            .zip(&self.meters.wires)
            .map(|(way, wire)| per_hour(wire) * way.dollars_per_byte)
            .sum();
        let planned: Option<f64> =
            ways.map(|way| Some(way.predicted()? * 3600.0 * way.dollars_per_byte)).sum();
        let expected = planned.map(|planned| planned * self.rate_factor);
        let more = expected.zip(planned).map_or(0.0, |(expected, planned)| expected - planned);
        let total = self.predicted().and_then(|predicted| Some(predicted.cost.as_ref()?.value.0));
        let total = total.map(|total| total + more);
        let none = Vec::new;
        rows.push(row("cost", "", "$/h", total, Some(compute + network), none(), TOLERANCE));
        if !self.emulated.ways.is_empty() {
            rows.push(row("cost_network", "", "$/h", expected, Some(network), none(), TOLERANCE));
        }
    }

    fn utilization(&self, worker: &Worker) -> Option<Row> {
        let basis = worker.basis.as_ref()?;
        let meter = self.meters.workers.iter().find(|meter| meter.worker == worker.id)?;
        let share = match basis {
            Basis::Quota(share) => Some(*share),
            Basis::Offered | Basis::Enforced => worker.share,
        };
        let busy = match share {
            None => meter.busy_seconds,
            // The used part of the quota: a short call may end before the quota stops it.
            Some(share) => meter.stages.iter().map(|stage| stage.needed_seconds).sum::<f64>() / share,
        };
        let measured = busy / self.seconds * 100.0;
        let own = self.emulated.speeds.iter().filter(|speed| speed.worker == worker.id);
        let expected = self.predicted().and_then(|predicted| predicted.utilization.get(&worker.id));
        // Without an expectation in the plan, the load of its full batches.
        let full = || own.map(|speed| self.load(speed)).sum::<Option<f64>>();
        let predicted = expected.map(|percent| percent.0 / 100.0).or_else(full);
        let by = match basis {
            Basis::Enforced => vec![format!("speed of {}", worker.worker_type)],
            Basis::Offered | Basis::Quota(_) => Vec::new(),
        };
        let predicted = predicted.map(|part| part * 100.0);
        let mut row = row("utilization", &worker.id, "%", predicted, Some(measured), by, TOLERANCE);
        row.tolerate_points();
        Some(row)
    }

    /// Share of its time that a worker needs for a stage by the profile, with full batches.
    fn load(&self, speed: &StageSpeed) -> Option<f64> {
        let records = speed.max_batch.max(1);
        Some(stage_rate(self.program, &speed.stage)? * speed.seconds_there(records)? / f64::from(records))
    }

    /// Emulated speeds follow from processor time, which grows if other work shares the core.
    fn processor_time_ratio(&self) -> Option<f64> {
        let meters = self.meters.workers.iter().flat_map(|worker| &worker.stages);
        let (mut took, mut expected) = (0.0, 0.0);
        for meter in meters.filter(|meter| meter.calls > 0) {
            let speed = self.emulated.speeds.iter().find(|speed| speed.stage == meter.stage)?;
            let records = (meter.records as f64 / meter.calls as f64).round().max(1.0) as u32;
            took += meter.processor_seconds;
            expected += meter.calls as f64 * (speed.here.as_ref()?.at(records) + speed.after_pause.1);
        }
        (expected > 0.0).then(|| took / expected)
    }

    fn overruns(&self) -> Overruns {
        let stages: Vec<_> = self.meters.workers.iter().flat_map(|worker| &worker.stages).collect();
        let calls: u64 = stages.iter().map(|stage| stage.overruns).sum();
        let of: u64 = stages.iter().map(|stage| stage.calls).sum();
        let (took, allowed) = stages.iter().fold((0.0, 0.0), |sums, stage| {
            (sums.0 + stage.overrun_seconds.0, sums.1 + stage.overrun_seconds.1)
        });
        let too_many = calls as f64 > OVERRUNS * of as f64 && calls > 1;
        let longer = if allowed > 0.0 { took / allowed } else { 2.0 };
        let proposed = self.emulated.dilation.factor * longer * PROPOSED_HEADROOM;
        Overruns { calls, of, proposed_dilation: too_many.then(|| up(proposed)) }
    }
}

/// Bytes that are priced: those of frames with records, and tensors.
fn priced_bytes(wire: &WireReport) -> u64 {
    wire.data_bytes + wire.tensor_bytes
}

/// Reason why a sink's accuracy proves nothing. Its samples are counted as in a profile: independent ones, because the
/// boxes of a track and the characters of a text depend on each other.
fn doubt_of(sink: &SinkReport, scored_on: u64, differs: bool) -> Option<String> {
    if sink.independent == 0 {
        return Some("the interval of this measure is not known".to_owned());
    }
    let judged = sink.independent.min(sink.scored);
    let known = scored_on.min(judged);
    if known * 2 >= judged {
        return Some(format!("{known} of the {judged} judged samples are those of the profile's accuracy"));
    }
    let (low, high) = interval(sink)?;
    let wide = !differs && high - low > WIDEST;
    wide.then(|| format!("{judged} judged samples are too few: {low:.1} to {high:.1} %"))
}

/// The 95 % interval of a sink's accuracy, percent.
fn interval(sink: &SinkReport) -> Option<(f64, f64)> {
    wilson_percent_of(sink.correct, sink.scored, sink.independent)
}

fn row(
    quantity: &'static str,
    of: &str,
    unit: &'static str,
    predicted: Option<f64>,
    measured: Option<f64>,
    enforced_by: Vec<String>,
    tolerance: f64,
) -> Row {
    let verdict = match (predicted, measured) {
        (_, None) => Verdict::NotMeasured,
        (None, _) => Verdict::NoPrediction,
        (Some(predicted), Some(measured)) if (measured - predicted).abs() > tolerance * predicted.abs() => {
            Verdict::Differs
        }
        _ => as_predicted(&enforced_by),
    };
    Row {
        quantity,
        of: of.to_owned(),
        unit,
        predicted,
        predicted_range: None,
        measured,
        measured_range: None,
        enforced_by,
        verdict,
        reason: None,
    }
}

/// Verdict on a prediction that was met.
fn as_predicted(enforced_by: &[String]) -> Verdict {
    if enforced_by.is_empty() { Verdict::Confirmed } else { Verdict::Enforced }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_engine::{Guarantee, LatencySummary, Promise, Scope};
    use tidemill_spec::publication::Publication;

    #[test]
    fn what_is_enforced_is_never_confirmed() {
        let of = |predicted, measured, by: &[&str]| {
            let by = by.iter().map(|by| (*by).to_owned()).collect();
            row("rate", "", "1/s", predicted, measured, by, 0.1).verdict
        };
        assert_eq!(of(Some(40.0), Some(37.0), &[]), Verdict::Confirmed);
        assert_eq!(of(Some(40.0), Some(35.0), &[]), Verdict::Differs);
        assert_eq!(of(Some(40.0), Some(40.0), &["speed of large"]), Verdict::Enforced);
        assert_eq!(of(Some(400.0), Some(223.2), &["speed of large"]), Verdict::Differs);
        assert_eq!(of(None, Some(40.0), &["speed of large"]), Verdict::NoPrediction);
        assert_eq!(of(Some(40.0), None, &[]), Verdict::NotMeasured);
        let row = row("rate", "", "1/s", Some(40.0), Some(35.0), Vec::new(), 0.1);
        assert_eq!(row.difference_percent(), Some(-12.5));
    }

    #[test]
    fn another_rate_is_told_from_the_one_that_was_planned() {
        assert_eq!(factor_of(Some(20.0), Some(40.0)), 0.5);
        assert_eq!(factor_of(Some(40.000_001), Some(40.0)), 1.0, "a plan has rounded numbers");
        assert_eq!((factor_of(None, Some(40.0)), factor_of(Some(40.0), None)), (1.0, 1.0));
        assert_eq!(factor_of(Some(40.0), Some(0.0)), 1.0);
    }

    /// Twelve thousand characters of forty texts are forty samples; the profile counts its own in this manner, too.
    #[test]
    fn samples_that_depend_on_each_other_are_not_many() {
        let sink = |independent| SinkReport {
            sink: "out".into(),
            records: 40,
            reader_gone: false,
            rate_per_second: 10.0,
            promise: Promise { guarantee: Guarantee::ExactlyOnce, scope: Scope::Process, because: vec![] },
            publication: Publication::EachEpoch,
            latency: LatencySummary::default(),
            arrival: LatencySummary::default(),
            latency_plus_minus_ms: None,
            accuracy_percent: Some(80.0),
            correct: 9600,
            scored: 12_000,
            independent,
            tracks: None,
            measures: None,
            without_truth: 0,
        };
        let doubt =
            |independent, scored_on| doubt_of(&sink(independent), scored_on, false).unwrap_or_default();
        assert!(doubt(40, 20).starts_with("20 of the 40 judged samples"), "{}", doubt(40, 20));
        assert!(doubt(40, 10).starts_with("40 judged samples are too few: 65."), "{}", doubt(40, 10));
        assert_eq!(doubt(12_000, 40), "");
        let (low, high) = interval(&sink(40)).unwrap();
        assert!(low < 70.0 && high > 88.0, "{low} to {high}");
    }

    /// Agreement beside a difference of 99 % would be misread.
    #[test]
    fn a_median_within_its_range_differs_and_says_why() {
        let of = |measured| {
            let by = vec!["speed of large".to_owned()];
            let mut row = row("latency_p50", "out", "ms", Some(8.1), Some(measured), by, TOLERANCE);
            row.predicted_range = Some((7.9, 31.0));
            row.explain_two_peaks();
            (row.verdict, row.reason.is_some())
        };
        assert_eq!(of(16.1), (Verdict::Differs, true));
        assert_eq!(of(60.0), (Verdict::Differs, false));
        assert_eq!(of(8.5), (Verdict::Enforced, false));
    }
}
