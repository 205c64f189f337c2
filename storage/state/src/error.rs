//! Errors of a state, with corrections.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::lock::Holder;
use crate::manifest::{FORMAT, PROGRAM};

/// Errors of a [`Store`](crate::Store).
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process, or another [`State`](crate::State) of this one, has it open.
    #[error(
        "the state in {place} is in use by {}: let it end, stop it, or name another place",
        holder_text(.holder.as_ref())
    )]
    Locked {
        /// The store.
        place: String,
        /// Its holder, where that can be read.
        holder: Option<Holder>,
    },
    /// The folder holds other things. Nothing was changed.
    #[error(
        "{place} contains `{found}`, which is not a part of a state: name an empty folder, or one that does not exist \
         yet (nothing was changed)"
    )]
    Foreign {
        /// The folder.
        place: String,
        /// One of its entries.
        found: String,
    },
    /// There is no state.
    #[error("there is no state in {place}: name the folder or bucket that was given to the run")]
    NoState {
        /// The folder.
        place: String,
    },
    /// The disk or the quota is full.
    #[error("no space left to write {path}: free some; the state from before is kept", path = .path.display())]
    Full {
        /// The file to write.
        path: PathBuf,
    },
    /// The disk is read-only, or this user may not write there.
    #[error(
        "{path} cannot be written ({source}): make its folder writable for this user, or name another one",
        path = .path.display()
    )]
    NotWritable {
        /// The file to write.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The manifest was replaced, but may not survive a loss of power: either it or the previous one is there then, and
    /// both are complete.
    #[error(
        "{path} was replaced, but the disk did not confirm it ({source}): see to the disk; the state from before \
         is kept too",
        path = .path.display()
    )]
    Unconfirmed {
        /// The manifest.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is no such object.
    #[error("there is no object {name} in {place}")]
    Missing {
        /// The store.
        place: String,
        /// The object.
        name: String,
    },
    /// An invalid name for a store.
    #[error("`{name}` is no name of an object (see is_object_name)")]
    Name {
        /// The name.
        name: String,
    },
    /// The store was opened for reading.
    #[error("{place} is open to be looked at only")]
    OnlyLooking {
        /// The store.
        place: String,
    },
    /// Another process has taken the state over, because this one was silent for too long. Nothing was written.
    #[error(
        "the state in {place} was taken over by {}: this process writes nothing more there; let the other one continue",
        holder_text(.holder.as_ref())
    )]
    TakenOver {
        /// The store.
        place: String,
        /// Its present holder, where that is known.
        holder: Option<Holder>,
    },
    /// A service that keeps the state did not confirm that the manifest was replaced: it is either the new or the
    /// previous one, and both are complete.
    #[error(
        "whether the checkpoint in {place} was written is not known: {reason}; the one before is kept too"
    )]
    Unanswered {
        /// The store.
        place: String,
        /// The reason.
        reason: String,
    },
    /// A service that keeps the state denies access: there is no such bucket, or it may not be used.
    #[error("{place} cannot be {doing}: {reason}")]
    Denied {
        /// The store, or a part of it.
        place: String,
        /// The attempted operation: "read", "written" and so on.
        doing: &'static str,
        /// The service's message, and a correction.
        reason: String,
    },
    /// A service that keeps the state cannot be reached, or fails.
    #[error("{place} cannot be {doing}: {reason}")]
    Service {
        /// The store, or a part of it.
        place: String,
        /// The attempted operation: "read", "written" and so on.
        doing: &'static str,
        /// The reason, and a correction.
        reason: String,
    },
    /// The program was built without what this kind of store needs.
    #[error("{place} cannot be used by this build: {fix}")]
    NotInBuild {
        /// The store.
        place: String,
        /// How to get it.
        fix: String,
    },
    /// Anything else.
    #[error("{path} cannot be {doing}: {source}", path = .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The attempted operation: "read", "written" and so on.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

fn holder_text(holder: Option<&Holder>) -> String {
    holder.map_or_else(|| "another process".to_owned(), Holder::to_string)
}

/// The value for `--to`: the epoch after all others has no number known to users.
fn epoch_text(epoch: u64) -> String {
    if epoch == u64::MAX { "`end`".to_owned() } else { epoch.to_string() }
}

