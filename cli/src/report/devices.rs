//! Models on devices: where the time of their batches went, and what they sent.
use super::bars::{Bar, bars, legend};
use crate::html_table::{NAME, NUMBER, table};
use crate::table::{Side, Table, paragraph};
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_app::figures::{bytes, milliseconds};
use tidemill_drawing::markup::Markup;
use tidemill_engine::{DeviceReport, LatencySummary, StageReport};
use tidemill_spec::plan::{Plan, RemoteRun};
use tidemill_spec::units::TimeSpan;

/// A stage whose model a device computed.
struct OnDevice<'a> {
    stage: &'a str,
    device: &'a str,
    split: &'a DeviceReport,
    /// What the plan expects.
    predicted: Option<&'a RemoteRun>,
}

/// The stages whose models devices computed.
fn all<'a>(stages: &'a [StageReport], plan: &'a Plan) -> impl Iterator<Item = OnDevice<'a>> {
    stages.iter().filter_map(|stage| {
        let planned = plan.stages.iter().find(|planned| planned.id == stage.stage);
        Some(OnDevice {
            stage: &stage.stage,
            device: stage.device.as_deref().unwrap_or("a device"),
            split: stage.on_device.as_ref()?,
            predicted: planned.and_then(|planned| planned.remote_run.as_ref()),
        })
    })
}

/// Counts batches that the device of the plan did not compute; none: it has computed all.
fn replaced(here: u64, on_spares: u64) -> Option<String> {
    let batches = |n: u64| if n == 1 { "1 batch".to_owned() } else { format!("{n} batches") };
    match (here, on_spares) {
        (0, 0) => None,
        (0, n) => Some(format!("{} on a spare", batches(n))),
        (n, 0) => Some(format!("{} on this machine instead", batches(n))),
        (n, spare) => Some(format!("{} on this machine instead, {spare} on a spare", batches(n))),
    }
}

/// Whether a device computed any.
pub(super) fn is_any(stages: &[StageReport]) -> bool {
    stages.iter().any(|stage| stage.on_device.is_some())
}

/// What the plan expects of a batch on a device, for programs.
pub(super) fn predicted(run: &RemoteRun) -> Value {
    json!({
        "network_ms": network(run),
        "queue_at_most_ms": queue(run),
        "compute_ms": ms(run.compute),
        "sent_bytes_per_record": run.sent.0,
        "received_bytes_per_record": run.received.0,
    })
}

fn ms(span: TimeSpan) -> f64 {
    span.0 as f64 / 1e6
}

/// A round trip, and the time that the tensors take at the bandwidth.
fn network(run: &RemoteRun) -> f64 {
    ms(run.round_trip) + ms(run.transfer)
}

/// The longest wait; none: the plan has no level of latency, so that it says nothing.
fn queue(run: &RemoteRun) -> Option<f64> {
    Some(ms(run.queue)).filter(|queue| *queue > 0.0)
}

impl OnDevice<'_> {
    /// The parts of the time of a batch, in the order in which they begin, and what the plan expects of each.
    fn parts(&self) -> [(&'static str, &LatencySummary, Option<String>); 4] {
        let DeviceReport { client, network, queue, compute, .. } = self.split;
        let expects = |value: fn(&RemoteRun) -> Option<f64>| self.predicted.and_then(value).map(milliseconds);
        [
            ("client", client, None),
            ("network", network, expects(|run| Some(self::network(run)))),
            ("queue", queue, expects(self::queue).map(|most| format!("at most {most}"))),
            ("compute", compute, expects(|run| Some(ms(run.compute)))),
        ]
    }

    /// Round trips, bytes and losses.
    fn traffic(&self) -> String {
        let DeviceReport { batches, round_trips_per_batch, sessions_lost, sessions_stalled, .. } = self.split;
        let per_record = |value: f64| bytes(value.round() as u64);
        let mut text = format!("{} on {}: ", self.stage, self.device);
        match batches {
            0 => text.push_str("no batch"),
            _ => text.push_str(&format!(
                "{round_trips_per_batch:.1} round trips a batch, {} there and {} back for each record",
                per_record(self.split.sent_bytes_per_record),
                per_record(self.split.received_bytes_per_record)
            )),
        }
        if let Some(RemoteRun { sent, received, .. }) = self.predicted {
            text.push_str(&format!(" (predicted: {} and {})", bytes(sent.0), bytes(received.0)));
        }
        match sessions_lost {
            0 => {}
            1 => text.push_str(", 1 session lost"),
            n => text.push_str(&format!(", {n} sessions lost")),
        }
        if *sessions_stalled > 0 {
            text.push_str(&format!(", of which {sessions_stalled} stood still"));
        }
        if let Some(replaced) = replaced(self.split.batches_here, self.split.batches_on_spares) {
            text.push_str(&format!("; {replaced}"));
        }
        text
    }
}

