//! A Parquet file that another process can continue. Its rows wait in a journal, from which the file is made at the end.
//!
//! | the process ended | the next one finds |
//! |---|---|
//! | before the end | the journal with the committed rows |
//! | between the end of the file and the removal of the journal | both; the file is made again |
//! | after the removal of the journal | the file, which has its journal's id: the rows are read from it |
use super::has_lost_rows;
use super::journal::{self, Journal, JournalContent};
use super::parquet_writer::{failure, file_writer};
use super::rows::Rows;
use super::staging::{LOST_HELP, read_token, write_token};
use super::whole_file::WholeFile;
use crate::api::{Flush, OperatorError, Sink};
use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_spec::publication::Publication;

/// Data that another process needs to continue the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    /// Id of the journal.
    journal: String,
    /// Committed rows.
    rows: u64,
}

/// The sink; see the module.
pub(super) struct DurableWriter {
    path: PathBuf,
    rows: Rows,
    schema: SchemaRef,
    row_group_bytes: usize,
    id: String,
    /// `None` once the file is finished or left to another process.
    open: Option<(WholeFile, Journal)>,
}

impl DurableWriter {
    /// Starts from nothing without a token, else continues.
    pub(super) fn open(
        path: &Path,
        overwrite: bool,
        rows: Rows,
        row_group_bytes: usize,
        token: Option<&[u8]>,
    ) -> Result<Self, OperatorError> {
        let token = token.map(|token| read_token::<Token>(path, token)).transpose()?;
        let file = WholeFile::create(path, overwrite || token.is_some())?;
        let schema = rows.arrow_schema();
        let journal = rows_beside(file.target());
        let (id, journal) = match token {
            None => {
                let id = journal::new_id();
                let journal = Journal::create(&journal, journal::schema(&schema, &id))?;
                (id, journal)
            }
            Some(Token { journal: id, rows }) => {
                let journal = resume(path, file.target(), &journal, &journal::schema(&schema, &id), rows)?;
                (id, journal)
            }
        };
        Ok(Self { path: path.to_owned(), rows, schema, row_group_bytes, id, open: Some((file, journal)) })
    }
}

/// Opens the journal with the first `rows` rows, rebuilt from the finished file if only that is left.
fn resume(
    path: &Path,
    target: &Path,
    journal: &Path,
    schema: &SchemaRef,
    rows: u64,
) -> Result<Journal, OperatorError> {
    let found = match Journal::resume(journal, schema, rows)? {
        JournalContent::Whole(journal) => return Ok(*journal),
        JournalContent::Rows(found) => found,
    };
    let finished = finished(path, target, journal, schema, (rows, found))?;
    if finished.schema().fields() != schema.fields() {
        return Err(journal::other_columns(path));
    }
    let batches = finished.with_limit(rows as usize).build().map_err(|e| failure(path, &e))?;
    let batches =
        batches.map(|batch| batch.map_err(|e| OperatorError::new(format!("`{}`: {e}", path.display()))));
    Journal::of_rows(journal, Arc::clone(schema), batches)
}

/// Reads the finished file of a journal that was removed; it has all rows.
fn finished(
    path: &Path,
    target: &Path,
    journal: &Path,
    schema: &Schema,
    (rows, found): (u64, u64),
) -> Result<ParquetRecordBatchReaderBuilder<File>, OperatorError> {
    let lost = || {
        OperatorError::new(format!(
            "cannot continue `{}`: {rows} rows of it are committed, but `{}`, which stores them, has \
             {found} of them: {LOST_HELP}",
            path.display(),
            journal.display()
        ))
    };
    let finished =
        File::open(target).ok().and_then(|file| ParquetRecordBatchReaderBuilder::try_new(file).ok());
    let finished = finished.ok_or_else(lost)?;
    let in_file = u64::try_from(finished.metadata().file_metadata().num_rows()).unwrap_or(0);
    match journal::is_same_journal(finished.schema(), schema) && in_file >= rows {
        true => Ok(finished),
        false => Err(lost()),
    }
}

/// Checks that the rows exist with which a run with this token would continue; changes nothing.
///
/// # Errors
/// They do not; the text names the file and gives advice.
pub(super) fn check(path: &Path, token: &[u8]) -> Result<(), OperatorError> {
    let Token { journal: id, rows } = read_token(path, token)?;
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let journal = rows_beside(&target);
    let schema = journal::schema(&Schema::empty(), &id);
    match journal::count(&journal, &schema, rows)? {
        (true, _) => Ok(()),
        (false, found) => finished(path, &target, &journal, &schema, (rows, found)).map(drop),
    }
}

/// The hidden file with the rows.
fn rows_beside(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.rows"))
}

impl DurableWriter {
    /// Makes the file from the journal.
    fn publish(&self, file: WholeFile, journal: &Journal) -> Result<(), OperatorError> {
        let mut writer = file_writer(&self.path, &file, &self.rows, journal.schema(), self.row_group_bytes)?;
        let mut rows = 0;
        for batch in journal.batches()? {
            let batch = batch?;
            rows += batch.num_rows() as u64;
            writer.write(&batch).map_err(|e| failure(&self.path, &e))?;
        }
        journal.expect(rows)?;
        writer.close().map_err(|e| failure(&self.path, &e))?;
        // The journal is removed only after the file is safe.
        file.finish()
    }
}

impl Sink for DurableWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        let Some((_, journal)) = &mut self.open else { return Ok(()) };
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), self.rows.arrays(batch))
            .map_err(|e| OperatorError::new(format!("parquet: {e}")))?;
        journal.append(&batch)
    }

    fn commit(&mut self, _epoch: u64) -> Result<(), OperatorError> {
        self.open.as_mut().map_or(Ok(()), |(_, journal)| journal.commit())
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        self.open.as_mut().map_or(Ok(()), |(_, journal)| journal.rollback())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        let Some((file, mut journal)) = self.open.take() else { return Ok(()) };
        journal.rollback()?;
        match self.publish(file, &journal) {
            Ok(()) => journal.remove(),
            Err(error) if has_lost_rows(&error.message) => Err(error),
            Err(error) => {
                let kept = "the rows are stored beside it, and a run that continues writes it again";
                Err(OperatorError::new(format!("{}; {kept}", error.message)))
            }
        }
    }

    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        let Some((_, journal)) = &self.open else { return Ok(None) };
        write_token(&Token { journal: self.id.clone(), rows: journal.committed() }).map(Some)
    }

    fn flush(&self) -> Option<Flush> {
        self.open.as_ref().and_then(|(_, journal)| journal.flush())
    }

    fn suspend(&mut self) -> Result<(), OperatorError> {
        self.open.take().map_or(Ok(()), |(_, journal)| journal.close())
    }

    fn exactly_once(&self) -> bool {
        true
    }

    fn publication(&self) -> Publication {
        Publication::AtEnd
    }
}
