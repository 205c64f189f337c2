//! Counts of event-time windows as curves, for sinks with the columns `window_start` and `window_end`.
use super::bars::{in_colours, legend};
use super::written::{self, Row, Written};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_app::preparation::Prepared;
use tidemill_drawing::axis::few_digits;
use tidemill_drawing::chart::{Chart, Curve, Scale, time_marks};
use tidemill_drawing::markup::Markup;
use tidemill_spec::types::{ColumnType, StreamType};
use tidemill_spec::workflow::{Sink, Workflow};

/// Most groups with a curve; those with the largest values.
const GROUPS: usize = 8;
/// Most columns of a sink that are drawn.
const COLUMNS: usize = 3;
/// Points of a curve, the last ones.
const POINTS: usize = 500;

/// The windows that a sink wrote.
pub(super) struct Windows {
    written: Written,
    columns: Columns,
    /// Number of rows of windows that start before time 0, which are not drawn.
    early: usize,
}

/// Roles of a sink's columns, in order.
#[derive(Debug, PartialEq)]
struct Columns {
    /// Columns whose values form the groups.
    groups: Vec<String>,
    /// Numeric columns.
    values: Vec<String>,
}

/// The windows of all sinks that have some.
pub(super) fn collect(prepared: &Prepared) -> Vec<Windows> {
    let sinks = prepared.workflow.sinks.iter().filter_map(|sink| {
        let bound = prepared.program.sinks.get(&sink.id.value)?;
        let mut written = written::read(bound, |has| has("window_start") && has("window_end"))?;
        let columns = Columns::of(&bound.input, &grouped_by(&prepared.workflow, sink));
        let all = written.rows.len();
        written.rows.retain(|row| !is_early(row));
        let early = all - written.rows.len();
        Some(Windows { written, columns, early })
    });
    // A single window is no curve.
    let has_several = |of: &Windows| {
        let mut ends = of.written.rows.iter().filter_map(|row| row.get("window_end")?.as_i64());
        ends.next().is_some_and(|first| ends.any(|end| end != first))
    };
    sinks.filter(has_several).collect()
}

/// Whether a window starts before time 0: for sources that count from 0 it is incomplete.
pub(super) fn is_early(row: &Row) -> bool {
    let time = |name: &str| row.get(name).and_then(Value::as_i64);
    time("window_start").is_some_and(|start| start < 0) && time("window_end").is_some_and(|end| end > 0)
}

/// The group columns of the windows before a sink.
fn grouped_by<'a>(workflow: &'a Workflow, sink: &'a Sink) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    let (mut waiting, mut seen) = (vec![sink.input.from.value.as_str()], BTreeSet::new());
    while let Some(id) = waiting.pop() {
        let Some(operator) = workflow.operators.iter().find(|operator| operator.id.value == id) else {
            continue;
        };
        if !seen.insert(id) {
            continue;
        }
        let listed = operator.options.get("group_by").and_then(|listed| listed.as_list());
        names.extend(listed.into_iter().flatten().filter_map(|name| name.as_str()));
        // An operator with windows has a size, and its inputs have other columns.
        if operator.options.get("size").is_none() {
            waiting.extend(operator.inputs.iter().map(|input| input.from.value.as_str()));
        }
    }
    names
}

impl Columns {
    /// Texts and bools are no curves; for whole numbers only the binding decides.
    fn of(stream: &StreamType, grouped_by: &BTreeSet<&str>) -> Self {
        let (mut groups, mut values) = (Vec::new(), Vec::new());
        for column in &stream.columns {
            match column.column_type {
                _ if matches!(column.name.as_str(), "window_start" | "window_end") => {}
                ColumnType::Text | ColumnType::Bool => groups.push(column.name.clone()),
                ColumnType::Int64 if grouped_by.contains(column.name.as_str()) => {
                    groups.push(column.name.clone());
                }
                ColumnType::Int64 | ColumnType::Float64 => values.push(column.name.clone()),
                _ => {}
            }
        }
        Self { groups, values }
    }

