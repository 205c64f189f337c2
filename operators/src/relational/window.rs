//! `window`: counts, sums, means, least and largest values over windows of event time: tumbling, sliding or by session.
//!
//! ```yaml
//! - id: by_colour
//!   kind: window
//!   input: readings
//!   options:
//!     size: 10s                    # whole milliseconds
//!     slide: 2s                    # default: as long as `size`, so that windows do not overlap
//!     group_by: [colour]           # text, int64 or bool columns; default: one group of all rows
//!     aggregates:
//!       - {function: count, as: n}
//!       - {function: mean, column: v, as: mean_v}    # `as` may be left out: mean_v
//!     allowed_lateness: 0s
//! ```
//! Windows start at whole multiples of `slide` since 1970-01-01 and take rows with `start <= time < start + size`. With
//! a `slide` below `size` they overlap, and a row counts in each one that it is in, `size / slide` of them. A window
//! closes when the watermark reaches its end plus `allowed_lateness`: from then on no row of it is expected. A row that
//! comes later counts in those of its windows that are open; when none is, it is counted as a drop `late`, or goes to the
//! readers of `ID.late` (see [`super::late`]). Nothing depends on wall time, on the order of arrival, on how epochs are cut or on restarts.
//!
//! The state holds each group at most twice a slide (see `panes.rs`), however many windows overlap; a result
//! costs a merge of what its window has of that group. So results cost most where `slide` is small: more than
//! 3,600 windows over one another are refused.
//!
//! One epoch gives the results of whole windows until it has 8,192 rows or more; those of further closed windows follow
//! in the next epochs. So the end of a stream, or a gap in it, which closes all open windows at once, takes no memory
//! for all their results together, and the sinks commit in between. Only a row that comes late, for a window that
//! overlaps closed ones, makes the rest of these follow at once.
//!
//! With `session: 30s` in place of `size`, windows follow the rows of a group: rows less than 30 s apart are in one window, from the first
//! to 30 s after the last.
//!
//! ```yaml
//! - {id: visits, kind: window, input: clicks, options: {session: 30s, group_by: [user], aggregates: [{function: count}]}}
//! ```
//! It closes when the watermark reaches its end plus `allowed_lateness`. A row between two open sessions makes one of them. A row is
//! late if it is `session` plus `allowed_lateness` or more behind the watermark, even if a session around it is still open: then no
//! row can join a session that has been emitted. Results come by their end. A group that never pauses gives no result before the end.
//!
//! Output columns: `window_start` and `window_end` (int64, milliseconds since 1970), the group columns, the
//! aggregates. The event time of a result is the last microsecond of its window; results come by window start, then
//! by group. Windows without rows give no result.
//!
//! | function | columns | result | empty values |
//! |---|---|---|---|
//! | `count` | any, or none | int64 | not counted; without a column all rows count |
//! | `sum` | int64, float64 | as the column | left out; no value: empty |
//! | `mean` | int64, float64 | float64 | left out; no value: empty |
//! | `min`, `max` | int64, float64 | as the column | left out; NaN is larger than every number |
//!
//! Sums of floats are exact and rounded once (see [`super::exact_sum`]). A sum of int64 that does not fit into int64
//! makes the result a dead letter `sum_overflow` (convert to float64 with a `map` before).
//!
//! ```
//! use tidemill_operators::api::Spread;
//! use std::path::Path;
//! use tidemill_operators::kind::{InputPort, OperatorContext};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::{SourceFile, Span}, types::{Column, ColumnType, StreamType}, yaml};
//! let readings = InputPort {
//!     from: "readings".into(),
//!     stream: StreamType::new([Column::new("colour", ColumnType::Text), Column::new("v", ColumnType::Float64)]),
//!     span: Span::nowhere(),
//! };
//! let id = "by_colour".into();
//! let context = OperatorContext::new(&id, Path::new("."));
//! let yaml = "{size: 10s, group_by: [colour], aggregates: [{function: mean, column: v}]}";
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", yaml)).unwrap();
//! let registry = Registry::builtin();
//! let bound = registry.operator("window").unwrap().bind(&context, &[readings], &options).unwrap();
//! assert_eq!(
//!     bound.output.to_string(),
//!     "{window_start: int64, window_end: int64, colour: text, mean_v: float64}"
//! );
//! assert_eq!(bound.spread, Spread::by_group(["colour"])); // several stages split the colours among them
//! ```
use super::aggregate::{Aggregate, Function};
use super::keys::is_key_type;
use super::panes::Windows;
use super::session_state::{RunningSessions, Sessions};
use super::window_rows::Setup;
use super::window_state::Running;
use crate::api::{Computation, Instance, MakeInstance, Output, Spread};
use crate::columns::declared_name;
use crate::kind::{InputPort, OperatorContext, TypedOperatorKind};
use crate::record::{EventTime, operator_number, record_schema};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::OperatorFacts;
use tidemill_spec::span::{Located, Span};
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::units::TimeSpan;

