//! Epochs and watermarks of a live source. Its records come when they come, so its epochs are those of the run's clock,
//! one each tick, with or without records: several live sources stay together whatever their rates, and one that is cut
//! holds up no other.
//!
//! Its watermark follows the newest event time, less the allowed disorder; while nothing comes, the source itself states
//! it ([`SourceRead::Idle`](tidemill_operators::api::SourceRead::Idle)).
use super::SourceNode;
use super::schedule::Schedule;
use crate::clock::Nanoseconds;
use crate::frame::Epoch;
use tidemill_operators::record::EventTime;

/// The clock of one live source.
pub(super) struct Live {
    /// Start of the run's epoch 0, and length of an epoch.
    start: Nanoseconds,
    tick: Nanoseconds,
    /// Newest watermark that the source stated.
    stated: EventTime,
}

impl Live {
    pub(super) fn new(schedule: &Schedule) -> Self {
        Self { start: schedule.start, tick: schedule.tick.max(1), stated: EventTime::MIN }
    }

    /// Epoch at this time; epochs never go back from `current`.
    pub(super) fn epoch(&self, now: Nanoseconds, current: Epoch) -> Epoch {
        let ticks = now.saturating_sub(self.start) / self.tick;
        Epoch::try_from(ticks).unwrap_or(0).max(current)
    }

    /// End of an epoch.
    pub(super) fn end_of(&self, epoch: Epoch) -> Nanoseconds {
        let ticks = Nanoseconds::try_from(epoch).unwrap_or(Nanoseconds::MAX).saturating_add(1);
        self.start.saturating_add(ticks.saturating_mul(self.tick))
    }

    /// The source stated this watermark.
    pub(super) fn state(&mut self, watermark: EventTime) {
        self.stated = self.stated.max(watermark);
    }

    /// Watermark after records up to `newest`, of which any may be this much out of order, microseconds.
    pub(super) fn watermark(&self, newest: EventTime, out_of_order: i64) -> EventTime {
        newest.saturating_sub(out_of_order).max(self.stated)
    }
}

impl SourceNode {
    /// Ends the epoch of a live source when its tick is over.
    pub(super) fn turn_live(&mut self) {
        let now = self.slot.now();
        let Some(live) = &mut self.live else { return };
        // It holds for records to come, not for those that wait here.
        if let Some(watermark) = self.reader.stated().filter(|_| self.chunk.is_none()) {
            live.state(watermark);
        }
        let next = live.epoch(now, self.epoch);
        let watermark = live.watermark(self.newest, self.settings.bound.out_of_order_microseconds);
        self.slot.wake_at(live.end_of(next), self.index);
        if next > self.epoch {
            self.begin_epoch(next, watermark);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Live {
        Live::new(&Schedule { rate: None, start: 7, tick: 50, base: None, records: None, duration: None })
    }

    #[test]
    fn epochs_follow_the_clock_and_never_go_back() {
        let live = live();
        assert_eq!([0, 7, 56, 57, 107].map(|now| live.epoch(now, 0)), [0, 0, 0, 1, 2]);
        assert_eq!(live.epoch(57, 9), 9);
        assert_eq!((live.end_of(0), live.end_of(1)), (57, 107));
        assert_eq!(live.epoch(live.end_of(41), 0), 42);
        assert_eq!(live.end_of(Epoch::MAX), Nanoseconds::MAX);
    }

    #[test]
    fn the_watermark_follows_records_or_what_the_source_states() {
        let mut live = live();
        assert_eq!(live.watermark(EventTime::MIN, 5), EventTime::MIN);
        assert_eq!(live.watermark(100, 5), 95);
        live.state(97);
        live.state(40);
        assert_eq!((live.watermark(100, 5), live.watermark(103, 5)), (97, 98));
    }
}
