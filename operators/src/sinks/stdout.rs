//! `stdout`: rows on the terminal or into a pipe.
//!
//! ```yaml
//! - {id: show, kind: stdout, input: answer, options: {columns: [key, answer], format: table}}
//! ```
//! `format: jsonl` (default) writes one JSON object per line, `format: table` a header and tab-separated columns. Rows are
//! written at once, a line at a time: after a restart rows may come again, with the same `_id` (`metadata: true`). So they
//! appear at least once, also if another process continues the run: it repeats those after the last recorded checkpoint,
//! and the header of a table. A reader that closes the pipe (`| head`) is no failure: nothing more is written, a run whose
//! sinks are all closed ends, and the report has the number of rows written until then.
//!
//! ```
//! use tidemill_operators::kind::{EndContext, InputPort};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::Span, types::{Column, ColumnType, StreamType}, value::Value};
//! let stream = StreamType::new([Column::new("answer", ColumnType::Text)]);
//! let port = InputPort { from: "answer".into(), stream, span: Span::nowhere() };
//! let id = "show".into();
//! let context = EndContext::new(&id, std::path::Path::new("."));
//! let sink = Registry::builtin().sink("stdout").unwrap().bind(&context, &port, &Value::empty_map()).unwrap();
//! assert!(!(sink.make)().unwrap().exactly_once());
//! ```
use super::jsonl::JsonLines;
use super::rows::Rows;
use super::text_file::{self, TextFormat};
use crate::api::{BoundSink, OperatorError};
use crate::kind::{EndContext, InputPort, TypedSinkKind};
use arrow_array::RecordBatch;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::kinds::SinkFacts;
use tidemill_spec::publication::Publication;
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
    /// Whether to write `_id` and `_time` (event time, microseconds) too. Default: false.
    #[serde(default)]
    metadata: bool,
}

/// Format of rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Format {
    /// One JSON object per line.
    #[default]
    Jsonl,
    /// A header, then columns separated by tabs.
    Table,
}

impl Format {
    fn text(self) -> Arc<dyn TextFormat> {
        match self {
            Format::Jsonl => Arc::new(JsonLines),
            Format::Table => Arc::new(TabSeparated),
        }
    }
}

impl TypedSinkKind for Stdout {
    type Options = Options;
    const KIND: &'static str = "stdout";
    const ACCEPTS_REVISIONS: bool = true;
    const FACTS: SinkFacts =
        SinkFacts { publication: Publication::EachEpoch, writes: &[], ..SinkFacts::DEFAULT };
    const SUMMARY: &'static str = "Rows on the terminal or into a pipe.";

    fn bind_typed(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: Options,
    ) -> Result<BoundSink, Diagnostics> {
        let rows = Rows::choose(context, input, options.columns.as_deref(), options.metadata)?;
        Ok(text_file::print(Self::KIND, rows, options.format.text(), context, input))
    }
}

/// A header line, then tab-separated columns.
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
                // A row is one line, whatever its content.
                out.extend(field.iter().map(|b| if b.is_ascii_control() { b' ' } else { *b }));
                Ok(())
            })?;
            out.push(b'\n');
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::test::{answers, bind};
    use crate::testing::{batch, id};
    use serde_json::json;
    use std::path::Path;
    use tidemill_spec::span::Span;

    #[test]
    fn both_formats() {
        let port = InputPort { from: "a".into(), stream: answers(), span: Span::nowhere() };
        let context_id = id("show");
        let context = EndContext::new(&context_id, Path::new("."));
        let rows = Rows::choose(&context, &port, None, false).unwrap();
        for (format, expected) in
            [(Format::Jsonl, "{\"key\":\"a\\tb\\n\",\"n\":1}\n"), (Format::Table, "key\tn\na b \t1\n")]
        {
            let (format, mut text) = (format.text(), Vec::new());
            format.header(&rows, &mut text).unwrap();
            format.append(&rows, &batch(&answers(), &[json!({"key": "a\tb\n", "n": 1})]), &mut text).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
        assert!(bind(&Stdout, Path::new("."), "format: xml").is_err());
    }
}
