//! Service levels: requirements and measurements.
use crate::delivery::{Delivery, losses_text};
use crate::figures::{grouped, milliseconds, rate, wilson_percent_of};
use crate::levels::{Origin, SHORT_TICKS};
use crate::publication::remedy;
use serde::Serialize;
use tidemill_engine::{Observer, Program, RunReport, SinkReport};
use tidemill_operators::measures::Measures;
use tidemill_operators::track_truth::TrackMeasures;
use tidemill_spec::workflow::Slo;

/// Tolerance of a rate: start and end of a short run limit its precision.
pub const RATE_TOLERANCE: f64 = 0.02;

/// One service level.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// `rate`, `accuracy` or `latency`.
    pub slo: &'static str,
    /// Whether it was met; `None`: the run is no evidence for either.
    pub met: Option<bool>,
    /// The required value, with its unit.
    pub wanted: String,
    /// Its origin, if a plan is run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<Origin>,
    /// The measured value, with its unit; `None` if it could not be measured.
    pub measured: Option<String>,
    /// For a latency that is missed only because rows become visible late: the reason, and advice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Number of windows of the run (of a second, or of ten records of a slow rate).
    pub windows: u64,
    /// Number of windows in which it was missed.
    pub windows_missed: u64,
}

impl Verdict {
    /// Marks this level as undecided, for a reason.
    pub fn doubt(&mut self, reason: &str) {
        self.met = None;
        self.measured = self.measured.take().map(|measured| format!("{measured} ({reason})"));
    }

    /// Returns one word or two.
    pub fn word(&self) -> &'static str {
        match self.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "no evidence",
        }
    }
}

/// Judges all service levels of a workflow.
pub fn verdicts(slo: &Slo, report: &RunReport, program: &Program, observer: &Observer) -> Vec<Verdict> {
    let mut all = Vec::new();
    if let Some(wanted) = &slo.rate {
        let measured = delivered_rate(report, program);
        let losses = losses_text(report).map(|losses| format!(" (lost: {losses})")).unwrap_or_default();
        let is_met = |rate: f64| rate >= wanted.0 * (1.0 - RATE_TOLERANCE);
        let text = |measured: f64| match is_short(report, program) {
            true => format!("{} or more: the run was shorter than {SHORT_TICKS} ticks", rate(measured)),
            false if measured < wanted.0 && is_met(measured) && rate(measured) != rate(wanted.0) => {
                format!("{} (up to {:.0} % less counts as met)", rate(measured), RATE_TOLERANCE * 100.0)
            }
            false => rate(measured),
        };
        all.push(Verdict {
            slo: "rate",
            met: Some(measured.is_some_and(is_met)),
            wanted: format!("at least {}", wanted.value),
            measured: measured.map(|measured| text(measured) + &losses),
            remedy: None,
            of: None,
            windows: 0,
            windows_missed: 0,
        });
    }
    if let Some(wanted) = &slo.accuracy {
        let scored = report.sinks.iter().filter(|sink| sink.scored > 0 && sink.accuracy_percent.is_some());
        let worst = scored
            .min_by(|a, b| a.accuracy_percent.unwrap_or(0.0).total_cmp(&b.accuracy_percent.unwrap_or(0.0)));
        all.push(Verdict {
            slo: "accuracy",
            met: Some(
                worst.and_then(|sink| sink.accuracy_percent).is_some_and(|accuracy| accuracy >= wanted.0),
            ),
            wanted: format!("at least {}", wanted.value),
            measured: worst.map(sink_accuracy_text),
            remedy: None,
            of: None,
            windows: 0,
            windows_missed: 0,
        });
    }
    if let Some(wanted) = &slo.latency {
        let (percentile, below) = (wanted.percentile.0, wanted.below.0 as f64 / 1e6);
        let sinks = report.sinks.iter().filter(|sink| sink.latency.count > 0);
        let slowest = sinks
            .filter_map(|sink| Some((sink, observer.sink(&sink.sink)?)))
            .map(|(sink, metrics)| (metrics.latency.percentile_ms(percentile), sink, metrics))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let is_met = slowest.as_ref().is_some_and(|(measured, ..)| *measured < below);
        let missed = slowest.as_ref().filter(|_| !is_met);
        all.push(Verdict {
            slo: "latency",
            met: Some(is_met),
            wanted: format!("{} below {}", wanted.percentile.value, wanted.below.value),
            measured: slowest
                .as_ref()
                .map(|(measured, ..)| format!("{} {}", wanted.percentile.value, milliseconds(*measured))),
            remedy: missed.and_then(|(_, sink, metrics)| {
                remedy(sink, metrics.arrival.percentile_ms(percentile), below, &program.plan)
            }),
            of: None,
            windows: 0,
            windows_missed: 0,
        });
    }
    all
}

