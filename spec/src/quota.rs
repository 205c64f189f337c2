//! A share of a processor: a quota of processor time in every 10 ms, as control groups grant it on machines with less
//! than one processor. A process that has used it up waits for the next period.
//!
//! ```
//! use tidemill_spec::quota::Quota;
//! let mut quota = Quota::default();
//! // Half a processor: 5 ms in each period.
//! assert_eq!(quota.end(0, 4_000_000, 0.5), 4_000_000); // a short call does not feel it
//! assert_eq!(quota.end(4_000_000, 3_000_000, 0.5), 12_000_000); // 1 ms, then the next period
//! ```

/// Length of a period, nanoseconds.
pub const PERIOD: i64 = 10_000_000;

/// The used part of a quota. Calls come one after the other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// The last used period, and the processor time used in it.
    period: i64,
    used: i64,
}

impl Quota {
    /// Returns the end of a call that starts at `start` and needs this processor time, with `share` of a processor; all
    /// times in nanoseconds.
    pub fn end(&mut self, start: i64, processor: i64, share: f64) -> i64 {
        let budget = ((PERIOD as f64 * share) as i64).max(1);
        let (mut now, mut left) = (start, processor);
        loop {
            let period = now.div_euclid(PERIOD);
            if period != self.period {
                (self.period, self.used) = (period, 0);
            }
            let period_end = (period + 1) * PERIOD;
            let run = left.min(budget - self.used).min(period_end - now);
            (now, left) = (now + run, left - run);
            self.used += run;
            if left == 0 {
                return now;
            }
            now = period_end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn a_quota_stops_a_call_until_the_next_period() {
        let mut quota = Quota::default();
        assert_eq!(quota.end(0, 4 * MS, 0.5), 4 * MS, "a short call does not feel it");
        assert_eq!(quota.end(4 * MS, 3 * MS, 0.5), 12 * MS, "1 ms, then the next period");
        assert_eq!(quota.end(30 * MS, 12 * MS, 0.5), 52 * MS, "5, 5 and 2 ms");
        assert_eq!(quota.end(68 * MS, 4 * MS, 0.5), 72 * MS, "over the end of a period without a stop");
        let mut whole = Quota::default();
        assert_eq!(whole.end(3, 100 * MS, 1.0), 100 * MS + 3);
    }
}
