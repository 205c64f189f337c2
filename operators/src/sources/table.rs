//! Files with one record a line: what `csv` and `jsonl` have in common.
use super::lines::{Found, Lines, Place};
use crate::api::{BoundSource, DeadLetter, OperatorError, Source, SourcePosition, SourceRead};
use crate::columns::{ScalarBuilder, ScalarType, declared_name};
use crate::kind::EndContext;
use crate::record::{EventTime, payload_schema};
use crate::relational::expression::Cell;
use crate::values::{Values, shortened};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::units::{Bytes, TimeSpan};
use tidemill_spec::value::{Node, Value};

/// Largest `max_line` that can be asked for.
const LINE_LIMIT: u64 = 256 << 20;
/// Most bytes of one read, far below the 2 GiB that the offsets of a column can count.
const READ_LIMIT: usize = 512 << 20;
/// Characters of a record that its dead letter shows.
const RECORD_SHOWN: usize = 240;

/// Options of both kinds.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Options {
    /// The file, relative to the workflow file.
    pub(super) path: Located<String>,
    /// Columns to read, each with its type: int64, float64, text or bool.
    #[schemars(with = "BTreeMap<String, ScalarType>")]
    pub(super) columns: Value,
    /// Column with the event time, of type int64 or float64. Default: none; record number i has the time
    /// i / `rate`, or i milliseconds without a rate.
    #[serde(default)]
    pub(super) event_time: Option<Located<String>>,
    /// Unit of the event time, counted from 1970: s, ms or us. Default: ms.
    #[serde(default)]
    pub(super) time_unit: TimeUnit,
    /// How much earlier than the newest event time a record may still come. Default: 0s.
    #[serde(default)]
    pub(super) out_of_order: TimeSpan,
    /// Longest record; longer ones are skipped. Default: 8MiB.
    #[serde(default = "default_max_line")]
    pub(super) max_line: Bytes,
}

fn default_max_line() -> Bytes {
    Bytes(8 << 20)
}

/// Unit of event times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum TimeUnit {
    /// Seconds.
    S,
    /// Milliseconds.
    #[default]
    Ms,
    /// Microseconds.
    Us,
}

impl TimeUnit {
    fn microseconds(self) -> i64 {
        match self {
            TimeUnit::S => 1_000_000,
            TimeUnit::Ms => 1000,
            TimeUnit::Us => 1,
        }
    }
}

/// One value, before it is known whether the whole record is good.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Field {
    Null,
    Int(i64),
    Float(f64),
    Bool(bool),
    /// Bytes of the record's own text.
    Text(String),
}

/// Why a record cannot be used: stable reason, detail.
pub(super) type Refusal = (&'static str, String);

/// Turns the text of one record into fields.
pub(super) trait Format: Send {
    /// Reads what stands before the first record (a header), if anything; an error is what is wrong and the fix.
    fn start(&mut self, lines: &mut Lines, columns: &[Column]) -> Result<(), (String, String)>;
    /// The fields of the declared columns, in order.
    fn parse(&mut self, record: &[u8], columns: &[Column], fields: &mut Vec<Field>) -> Result<(), Refusal>;
}

/// A file with its options.
pub(super) struct Table {
    pub(super) path: PathBuf,
    pub(super) columns: Vec<Column>,
    limit: usize,
    /// Position of the event time column and microseconds of its unit.
    time: Option<(usize, i64)>,
}

/// Checks the options and the beginning of the file. `quotes`: line breaks may stand between quotes.
pub(super) fn bind<F: Format + 'static>(
    kind: &str,
    context: &EndContext<'_>,
    options: &Options,
    quotes: bool,
    format: impl Fn() -> F + Send + Sync + 'static,
) -> Result<BoundSource, Diagnostics> {
    let columns = declared_columns(&options.columns)?;
    let mut time = None;
    if let Some(name) = &options.event_time {
        let names = columns.iter().map(|c| c.name.as_str());
        match columns.iter().position(|c| c.name == name.value) {
            None => {
                return Err(Diagnostic::error(
                    "E0605",
                    format!("`event_time` names no declared column: `{name}`"),
                )
                .at(name.span.clone())
                .with_help(suggestion(name, names, "declared columns"))
                .into());
            }
            Some(index) if !matches!(columns[index].column_type, ColumnType::Int64 | ColumnType::Float64) => {
                let message = format!(
                    "event time `{name}` is {}, expected int64 or float64",
                    columns[index].column_type
                );
                return Err(Diagnostic::error("E0606", message)
                    .at(name.span.clone())
                    .with_help(format!("declare it `{name}: int64` and say its unit with `time_unit`"))
                    .into());
            }
            Some(index) => time = Some((index, options.time_unit.microseconds())),
        }
    }
    let output = StreamType::new(columns.clone());
    let limit = options.max_line.0.clamp(1, LINE_LIMIT) as usize;
    let table = Arc::new(Table { path: context.path(&options.path), columns, limit, time });
    let may_wait = std::fs::metadata(&table.path).is_ok_and(|file| !file.is_file());
    let schema = payload_schema(&output);
    let make = {
        let table = Arc::clone(&table);
        move || Reader::open(&table, &schema, quotes, format())
    };
    make().map_err(|(message, help)| {
        Diagnostic::error("E0609", format!("source `{}`: {message}", context.id))
            .at(options.path.span.clone())
            .with_help(help)
    })?;
    Ok(BoundSource {
        id: context.id.value.clone(),
        kind: kind.into(),
        output,
        key: None,
        rate_per_second: None,
        out_of_order_microseconds: i64::try_from(options.out_of_order.0.div_ceil(1000)).unwrap_or(i64::MAX),
        live: false,
        may_wait,
        make: Arc::new(move || match make() {
            Ok(reader) => Ok(Box::new(reader) as Box<dyn Source>),
            Err((message, help)) => Err(OperatorError::new(format!("{message}: {help}"))),
        }),
    })
}

