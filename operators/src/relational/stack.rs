//! `stack`: windows over the tensors of successive records, for models that read a part of a sequence: the last frames of
//! a spectrogram, the last embeddings of a sound.
//!
//! ```yaml
//! - id: heard
//!   kind: stack
//!   input: spectrogram            # for instance tensors [8, 32]: 8 frames of 32 bands with each record
//!   options:
//!     column: mel                 # the tensors
//!     shape: [76, 32]             # of a window, as the model reads it: 76 rows of 32 values
//!     every: 8                    # rows from the start of one window to that of the next; default: without overlap
//!     before: 68                  # rows before the first tensor; default: 0
//!     fill: -10                   # their values; default: 0
//!     key: microphone             # records with one value here follow each other; default: all do
//!     reset_after: 5s             # without a record, then the next one starts a sequence; default: 1h
//!     reset_when: start == 0.0    # a record for which this holds starts one; default: none does
//!     as: frames                  # column of the windows; default: as `column`
//! ```
//! A tensor is one or more rows: its values divided by those of a row, which has the dimensions of `shape` after the first.
//! Dimensions of 1 do not matter. The rows of the records of a key stand one after another, by event time, and windows run
//! across records. The first window starts with the first row, or with the rows of `before`, so that `before: 75` gives a
//! window with the first row. A window is a record with the other columns of the record that completed it.
//!
//! The event time of a window is that of the record that completed it. If a record completes several, or several records
//! of a key have one time, each window is a microsecond later than the one before, so that they stay in order.
//!
//! Rows of two sequences are never in one window. The sequence of a key ends if no record came for `reset_after`, if
//! `reset_when` holds, and with a record whose tensor is empty, a dead letter `missing_value`, or for which `reset_when`
//! fails, `expression_failed`. A record that is earlier than the last one of its key is counted as a drop, `late`. Several
//! stages may share the work by key.
//!
//! ```
//! use std::path::Path;
//! use tidemill_operators::kind::{InputPort, OperatorContext};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::{SourceFile, Span}, types::{Column, ColumnType, StreamType}, yaml};
//! let frames = ColumnType::named("tensor<float32>[1, 1, 8, 32]").unwrap();
//! let spectrogram = InputPort {
//!     from: "spectrogram".into(),
//!     stream: StreamType::new([Column::new("mel", frames), Column::new("start", ColumnType::Float64)]),
//!     span: Span::nowhere(),
//! };
//! let id = "heard".into();
//! let options = "{column: mel, shape: [76, 32, 1], every: 8, as: frames}";
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", options)).unwrap();
//! let context = OperatorContext::new(&id, Path::new("."));
//! let bound = Registry::builtin().operator("stack").unwrap().bind(&context, &[spectrogram], &options).unwrap();
//! assert_eq!(bound.output.to_string(), "{start: float64, frames: tensor<float32>[76, 32, 1]}");
//! ```
use super::expression::Expression;
use super::expression_diagnostic;
use super::keys::is_key_type;
use super::stack_state::{Running, Setup};
use crate::api::{Computation, Instance, MakeInstance, Spread};
use crate::columns::declared_name;
use crate::columns::tensor::MOST_VALUES;
use crate::kind::{InputPort, OperatorContext, TypedOperatorKind};
use crate::record::{operator_number, record_schema};
use arrow_array::types::{Float16Type, Float32Type, Float64Type, Int8Type, Int32Type, Int64Type, UInt8Type};
use arrow_array::{ArrayRef, ArrowPrimitiveType, PrimitiveArray};
use half::f16;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::OperatorFacts;
use tidemill_spec::span::{Located, Span};
use tidemill_spec::types::{Column, ColumnType, ElementType, StreamType};
use tidemill_spec::units::TimeSpan;

/// The kind `stack`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Stack;

/// Options of `stack`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The column of the tensors.
    column: Located<String>,
    /// Shape of a window, for instance `[76, 32]`: its rows, then the shape of a row.
    shape: Located<Vec<u32>>,
    /// Rows from the start of one window to that of the next. Default: as many as a window has.
    #[serde(default)]
    every: Option<Located<u32>>,
    /// Rows before the first tensor of a sequence, fewer than a window has. Default: 0.
    #[serde(default)]
    before: Option<Located<u32>>,
    /// Value of the rows of `before`. Default: 0.
    #[serde(default)]
    fill: Option<Located<f64>>,
    /// Column whose records follow each other, such as a microphone: text, int64 or bool. Default: all records do.
    #[serde(default)]
    key: Option<Located<String>>,
    /// Time without a record after which the next one starts a sequence. Default: 1h.
    #[serde(default = "hour")]
    reset_after: TimeSpan,
    /// Condition over the columns of the input; a record for which it holds starts a sequence.
    #[serde(default)]
    reset_when: Option<Located<String>>,
    /// Name of the column with the windows. Default: as `column`.
    #[serde(default, rename = "as")]
    name: Option<Located<String>>,
}