    /// The name of a row's group; empty without groups.
    fn group(&self, row: &Row) -> String {
        let parts = self.groups.iter().map(|name| match row.get(name) {
            None | Some(Value::Null) => "–".to_owned(),
            Some(Value::String(text)) if text.is_empty() => "“”".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => format!("{name} {other}"),
        });
        parts.collect::<Vec<_>>().join(" · ")
    }
}

/// A value by window, for each group.
type Series = BTreeMap<String, BTreeMap<i64, f64>>;

/// Charts of the sinks.
pub(super) fn section(sinks: &[Windows], part: &mut Markup) {
    let note = "Final values of windows of event time, including corrections, by the end of each window.";
    let early: usize = sinks.iter().map(|sink| sink.early).sum();
    let more = match early {
        0 => String::new(),
        rows => format!(
            " {} of windows that start before time 0 are left out, because they are incomplete.",
            records(rows)
        ),
    };
    part.leaf("p", &[("class", &"note")], &format!("{note}{more}"));
    part.element("div", &[("class", &"charts few")], |charts| {
        for sink in sinks {
            for (column, series, left_out) in columns(&sink.written.rows, &sink.columns) {
                charts.element("div", &[], |one| draw(&sink.written, &column, &series, left_out, one));
            }
        }
    });
}

fn records(count: usize) -> String {
    match count {
        1 => "1 row".to_owned(),
        many => format!("{many} rows"),
    }
}

/// The first numeric columns, each with the number of values at positions that are taken already.
fn columns(rows: &[Row], columns: &Columns) -> Vec<(String, Series, usize)> {
    let of = |name: &String| {
        let (mut series, mut left_out) = (Series::new(), 0);
        for row in rows {
            let end = row.get("window_end").and_then(Value::as_i64);
            let value = row.get(name).and_then(Value::as_f64);
            let (Some(end), Some(value)) = (end, value) else { continue };
            let known = series.entry(columns.group(row)).or_default();
            left_out += usize::from(known.contains_key(&end));
            known.entry(end).or_insert(value);
        }
        (!series.is_empty()).then(|| (name.clone(), series, left_out))
    };
    columns.values.iter().filter_map(of).take(COLUMNS).collect()
}

/// The last points of a curve.
fn last(of: &BTreeMap<i64, f64>) -> impl Iterator<Item = (i64, f64)> {
    of.iter().skip(of.len().saturating_sub(POINTS)).map(|(end, value)| (*end, *value))
}

