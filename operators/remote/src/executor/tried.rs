//! Targets that failed, and why: what is slow to fail is not tried again and again.
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidemill_operators::api::OperatorError;

/// How long a target that answers, and cannot compute the model, is left alone: another device must take its place first.
const USELESS: Duration = Duration::from_secs(300);

/// The targets of a device that failed, by position.
#[derive(Default)]
pub(super) struct Tried {
    failed: BTreeMap<usize, Failed>,
    /// Where the next look begins.
    pub(super) next: usize,
}

struct Failed {
    reason: String,
    lost: bool,
    /// When the last attempt began.
    begun: Instant,
}

impl Tried {
    /// Returns the last error of a target whose last attempt began within this time.
    pub(super) fn failed_within(&self, at: usize, time: Duration, now: Instant) -> Option<OperatorError> {
        let failed = self.failed.get(&at)?;
        let (is_recent, reason) = (now.saturating_duration_since(failed.begun) < time, failed.reason.clone());
        is_recent.then(|| if failed.lost { OperatorError::lost(reason) } else { OperatorError::new(reason) })
    }

    /// Returns whether a look would be in vain.
    pub(super) fn is_useless(&self, at: usize, now: Instant) -> bool {
        self.failed_within(at, USELESS, now).is_some_and(|error| !error.lost)
    }

    pub(super) fn succeeded(&mut self, at: usize) {
        self.failed.remove(&at);
    }

    /// Remembers an attempt that failed; returns whether the reason is new.
    pub(super) fn failed(&mut self, at: usize, error: &OperatorError, begun: Instant) -> bool {
        let failed = Failed { reason: error.message.clone(), lost: error.lost, begun };
        let before = self.failed.insert(at, failed);
        before.is_none_or(|before| before.reason != error.message)
    }
}

#[cfg(test)]
mod tests {
    use super::super::AGAIN;
    use super::super::elsewhere::now;
    use super::*;

    #[test]
    fn a_target_that_cannot_compute_the_model_is_left_alone_for_longer() {
        let (begun, mut tried) = (now(), Tried::default());
        let (lost, wrong) = (OperatorError::lost("nothing answers"), OperatorError::new("no such back end"));
        assert!(tried.failed(0, &lost, begun) && tried.failed(1, &wrong, begun));
        let later = begun + AGAIN;
        assert_eq!(
            tried.failed_within(0, AGAIN, begun).map(|error| error.message),
            Some(lost.message.clone())
        );
        assert!(
            tried.failed_within(0, AGAIN, later).is_none() && tried.failed_within(2, AGAIN, begun).is_none()
        );
        assert!(!tried.is_useless(0, begun) && tried.is_useless(1, later));
        assert!(!tried.is_useless(1, begun + USELESS));
        assert!(
            !tried.failed(0, &lost, later) && tried.failed(0, &wrong, later),
            "the reason is another one"
        );
        tried.succeeded(1);
        assert!(!tried.is_useless(1, later));
    }
}
