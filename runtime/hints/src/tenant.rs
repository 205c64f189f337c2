//! The hints that a tenant has, and what it makes its plans from.
//!
//! ```
//! use std::time::Duration;
//! use tidemill_hints::staleness::{COLLECT, Choice, Delays};
//! use tidemill_hints::tenant::Tenant;
//! let mut tenant = Tenant::new("job");
//! tenant.failed("the leader of the rack does not answer");
//! let delays = Delays { collect: COLLECT, compute: Duration::ZERO, used: Duration::from_millis(100) };
//! let decision = tenant.decide(delays, Duration::from_secs(3));
//! assert_eq!(decision.choice, Choice::Defaults);
//! assert_eq!(decision.to_string(), "defaults: the leader of the rack does not answer");
//! ```
use crate::changes::Changes;
use crate::leader::{PATIENCE, PERIOD};
use crate::message::Hints;
use crate::staleness::{Decision, Delays, decide};
use std::time::Duration;

/// A tenant that asks for hints.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// Spreads the times at which tenants ask.
    spread: u64,
    asks: u64,
    known: Option<(Hints, Duration)>,
    failure: Option<String>,
    changes: Changes,
}

impl Tenant {
    /// Creates a tenant without hints.
    pub fn new(name: &str) -> Self {
        let spread = name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        Self { spread, asks: 0, known: None, failure: None, changes: Changes::default() }
    }

    /// Returns how long to wait before asking again: a period on average, at least three quarters of it. Each time and each tenant
    /// differ, so that not all see a free link at once.
    pub fn wait(&mut self) -> Duration {
        self.asks += 1;
        let mixed = (self.spread ^ self.asks).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        PERIOD.mul_f64(0.75 + 0.5 * mixed as f64 / f64::from(1_u32 << 24))
    }

    /// Takes an answer.
    pub fn answered(&mut self, hints: Hints, now: Duration) {
        self.changes.observe(&hints.loads, now);
        (self.known, self.failure) = (Some((hints, now)), None);
    }

    /// Notes that there was no answer, or a refusal, with its reason.
    pub fn failed(&mut self, reason: impl ToString) {
        self.failure = Some(reason.to_string());
    }

    /// Returns the hints and their age, unless they are too old.
    pub fn hints(&self, now: Duration) -> Option<(&Hints, Duration)> {
        let (hints, at) = self.known.as_ref()?;
        let age = hints.age.saturating_add(now.saturating_sub(*at));
        (age <= PATIENCE).then_some((hints, age))
    }

    /// Returns the mean time between changes of the links; none: not known yet.
    pub fn between_changes(&self) -> Option<Duration> {
        self.changes.between()
    }

    /// Decides what a plan with these delays is made from.
    pub fn decide(&self, delays: Delays, now: Duration) -> Decision {
        match (self.hints(now), &self.failure, &self.known) {
            (Some(_), _, _) => decide(delays, self.changes.between()),
            (None, Some(reason), _) => Decision::defaults(reason),
            (None, None, Some((hints, at))) => {
                let age = hints.age.saturating_add(now.saturating_sub(*at)).as_millis();
                Decision::defaults(format_args!("the last hints are {age} ms old"))
            }
            (None, None, None) => Decision::defaults("no hints have come yet"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Load;
    use crate::staleness::{COLLECT, Choice};
    use crate::tree::Tree;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    fn hints(residual: f64) -> Hints {
        let tree = Tree::of(&[0]);
        let load = Load { total: 100.0, residual, sharers: 1.0 };
        Hints { loads: vec![load; tree.links()], tree, age: ms(150) }
    }

    #[test]
    fn choices_follow_what_is_known() {
        let delays = Delays { collect: COLLECT, compute: ms(10), used: ms(100) };
        let mut tenant = Tenant::new("job");
        assert_eq!(tenant.decide(delays, ms(0)).to_string(), "defaults: no hints have come yet");
        let mut now = ms(0);
        let mut chosen = Vec::new();
        for tick in 0..40 {
            now += ms(100);
            tenant.answered(hints(if tick / 20 == 0 { 90.0 } else { 20.0 }), now);
            chosen.push(tenant.decide(delays, now).choice);
        }
        assert_eq!(chosen[0..3], [Choice::Topology; 3], "it was looked at for less than 260 ms");
        assert_eq!(chosen[3..20], [Choice::Loads; 17]);
        // The leader dies. Its last word is used while it is fresh, then nothing.
        tenant.failed("the leader of the rack does not answer");
        assert_eq!(tenant.decide(delays, now + ms(850)).choice, Choice::Loads);
        let decision = tenant.decide(delays, now + ms(851));
        assert_eq!(decision.to_string(), "defaults: the leader of the rack does not answer");
        tenant.answered(hints(20.0), now + ms(5_000));
        assert_eq!(tenant.decide(delays, now + ms(5_000)).choice, Choice::Loads);
        let decision = tenant.decide(delays, now + ms(7_000));
        assert_eq!(decision.to_string(), "defaults: the last hints are 2150 ms old");
    }

    #[test]
    fn tenants_ask_at_times_of_their_own() {
        let (mut one, mut other) = (Tenant::new("one"), Tenant::new("other"));
        let waits: Vec<Duration> = (0..1_000).map(|_| one.wait()).collect();
        let mean = waits.iter().sum::<Duration>() / 1_000;
        assert!(mean > ms(97) && mean < ms(103), "{mean:?}");
        assert!(waits.iter().all(|wait| *wait >= ms(75) && *wait <= ms(125)));
        assert!(waits.iter().filter(|wait| **wait == other.wait()).count() < 5);
    }
}
