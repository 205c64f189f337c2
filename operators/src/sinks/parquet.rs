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
use super::parquet_durable::DurableWriter;
use super::rows::{Rows, Written};
use super::staging::write_error;
use super::text_file::{FileOptions, Mode};
use super::whole_file::WholeFile;
use crate::api::{BoundSink, MakeDurableSink, OperatorError, Sink};
use crate::kind::{EndContext, InputPort, TypedSinkKind};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::SinkFacts;
use tidemill_spec::publication::Publication;
use tidemill_spec::types::ColumnType;

/// Bytes of a row group, encoded; it is buffered in memory until it is full.
const ROW_GROUP_BYTES: usize = 32 << 20;
/// Rows of a row group, at most.
const ROW_GROUP_ROWS: usize = 1 << 20;

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
        let (path, overwrite) = (context.path(&options.path), options.overwrite);
        let files = vec![path.clone()];
        let (durable_path, durable_rows) = (path.clone(), rows.clone());
        let durable: MakeDurableSink = Arc::new(move |token| {
            let rows = durable_rows.clone();
            Ok(Box::new(DurableWriter::open(&durable_path, overwrite, rows, ROW_GROUP_BYTES, token)?))
        });
        let make = move || {
            let writer = Writer::create(&path, overwrite, rows.clone(), ROW_GROUP_BYTES)?;
            Ok(Box::new(writer) as Box<dyn Sink>)
        };
        let sink = context.sink(Self::KIND, input, files, Arc::new(make));
        Ok(BoundSink { durable: Some(durable), ..sink })
    }
}

/// The file being written; it is gone once the file is finished or a commit failed.
struct Open {
    file: WholeFile,
    writer: ArrowWriter<File>,
}

struct Writer {
    path: PathBuf,
    rows: Rows,
    schema: SchemaRef,
    staged: Vec<RecordBatch>,
    open: Option<Open>,
}

impl Writer {
    fn create(
        path: &Path,
        overwrite: bool,
        rows: Rows,
        row_group_bytes: usize,
    ) -> Result<Self, OperatorError> {
        let file = WholeFile::create(path, overwrite)?;
        let schema = rows.arrow_schema();
        let writer = file_writer(path, &file, &rows, &schema, row_group_bytes)?;
        Ok(Self {
            path: path.to_owned(),
            rows,
            schema,
            staged: Vec::new(),
            open: Some(Open { file, writer }),
        })
    }
}

/// Writes rows with this schema, whose fields are those of `rows`, as the content of `file`.
pub(super) fn file_writer(
    path: &Path,
    file: &WholeFile,
    rows: &Rows,
    schema: &SchemaRef,
    row_group_bytes: usize,
) -> Result<ArrowWriter<File>, OperatorError> {
    let content = file.content().map_err(|e| write_error(path, &e))?;
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("tidemill ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_max_row_group_bytes(Some(row_group_bytes));
    for (name, written) in rows.columns() {
        // Values that hardly repeat: their dictionary would be built and thrown away.
        let path = match written {
            Written::Payload(_, ColumnType::Image | ColumnType::Audio) | Written::Id => {
                vec![name.clone()]
            }
            Written::Payload(_, ColumnType::Tensor { .. }) => {
                vec![name.clone(), "list".to_owned(), "item".to_owned()]
            }
            _ => continue,
        };
        properties = properties.set_column_dictionary_enabled(ColumnPath::new(path), false);
    }
    ArrowWriter::try_new(content, Arc::clone(schema), Some(properties.build())).map_err(|e| failure(path, &e))
}

pub(super) fn failure(path: &Path, error: &ParquetError) -> OperatorError {
    let cause = match error {
        ParquetError::External(cause) => cause.downcast_ref::<std::io::Error>(),
        _ => None,
    };
    match cause {
        Some(cause) => write_error(path, cause),
        None => OperatorError::new(format!("`{}` cannot be written: {error}", path.display())),
    }
}

/// The error for a file that gets no end.
fn without_end(path: &Path, error: &OperatorError) -> OperatorError {
    let left = match path.exists() {
        true => "the file of the last run stays",
        false => "there is no file",
    };
    OperatorError::new(format!("{}; Parquet cannot be read without its end, so {left}", error.message))
}

impl Sink for Writer {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        let arrays = self.rows.arrays(batch);
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), arrays)
            .map_err(|e| OperatorError::new(format!("parquet: {e}")))?;
        self.staged.push(batch);
        Ok(())
    }

    fn commit(&mut self, _epoch: u64) -> Result<(), OperatorError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        for batch in std::mem::take(&mut self.staged) {
            if let Err(error) = open.writer.write(&batch) {
                // Half a row group may be on the disk, so no footer can complete the file.
                self.open = None;
                return Err(without_end(&self.path, &failure(&self.path, &error)));
            }
        }
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        self.staged.clear();
        Ok(())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        self.staged.clear();
        let Some(Open { file, writer }) = self.open.take() else { return Ok(()) };
        let closed = writer.close().map_err(|e| failure(&self.path, &e));
        closed.and_then(|_| file.finish()).map_err(|e| without_end(&self.path, &e))
    }

    fn exactly_once(&self) -> bool {
        true
    }

    fn publication(&self) -> Publication {
        Publication::AtEnd
    }
}

#[cfg(test)]
#[path = "parquet_tests.rs"]
mod tests;
