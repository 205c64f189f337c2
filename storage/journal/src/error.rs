//! Errors of a journal.
use std::io;
use std::path::{Path, PathBuf};

/// Why a journal is unusable.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// An error of the disk or its permissions.
    #[error("the journal `{}` cannot be {what}: {source}: {}", path.display(), help(source))]
    Io {
        /// The attempted operation: `read`, `written`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Its content is not what was written.
    #[error(
        "the journal `{}` is damaged: {reason}: {LOST_HELP}", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The finding.
        reason: String,
    },
    /// It was written for a source that reads something else.
    #[error(
        "the journal `{}` is of another source, or of one that has changed since: undo the change, or start \
         from the beginning with `tidemill state reset`", path.display()
    )]
    OfAnother {
        /// The folder.
        path: PathBuf,
    },
    /// The requested data is not in it.
    #[error(
        "the journal `{}` has bytes {first} to {end} of the stream, and byte {wanted} is wanted: {LOST_HELP}", path.display()
    )]
    NotThere {
        /// The folder.
        path: PathBuf,
        /// First byte that it has.
        first: u64,
        /// The byte after its last one.
        end: u64,
        /// The requested byte.
        wanted: u64,
    },
    /// The stream starts with the same bytes as the previous one. Nothing of it was taken.
    #[error(
        "the stream begins with the {bytes} bytes that the first one began with, of which {end} bytes have been read: its producer \
         sends everything again, and it would count twice: let it continue after byte {end}, {AGAIN_HELP}"
    )]
    Again {
        /// Number of equal bytes.
        bytes: usize,
        /// Bytes read from the previous stream.
        end: u64,
    },
    /// Reading the stream itself fails.
    #[error("{0}")]
    Stream(#[source] io::Error),
}

/// Advice for a journal without the written data.
const LOST_HELP: &str =
    "restore it from a copy of the whole state, or start from the beginning with `tidemill state reset`";

/// Whether the text of an error reports a damaged journal, or missing data.
pub fn is_of_loss(text: &str) -> bool {
    text.ends_with(LOST_HELP)
}

/// Advice for a stream that starts again.
const AGAIN_HELP: &str = "or start from the beginning with `tidemill state reset`; if these are new \
                          records, put an empty line before them";

/// Whether the text of an error reports a stream that starts again.
pub fn is_of_again(text: &str) -> bool {
    text.ends_with(AGAIN_HELP)
}

impl JournalError {
    pub(crate) fn io(what: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { what, path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.into() }
    }
}

impl From<JournalError> for io::Error {
    fn from(error: JournalError) -> Self {
        io::Error::other(error.to_string())
    }
}

fn help(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space, then the same command continues"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "allow writing to the folder of the state"
        }
        _ => "check the disk",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_told_from_what_a_disk_says() {
        let path = Path::new("state/journals/events");
        let lost = [
            JournalError::damaged(path, "what is behind byte 72 is wrong"),
            JournalError::NotThere { path: path.to_owned(), first: 0, end: 9, wanted: 10 },
        ];
        for error in lost {
            let text = io::Error::from(error).to_string();
            assert!(is_of_loss(&text) && !is_of_again(&text), "{text}");
        }
        let text = JournalError::io("read", path, io::ErrorKind::NotFound.into()).to_string();
        assert!(!is_of_loss(&text), "{text}");
    }
}
