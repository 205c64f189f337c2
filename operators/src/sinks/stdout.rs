//! `stdout`: rows on the terminal or into a pipe.
//!
//! ```yaml
//! - {id: show, kind: stdout, input: answer, options: {columns: [key, answer], format: table}}
//! ```
//! `format: jsonl` (default) writes one JSON object a line, `format: table` a header and columns between tabs. Rows
//! are written at once, a line at a time: after a restart rows may come again, with the same `_id` (`metadata: true`).
//! A reader that has seen enough (`| head`) is no failure: nothing is written any more, and a run all of whose sinks
//! are in that state ends.
//!
//! ```
//! use tidemill_operators::kind::{EndContext, InputPort};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::Span, types::StreamType, value::Value};
//! let port = InputPort { from: "answer".into(), stream: StreamType::default(), span: Span::nowhere() };
//! let id = "show".into();
//! let context = EndContext { id: &id, base: std::path::Path::new(".") };
//! let sink = Registry::builtin().sink("stdout").unwrap().bind(&context, &port, &Value::empty_map()).unwrap();
//! assert!(!(sink.make)().unwrap().exactly_once());
//! ```
use super::jsonl::JsonLines;
use super::rows::Rows;
use super::text_file::TextFormat;
use crate::api::{BoundSink, OperatorError, Sink};
use crate::kind::{EndContext, InputPort, TypedSinkKind};
use arrow_array::RecordBatch;
use schemars::JsonSchema;
use serde::Deserialize;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::span::Located;

/// The kind `stdout`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Stdout;

/// Options of `stdout`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// jsonl or table. Default: jsonl.
    #[serde(default)]
    format: Format,
    /// Columns to write, in this order. Default: all.
    #[serde(default)]
    columns: Option<Vec<Located<String>>>,
    /// Whether `_id` and `_time` (event time, microseconds) are written too. Default: false.
    #[serde(default)]
    metadata: bool,
}

/// How rows look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Format {
    /// One JSON object a line.
    #[default]
    Jsonl,
    /// A header, then columns between tabs.
    Table,
}

impl Format {
    fn text(self) -> Box<dyn TextFormat> {
        match self {
            Format::Jsonl => Box::new(JsonLines),
            Format::Table => Box::new(TabSeparated),
        }
    }
}

impl TypedSinkKind for Stdout {
    type Options = Options;
    const KIND: &'static str = "stdout";
    const SUMMARY: &'static str = "Rows on the terminal or into a pipe.";

    fn bind_typed(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: Options,
    ) -> Result<BoundSink, Diagnostics> {
        let rows = Rows::choose(context, input, options.columns.as_deref(), options.metadata)?;
        let make = move || {
            let printer = Printer::new(rows.clone(), options.format, Box::new(io::stdout()));
            Ok(Box::new(printer) as Box<dyn Sink>)
        };
        Ok(context.sink(Self::KIND, input, Vec::new(), Arc::new(make)))
    }
}

/// A header line, then columns between tabs.
struct TabSeparated;

impl TextFormat for TabSeparated {
    fn header(&self, rows: &Rows, out: &mut Vec<u8>) -> Result<(), OperatorError> {
        out.extend(rows.names().collect::<Vec<_>>().join("\t").as_bytes());
        out.push(b'\n');
        Ok(())
    }

    fn append(&self, rows: &Rows, batch: &RecordBatch, out: &mut Vec<u8>) -> Result<(), OperatorError> {
        for row in 0..batch.num_rows() {
            let mut first = true;
            rows.fields(batch, row, |field| {
                if !std::mem::take(&mut first) {
                    out.push(b'\t');
                }
                // One row stays one line, whatever is in it.
                out.extend(field.iter().map(|b| if b.is_ascii_control() { b' ' } else { *b }));
                Ok(())
            })?;
            out.push(b'\n');
        }
        Ok(())
    }
}

struct Printer {
    rows: Rows,
    format: Box<dyn TextFormat>,
    out: Box<dyn Write + Send>,
    /// Nothing was printed yet.
    first: bool,
    /// The reader went away: nothing is printed any more.
    closed: bool,
}

impl Printer {
    fn new(rows: Rows, format: Format, out: Box<dyn Write + Send>) -> Self {
        Self { rows, format: format.text(), out, first: true, closed: false }
    }

    fn print(&mut self, text: &[u8]) -> Result<(), OperatorError> {
        match self.out.write_all(text).and_then(|()| self.out.flush()) {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            Err(e) => Err(OperatorError::new(format!("standard output cannot be written: {e}"))),
            Ok(()) => Ok(()),
        }
    }
}

impl Sink for Printer {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        if self.closed {
            return Ok(());
        }
        let mut text = Vec::new();
        if std::mem::take(&mut self.first) {
            self.format.header(&self.rows, &mut text)?;
        }
        self.format.append(&self.rows, batch, &mut text)?;
        self.print(&text)
    }

    fn commit(&mut self, _epoch: u64) -> Result<(), OperatorError> {
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    fn exactly_once(&self) -> bool {
        false
    }

    fn is_closed(&self) -> bool {
        self.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::test::{answers, bind};
    use crate::testing::{batch, id};
    use serde_json::json;
    use std::path::Path;
    use std::sync::Mutex;
    use tidemill_spec::span::Span;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>, Option<ErrorKind>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.1 {
                Some(kind) => Err(kind.into()),
                None => self.0.lock().unwrap().write(bytes),
            }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn printed(format: Format, out: Memory) -> Result<String, OperatorError> {
        let port = InputPort { from: "a".into(), stream: answers(), span: Span::nowhere() };
        let context_id = id("show");
        let context = EndContext { id: &context_id, base: Path::new(".") };
        let rows = Rows::choose(&context, &port, None, false).unwrap();
        let mut printer = Printer::new(rows, format, Box::new(out.clone()));
        for _ in 0..2 {
            printer.write(&batch(&answers(), &[json!({"key": "a\tb\n", "n": 1})]))?;
        }
        let text = out.0.lock().unwrap().clone();
        Ok(String::from_utf8(text).unwrap())
    }

    #[test]
    fn both_formats() {
        assert_eq!(
            printed(Format::Jsonl, Memory::default()).unwrap(),
            "{\"key\":\"a\\tb\\n\",\"n\":1}\n".repeat(2)
        );
        assert_eq!(printed(Format::Table, Memory::default()).unwrap(), "key\tn\na b \t1\na b \t1\n");
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure_but_a_full_disk_is() {
        assert_eq!(printed(Format::Jsonl, Memory(Arc::default(), Some(ErrorKind::BrokenPipe))).unwrap(), "");
        assert!(printed(Format::Jsonl, Memory(Arc::default(), Some(ErrorKind::StorageFull))).is_err());
        assert!(bind(&Stdout, Path::new("."), "format: xml").is_err());
    }
}
