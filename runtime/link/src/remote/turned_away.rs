//! Reports of peers that are turned away, so that a peer that comes again and again does not fill the log.
use super::RemoteError;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two lines with the same reason.
const PAUSE: Duration = Duration::from_secs(60);
/// Reasons that are kept, at most.
const MOST: usize = 64;

/// Reasons that were reported lately, with the time and the number of peers since.
#[derive(Debug, Default)]
pub(super) struct TurnedAway(Mutex<BTreeMap<String, (Instant, u64)>>);

impl TurnedAway {
    /// A peer is turned away.
    pub(super) fn report(&self, error: &RemoteError) {
        if let Some(others) = self.count(&error.to_string(), now()) {
            let others =
                if others == 0 { String::new() } else { format!(" ({others} others since the last line)") };
            tracing::warn!("a peer is turned away: {error}{others}");
        }
    }

    /// Returns how many others there were with this reason since its last line; none: no line is due.
    fn count(&self, reason: &str, now: Instant) -> Option<u64> {
        let mut reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, others)) = reasons.get_mut(reason) {
            if now.saturating_duration_since(*at) < PAUSE {
                *others += 1;
                return None;
            }
            *at = now;
            return Some(std::mem::take(others));
        }
        if reasons.len() >= MOST {
            reasons.retain(|_, (at, _)| now.saturating_duration_since(*at) < PAUSE);
        }
        // Of more reasons than are kept, each has a line once those of before are old.
        if reasons.len() >= MOST {
            return None;
        }
        reasons.insert(reason.to_owned(), (now, 0));
        Some(0)
    }
}

#[expect(clippy::disallowed_methods, reason = "lines of the log are spaced in real time")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_line_a_minute() {
        let (turned, begun) = (TurnedAway::default(), now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(turned.count("one", at(0)), Some(0));
        assert_eq!([1, 2, 59].map(|second| turned.count("one", at(second))), [None; 3]);
        assert_eq!(turned.count("other", at(3)), Some(0));
        assert_eq!(turned.count("one", at(60)), Some(3));
        let more = (0..1000).filter(|number| turned.count(&number.to_string(), at(61)).is_some()).count();
        assert_eq!(more, MOST - 2);
        assert_eq!(turned.count("new", at(200)), Some(0), "those of before are old");
    }
}