fn hour() -> TimeSpan {
    TimeSpan(3_600_000_000_000)
}

impl TypedOperatorKind for Stack {
    type Options = Options;
    const KIND: &'static str = "stack";
    const SUMMARY: &'static str = "Windows of rows over the tensors of successive records.";
    const FACTS: OperatorFacts =
        OperatorFacts { computation: Computation::Stateful, ..OperatorFacts::DEFAULT };

    fn spread(options: &Options) -> Spread {
        Spread::by_group(options.key.as_ref().map(|key| key.value.as_str()))
    }

    fn bind_typed(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: Located<Options>,
    ) -> Result<(StreamType, MakeInstance), Diagnostics> {
        let (port, options) = (&inputs[0], options.value);
        let mut errors = Diagnostics::new();
        let is_tensor = |found: &ColumnType| matches!(found, ColumnType::Tensor { .. });
        let column = port.column(context.id, 0, &options.column, "tensor", is_tensor);
        let column = column.map_err(|error| errors.push(error)).ok();
        let key = options.key.as_ref().and_then(|key| {
            let found = port.column(context.id, 0, key, "text, int64 or bool", is_key_type);
            found.map_err(|error| errors.push(error)).ok()
        });
        let reset_when = options
            .reset_when
            .as_ref()
            .and_then(|text| condition(context, port, text).map_err(|error| errors.push(error)).ok());
        let name = options.name.as_ref().unwrap_or(&options.column);
        if let Some(error) = options.name.as_ref().and_then(|name| declared_name(name).err()) {
            errors.push(error);
        }
        let rows = options.rows().map_err(|error| errors.push(error)).ok();
        let (Some((index, tensors)), Some(rows)) = (column, rows) else { return Err(errors) };
        let ColumnType::Tensor { element, shape } = &tensors.column_type else { return Err(errors) };
        let values: usize = shape.iter().product();
        if values == 0 || !values.is_multiple_of(rows.width) {
            let message = format!(
                "a tensor of `{}` has {values} values, which are no whole number of rows of {}",
                options.column, rows.width
            );
            let help = format!(
                "`{}` is {}: write the rows of a window, then the shape of one row",
                options.column, tensors.column_type
            );
            errors.push(Diagnostic::error("E0606", message).at(options.shape.span.clone()).with_help(help));
        }
        let fill = options.filling(*element, rows.before * rows.width);
        let fill = fill.map_err(|error| errors.push(error)).ok();
        let kept: Vec<usize> = (0..port.stream.columns.len()).filter(|other| *other != index).collect();
        if kept.iter().any(|other| port.stream.columns[*other].name == **name) {
            let message = format!("stack `{}` has two output columns `{name}`", context.id);
            let help = "write another name at `as`";
            errors.push(Diagnostic::error("E0606", message).at(name.span.clone()).with_help(help));
        }
        errors.into_result(())?;
        let Some(fill) = fill else { return Err(Diagnostics::new()) };
        let shape = options.shape.iter().map(|size| *size as usize).collect();
        let windows = Column::new(name.value.clone(), ColumnType::Tensor { element: *element, shape });
        let columns = kept.iter().map(|other| port.stream.columns[*other].clone());
        let output = StreamType::new(columns.chain([windows]));
        let setup = Arc::new(Setup {
            operator: operator_number(context.id),
            column: index,
            key: key.map(|(index, _)| index),
            key_type: key.map_or(ColumnType::Bool, |(_, column)| column.column_type.clone()),
            kept,
            length: rows.rows * rows.width,
            step: rows.every * rows.width,
            width: rows.width,
            fill,
            reset_after: i64::try_from(options.reset_after.0 / 1_000).unwrap_or(i64::MAX),
            reset_when,
            output: record_schema(&output),
        });
        Ok((output, Arc::new(move || Ok(Instance::Stateful(Box::new(Running::new(Arc::clone(&setup))))))))
    }
}

/// Sizes of windows.
struct Rows {
    rows: usize,
    /// Values of a row.
    width: usize,
    every: usize,
    before: usize,
}