/// The kind `window`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Window;

/// Options of `window`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Length of a window, for instance `10s`; whole milliseconds. Needed, except with `session`.
    #[serde(default)]
    size: Option<Located<TimeSpan>>,
    /// Time without a row that ends a window, for instance `30s`; whole milliseconds. Default: none; windows have a `size`.
    #[serde(default)]
    session: Option<Located<TimeSpan>>,
    /// From the start of one window to the start of the next, for instance `2s`; whole milliseconds, at most `size`.
    /// Default: as `size`, windows do not overlap.
    #[serde(default)]
    slide: Option<Located<TimeSpan>>,
    /// Columns that form the groups. Default: none; all rows of a window are one group.
    #[serde(default)]
    group_by: Vec<Located<String>>,
    /// Aggregates to compute for each group.
    aggregates: Vec<Listed>,
    /// Time after its end, by the watermark, during which a window still accepts rows. Default: 0s.
    #[serde(default)]
    allowed_lateness: TimeSpan,
    /// Late rows: `drop` counts them as drops; `pass` counts them as notes, because an operator `late` passes them on. An input
    /// `ID.late` sets it. Default: drop.
    #[serde(default)]
    late: LateRows,
}

impl Options {
    /// See [`TypedOperatorKind::spread`].
    pub(super) fn spread(&self) -> Spread {
        Spread::by_group(self.group_by.iter().map(|name| name.value.as_str()))
    }
}

/// What becomes of late rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum LateRows {
    /// They are dropped.
    #[default]
    Drop,
    /// Another operator passes them on.
    Pass,
}

impl LateRows {
    /// Counts late rows.
    pub(super) fn count(self, rows: u64, output: &mut Output) {
        match self {
            Self::Drop => output.drop_rows("late", rows),
            Self::Pass => output.note_rows("late", rows),
        }
    }
}

/// One aggregate.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Listed {
    /// count, sum, mean, min or max.
    function: Located<Function>,
    /// The column; only `count` works without one.
    #[serde(default)]
    column: Option<Located<String>>,
    /// Name of the output column. Default: `count`, or function and column, as in `mean_v`.
    #[serde(default, rename = "as")]
    name: Option<Located<String>>,
}

/// Most windows that contain a row. One row can give that many results when the stream ends.
const MOST_WINDOWS: i64 = 3600;

impl TypedOperatorKind for Window {
    type Options = Options;
    const KIND: &'static str = "window";
    const SUMMARY: &'static str = "Counts, sums, means, least and largest values over windows of event time: tumbling, sliding or by session.";
    const FACTS: OperatorFacts =
        OperatorFacts { computation: Computation::Stateful, has_windows: true, ..OperatorFacts::DEFAULT };

    fn spread(options: &Options) -> Spread {
        options.spread()
    }

