//! State that several controllers share besides the facts: states of runs, files of workflows, dead letters, and the register of the
//! authority. Stored as rows in PostgreSQL, written by the leader.
//!
//! | kind | name | bytes |
//! |---|---|---|
//! | `authority` | `register` | the register |
//! | `state:RUN` | an object, or `manifest.json` | the state of a run |
//! | `blob` | a digest | a file of a workflow: how many bytes, and since when |
//! | `blob:DIGEST` | a number | its parts |
//! | `log:RUN` | the number of a line | lines of its log from there on |
//! | `letters:RUN` | from which byte on | a part of the file of dead letters |
mod files;
mod letters;
mod logs;
mod register;
mod state;

pub(super) use files::SharedFiles;
pub(super) use letters::{restore as restore_letters, share as share_letters};
pub(super) use logs::SharedLogs;
pub(super) use register::SharedRegister;
pub(super) use state::SharedState;

use std::sync::Arc;
use tidemill_postgres::{Lead, PostgresError};

/// Clears everything of a run that has been removed or whose name is used again.
pub(super) fn clear_run(lead: &Arc<Lead>, run: &str) -> Result<(), PostgresError> {
    lead.clear(&state::kind(run))?;
    lead.clear(&letters::kind(run))?;
    lead.clear(&logs::kind(run))
}
