//! Assigns the records of a group of sources to epochs: a k-way merge by event time that depends on the records alone,
//! however far each source has been read.
use crate::frame::Epoch;
use crate::node::source::{BYTES_PER_EPOCH, RECORDS_PER_EPOCH};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use tidemill_operators::record::EventTime;

/// State of the sources at the start of an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GroupCut {
    /// No record of this epoch or a later one raises the newest event time of its source from below this.
    time: EventTime,
    /// First record of each source that is in no earlier epoch.
    starts: Vec<u64>,
}

#[derive(Debug, Default)]
struct Member {
    /// Newest event time up to and with each record that has no epoch yet, and its bytes.
    waiting: VecDeque<(EventTime, usize)>,
    /// Records before it have an epoch.
    decided: u64,
    ended: bool,
    /// Records and bytes in the current epoch.
    in_epoch: (u64, usize),
}

impl Member {
    fn published(&self) -> u64 {
        self.decided + self.waiting.len() as u64
    }
}

/// Place of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Epochs that start at or before the record, oldest first, with their event times.
    pub(crate) begun: Vec<(Epoch, EventTime)>,
    /// Records before this one belong to the last of them. Not beyond the record itself: its epoch is not known yet.
    pub(crate) until: u64,
}

/// The merge of one group.
#[derive(Debug)]
pub(super) struct Merge {
    members: Vec<Member>,
    /// Event time of the first waiting record of each member that has one; equal times go by member.
    heads: BinaryHeap<Reverse<(EventTime, usize)>>,
    /// Number of members without a waiting record though more may come: nothing can be decided without them.
    awaited: usize,
    /// The current epoch.
    epoch: Epoch,
    cuts: BTreeMap<Epoch, GroupCut>,
}

impl Merge {
    pub(super) fn new(members: usize) -> Self {
        Self {
            members: std::iter::repeat_with(Member::default).take(members).collect(),
            heads: BinaryHeap::new(),
            awaited: members,
            epoch: 0,
            cuts: BTreeMap::new(),
        }
    }

    /// Creates a merge that starts with `epoch`, with these numbers of earlier records by member.
    pub(super) fn continued(epoch: Epoch, begun: Vec<u64>) -> Self {
        let mut merge = Self { epoch, ..Self::new(begun.len()) };
        merge.members.iter_mut().zip(begun).for_each(|(member, begun)| member.decided = begun);
        merge
    }

    /// Returns the current epoch, and the number of records of a member that have one.
    pub(super) fn reached(&self, member: usize) -> (Epoch, u64) {
        (self.epoch, self.members[member].decided)
    }

    /// Adds records of a member from number `first` on: the newest event time up to each, and its bytes. Known records are
    /// skipped, so that another reader of the source may publish them as well.
    pub(super) fn publish(&mut self, at: usize, first: u64, records: &[(EventTime, usize)]) {
        let member = &mut self.members[at];
        let known = usize::try_from(member.published().saturating_sub(first)).unwrap_or(usize::MAX);
        let Some(new) = records.get(known..).filter(|new| !new.is_empty() && !member.ended) else { return };
        if member.waiting.is_empty() {
            self.heads.push(Reverse((new[0].0, at)));
            self.awaited -= 1;
        }
        member.waiting.extend(new);
        self.decide();
    }

    /// Ends a member; its waiting records are never emitted.
    pub(super) fn end(&mut self, at: usize) {
        let member = &mut self.members[at];
        if std::mem::replace(&mut member.ended, true) {
            return;
        }
        if member.waiting.is_empty() {
            self.awaited -= 1;
        } else {
            member.waiting.clear();
            self.heads.retain(|Reverse((_, other))| *other != at);
        }
        self.decide();
    }

    fn decide(&mut self) {
        while self.awaited == 0
            && let Some(Reverse((time, at))) = self.heads.pop()
        {
            let rival = self.heads.peek().map(|Reverse(head)| *head);
            self.take_run(at, time, rival);
        }
    }

