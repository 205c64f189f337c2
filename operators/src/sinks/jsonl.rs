//! `jsonl`: one JSON object a line.
//!
//! ```yaml
//! - {id: answers, kind: jsonl, input: answer, options: {path: out/answers.jsonl, columns: [key, answer]}}
//! ```
//! Tensors are written as nested arrays, images and sounds as their size, `{"bytes": 12345}`; NaN and infinities as
//! null. `metadata: true` puts `_id` (hexadecimal) and `_time` (microseconds) in front.
//!
//! Exactly once: rows become part of the file at checkpoints, where the file is synced; until then they wait in
//! memory or in a nameless file on the same disk. A new run replaces the file of the run before; with `overwrite: false` an
//! existing file is an error. Missing folders are created.
//!
//! ```
//! use tidemill_operators::registry::{EndContext, InputPort, Registry};
//! use tidemill_spec::{span::{SourceFile, Span}, types::{Column, ColumnType, StreamType}, yaml};
//! let folder = tempfile::tempdir().unwrap();
//! let answer = InputPort {
//!     from: "answer".into(),
//!     stream: StreamType::new([Column::new("answer", ColumnType::Text)]),
//!     span: Span::nowhere(),
//! };
//! let id = "answers".into();
//! let context = EndContext { id: &id, base: folder.path() };
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "path: out/answers.jsonl")).unwrap();
//! let sink = Registry::builtin().sink("jsonl").unwrap().bind(&context, &answer, &options).unwrap();
//! assert_eq!(sink.files, [folder.path().join("out/answers.jsonl")]);
//! assert!((sink.make)().unwrap().exactly_once());
//! ```
use super::rows::Rows;
use super::staging::Staging;
use crate::api::{BoundSink, OperatorError, Sink};
use crate::registry::{EndContext, InputPort, SinkKind};
use arrow_array::RecordBatch;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::span::Located;
use tidemill_spec::value::Value;

/// The kind `jsonl`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Jsonl;

/// Options of the file sinks.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Options {
    /// The file, relative to the workflow file.
    pub(super) path: Located<String>,
    /// Columns to write, in this order. Default: all.
    #[serde(default)]
    pub(super) columns: Option<Vec<Located<String>>>,
    /// Whether `_id` and `_time` (event time, microseconds) are written too. Default: false.
    #[serde(default)]
    pub(super) metadata: bool,
    /// Whether the file of an earlier run is replaced; else it is an error. Default: true.
    #[serde(default = "yes")]
    pub(super) overwrite: bool,
}

fn yes() -> bool {
    true
}

impl SinkKind for Jsonl {
    fn kind(&self) -> &'static str {
        "jsonl"
    }

    fn summary(&self) -> &'static str {
        "A file with one JSON object a line."
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
                let staging = Staging::create(&path, options.overwrite)?;
                Ok(Box::new(Writer { rows: rows.clone(), staging }))
            }),
        })
    }
}

struct Writer {
    rows: Rows,
    staging: Staging,
}

impl Sink for Writer {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        self.rows.json(batch, self.staging.buffer())?;
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
    fn commits_and_rollbacks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out/a.jsonl");
        let bound = bind(&Jsonl, folder.path(), "path: out/a.jsonl").unwrap();
        let mut sink = (bound.make)().unwrap();
        sink.write(&batch(&answers(), &[json!({"key": "a", "n": 1})])).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        sink.commit(1).unwrap();
        sink.write(&batch(&answers(), &[json!({"key": "b", "n": 2})])).unwrap();
        sink.rollback().unwrap();
        sink.write(&batch(&answers(), &[json!({"key": "c"})])).unwrap();
        sink.commit(2).unwrap();
        sink.write(&batch(&answers(), &[json!({"key": "d"})])).unwrap();
        sink.close().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "{\"key\":\"a\",\"n\":1}\n{\"key\":\"c\",\"n\":null}\n");
        drop((bound.make)().unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "", "a new run replaces the file");
        let keeping = bind(&Jsonl, folder.path(), "path: out/a.jsonl\noverwrite: false").unwrap();
        assert!((keeping.make)().is_err());
    }

    #[test]
    fn wrong_options() {
        let folder = tempfile::tempdir().unwrap();
        let error = bind(&Jsonl, folder.path(), "path: a.jsonl\ncolumns: [kee]").err().unwrap();
        assert_eq!(error.iter().next().unwrap().help.as_deref(), Some("did you mean `key`?"));
        assert!(bind(&Jsonl, folder.path(), "columns: [key]").is_err());
    }
}
