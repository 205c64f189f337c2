//! `parquet`: an Apache Parquet file, for pandas, Polars, DuckDB, Spark and the like.
//!
//! ```yaml
//! - {id: features, kind: parquet, input: scene, options: {path: out/features.parquet}}
//! ```
//! | column | in the file |
//! |---|---|
//! | text, int64, float64, bool | string, int64, double, boolean; empty values are null |
//! | image, audio | binary: the whole file as it was read |
//! | tensor | fixed-size list of float or int64, as Arrow's extension type `arrow.fixed_shape_tensor` |
//! | `_id`, `_time` (`metadata: true`) | string (hexadecimal), timestamp in microseconds, UTC |
//!
//! The workflow's own type of a column is in its Arrow metadata, `tidemill.type`. Pages are compressed with Snappy.
//!
//! A Parquet file is readable only after its end is written. So the file appears whole when the run ends, replacing an
//! older one; a stopped or failed run writes the rows of the last complete checkpoint. A run that is killed, or whose disk
//! is full, leaves the older file as it was. Rows are in it once, also after restarts of parts of the run. Memory holds the
//! rows of one checkpoint and one row group, which ends at 32 MiB or 1,048,576 rows.
//!
//! A run that another process can continue keeps committed rows in a hidden file beside the other one, `.NAME.rows`, and
//! makes the Parquet file from it at the end. The disk needs room for both, and the rows there are not compressed. Memory
//! holds 8 MiB of the rows of a checkpoint, then a row group. If such a run is killed, or stops so that it can be
//! continued, `.NAME.rows` stays, and an older file stays as it was. The continuing process cuts off everything after the
//! last recorded checkpoint and appends: each row is in the Parquet file once, regardless of how often the processes end.
//! `.NAME.rows` is removed when the Parquet file is whole and synced. A process that ended after that and did not record it
//! is continued from the rows of the Parquet file, whose Arrow metadata `tidemill.journal` names their origin. A
//! `.NAME.rows` that is missing or cut short without such a file is an error. One that is not to be continued may be
//! deleted; a new run that can be continued takes it over.
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
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "path: answers.parquet")).unwrap();
//! let sink = Registry::builtin().sink("parquet").unwrap().bind(&context, &answer, &options).unwrap();
//! let mut writer = (sink.make)().unwrap();
//! writer.commit(1).unwrap();
//! writer.close().unwrap();
//! assert!(std::fs::read(folder.path().join("answers.parquet")).unwrap().ends_with(b"PAR1"));
//! ```
use super::parquet_writer::bound;
use super::rows::Rows;
use super::text_file::{FileOptions, Mode};
use crate::api::BoundSink;
use crate::kind::{EndContext, InputPort, TypedSinkKind};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::SinkFacts;
use tidemill_spec::publication::Publication;

/// The kind `parquet`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Parquet;

impl TypedSinkKind for Parquet {
    type Options = FileOptions;
    const KIND: &'static str = "parquet";
    const ACCEPTS_REVISIONS: bool = true;
    const FACTS: SinkFacts = SinkFacts { publication: Publication::AtEnd, ..SinkFacts::DEFAULT };
    const SUMMARY: &'static str = "An Apache Parquet file, which appears when the run ends.";

    fn bind_typed(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: FileOptions,
    ) -> Result<BoundSink, Diagnostics> {
        if options.path == "-" {
            return Err(Diagnostic::error("E0606", "a Parquet file cannot be written to standard output")
                .at(options.path.span.clone())
                .with_help("write the path of a file, or use a `jsonl` or `csv` sink")
                .into());
        }
        if options.mode.value == Mode::Append {
            let message = "a Parquet file ends with its metadata: nothing can be appended";
            return Err(Diagnostic::error("E0606", message)
                .at(options.mode.span.clone())
                .with_help(
                    "give each run its own file in one folder, which readers of Parquet read as one table, \
                     for instance with `path: out/${PART}.parquet` and `PART=2 tidemill run ...`, or use a \
                     `csv` or `jsonl` sink",
                )
                .into());
        }
        let rows = Rows::choose(context, input, options.columns.as_deref(), options.metadata)?;
        bound(context, input, &options, rows)
    }
}