    /// Takes the first waiting records of a member, as long as they come before the others'.
    fn take_run(&mut self, at: usize, mut time: EventTime, rival: Option<(EventTime, usize)>) {
        loop {
            let (records, bytes) = self.members[at].in_epoch;
            if records >= RECORDS_PER_EPOCH || bytes >= BYTES_PER_EPOCH {
                self.cut(time);
            }
            let member = &mut self.members[at];
            let taken = member.waiting.pop_front().map_or(0, |(_, bytes)| bytes);
            member.in_epoch = (member.in_epoch.0 + 1, member.in_epoch.1 + taken);
            member.decided += 1;
            match member.waiting.front() {
                Some((next, _)) if rival.is_none_or(|rival| (*next, at) < rival) => time = *next,
                Some((next, _)) => return self.heads.push(Reverse((*next, at))),
                None => {
                    self.awaited += 1;
                    return;
                }
            }
        }
    }

    fn cut(&mut self, time: EventTime) {
        self.epoch += 1;
        let starts = self.members.iter().map(|member| member.decided).collect();
        self.cuts.insert(self.epoch, GroupCut { time, starts });
        self.members.iter_mut().for_each(|member| member.in_epoch = (0, 0));
    }

    /// Returns the place of record `sequence` of a member, for a reader that is in epoch `current`.
    pub(super) fn place(&self, member: usize, sequence: u64, current: Epoch) -> Place {
        let mut begun = Vec::new();
        for (epoch, cut) in self.cuts.range(current + 1..) {
            if cut.starts[member] > sequence {
                return Place { begun, until: cut.starts[member] };
            }
            begun.push((*epoch, cut.time));
        }
        Place { begun, until: self.members[member].decided }
    }