fn declared_columns(value: &Value) -> Result<Vec<Column>, Diagnostics> {
    let Node::Map(entries) = &value.node else {
        return Err(value
            .error("E0606", format!("`columns` is {}, expected a map", value.kind()))
            .with_help("write `columns: {name: text, temperature: float64}`")
            .into());
    };
    let mut errors = Diagnostics::new();
    let mut columns = Vec::new();
    for entry in entries {
        if let Err(error) = declared_name(&entry.key) {
            errors.push(error);
        }
        match entry.value.deserialize_into::<ScalarType>() {
            Ok(scalar) => columns.push(Column::new(entry.key.value.clone(), scalar.into())),
            Err(found) => errors.append(found),
        }
    }
    if entries.is_empty() {
        errors.push(
            value
                .error("E0606", "no columns are declared")
                .with_help("write `columns: {name: text, temperature: float64}`"),
        );
    }
    errors.into_result(columns)
}

struct Reader<F> {
    table: Arc<Table>,
    schema: SchemaRef,
    lines: Lines,
    format: F,
    record: Vec<u8>,
    fields: Vec<Field>,
}

impl<F: Format> Reader<F> {
    fn open(
        table: &Arc<Table>,
        schema: &SchemaRef,
        quotes: bool,
        mut format: F,
    ) -> Result<Self, (String, String)> {
        let shown = table.path.display();
        let mut lines =
            Lines::open(&table.path, table.limit, quotes).map_err(|error| match error.kind() {
                ErrorKind::NotFound => (
                    format!("the file `{shown}` does not exist"),
                    super::missing_help(&table.path, "write a path relative to the workflow file"),
                ),
                ErrorKind::PermissionDenied => (
                    format!("the file `{shown}` cannot be read: permission denied"),
                    format!("allow reading, for instance with `chmod u+r {shown}`"),
                ),
                ErrorKind::IsADirectory => {
                    (format!("`{shown}` is a folder"), "write the path of a file in it".to_owned())
                }
                _ => (
                    format!("the file `{shown}` cannot be read: {error}"),
                    "check the path and the disk".to_owned(),
                ),
            })?;
        format
            .start(&mut lines, &table.columns)
            .map_err(|(what, help)| (format!("`{shown}`: {what}"), help))?;
        Ok(Self {
            table: Arc::clone(table),
            schema: Arc::clone(schema),
            lines,
            format,
            record: Vec::new(),
            fields: Vec::new(),
        })
    }

    fn broken(&self, error: &dyn std::fmt::Display) -> OperatorError {
        OperatorError::new(format!("`{}` cannot be read: {error}", self.table.path.display()))
    }

    /// Parses the record in `self.record` into `self.fields`; gives its event time.
    fn parse(&mut self) -> Result<EventTime, Refusal> {
        self.fields.clear();
        self.format.parse(&self.record, &self.table.columns, &mut self.fields)?;
        let Some((index, unit)) = self.table.time else { return Ok(0) };
        let name = &self.table.columns[index].name;
        match self.fields[index] {
            Field::Int(value) => value
                .checked_mul(unit)
                .filter(|time| *time < EventTime::MAX)
                .ok_or_else(|| ("bad_value", format!("event time `{name}` = {value} is out of range"))),
            Field::Float(value) if (value * unit as f64).abs() < 9e18 => {
                Ok((value * unit as f64).round() as i64)
            }
            Field::Float(value) => {
                Err(("bad_value", format!("event time `{name}` = {value} is out of range")))
            }
            _ => Err(("bad_value", format!("event time `{name}` is empty"))),
        }
    }
}

