//! What a source read when a checkpoint was written, so that whoever goes on can tell whether it is still that.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// A file, or the files of a folder, as they were at a checkpoint. Their contents are known by their ends only: to read all of a
/// large file at each checkpoint would cost more than the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum InputState {
    /// One file.
    File {
        /// Its path as messages show it.
        path: String,
        /// Its length.
        bytes: u64,
        /// Of its first bytes: [`InputState::WINDOW`] of them, or all.
        first: Digest,
        /// Of its last bytes, as many.
        last: Digest,
        /// When it was last written, nanoseconds since 1970.
        modified: i64,
    },
    /// The files of a folder that are read, in the order of their names.
    Folder {
        /// Its path as messages show it.
        path: String,
        /// How many files.
        files: u64,
        /// Bytes of all of them.
        bytes: u64,
        /// Of their names and lengths.
        listing: Digest,
        /// When the last of them was written, nanoseconds since 1970.
        modified: i64,
    },
}

impl InputState {
    /// Bytes at each end of a file that are looked at.
    pub const WINDOW: u64 = 64 << 10;

    /// The path, as messages show it.
    pub fn path(&self) -> &str {
        match self {
            Self::File { path, .. } | Self::Folder { path, .. } => path,
        }
    }
}
