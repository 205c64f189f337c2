//! `csv`: a table with a header line.
//!
//! ```yaml
//! - {id: counts, kind: csv, input: by_colour, options: {path: out/counts.csv}}
//! ```
//! Options, exactly-once behaviour and the form of values are those of [`super::jsonl`]; texts are quoted where necessary,
//! empty values are empty fields. The header is written once, also if there are no rows. A process that continues the run
//! does not repeat it, and neither does `mode: append`; a file with another header is an error. A killed process leaves a
//! file as described there: a partial row can only follow the complete ticks, and is cut off when the run continues.
//!
//! ```
//! use tidemill_operators::kind::{EndContext, InputPort};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::{SourceFile, Span}, types::{Column, ColumnType, StreamType}, yaml};
//! let folder = tempfile::tempdir().unwrap();
//! let counts = InputPort {
//!     from: "by_colour".into(),
//!     stream: StreamType::new([Column::new("colour", ColumnType::Text), Column::new("n", ColumnType::Int64)]),
//!     span: Span::nowhere(),
//! };
//! let id = "counts".into();
//! let context = EndContext::new(&id, folder.path());
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "path: counts.csv")).unwrap();
//! let sink = Registry::builtin().sink("csv").unwrap().bind(&context, &counts, &options).unwrap();
//! let mut writer = (sink.make)().unwrap();
//! writer.commit(1).unwrap();
//! assert_eq!(std::fs::read_to_string(folder.path().join("counts.csv")).unwrap(), "colour,n\n");
//! ```
use super::appending;
use super::rows::Rows;
use super::text_file::{self, FileOptions, TextFormat};
use crate::api::{BoundSink, OperatorError};
use crate::kind::{EndContext, InputPort, TypedSinkKind};
use arrow_array::RecordBatch;
use std::fs::File;
use std::io;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::kinds::{Form, SinkFacts};
use tidemill_spec::publication::Publication;

/// The kind `csv`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Csv;

impl TypedSinkKind for Csv {
    type Options = FileOptions;
    const KIND: &'static str = "csv";
    const ACCEPTS_REVISIONS: bool = true;
    const FACTS: SinkFacts =
        SinkFacts { publication: Publication::EachEpoch, form: Form::Csv, ..SinkFacts::DEFAULT };
    const SUMMARY: &'static str = "A table with a header line.";

    fn bind_typed(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: FileOptions,
    ) -> Result<BoundSink, Diagnostics> {
        text_file::bind(Self::KIND, CommaSeparated, context, input, &options)
    }
}

fn broken(error: impl std::fmt::Display) -> OperatorError {
    OperatorError::new(format!("csv: {error}"))
}

struct CommaSeparated;

impl TextFormat for CommaSeparated {
    fn header(&self, rows: &Rows, out: &mut Vec<u8>) -> Result<(), OperatorError> {
        let mut writer = csv::Writer::from_writer(out);
        writer.write_record(rows.names()).map_err(broken)?;
        writer.flush().map_err(broken)
    }

    fn append(&self, rows: &Rows, batch: &RecordBatch, out: &mut Vec<u8>) -> Result<(), OperatorError> {
        let mut writer = csv::Writer::from_writer(out);
        for row in 0..batch.num_rows() {
            rows.fields(batch, row, |field| writer.write_field(field).map_err(broken))?;
            writer.write_record(None::<&[u8]>).map_err(broken)?;
        }
        writer.flush().map_err(broken)
    }

    fn is_whole(&self, file: &File) -> io::Result<bool> {
        Ok(appending::ends_with_line_break(file)? && appending::closes_quotes(file)?)
    }

    /// A line break between quotes is part of a text; a quote in a text is doubled.
    fn rows_in(&self, text: &[u8]) -> u64 {
        let (mut rows, mut is_quoted) = (0, false);
        for byte in text {
            match byte {
                b'"' => is_quoted = !is_quoted,
                b'\n' if !is_quoted => rows += 1,
                _ => {}
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::{EndContext, InputPort, SinkKind};
    use crate::sinks::test::{answers, bind};
    use crate::testing::{batch, id, options};
    use arrow_array::Float64Array;
    use serde_json::json;
    use std::sync::Arc;
    use tidemill_spec::span::Span;
    use tidemill_spec::types::{Column, ColumnType, StreamType};

    #[test]
    fn what_is_no_number_is_an_empty_field() {
        let folder = tempfile::tempdir().unwrap();
        let stream = StreamType::new([Column::new("v", ColumnType::Float64)]);
        let port = InputPort { from: "a".into(), stream: stream.clone(), span: Span::nowhere() };
        let id = id("sink");
        let context = EndContext::new(&id, folder.path());
        let bound = SinkKind::bind(&Csv, &context, &port, &options("path: a.csv")).unwrap();
        let rows = batch(&stream, &[json!({"v": 1.5}), json!({"v": 1.0}), json!({"v": 2.0})]);
        let mut columns = rows.columns().to_vec();
        *columns.last_mut().unwrap() = Arc::new(Float64Array::from(vec![1.5, f64::NAN, f64::NEG_INFINITY]));
        let mut sink = (bound.make)().unwrap();
        sink.write(&RecordBatch::try_new(rows.schema(), columns).unwrap()).unwrap();
        sink.commit(1).unwrap();
        sink.close().unwrap();
        let text = std::fs::read_to_string(folder.path().join("a.csv")).unwrap();
        assert_eq!(text, "v\n1.5\n\"\"\n\"\"\n");
    }

    #[test]
    fn rows_of_a_part_are_counted() {
        let text = b"\"a\"\"\n\"\"b\",1\nc,2\n\"d\n";
        let counts: Vec<u64> = (0..=text.len()).map(|end| CommaSeparated.rows_in(&text[..end])).collect();
        let at = |ends: usize| counts.iter().position(|count| *count == ends as u64);
        assert_eq!((at(1), at(2), at(3)), (Some(12), Some(16), None));
    }

    #[test]
    fn header_once_and_quotes_where_needed() {
        let folder = tempfile::tempdir().unwrap();
        let bound = bind(&Csv, folder.path(), "path: a.csv").unwrap();
        let mut sink = (bound.make)().unwrap();
        sink.write(&batch(&answers(), &[json!({"key": "x"})])).unwrap();
        sink.rollback().unwrap();
        sink.write(&batch(&answers(), &[json!({"key": "a,\"b\"\nc", "n": 1}), json!({})])).unwrap();
        sink.commit(1).unwrap();
        sink.write(&batch(&answers(), &[json!({"key": "d", "n": 2})])).unwrap();
        sink.commit(2).unwrap();
        sink.close().unwrap();
        let text = std::fs::read_to_string(folder.path().join("a.csv")).unwrap();
        assert_eq!(text, "key,n\n\"a,\"\"b\"\"\nc\",1\n,\nd,2\n");
    }
}
