//! Data that a host keeps for a future coordinator: its notices since the last checkpoint, and data that only the host has.
//!
//! It is bounded, however long the coordinator is away and however long no checkpoint can be written.
//!
//! | data | limit | beyond |
//! |---|---|---|
//! | dead letters | 16,384, and 16 MiB | they are lost, and their number is reported |
//! | starts of sources' epochs | 65,536, and 16 MiB | of each source the oldest and the newest stay |
//! | ends of sources | one per source | |
//!
//! A run that restarts from its last checkpoint needs no more of the epochs: hosts have the data for themselves, and a
//! checkpoint takes it from them. A log of epochs (`run --epoch-log`) lacks those that were left out.
use crate::frame::Epoch;
use crate::store::EpochEntry;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Amount of one kind of data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

impl Amount {
    fn is_below(self, most: Self) -> bool {
        self.count < most.count && self.bytes < most.bytes
    }

    fn add(&mut self, bytes: usize) {
        (self.count, self.bytes) = (self.count + 1, self.bytes + bytes);
    }
}

const MOST_LETTERS: Amount = Amount { count: 16_384, bytes: 16 << 20 };
const MOST_CUTS: Amount = Amount { count: 65_536, bytes: 16 << 20 };

/// Content of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Of {
    Letter(Epoch),
    Cut(Epoch, String),
    /// Needed until the end.
    Rest,
}

impl Of {
    /// `None`: needed until the end.
    fn epoch(&self) -> Option<Epoch> {
        match self {
            Self::Letter(epoch) | Self::Cut(epoch, _) => Some(*epoch),
            Self::Rest => None,
        }
    }
}

struct Message {
    of: Of,
    bytes: Arc<Vec<u8>>,
}

/// See the module.
pub(super) struct Kept {
    /// In the order of the notices.
    messages: BTreeMap<u64, Message>,
    /// Number of the last entry.
    last: u64,
    letters: Amount,
    cuts: Amount,
    /// Limit above which cuts are thinned out.
    most_cuts: Amount,
    /// Letters that were never delivered.
    lost: u64,
    /// Letters delivered to the present coordinator only, with their newest epoch.
    told_only: (u64, Epoch),
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            messages: BTreeMap::new(),
            last: 0,
            letters: Amount::default(),
            cuts: Amount::default(),
            most_cuts: MOST_CUTS,
            lost: 0,
            told_only: (0, 0),
        }
    }
}

impl Kept {
    /// Adds a dead letter, delivered or not.
    pub(super) fn letter(&mut self, epoch: Epoch, bytes: &Arc<Vec<u8>>, is_heard: bool) {
        if self.letters.is_below(MOST_LETTERS) {
            return self.keep(Of::Letter(epoch), bytes);
        }
        match is_heard {
            true => self.told_only = (self.told_only.0 + 1, self.told_only.1.max(epoch)),
            false => self.lost += 1,
        }
    }

    /// Adds an entry about the epochs of a source.
    pub(super) fn epoch(&mut self, source: &str, entry: &EpochEntry, bytes: &Arc<Vec<u8>>) {
        let EpochEntry::Cut { epoch, .. } = entry else { return self.keep(Of::Rest, bytes) };
        self.keep(Of::Cut(*epoch, source.to_owned()), bytes);
        if !self.cuts.is_below(self.most_cuts) {
            self.thin_out();
        }
    }

    fn keep(&mut self, of: Of, bytes: &Arc<Vec<u8>>) {
        match of {
            Of::Letter(_) => self.letters.add(bytes.len()),
            Of::Cut(..) => self.cuts.add(bytes.len()),
            Of::Rest => {}
        }
        self.last += 1;
        self.messages.insert(self.last, Message { of, bytes: Arc::clone(bytes) });
    }

    /// Keeps of each source the oldest and the newest cut: an epoch without one starts with the one before it.
    fn thin_out(&mut self) {
        let mut ends: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (number, message) in &self.messages {
            if let Of::Cut(_, source) = &message.of {
                ends.entry(source).or_insert((*number, *number)).1 = *number;
            }
        }
        let stay: std::collections::BTreeSet<u64> =
            ends.into_values().flat_map(|(first, last)| [first, last]).collect();
        self.messages.retain(|number, message| !matches!(message.of, Of::Cut(..)) || stay.contains(number));
        self.count();
        // With very many sources more than the limit may stay: they are not scanned for each new one.
        let Amount { count, bytes } = self.cuts;
        self.most_cuts =
            Amount { count: MOST_CUTS.count.max(2 * count), bytes: MOST_CUTS.bytes.max(2 * bytes) };
    }

    fn count(&mut self) {
        (self.letters, self.cuts) = (Amount::default(), Amount::default());
        for message in self.messages.values() {
            match message.of {
                Of::Letter(_) => self.letters.add(message.bytes.len()),
                Of::Cut(..) => self.cuts.add(message.bytes.len()),
                Of::Rest => {}
            }
        }
    }

