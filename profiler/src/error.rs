//! Why a workflow cannot be profiled.
use std::path::{Path, PathBuf};
use tidemill_operators::api::OperatorError;
use tidemill_spec::diagnostic::Diagnostics;

/// Why a workflow cannot be profiled.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The workflow, a manifest or a model is wrong.
    #[error("{0}")]
    Files(#[from] Diagnostics),
    /// An operator or source failed as a whole.
    #[error("`{operator}` failed: {error}")]
    Operator {
        /// Its id.
        operator: String,
        /// What it said.
        error: OperatorError,
    },
    /// A source can be read only once: by what measures, or by the run.
    #[error("`{0}` reads {1}, which can be read only once: save a part of it as a file to measure with")]
    Stream(String, String),
    /// A source gave no records.
    #[error("`{0}` gives no records: there is nothing to measure with")]
    NoRecords(String),
    /// A file of the profiler cannot be read or written.
    #[error("`{}`: {error}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A process that measures cannot be started, or ended too early.
    #[error("the process that measures {what}: {error}")]
    Process {
        /// What it measures.
        what: String,
        /// What happened.
        error: String,
    },
    /// Somebody wants it to end; what [`crate::profile`] measured is kept.
    #[error("interrupted")]
    Interrupted,
}

impl ProfileError {
    pub(crate) fn file(path: &Path, error: impl Into<std::io::Error>) -> Self {
        Self::File { path: path.to_owned(), error: error.into() }
    }

    pub(crate) fn operator(operator: &str) -> impl FnOnce(OperatorError) -> Self {
        let operator = operator.to_owned();
        move |error| Self::Operator { operator, error }
    }
}
