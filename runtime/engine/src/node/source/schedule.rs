//! Due times and epochs of records.
use crate::clock::Nanoseconds;
use crate::frame::Epoch;
use crate::store::Base;
use tidemill_operators::record::EventTime;
use tidemill_spec::emission;

/// Records in one epoch of a source without a rate.
pub(crate) const RECORDS_PER_EPOCH: u64 = 1024;
/// Bytes in one epoch of a source without a rate: bounds the data kept per checkpoint interval.
pub(crate) const BYTES_PER_EPOCH: usize = 512 << 10;

/// The schedule of one source.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    /// Records per second (open loop); `None`: as fast as they are taken.
    pub(crate) rate: Option<f64>,
    /// Engine time of the first record.
    pub(crate) start: Nanoseconds,
    /// Length of an epoch for open loops, nanoseconds.
    pub(crate) tick: Nanoseconds,
    /// Start of the schedule; `None`: with the first record, in the first epoch.
    pub(crate) base: Option<Base>,
    /// Limit on the number of records.
    pub(crate) records: Option<u64>,
    /// Limit on the duration.
    pub(crate) duration: Option<Nanoseconds>,
}

impl Schedule {
    pub(crate) fn is_open_loop(&self) -> bool {
        self.rate.is_some()
    }

    /// Time from the first record to this one. A record before the base, which a restart reads again, precedes all that
    /// follow it.
    fn offset(&self, sequence: u64) -> Option<Nanoseconds> {
        let rate = self.rate?;
        let after =
            |records| Nanoseconds::try_from(emission::offset(records, rate)).unwrap_or(Nanoseconds::MAX);
        let Some(base) = self.base else { return Some(after(sequence)) };
        let begins = Nanoseconds::try_from(base.epoch).unwrap_or(Nanoseconds::MAX).saturating_mul(self.tick);
        Some(match sequence.checked_sub(base.sequence) {
            Some(records) => begins.saturating_add(after(records)),
            None => (begins - 1).max(0),
        })
    }

    /// Intended emission of a record (engine clock); `start` without a rate.
    pub(crate) fn due(&self, sequence: u64) -> Nanoseconds {
        self.start + self.offset(sequence).unwrap_or(0)
    }

    /// Epoch of the record `sequence`, given the current epoch and its content so far. A function of the records alone, not
    /// of the time of their emission.
    pub(crate) fn epoch(&self, sequence: u64, current: Epoch, (records, bytes): (u64, usize)) -> Epoch {
        match (self.offset(sequence), self.base) {
            (Some(offset), _) => emission::epoch(offset as u64, self.tick as u64),
            (None, Some(base)) if sequence < base.sequence => current,
            (None, Some(base)) if current < base.epoch => base.epoch,
            (None, _) if records >= RECORDS_PER_EPOCH || bytes >= BYTES_PER_EPOCH => current + 1,
            (None, _) => current,
        }
    }

    /// Event time, microseconds, of a record without one: its position in the schedule, or one millisecond per record
    /// without a rate.
    pub(crate) fn event_time(&self, sequence: u64) -> EventTime {
        let after = |records: u64| match self.rate {
            Some(rate) => {
                EventTime::try_from(emission::offset(records, rate) / 1000).unwrap_or(EventTime::MAX)
            }
            None => records as i64 * 1000,
        };
        match self.base {
            None => after(sequence),
            Some(base) => match sequence.checked_sub(base.sequence) {
                Some(records) => base.event_time.saturating_add(after(records)),
                None => base.event_time.saturating_sub(1),
            },
        }
    }

    /// Engine time of the end, if there is one.
    pub(crate) fn ends_at(&self) -> Option<Nanoseconds> {
        self.duration.map(|duration| self.start + duration)
    }

    /// Returns whether the wanted number of records precede this one.
    pub(crate) fn has_given_all(&self, sequence: u64) -> bool {
        self.records.is_some_and(|records| sequence >= records)
    }

    /// Returns whether the record `sequence` is beyond the end.
    pub(crate) fn finished(&self, sequence: u64, now: Nanoseconds) -> bool {
        if self.has_given_all(sequence) {
            return true;
        }
        match (self.duration, self.offset(sequence)) {
            (Some(duration), Some(offset)) => offset >= duration,
            (Some(duration), None) => now - self.start >= duration,
            (None, _) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_loop_epochs_follow_the_intended_times() {
        let schedule = Schedule {
            rate: Some(40.0),
            start: 7,
            tick: 50_000_000,
            base: None,
            records: None,
            duration: Some(1_000_000_000),
        };
        let epochs: Vec<_> = (0..6).map(|n| schedule.epoch(n, 0, (0, 0))).collect();
        assert_eq!(epochs, [0, 0, 1, 1, 2, 2]);
        assert_eq!(schedule.due(2), 50_000_007);
        assert!(!schedule.finished(39, 0) && schedule.finished(40, 0));
    }

    #[test]
    fn what_is_due_on_a_tick_begins_its_epoch() {
        let schedule = of(Some(40.0), None);
        assert_eq!((schedule.due(328), schedule.epoch(328, 0, (0, 0))), (8_200_000_000, 164));
        assert_eq!(schedule.event_time(328), 8_200_000);
    }

    fn of(rate: Option<f64>, base: Option<Base>) -> Schedule {
        Schedule { rate, start: 0, tick: 50_000_000, base, records: None, duration: None }
    }

    /// From 40/s to 10/s in the middle: nothing is due before earlier records, and epochs continue.
    #[test]
    fn another_rate_begins_where_the_one_before_had_come_to() {
        let before = of(Some(40.0), None);
        let (sequence, epoch) = (20, before.epoch(20, 0, (0, 0)));
        let base = Base { sequence, epoch, event_time: before.event_time(sequence) };
        let after = of(Some(10.0), Some(base));
        assert_eq!((after.due(20), after.event_time(20)), (before.due(20), before.event_time(20)));
        assert_eq!((after.due(21) - after.due(20), after.epoch(21, epoch, (0, 0))), (100_000_000, epoch + 2));
        assert!(after.epoch(19, 0, (0, 0)) == epoch - 1 && after.event_time(19) < after.event_time(20));
        let fast = of(None, Some(base));
        assert_eq!(fast.epoch(19, epoch - 3, (RECORDS_PER_EPOCH, 0)), epoch - 3, "what was read before");
        assert_eq!([fast.epoch(20, epoch - 3, (0, 0)), fast.epoch(21, epoch, (1, 0))], [epoch, epoch]);
        assert_eq!(fast.epoch(2000, epoch, (RECORDS_PER_EPOCH, 0)), epoch + 1);
        assert_eq!(fast.event_time(21) - before.event_time(20), 1000);
    }
}
