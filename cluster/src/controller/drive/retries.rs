//! Pauses between the tries of a run, and their end.
use std::time::Duration;

/// The pause after a try that got further, and after the first one that did not.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Tries without one more record.
pub(super) const MOST_TRIES: u32 = 8;

/// The tries of a run. Pauses double while no try makes progress, and start from the shortest after one that does, so rare disturbances
/// never lead to long pauses.
#[derive(Debug, Default)]
pub(super) struct Retries {
    /// Tries on end that got no further.
    in_vain: u32,
    /// Most records that have arrived at the end of a try.
    best: u64,
}

impl Retries {
    /// Returns the pause after a try that ended with `arrived` records at the sinks; none: no other try follows.
    pub(super) fn after(&mut self, arrived: u64) -> Option<Duration> {
        if arrived > self.best {
            (self.in_vain, self.best) = (0, arrived);
            return Some(FIRST_PAUSE);
        }
        self.in_vain += 1;
        let pause = FIRST_PAUSE * 2_u32.pow(self.in_vain.min(MOST_TRIES) - 1);
        (self.in_vain < MOST_TRIES).then(|| pause.min(LONGEST_PAUSE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_begin_anew_when_a_try_got_further() {
        let mut retries = Retries::default();
        let pauses: Vec<u128> = (0..7).map(|_| retries.after(0).unwrap().as_millis()).collect();
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 5000, 5000]);
        for disturbance in 1..100 {
            assert_eq!(retries.after(disturbance * 1000), Some(FIRST_PAUSE), "disturbance {disturbance}");
        }
    }

    #[test]
    fn a_run_that_gets_no_further_is_given_up() {
        let mut retries = Retries::default();
        assert!(retries.after(5).is_some());
        let tries = (0..MOST_TRIES).map_while(|_| retries.after(5)).count();
        assert_eq!(tries as u32, MOST_TRIES - 1);
        assert_eq!(retries.after(3), None, "fewer records are no more");
    }
}