impl<F: Format> Source for Reader<F> {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        let table = Arc::clone(&self.table);
        let mut builders: Vec<ScalarBuilder> =
            table.columns.iter().map(|c| ScalarBuilder::new(&c.column_type, rows.min(4096))).collect();
        let (mut times, mut offsets, mut dead_letters) = (Vec::new(), Vec::new(), Vec::new());
        let (mut records, mut size) = (0usize, 0usize);
        while records < rows.max(1) && (records == 0 || size < bytes.min(READ_LIMIT)) {
            let mut record = std::mem::take(&mut self.record);
            let found = self.lines.next(&mut record);
            self.record = record;
            let (line, parsed) = match found.map_err(|e| self.broken(&e))? {
                Found::End if records == 0 => return Ok(SourceRead::End),
                Found::End => break,
                Found::TooLong(line) => {
                    let detail = format!("the record has more than {} bytes", table.limit);
                    (line, Err(("line_too_long", detail)))
                }
                Found::Record(line) => (line, self.parse()),
            };
            match parsed {
                Ok(time) => {
                    size += self.record.len();
                    for (builder, field) in builders.iter_mut().zip(&self.fields) {
                        let cell = match field {
                            Field::Null => Cell::Null,
                            Field::Int(value) => Cell::Int(*value),
                            Field::Float(value) => Cell::Float(*value),
                            Field::Bool(value) => Cell::Bool(*value),
                            Field::Text(text) => Cell::Text(text),
                        };
                        builder.append_cell(cell).map_err(|e| self.broken(&e))?;
                    }
                    times.push(time);
                    offsets.push(records as u64);
                }
                Err((reason, detail)) => {
                    let name = table.path.file_name().unwrap_or_default().to_string_lossy();
                    let detail = format!("{name}, line {line}: {detail}");
                    let text = shortened(
                        &String::from_utf8_lossy(&self.record[..self.record.len().min(4 * RECORD_SHOWN)]),
                        RECORD_SHOWN,
                    );
                    let values = Values::from_iter([("record".to_owned(), text.trim_end().into())]);
                    dead_letters.push(DeadLetter { id: None, time: None, reason, detail, values });
                }
            }
            records += 1;
        }
        let columns = builders.iter_mut().map(ScalarBuilder::finish).collect();
        let payload = RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(|e| self.broken(&e))?;
        let offsets = (!dead_letters.is_empty()).then_some(offsets);
        Ok(SourceRead::Rows { payload, times: table.time.map(|_| times), dead_letters, offsets })
    }

    fn position(&self) -> SourcePosition {
        let place = self.lines.place();
        SourcePosition(format!("{}:{}", place.offset, place.line))
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        let place = position.0.split_once(':').and_then(|(offset, line)| {
            Some(Place { offset: offset.parse().ok()?, line: line.parse().ok()? })
        });
        let Some(place) = place else {
            return Err(OperatorError::new(format!("`{}` is no position in a file", position.0)));
        };
        self.lines.seek(place).map_err(|e| self.broken(&e))
    }
}

/// A number, bool or text of a column's type from text.
pub(super) fn from_text(text: &str, column: &Column) -> Result<Field, Refusal> {
    let trimmed = text.trim();
    let wrong = || {
        ("bad_value", format!("column `{}`: `{}` is no {}", column.name, shorten(text), column.column_type))
    };
    match &column.column_type {
        ColumnType::Text => Ok(Field::Text(text.to_owned())),
        _ if trimmed.is_empty() => Ok(Field::Null),
        ColumnType::Int64 => trimmed.parse().map(Field::Int).map_err(|_| wrong()),
        ColumnType::Float64 => trimmed.parse().map(Field::Float).map_err(|_| wrong()),
        _ if trimmed.eq_ignore_ascii_case("true") || trimmed == "1" => Ok(Field::Bool(true)),
        _ if trimmed.eq_ignore_ascii_case("false") || trimmed == "0" => Ok(Field::Bool(false)),
        _ => Err(wrong()),
    }
}

/// The beginning of a text, for messages.
pub(super) fn shorten(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