/// Median, 95th percentile and mean.
fn times(summary: &LatencySummary) -> [String; 3] {
    let shown = |value| if summary.count > 0 { milliseconds(value) } else { "-".to_owned() };
    [summary.p50_ms, summary.p95_ms, summary.mean_ms].map(shown)
}

/// Writes a table of the times, and a line of the rest for each stage; nothing without devices.
///
/// # Errors
/// Errors of `out`.
pub(super) fn write(stages: &[StageReport], plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
    if !is_any(stages) {
        return Ok(());
    }
    let mut times_table = Table::new(&[
        ("time of a batch on a device", Side::Left),
        ("p50", Side::Right),
        ("p95", Side::Right),
        ("mean", Side::Right),
        ("predicted", Side::Right),
    ]);
    for stage in all(stages, plan).filter(|stage| stage.split.batches > 0) {
        for (part, summary, predicted) in stage.parts() {
            let [p50, p95, mean] = times(summary);
            let name = format!("{}: {part}", stage.stage);
            times_table.row([name, p50, p95, mean, predicted.unwrap_or_default()]);
        }
    }
    writeln!(out)?;
    if all(stages, plan).any(|stage| stage.split.batches > 0) {
        times_table.write(out)?;
    }
    all(stages, plan).try_for_each(|stage| paragraph(out, &stage.traffic()))
}

/// Bars of the parts, and the figures.
pub(super) fn section(stages: &[StageReport], plan: &Plan, part: &mut Markup) {
    let shown: Vec<OnDevice<'_>> = all(stages, plan).filter(|stage| stage.split.batches > 0).collect();
    if !shown.is_empty() {
        figures(&shown, part);
    }
    for stage in all(stages, plan) {
        part.leaf("p", &[], &format!("{}.", stage.traffic()));
    }
}