    /// Removes data that no reader in `epoch` or a later one needs.
    pub(super) fn forget(&mut self, epoch: Epoch) {
        self.cuts = self.cuts.split_off(&epoch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Event times of one source: steps may go back.
    fn times() -> impl Strategy<Value = Vec<EventTime>> {
        (0usize..6000, 1i64..3000, 0i64..2000, any::<u64>()).prop_map(|(n, step, back, seed)| {
            let mut random = seed;
            let mut at = 0;
            (0..n)
                .map(|_| {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    at += (random >> 33) as i64 % step;
                    at - (random >> 40) as i64 % (back + 1)
                })
                .collect()
        })
    }

    /// Records with these newest event times, each of `bytes` bytes.
    fn sized(newest: &[EventTime], bytes: usize) -> Vec<(EventTime, usize)> {
        newest.iter().map(|time| (*time, bytes)).collect()
    }

    fn newest(times: &[EventTime]) -> Vec<EventTime> {
        times
            .iter()
            .scan(EventTime::MIN, |newest, time| {
                *newest = (*newest).max(*time);
                Some(*newest)
            })
            .collect()
    }

    /// Epoch of every record, by sorting all of them.
    fn oracle(sources: &[Vec<EventTime>]) -> (Vec<Vec<Epoch>>, Vec<EventTime>) {
        let mut all: Vec<(EventTime, usize, usize)> = sources
            .iter()
            .enumerate()
            .flat_map(|(source, keys)| keys.iter().enumerate().map(move |(n, key)| (*key, source, n)))
            .collect();
        all.sort_unstable();
        let mut epochs: Vec<Vec<Epoch>> = sources.iter().map(|keys| vec![0; keys.len()]).collect();
        let (mut epoch, mut counts, mut begins) = (0, vec![0; sources.len()], vec![]);
        for (key, source, n) in all {
            if counts[source] == RECORDS_PER_EPOCH {
                epoch += 1;
                counts.fill(0);
                begins.push(key);
            }
            counts[source] += 1;
            epochs[source][n] = epoch;
        }
        (epochs, begins)
    }

    /// Epochs of all records of a member, as a reader finds them record by record.
    fn epochs(merge: &Merge, member: usize, records: usize) -> Vec<Epoch> {
        let mut epoch = 0;
        (0..records as u64)
            .map(|sequence| {
                let place = merge.place(member, sequence, epoch);
                assert!(place.until > sequence, "record {sequence} of {records} has no epoch");
                epoch = place.begun.last().map_or(epoch, |(epoch, _)| *epoch);
                epoch
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        /// For any order of reading and any portions, the epochs are those of the sorted records.
        #[test]
        fn epochs_are_those_of_the_sorted_records(
            sources in proptest::collection::vec(times(), 1..5),
            order in proptest::collection::vec((0usize..5, 1usize..700), 1..60),
        ) {
            let keys: Vec<_> = sources.iter().map(|times| newest(times)).collect();
            let mut merge = Merge::new(keys.len());
            let mut read = vec![0; keys.len()];
            let rest = (0..keys.len()).cycle().map(|source| (source, 256)).take(200 * keys.len());
            for (source, portion) in order.into_iter().chain(rest) {
                let source = source % keys.len();
                let end = (read[source] + portion).min(keys[source].len());
                merge.publish(source, read[source] as u64, &sized(&keys[source][read[source]..end], 1));
                read[source] = end;
                if end == keys[source].len() {
                    merge.end_after_all(source);
                }
            }
            let (expected, begins) = oracle(&keys);
            prop_assert_eq!(merge.cuts.values().map(|cut| cut.time).collect::<Vec<_>>(), begins);
            for (source, expected) in expected.iter().enumerate() {
                prop_assert_eq!(&epochs(&merge, source, expected.len()), expected);
            }
        }
    }

    impl Merge {
        /// A reader finds the end only when all its published records have an epoch.
        fn end_after_all(&mut self, member: usize) {
            if self.members[member].waiting.is_empty() {
                self.end(member);
            }
        }
    }

    #[test]
    fn nothing_is_decided_without_a_source_that_may_come_first() {
        let mut merge = Merge::new(3);
        merge.publish(0, 0, &sized(&[10, 20, 30], 1));
        merge.publish(1, 0, &sized(&[15, 25], 1));
        assert_eq!([merge.reached(0), merge.reached(1)], [(0, 0), (0, 0)]);
        merge.end(2);
        // After 25, member 1 may still have records before 30.
        assert_eq!([merge.reached(0), merge.reached(1)], [(0, 2), (0, 2)]);
        merge.publish(1, 0, &sized(&[15, 25, 40], 1));
        assert_eq!([merge.reached(0), merge.reached(1)], [(0, 3), (0, 2)], "told again, taken once");
        merge.end(0);
        assert_eq!(merge.reached(1), (0, 3));
    }

    #[test]
    fn a_source_that_leaves_does_not_hold_up_the_others() {
        let mut merge = Merge::new(2);
        merge.publish(0, 0, &sized(&[1, 2, 3], 1));
        merge.publish(1, 0, &sized(&[2], 1));
        assert_eq!([merge.reached(0), merge.reached(1)], [(0, 2), (0, 1)]);
        merge.end(0);
        merge.publish(0, 3, &sized(&[4], 1));
        merge.publish(1, 1, &sized(&[9, 9], 1));
        assert_eq!([merge.reached(0), merge.reached(1)], [(0, 2), (0, 3)]);
    }

    #[test]
    fn bytes_end_an_epoch_too() {
        let mut merge = Merge::new(2);
        merge.end(1);
        merge.publish(0, 0, &sized(&[1, 2, 3, 4, 5], BYTES_PER_EPOCH / 2));
        assert_eq!(epochs(&merge, 0, 5), [0, 0, 1, 1, 2]);
        merge.forget(2);
        assert_eq!(merge.place(0, 4, 1), Place { begun: vec![(2, 5)], until: 5 });
    }
}