/// Formats an accuracy with its 95 % interval: `98.2 % (93.3 to 99.4, n = 120)`. For tracks and texts, n is the number of
/// independent samples with the uncertainty of their boxes and characters; 0 where that is not known.
pub fn accuracy_text(correct: u64, scored: u64, independent: u64) -> String {
    let share = correct as f64 * 100.0 / scored.max(1) as f64;
    if independent == 0 {
        return format!("{share:.1} % (no interval)");
    }
    let (low, high) = wilson_percent_of(correct, scored, independent).unwrap_or_default();
    format!("{share:.1} % ({low:.1} to {high:.1}, n = {})", grouped(independent.min(scored)))
}

/// Formats the accuracy of a sink, or its error if it judges numbers; nothing if it judges nothing.
pub fn sink_accuracy_text(sink: &SinkReport) -> String {
    match &sink.measures {
        Some(Measures::Numbers(numbers)) => {
            format!("error {:.4} (no interval, n = {})", numbers.mean_absolute_error, grouped(numbers.judged))
        }
        Some(Measures::Ranks(ranks)) => {
            let rows = grouped(ranks.positives + ranks.negatives);
            format!("{:.1} % (AUC, no interval, n = {rows})", ranks.auc_percent)
        }
        Some(Measures::Boxes(boxes)) => {
            format!("{:.1} % (mAP, no interval, n = {} boxes)", boxes.map_percent, grouped(boxes.boxes))
        }
        Some(Measures::Classes(_)) | None if sink.scored > 0 => {
            accuracy_text(sink.correct, sink.scored, sink.independent)
        }
        Some(Measures::Classes(_)) | None => String::new(),
    }
}

/// Whether a sink has judged rows.
pub fn is_judged(sink: &SinkReport) -> bool {
    sink.scored > 0 || sink.measures.is_some()
}

/// Formats the measures of a sink beside its accuracy, in a line each: the first says of what.
pub fn measures_lines(measures: &Measures) -> Vec<String> {
    match measures {
        Measures::Numbers(numbers) => vec![format!(
            "mean absolute error {:.6}, root mean square error {:.6}, of {} rows; {} without a number; intervals are not known",
            numbers.mean_absolute_error,
            numbers.root_mean_square_error,
            grouped(numbers.judged),
            grouped(numbers.without_number)
        )],
        Measures::Ranks(ranks) => vec![format!(
            "area under the ROC curve of {} true and {} false rows; {} without a score; its interval is not known",
            grouped(ranks.positives),
            grouped(ranks.negatives),
            grouped(ranks.without_score)
        )],
        Measures::Boxes(boxes) => {
            let mut lines = vec![format!(
                "mean average precision of {} boxes in {} pictures: {:.1} % at IoU 0.5, {:.1} % over 0.5 to 0.95; \
                 intervals are not known",
                grouped(boxes.boxes),
                grouped(boxes.pictures),
                boxes.map_50_percent,
                boxes.map_percent
            )];
            lines.extend(boxes.classes.iter().take(MOST_LINES).map(|class| {
                format!(
                    "  class {}: {:.1} % at IoU 0.5, {:.1} % over 0.5 to 0.95, {} boxes",
                    class.class,
                    class.average_precision_50_percent,
                    class.average_precision_percent,
                    grouped(class.boxes)
                )
            }));
            lines.extend(more(boxes.classes.len() as u64));
            lines
        }
        Measures::Classes(classes) => {
            let mut lines = vec![format!(
                "means of the classes: precision {:.1} %, recall {:.1} %, F1 {:.1} %; intervals are not known",
                classes.macro_precision_percent, classes.macro_recall_percent, classes.macro_f1_percent
            )];
            lines.extend(classes.classes.iter().take(MOST_LINES).map(|row| {
                format!(
                    "  {:<20} precision {:>5.1} %  recall {:>5.1} %  F1 {:>5.1} %  rows {}",
                    row.class,
                    row.precision_percent,
                    row.recall_percent,
                    row.f1_percent,
                    grouped(row.support)
                )
            }));
            lines.extend(more(classes.classes.len() as u64 + classes.more_classes));
            lines
        }
    }
}