fn figures(shown: &[OnDevice<'_>], part: &mut Markup) {
    part.leaf(
        "p",
        &[("class", &"note")],
        "Mean time of a batch: in the process of the stage (preparation, copies, runs that were lost), on the way to the \
         device and back, waiting at the device, and its computation there.",
    );
    let colours = [4, 2, 3, 1];
    legend(colours.into_iter().zip(["client", "network", "queue", "compute"]), part);
    let split = shown.iter().map(|stage| {
        let times = stage.parts().map(|(_, summary, _)| summary.mean_ms);
        Bar { stage: stage.stage, parts: colours.into_iter().zip(times).collect() }
    });
    bars(&split.collect::<Vec<_>>(), part);
    let columns = [
        ("Stage", false),
        ("Part", false),
        ("p50", true),
        ("p95", true),
        ("Mean", true),
        ("Predicted", true),
    ];
    let has_predictions = shown.iter().any(|stage| stage.predicted.is_some());
    let columns = if has_predictions { &columns[..] } else { &columns[..5] };
    table(part, columns, |body| {
        for stage in shown {
            for (name, summary, predicted) in stage.parts() {
                let mut texts = times(summary).to_vec();
                texts.extend(has_predictions.then(|| predicted.unwrap_or_else(|| "-".to_owned())));
                body.element("tr", &[], |row| {
                    row.leaf("td", NAME, stage.stage);
                    row.leaf("td", &[], name);
                    for text in &texts {
                        row.leaf("td", NUMBER, text);
                    }
                });
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::plan::{PlanWorkflow, Stage};
    use tidemill_spec::units::{Bytes, Percent};

    fn summary(p50_ms: f64) -> LatencySummary {
        let (p95_ms, mean_ms) = (p50_ms * 2.0, p50_ms * 1.25);
        LatencySummary { count: 80, p50_ms, p95_ms, mean_ms, ..LatencySummary::default() }
    }

    fn stages() -> Vec<StageReport> {
        let split = DeviceReport {
            client: summary(0.4),
            network: summary(21.3),
            queue: summary(1.5),
            compute: summary(12.0),
            batches: 20,
            round_trips: 30,
            round_trips_per_batch: 1.5,
            sent_bytes: 80 * 602_112,
            sent_bytes_per_record: 602_112.0,
            received_bytes: 80 * 4000,
            received_bytes_per_record: 4000.0,
            sessions_lost: 2,
            sessions_stalled: 1,
            batches_here: 12,
            batches_on_spares: 5,
        };
        // Its only session was lost at once: this process has computed everything.
        let none = LatencySummary::default();
        let lost = DeviceReport {
            client: none,
            network: none,
            queue: none,
            compute: none,
            batches: 0,
            round_trips: 0,
            round_trips_per_batch: 0.0,
            sent_bytes: 0,
            sent_bytes_per_record: 0.0,
            received_bytes: 0,
            received_bytes_per_record: 0.0,
            sessions_lost: 1,
            sessions_stalled: 0,
            batches_here: 1,
            batches_on_spares: 0,
        };
        let stage = |stage: &str, device: Option<&str>, on_device| StageReport {
            stage: stage.to_owned(),
            device: device.map(str::to_owned),
            on_device,
            ..StageReport::default()
        };
        vec![
            stage("images", None, None),
            stage("detect", Some("device:hub/gpu"), Some(split)),
            stage("embed", Some("proxy"), Some(lost)),
            stage("classify", Some("cpu"), None),
        ]
    }

    /// A plan that expects this of the first device.
    fn plan(run: Option<RemoteRun>) -> Plan {
        let mut detect = Stage::new("detect", "detect", "edge");
        detect.remote_run = run;
        Plan {
            stages: vec![Stage::new("images", "images", "edge"), detect],
            ..Plan::new(PlanWorkflow { name: "seen".to_owned(), digest: None })
        }
    }

    fn expected() -> RemoteRun {
        RemoteRun {
            sent: Bytes(602_112),
            received: Bytes(4096),
            round_trip: TimeSpan(20_000_000),
            transfer: TimeSpan(1_200_000),
            queue: TimeSpan(4_000_000),
            compute: TimeSpan(11_500_000),
            share: Percent(40.0),
        }
    }

    fn written(stages: &[StageReport], plan: &Plan) -> String {
        let mut text = Vec::new();
        write(stages, plan, &mut text).expect("memory");
        String::from_utf8_lossy(&text).into_owned()
    }

    const GOLDEN: &str = "
time of a batch on a device      p50      p95     mean
detect: client               0.40 ms  0.80 ms  0.50 ms
detect: network              21.3 ms  42.6 ms  26.6 ms
detect: queue                1.50 ms  3.00 ms  1.88 ms
detect: compute              12.0 ms  24.0 ms  15.0 ms
detect on device:hub/gpu: 1.5 round trips a batch, 588 KiB there and 3.9 KiB back for each record, 2 sessions lost, of which 1 stood still; 12 batches on this machine instead, 5 on a spare
embed on proxy: no batch, 1 session lost; 1 batch on this machine instead
";

    const WITH_PREDICTIONS: &str = "
time of a batch on a device      p50      p95     mean        predicted
detect: client               0.40 ms  0.80 ms  0.50 ms
detect: network              21.3 ms  42.6 ms  26.6 ms          21.2 ms
detect: queue                1.50 ms  3.00 ms  1.88 ms  at most 4.00 ms
detect: compute              12.0 ms  24.0 ms  15.0 ms          11.5 ms
";

    #[test]
    fn stages_on_devices_have_a_table_and_others_none() {
        assert_eq!(written(&stages(), &plan(None)), GOLDEN);
        assert_eq!(written(&stages()[3..], &plan(None)), "");
        assert!(is_any(&stages()) && !is_any(&stages()[3..]));
    }

    #[test]
    fn a_stage_that_no_device_computed_has_no_times() {
        let stages = stages();
        assert_eq!(
            written(&stages[2..], &plan(None)),
            "\nembed on proxy: no batch, 1 session lost; 1 batch on this machine instead\n"
        );
        assert_eq!(replaced(0, 0), None);
        assert_eq!(replaced(0, 2).as_deref(), Some("2 batches on a spare"));
    }

    #[test]
    fn what_the_plan_expects_stands_beside_what_was_measured() {
        let text = written(&stages(), &plan(Some(expected())));
        let (times, rest) = text.split_at(WITH_PREDICTIONS.len());
        assert_eq!(times, WITH_PREDICTIONS);
        assert!(
            rest.contains("3.9 KiB back for each record (predicted: 588 KiB and 4.0 KiB), 2 sessions"),
            "{rest}"
        );
        let figures = predicted(&expected());
        assert_eq!(
            (figures["network_ms"].as_f64(), figures["compute_ms"].as_f64()),
            (Some(21.2), Some(11.5))
        );
        let without_level = RemoteRun { queue: TimeSpan(0), ..expected() };
        assert_eq!(predicted(&without_level)["queue_at_most_ms"], Value::Null);
    }

    #[test]
    fn a_server_that_reports_no_times_has_none() {
        let mut stages = stages();
        let split = stages[1].on_device.as_mut().expect("set above");
        (split.queue, split.compute) = Default::default();
        let text = written(&stages, &plan(None));
        assert!(text.contains("detect: queue                      -        -        -\n"), "{text}");
    }

    #[test]
    fn the_page_has_the_same_figures() {
        let page = |run| {
            let mut part = Markup::new();
            section(&stages(), &plan(run), &mut part);
            part.finish()
        };
        let text = page(Some(expected()));
        for expected in [
            "21.3 ms",
            "42.6 ms",
            "26.6 ms",
            "at most 4.00 ms",
            "588 KiB there",
            "1 session lost",
            "width:60.51%",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        assert!(!text.contains("images") && !text.contains("classify"), "{text}");
        assert!(!page(None).contains("Predicted"));
    }
}
