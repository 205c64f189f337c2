//! The report of a run, for people and for programs.
mod bars;
mod curves;
mod devices;
mod kept;
mod objects;
pub(crate) mod page;
mod processor;
pub(crate) mod records;
mod sections;
pub(crate) mod series;
mod windows;
mod written;

use crate::account::Account;
use crate::table::{Side, Table, paragraph};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use tidemill_app::delivery::{ON_PURPOSE, promise_lines};
use tidemill_app::device_choice::ChosenDevice;
use tidemill_app::figures::{grouped, milliseconds, rate, seconds, wilson_percent_of};
use tidemill_app::letters::{LetterVerdict, spoilt};
use tidemill_app::levels::Origin;
use tidemill_app::levels::SHORT_TICKS;
use tidemill_app::publication::told;
use tidemill_app::slo::{Verdict, is_short, measures_lines, measures_text, sink_accuracy_text, sink_rate};
use tidemill_app::tally::Left;
use tidemill_engine::{
    FeedStatus, Guarantee, LatencySummary, LetterSample, Program, RunReport, SinkReport, StageReport,
};

/// The interval of a sink's accuracy; `None`: it has none, or it is not known.
fn interval_percent(sink: &SinkReport) -> Option<(f64, f64)> {
    let is_share = sink.measures.as_ref().is_none_or(|measures| measures.percent().is_none());
    is_share.then(|| wilson_percent_of(sink.correct, sink.scored, sink.independent)).flatten()
}

/// Content of the report.
pub(crate) struct RunDocument<'a> {
    /// Name of the workflow.
    pub(crate) workflow: &'a str,
    /// The program.
    pub(crate) program: &'a Program,
    /// Ended by a signal.
    pub(crate) interrupted: bool,
    /// The engine's figures.
    pub(crate) report: &'a RunReport,
    /// Service levels.
    pub(crate) slo: &'a [Verdict],
    /// Seconds of processor time of this whole process since the run started.
    pub(crate) processor_seconds: f64,
    /// Whether the workers of the plan have processes of their own.
    pub(crate) has_processes: bool,
    /// The dead letters compared with the limit.
    pub(crate) letters: Option<LetterVerdict>,
    /// The emulation, if any.
    pub(crate) emulation: Option<&'a Account<'a>>,
    /// Content of the state, if the run keeps one.
    pub(crate) left: Option<&'a Left>,
    /// Models whose device an option chose.
    pub(crate) chosen_devices: &'a [ChosenDevice],
}

