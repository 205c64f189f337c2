//! Files with one record per line: the common part of `csv` and `jsonl`.
pub(super) mod growing;
mod options;
mod whole;

pub(crate) use whole::{Form, Whole, WholeError, read_whole};

pub(super) use options::{Options, have_event_time};

use super::cells::Refusal;
use super::event_time::EventTimes;
use super::input::Origin;
use super::jump;
use super::lines::{Lines, NextLine, Place};
use crate::api::{
    BoundSource, DeadLetter, JournalledReading, MakeSource, OperatorError, Source, SourceInput,
    SourcePosition, SourceRead,
};
use crate::columns::{DeclaredType, ScalarBuilder, declared_name, tensor};
use crate::kind::EndContext;
use crate::record::{EventTime, payload_schema};
use crate::relational::expression::Cell;
use crate::values::{Values, shortened};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_journal::Journal;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::types::{Column, ElementType, StreamType};
use tidemill_spec::units::TimeSpan;
use tidemill_spec::value::{Node, Value};

/// Largest accepted `max_line`.
const LINE_LIMIT: u64 = 256 << 20;
/// Most bytes of one read, far below the 2 GiB limit of offsets in a column.
const READ_LIMIT: usize = 512 << 20;
/// Characters of a record in its dead letter.
const RECORD_SHOWN: usize = 240;

/// The values of one record, before the whole record is known to be good.
#[derive(Default)]
pub(super) struct Fields {
    /// Each value with the end of its text in `texts` or of its tensor in `tensors`, if it is one.
    values: Vec<(Cell<'static>, usize, usize)>,
    texts: String,
    tensors: Vec<u8>,
}

impl Fields {
    pub(super) fn clear(&mut self) {
        self.values.clear();
        self.texts.clear();
        self.tensors.clear();
    }

    pub(super) fn push(&mut self, value: Cell<'_>) {
        let kept = match value {
            Cell::Null => Cell::Null,
            Cell::Bool(value) => Cell::Bool(value),
            Cell::Int(value) => Cell::Int(value),
            Cell::Float(value) => Cell::Float(value),
            Cell::Text(text) => {
                self.texts.push_str(text);
                Cell::Text("")
            }
            Cell::Tensor(bytes) => {
                self.tensors.extend_from_slice(bytes);
                Cell::Tensor(&[])
            }
        };
        self.values.push((kept, self.texts.len(), self.tensors.len()));
    }

    /// Adds a tensor that is written as a JSON list; an error is a message that follows the list.
    pub(super) fn push_list(
        &mut self,
        json: &str,
        element: ElementType,
        shape: &[usize],
    ) -> Result<(), String> {
        tensor::read_list(json, element, shape, &mut self.tensors)?;
        self.values.push((Cell::Tensor(&[]), self.texts.len(), self.tensors.len()));
        Ok(())
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.texts.len() + self.tensors.len() + self.values.len() * size_of::<(Cell<'static>, usize, usize)>()
    }

    /// Returns the value of a column.
    pub(super) fn get(&self, place: usize) -> Cell<'_> {
        let (text, list) = match place {
            0 => (0, 0),
            _ => (self.values[place - 1].1, self.values[place - 1].2),
        };
        match self.values[place] {
            (Cell::Text(_), end, _) => Cell::Text(&self.texts[text..end]),
            (Cell::Tensor(_), _, end) => Cell::Tensor(&self.tensors[list..end]),
            (value, ..) => value,
        }
    }

    /// The values in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Cell<'_>> {
        (0..self.values.len()).map(|place| self.get(place))
    }
}

/// Turns the text of one record into fields.
pub(super) trait Format: Send {
    /// Reads the header, if any; an error is a message with advice.
    fn start(&mut self, lines: &mut Lines, columns: &[Column]) -> Result<(), (String, String)>;
    /// Parses the fields of the declared columns, in order.
    fn parse(&mut self, record: &[u8], columns: &[Column], fields: &mut Fields) -> Result<(), Refusal>;
}

