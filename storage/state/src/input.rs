//! Input of a source at a checkpoint, so that a later run can detect changes.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// A file, or the files of a folder, as they were at a checkpoint. Only the ends of their contents are compared:
/// reading all of a large file at each checkpoint would cost more than the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum InputState {
    /// One file.
    File {
        /// Its path in messages.
        path: String,
        /// Its length.
        bytes: u64,
        /// Digest of its first bytes: [`InputState::WINDOW`] of them, or all.
        first: Digest,
        /// Digest of its last bytes, equally many.
        last: Digest,
        /// Time of its last modification, nanoseconds since 1970.
        modified: i64,
    },
    /// The files of a folder, in the order of their names.
    Folder {
        /// Its path in messages.
        path: String,
        /// Number of files.
        files: u64,
        /// Bytes of all of them.
        bytes: u64,
        /// Digest of their names and lengths.
        listing: Digest,
        /// Time of the last modification of any of them, nanoseconds since 1970.
        modified: i64,
    },
}

impl InputState {
    /// Bytes to compare at each end of a file.
    pub const WINDOW: u64 = 64 << 10;

    /// Returns the path for messages.
    pub fn path(&self) -> &str {
        match self {
            Self::File { path, .. } | Self::Folder { path, .. } => path,
        }
    }
}
