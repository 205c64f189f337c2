//! `jsonl`: one JSON object per line.
//!
//! ```yaml
//! - {id: answers, kind: jsonl, input: answer, options: {path: out/answers.jsonl, columns: [key, answer]}}
//! ```
//! Tensors are written as nested arrays, images and sounds as their size, `{"bytes": 12345}`; NaN and infinities as null.
//! `metadata: true` adds `_id` (hexadecimal) and `_time` (microseconds) at the front.
//!
//! Exactly once: rows become part of the file when their tick is complete, and concurrent readers see them then; until then
//! they wait in memory or in a nameless file on the same disk. A new run replaces the file of the run before; with
//! `overwrite: false` an existing file is an error. Missing folders are created.
//!
//! The file is synced when the run ends, and before the checkpoint of a run that another process can continue is recorded;
//! no row waits for that. So a killed process leaves all rows of complete ticks, possibly followed by some rows of a tick
//! in progress; a last line without a line break is partial. After a power loss the rows of recorded checkpoints remain,
//! and whatever the system has written by itself. A process that continues the run (also with `overwrite: false`) cuts off
//! everything after the last recorded checkpoint and appends: each row is in the file once, regardless of how often its
//! processes end. Concurrent readers may have seen rows that are cut off then; the same rows come again. A file that was
//! removed or became shorter than recorded is an error.
//!
//! `mode: append` appends to the output of earlier runs that ended or were stopped. The output of a killed run is cut off
//! and written again; a hidden file beside it, `.NAME.appending`, records until its end where it started. A file whose last
//! line is partial is an error.
//!
//! `path: "-"` is standard output. There, and if the path is a pipe or a device, rows are written at once as by
//! [`super::stdout`], and at least once: nothing can be cut off.
//!
//! ```
//! use tidemill_operators::kind::{EndContext, InputPort};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::{SourceFile, Span}, types::{Column, ColumnType, StreamType}, yaml};
//! let folder = tempfile::tempdir().unwrap();
//! let answer = InputPort {
//!     from: "answer".into(),
//!     stream: StreamType::new([Column::new("answer", ColumnType::Text)]),
//!     span: Span::nowhere(),
//! };
//! let id = "answers".into();
//! let context = EndContext::new(&id, folder.path());
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "path: out/answers.jsonl")).unwrap();
//! let sink = Registry::builtin().sink("jsonl").unwrap().bind(&context, &answer, &options).unwrap();
//! assert_eq!(sink.files, [folder.path().join("out/answers.jsonl")]);
//! assert!((sink.make)().unwrap().exactly_once());
//! ```
use super::rows::Rows;
use super::text_file::{self, FileOptions, TextFormat};
use crate::api::{BoundSink, OperatorError};
use crate::kind::{EndContext, InputPort, TypedSinkKind};
use arrow_array::RecordBatch;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::kinds::{Form, SinkFacts};
use tidemill_spec::publication::Publication;

/// The kind `jsonl`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Jsonl;

impl TypedSinkKind for Jsonl {
    type Options = FileOptions;
    const KIND: &'static str = "jsonl";
    const ACCEPTS_REVISIONS: bool = true;
    const FACTS: SinkFacts =
        SinkFacts { publication: Publication::EachEpoch, form: Form::JsonLines, ..SinkFacts::DEFAULT };
    const SUMMARY: &'static str = "A file with one JSON object per line.";

    fn bind_typed(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: FileOptions,
    ) -> Result<BoundSink, Diagnostics> {
        text_file::bind(Self::KIND, JsonLines, context, input, &options)
    }
}

/// One JSON object per line.
pub(super) struct JsonLines;

impl TextFormat for JsonLines {
    fn append(&self, rows: &Rows, batch: &RecordBatch, out: &mut Vec<u8>) -> Result<(), OperatorError> {
        rows.json(batch, out)
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
        let mut sink = (keeping.make)().unwrap();
        sink.write(&batch(&answers(), &[json!({"key": "e"})])).unwrap();
        sink.commit(1).unwrap();
        drop(sink);
        assert!((keeping.make)().is_err(), "it has a row");
    }

    #[test]
    fn wrong_options() {
        let folder = tempfile::tempdir().unwrap();
        let error = bind(&Jsonl, folder.path(), "path: a.jsonl\ncolumns: [kee]").err().unwrap();
        assert_eq!(error.iter().next().unwrap().help.as_deref(), Some("did you mean `key`?"));
        assert!(bind(&Jsonl, folder.path(), "columns: [key]").is_err());
    }
}