/// The input, with its options.
#[derive(Clone)]
struct Table {
    origin: Origin,
    columns: Vec<Column>,
    limit: usize,
    /// Whether quoted fields may contain line breaks.
    quotes: bool,
    /// The event times, if any.
    time: Option<EventTimes>,
    /// Microseconds.
    max_jump: Option<i64>,
    /// Least bytes of memory of a row.
    fixed_bytes: usize,
}

impl Table {
    /// Checks the options.
    fn of(options: &Options, quotes: bool, origin: Origin) -> Result<Self, Diagnostics> {
        let columns = declared_columns(&options.columns)?;
        let time = EventTimes::of_options(options, &columns)?;
        let limit = options.max_line.0.clamp(1, LINE_LIMIT) as usize;
        let least = microseconds(options.out_of_order);
        let max_jump = options.max_jump.0.map(|span| microseconds(span).max(least));
        let fixed_bytes = columns.iter().map(|column| tensor::fixed_bytes(&column.column_type)).sum();
        Ok(Self { origin, columns, limit, quotes, time, max_jump, fixed_bytes })
    }

    /// Returns a copy that is read through a journal.
    fn journalled(&self, journal: Arc<Journal>) -> Self {
        Self { origin: self.origin.journalled(journal), ..self.clone() }
    }

    /// The name of the input in messages.
    fn shown(&self) -> String {
        match self.origin.stream() {
            Some(stream) => stream.to_owned(),
            None => format!("`{}`", self.origin.path().display()),
        }
    }

    /// The name of the input in dead letters.
    fn name(&self) -> String {
        match self.origin.stream() {
            Some(name) if name == "standard input" || self.origin.is_received() => name.to_owned(),
            _ => self.origin.path().file_name().unwrap_or_default().to_string_lossy().into_owned(),
        }
    }

    /// Parses a record into `fields`; returns its event time.
    fn parse(
        &self,
        format: &mut impl Format,
        record: &[u8],
        fields: &mut Fields,
    ) -> Result<EventTime, Refusal> {
        fields.clear();
        format.parse(record, &self.columns, fields)?;
        let Some(times) = self.time else { return Ok(0) };
        times.of(&self.columns[times.column].name, fields.get(times.column))
    }

    /// Warns once about doubtful event times, by the first row.
    fn doubt(&self, fields: &Fields) {
        let Some(times) = self.time else { return };
        if let Some(doubt) = times.doubt(&self.columns[times.column].name, fields.get(times.column)) {
            tracing::warn!("{}: {doubt}", self.shown());
        }
    }
}

/// Checks the options and the start of the file. `quotes`: quoted fields may contain line breaks.
pub(super) fn bind<F: Format + 'static>(
    kind: &str,
    context: &EndContext<'_>,
    options: &Options,
    quotes: bool,
    format: impl Fn() -> F + Send + Sync + 'static,
) -> Result<BoundSource, Diagnostics> {
    let path = context.path(&options.path);
    let origin = match options.stream {
        Some(lasts) if !super::input::is_standard_input(&options.path) => Origin::named(path, lasts),
        _ if context.opens() => Origin::of(&options.path, path),
        _ => Origin::assumed(&options.path, path),
    };
    bind_origin(kind, context, options, quotes, format, origin)
}

