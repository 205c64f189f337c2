//! Errors of profiling.
use std::path::{Path, PathBuf};
use tidemill_operators::api::OperatorError;
use tidemill_spec::diagnostic::Diagnostics;

/// Error of profiling.
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
        /// Cause.
        error: OperatorError,
    },
    /// A source can be read only once: by the profiler or by the run.
    #[error("`{0}` reads {1}, which can be read only once: save a part of it as a file to measure with")]
    Stream(String, String),
    /// A source has no records.
    #[error("`{0}` gives no records: there is nothing to measure with")]
    NoRecords(String),
    /// A file of the profiler cannot be read or written.
    #[error("`{}`: {error}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Cause.
        error: std::io::Error,
    },
    /// A measuring process cannot be started, or ended early.
    #[error("the process that measures {what}: {error}")]
    Process {
        /// The measured task.
        what: String,
        /// Description.
        error: String,
    },
    /// Profiling was interrupted; the measurements of [`crate::profile`] are kept.
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
