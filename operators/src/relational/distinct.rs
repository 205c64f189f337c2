//! `distinct`: counts the different values of a column in windows of event time. Rows may be retracted.
//!
//! ```yaml
//! - id: per_minute
//!   kind: distinct
//!   input: identified              # tracks with their vehicles, as `associate` sends them
//!   options:
//!     of: vehicle                  # a vehicle counts once, however many tracks it has
//!     group_by: [road]             # text, int64 or bool columns; default: one group of all rows
//!     size: 1min                   # whole milliseconds
//!     slide: 15s                   # default: as long as `size`, so that windows do not overlap
//!     as: vehicles                 # default: distinct_vehicle
//! ```
//! A row lasts from `start` to `end`, columns of milliseconds since 1970, and counts in each window that it overlaps.
//! A row that lasts longer than 3,600 times `slide` is a dead letter, `bad_time`; at most that many windows overlap.
//! Windows start at whole multiples of `slide`; their end is exclusive. Rows whose `of` is empty do not count.
//!
//! The count of a window is sent when the watermark reaches its end. Later rows correct it: the operator retracts the
//! row (`_change` = -1) and sends a new one; corrections of one epoch come together. A window is kept until `keep`
//! after its end, which bounds the state; a row that changes only windows already removed is counted as a drop
//! `late`. The sum of all changes does not depend on the order of arrival or on how epochs are cut. Windows without
//! rows have no count.
//!
//! Output columns: `window_start` and `window_end` (int64, milliseconds since 1970), the group columns, the count.
//! The event time of a count is the last microsecond of its window, of a correction at least the watermark.
use super::distinct_state::{Running, Setup};
use super::keys::is_key_type;
use crate::api::{Computation, Instance, MakeInstance, Spread};
use crate::columns::declared_name;
use crate::kind::{InputPort, OperatorContext, TypedOperatorKind};
use crate::record::{operator_number, record_schema};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::OperatorFacts;
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::units::TimeSpan;

/// The kind `distinct`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Distinct;

/// Options of `distinct`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The column whose different values are counted: text, int64 or bool.
    of: Located<String>,
    /// Length of a window, for instance `1min`; whole milliseconds.
    size: Located<TimeSpan>,
    /// From the start of one window to the start of the next; whole milliseconds, at most `size`. Default: as `size`.
    #[serde(default)]
    slide: Option<Located<TimeSpan>>,
    /// Columns that form the groups. Default: none; all rows of a window are one group.
    #[serde(default)]
    group_by: Vec<Located<String>>,
    /// Column with the first time at which a row counts, int64, milliseconds. Default: start.
    #[serde(default = "start")]
    start: Located<String>,
    /// Column with the last time at which a row counts, int64, milliseconds. Default: end.
    #[serde(default = "end")]
    end: Located<String>,
    /// Time after its end during which a window can still be corrected. Default: 1h.
    #[serde(default = "hour")]
    keep: TimeSpan,
    /// Name of the column with the count. Default: as in `distinct_vehicle`.
    #[serde(default, rename = "as")]
    name: Option<Located<String>>,
}

fn start() -> Located<String> {
    "start".into()
}

fn end() -> Located<String> {
    "end".into()
}

fn hour() -> TimeSpan {
    TimeSpan(3_600_000_000_000)
}

/// Most windows that may overlap, and the longest duration of a row in units of `slide`.
pub(super) const MOST_WINDOWS: i64 = 3600;

impl TypedOperatorKind for Distinct {
    type Options = Options;
    const KIND: &'static str = "distinct";
    const SUMMARY: &'static str =
        "Counts the different values of a column in windows of event time, with corrections.";
    const ACCEPTS_REVISIONS: bool = true;
    const FACTS: OperatorFacts =
        OperatorFacts { computation: Computation::Stateful, has_windows: true, ..OperatorFacts::DEFAULT };

    fn spread(options: &Options) -> Spread {
        Spread::by_group(options.group_by.iter().map(|name| name.value.as_str()))
    }