impl RunDocument<'_> {
    /// Seconds of processor time of all processes; for those of the workers, as reported by their threads.
    fn all_processor_seconds(&self) -> f64 {
        match self.has_processes {
            true => self.processor_seconds + processor::told(self.report),
            false => self.processor_seconds,
        }
    }

    /// Real seconds per second of the run.
    fn factor(&self) -> f64 {
        self.emulation.map_or(1.0, Account::factor)
    }

    /// Writes one JSON object and a line break.
    ///
    /// # Errors
    /// Errors of `out`.
    pub(crate) fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut document = json!({
            "version": 1,
            "workflow": self.workflow,
            "interrupted": self.interrupted,
            "slo": self.slo,
            "processor_seconds": self.all_processor_seconds(),
        });
        if self.has_processes {
            document["coordinator_processor_seconds"] = json!(self.processor_seconds);
        }
        let report = serde_json::to_value(self.report)?;
        if let (Some(document), Value::Object(report)) = (document.as_object_mut(), report) {
            document.extend(report);
        }
        if let Some(account) = self.emulation {
            document["emulation"] = account.json(self.report);
        }
        if let Some(left) = self.left {
            document["state"] = json!(left);
        }
        if let Some(letters) = &self.letters {
            document["max_dead_letters"] = letters.json();
        }
        for chosen in self.chosen_devices.iter().filter(|chosen| !chosen.instead_of.is_empty()) {
            let of = |stage: &&mut Value| stage["operator"] == json!(chosen.operator);
            for stage in list(&mut document, "stages").iter_mut().filter(of) {
                stage["device_of_plan"] = json!(chosen.instead_of.join(" and "));
            }
        }
        for (sink, report) in list(&mut document, "sinks").iter_mut().zip(&self.report.sinks) {
            sink["rate_per_second"] = json!(sink_rate(report, self.report, self.program));
            sink["accuracy_interval_percent"] = json!(interval_percent(report));
        }
        for (stage, planned) in list(&mut document, "stages").iter_mut().zip(&self.program.plan.stages) {
            stage["backend"] = json!(planned.backend);
            if let (Some(split), Some(run)) = (stage.get_mut("on_device"), &planned.remote_run) {
                split["predicted"] = devices::predicted(run);
            }
        }
        serde_json::to_writer_pretty(&mut *out, &document)?;
        writeln!(out)
    }

    /// Writes tables of at most 100 columns.
    ///
    /// # Errors
    /// Errors of `out`.
    pub(crate) fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let end = match (self.report.complete, self.interrupted, self.left) {
            (true, ..) if self.left.is_some_and(|left| left.stopped_at.is_some()) => "stopped at its limit",
            (true, ..) => "complete",
            (false, true, Some(_)) => "interrupted; the same command continues",
            (false, true, None) => "interrupted; committed rows stay",
            (false, false, _) => "not complete",
        };
        let restarts = match self.report.restarts {
            0 => String::new(),
            1 => ", 1 restart".to_owned(),
            n => format!(", {n} restarts"),
        };
        writeln!(out, "{}: {end}, {}{restarts}\n", self.workflow, seconds(self.report.seconds))?;
        for source in spoilt(self.report, self.program) {
            let (all, reasons) = (grouped(source.letters), source.reasons.join(", "));
            writeln!(out, "{}: NO USABLE RECORD: all {all} are dead letters ({reasons})\n", source.id)?;
        }
        self.sinks(out)?;
        writeln!(out)?;
        self.stages(out)?;
        devices::write(&self.report.stages, &self.program.plan, out)?;
        for chosen in self.chosen_devices {
            paragraph(out, &chosen.to_string())?;
        }
        self.losses(out)?;
        self.levels(out)?;
        let takes_back = |sink: &str| {
            let mut sinks = self.report.sinks.iter();
            sinks.any(|known| known.sink == sink && known.promise.guarantee == Guarantee::ExactlyOnce)
        };
        self.left.map_or(Ok(()), |left| kept::write(left, takes_back, out))?;
        self.emulation.map_or(Ok(()), |account| account.write(out))
    }

    fn sinks(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("sink", Side::Left),
            ("records", Side::Right),
            ("rate", Side::Right),
            ("latency p50", Side::Right),
            ("p95", Side::Right),
            ("p99", Side::Right),
            ("accuracy (95 % interval)", Side::Left),
        ]);
        for sink in &self.report.sinks {
            let time = |value: f64| if sink.latency.count > 0 { milliseconds(value) } else { "-".to_owned() };
            table.row([
                sink.sink.clone(),
                grouped(sink.records),
                sink_rate(sink, self.report, self.program).map_or_else(|| "-".to_owned(), rate),
                time(sink.latency.p50_ms),
                time(sink.latency.p95_ms),
                time(sink.latency.p99_ms),
                sink_accuracy_text(sink),
            ]);
        }
        table.write(out)?;
        for line in
            self.report.sinks.iter().filter_map(|sink| told(sink, &self.program.plan, self.report.seconds))
        {
            writeln!(out, "{line}")?;
        }
        for sink in &self.report.sinks {
            if let Some(plus_minus) = sink.latency_plus_minus_ms {
                writeln!(
                    out,
                    "{}: latency is accurate to ±{}, by the clocks of the processes of its records",
                    sink.sink,
                    milliseconds(plus_minus)
                )?;
            }
        }
        let has_rate =
            self.report.sinks.iter().any(|sink| sink_rate(sink, self.report, self.program).is_some());
        if has_rate && is_short(self.report, self.program) {
            let ticks = milliseconds(f64::from(SHORT_TICKS) * self.program.plan.tick.0 as f64 / 1e6);
            let length = milliseconds(self.report.seconds * 1e3);
            writeln!(
                out,
                "rate: records by the {length} of the run, which is shorter than {SHORT_TICKS} ticks ({ticks})"
            )?;
        }
        for sink in &self.report.sinks {
            if let Some(measures) = &sink.tracks {
                writeln!(out, "{}: {}", sink.sink, measures_text(measures))?;
            }
            let lines = sink.measures.iter().flat_map(measures_lines);
            for (place, line) in lines.enumerate() {
                let of = if place == 0 { format!("{}: ", sink.sink) } else { String::new() };
                writeln!(out, "{of}{line}")?;
            }
        }
        for sink in self.report.sinks.iter().filter(|_| self.report.cut_short) {
            if self.is_judged_whole(sink) == Some(true) && sink.scored > 0 {
                let of = match (&sink.tracks, &sink.measures) {
                    (Some(_), _) => "up to the last frame with a track, of each camera that has any",
                    (None, Some(_)) => "by the received rows",
                    (None, None) => "by the received texts",
                };
                writeln!(out, "{}: the run ended early, so it is judged {of}", sink.sink)?;
            }
        }
        for sink in self.report.sinks.iter().filter(|sink| sink.reader_gone) {
            writeln!(
                out,
                "{}: its reader left; it wrote {} records until then",
                sink.sink,
                grouped(sink.records)
            )?;
        }
        for line in self.repeated() {
            paragraph(out, &line)?;
        }
        self.answers(out)?;
        for line in self.promises() {
            writeln!(out, "{line}")?;
        }
        for sink in self.report.sinks.iter().filter(|sink| sink.without_truth > 0) {
            let records = grouped(sink.without_truth);
            writeln!(out, "{}: {records} records have a key without ground truth", sink.sink)?;
        }
        Ok(())
    }

    /// Whether a sink is judged row by row (false) or as a whole; `None` without ground truth.
    fn is_judged_whole(&self, sink: &SinkReport) -> Option<bool> {
        let truth = self.program.sinks.get(&sink.sink)?.ground_truth.as_ref()?;
        Some(truth.is_whole())
    }

    /// Sinks without an accuracy at the end although they have rows and a ground truth.
    fn not_judged(&self) -> impl Iterator<Item = String> {
        let has_rows = move |sink: &SinkReport| {
            let of_all = self.left.and_then(|left| left.all_processes.records_out.get(&sink.sink));
            sink.records > 0 || of_all.is_some_and(|rows| *rows > 0)
        };
        let is_part = move |sink: &&SinkReport| {
            self.report.complete
                && sink.scored == 0
                && sink.measures.is_none()
                && self.is_judged_whole(sink) == Some(true)
                && has_rows(sink)
        };
        self.report.sinks.iter().filter(is_part).map(|sink| {
            format!(
                "{}: not judged: the run continued an earlier one; tracks, texts, numbers, scores and boxes are judged as a whole, by a process with all their rows",
                sink.sink
            )
        })
    }

    /// Figures that count repeated work after a restart.
    fn repeated(&self) -> Vec<String> {
        if self.report.restarts == 0 {
            return self.not_judged().collect();
        }
        // For tracks and texts, boxes and characters are judged, not records.
        let by_records = |sink: &SinkReport| self.is_judged_whole(sink) == Some(false);
        let judged = |sink: &&SinkReport| by_records(sink) && sink.scored + sink.without_truth > sink.records;
        let again = self.report.sinks.iter().filter(judged).map(|sink| {
            format!(
                "{}: {} answers were judged for {} records: after a restart, the answers since the checkpoint were judged again",
                sink.sink,
                grouped(sink.scored + sink.without_truth),
                grouped(sink.records)
            )
        });
        // It is based on the sources' records.
        let level = match self.slo.iter().any(|verdict| verdict.slo == "rate") {
            true => ", and so does the service level of the rate",
            false => "",
        };
        let all = format!(
            "restarts: the records and the rate of a sink count each record once; stages, batches and edges \
             count repeated work too{level}"
        );
        std::iter::once(all).chain(again).chain(self.not_judged()).collect()
    }

    /// Writes which side has answered while an edge was cut.
    fn answers(&self, out: &mut dyn Write) -> io::Result<()> {
        for edge in &self.report.edges {
            let Some(answered) = edge.answered.filter(|answered| answered.here > 0) else { continue };
            let stages = &self.program.plan.stages;
            let stand_in = stages.iter().find(|stage| stage.stands_in_for.as_ref() == Some(&edge.to));
            let variant = stand_in.and_then(|stage| stage.variant.as_deref()).unwrap_or("another variant");
            writeln!(
                out,
                "{}: `{variant}` answered {} of {} records while the edge {} -> {} was cut",
                edge.to,
                grouped(answered.here),
                grouped(answered.here + answered.there),
                edge.from,
                edge.to
            )?;
        }
        Ok(())
    }

    /// Describes the guarantee of each sink.
    fn promises(&self) -> Vec<String> {
        promise_lines(self.report.sinks.iter().map(|sink| (sink.sink.as_str(), &sink.promise)))
    }

    fn stages(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("stage (times: p50 / p99)", Side::Left),
            ("in", Side::Right),
            ("out", Side::Right),
            ("batches", Side::Right),
            ("mean size", Side::Right),
            ("queue", Side::Right),
            ("compute", Side::Right),
            ("transfer", Side::Right),
        ]);
        for stage in &self.report.stages {
            let is_sink = self.report.sinks.iter().any(|sink| sink.sink == stage.operator);
            // Of computed records: earlier dropped ones were in no batch.
            let mean = stage.compute.count as f64 / stage.batches.max(1) as f64;
            let some = |shown: bool, text: String| if shown { text } else { String::new() };
            table.row([
                stage.stage.clone(),
                some(stage.records_in > 0, grouped(stage.records_in)),
                some(!is_sink, grouped(stage.records_out)),
                some(stage.records_in > 0 && stage.batches > 0, grouped(stage.batches)),
                some(stage.records_in > 0 && stage.batches > 0, format!("{mean:.1}")),
                pair(&stage.queue),
                pair(&stage.compute),
                pair(&stage.transfer),
            ]);
        }
        table.write(out)
    }

    fn losses(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("lost", Side::Left),
            ("reason", Side::Left),
            ("at", Side::Left),
            ("records", Side::Right),
        ]);
        let mut any = false;
        let mut add = |what: &str, reason: &str, at: String, records: u64| {
            any = true;
            table.row([what.to_owned(), reason.to_owned(), at, grouped(records)]);
        };
        for stage in &self.report.stages {
            // Filtered records are not lost; the stage's `in` and `out` show them.
            for (reason, records) in lost(&stage.drops) {
                add("dropped", reason, stage.stage.clone(), records);
            }
            for (reason, records) in &stage.dead_letters {
                add("dead letter", reason, stage.stage.clone(), *records);
            }
        }
        for (source, feed) in feeds(self.report) {
            for (reason, records) in lost(&feed.drops) {
                add("dropped", reason, format!("{source}, {}", feed.feed), records);
            }
        }
        for edge in &self.report.edges {
            for (reason, records) in lost(&edge.drops) {
                add("dropped", reason, format!("{} -> {}", edge.from, edge.to), records);
            }
        }
        if any {
            writeln!(out)?;
            table.write(out)?;
        }
        let groups = self.report.dead_letter_groups.iter();
        let mut lines: Vec<String> = groups
            .flat_map(|group| &group.samples)
            .map(|letter| {
                let detail = one_line(&letter.detail, 80);
                format!("{}: {}: {detail}{}", letter.operator, letter.reason, which_record(letter))
            })
            .collect();
        lines.dedup();
        for line in &lines {
            writeln!(out, "  {line}")?;
        }
        let more = self.report.dead_letters.saturating_sub(lines.len() as u64);
        if more > 0 {
            writeln!(out, "  and {} more", grouped(more))?;
        }
        for (place, reason, records) in notes(self.report) {
            writeln!(out, "\n{place}: {}: {}", note_text(reason), grouped(records))?;
        }
        for (place, records) in unmatched(self.report) {
            writeln!(out, "\n{place}: {UNMATCHED}: {}", grouped(records))?;
        }
        for stage in self.lagging() {
            let lag = milliseconds(stage.schedule_lag_ms);
            writeln!(out, "\n{}: lagged up to {lag} behind its rate", stage.stage)?;
        }
        Ok(())
    }

    /// Sources with backpressure; less than a tick is no lag.
    fn lagging(&self) -> impl Iterator<Item = &StageReport> {
        let tick = self.program.plan.tick.0 as f64 / 1e6;
        self.report.stages.iter().filter(move |stage| stage.schedule_lag_ms > tick.max(50.0))
    }

    fn levels(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.slo.is_empty() {
            return Ok(());
        }
        let mut table = Table::new(&[
            ("slo", Side::Left),
            ("", Side::Left),
            ("wanted", Side::Left),
            ("by", Side::Left),
            ("measured", Side::Left),
        ]);
        for verdict in self.slo {
            table.row([
                verdict.slo.to_owned(),
                verdict.word().to_owned(),
                verdict.wanted.clone(),
                verdict.of.map_or("", Origin::text).to_owned(),
                verdict.measured.clone().unwrap_or_else(|| "nothing to measure".to_owned()),
            ]);
        }
        writeln!(out)?;
        table.write(out)?;
        for remedy in self.slo.iter().filter_map(|verdict| verdict.remedy.as_ref()) {
            writeln!(out, "{remedy}")?;
        }
        Ok(())
    }
}