    fn bind_typed(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: Located<Options>,
    ) -> Result<(StreamType, MakeInstance), Diagnostics> {
        let Located { value: options, span: place, .. } = options;
        let port = &inputs[0];
        let mut errors = Diagnostics::new();
        let shape = shape(&options, context, &place).unwrap_or_else(|error| {
            errors.push(error);
            Shape::Sessions(Sessions { gap: 1000, lateness: 0 })
        });
        let mut columns = vec![
            Column::new("window_start", ColumnType::Int64),
            Column::new("window_end", ColumnType::Int64),
        ];
        let mut names: Vec<Located<String>> = vec!["window_start".into(), "window_end".into()];
        let mut group_by = Vec::new();
        for name in &options.group_by {
            match port.column(context.id, 0, name, "text, int64 or bool", is_key_type) {
                Ok((index, column)) => {
                    group_by.push(index);
                    columns.push(column.clone());
                    names.push(name.clone());
                }
                Err(error) => errors.push(error),
            }
        }
        if options.aggregates.is_empty() {
            let message = format!("window `{}` computes nothing", context.id);
            let place = if place.source().is_some() { place } else { context.id.span.clone() };
            errors.push(
                Diagnostic::error("E0606", message)
                    .at(place)
                    .with_help("write `aggregates: [{function: count, as: n}]`"),
            );
        }
        let mut aggregates = Vec::new();
        for listed in &options.aggregates {
            match bind_aggregate(context, port, listed) {
                Ok((column, name, aggregate)) => {
                    columns.push(column);
                    names.push(name);
                    aggregates.push(aggregate);
                }
                Err(error) => errors.push(error),
            }
        }
        for (index, name) in names.iter().enumerate() {
            if names[..index].contains(name) {
                let message = format!("window `{}` has two output columns `{name}`", context.id);
                errors.push(
                    Diagnostic::error("E0606", message)
                        .at(name.span.clone())
                        .with_help("give one of them another name with `as`"),
                );
            }
        }
        errors.into_result(())?;
        let output = StreamType::new(columns);
        let setup = Arc::new(Setup {
            operator: operator_number(context.id),
            group_types: output.columns[2..2 + group_by.len()]
                .iter()
                .map(|c| c.column_type.clone())
                .collect(),
            group_by,
            aggregates,
            late: options.late,
            output: record_schema(&output),
        });
        let make: MakeInstance = Arc::new(move || {
            let setup = Arc::clone(&setup);
            Ok(Instance::Stateful(match shape {
                Shape::Windows(windows) => Box::new(Running::new(setup, windows)),
                Shape::Sessions(sessions) => Box::new(RunningSessions::new(setup, sessions)),
            }))
        });
        Ok((output, make))
    }
}

/// When windows start and end.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// At fixed times.
    Windows(Windows),
    /// By the rows.
    Sessions(Sessions),
}

impl Shape {
    /// Whether no window takes a row of this time any more.
    pub(super) fn is_late(&self, time: EventTime, watermark: EventTime) -> bool {
        match self {
            Self::Windows(windows) => {
                windows.pane(time).is_some_and(|pane| windows.is_closed(windows.last(pane.start), watermark))
            }
            Self::Sessions(sessions) => sessions.has_end(time) && sessions.is_closed(time, watermark),
        }
    }
}

/// Returns when windows start and end. `place`: that of the options.
pub(super) fn shape(
    options: &Options,
    context: &OperatorContext<'_>,
    place: &Span,
) -> Result<Shape, Diagnostic> {
    // Rounded up: a watermark is a whole microsecond.
    let lateness = i64::try_from(options.allowed_lateness.0.div_ceil(1000)).unwrap_or(i64::MAX);
    let wrong = |message: &str, place: &Span, help: &str| {
        let place = if place.source().is_some() { place } else { &context.id.span };
        Err(Diagnostic::error("E0606", message).at(place.clone()).with_help(help))
    };
    match (&options.size, &options.session, &options.slide) {
        (Some(size), None, slide) => {
            let (size, slide) = size_and_slide(size, slide.as_ref())?;
            Ok(Shape::Windows(Windows { size, slide, lateness }))
        }
        (None, Some(gap), None) => {
            let gap = microseconds(gap, "a session that ends after")?;
            Ok(Shape::Sessions(Sessions { gap, lateness }))
        }
        (None, Some(_), Some(slide)) => wrong(
            "sessions do not slide",
            &slide.span,
            "leave out `slide`, or write `size` in place of `session`",
        ),
        (Some(_), Some(gap), _) => {
            let help = "keep `size` for windows of one length, or `session` for windows that end after a time without rows";
            wrong("a window has either a `size` or ends by `session`", &gap.span, help)
        }
        (None, None, _) => {
            let message = format!("window `{}` has no `size`", context.id);
            wrong(
                &message,
                place,
                "write `size: 10s`, or `session: 30s` for windows that end after a time without rows",
            )
        }
    }
}