/// Binds as [`bind`] with this origin, ignoring the path of the options.
pub(super) fn bind_origin<F: Format + 'static>(
    kind: &str,
    context: &EndContext<'_>,
    options: &Options,
    quotes: bool,
    format: impl Fn() -> F + Send + Sync + 'static,
    origin: Origin,
) -> Result<BoundSource, Diagnostics> {
    let table = Arc::new(Table::of(options, quotes, origin)?);
    let output = StreamType::new(table.columns.clone());
    let out_of_order = microseconds(options.out_of_order);
    let stream = table.origin.stream().map(str::to_owned);
    let has_event_times = table.time.is_some();
    let path = table.origin.path().to_owned();
    let schema = payload_schema(&output);
    let written: Arc<str> = options.path.value.as_str().into();
    let format = Arc::new(format);
    let journalled = stream.is_some().then(|| {
        let unread = table.origin.unread();
        let (table, schema, written, format) =
            (Arc::clone(&table), Arc::clone(&schema), Arc::clone(&written), Arc::clone(&format));
        let make = move |journal| {
            let table = Arc::new(table.journalled(journal));
            let (schema, written, format) = (Arc::clone(&schema), Arc::clone(&written), Arc::clone(&format));
            let make: MakeSource =
                Arc::new(move || match Reader::open(&table, &schema, &written, format()) {
                    Ok(reader) => Ok(Box::new(reader) as Box<dyn Source>),
                    Err((message, help)) => Err(OperatorError::new(format!("{message}: {help}"))),
                });
            make
        };
        let place = |position: &SourcePosition| Some(parse_position(&position.0)?.0.offset);
        JournalledReading { make: Arc::new(make), place, unread }
    });
    let make = move || Reader::open(&table, &schema, &written, format());
    // A stream can be read only once, by the run.
    if stream.is_none() && context.opens() {
        make().map_err(|(message, help)| {
            Diagnostic::error("E0609", format!("source `{}`: {message}", context.id))
                .at(options.path.span.clone())
                .with_help(help)
        })?;
    }
    let (taken, once) = (AtomicBool::new(false), stream.clone());
    let input = stream.is_none().then(|| SourceInput::File { path, may_grow: true });
    let make: MakeSource = Arc::new(move || {
        if let Some(stream) = &once
            && taken.swap(true, Ordering::AcqRel)
        {
            return Err(OperatorError::new(format!(
                "{stream} can be read only once, but is needed a second time (after a restart, or by a plan \
                     with several stages of the source): save it as a file"
            )));
        }
        match make() {
            Ok(reader) => Ok(Box::new(reader) as Box<dyn Source>),
            Err((message, help)) => Err(OperatorError::new(format!("{message}: {help}"))),
        }
    });
    Ok(BoundSource {
        out_of_order_microseconds: out_of_order,
        has_event_times,
        stream,
        journalled,
        input,
        ..context.source(kind, output, make)
    })
}

fn microseconds(span: TimeSpan) -> i64 {
    i64::try_from(span.0.div_ceil(1000)).unwrap_or(i64::MAX)
}

