//! When records come: evenly, at random, or as a trace says.
mod levels;
mod schedule;
mod trace;

use crate::network::Nanoseconds;
pub use levels::{Division, Levels, LoadBin, Price, cheapest_levels, coarsened, divisions, histogram};
pub use schedule::{LevelUse, Schedule, Spell, Switching};
pub use trace::{Trace, TraceError};

/// How the records of a source follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Spacing {
    /// Evenly: record `i` is due `i` intervals after the start, as open-loop sources of the engine emit.
    #[default]
    Constant,
    /// At random: a Poisson process of the same rate. Sources whose records meet in a join share one process, because
    /// what belongs together comes together.
    Poisson,
}

/// When the sources emit.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Arrivals {
    /// How records follow one another.
    pub spacing: Spacing,
    /// Rates over time; none: those of the problem, all the time.
    pub trace: Option<Trace>,
}

impl Arrivals {
    /// Seconds at the rates of the problem in which as much comes as from one time to a later one.
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
