//! Prints an emulated run: predictions and measurements, workers, links, and whether this machine kept up.
use crate::table::{Side, Table};
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_app::emulation::Emulated;
use tidemill_app::emulation::comparison::{Comparison, Row, Verdict};
use tidemill_app::emulation::speeds::Basis;
use tidemill_app::emulation::wires::EmulatedWire;
use tidemill_app::figures::{grouped, milliseconds, rate, traffic};
use tidemill_drawing::markup::Markup;
use tidemill_engine::{RunReport, WireReport};

/// Largest ratio of the calls' processor time to the expected one without a warning.
const SLOWER: f64 = 1.15;

/// Data of the account.
pub(crate) struct Account<'a> {
    emulated: &'a Emulated,
    comparison: &'a Comparison,
}

impl<'a> Account<'a> {
    /// Creates the account of a run.
    pub(crate) fn of(emulated: &'a Emulated, comparison: &'a Comparison) -> Self {
        Self { emulated, comparison }
    }

    /// Real seconds per plan second.
    pub(crate) fn factor(&self) -> f64 {
        self.emulated.dilation.factor
    }

    /// Returns doubts about the figures, with advice.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.too_small().into_iter().chain(self.too_slow()).collect()
    }

    /// Reports that the machine computed slower than it does alone.
    fn too_slow(&self) -> Option<String> {
        let ratio = self.comparison.processor_time_ratio.filter(|ratio| *ratio > SLOWER)?;
        // An enforced speed does not depend on it.
        let basis = self.emulated.workers.iter().filter_map(|worker| worker.basis.as_ref());
        if basis.into_iter().all(|basis| *basis == Basis::Enforced) {
            return None;
        }
        Some(format!(
            "calls took {ratio:.2} times the processor time that the profile gives for this machine, so \
             emulated workers were slower by this factor: other programs used the same cores, or the \
             profile is from another machine"
        ))
    }

    /// Reports that this machine did not keep up.
    fn too_small(&self) -> Option<String> {
        let overruns = &self.comparison.overruns;
        let proposed = overruns.proposed_dilation?;
        Some(format!(
            "this machine did not keep up: {} of {} calls took longer than the emulated workers and devices allow; the dilation \
             {} is too small, use `--dilation {proposed}`",
            grouped(overruns.calls),
            grouped(overruns.of),
            self.factor()
        ))
    }

    /// Writes a table.
    ///
    /// # Errors
    /// Errors of `out`.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("emulated", Side::Left),
            ("of", Side::Left),
            ("predicted", Side::Right),
            ("measured", Side::Right),
            ("", Side::Right),
            ("", Side::Left),
        ]);
        for row in &self.comparison.rows {
            table.row([
                name(row).to_owned(),
                row.of.clone(),
                predicted(row),
                measured(row, "-"),
                difference(row),
                verdict(row.verdict).to_owned(),
            ]);
        }
        writeln!(out)?;
        table.write(out)?;
        for (reason, names) in self.reasons(Verdict::NoEvidence) {
            writeln!(out, "no evidence for {}: {reason}", names.join(", "))?;
        }
        for (reason, names) in self.reasons(Verdict::Differs) {
            writeln!(out, "{} differs: {reason}", names.join(", "))?;
        }
        let by: Vec<&str> = self.enforced_by();
        if !by.is_empty() {
            writeln!(out, "enforced, so no evidence: {}", by.join(", "))?;
        }
        if self.factor() != 1.0 {
            writeln!(out, "all times are plan time; the run took {} times as long", self.factor())?;
        }
        let overruns = &self.comparison.overruns;
        if overruns.calls > 0 {
            let (calls, of) = (grouped(overruns.calls), grouped(overruns.of));
            writeln!(out, "{calls} of {of} calls took longer here than their worker or device allows")?;
        }
        Ok(())
    }

    /// Reasons for a verdict, each with its figures.
    fn reasons(&self, verdict: Verdict) -> Vec<(&str, Vec<String>)> {
        let mut all: Vec<(&str, Vec<String>)> = Vec::new();
        for row in self.comparison.rows.iter().filter(|row| row.verdict == verdict) {
            let Some(reason) = row.reason.as_deref() else { continue };
            let own =
                if row.of.is_empty() { name(row).to_owned() } else { format!("{} of {}", name(row), row.of) };
            match all.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, names)) => names.push(own),
                None => all.push((reason, vec![own])),
            }
        }
        all
    }

    /// Enforced settings, each once.
    fn enforced_by(&self) -> Vec<&str> {
        let mut all: Vec<&str> = Vec::new();
        for by in self.comparison.rows.iter().flat_map(|row| &row.enforced_by) {
            if !all.contains(&by.as_str()) {
                all.push(by);
            }
        }
        all
    }

    /// Formats for programs.
    pub(crate) fn json(&self, report: &RunReport) -> Value {
        let meters = report.emulation.as_ref();
        let workers = self.emulated.workers.iter().map(|worker| {
            let meter =
                meters.and_then(|meters| meters.workers.iter().find(|meter| meter.worker == worker.id));
            json!({
                "worker": worker.id,
                "type": worker.worker_type,
                "place": worker.place,
                "dollars_per_hour": worker.dollars_per_hour,
                "speed": worker.basis.as_ref().map(basis),
                "busy_seconds": meter.map(|meter| meter.busy_seconds),
                "stages": meter.map(|meter| &meter.stages),
            })
        });
        let ways = self.emulated.ways.iter();
        let wires = ways.zip(meters.into_iter().flat_map(|meters| &meters.wires));
        let wires = wires.map(|(way, wire)| link(way, wire));
        let speeds = self.emulated.speeds.iter().map(|speed| {
            json!({"stage": speed.stage, "operator": speed.operator, "speed": basis(&speed.basis), "ratios": speed.ratios})
        });
        let devices = self.emulated.devices.iter().map(|device| {
            let meter =
                meters.and_then(|meters| meters.devices.iter().find(|meter| meter.device == device.id));
            json!({
                "device": device.id,
                "kind": device.kind,
                "place": device.place,
                "share": device.share,
                "dollars_per_hour": device.dollars_per_hour,
                "busy_seconds": meter.map(|meter| meter.busy_seconds),
                "stages": meter.map(|meter| &meter.stages),
            })
        });
        let dilation = &self.emulated.dilation;
        json!({
            "dilation": dilation.factor,
            "dilation_is_auto": dilation.is_auto,
            "processors_needed": dilation.processors,
            "overruns": self.comparison.overruns,
            "processor_time_ratio": self.comparison.processor_time_ratio,
            "comparison": self.comparison.rows.iter().map(|row| {
                let mut value = json!(row);
                value["difference_percent"] = json!(row.difference_percent());
                value
            }).collect::<Vec<_>>(),
            "workers": workers.collect::<Vec<_>>(),
            "devices": devices.collect::<Vec<_>>(),
            "links": wires.collect::<Vec<_>>(),
            "speeds": speeds.collect::<Vec<_>>(),
        })
    }

    /// Writes the part of the page.
    pub(crate) fn html(&self, part: &mut Markup) {
        for warning in self.warnings() {
            part.leaf("p", &[("class", &"note")], &format!("{warning}."));
        }
        let columns = [
            ("", false),
            ("Of", false),
            ("Predicted", true),
            ("Measured", true),
            ("Difference", true),
            ("", false),
            ("Enforced", false),
        ];
        crate::html_table::table(part, &columns, |body| {
            for row in &self.comparison.rows {
                body.element("tr", &[], |cells| {
                    cells.leaf("td", &[("class", &"id")], name(row));
                    cells.leaf("td", &[], &row.of);
                    let number: &[tidemill_drawing::markup::Attribute<'_>] = &[("class", &"n")];
                    cells.leaf("td", number, &predicted(row));
                    cells.leaf("td", number, &measured(row, "–"));
                    cells.leaf("td", number, &difference(row));
                    cells.element("td", &[], |cell| {
                        let class = match row.verdict {
                            Verdict::Confirmed => "pill good",
                            Verdict::Differs => "pill bad",
                            Verdict::Enforced
                            | Verdict::NoEvidence
                            | Verdict::NoPrediction
                            | Verdict::NotMeasured => "pill",
                        };
                        cell.leaf("span", &[("class", &class)], verdict(row.verdict));
                    });
                    cells.leaf("td", &[("class", &"soft")], &row.enforced_by.join(", "));
                });
            }
        });
        let factor = match self.factor() {
            1.0 => "The run was in real time.".to_owned(),
            factor => format!("The run was stretched {factor} times; all times are plan time."),
        };
        for (reason, names) in self.reasons(Verdict::Differs) {
            part.leaf("p", &[("class", &"note")], &format!("{} differs: {reason}.", names.join(", ")));
        }
        for (reason, names) in self.reasons(Verdict::NoEvidence) {
            part.leaf(
                "p",
                &[("class", &"note")],
                &format!("No evidence for {}: {reason}.", names.join(", ")),
            );
        }
        let note = "What the emulator enforces, or what follows from that, is no evidence for a prediction.";
        part.leaf("p", &[("class", &"note")], &format!("{factor} {note}"));
    }
}