impl Options {
    /// Returns the sizes of windows, if there are such windows.
    fn rows(&self) -> Result<Rows, Diagnostic> {
        let wrong = |message: String, at: &Span, help: &str| {
            Err(Diagnostic::error("E0606", message).at(at.clone()).with_help(help))
        };
        let values = self.shape.iter().try_fold(1usize, |values, size| values.checked_mul(*size as usize));
        let (Some(rows), Some(values @ 1..)) = (self.shape.first(), values) else {
            let help = "write its rows, then the shape of a row, as in `[76, 32]`";
            return wrong("a window without values".to_owned(), &self.shape.span, help);
        };
        if values > MOST_VALUES {
            let message = format!("a window of {values} values; at most {MOST_VALUES} are possible");
            return wrong(message, &self.shape.span, "write fewer rows");
        }
        let before = self.before.as_ref().map_or(0, |before| before.value);
        match (&self.every, &self.before) {
            (Some(every), _) if every.value == 0 => {
                let help = "write at least 1";
                wrong("windows that all start with the same row".to_owned(), &every.span, help)
            }
            (_, Some(written)) if before >= *rows => {
                let message = format!("{before} rows before the first tensor fill windows of {rows}");
                wrong(message, &written.span, "write fewer rows than a window has")
            }
            (every, _) => Ok(Rows {
                rows: *rows as usize,
                width: values / *rows as usize,
                every: every.as_ref().map_or(*rows, |every| every.value) as usize,
                before: before as usize,
            }),
        }
    }

    /// Returns the values before the first tensor.
    fn filling(&self, element: ElementType, count: usize) -> Result<ArrayRef, Diagnostic> {
        let value = self.fill.as_ref().map_or(0.0, |fill| fill.value);
        filled(element, value, count).ok_or_else(|| {
            let place = self.fill.as_ref().map(|fill| &fill.span);
            let place =
                place.or(self.before.as_ref().map(|before| &before.span)).unwrap_or(&self.column.span);
            let message = format!(
                "rows before the first tensor cannot have the value {value}: its values are {element}"
            );
            let help = match element {
                ElementType::Text | ElementType::Bool => "leave `before` and `fill` out",
                _ => "write a number that this type has",
            };
            Diagnostic::error("E0606", message).at(place.clone()).with_help(help)
        })
    }
}

/// Values that are all equal; `None` if the type does not have this one.
fn filled(element: ElementType, value: f64, count: usize) -> Option<ArrayRef> {
    fn all<T: ArrowPrimitiveType>(value: Option<T::Native>, count: usize) -> Option<ArrayRef> {
        Some(Arc::new(PrimitiveArray::<T>::from_value(value?, count)))
    }
    let whole = || (value.fract() == 0.0 && value.abs() <= 9e15).then_some(value as i64);
    match element {
        ElementType::Float32 => all::<Float32Type>(Some(value as f32), count),
        ElementType::Float16 => all::<Float16Type>(Some(f16::from_f64(value)), count),
        ElementType::Float64 => all::<Float64Type>(Some(value), count),
        ElementType::Int64 => all::<Int64Type>(whole(), count),
        ElementType::Int32 => all::<Int32Type>(whole()?.try_into().ok(), count),
        ElementType::Int8 => all::<Int8Type>(whole()?.try_into().ok(), count),
        ElementType::Uint8 => all::<UInt8Type>(whole()?.try_into().ok(), count),
        ElementType::Bool | ElementType::Text if count > 0 || value != 0.0 => None,
        ElementType::Bool => Some(arrow_array::new_empty_array(&arrow_schema::DataType::Boolean)),
        ElementType::Text => Some(arrow_array::new_empty_array(&arrow_schema::DataType::Utf8)),
    }
}

/// Reads the condition under which a record starts a sequence.
fn condition(
    context: &OperatorContext<'_>,
    port: &InputPort,
    text: &Located<String>,
) -> Result<Expression, Diagnostic> {
    let compiled = Expression::compile(text, &port.stream)
        .map_err(|error| expression_diagnostic(error, context.id, port, &text.span))?;
    if compiled.result() == Some(ColumnType::Bool) {
        return Ok(compiled);
    }
    let found = compiled.result().map_or("null".into(), |found| found.to_string());
    let message = format!("`reset_when` of `{}` must be a bool, `{text}` is {found}", context.id);
    let help = "write a comparison, such as `start == 0.0`";
    Err(Diagnostic::error("E0607", message).at(text.span.clone()).with_help(help))
}

#[cfg(test)]
#[path = "stack_tests.rs"]
mod tests;
