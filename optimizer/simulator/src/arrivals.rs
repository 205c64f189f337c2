//! Arrival times of records: even, random, or from a trace.
mod levels;
mod schedule;
mod trace;

use crate::network::Nanoseconds;
pub use levels::{Division, Levels, LoadBin, Price, cheapest_levels, coarsened, divisions, histogram};
pub use schedule::{LevelUse, Schedule, Spell, Switching};
pub use trace::{Trace, TraceError};

/// Spacing of the records of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Spacing {
    /// Evenly: record `i` is due `i` intervals after the start, as open-loop sources of the engine emit.
    #[default]
    Constant,
    /// At random: a Poisson process of equal rate. Sources whose records meet in a join share one process, so that
    /// partners arrive together.
    Poisson,
}

/// The emission times of the sources.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Arrivals {
    /// Spacing of the records.
    pub spacing: Spacing,
    /// Rates over time; none: constantly those of the problem.
    pub trace: Option<Trace>,
}

impl Arrivals {
    /// Seconds at the rates of the problem that bring as many records as an interval.
    pub(crate) fn nominal_seconds(&self, from: Nanoseconds, to: Nanoseconds) -> f64 {
        let at = |time: Nanoseconds| {
            let seconds = time as f64 / 1e9;
            self.trace.as_ref().map_or(seconds, |trace| trace.nominal_at(seconds))
        };
        (at(to) - at(from)).max(0.0)
    }

    /// Evenly, at the rates of the problem.
    pub fn constant() -> Self {
        Self::default()
    }

    /// At random, at the rates of the problem.
    pub fn poisson() -> Self {
        Self { spacing: Spacing::Poisson, trace: None }
    }
}
