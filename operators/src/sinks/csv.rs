//! `csv`: a table with a header line.
//!
//! ```yaml
//! - {id: counts, kind: csv, input: by_colour, options: {path: out/counts.csv}}
//! ```
//! Options, exactly-once behaviour and the form of values are those of [`super::jsonl`]; texts are quoted where they
//! have to be, empty values are empty fields. The header is written once, also when there are no rows.
//!
//! ```
//! use tidemill_operators::registry::{EndContext, InputPort, Registry};
//! use tidemill_spec::{span::{SourceFile, Span}, types::{Column, ColumnType, StreamType}, yaml};
//! let folder = tempfile::tempdir().unwrap();
//! let counts = InputPort {
//!     from: "by_colour".into(),
//!     stream: StreamType::new([Column::new("colour", ColumnType::Text), Column::new("n", ColumnType::Int64)]),
//!     span: Span::nowhere(),
//! };
//! let id = "counts".into();
//! let context = EndContext { id: &id, base: folder.path() };
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "path: counts.csv")).unwrap();
//! let sink = Registry::builtin().sink("csv").unwrap().bind(&context, &counts, &options).unwrap();
//! let mut writer = (sink.make)().unwrap();
//! writer.commit(1).unwrap();
//! assert_eq!(std::fs::read_to_string(folder.path().join("counts.csv")).unwrap(), "colour,n\n");
//! ```
use super::jsonl::Options;
use super::rows::Rows;
use super::staging::Staging;
use crate::api::{BoundSink, OperatorError, Sink};
use crate::registry::{EndContext, InputPort, SinkKind};
use arrow_array::RecordBatch;
use std::sync::Arc;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::value::Value;

/// The kind `csv`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Csv;

impl SinkKind for Csv {
    fn kind(&self) -> &'static str {
        "csv"
    }

    fn summary(&self) -> &'static str {
        "A table with a header line."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn bind(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: &Value,
    ) -> Result<BoundSink, Diagnostics> {
        let options: Options = options.deserialize_into()?;
        let rows = Rows::choose(context, input, options.columns.as_deref(), options.metadata)?;
        let path = context.path(&options.path);
        Ok(BoundSink {
            id: context.id.value.clone(),
            kind: self.kind().into(),
            input: input.stream.clone(),
            ground_truth: None,
            files: vec![path.clone()],
            make: Arc::new(move || {
                let mut staging = Staging::create(&path, options.overwrite)?;
                // Not staged: a rollback must not take the header away.
                let mut header = csv::Writer::from_writer(staging.buffer());
                header.write_record(rows.names()).map_err(broken)?;
                header.flush().map_err(broken)?;
                drop(header);
                staging.commit()?;
                Ok(Box::new(Writer { rows: rows.clone(), staging }))
            }),
        })
    }
}

fn broken(error: impl std::fmt::Display) -> OperatorError {
    OperatorError::new(format!("csv: {error}"))
}

struct Writer {
    rows: Rows,
    staging: Staging,
}

impl Sink for Writer {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        let mut writer = csv::Writer::from_writer(self.staging.buffer());
        for row in 0..batch.num_rows() {
            self.rows.fields(batch, row, |field| writer.write_field(field).map_err(broken))?;
            writer.write_record(None::<&[u8]>).map_err(broken)?;
        }
        writer.flush().map_err(broken)?;
        drop(writer);
        self.staging.spill()
    }

    fn commit(&mut self, _epoch: u64) -> Result<(), OperatorError> {
        self.staging.commit()
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        self.staging.rollback()
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        self.staging.close()
    }

    fn exactly_once(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::test::{answers, bind};
    use crate::testing::batch;
    use serde_json::json;

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