/// Traffic of a link, with the planned one.
fn link(way: &EmulatedWire, wire: &WireReport) -> Value {
    let mut told = json!(wire);
    told["dollars_per_byte"] = json!(way.dollars_per_byte);
    told["predicted_bytes_per_second"] = json!(way.predicted());
    told["tensors"] = way
        .tensors
        .iter()
        .map(|tensors| {
            let direction = if tensors.is_there { "to" } else { "from" };
            json!({"stage": tensors.stage, "direction": direction, "bytes_per_record": tensors.bytes_per_record})
        })
        .collect();
    // The edges of the report are sorted by name, not in the order of the plan.
    for (told, edge) in told["edges"].as_array_mut().into_iter().flatten().zip(&wire.edges) {
        let mut planned = way.edges.iter();
        let planned =
            planned.find(|known| known.from == edge.from && known.to == edge.to && known.input == edge.input);
        let bytes = planned.and_then(|planned| planned.bytes_per_record);
        told["predicted_bytes_per_record"] = json!(bytes.map(|bytes| bytes.0));
    }
    told
}

fn basis(basis: &Basis) -> Value {
    match basis {
        Basis::Offered => json!("offered"),
        Basis::Quota(share) => json!({"quota": share}),
        Basis::Enforced => json!("enforced"),
    }
}

