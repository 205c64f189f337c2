//! Committed rows of a file that can only be written in one piece, kept beside it until then. The journal is an Arrow IPC
//! stream that grows by commits, in [frames](super::frames) with checksums: one for the schema, then one per record batch.
//! All checksums are verified before a run continues it, and again when the file is made.
//!
//! A position in it is a number of rows: commits end between record batches. The schema carries the journal's id, which
//! identifies rows made from it.
use super::frames::{self, Frames, Next};
use super::lock::check_free;
use super::staging::{LOST_HELP, Staging, write_error};
use crate::api::{Flush, OperatorError};
use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, Schema, SchemaRef};
use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Metadata key of the journal's id.
const ID: &str = "tidemill.journal";

/// The journal; see the module.
pub(super) struct Journal {
    path: PathBuf,
    schema: SchemaRef,
    staging: Staging,
    /// Encodes batches as messages; buffers none between two calls.
    encoder: StreamWriter<Vec<u8>>,
    committed: u64,
    staged: u64,
}

/// State of a journal on disk.
pub(super) enum JournalContent {
    /// It continues there, after the requested rows.
    Whole(Box<Journal>),
    /// It has only this number of rows; 0 if there is no journal of that id.
    Rows(u64),
}

/// Returns a unique id.
pub(super) fn new_id() -> String {
    // The standard library has no other random numbers.
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// The schema of rows of the journal `id`.
pub(super) fn schema(columns: &Schema, id: &str) -> SchemaRef {
    Arc::new(columns.clone().with_metadata(HashMap::from([(ID.to_owned(), id.to_owned())])))
}

/// Whether rows with one schema come from the same journal as those with the other.
pub(super) fn is_same_journal(one: &Schema, other: &Schema) -> bool {
    one.metadata().get(ID) == other.metadata().get(ID)
}

/// The error for a workflow that writes other columns than before.
pub(super) fn other_columns(path: &Path) -> OperatorError {
    OperatorError::new(format!(
        "the columns of `{}` are not those of this run: continue with the old workflow, or start from the \
         beginning with `tidemill state reset`",
        path.display()
    ))
}

fn broken(path: &Path, error: &dyn std::fmt::Display) -> OperatorError {
    OperatorError::new(format!("`{}`: {error}", path.display()))
}

fn encoder(path: &Path, schema: &SchemaRef) -> Result<StreamWriter<Vec<u8>>, OperatorError> {
    StreamWriter::try_new(Vec::new(), schema).map_err(|e| broken(path, &e))
}

impl Journal {
    /// Starts a journal with this schema; an existing one is emptied.
    ///
    /// # Errors
    /// It cannot be written, or another run writes it; the text names it and gives advice.
    pub(super) fn create(path: &Path, schema: SchemaRef) -> Result<Self, OperatorError> {
        let mut encoder = encoder(path, &schema)?;
        // The previous holder may have removed it in between.
        let mut staging = loop {
            let staging = Staging::create(path, true)?;
            if staging.is_in_place() {
                break staging;
            }
        };
        frames::append(staging.buffer(), encoder.get_mut(), 0);
        staging.commit()?;
        Ok(Self { path: path.to_owned(), schema, staging, encoder, committed: 0, staged: 0 })
    }

    /// Continues a journal with this schema after `rows` rows.
    ///
    /// # Errors
    /// It cannot be read, has other columns, or another run writes it; the text names it and gives advice.
    pub(super) fn resume(
        path: &Path,
        schema: &SchemaRef,
        rows: u64,
    ) -> Result<JournalContent, OperatorError> {
        loop {
            let (length, found) = match end_of(path, schema, rows)? {
                (Some(length), found) => (length, found),
                (None, found) => return Ok(JournalContent::Rows(found)),
            };
            let staging = Staging::resume_at(path, length)?;
            if !staging.is_in_place() {
                continue;
            }
            let mut encoder = encoder(path, schema)?;
            encoder.get_mut().clear();
            let (path, schema) = (path.to_owned(), Arc::clone(schema));
            let journal = Self { path, schema, staging, encoder, committed: found, staged: 0 };
            return Ok(JournalContent::Whole(Box::new(journal)));
        }
    }

    /// Creates a journal from rows that are stored elsewhere too. It gets its name only when it is whole on disk, because a
    /// continuing run takes its rows for flushed ones.
    ///
    /// # Errors
    /// See [`Journal::create`], and those of the rows.
    pub(super) fn of_rows(
        path: &Path,
        schema: SchemaRef,
        rows: impl Iterator<Item = Result<RecordBatch, OperatorError>>,
    ) -> Result<Self, OperatorError> {
        check_free(path, path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let new = path.with_file_name(format!("{name}.new"));
        let made = Self::create(&new, schema).and_then(|mut journal| {
            for batch in rows {
                journal.append(&batch?)?;
            }
            journal.commit()?;
            journal.staging.sync()?;
            journal.staging.rename(path)?;
            path.clone_into(&mut journal.path);
            Ok(journal)
        });
        if made.is_err() {
            // It may be the file that fills the disk.
            let _ = std::fs::remove_file(&new);
        }
        made
    }

    /// Adds rows; the next commit makes them part of it.
    pub(super) fn append(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), batch.columns().to_vec())
            .map_err(|e| broken(&self.path, &e))?;
        self.encoder.write(&batch).map_err(|e| broken(&self.path, &e))?;
        let rows = u32::try_from(batch.num_rows()).map_err(|e| broken(&self.path, &e))?;
        frames::append(self.staging.buffer(), self.encoder.get_mut(), rows);
        self.staged += u64::from(rows);
        self.staging.spill()
    }

    /// Makes the rows part of it.
    pub(super) fn commit(&mut self) -> Result<(), OperatorError> {
        self.staging.commit()?;
        self.committed += std::mem::take(&mut self.staged);
        Ok(())
    }

    /// Discards the rows since the last commit.
    pub(super) fn rollback(&mut self) -> Result<(), OperatorError> {
        self.staged = 0;
        self.staging.rollback()
    }

    /// Number of committed rows.
    pub(super) fn committed(&self) -> u64 {
        self.committed
    }

    /// See [`Staging::flush`].
    pub(super) fn flush(&self) -> Option<Flush> {
        self.staging.flush()
    }

    /// The schema, with the journal's id.
    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The committed rows, batch by batch.
    pub(super) fn batches(
        &self,
    ) -> Result<impl Iterator<Item = Result<RecordBatch, OperatorError>>, OperatorError> {
        let file = File::open(&self.path).map_err(|e| broken(&self.path, &e))?;
        let content = Frames::new(BufReader::new(file.take(self.staging.committed())));
        let batches = StreamReader::try_new(content, None).map_err(|e| broken(&self.path, &e))?;
        Ok(batches.map(|batch| {
            batch.map_err(|error| match error {
                ArrowError::IoError(_, error) if error.kind() == ErrorKind::InvalidData => {
                    damaged(&self.path, &error.to_string())
                }
                error => broken(&self.path, &error),
            })
        }))
    }

    /// Checks that `rows`, the number of rows read, is the number committed.
    pub(super) fn expect(&self, rows: u64) -> Result<(), OperatorError> {
        match rows == self.committed {
            true => Ok(()),
            false => Err(damaged(&self.path, &format!("it has {rows} of {} rows", self.committed))),
        }
    }

    /// Leaves it to another process.
    pub(super) fn close(mut self) -> Result<(), OperatorError> {
        self.staging.release()
    }

    /// Removes it while this process holds the lock.
    pub(super) fn remove(mut self) -> Result<(), OperatorError> {
        tidemill_disk::remove(&self.path).map_err(|e| write_error(&self.path, &e))?;
        self.staging.release()
    }
}

