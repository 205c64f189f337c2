//! What windows of event time counted, as curves: driven by the columns `window_start` and `window_end`.
use super::written::{self, Row, Written};
use serde_json::Value;
use std::collections::BTreeMap;
use tidemill_app::preparation::Prepared;
use tidemill_drawing::chart::{Chart, Curve, Scale, time_marks};
use tidemill_drawing::markup::Markup;

/// Groups with a curve of their own; those with the largest values.
const GROUPS: usize = 8;
/// Columns of a sink that are drawn.
const COLUMNS: usize = 3;
/// Points of a curve, the last ones.
const POINTS: usize = 500;

/// The windows of all sinks that have some.
pub(super) fn collect(prepared: &Prepared) -> Vec<Written> {
    let sinks = prepared.program.sinks.values();
    let read = sinks.filter_map(|sink| written::read(sink, |has| has("window_start") && has("window_end")));
    // A single window is no curve.
    let has_several = |of: &Written| {
        let mut ends = of.rows.iter().filter_map(|row| row.get("window_end")?.as_i64());
        ends.next().is_some_and(|first| ends.any(|end| end != first))
    };
    read.filter(has_several).collect()
}

/// A value by window, for each group.
type Series = BTreeMap<String, BTreeMap<i64, f64>>;

/// Charts of the sinks.
pub(super) fn section(sinks: &[Written], part: &mut Markup) {
    let note = "What windows of event time hold in the end, corrections included, by the time at which each window is over.";
    part.leaf("p", &[("class", &"note")], note);
    part.element("div", &[("class", &"charts few")], |charts| {
        for sink in sinks {
            for (column, series) in columns(&sink.rows) {
                charts.element("div", &[], |one| draw(sink, &column, &series, one));
            }
        }
    });
}

/// The first numeric columns.
fn columns(rows: &[Row]) -> Vec<(String, Series)> {
    let is_window = |name: &str| matches!(name, "window_start" | "window_end");
    let mut all: BTreeMap<String, Series> = BTreeMap::new();
    for row in rows {
        let Some(end) = row.get("window_end").and_then(Value::as_i64) else { continue };
        let texts = row.iter().filter_map(|(_, value)| match value {
            Value::String(text) => Some(text.clone()),
            Value::Bool(value) => Some(value.to_string()),
            _ => None,
        });
        let group = texts.collect::<Vec<_>>().join(" · ");
        for (name, value) in row.iter().filter(|(name, _)| !is_window(name)) {
            if let Some(value) = value.as_f64() {
                all.entry(name.clone()).or_default().entry(group.clone()).or_default().insert(end, value);
            }
        }
    }
    all.into_iter().take(COLUMNS).collect()
}

fn draw(sink: &Written, column: &str, series: &Series, markup: &mut Markup) {
    let mut groups: Vec<(&String, &BTreeMap<i64, f64>)> = series.iter().collect();
    let weight = |of: &BTreeMap<i64, f64>| of.values().map(|value| value.abs()).sum::<f64>();
    groups.sort_by(|a, b| weight(b.1).total_cmp(&weight(a.1)));
    let hidden = groups.len().saturating_sub(GROUPS);
    groups.truncate(GROUPS);
    groups.sort_by(|a, b| a.0.cmp(b.0));
    let ends = || groups.iter().flat_map(|(_, of)| of.keys().rev().take(POINTS).copied());
    let (Some(first), Some(last)) = (ends().min(), ends().max()) else { return };
    let seconds = |end: i64| (end - first) as f64 / 1e3;
    let curve = |(index, (_, of)): (usize, &(&String, &BTreeMap<i64, f64>))| Curve {
        points: of
            .iter()
            .filter(|(end, _)| **end >= first)
            .map(|(end, value)| (seconds(*end), *value))
            .collect(),
        colour: index + 1,
        filled: false,
    };
    let curves: Vec<Curve> = groups.iter().enumerate().map(curve).collect();
    let length = seconds(last).max(1e-3);
    markup.leaf("h3", &[], &format!("{column}, at {}", sink.sink));
    Chart {
        title: column,
        across: (0.0, length),
        marks: time_marks(length),
        scale: Scale::Linear,
        written: |value| ((value * 100.0).round() / 100.0).to_string(),
        curves,
        limit: None,
    }
    .draw(markup);
    let names: Vec<&str> =
        groups.iter().map(|(name, _)| name.as_str()).filter(|name| !name.is_empty()).collect();
    legend(&names, markup);
    let cut = if sink.is_cut { "Only the beginning of the file was read. " } else { "" };
    let hidden = if hidden > 0 { format!("{hidden} smaller groups are left out.") } else { String::new() };
    if !(cut.is_empty() && hidden.is_empty()) {
        markup.leaf("p", &[("class", &"note")], &format!("{cut}{hidden}"));
    }
}

/// Names with their colours.
pub(super) fn legend(names: &[&str], markup: &mut Markup) {
    markup.element("div", &[("class", &"legend")], |legend| {
        for (index, name) in names.iter().enumerate() {
            legend.element("span", &[], |entry| {
                entry.leaf("i", &[("class", &format!("b{}", index % GROUPS + 1))], "");
                entry.text(name);
            });
        }
    });
}
