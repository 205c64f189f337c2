//! Writes Parquet files: as rows come, and with a journal ([`super::parquet_durable`]).
use super::parquet::Parquet;
use super::parquet_durable::DurableWriter;
use super::rows::{Rows, Written};
use super::staging::write_error;
use super::text_file::FileOptions;
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
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::publication::Publication;
use tidemill_spec::types::ColumnType;

pub(super) use super::parquet_durable::check;

/// Bytes of a row group, encoded; it is buffered in memory until it is full.
const ROW_GROUP_BYTES: usize = 32 << 20;
/// Rows of a row group, at most.
const ROW_GROUP_ROWS: usize = 1 << 20;

/// Binds a sink whose options fit.
///
/// # Errors
/// None; see the stand-in `parquet_absent`.
pub(super) fn bound(
    context: &EndContext<'_>,
    input: &InputPort,
    options: &FileOptions,
    rows: Rows,
) -> Result<BoundSink, Diagnostics> {
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
    let sink = context.sink(Parquet::KIND, input, files, Arc::new(make));
    Ok(BoundSink { durable: Some(durable), ..sink })
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
            Written::Payload(_, ColumnType::Image | ColumnType::Audio | ColumnType::Bytes) | Written::Id => {
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
