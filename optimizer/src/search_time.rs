//! Time of a search: the only place of this crate that reads a clock.
use std::time::Instant;

/// Time since a search started.
///
/// Plans do not depend on it: node limits end a search. A wall-clock limit is a guard, and an outcome states whether it
/// ended the search ([`crate::solution::Status::TimeLimited`]).
#[derive(Debug, Clone, Copy)]
pub struct SearchTime {
    begun: Instant,
}

impl SearchTime {
    /// Starts now.
    pub fn begin() -> Self {
        #[allow(clippy::disallowed_methods)] // planning is not engine time: it is never dilated or replayed
        let begun = Instant::now();
        Self { begun }
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Seconds left of a limit, at least 0; infinite without one.
    pub fn left_of(&self, limit: Option<f64>) -> f64 {
        limit.map_or(f64::INFINITY, |limit| (limit - self.seconds()).max(0.0))
    }
}
