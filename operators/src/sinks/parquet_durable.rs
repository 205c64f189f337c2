//! A Parquet file that another process continues: its rows wait in a journal, from which the file is made at the end.
//!
//! | what ended the process | what another one finds |
//! |---|---|
//! | anything before the end | the journal with the committed rows |
//! | something between the end of the file and that of the journal | both; the file is made again |
//! | something after the journal is gone | the file, which knows its journal's id: the rows are taken out of it |
use super::has_lost_rows;
use super::journal::{self, Found, Journal};
use super::parquet::{failure, file_writer};
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

/// What another process needs to continue the file.
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
    /// Gone once the file is finished or left to another process.
    open: Option<(WholeFile, Journal)>,
}

impl DurableWriter {
    /// Begins anew without a token, else continues.
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

/// The journal with the first `rows` rows, taken out of the finished file where that is what is left of them.
fn resume(
    path: &Path,
    target: &Path,
    journal: &Path,
    schema: &SchemaRef,
    rows: u64,
) -> Result<Journal, OperatorError> {
    let found = match Journal::resume(journal, schema, rows)? {
        Found::Whole(journal) => return Ok(*journal),
        Found::Rows(found) => found,
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

/// The finished file that was made of a journal which is not there any more: all rows are in it.
fn finished(
    path: &Path,
    target: &Path,
    journal: &Path,
    schema: &Schema,
    (rows, found): (u64, u64),
) -> Result<ParquetRecordBatchReaderBuilder<File>, OperatorError> {
    let lost = || {
        OperatorError::new(format!(
            "`{}` cannot be continued: {rows} rows of it are committed, and `{}`, where they were kept, has {found} of \
             them: {LOST_HELP}",
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

/// Whether the rows are there that a run with this token would go on behind; nothing is touched.
///
/// # Errors
/// They are not; the text names the file and says what to do.
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
    /// Makes the file of the journal.
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
        // The journal goes only when the file cannot.
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
                let kept = "the rows are kept beside it, and a run that continues writes it again";
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
