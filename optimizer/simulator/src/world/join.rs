//! Stateful stages: records wait until their epoch is complete; records of a join wait until earlier epochs are, then
//! for their partners.
use super::{Record, World};
use crate::frontier::{CLOSED, Epoch};
use crate::network::Nanoseconds;

impl World<'_> {
    /// A record arrives at a stateful stage.
    pub(super) fn wait_for_epoch(&mut self, stage: usize, input: u8, record: Record) {
        let now = self.now;
        let record = self.with_its_time(stage, record);
        if self.network.stages[stage].joins > 0 && record.epoch == self.frontiers.input(stage) {
            self.meet(stage, input, now, record);
        } else {
            self.stages[stage].pending.entry(record.epoch).or_default().push((input, now, record));
        }
    }

    /// The record as a stage that follows event time has it: it counts to the epoch in which its event time is
    /// complete.
    fn with_its_time(&mut self, stage: usize, record: Record) -> Record {
        if record.ahead == 0 || !self.network.stages[stage].follows_event_time {
            return record;
        }
        let later =
            Record { epoch: record.epoch.saturating_add(Epoch::from(record.ahead)), ahead: 0, ..record };
        self.hold(stage, &later);
        self.release(stage, &record);
        later
    }

    /// Takes all complete epochs, and for a join the records of the first incomplete one.
    pub(super) fn take_epochs(&mut self, stage: usize) {
        let frontier = self.frontiers.input(stage);
        let is_join = self.network.stages[stage].joins > 0;
        while let Some(entry) = self.stages[stage].pending.first_entry()
            && (*entry.key() < frontier || is_join && *entry.key() == frontier)
        {
            let (epoch, mut records) = entry.remove_entry();
            if is_join {
                self.give_up_before(stage, epoch);
                records.sort_by_key(|(input, _, record)| (record.born, *input));
            }
            for (input, came, record) in records {
                match is_join {
                    true => self.meet(stage, input, came, record),
                    false => {
                        self.note_held(stage, came);
                        self.take(stage, record);
                    }
                }
            }
        }
        if is_join {
            self.give_up_before(stage, frontier);
        }
    }

    fn note_held(&mut self, stage: usize, came: Nanoseconds) {
        if self.counts() {
            self.stages[stage].counts.held.add(self.now - came);
        }
    }

    /// Drops records that have been alone for too long when `epoch` starts: no partner will arrive.
    fn give_up_before(&mut self, stage: usize, epoch: Epoch) {
        let (patience, unmatched) = (self.patience, &mut self.unmatched);
        self.stages[stage].alone.retain(|_, records| {
            let before = records.len();
            records.retain(|(_, record)| epoch != CLOSED && record.epoch.saturating_add(patience) >= epoch);
            *unmatched += (before - records.len()) as u64;
            !records.is_empty()
        });
    }

    /// Merges one record of each input with equal keys; the first of an input meets the first of the others.
    fn meet(&mut self, stage: usize, input: u8, came: Nanoseconds, record: Record) {
        self.note_held(stage, came);
        let inputs = self.network.stages[stage].joins;
        let alone = self.stages[stage].alone.entry((record.group, record.key)).or_default();
        let partner = |input: usize| alone.iter().position(|(of, _)| usize::from(*of) == input);
        let others = (0..inputs).filter(|other| *other != usize::from(input));
        let Some(mut partners) = others.map(partner).collect::<Option<Vec<usize>>>() else {
            alone.push((input, record));
            // It does not count as in flight while it waits alone; the pair will.
            self.release(stage, &record);
            return;
        };
        partners.sort_unstable_by_key(|place| std::cmp::Reverse(*place));
        let met = partners.into_iter().map(|place| alone.remove(place)).chain([(input, record)]);
        let latest = met.max_by_key(|(input, record)| (record.born, std::cmp::Reverse(*input)));
        if alone.is_empty() {
            self.stages[stage].alone.remove(&(record.group, record.key));
        }
        let pair = latest.map_or(record, |(_, latest)| Record { epoch: record.epoch, ..latest });
        self.hold(stage, &pair);
        self.release(stage, &record);
        self.take(stage, pair);
    }
}
