//! When records are due and which epoch they belong to.
use crate::clock::Nanoseconds;
use crate::frame::Epoch;
use tidemill_operators::record::EventTime;
use tidemill_spec::emission;

/// Records in one epoch of a source without a rate.
pub(crate) const RECORDS_PER_EPOCH: u64 = 1024;
/// Bytes in one epoch of a source without a rate: bounds what a checkpoint interval keeps.
pub(crate) const BYTES_PER_EPOCH: usize = 512 << 10;

/// The schedule of one source.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    /// Records per second (open loop); none: as fast as they are taken.
    pub(crate) rate: Option<f64>,
    /// Engine time of the first record.
    pub(crate) start: Nanoseconds,
    /// Length of an epoch for open loops, nanoseconds.
    pub(crate) tick: Nanoseconds,
    /// Ends after so many records.
    pub(crate) records: Option<u64>,
    /// Ends after so much time.
    pub(crate) duration: Option<Nanoseconds>,
}

impl Schedule {
    pub(crate) fn is_open_loop(&self) -> bool {
        self.rate.is_some()
    }

    fn offset(&self, sequence: u64) -> Option<Nanoseconds> {
        self.rate
            .map(|rate| Nanoseconds::try_from(emission::offset(sequence, rate)).unwrap_or(Nanoseconds::MAX))
    }

    /// Intended emission of a record (engine clock); `start` where there is no rate.
    pub(crate) fn due(&self, sequence: u64) -> Nanoseconds {
        self.start + self.offset(sequence).unwrap_or(0)
    }

    /// Epoch of the record `sequence`, given the epoch of the one before and what that epoch holds already.
    /// A function of the records alone: not of when they are emitted.
    pub(crate) fn epoch(&self, sequence: u64, current: Epoch, (records, bytes): (u64, usize)) -> Epoch {
        match self.offset(sequence) {
            Some(offset) => emission::epoch(offset as u64, self.tick as u64),
            None if records >= RECORDS_PER_EPOCH || bytes >= BYTES_PER_EPOCH => current + 1,
            None => current,
        }
    }

    /// Event time, microseconds, of a record that has none of its own: its place in the schedule, or one
    /// millisecond a record where there is no rate.
    pub(crate) fn event_time(&self, sequence: u64) -> EventTime {
        self.offset(sequence).map_or(sequence as i64 * 1000, |offset| offset / 1000)
    }

    /// Engine time of the end, where there is one.
    pub(crate) fn ends_at(&self) -> Option<Nanoseconds> {
        self.duration.map(|duration| self.start + duration)
    }

    /// Whether the record `sequence` is beyond the end.
    pub(crate) fn finished(&self, sequence: u64, now: Nanoseconds) -> bool {
        if self.records.is_some_and(|records| sequence >= records) {
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
        let schedule =
            Schedule { rate: Some(40.0), start: 0, tick: 50_000_000, records: None, duration: None };
        assert_eq!((schedule.due(328), schedule.epoch(328, 0, (0, 0))), (8_200_000_000, 164));
        assert_eq!(schedule.event_time(328), 8_200_000);
    }
}