/// Returns size and slide in microseconds.
fn size_and_slide(
    length: &Located<TimeSpan>,
    slide: Option<&Located<TimeSpan>>,
) -> Result<(i64, i64), Diagnostic> {
    let size = microseconds(length, "a window of")?;
    let Some(written) = slide else { return Ok((size, size)) };
    let slide = microseconds(written, "a slide of")?;
    let wrong = |message: String, help: String| {
        let error = Diagnostic::error("E0606", message).at(written.span.clone()).with_help(help);
        Err(error.with_related(length.span.clone(), "the size of a window"))
    };
    let (size_text, slide_text) = (length.value, written.value);
    if slide > size {
        return wrong(
            format!("rows between windows of {size_text} every {slide_text} would be in none"),
            format!(
                "write a slide of at most {size_text}, or put a `filter` before it that drops those rows"
            ),
        );
    }
    let over = size.div_euclid(slide) + i64::from(size % slide != 0);
    if over > MOST_WINDOWS {
        let least = TimeSpan((size as u64).div_ceil(MOST_WINDOWS as u64).div_ceil(1000) * 1_000_000);
        return wrong(
            format!(
                "with windows of {size_text} every {slide_text}, each row would be in {over} of them; \
                 at most {MOST_WINDOWS} are possible"
            ),
            format!("write a slide of at least {least}, or smaller windows"),
        );
    }
    Ok((size, slide))
}

fn microseconds(span: &Located<TimeSpan>, what: &str) -> Result<i64, Diagnostic> {
    let nanoseconds = span.value.0;
    match i64::try_from(nanoseconds / 1000) {
        Ok(microseconds) if nanoseconds > 0 && nanoseconds.is_multiple_of(1_000_000) => Ok(microseconds),
        _ => Err(Diagnostic::error("E0606", format!("{what} {} is not possible", span.value))
            .at(span.span.clone())
            .with_help("write whole milliseconds above 0, such as `10s` or `250ms`")),
    }
}

fn bind_aggregate(
    context: &OperatorContext<'_>,
    port: &InputPort,
    listed: &Listed,
) -> Result<(Column, Located<String>, Aggregate), Diagnostic> {
    let function = listed.function.value;
    let input = match &listed.column {
        None if function == Function::Count => None,
        None => {
            return Err(Diagnostic::error(
                "E0606",
                format!("`{}` of `{}` needs a column", function, context.id),
            )
            .at(listed.function.span.clone())
            .with_help(format!("write `{{function: {function}, column: NAME}}`")));
        }
        Some(column) => {
            let (expected, number) = match function {
                Function::Count => ("any type", false),
                _ => ("int64 or float64", true),
            };
            let fits = |t: &ColumnType| !number || matches!(t, ColumnType::Int64 | ColumnType::Float64);
            let (index, found) = port.column(context.id, 0, column, expected, fits)?;
            Some((index, found.column_type.clone()))
        }
    };
    let name = listed.name.clone().unwrap_or_else(|| {
        let text = match &listed.column {
            None => function.to_string(),
            Some(column) => format!("{function}_{column}"),
        };
        Located::new(text, listed.function.span.clone())
    });
    declared_name(&name)?;
    let aggregate = Aggregate::new(function, input);
    Ok((Column::new(name.value.clone(), aggregate.result()), name, aggregate))
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "sliding_tests.rs"]
mod sliding_tests;

#[cfg(test)]
#[path = "session_tests.rs"]
mod session_tests;
