//! Collects records and makes the videos from them at the end.
use super::render::Render;
use crate::api::{Flush, OperatorError, Sink};
use crate::sinks::journal::{self, Journal, JournalContent};
use crate::sinks::staging::{LOST_HELP, read_token, write_token};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_spec::publication::Publication;

/// Data that another process needs to continue.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    /// Id of the journal.
    journal: String,
    /// Committed rows.
    rows: u64,
}

/// The sink; see the module above.
pub(super) struct Writer {
    render: Arc<Render>,
    id: String,
    schema: SchemaRef,
    /// Whether another process may continue it, also after the end.
    durable: bool,
    /// `None` once the videos are made or left to another process.
    journal: Option<Journal>,
}

impl Writer {
    /// Starts from nothing without a token, else continues.
    pub(super) fn open(
        render: Arc<Render>,
        rows: &Path,
        durable: bool,
        token: Option<&[u8]>,
    ) -> Result<Self, OperatorError> {
        let token = token.map(|token| read_token::<Token>(rows, token)).transpose()?;
        if token.is_none() {
            render.check_outputs()?;
        }
        let id = token.as_ref().map_or_else(journal::new_id, |token| token.journal.clone());
        let schema = journal::schema(&render.columns.schema(), &id);
        let journal = match token {
            None => Journal::create(rows, Arc::clone(&schema))?,
            Some(token) => match Journal::resume(rows, &schema, token.rows)? {
                JournalContent::Whole(journal) => *journal,
                JournalContent::Rows(found) => {
                    return Err(OperatorError::new(format!(
                        "cannot continue the video: {} records of it are committed, but `{}`, which stores \
                         them, has {found} of them: {LOST_HELP}",
                        token.rows,
                        PathBuf::from(rows).display()
                    )));
                }
            },
        };
        Ok(Self { render, id, schema, durable, journal: Some(journal) })
    }
}

impl Sink for Writer {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let columns = self.render.columns.of(batch);
        let rows = RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .map_err(|error| OperatorError::new(format!("video: {error}")))?;
        journal.append(&rows)
    }

    fn commit(&mut self, _epoch: u64) -> Result<(), OperatorError> {
        self.journal.as_mut().map_or(Ok(()), Journal::commit)
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        self.journal.as_mut().map_or(Ok(()), Journal::rollback)
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        let Some(mut journal) = self.journal.take() else { return Ok(()) };
        journal.rollback()?;
        let rendered = self.render.videos(&journal);
        match rendered {
            Ok(()) if self.durable => journal.close(),
            Ok(()) => journal.remove(),
            Err(error) => {
                let kept = "the records are stored beside it, and a run that continues creates it again";
                Err(OperatorError::new(format!("{}; {kept}", error.message)))
            }
        }
    }

    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        let Some(journal) = &self.journal else { return Ok(None) };
        write_token(&Token { journal: self.id.clone(), rows: journal.committed() }).map(Some)
    }

    fn flush(&self) -> Option<Flush> {
        self.journal.as_ref().and_then(Journal::flush)
    }

    fn suspend(&mut self) -> Result<(), OperatorError> {
        self.journal.take().map_or(Ok(()), Journal::close)
    }

    fn exactly_once(&self) -> bool {
        true
    }

    fn publication(&self) -> Publication {
        Publication::AtEnd
    }
}
