//! Facts in PostgreSQL: a row for each part, written by the controller that leads.
use super::keeper::{Changed, KINDS, Keeper};
use super::{Document, FactsError};
use std::sync::Arc;
use tidemill_postgres::{Change, Lead, PostgresError};

/// See the module.
pub(super) struct Shared(Arc<Lead>);

impl Shared {
    /// Reads the stored document.
    pub(super) fn open(lead: &Arc<Lead>) -> Result<(Self, Document), FactsError> {
        let mut document = Document::default();
        for kind in KINDS {
            for (name, value) in lead.all(kind)? {
                document.take(kind, &name, Some(&value)).map_err(|reason| FactsError::Row {
                    place: lead.place(),
                    kind: kind.to_owned(),
                    name,
                    reason,
                })?;
            }
        }
        Ok((Self(Arc::clone(lead)), document))
    }
}

impl Keeper for Shared {
    fn keep(&mut self, changes: &[Changed], _: &Document) -> Result<(), FactsError> {
        let row = |changed: &Changed| -> (&'static str, String, Option<Vec<u8>>) {
            (changed.kind, changed.name.clone(), changed.value.clone().map(String::into_bytes))
        };
        let rows: Vec<_> = changes.iter().map(row).collect();
        let rows: Vec<Change<'_>> =
            rows.iter().map(|(kind, name, bytes)| Change { kind, name, bytes: bytes.as_deref() }).collect();
        self.0.write(&rows).map_err(|error: PostgresError| error.into())
    }
}
