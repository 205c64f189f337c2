//! Stateful stages: records wait until their epoch is complete; those of a join find their partners then.
use super::{Record, World};
use crate::frontier::{CLOSED, Epoch};
use crate::network::Nanoseconds;

impl World<'_> {
    /// A record waits for its epoch.
    pub(super) fn wait_for_epoch(&mut self, stage: usize, input: u8, record: Record) {
        let now = self.now;
        self.stages[stage].pending.entry(record.epoch).or_default().push((input, now, record));
    }

    /// Takes all epochs that are complete.
    pub(super) fn take_epochs(&mut self, stage: usize) {
        let frontier = self.frontiers.input(stage);
        while let Some(entry) = self.stages[stage].pending.first_entry()
            && *entry.key() < frontier
        {
            let (epoch, records) = entry.remove_entry();
            match self.network.stages[stage].joins {
                0 => {
                    for (_, came, record) in records {
                        self.note_held(stage, came);
                        self.take(stage, record);
                    }
                }
                inputs => self.join(stage, inputs, epoch, records),
            }
        }
        // No partner will come for what is left.
        if frontier == CLOSED {
            self.unmatched += std::mem::take(&mut self.stages[stage].alone).len() as u64;
        }
    }

    fn note_held(&mut self, stage: usize, came: Nanoseconds) {
        if self.counts() {
            self.stages[stage].counts.held.add(self.now - came);
        }
    }

    /// One record of each input with the same key become one; the first of an input meets the first of the others.
    fn join(
        &mut self,
        stage: usize,
        inputs: usize,
        epoch: Epoch,
        mut records: Vec<(u8, Nanoseconds, Record)>,
    ) {
        let fresh = records.len();
        let mut alone = std::mem::take(&mut self.stages[stage].alone);
        // Those that waited alone are no longer on the way; they are again if they meet somebody now.
        let fresh_from = alone.len();
        alone.append(&mut records);
        let mut all: Vec<(bool, u8, Nanoseconds, Record)> = alone
            .drain(..)
            .enumerate()
            .map(|(index, (input, came, record))| (index >= fresh_from, input, came, record))
            .collect();
        debug_assert_eq!(all.len(), fresh + fresh_from);
        all.sort_by_key(|(_, input, _, record)| (record.group, record.key, *input, record.born));
        let mut pairs: Vec<Record> = Vec::new();
        for same in all.chunk_by(|a, b| (a.3.group, a.3.key) == (b.3.group, b.3.key)) {
            let of_input = |input: usize| same.iter().filter(move |(_, of, ..)| usize::from(*of) == input);
            let matches = (0..inputs).map(|input| of_input(input).count()).min().unwrap_or(0);
            for number in 0..matches {
                let partners = (0..inputs).filter_map(|input| of_input(input).nth(number));
                let latest =
                    partners.max_by_key(|(_, input, _, record)| (record.born, std::cmp::Reverse(*input)));
                if let Some((_, _, _, record)) = latest {
                    pairs.push(Record { epoch, ..*record });
                }
            }
            let mut seen = vec![0usize; inputs];
            for (is_fresh, input, came, record) in same {
                if *is_fresh {
                    self.note_held(stage, *came);
                }
                let number = seen.get(usize::from(*input)).copied().unwrap_or(usize::MAX);
                if let Some(seen) = seen.get_mut(usize::from(*input)) {
                    *seen += 1;
                }
                if number >= matches {
                    if record.epoch.saturating_add(self.patience) > epoch {
                        alone.push((*input, *came, *record));
                    } else {
                        self.unmatched += 1;
                    }
                }
            }
        }
        pairs.sort_by_key(|record| record.born);
        for record in &pairs {
            self.hold(stage, record);
        }
        for (_, _, _, record) in all.iter().filter(|(is_fresh, ..)| *is_fresh) {
            self.release(stage, record);
        }
        self.stages[stage].alone = alone;
        for record in pairs {
            self.take(stage, record);
        }
    }
}
