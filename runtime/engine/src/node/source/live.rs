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
use crate::store::Cut;
use std::collections::BTreeMap;
use tidemill_operators::record::EventTime;

/// The clock of one live source.
pub(super) struct Live {
    /// Start of the run's epoch 0, and length of an epoch.
    start: Nanoseconds,
    tick: Nanoseconds,
    /// Newest watermark that the source stated.
    stated: EventTime,
    again: Option<Again>,
}

/// Records of a former incarnation that are read again. Other stages may have passed their epochs, so they get the same ones,
/// without the clock, until there are no more of them.
struct Again {
    /// The epochs with their watermarks, by the sequence number of their first record.
    begun: BTreeMap<u64, (Epoch, EventTime)>,
    /// Sequence number after the last record that was emitted.
    emitted: u64,
}

impl Live {
    /// `again`: the epochs that a former incarnation began after the present position, and the sequence number after its last
    /// record, if the source can be read again.
    pub(super) fn new(schedule: &Schedule, again: Option<(BTreeMap<Epoch, Cut>, u64)>) -> Self {
        let again = again.map(|(begun, emitted)| Again {
            begun: begun.into_iter().map(|(epoch, cut)| (cut.sequence, (epoch, cut.watermark))).collect(),
            emitted,
        });
        Self { start: schedule.start, tick: schedule.tick.max(1), stated: EventTime::MIN, again }
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

    /// The source stated this watermark: nothing of what was emitted before is left to read.
    pub(super) fn state(&mut self, watermark: EventTime) {
        self.stated = self.stated.max(watermark);
        self.again = None;
    }

    /// Watermark after records up to `newest`, of which any may be this much out of order, microseconds.
    pub(super) fn watermark(&self, newest: EventTime, out_of_order: i64) -> EventTime {
        newest.saturating_sub(out_of_order).max(self.stated)
    }

    /// Whether the record `sequence` or a later one was emitted before.
    fn reads_again(&self, sequence: u64) -> bool {
        let is_known = |again: &Again| !again.begun.is_empty() || sequence < again.emitted;
        self.again.as_ref().is_some_and(is_known)
    }

    /// Returns the epoch of before that starts with this record, if it is later than `current`.
    fn begun_with(&mut self, sequence: u64, current: Epoch) -> Option<(Epoch, EventTime)> {
        let begun = &mut self.again.as_mut()?.begun;
        let mut found = None;
        while let Some(entry) = begun.first_entry().filter(|entry| *entry.key() <= sequence) {
            found = Some(entry.remove()).filter(|(epoch, _)| *epoch > current).or(found);
        }
        found
    }

    /// Returns the first record of the next epoch of before.
    pub(super) fn next_begun(&self) -> u64 {
        let next = self.again.as_ref().and_then(|again| again.begun.first_key_value());
        next.map_or(u64::MAX, |(sequence, _)| *sequence)
    }
}

impl SourceNode {
    /// Ends the epoch of a live source when its tick is over.
    pub(super) fn turn_live(&mut self) {
        let now = self.slot.now();
        let Some(live) = &mut self.live else { return };
        // It holds for records to come, not for those that wait here.
        if let Some((watermark, position)) = self.reader.stated().filter(|_| self.chunk.is_none()) {
            live.state(watermark);
            if self.settings.bound.rereads {
                self.behind = Some((position, 0));
            }
        }
        let begun = live.begun_with(self.sequence, self.epoch);
        let next = live.epoch(now, self.epoch);
        let watermark = live.watermark(self.newest, self.settings.bound.out_of_order_microseconds);
        let reads_again = live.reads_again(self.sequence);
        self.slot.wake_at(live.end_of(next), self.index);
        match begun {
            Some((epoch, watermark)) => self.begin_epoch(epoch, watermark),
            None if next > self.epoch && !reads_again => self.begin_epoch(next, watermark),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: Schedule =
        Schedule { rate: None, start: 7, tick: 50, base: None, records: None, duration: None };

    fn live() -> Live {
        Live::new(&SCHEDULE, None)
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

    #[test]
    fn what_is_read_again_has_the_epochs_of_before() {
        let cut = |sequence, watermark| Cut {
            position: tidemill_operators::api::SourcePosition::default(),
            skip: 0,
            sequence,
            newest: 0,
            watermark,
        };
        let begun = [(4, cut(10, 1)), (5, cut(10, 2)), (6, cut(20, 3))].into();
        let mut live = Live::new(&SCHEDULE, Some((begun, 25)));
        assert_eq!((live.begun_with(9, 3), live.next_begun(), live.reads_again(9)), (None, 10, true));
        assert_eq!(live.begun_with(10, 3), Some((5, 2)), "an epoch without records is passed over");
        assert_eq!((live.begun_with(20, 5), live.next_begun()), (Some((6, 3)), u64::MAX));
        assert_eq!((live.reads_again(24), live.reads_again(25)), (true, false));
        live.state(EventTime::MIN);
        assert!(!live.reads_again(21), "there is no more of it");
    }
}