/// Columns of a map of names and types.
pub(crate) fn declared_columns(value: &Value) -> Result<Vec<Column>, Diagnostics> {
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
        match DeclaredType::of(&entry.value) {
            Ok(declared) => columns.push(Column::new(entry.key.value.clone(), declared.0)),
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
    fields: Fields,
    /// Newest event time so far, if there are any.
    newest: Option<EventTime>,
    /// Failure after the last returned records.
    failed: Option<OperatorError>,
    /// Whether more records than the last ones returned would have required waiting.
    has_caught_up: bool,
    /// Bytes of the last returned records.
    sizes: Vec<u32>,
}

impl<F: Format> Reader<F> {
    /// `written`: the path in the workflow. An error is a message with advice.
    fn open(
        table: &Arc<Table>,
        schema: &SchemaRef,
        written: &str,
        mut format: F,
    ) -> Result<Self, (String, String)> {
        let shown = table.shown();
        let path = table.origin.path();
        let mut lines =
            Lines::open(&table.origin, table.limit, table.quotes).map_err(|error| match error.kind() {
                ErrorKind::NotFound => (
                    format!("the file {shown} does not exist"),
                    super::missing_help(written, path, "write a path relative to the workflow file"),
                ),
                ErrorKind::PermissionDenied => (
                    format!("cannot read the file {shown}: permission denied"),
                    format!("allow reading, for instance with `chmod u+r {}`", path.display()),
                ),
                ErrorKind::IsADirectory => {
                    (format!("{shown} is a folder"), "write the path of a file in it".to_owned())
                }
                // This error has its own advice.
                _ if tidemill_journal::is_of_loss(&error.to_string()) => {
                    (format!("{shown} cannot be read"), error.to_string())
                }
                _ => (format!("cannot read {shown}: {error}"), "check the path and the disk".to_owned()),
            })?;
        format
            .start(&mut lines, &table.columns)
            .map_err(|(what, help)| (format!("{shown}: {what}"), help))?;
        let kept = lines.keep_beginning();
        kept.map_err(|error| (format!("{shown}: {error}"), "check the disk of the state".to_owned()))?;
        Ok(Self {
            table: Arc::clone(table),
            schema: Arc::clone(schema),
            lines,
            format,
            fields: Fields::default(),
            newest: None,
            has_caught_up: false,
            failed: None,
            sizes: Vec::new(),
        })
    }

    fn broken(&self, error: &dyn std::fmt::Display) -> OperatorError {
        OperatorError::new(format!("cannot read {}: {error}", self.table.shown()))
    }

    /// Refuses a time that is too far ahead unless the next good record confirms it. An error: that record is not there
    /// yet, and the last one found is put back.
    fn check_jump(&mut self, time: EventTime) -> std::io::Result<Result<(), Refusal>> {
        let (Some(EventTimes { column: index, .. }), Some(most)) = (self.table.time, self.table.max_jump)
        else {
            return Ok(Ok(()));
        };
        // The first record is compared with the next one, without waiting for it.
        let is_settled = match self.newest {
            Some(newest) => !jump::is_jump(newest, time, most),
            None => self.table.origin.comes_in_time(),
        };
        if is_settled {
            return Ok(Ok(()));
        }
        let mut next = None;
        let mut fields = Fields::default();
        self.lines.hold();
        for _ in 0..jump::LOOK_AHEAD {
            // Held records stay in memory.
            if self.lines.ahead() > self.table.limit {
                break;
            }
            match self.lines.next() {
                Ok(NextLine::Record(_)) => {
                    next = self.table.parse(&mut self.format, self.lines.record(), &mut fields).ok();
                }
                Ok(NextLine::OpenQuote { .. }) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.lines.release();
                    self.lines.put_back();
                    return Err(error);
                }
                // The failure is repeated when its record is read.
                Ok(NextLine::TooLong(_) | NextLine::End) | Err(_) => break,
            }
            if next.is_some() {
                break;
            }
        }
        self.lines.release();
        let known = match (self.newest, next) {
            (Some(newest), Some(next)) if !jump::confirms(newest, time, next, most) => newest,
            (None, Some(next)) if jump::is_jump(next, time, most) => next,
            _ => return Ok(Ok(())),
        };
        let column = &self.table.columns[index].name;
        Ok(Err(("time_jump", jump::explain(column, known, time, most, self.newest.is_none()))))
    }

    /// Reads the next record: its line, and its event time or refusal; `None` at the end.
    fn next(&mut self) -> std::io::Result<Option<(u64, Result<EventTime, Refusal>)>> {
        Ok(match self.lines.next()? {
            NextLine::End => None,
            NextLine::TooLong(line) => {
                let detail = format!("the record has more than {} bytes", self.table.limit);
                Some((line, Err(("line_too_long", detail))))
            }
            NextLine::OpenQuote { line, quote } => {
                let place = if quote == line { "here".to_owned() } else { format!("in line {quote}") };
                let detail = format!(
                    "a quoted field opens {place} and is not closed: the line is skipped; write a quote \
                     within a field twice, and quotes around the field"
                );
                Some((line, Err(("open_quote", detail))))
            }
            NextLine::Record(line) => {
                let parsed = self.table.parse(&mut self.format, self.lines.record(), &mut self.fields);
                let checked = match parsed {
                    Ok(time) => self.check_jump(time)?.map(|()| time),
                    Err(refusal) => Err(refusal),
                };
                Some((line, checked))
            }
        })
    }
}