fn name(row: &Row) -> &'static str {
    match row.quantity {
        "rate" => "rate",
        "latency_mean" => "latency mean",
        "latency_p50" => "latency p50",
        "latency_p90" => "latency p90",
        "latency_p99" => "latency p99",
        "accuracy" => "accuracy",
        "cost" => "cost",
        "cost_network" => "of that, network",
        "utilization" => "busy",
        "traffic" => "traffic",
        other => other,
    }
}

fn figure(row: &Row, value: f64) -> String {
    match row.unit {
        "1/s" => rate(value),
        "ms" => milliseconds(value),
        "%" => format!("{value:.1} %"),
        "$/h" => format!("{value:.4} $/h"),
        "B/s" => traffic(value),
        unit => format!("{value} {unit}"),
    }
}

/// Formats the prediction, with its range if that differs.
fn predicted(row: &Row) -> String {
    let Some(value) = row.predicted else { return "missing".to_owned() };
    match row.predicted_range {
        Some(range) if row.quantity == "accuracy" || range.1 > 1.5 * range.0 => within(row, value, range),
        _ => figure(row, value),
    }
}

/// Formats the measurement, with its confidence interval if there is one; or the text for no value.
fn measured(row: &Row, nothing: &str) -> String {
    match (row.measured, row.measured_range) {
        (None, _) => nothing.to_owned(),
        (Some(value), None) => figure(row, value),
        (Some(value), Some(range)) => within(row, value, range),
    }
}

fn within(row: &Row, value: f64, (from, to): (f64, f64)) -> String {
    format!("{} ({} to {})", figure(row, value), figure(row, from), figure(row, to))
}

fn difference(row: &Row) -> String {
    match row.difference_percent() {
        Some(percent) => format!("{percent:+.1} %"),
        None => String::new(),
    }
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Confirmed => "confirmed",
        Verdict::Differs => "differs",
        Verdict::Enforced => "enforced",
        Verdict::NoEvidence => "no evidence",
        Verdict::NoPrediction => "no prediction",
        Verdict::NotMeasured => "not measured",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_engine::{WireEdgeReport, WireSpec};
    use tidemill_spec::plan::PlanEdge;
    use tidemill_spec::units::Bytes;

    #[test]
    fn predicted_bytes_stand_at_their_edge() {
        let spec = WireSpec { from: "edge".into(), to: "cloud".into(), bandwidth: None, delay: 0 };
        let planned = |from: &str, to: &str, input, bytes| PlanEdge {
            bytes_per_record: Some(Bytes(bytes)),
            ..PlanEdge::new(from, to, input)
        };
        // In the order of a plan; the report has them sorted, with one that is not planned.
        let edges =
            vec![planned("z", "join", 0, 10), planned("a", "join", 1, 20), planned("a", "join", 0, 30)];
        let way = EmulatedWire { spec: spec.clone(), dollars_per_byte: 0.0, edges, tensors: Vec::new() };
        let measured = |from: &str, input| WireEdgeReport {
            from: from.to_owned(),
            to: "join".to_owned(),
            input,
            records: 1,
            record_bytes: 1,
            data_bytes: 1,
        };
        let edges = vec![measured("a", 0), measured("a", 1), measured("b", 0), measured("z", 0)];
        let wire = WireReport {
            wire: spec,
            data_bytes: 3,
            progress_bytes: 0,
            tensor_bytes: 0,
            busy_seconds: 0.0,
            edges,
        };
        let told = link(&way, &wire);
        let bytes = told["edges"].as_array().unwrap().iter().map(|edge| &edge["predicted_bytes_per_record"]);
        assert_eq!(bytes.collect::<Vec<_>>(), [&json!(30), &json!(20), &Value::Null, &json!(10)]);
    }
}
