//! Control groups: common interface to read and write both versions.
//!
//! Processor time is in microseconds per period throughout: a quota of 50 000 with a period of 100 000 is half a processor.
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

/// The least quota that the kernel accepts, microseconds per period.
pub const LEAST_QUOTA: u64 = 1_000;
/// Memory limits from here on mean none: the kernel's own value, rounded to pages, is a little less than 2^63.
const NO_MEMORY_LIMIT: u64 = 1 << 60;

/// Counters of a group since its creation, and its current memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Processor time of all its processes, microseconds.
    pub used: u64,
    /// Periods in which it was active and had a quota.
    pub periods: u64,
    /// Periods in which it was throttled.
    pub throttled: u64,
    /// Throttled time of its processes, microseconds, summed over processors.
    pub throttled_time: u64,
    /// Bytes of memory, including cached files.
    pub memory: u64,
    /// Number of times that it reached a memory limit that makes it wait (`memory.high` of version 2; version 1: 0).
    pub pressed: u64,
    /// Processes that the kernel killed for lack of memory.
    pub killed: u64,
}

/// The limits of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Microseconds of processor time per period; `None`: unlimited.
    pub quota: Option<u64>,
    /// Length of a period, microseconds.
    pub period: u64,
    /// Bytes of memory; `None`: unlimited.
    pub memory: Option<u64>,
}

/// Original texts of a group's files: writing them restores the limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// In the order of writing.
    pub files: Vec<(PathBuf, String)>,
}

impl Found {
    /// Writes everything back. A limit may only fit after another one, so refused files are tried again at the end. A
    /// memory limit below the current use is refused and stays higher: no process is killed by it.
    ///
    /// # Errors
    /// The last refusal of each file that could not be written. Missing files are no error: their container is gone too.
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

/// Error of reading or writing a group.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The group no longer exists: its container has ended.
    #[error("{}: the control group is gone", path.display())]
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// The system refuses access.
    #[error("{}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The system refuses a value.
    #[error("{} does not accept `{value}`: {source}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The value written.
        value: String,
        /// Cause.
        source: io::Error,
    },
    /// The kernel's format is not recognised.
    #[error("{}: {what} is missing in `{}`", path.display(), text.trim())]
    Format {
        /// The file.
        path: PathBuf,
        /// The expected field.
        what: &'static str,
        /// The text of the file.
        text: String,
    },
}

impl GroupError {
    /// Whether the group has ended.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }
}

/// A control group, or its substitute in a test.
pub trait Group: Send {
    /// Its folder, in version 1 that of the memory controller.
    fn folder(&self) -> &Path;

    /// Reads its counters: a few short reads.
    ///
    /// # Errors
    /// It is gone, or the system refuses.
    fn counters(&mut self) -> Result<Counters, GroupError>;

    /// Reads the bytes of memory without inactive cached files, which the kernel reclaims by itself. More expensive than
    /// the counters.
    ///
    /// # Errors
    /// It is gone, or the system refuses.
    fn working_set(&mut self) -> Result<u64, GroupError>;

    /// Reads its current limits.
    ///
    /// # Errors
    /// It is gone, or the system refuses.
    fn limits(&self) -> Result<Limits, GroupError>;

    /// Reads everything that this program may change.
    ///
    /// # Errors
    /// It is gone, or the system refuses.
    fn found(&self) -> Result<Found, GroupError>;

    /// Limits its processor time, microseconds per period.
    ///
    /// # Errors
    /// It is gone, or the system refuses: for instance, a parent group has a smaller quota.
    fn set_quota(&mut self, quota: u64, period: u64) -> Result<(), GroupError>;

    /// Limits its memory. A limit below its use makes the kernel reclaim memory, which may take a while.
    ///
    /// # Errors
    /// It is gone, or the system refuses: too little can be reclaimed.
    fn set_memory(&mut self, bytes: u64) -> Result<(), GroupError>;

    /// Sets a memory limit that is not raised later: a process that exceeds it is killed, and does not wait.
    ///
    /// # Errors
    /// See [`Group::set_memory`].
    fn set_fixed_memory(&mut self, bytes: u64) -> Result<(), GroupError> {
        self.set_memory(bytes)
    }

    /// Makes its processes wait when memory runs out instead of being killed; the descriptor signals that. `None`: the
    /// kernel does not support it (version 2); there, processes are slowed down at the limit and [`Counters::pressed`]
    /// counts.
    ///
    /// # Errors
    /// It is gone, or the system refuses.
    fn trap(&mut self) -> Result<Option<OwnedFd>, GroupError>;

    /// Whether its processes are waiting for memory.
    ///
    /// # Errors
    /// It is gone, or the system refuses.
    fn is_stuck(&self) -> Result<bool, GroupError>;

    /// Lets the kernel kill a process when memory runs out (true), or makes them wait (false).
    ///
    /// # Errors
    /// It is gone, or the system refuses.
    fn let_kill(&mut self, yes: bool) -> Result<(), GroupError>;
}