/// The feeds of all live sources.
fn feeds(report: &RunReport) -> impl Iterator<Item = (&str, &FeedStatus)> {
    report.feeds.iter().flat_map(|(source, feeds)| feeds.iter().map(move |feed| (source.as_str(), feed)))
}

/// Drops that are losses, by reason.
fn lost(drops: &BTreeMap<String, u64>) -> impl Iterator<Item = (&str, u64)> {
    let is_lost = |(reason, _): &(&str, u64)| !ON_PURPOSE.contains(reason);
    drops.iter().map(|(reason, records)| (reason.as_str(), *records)).filter(is_lost)
}

/// Text for records that are no loss and yet did not reach a sink.
const UNMATCHED: &str = "records without a partner, which are not losses (unmatched)";

/// Records without a partner in the data: stage and number.
fn unmatched(report: &RunReport) -> impl Iterator<Item = (&str, u64)> {
    let counted = |stage: &StageReport| stage.drops.get("unmatched").copied().filter(|records| *records > 0);
    report.stages.iter().filter_map(move |stage| Some((stage.stage.as_str(), counted(stage)?)))
}

/// Records emitted with a remark: stage, remark, number.
fn notes(report: &RunReport) -> impl Iterator<Item = (&str, &str, u64)> {
    report.stages.iter().flat_map(|stage| {
        stage.notes.iter().map(move |(reason, records)| (stage.stage.as_str(), reason.as_str(), *records))
    })
}