    fn bind_typed(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: Located<Options>,
    ) -> Result<(StreamType, MakeInstance), Diagnostics> {
        let options = options.value;
        let port = &inputs[0];
        let mut errors = Diagnostics::new();
        let (size, slide) = size_and_slide(&options).unwrap_or_else(|error| {
            errors.push(error);
            (1, 1)
        });
        let mut place = |name: &Located<String>, expected: &str, accepts: fn(&ColumnType) -> bool| {
            port.column(context.id, 0, name, expected, accepts).map_or_else(
                |error| {
                    errors.push(error);
                    None
                },
                |(index, column)| Some((index, column.clone())),
            )
        };
        let is_whole = |found: &ColumnType| *found == ColumnType::Int64;
        let of = place(&options.of, "text, int64 or bool", is_key_type);
        let times = [&options.start, &options.end].map(|name| place(name, "int64", is_whole));
        let groups: Vec<_> = options
            .group_by
            .iter()
            .filter_map(|name| place(name, "text, int64 or bool", is_key_type))
            .collect();
        let count = options
            .name
            .clone()
            .unwrap_or_else(|| Located::new(format!("distinct_{}", options.of), options.of.span.clone()));
        if let Err(error) = declared_name(&count) {
            errors.push(error);
        }
        let window = ["window_start", "window_end"].map(|name| Column::new(name, ColumnType::Int64));
        let columns = window.into_iter().chain(groups.iter().map(|(_, column)| column.clone()));
        let columns: Vec<Column> =
            columns.chain([Column::new(count.value.clone(), ColumnType::Int64)]).collect();
        let names = columns.iter().map(|column| &column.name);
        if let Some((_, twice)) =
            names.enumerate().find(|(at, name)| columns[..*at].iter().any(|c| c.name == **name))
        {
            let message = format!("distinct `{}` has two output columns `{twice}`", context.id);
            let help = "name each group column once, and the count otherwise with `as`";
            errors.push(Diagnostic::error("E0606", message).at(count.span.clone()).with_help(help));
        }
        errors.into_result(())?;
        let (Some((of, _)), [Some((start, _)), Some((end, _))]) = (of, times) else {
            return Err(Diagnostics::new());
        };
        let output = StreamType::new(columns).with_revisions(true);
        let setup = Arc::new(Setup {
            operator: operator_number(context.id),
            size,
            slide,
            keep: i64::try_from(options.keep.0 / 1_000_000).unwrap_or(i64::MAX / 4),
            of,
            times: [start, end],
            group_types: groups.iter().map(|(_, column)| column.column_type.clone()).collect(),
            group_by: groups.iter().map(|(index, _)| *index).collect(),
            output: record_schema(&output),
        });
        Ok((output, Arc::new(move || Ok(Instance::Stateful(Box::new(Running::new(Arc::clone(&setup))))))))
    }
}

/// Returns size and slide in milliseconds.
fn size_and_slide(options: &Options) -> Result<(i64, i64), Diagnostic> {
    let whole = |span: &Located<TimeSpan>| {
        let milliseconds = i64::try_from(span.value.0 / 1_000_000).unwrap_or(0);
        if milliseconds > 0 && span.value.0.is_multiple_of(1_000_000) {
            return Ok(milliseconds);
        }
        Err(Diagnostic::error("E0606", format!("a window or slide of {} is not possible", span.value))
            .at(span.span.clone())
            .with_help("write whole milliseconds above 0, such as `1min` or `250ms`"))
    };
    let size = whole(&options.size)?;
    let Some(written) = &options.slide else { return Ok((size, size)) };
    let slide = whole(written)?;
    let wrong = |message: String, help: String| {
        let error = Diagnostic::error("E0606", message).at(written.span.clone()).with_help(help);
        Err(error.with_related(options.size.span.clone(), "the size of a window"))
    };
    if slide > size {
        return wrong(
            format!(
                "rows between windows of {} every {} would be in none",
                options.size.value, written.value
            ),
            format!("write a slide of at most {}", options.size.value),
        );
    }
    if size > slide.saturating_mul(MOST_WINDOWS) {
        return wrong(
            format!(
                "with windows of {} every {}, a row would be in too many",
                options.size.value, written.value
            ),
            format!("write a slide with which at most {MOST_WINDOWS} windows overlap, or smaller windows"),
        );
    }
    Ok((size, slide))
}

#[cfg(test)]
#[path = "distinct_tests.rs"]
mod tests;
