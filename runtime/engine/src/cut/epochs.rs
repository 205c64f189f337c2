//! Ranges of epochs that a stand-in answers.
use crate::frame::{CLOSED, Epoch};

/// Disjoint, non-adjacent, ascending ranges of epochs; ends are exclusive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EpochRanges(Vec<(Epoch, Epoch)>);

impl EpochRanges {
    /// Adds `from..until`; `true` if a part of it is new.
    pub(crate) fn insert(&mut self, from: Epoch, until: Epoch) -> bool {
        if from >= until {
            return false;
        }
        // Merges with overlapping or adjacent ranges.
        let first = self.0.partition_point(|(_, end)| *end < from);
        let end = self.0.partition_point(|(begin, _)| *begin <= until);
        let joined = &self.0[first..end];
        if let [(begin, end)] = joined
            && *begin <= from
            && until <= *end
        {
            return false;
        }
        let from = joined.first().map_or(from, |(begin, _)| from.min(*begin));
        let until = joined.last().map_or(until, |(_, end)| until.max(*end));
        self.0.splice(first..end, [(from, until)]);
        true
    }

    /// Returns whether an epoch is in one of them.
    pub(crate) fn contains(&self, epoch: Epoch) -> bool {
        self.stretch(epoch).0
    }

    /// Returns whether an epoch is in one of them, and the next epoch where that changes; [`CLOSED`] if it never does.
    pub(crate) fn stretch(&self, epoch: Epoch) -> (bool, Epoch) {
        let next = self.0.partition_point(|(_, end)| *end <= epoch);
        match self.0.get(next) {
            Some((begin, end)) if *begin <= epoch => (true, *end),
            Some((begin, _)) => (false, *begin),
            None => (false, CLOSED),
        }
    }

    /// Returns their parts within `from..until`.
    pub(crate) fn within(&self, from: Epoch, until: Epoch) -> impl Iterator<Item = (Epoch, Epoch)> {
        let begin = self.0.partition_point(move |(_, end)| *end <= from);
        let cut = self.0[begin..].iter().map(move |(a, b)| ((*a).max(from), (*b).min(until)));
        cut.take_while(|(a, b)| a < b)
    }

    /// Removes everything before an epoch.
    pub(crate) fn prune(&mut self, before: Epoch) {
        self.0.retain(|(_, end)| *end > before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn ranges_that_touch_become_one() {
        let mut ranges = EpochRanges::default();
        assert!(ranges.insert(3, 5) && ranges.insert(7, 9) && !ranges.insert(4, 4) && !ranges.insert(3, 4));
        assert_eq!(ranges.0, [(3, 5), (7, 9)]);
        assert!(ranges.insert(5, 7));
        assert_eq!(ranges.0, [(3, 9)]);
        assert!(ranges.insert(20, CLOSED));
        assert_eq!(ranges.stretch(2), (false, 3));
        assert_eq!(ranges.stretch(3), (true, 9));
        assert_eq!(ranges.stretch(9), (false, 20));
        assert_eq!(ranges.stretch(40), (true, CLOSED));
        assert_eq!(ranges.stretch(CLOSED), (false, CLOSED));
        ranges.prune(9);
        assert_eq!(ranges.0, [(20, CLOSED)]);
    }

    proptest! {
        #[test]
        fn they_are_the_set_of_their_epochs(parts in prop::collection::vec((0u64..60, 0u64..12), 0..20), a in 0u64..70, n in 0u64..30) {
            let (mut ranges, mut set) = (EpochRanges::default(), BTreeSet::new());
            for (from, length) in parts {
                let before = set.len();
                set.extend(from..from + length);
                prop_assert_eq!(ranges.insert(from, from + length), set.len() > before);
            }
            for epoch in 0..80 {
                prop_assert_eq!(ranges.contains(epoch), set.contains(&epoch));
            }
            let within: BTreeSet<Epoch> = ranges.within(a, a + n).flat_map(|(from, until)| from..until).collect();
            prop_assert_eq!(within, set.range(a..a + n).copied().collect::<BTreeSet<_>>());
            prop_assert!(ranges.0.windows(2).all(|pair| pair[0].1 < pair[1].0));
        }
    }
}