fn draw(sink: &Written, column: &str, series: &Series, left_out: usize, markup: &mut Markup) {
    let mut groups: Vec<(&String, &BTreeMap<i64, f64>)> = series.iter().collect();
    let weight = |of: &BTreeMap<i64, f64>| of.values().map(|value| value.abs()).sum::<f64>();
    groups.sort_by(|a, b| weight(b.1).total_cmp(&weight(a.1)));
    let hidden = groups.len().saturating_sub(GROUPS);
    groups.truncate(GROUPS);
    groups.sort_by(|a, b| a.0.cmp(b.0));
    let ends = || groups.iter().flat_map(|(_, of)| last(of)).map(|(end, _)| end);
    let (Some(begin), Some(end)) = (ends().min(), ends().max()) else { return };
    let seconds = |end: i64| end.saturating_sub(begin) as f64 / 1e3;
    let curve = |(index, (_, of)): (usize, &(&String, &BTreeMap<i64, f64>))| Curve {
        points: last(of).map(|(end, value)| (seconds(end), value)).collect(),
        colour: index + 1,
        filled: false,
    };
    let curves: Vec<Curve> = groups.iter().enumerate().map(curve).collect();
    let length = seconds(end).max(1e-3);
    markup.leaf("h3", &[], &format!("{column}, at {}", sink.sink));
    Chart {
        title: column,
        across: (0.0, length),
        marks: time_marks(length),
        scale: Scale::Linear,
        written: few_digits,
        curves,
        limit: None,
    }
    .draw(markup);
    let names: Vec<&str> =
        groups.iter().map(|(name, _)| name.as_str()).filter(|name| !name.is_empty()).collect();
    legend(in_colours(&names), markup);
    let cut = if sink.is_cut { "Only the start of the file was read. " } else { "" };
    let hidden = if hidden > 0 { format!("{hidden} smaller groups are left out. ") } else { String::new() };
    let twice = match left_out {
        0 => String::new(),
        n => format!("{n} rows are left out whose window and group another row has too."),
    };
    let note = format!("{cut}{hidden}{twice}");
    if !note.is_empty() {
        markup.leaf("p", &[("class", &"note")], note.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tidemill_spec::types::Column;

    fn stream() -> StreamType {
        let columns = [
            ("window_start", ColumnType::Int64),
            ("window_end", ColumnType::Int64),
            ("road", ColumnType::Int64),
            ("colour", ColumnType::Text),
            ("n", ColumnType::Int64),
        ];
        StreamType::new(columns.map(|(name, column_type)| Column::new(name, column_type)))
    }

    fn row(end: i64, road: i64, colour: &str, n: i64) -> Row {
        let row = json!({"window_start": end - 1, "window_end": end, "road": road, "colour": colour, "n": n});
        row.as_object().unwrap().clone()
    }

    #[test]
    fn whole_numbers_are_groups_where_windows_are_grouped_by_them() {
        let grouped = Columns::of(&stream(), &BTreeSet::from(["road"]));
        assert_eq!(grouped.groups, ["road", "colour"]);
        assert_eq!(grouped.values, ["n"]);
        let rows = [row(1, 1, "1", 5), row(1, 2, "1", 6), row(2, 1, "1", 7), row(2, 1, "", 8)];
        let drawn = columns(&rows, &grouped);
        let [(name, series, left_out)] = &drawn[..] else { panic!("{drawn:?}") };
        assert_eq!((name.as_str(), *left_out), ("n", 0));
        let expected = [
            ("road 1 · 1", BTreeMap::from([(1, 5.0), (2, 7.0)])),
            ("road 1 · “”", BTreeMap::from([(2, 8.0)])),
            ("road 2 · 1", BTreeMap::from([(1, 6.0)])),
        ];
        assert_eq!(*series, Series::from(expected.map(|(name, values)| (name.to_owned(), values))));
    }

    #[test]
    fn rows_that_nothing_tells_apart_are_counted() {
        let ungrouped = Columns::of(&stream(), &BTreeSet::new());
        assert_eq!(ungrouped.values, ["road", "n"]);
        let drawn = columns(&[row(1, 1, "a", 5), row(1, 2, "a", 6)], &ungrouped);
        assert_eq!(drawn.iter().map(|(.., left_out)| *left_out).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn each_curve_has_its_own_last_points() {
        // One group existed only at the start, another one all the time.
        let long: BTreeMap<i64, f64> = (0..2000).map(|end| (end, 1.0)).collect();
        assert_eq!(last(&long).count(), POINTS);
        let series =
            Series::from([("early".to_owned(), BTreeMap::from([(0, 1.0)])), ("long".to_owned(), long)]);
        let sink = Written { sink: "out".to_owned(), rows: Vec::new(), is_cut: false };
        let mut markup = Markup::new();
        draw(&sink, "n", &series, 0, &mut markup);
        let text = format!("<div>{}</div>", markup.finish());
        let document = roxmltree::Document::parse(&text).unwrap();
        let paths = document.descendants().filter_map(|node| node.attribute("d"));
        assert_eq!(paths.map(|path| path.matches(['M', 'L']).count()).max(), Some(POINTS));
    }

    #[test]
    fn groups_are_those_of_the_windows_before_the_sink() {
        let text = "version: 1
name: roads
sources: [{id: rows, kind: csv, options: {path: rows.csv, columns: {at: int64, road: int64}, event_time: at}}]
operators:
  - {id: inner, kind: window, input: rows, options: {size: 1s, group_by: [n], aggregates: [{function: count}]}}
  - {id: outer, kind: window, input: inner, options: {size: 9s, group_by: [road], aggregates: [{function: count, as: n}]}}
  - {id: many, kind: filter, input: outer, options: {where: n > 1}}
sinks: [{id: out, kind: csv, input: many, options: {path: out.csv}}]
";
        let workflow = Workflow::parse(text, "workflow.yaml").unwrap();
        assert_eq!(grouped_by(&workflow, &workflow.sinks[0]), BTreeSet::from(["road"]));
    }
}
