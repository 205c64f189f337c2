//! Models on devices: where the time of their batches went, and what they sent.
use crate::html_table::{NUMBER, table};
use crate::table::{Side, Table, paragraph};
use std::io::{self, Write};
use tidemill_app::figures::{bytes, milliseconds};
use tidemill_drawing::markup::{Attribute, Markup};
use tidemill_engine::{DeviceReport, LatencySummary, StageReport};

/// A stage whose model a device computed.
struct OnDevice<'a> {
    stage: &'a str,
    device: &'a str,
    split: &'a DeviceReport,
}

/// The stages whose models devices computed.
fn all(stages: &[StageReport]) -> impl Iterator<Item = OnDevice<'_>> {
    stages.iter().filter_map(|stage| {
        let device = stage.device.as_deref().unwrap_or("a device");
        Some(OnDevice { stage: &stage.stage, device, split: stage.on_device.as_ref()? })
    })
}

/// Whether a device computed any.
pub(super) fn is_any(stages: &[StageReport]) -> bool {
    all(stages).next().is_some()
}

impl OnDevice<'_> {
    /// The parts of the time of a batch, in the order in which they begin.
    fn parts(&self) -> [(&'static str, &LatencySummary); 4] {
        let DeviceReport { client, network, queue, compute, .. } = self.split;
        [("client", client), ("network", network), ("queue", queue), ("compute", compute)]
    }

    /// Round trips, bytes and losses.
    fn traffic(&self) -> String {
        let DeviceReport { batches, round_trips_per_batch, sessions_lost, .. } = self.split;
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
        match sessions_lost {
            0 => {}
            1 => text.push_str(", 1 session lost"),
            n => text.push_str(&format!(", {n} sessions lost")),
        }
        text
    }
}

/// Median, 95th percentile and mean.
fn times(summary: &LatencySummary) -> [String; 3] {
    match summary.count {
        0 => Default::default(),
        _ => [summary.p50_ms, summary.p95_ms, summary.mean_ms].map(milliseconds),
    }
}

/// Writes a table of the times, and a line of the rest for each stage; nothing without devices.
///
/// # Errors
/// Errors of `out`.
pub(super) fn write(stages: &[StageReport], out: &mut dyn Write) -> io::Result<()> {
    if !is_any(stages) {
        return Ok(());
    }
    let mut times_table = Table::new(&[
        ("time of a batch on a device", Side::Left),
        ("p50", Side::Right),
        ("p95", Side::Right),
        ("mean", Side::Right),
    ]);
    for stage in all(stages).filter(|stage| stage.split.batches > 0) {
        for (part, summary) in stage.parts() {
            let [p50, p95, mean] = times(summary);
            times_table.row([format!("{}: {part}", stage.stage), p50, p95, mean]);
        }
    }
    writeln!(out)?;
    times_table.write(out)?;
    all(stages).try_for_each(|stage| paragraph(out, &stage.traffic()))
}

/// Bars of the parts, and the figures.
pub(super) fn section(stages: &[StageReport], part: &mut Markup) {
    let shown: Vec<OnDevice<'_>> = all(stages).collect();
    let total = |stage: &OnDevice<'_>| stage.parts().iter().map(|(_, part)| part.mean_ms).sum::<f64>();
    let longest = shown.iter().map(total).fold(0.0, f64::max);
    part.leaf(
        "p",
        &[("class", &"note")],
        "Mean time of a batch: in the process of the stage (preparation, copies, runs that were lost), on the way to the \
         device and back, waiting at the device, and its computation there.",
    );
    let classes = ["b4", "b2", "b3", "b1"];
    part.element("div", &[("class", &"legend")], |legend| {
        for (class, name) in classes.into_iter().zip(["client", "network", "queue", "compute"]) {
            legend.element("span", &[], |entry| {
                entry.leaf("i", &[("class", &class)], "");
                entry.text(name);
            });
        }
    });
    part.element("div", &[("class", &"split")], |split| {
        for stage in &shown {
            split.element("div", &[("class", &"row")], |row| {
                row.leaf("div", &[("class", &"id")], stage.stage);
                row.element("div", &[("class", &"bar")], |bar| {
                    let parts = classes.into_iter().zip(stage.parts());
                    for (class, (_, summary)) in parts.filter(|(_, (_, summary))| summary.mean_ms > 0.0) {
                        let width = format!("width:{:.2}%", summary.mean_ms * 100.0 / longest.max(1e-9));
                        let title = milliseconds(summary.mean_ms);
                        bar.leaf("span", &[("class", &class), ("style", &width), ("title", &title)], "");
                    }
                });
                row.leaf("div", &[("class", &"n")], &milliseconds(total(stage)));
            });
        }
    });
    let columns = [("Stage", false), ("Part", false), ("p50", true), ("p95", true), ("Mean", true)];
    table(part, &columns, |body| {
        for stage in &shown {
            for (name, summary) in stage.parts() {
                body.element("tr", &[], |row| {
                    row.leaf("td", ID, stage.stage);
                    row.leaf("td", &[], name);
                    for text in times(summary) {
                        row.leaf("td", NUMBER, if text.is_empty() { "–" } else { &text });
                    }
                });
            }
        }
    });
    for stage in &shown {
        part.leaf("p", &[], &format!("{}.", stage.traffic()));
    }
}

const ID: &[Attribute<'static>] = &[("class", &"id")];

#[cfg(test)]
mod tests {
    use super::*;

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

    const GOLDEN: &str = "
time of a batch on a device      p50      p95     mean
detect: client               0.40 ms  0.80 ms  0.50 ms
detect: network              21.3 ms  42.6 ms  26.6 ms
detect: queue                1.50 ms  3.00 ms  1.88 ms
detect: compute              12.0 ms  24.0 ms  15.0 ms
detect on device:hub/gpu: 1.5 round trips a batch, 588 KiB there and 3.9 KiB back for each record, 2
sessions lost
embed on proxy: no batch, 1 session lost
";

    #[test]
    fn stages_on_devices_have_a_table_and_others_none() {
        let mut text = Vec::new();
        write(&stages(), &mut text).expect("memory");
        assert_eq!(String::from_utf8_lossy(&text), GOLDEN);
        text.clear();
        write(&stages()[3..], &mut text).expect("memory");
        assert!(text.is_empty() && !is_any(&stages()[3..]));
    }

    #[test]
    fn the_page_has_the_same_figures() {
        let mut part = Markup::new();
        section(&stages(), &mut part);
        let text = part.finish();
        for expected in ["21.3 ms", "42.6 ms", "26.6 ms", "588 KiB there", "1 session lost", "width:60.53%"] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        assert!(!text.contains("images") && !text.contains("classify"), "{text}");
    }
}