impl<F: Format> Source for Reader<F> {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let table = Arc::clone(&self.table);
        let mut builders: Vec<ScalarBuilder> =
            table.columns.iter().map(|c| ScalarBuilder::new(&c.column_type, rows.min(4096))).collect();
        let (mut times, mut offsets, mut dead_letters) = (Vec::new(), Vec::new(), Vec::new());
        let (mut records, mut size) = (0usize, 0usize);
        self.sizes.clear();
        self.has_caught_up = false;
        while records < rows.max(1) && (records == 0 || size < bytes.min(READ_LIMIT)) {
            // Records already received from a pipe do not wait for later ones.
            self.lines.allow_waiting(records == 0 || !table.origin.comes_in_time());
            let (line, parsed) = match self.next() {
                Ok(Some(found)) => found,
                Ok(None) if records == 0 => return Ok(SourceRead::End),
                Ok(None) => break,
                Err(error) if records == 0 && error.kind() == ErrorKind::WouldBlock => {
                    return Ok(SourceRead::Idle { watermark: EventTime::MIN });
                }
                Err(error) if records == 0 => return Err(self.broken(&error)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.has_caught_up = true;
                    break;
                }
                Err(error) => {
                    self.failed = Some(self.broken(&error));
                    break;
                }
            };
            self.sizes.push(u32::try_from(self.lines.record().len() + 1).unwrap_or(u32::MAX));
            match parsed {
                Ok(time) => {
                    // An empty tensor takes as much memory as any other.
                    size += self.lines.record().len().max(table.fixed_bytes);
                    for (builder, cell) in builders.iter_mut().zip(self.fields.iter()) {
                        builder.append_cell(cell).map_err(|e| self.broken(&e))?;
                    }
                    if table.time.is_some() {
                        if self.newest.is_none() {
                            table.doubt(&self.fields);
                        }
                        self.newest = self.newest.max(Some(time));
                    }
                    times.push(time);
                    offsets.push(records as u64);
                }
                Err((reason, detail)) => {
                    let detail = format!("{}, line {line}: {detail}", table.name());
                    let record = self.lines.record();
                    let text = shortened(
                        &String::from_utf8_lossy(&record[..record.len().min(4 * RECORD_SHOWN)]),
                        RECORD_SHOWN,
                    );
                    let values = Values::from_iter([("record".to_owned(), text.trim_end().into())]);
                    dead_letters.push(DeadLetter {
                        id: None,
                        time: None,
                        reason: reason.into(),
                        detail,
                        values,
                    });
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
        let Place { offset, line, open_until } = self.lines.place();
        let mut text = format!("{offset}:{line}");
        if open_until > 0 {
            text.push_str(&format!(":open={open_until}"));
        }
        if let Some(newest) = self.newest {
            text.push_str(&format!(":newest={newest}"));
        }
        SourcePosition(text)
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        let Some((place, newest)) = parse_position(&position.0) else {
            return Err(OperatorError::new(format!("`{}` is not a position in a file", position.0)));
        };
        self.lines.seek(place).map_err(|e| self.broken(&e))?;
        (self.newest, self.failed) = (newest, None);
        Ok(())
    }

    fn replayable(&self) -> bool {
        self.table.origin.stream().is_none()
    }

    fn has_caught_up(&self) -> bool {
        self.has_caught_up
    }

    fn journal(&self) -> Option<Arc<Journal>> {
        self.table.origin.journal().cloned()
    }

    fn sizes(&self) -> Option<&[u32]> {
        // The size of one read from a stream is arbitrary.
        self.table.origin.comes_in_time().then_some(self.sizes.as_slice())
    }
}

/// Parses `offset:line`, followed by optional `open=` and `newest=`.
fn parse_position(text: &str) -> Option<(Place, Option<EventTime>)> {
    let mut parts = text.split(':');
    let (offset, line) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let mut place = Place { offset, line, open_until: 0 };
    let mut newest = None;
    for part in parts {
        match part.split_once('=')? {
            ("open", value) => place.open_until = value.parse().ok()?,
            ("newest", value) => newest = Some(value.parse().ok()?),
            _ => return None,
        }
    }
    Some((place, newest))
}