/// Text of a remark.
fn note_text(reason: &str) -> &str {
    match reason {
        "text_cut_off" => "texts that ended at their largest length, not by themselves (text_cut_off)",
        "outdated_table" => {
            "records with the last good table, because its file is not right now (outdated_table)"
        }
        "unlinked" => "tracks that arrived too late to be linked with others (unlinked)",
        other => other,
    }
}

fn list<'a>(document: &'a mut Value, key: &str) -> &'a mut [Value] {
    document.get_mut(key).and_then(Value::as_array_mut).map_or(&mut [], Vec::as_mut_slice)
}

/// `0.12 / 1.40 ms`: median and 99th percentile in one unit.
fn pair(summary: &LatencySummary) -> String {
    let (low, high) = (summary.p50_ms, summary.p99_ms);
    match high {
        _ if summary.count == 0 => String::new(),
        high if high >= 10_000.0 => format!("{:.1} / {:.1} s", low / 1e3, high / 1e3),
        high if high >= 100.0 => format!("{low:.0} / {high:.0} ms"),
        high if high >= 10.0 => format!("{low:.1} / {high:.1} ms"),
        high => format!("{low:.2} / {high:.2} ms"),
    }
}

/// The first line, at most `width` characters.
fn one_line(text: &str, width: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(width) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}
/// The first column with a short value, which identifies the lost record: ` (key 000012)`. Empty if the detail has it.
fn which_record(letter: &LetterSample) -> String {
    let short = letter.values.iter().find_map(|(column, value)| match value {
        serde_json::Value::String(text) if text.len() <= 40 => Some((column, text.clone())),
        serde_json::Value::Number(number) => Some((column, number.to_string())),
        _ => None,
    });
    match short {
        Some((column, value)) if !letter.detail.contains(&value) => {
            format!(" ({column} {})", one_line(&value, 40))
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_on_purpose_is_not_lost() {
        let drops = [("filtered", 7), ("freshness", 2), ("late", 3), ("unmatched", 5)];
        let drops = BTreeMap::from(drops.map(|(reason, records)| (reason.to_owned(), records)));
        assert_eq!(lost(&drops).collect::<Vec<_>>(), [("freshness", 2), ("late", 3)]);
    }
}