    /// Drops data before this epoch, which a checkpoint has.
    pub(super) fn forget_before(&mut self, epoch: Epoch) {
        self.messages.retain(|_, message| message.of.epoch().is_none_or(|of| of >= epoch));
        self.count();
        if self.told_only.1 < epoch {
            self.told_only = (0, 0);
        }
    }

    /// Returns the notices after number `told`, with their numbers.
    pub(super) fn after(&self, told: u64) -> Vec<(u64, Arc<Vec<u8>>)> {
        let after = self.messages.range(told + 1..);
        after.map(|(number, message)| (*number, Arc::clone(&message.bytes))).collect()
    }

    /// Returns the number of letters missing for a new coordinator, and resets it.
    pub(super) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost) + std::mem::take(&mut self.told_only).0
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Cut;
    use tidemill_operators::api::SourcePosition;

    fn entry(epoch: Epoch) -> EpochEntry {
        let position = SourcePosition::default();
        EpochEntry::Cut { epoch, cut: Cut { position, skip: 0, sequence: epoch, newest: 0, watermark: 0 } }
    }

    fn epochs(kept: &Kept, of: &str) -> Vec<Epoch> {
        let cuts = kept.messages.values().filter_map(|message| match &message.of {
            Of::Cut(epoch, source) if source == of => Some(*epoch),
            _ => None,
        });
        cuts.collect()
    }

    /// Letters above the limits of number or size are lost, and counted.
    #[test]
    fn letters_are_bounded_and_those_that_are_lost_are_counted() {
        let mut kept = Kept::default();
        let small = Arc::new(vec![7; 10]);
        for _ in 0..MOST_LETTERS.count + 5 {
            kept.letter(3, &small, false);
        }
        assert_eq!((kept.len(), kept.take_lost(), kept.take_lost()), (MOST_LETTERS.count, 5, 0));
        kept.forget_before(4);
        assert_eq!((kept.len(), kept.letters), (0, Amount::default()));
        // A few large ones.
        let large = Arc::new(vec![7; 1 << 20]);
        (0..100).for_each(|_| kept.letter(4, &large, false));
        assert_eq!((kept.len(), kept.take_lost()), (16, 84));
    }

    /// The present coordinator has them; they are missing only for another one, and only until a checkpoint has them.
    #[test]
    fn letters_that_somebody_was_told_are_lost_to_the_next_one_only() {
        let mut kept = Kept::default();
        let large = Arc::new(vec![7; 1 << 20]);
        (0..20).for_each(|epoch| kept.letter(epoch, &large, true));
        let mut next = 0;
        std::mem::swap(&mut next, &mut kept.told_only.0);
        assert_eq!((next, kept.take_lost()), (4, 0));
        (0..20).for_each(|_| kept.letter(19, &large, true));
        kept.forget_before(20);
        assert_eq!(kept.take_lost(), 0, "a checkpoint has them");
    }

    /// Of each source the oldest and the newest: no epoch is without an earlier cut, and the run continues from the newest.
    #[test]
    fn cuts_are_bounded_and_the_oldest_and_the_newest_of_each_source_stay() {
        let mut kept = Kept::default();
        let bytes = Arc::new(vec![7; 100]);
        let most = MOST_CUTS.count as u64;
        for epoch in 5..2 * most {
            kept.epoch("quick", &entry(epoch), &bytes);
            if epoch % 1000 == 7 {
                kept.epoch("slow", &entry(epoch), &bytes);
            }
            assert!(kept.len() <= MOST_CUTS.count);
        }
        let end = crate::store::End { sequence: 9, epoch: 9, limit: false };
        kept.epoch("slow", &EpochEntry::End(end), &bytes);
        let (quick, slow) = (epochs(&kept, "quick"), epochs(&kept, "slow"));
        assert_eq!((quick.first(), quick.last()), (Some(&5), Some(&(2 * most - 1))));
        assert_eq!((slow.first(), slow.last()), (Some(&7), Some(&((2 * most - 8) / 1000 * 1000 + 7))));
        assert_eq!(kept.after(0).len(), kept.len());
        kept.forget_before(2 * most);
        assert_eq!(kept.len(), 1, "where a source ended is needed to the end");
    }

    /// All of very many sources are reported, without a scan for each.
    #[test]
    fn very_many_sources_have_one_cut_each_at_least() {
        let mut kept = Kept::default();
        let bytes = Arc::new(vec![7; 10]);
        let sources: Vec<String> = (0..MOST_CUTS.count).map(|number| format!("s{number}")).collect();
        for (epoch, source) in sources.iter().enumerate() {
            kept.epoch(source, &entry(epoch as u64), &bytes);
        }
        assert_eq!((kept.len(), kept.most_cuts.count), (MOST_CUTS.count, 2 * MOST_CUTS.count));
    }
}