/// Returns where the first `rows` rows of a journal end, `None` if it has fewer; and the number of rows up to there.
fn end_of(path: &Path, schema: &SchemaRef, rows: u64) -> Result<(Option<u64>, u64), OperatorError> {
    let Some((file, found)) = of_id(path, schema)? else { return Ok((None, 0)) };
    if found != *schema {
        return Err(other_columns(path));
    }
    whole(path, file, rows)
}

/// Returns whether the first `rows` rows of the journal with the id of this schema exist, whatever its columns, and how
/// many do. Changes nothing.
pub(super) fn count(path: &Path, schema: &Schema, rows: u64) -> Result<(bool, u64), OperatorError> {
    let Some((file, _)) = of_id(path, schema)? else { return Ok((false, 0)) };
    let (end, found) = whole(path, file, rows)?;
    Ok((end.is_some(), found))
}

/// Opens the journal with the id of this schema; returns it with its own schema.
fn of_id(path: &Path, schema: &Schema) -> Result<Option<(File, SchemaRef)>, OperatorError> {
    let open = || match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(write_error(path, &error)),
    };
    let Some(file) = open()? else { return Ok(None) };
    let mut frames = Frames::new(BufReader::new(file));
    match frames.next().map_err(|e| write_error(path, &e))? {
        Next::Frame { .. } => {}
        // A file without a whole schema is no journal yet.
        Next::End => return Ok(None),
        Next::Damaged => return Err(damaged(path, &frames.damage())),
    }
    let Ok(reader) = StreamReader::try_new(frames, None) else { return Ok(None) };
    let found = reader.schema();
    drop(reader);
    let file = if is_same_journal(&found, schema) { open()? } else { None };
    Ok(file.map(|file| (file, found)))
}

/// The error for missing committed rows.
fn damaged(path: &Path, what: &str) -> OperatorError {
    OperatorError::new(format!("`{}` is damaged: {what}: {LOST_HELP}", path.display()))
}

/// See [`end_of`]: verifies the checksums of all rows.
fn whole(path: &Path, file: File, rows: u64) -> Result<(Option<u64>, u64), OperatorError> {
    let mut frames = Frames::new(BufReader::new(file));
    let (mut found, mut is_schema) = (0, true);
    while is_schema || found < rows {
        match frames.next().map_err(|e| write_error(path, &e))? {
            Next::Frame { rows, .. } => found += rows,
            // A torn frame ends the journal.
            Next::End => return Ok((None, found)),
            Next::Damaged => return Err(damaged(path, &frames.damage())),
        }
        is_schema = false;
    }
    Ok(((found == rows).then_some(frames.at()), found))
}
