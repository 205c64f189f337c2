//! Whether hints are worth using, by how old they are when a plan made from them ends, and how long the network stays as it is.
//!
//! | Condition | What is used |
//! |---|---|
//! | no hints can be had | defaults: nothing is known of the network |
//! | they are older at the end than the time between changes | topology only: each rack is crossed once |
//! | otherwise | topology and loads |
//!
//! ```
//! use std::time::Duration;
//! use tidemill_hints::staleness::{Choice, Delays, decide};
//! let ms = Duration::from_millis;
//! // 64 workers: 10 ms to compute a schedule, which is used for 100 ms.
//! let delays = Delays { collect: ms(150), compute: ms(10), used: ms(100) };
//! assert_eq!(delays.staleness(), ms(260));
//! assert_eq!(decide(delays, Some(ms(300))).choice, Choice::Loads);
//! assert_eq!(decide(delays, Some(ms(200))).choice, Choice::Topology);
//! ```
use std::fmt;
use std::time::Duration;

/// Mean age of hints when a tenant has them, where all steps have the usual period: three of them, 50 ms each on average.
pub const COLLECT: Duration = Duration::from_millis(150);
/// The part of the time of its iterations that a group may spend on schedules, where nothing else was chosen.
pub const SHARE: f64 = 0.1;

/// The delays of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delays {
    /// Age of the hints when they are had.
    pub collect: Duration,
    /// Time that computing the plan takes.
    pub compute: Duration,
    /// How long the plan is used.
    pub used: Duration,
}

impl Delays {
    /// Delays of a group that makes a new schedule as often as its share of time allows.
    pub fn of_iterations(compute: Duration, iteration: Duration, share: f64) -> Self {
        let used = iteration.saturating_mul(iterations(compute, iteration, share));
        Self { collect: COLLECT, compute, used }
    }

    /// Age of the hints when the plan made from them begins.
    pub fn adaptation(self) -> Duration {
        self.collect.saturating_add(self.compute)
    }

    /// Age of the hints when the plan ends.
    pub fn staleness(self) -> Duration {
        self.adaptation().saturating_add(self.used)
    }
}

/// Returns the least number of iterations with one schedule that keep computing it within `share` of their time; at least 1.
pub fn iterations(compute: Duration, iteration: Duration, share: f64) -> u32 {
    let least = compute.as_secs_f64() / (iteration.as_secs_f64() * share.max(0.0));
    // Beyond rounding: ten iterations of 10 ms are enough for 10 ms of computing and a tenth.
    let whole = if least.is_finite() { (least - 1e-9).ceil() } else { 1.0 };
    whole.clamp(1.0, f64::from(u32::MAX)) as u32
}

/// The knowledge that a plan is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Choice {
    /// Topology and loads of links.
    Loads,
    /// Topology only.
    Topology,
    /// Neither.
    Defaults,
}

/// A choice and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The choice.
    pub choice: Choice,
    /// Why, for people.
    pub reason: String,
}

impl fmt::Display for Decision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.choice {
            Choice::Loads => "topology and loads",
            Choice::Topology => "topology only",
            Choice::Defaults => "defaults",
        };
        write!(formatter, "{what}: {}", self.reason)
    }
}

impl Decision {
    /// Returns the decision where no hints can be had.
    pub fn defaults(reason: impl fmt::Display) -> Self {
        Self { choice: Choice::Defaults, reason: reason.to_string() }
    }
}

/// Decides by the mean time between changes of the network; none: it is not known yet.
pub fn decide(delays: Delays, between_changes: Option<Duration>) -> Decision {
    let stale = delays.staleness();
    let Some(between) = between_changes else {
        let reason = "how often the network changes is not known yet".to_owned();
        return Decision { choice: Choice::Topology, reason };
    };
    let (choice, compared) =
        if stale < between { (Choice::Loads, "less than") } else { (Choice::Topology, "not less than") };
    let reason = format!(
        "hints are up to {} ms old when used, {compared} the {} ms between changes of the network",
        stale.as_millis(),
        between.as_millis()
    );
    Decision { choice, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn a_schedule_is_used_as_long_as_computing_it_costs() {
        assert_eq!(iterations(ms(10), ms(10), 0.1), 10, "100 ms");
        assert_eq!(iterations(ms(10), ms(30), 0.1), 4);
        assert_eq!(iterations(ms(1), ms(500), 0.1), 1);
        assert_eq!(iterations(Duration::ZERO, Duration::ZERO, 0.1), 1);
        assert_eq!(iterations(ms(10), Duration::ZERO, 0.1), 1, "no time is known");
        let delays = Delays::of_iterations(ms(10), ms(10), SHARE);
        assert_eq!((delays.adaptation(), delays.used, delays.staleness()), (ms(160), ms(100), ms(260)));
    }

    #[test]
    fn each_row_of_the_table_applies() {
        let delays = Delays { collect: COLLECT, compute: ms(10), used: ms(100) };
        assert_eq!(decide(delays, Some(ms(261))).choice, Choice::Loads);
        assert_eq!(decide(delays, Some(ms(260))).choice, Choice::Topology);
        assert_eq!(decide(delays, None).choice, Choice::Topology);
        let text = decide(delays, Some(ms(200))).to_string();
        assert_eq!(
            text,
            "topology only: hints are up to 260 ms old when used, not less than the 200 ms between changes of the network"
        );
        assert_eq!(Decision::defaults("no answer").to_string(), "defaults: no answer");
    }
}
