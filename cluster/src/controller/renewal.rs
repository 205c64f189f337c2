//! Renews the controller's own certificate after two thirds of its life. New connections see the new one, existing ones stay open. A
//! standby controller does likewise ([`super::stand_by`]).
use super::Shared;
use crate::agent::health::civil_milliseconds;
use crate::clock::instant;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_identity::{CertificateFacts, Timestamp};
use tidemill_link::remote::Credentials;

/// Interval of the checks.
const LOOK: Duration = Duration::from_secs(1);
/// Checks to skip after a failed renewal.
pub(super) const PATIENCE: u32 = 60;

/// Whether the certificate needs renewal.
pub(super) fn is_due(shown: &Credentials, now: Timestamp) -> bool {
    let facts = CertificateFacts::of_der(&shown.certificate());
    // A certificate from the future was issued under a wrong clock, and is rejected everywhere.
    !facts.is_ok_and(|facts| (facts.not_before..facts.renewal_due()).contains(&now))
}

/// Smallest reported step of the clock in milliseconds: larger than regular corrections.
const STEP: i64 = 5_000;

/// Detects steps of the clock, by which certificates are valid and times are read.
struct Clock {
    before: (Instant, u64),
}

impl Clock {
    fn new(now: Instant, civil: u64) -> Self {
        Self { before: (now, civil) }
    }

    /// Describes a step of the clock since the last look.
    fn look(&mut self, now: Instant, civil: u64) -> Option<String> {
        let (then, civil_then) = std::mem::replace(&mut self.before, (now, civil));
        let passed = i64::try_from(now.saturating_duration_since(then).as_millis()).unwrap_or(i64::MAX);
        let step = civil.cast_signed().saturating_sub(civil_then.cast_signed()).saturating_sub(passed);
        (step.saturating_abs() >= STEP).then(|| {
            let direction = if step > 0 { "forward" } else { "back" };
            format!(
                "the clock of this controller jumped {direction} by {} s: it was set, or the machine slept; \
                 certificates are checked with it",
                step.saturating_abs() / 1000
            )
        })
    }
}

/// Renews it whenever that is due, until the controller ends.
pub(super) fn watch(shared: &Arc<Shared>) {
    let mut waits = 0;
    let mut clock = Clock::new(instant(), civil_milliseconds());
    while !shared.is_ending() {
        if let Some(text) = clock.look(instant(), civil_milliseconds()) {
            shared.tell("clock_stepped", None, None, &text);
        }
        if waits > 0 {
            waits -= 1;
        } else if let Err(error) = shared.renew_if_due(Timestamp::now()) {
            tracing::warn!("cannot renew the certificate of this controller now: {error}");
            waits = PATIENCE;
        }
        std::thread::sleep(LOOK);
    }
}

impl Shared {
    fn renew_if_due(&self, now: Timestamp) -> Result<(), String> {
        if !is_due(&self.credentials, now) {
            return Ok(());
        }
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let issued = self.authority.issue_controller(&names, now).map_err(|error| error.to_string())?;
        self.credentials.replace(&issued).map_err(|error| error.to_string())?;
        tracing::info!("renewed the certificate of this controller");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_identity::{Authority, Lifetimes};

    #[test]
    fn a_certificate_that_is_not_valid_yet_is_renewed() {
        let folder = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let authority = Authority::open_or_create(folder.path(), Lifetimes::default(), now).unwrap();
        let issued = |at| Credentials::new(&authority.issue_controller(&["localhost"], at).unwrap()).unwrap();
        assert!(!is_due(&issued(now), now));
        // The clock was days fast, and is right again; or it is slow now.
        let days = Duration::from_secs(5 * 86_400);
        assert!(is_due(&issued(now.after(days)), now));
        assert!(is_due(&issued(now), now.after(Duration::from_secs(3_650 * 86_400))));
    }

    #[test]
    fn steps_of_the_clock_are_told_and_its_pace_is_not() {
        let begin = instant();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let mut clock = Clock::new(begin, 1_000_000);
        assert_eq!(clock.look(at(1), 1_001_200), None);
        assert_eq!(clock.look(at(61), 1_061_000), None, "nobody looked for a minute");
        let forward = clock.look(at(62), 1_661_000).unwrap();
        assert!(forward.contains("forward by 599 s"), "{forward}");
        let back = clock.look(at(63), 1_062_000).unwrap();
        assert!(back.contains("back by 600 s"), "{back}");
        assert_eq!(clock.look(at(64), 1_063_000), None, "once");
    }
}
