//! What can go wrong with a journal.
use std::io;
use std::path::{Path, PathBuf};

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk or its permissions.
    #[error("the journal `{}` cannot be {what}: {source}: {}", path.display(), help(source))]
    Io {
        /// What was tried: `read`, `written`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// What is in it is not what was written.
    #[error(
        "the journal `{}` is damaged: {reason}: {LOST_HELP}", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// It was written for a source that reads something else.
    #[error(
        "the journal `{}` is of another source, or of one that has changed since: undo the change, or begin anew with \
         `tidemill state reset`", path.display()
    )]
    OfAnother {
        /// The folder.
        path: PathBuf,
    },
    /// It does not have what is wanted from it.
    #[error(
        "the journal `{}` has bytes {first} to {end} of the stream, and byte {wanted} is wanted: {LOST_HELP}", path.display()
    )]
    NotThere {
        /// The folder.
        path: PathBuf,
        /// First byte that it has.
        first: u64,
        /// Byte behind the last one that it has.
        end: u64,
        /// What was wanted.
        wanted: u64,
    },
    /// The stream begins with the bytes that the one before began with. Nothing of it was taken.
    #[error(
        "the stream begins with the {bytes} bytes that the first one began with, of which {end} bytes have been read: its producer \
         sends everything again, and it would count twice: have it go on behind byte {end}, {AGAIN_HELP}"
    )]
    Again {
        /// Bytes that are the same.
        bytes: usize,
        /// Bytes that were read of the stream before.
        end: u64,
    },
    /// The stream itself cannot be read.
    #[error("{0}")]
    Stream(#[source] io::Error),
}

/// What to do about a journal that does not have what was written.
const LOST_HELP: &str =
    "restore it from a copy of the whole state, or begin anew with `tidemill state reset`";

/// Whether the text of an error says that a journal is damaged, or does not have what is wanted from it.
pub fn is_of_loss(text: &str) -> bool {
    text.ends_with(LOST_HELP)
}

/// What to do about a stream that begins again.
const AGAIN_HELP: &str = "or begin anew with `tidemill state reset`; where these are new records all the same, put an empty line \
                          in front of them";

/// Whether the text of an error says that a stream has begun again.
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
            "free some space, then the same command goes on"
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
