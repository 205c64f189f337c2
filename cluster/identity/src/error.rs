//! Errors of this side; refusals to the other side are in `refusal`.
use std::io;
use std::path::{Path, PathBuf};

use crate::refusal::Refusal;
use crate::token::NoRandomness;

/// The folder of an authority, or of a worker's identity, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system refuses.
    #[error("{path} cannot be {done}: {source}", path = path.display())]
    Io {
        /// The operation: `read`, `written`.
        done: &'static str,
        /// To which file or folder.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{path} is in use by {holder}: end that process first, or use it", path = path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
        /// The process, as it describes itself.
        holder: String,
    },
    /// Others on this machine could read the keys.
    #[error("{path} is open to other users of this machine (mode {mode:03o}): \
         chmod {wanted:03o} it, and if another user can have read the keys, create a new authority", path = path.display())]
    Exposed {
        /// The file or folder.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// The required permissions.
        wanted: u32,
    },
    /// The content differs from what was written.
    #[error("{path} is damaged ({why}): restore a copy of the whole folder", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The error.
        why: String,
    },
    /// The register is not in the folder, and cannot be read or written where it is.
    #[error("{place}: {why}")]
    Elsewhere {
        /// Its place.
        place: String,
        /// The error.
        why: String,
    },
    /// The register is shared, and the key of its authority is not here.
    #[error("{place} is of the cluster with the authority {authority}, whose key is missing here: copy `identities/authority.pem` from the folder of \
         another controller to {path} (mode 600)", path = path.display())]
    NoKey {
        /// Where the key should be.
        path: PathBuf,
        /// Where the register is.
        place: String,
        /// The fingerprint of its authority.
        authority: String,
    },
    /// There is no authority, and none was to be made.
    #[error("there is no authority in {path}: start the controller once to create it, or name another folder", path = path.display())]
    Absent {
        /// The folder.
        path: PathBuf,
    },
    /// Other things lie there.
    #[error("{path} contains {file:?}, which does not belong there: name an empty folder or one that does not exist", path = path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// One of them.
        file: String,
    },
}

impl StoreError {
    pub(crate) fn io(done: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { done, path, source }
    }

    pub(crate) fn damaged(path: &Path, why: impl ToString) -> Self {
        Self::Damaged { path: path.to_owned(), why: why.to_string() }
    }
}

/// Why an authority rejected a request.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The peer, or the person, may not have it: see [`Refusal`] for the texts for each side.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// It could not be kept, so it does not count: try again.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A certificate or a key cannot be made or read.
    #[error("certificates: {0}")]
    Certificate(String),
    /// The system gives no random bytes.
    #[error("{0}")]
    NoRandomness(#[from] NoRandomness),
    /// The request is impossible; the text says what is possible.
    #[error("{0}")]
    Invalid(String),
    /// There is nothing of this name.
    #[error("there is no {0}")]
    NoSuch(String),
}

impl IdentityError {
    pub(crate) fn certificate(error: impl ToString) -> Self {
        Self::Certificate(error.to_string())
    }

    /// The refusal, if it is one; otherwise the fault is on this side.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}
