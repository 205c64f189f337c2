//! Control groups: what they tell and what they are told, the same for both versions of them.
//!
//! Processor time is counted in microseconds per period throughout: a quota of 50 000 with a period of 100 000 is half a
//! processor.
mod files;
mod hierarchy;
mod v1;
mod v2;

pub use hierarchy::{Hierarchy, HierarchyError, Version};
pub use v1::GroupV1;
pub use v2::GroupV2;
#[cfg(test)]
pub(crate) use v2::tests::group as v2_files;

use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The least quota that the kernel takes, microseconds per period.
pub const LEAST_QUOTA: u64 = 1_000;
/// Limits of memory from here on are none: the kernel's own word for it, rounded to pages, is a little less than 2^63.
const NO_MEMORY_LIMIT: u64 = 1 << 60;

/// What a group has counted since it was made, and what it has now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Processor time of all its processes, microseconds.
    pub used: u64,
    /// Periods in which it had something to do and a quota.
    pub periods: u64,
    /// Those of them in which it had to wait for the next one.
    pub throttled: u64,
    /// How long its processes waited for that, microseconds, added up over processors.
    pub throttled_time: u64,
    /// Bytes of memory, with cached files.
    pub memory: u64,
    /// How often it reached a limit of memory that makes it wait (`memory.high` of version 2; version 1: 0).
    pub pressed: u64,
    /// Processes that the kernel ended for lack of memory.
    pub killed: u64,
}

/// The limits of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Microseconds of processor time per period; none: not limited.
    pub quota: Option<u64>,
    /// Length of a period, microseconds.
    pub period: u64,
    /// Bytes of memory; none: not limited.
    pub memory: Option<u64>,
}

/// Files of a group with the text that they had: written back, they restore it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// In the order in which they are written.
    pub files: Vec<(PathBuf, String)>,
}

impl Found {
    /// Writes all of it back. A limit may only fit once another one is there, so what is refused is tried again at the end. A limit of memory
    /// that is lower than what is in use now is refused, and stays higher: no process is ended by it.
    ///
    /// # Errors
    /// The last refusal of each file that could not be written. Files that are gone are no error: so is their container.
    pub fn restore(&self) -> Result<(), Vec<GroupError>> {
        let write = |(path, text): &&(PathBuf, String)| {
            v2::put_back(path, text).unwrap_or_else(|| files::write(path, text))
        };
        let mut left: Vec<&(PathBuf, String)> = self.files.iter().collect();
        let mut failed = Vec::new();
        for _ in 0..self.files.len().max(1) {
            failed.clear();
            let mut refused = Vec::new();
            for file in left {
                match write(&file) {
                    Ok(()) | Err(GroupError::Gone { .. }) => {}
                    Err(error) => {
                        failed.push(error);
                        refused.push(file);
                    }
                }
            }
            left = refused;
            if left.is_empty() {
                return Ok(());
            }
        }
        Err(failed)
    }
}

/// Why a group cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// It is not there any more: its container has ended.
    #[error("{}: the control group is gone", path.display())]
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("{}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The system refuses a value.
    #[error("{} does not take `{value}`: {source}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What was written.
        value: String,
        /// Why.
        source: io::Error,
    },
    /// It is not what the kernel writes.
    #[error("{}: {what} is missing in `{}`", path.display(), text.trim())]
    Format {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
        /// What the file has.
        text: String,
    },
}

impl GroupError {
    /// Whether the group has ended.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }
}

/// A control group, or what stands for one in a test.
pub trait Group: Send {
    /// Its folder, of version 1 that with the memory.
    fn folder(&self) -> &Path;

    /// What it has counted: a few short reads.
    ///
    /// # Errors
    /// It is gone, or the system refuses.
    fn counters(&mut self) -> Result<Counters, GroupError>;

    /// Bytes of memory without cached files that nobody has used lately: the kernel takes those away by itself. Dearer to read
    /// than the counters.
    ///
    /// # Errors
    /// It is gone, or the system refuses.
    fn working_set(&mut self) -> Result<u64, GroupError>;

    /// Its limits of now.
    ///
    /// # Errors
    /// It is gone, or the system refuses.
    fn limits(&self) -> Result<Limits, GroupError>;

    /// All that this program may change, as it is now.
    ///
    /// # Errors
    /// It is gone, or the system refuses.
    fn found(&self) -> Result<Found, GroupError>;

    /// Limits its processor time, microseconds per period.
    ///
    /// # Errors
    /// It is gone, or the system refuses: the quota of a group above it is smaller, for instance.
    fn set_quota(&mut self, quota: u64, period: u64) -> Result<(), GroupError>;

    /// Limits its memory. Less than it has makes the kernel take back what it can, and may take a while.
    ///
    /// # Errors
    /// It is gone, or the system refuses: so much cannot be taken back.
    fn set_memory(&mut self, bytes: u64) -> Result<(), GroupError>;

    /// Limits its memory where nobody will raise that again: a process that wants more is ended, and does not wait.
    ///
    /// # Errors
    /// As [`Group::set_memory`].
    fn set_fixed_memory(&mut self, bytes: u64) -> Result<(), GroupError> {
        self.set_memory(bytes)
    }

    /// From now on its processes wait when memory runs out instead of being ended, and whoever reads the descriptor is told.
    /// None: the kernel has no such means (version 2); there, processes are slowed down at the limit and [`Counters::pressed`] counts.
    ///
    /// # Errors
    /// It is gone, or the system refuses.
    fn trap(&mut self) -> Result<Option<OwnedFd>, GroupError>;

    /// Whether its processes wait for memory at this moment.
    ///
    /// # Errors
    /// It is gone, or the system refuses.
    fn is_stuck(&self) -> Result<bool, GroupError>;

    /// Lets the kernel end a process when memory runs out (true), or has them wait (false).
    ///
    /// # Errors
    /// It is gone, or the system refuses.
    fn let_kill(&mut self, yes: bool) -> Result<(), GroupError>;
}
