//! The time at which readers of a sink see its rows.
use crate::units::TimeSpan;
use serde::{Deserialize, Serialize};

/// The event that makes arrived rows visible to readers of a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Publication {
    /// Their arrival, before their epoch is complete: sinks that answer somebody who waits for each row. A restart may show
    /// rows again.
    OnArrival,
    /// The end of their epoch: sinks that can take back rows which no checkpoint has, and at-least-once sinks.
    EachEpoch,
    /// The next checkpoint: exactly-once sinks that cannot take back rows which readers have seen.
    EachCheckpoint,
    /// The end of the run: formats that are unreadable before they are complete.
    AtEnd,
}

impl Publication {
    /// How long a row waits at most until it is visible, from its intended emission on and without the time that rows
    /// take on their way: rows are published in groups of so many ticks, so the first row of a group waits for the
    /// whole group. None: until the run ends.
    pub fn longest_wait(self, tick: TimeSpan, checkpoint_every: u64) -> Option<TimeSpan> {
        match self {
            Self::OnArrival => Some(TimeSpan(0)),
            Self::EachEpoch => Some(tick),
            Self::EachCheckpoint => Some(TimeSpan(tick.0.saturating_mul(checkpoint_every.max(1)))),
            Self::AtEnd => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_row_of_a_group_waits_for_the_last() {
        let tick = TimeSpan(50);
        assert_eq!(Publication::OnArrival.longest_wait(tick, 20), Some(TimeSpan(0)));
        assert_eq!(Publication::EachEpoch.longest_wait(tick, 20), Some(tick));
        assert_eq!(Publication::EachEpoch.longest_wait(tick, 0), Some(tick));
        assert_eq!(Publication::EachCheckpoint.longest_wait(tick, 20), Some(TimeSpan(1000)));
        assert_eq!(Publication::EachCheckpoint.longest_wait(tick, 0), Some(tick));
        assert_eq!(Publication::AtEnd.longest_wait(tick, 20), None);
    }
}
