//! Differences between two profiles.
use super::show::choice;
use crate::table::{Side, Table};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use tidemill_app::figures::{bytes, duration};
use tidemill_spec::profile::Profile;

/// Unit of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Unit {
    Nanoseconds,
    Bytes,
    Percent,
    Records,
}

impl Unit {
    fn text(self, value: f64) -> String {
        match self {
            Unit::Nanoseconds => duration(value),
            Unit::Bytes => bytes(value as u64),
            Unit::Percent => format!("{value:.2} %"),
            Unit::Records => format!("{value:.4}"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::Bytes => "bytes",
            Unit::Percent => "percent",
            Unit::Records => "records",
        }
    }
}

/// A figure that differs, or that only one of the profiles has.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Change {
    what: String,
    unit: Unit,
    before: Option<f64>,
    after: Option<f64>,
}

impl Change {
    /// Growth in percent.
    fn percent(&self) -> Option<f64> {
        let (before, after) = (self.before?, self.after?);
        (before != 0.0).then(|| 100.0 * (after / before - 1.0))
    }
}

/// Returns figures that changed by more than `above` percent, by subject.
pub(super) fn changes(before: &Profile, after: &Profile, above: f64) -> Vec<Change> {
    let (mut before, after) = (figures(before), figures(after));
    let mut all: BTreeMap<String, Change> = BTreeMap::new();
    for (what, (unit, value)) in after {
        let old = before.remove(&what).map(|(_, value)| value);
        all.insert(what.clone(), Change { what, unit, before: old, after: Some(value) });
    }
    for (what, (unit, value)) in before {
        all.insert(what.clone(), Change { what, unit, before: Some(value), after: None });
    }
    let differs = |change: &Change| match (change.before, change.after) {
        (Some(before), Some(after)) => {
            before != after && change.percent().is_none_or(|percent| percent.abs() > above)
        }
        _ => true,
    };
    all.into_values().filter(differs).collect()
}

fn figures(profile: &Profile) -> BTreeMap<String, (Unit, f64)> {
    let mut all = BTreeMap::new();
    for service in &profile.services {
        let mut name = service.operator.clone();
        for part in [&service.variant, &service.backend].into_iter().flatten() {
            name.push_str(&format!(" {part}"));
        }
        name.push_str(&format!(" on {}", service.worker_type));
        for times in &service.batches {
            let (what, time) = match (times.mean, times.p50, times.p75) {
                (Some(mean), _, _) => ("mean", mean),
                (None, Some(median), _) => ("p50", median),
                (None, None, Some(time)) => ("p75", time),
                _ => continue,
            };
            let key = format!("{name}, {what} of {} records", times.batch);
            all.insert(key, (Unit::Nanoseconds, time.0 as f64));
        }
        if let Some(memory) = service.peak_memory {
            all.insert(format!("{name}, memory"), (Unit::Bytes, memory.0 as f64));
        }
    }
    for message in &profile.messages {
        let with = if message.variants.is_empty() {
            String::new()
        } else {
            format!(" ({})", choice(&message.variants))
        };
        let key = format!("{} -> {}{with}, bytes a record", message.from, message.to);
        all.insert(key, (Unit::Bytes, message.bytes_per_record.0 as f64));
    }
    for ratio in &profile.ratios {
        let named = ratio.holds_for();
        let with = if named.is_empty() { String::new() } else { format!(" ({})", choice(&named)) };
        all.insert(
            format!("{}{with}, records out per record in", ratio.operator),
            (Unit::Records, ratio.output_per_input),
        );
    }
    for row in profile.accuracy.iter().flat_map(|accuracy| &accuracy.end_to_end) {
        all.insert(format!("accuracy ({})", choice(&row.variants)), (Unit::Percent, row.accuracy.0));
    }
    all
}

/// Formats for programs.
pub(super) fn document(changes: &[Change]) -> Value {
    let change = |change: &Change| {
        json!({
            "what": change.what, "unit": change.unit.name(), "before": change.before, "after": change.after,
            "percent": change.percent(),
        })
    };
    json!({"version": 1, "changes": changes.iter().map(change).collect::<Vec<_>>()})
}

/// Writes a table for people. Figures of only one of the profiles are counted, or listed too.
pub(super) fn table(changes: &[Change], all: bool, out: &mut dyn Write) -> io::Result<()> {
    if changes.is_empty() {
        return writeln!(out, "no differences");
    }
    let gone = changes.iter().filter(|change| change.after.is_none()).count();
    let new = changes.iter().filter(|change| change.before.is_none()).count();
    let is_shown = |change: &&Change| all || (change.before.is_some() && change.after.is_some());
    let mut table = Table::new(&[
        ("figure", Side::Left),
        ("before", Side::Right),
        ("after", Side::Right),
        ("change", Side::Right),
    ]);
    for change in changes.iter().filter(is_shown) {
        let text =
            |value: Option<f64>| value.map_or_else(|| "none".to_owned(), |value| change.unit.text(value));
        let percent = change.percent().map(|percent| format!("{percent:+.1} %")).unwrap_or_default();
        table.row([change.what.clone(), text(change.before), text(change.after), percent]);
    }
    if changes.iter().any(|change| is_shown(&change)) {
        table.write(out)?;
    } else {
        writeln!(out, "no common figure differs")?;
    }
    if !all && gone + new > 0 {
        writeln!(out, "{gone} figures are only in the first, {new} only in the second; `--all` lists them")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(mean: &str, more: &str) -> Profile {
        let text = format!(
            "version: 1\nworkflow: {{name: w}}\nmachines: [{{worker_type: m, how: measured}}]\nservices:\n\
             - {{operator: o, worker_type: m, how: measured, batches: [{{batch: 1, mean: {mean}}}]}}\n\
             messages: [{{from: s, to: o, bytes_per_record: 2KiB}}]\n{more}"
        );
        Profile::parse(&text, "p").unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[test]
    fn only_what_differs_is_told() {
        let before = profile("2ms", "ratios: [{operator: o, output_per_input: 1}]\n");
        assert!(changes(&before, &before, 0.0).is_empty());
        let after = profile("3ms", "");
        let found = changes(&before, &after, 5.0);
        let mut out = Vec::new();
        table(&found, true, &mut out).unwrap();
        let expected = "\
figure                         before    after   change
o on m, mean of 1 records     2.00 ms  3.00 ms  +50.0 %
o, records out per record in   1.0000     none
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        table(&found, false, &mut out).unwrap();
        let expected = "\
figure                      before    after   change
o on m, mean of 1 records  2.00 ms  3.00 ms  +50.0 %
1 figures are only in the first, 0 only in the second; `--all` lists them
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        table(&changes(&profile("3ms", ""), &before, 90.0), false, &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().starts_with("no common figure differs\n0 figures"));
        assert!(
            changes(&before, &profile("2.05ms", "ratios: [{operator: o, output_per_input: 1}]\n"), 5.0)
                .is_empty()
        );
        assert_eq!(document(&found)["changes"][0]["percent"], 50.0);
    }
}