fn kept_text(kept: &[u64]) -> String {
    match kept {
        [] => "it keeps none; `checkpoint: {keep: N}` in the workflow has more kept".to_owned(),
        kept => {
            let kept: Vec<_> = kept.iter().map(|epoch| epoch_text(*epoch)).collect();
            format!("it has those of {}", kept.join(", "))
        }
    }
}

impl StoreError {
    /// Whether the manifest may have been replaced nevertheless.
    pub fn is_unconfirmed(&self) -> bool {
        matches!(self, Self::Unconfirmed { .. } | Self::Unanswered { .. })
    }

    pub(crate) fn new(doing: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match Errno::from_io_error(&source) {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::Full { path },
            Some(Errno::ROFS | Errno::ACCESS | Errno::PERM) if doing != "read" => {
                Self::NotWritable { path, source }
            }
            _ => Self::Io { path, doing, source },
        }
    }
}

/// Why a state cannot be opened, read or committed.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// An error of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The state has another format version.
    #[error(
        "the state in {place} has format {found} (written by tidemill {written_by}), this is tidemill \
         {PROGRAM} with format {FORMAT}: continue with the version that wrote it, or start again in another \
         place"
    )]
    Format {
        /// The store.
        place: String,
        /// The state's format.
        found: u32,
        /// The version of the program that wrote it.
        written_by: String,
    },
    /// The manifest cannot be read.
    #[error(
        "the manifest of the state in {place} is damaged ({reason}): restore a copy, or start again in \
         another place"
    )]
    Manifest {
        /// The store.
        place: String,
        /// The problem.
        reason: String,
    },
    /// An object does not match the manifest.
    #[error(
        "the object {name} of the state in {place} {damage}: restore a copy, or start again in another \
         place"
    )]
    Corrupted {
        /// The store.
        place: String,
        /// The object.
        name: String,
        /// The problem.
        damage: Damage,
    },
    /// No checkpoint of this epoch is kept. Nothing was changed.
    #[error("the state in {place} keeps no older checkpoint of epoch {}: {}", epoch_text(*.epoch), kept_text(.kept))]
    NotKept {
        /// The store.
        place: String,
        /// The requested epoch.
        epoch: u64,
        /// The kept epochs.
        kept: Vec<u64>,
    },
    /// The manifest of a commit does not fit the state or its objects. Nothing was written.
    #[error("this manifest cannot be committed: {0}")]
    Refused(String),
}

/// Damage of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// It is not there.
    #[error("is missing")]
    Missing,
    /// It is shorter or longer.
    #[error("has {found} bytes instead of {expected}")]
    Length {
        /// Length by the manifest.
        expected: u64,
        /// Actual length.
        found: u64,
    },
    /// It has other bytes.
    #[error("has another checksum than the manifest says")]
    Checksum,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_epoch_behind_all_others_is_called_the_end() {
        let error = |epoch, kept: &[u64]| {
            StateError::NotKept { place: "a".to_owned(), epoch, kept: kept.to_vec() }.to_string()
        };
        assert_eq!(
            error(7, &[u64::MAX, 40]),
            "the state in a keeps no older checkpoint of epoch 7: it has those of `end`, 40"
        );
        assert!(error(u64::MAX, &[40]).contains("of epoch `end`: it has those of 40"));
    }

    #[test]
    fn a_full_or_read_only_disk_is_told_from_other_errors() {
        let error = |doing, errno: Errno| StoreError::new(doing, Path::new("a/b"), errno.into());
        for errno in [Errno::NOSPC, Errno::DQUOT] {
            let error = error("synced", errno);
            assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
            assert!(error.to_string().contains("write a/b: free some"), "{error}");
        }
        for errno in [Errno::ROFS, Errno::ACCESS, Errno::PERM] {
            let written = error("written", errno);
            assert!(matches!(written, StoreError::NotWritable { .. }), "{written:?}");
            assert!(written.to_string().contains("make its folder writable"), "{written}");
            assert!(matches!(error("read", errno), StoreError::Io { .. }));
        }
        assert!(matches!(error("written", Errno::IO), StoreError::Io { .. }));
    }
}
