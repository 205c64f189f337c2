//! Integer programs solved by [HiGHS](https://highs.dev), whose library is loaded at run time.
//!
//! Nothing is compiled: the library is the one in the `highspy` package of the Python package index
//! (`scripts/fetch-library.sh highs`), or any other build of HiGHS 1.7 or newer with its C interface. The crate has two
//! parts: the C functions (`library.rs`, the only unsafe code) and a [`Program`] that is checked before they get it.
//!
//! A solve uses one thread and HiGHS' own fixed seed, so that answers are reproducible.
//!
//! ```no_run
//! use tidemill_highs::{Highs, Program, Settings, Status};
//! let highs = Highs::open("libhighs.so.1.15.1".as_ref())?;
//! // Least x + y with 2 x + 3 y >= 4, both whole numbers from 0 to 9.
//! let mut program = Program::default();
//! let (x, y) = (program.column(1.0, 0.0, 9.0, true), program.column(1.0, 0.0, 9.0, true));
//! program.row(4.0, f64::INFINITY, [(x, 2.0), (y, 3.0)]);
//! let solved = highs.solve(&program, &Settings::default())?;
//! assert_eq!((solved.status, solved.objective), (Status::Optimal, 2.0));
//! # Ok::<(), tidemill_highs::HighsError>(())
//! ```
mod library;
mod program;

pub use program::{Column, Program};

#[cfg(test)]
mod tests;

use library::Library;
use std::path::{Path, PathBuf};

/// Why HiGHS cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HighsError {
    /// The file is no library, or not one of HiGHS.
    #[error("cannot load `{}`: {reason}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// The system's error, or the missing part.
        reason: String,
    },
    /// HiGHS rejected an input, or ended with an internal error.
    #[error("HiGHS refused {0}")]
    Refused(&'static str),
}

/// The library. It is loaded once per process and stays loaded, so a handle is cheap to copy.
#[derive(Debug, Clone, Copy)]
pub struct Highs(&'static Library);

impl PartialEq for Highs {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Highs {}

impl Highs {
    /// Loads the library of this file; a second call with the same file returns the same handle.
    ///
    /// # Errors
    /// When it cannot be loaded, lacks a function or was built with 64-bit indices.
    pub fn open(path: &Path) -> Result<Self, HighsError> {
        library::open(path).map(Self).map_err(|reason| HighsError::Load { path: path.to_owned(), reason })
    }

    /// Returns its version, such as `1.15.1`.
    pub fn version(self) -> &'static str {
        self.0.version()
    }

    /// Returns the file it was loaded from.
    pub fn path(self) -> &'static Path {
        self.0.path()
    }

    /// Minimises the program.
    ///
    /// # Errors
    /// When HiGHS rejects a number or ends with an internal error; nothing is known then.
    pub fn solve(self, program: &Program, settings: &Settings<'_>) -> Result<Solved, HighsError> {
        if !program.is_sound() {
            return Err(HighsError::Refused(
                "a cost or coefficient that is not finite, or a bound that is not a number",
            ));
        }
        self.0.solve(program, settings)
    }
}

/// Settings of a solve.
#[derive(Debug, Clone, Copy)]
pub struct Settings<'a> {
    /// Stop at a point that is proven to cost at most this share more than any other. Default: 1e-6.
    pub relative_gap: f64,
    /// Largest distance of an integer from a whole number. Default: 1e-8.
    pub integer_tolerance: f64,
    /// Seconds of wall clock; default: no limit.
    pub seconds: f64,
    /// Nodes of the search tree; default: no limit.
    pub nodes: Option<u64>,
    /// An initial point, one value per column; a hint only.
    pub start: Option<&'a [f64]>,
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Self { relative_gap: 1e-6, integer_tolerance: 1e-8, seconds: f64::INFINITY, nodes: None, start: None }
    }
}

/// Outcome of a solve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The point is proven to be the best within the gap.
    Optimal,
    /// There is no point.
    Infeasible,
    /// The time limit ended the search.
    TimeLimit,
    /// The node limit (or another count) ended the search.
    NodeLimit,
    /// Anything else: unbounded, or unknown to HiGHS.
    Unknown,
}

/// Result of a solve.
#[derive(Debug, Clone, PartialEq)]
pub struct Solved {
    /// How it ended.
    pub status: Status,
    /// The best point found, one value per column.
    pub values: Option<Vec<f64>>,
    /// Its cost; 0 without a point.
    pub objective: f64,
    /// No point costs less; none where nothing is proven.
    pub bound: Option<f64>,
    /// Nodes of the search tree; 0 for a program without integers.
    pub nodes: u64,
}