/// Most classes with a line of their own.
const MOST_LINES: usize = 40;

/// The line about classes without one.
fn more(classes: u64) -> Option<String> {
    let more = classes.saturating_sub(MOST_LINES as u64);
    (more > 0)
        .then(|| format!("  and {} more classes, of which the report in JSON has up to 1,000", grouped(more)))
}

/// `IDP 61.0 %, IDR 49.1 %; MOTA 52.3 %, HOTA 48.7 % (DetA 51.2, AssA 46.9), 31 switches, of the tracks`.
pub fn measures_text(measures: &TrackMeasures) -> String {
    let TrackMeasures { idp_percent, idr_percent, mota_percent, hota_percent, .. } = measures;
    let switches = match measures.switches {
        1 => "1 switch".to_owned(),
        count => format!("{} switches", grouped(count)),
    };
    format!(
        "IDP {idp_percent:.1} %, IDR {idr_percent:.1} %; MOTA {mota_percent:.1} %, HOTA {hota_percent:.1} % \
         (DetA {:.1}, AssA {:.1}), {switches}, of the tracks",
        measures.deta_percent, measures.assa_percent
    )
}

/// Records per second of the slowest source that reached the sinks: its emitted records, by the arrival of the results,
/// less the lost share ([`crate::delivery`]). `None` if the source emitted nothing.
pub fn delivered_rate(report: &RunReport, program: &Program) -> Option<f64> {
    let share = Delivery::of(report, program).share(program.sinks.keys());
    Some(given_rate(report, program)? * share)
}

/// Records per second emitted by the slowest source. It may run ahead into the buffers, so the arrival of the results
/// counts.
pub fn given_rate(report: &RunReport, program: &Program) -> Option<f64> {
    let slowest = slowest(report, program).filter(|records| *records > 0)?;
    let span = report.sinks.iter().map(arrival_seconds).max_by(f64::total_cmp)?;
    Some(rate_over(slowest, span, report, program))
}

/// Records emitted by the slowest source.
fn slowest(report: &RunReport, program: &Program) -> Option<u64> {
    let records = program.sources.keys().map(|source| {
        let stages = report.stages.iter().filter(|stage| stage.operator == *source);
        stages.map(|stage| stage.records_out).sum::<u64>()
    });
    records.min()
}

/// Records per second at a sink, for a short run over all its time; `None` for fewer than two records.
pub fn sink_rate(sink: &SinkReport, report: &RunReport, program: &Program) -> Option<f64> {
    (sink.records > 1).then(|| match is_short(report, program) {
        true => sink.records as f64 / report.seconds.max(1e-6),
        false => rate_over(sink.records, arrival_seconds(sink), report, program),
    })
}

/// Whether a run is too short for a meaningful rate: results come by ticks, so of a few ticks the first or the last one
/// decides.
pub fn is_short(report: &RunReport, program: &Program) -> bool {
    report.seconds < f64::from(SHORT_TICKS) * program.plan.tick.0 as f64 / 1e9
}

/// Seconds from the first to the last arrival.
fn arrival_seconds(sink: &SinkReport) -> f64 {
    if sink.rate_per_second > 0.0 {
        sink.records.saturating_sub(1) as f64 / sink.rate_per_second
    } else {
        0.0
    }
}

/// Results arrive by ticks, so the time of the arrivals is only known to a tick. If they all came in a small part of the
/// run, the whole run counts instead. Results of an open loop may come in fewer, later bursts, but its records took at
/// least the time of its schedule.
fn rate_over(records: u64, arrivals: f64, report: &RunReport, program: &Program) -> f64 {
    let span = arrivals + program.plan.tick.0 as f64 / 1e9;
    let span = if span >= report.seconds / 2.0 { span } else { report.seconds };
    let asked = program.sources.values().filter_map(|source| source.rate_per_second).reduce(f64::min);
    let scheduled = asked.zip(slowest(report, program)).map(|(rate, records)| records as f64 / rate);
    let span = scheduled.map_or(span, |scheduled| span.max(scheduled));
    records as f64 / span.max(1e-6)
}
