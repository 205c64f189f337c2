//! Counts of durations with three digits; memory is proportional to the number of different ones.
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Largest value, in microseconds, with a bucket of its own; above, buckets grow so that none is wider than a thousandth of
/// its values.
const EXACT: u64 = 2048;
/// Buckets for each doubling of the value.
const PER_DOUBLING: u64 = EXACT / 2;
/// Neighbouring buckets that are stored together.
const BLOCK: u64 = 32;
/// One hour: longer values count as this.
const LONGEST: u64 = 3_600_000_000;

/// Microseconds from 1 to one hour. Buckets are created near the first value that falls into them, so an unused histogram
/// takes nothing, and one whose values vary by a factor of a hundred takes less than 60 KiB.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Histogram {
    blocks: BTreeMap<u64, Box<[u64; BLOCK as usize]>>,
    count: u64,
    /// In units of 2^64 microseconds and the rest: not every format has larger numbers.
    sum: (u64, u64),
    max: u64,
}

fn bucket(value: u64) -> u64 {
    let shift = value.max(PER_DOUBLING).ilog2() as u64 - PER_DOUBLING.ilog2() as u64;
    shift * PER_DOUBLING + (value >> shift)
}

/// The largest value of a bucket.
fn upper_end(bucket: u64) -> u64 {
    let shift = (bucket / PER_DOUBLING).saturating_sub(1);
    ((bucket - shift * PER_DOUBLING + 1) << shift) - 1
}

impl Histogram {
    /// Adds the value `micros` `n` times.
    pub(crate) fn add(&mut self, micros: u64, n: u64) {
        if n == 0 {
            return;
        }
        let micros = micros.clamp(1, LONGEST);
        let bucket = bucket(micros);
        let block = self.blocks.entry(bucket / BLOCK).or_default();
        block[(bucket % BLOCK) as usize] += n;
        self.count += n;
        self.add_to_sum(u128::from(micros) * u128::from(n));
        self.max = self.max.max(micros);
    }

    /// Adds all values of another one.
    pub(crate) fn add_all(&mut self, other: &Self) {
        for (block, counts) in &other.blocks {
            let own = self.blocks.entry(*block).or_default();
            own.iter_mut().zip(counts.iter()).for_each(|(own, more)| *own += more);
        }
        self.count += other.count;
        self.add_to_sum(other.exact_sum());
        self.max = self.max.max(other.max);
    }

    /// Returns the changes since `earlier`, a former state of this: changed blocks, and everything outside of blocks. Few
    /// blocks of a running stage change between two looks, and all of them may be kilobytes.
    pub(crate) fn changed_since(mut self, earlier: &Self) -> Self {
        self.blocks.retain(|block, counts| earlier.blocks.get(block) != Some(counts));
        self
    }

    /// Applies the result of [`Histogram::changed_since`].
    pub(crate) fn take_changed(&mut self, changed: Self) {
        let Self { blocks, count, sum, max } = changed;
        self.blocks.extend(blocks);
        (self.count, self.sum, self.max) = (count, sum, max);
    }

    /// Returns whether it may come from [`Histogram::changed_since`]. The counts of several of these can be added without overflow.
    pub(crate) fn is_sound_part(&self) -> bool {
        let last = bucket(LONGEST) / BLOCK;
        let mut counts = self.blocks.values().flat_map(|counts| counts.iter());
        self.blocks.keys().all(|block| *block <= last)
            && counts.all(|n| *n <= self.count)
            // The sum of all buckets at this limit does not overflow.
            && self.count <= u64::MAX >> 24
            && self.sum.0 <= u64::MAX >> 16
            && self.max <= LONGEST
    }

    /// Returns whether it may come from [`Histogram::add`]: its buckets are those of durations, and its counts add up.
    pub(crate) fn is_sound(&self) -> bool {
        let last = bucket(LONGEST) / BLOCK;
        let mut counts = self.blocks.values().flat_map(|counts| counts.iter());
        let sum = counts.try_fold(0u64, |sum, n| sum.checked_add(*n));
        self.blocks.keys().all(|block| *block <= last)
            && sum == Some(self.count)
            // Many of them can be added without overflow.
            && self.count <= u64::MAX >> 16
            && self.sum.0 <= u64::MAX >> 16
            && self.max <= LONGEST
    }

    fn exact_sum(&self) -> u128 {
        (u128::from(self.sum.0) << 64) + u128::from(self.sum.1)
    }

    fn add_to_sum(&mut self, more: u128) {
        let sum = self.exact_sum() + more;
        self.sum = ((sum >> 64) as u64, sum as u64);
    }

    /// Number of values.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Sum of all values, exact, microseconds.
    pub(crate) fn sum(&self) -> f64 {
        self.exact_sum() as f64
    }

    /// Arithmetic mean, exact, microseconds; 0 without values.
    pub(crate) fn mean(&self) -> f64 {
        self.sum() / self.count.max(1) as f64
    }

    /// The largest value, exact, microseconds; 0 without values.
    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// Non-empty buckets: the largest value of each (at most the overall maximum), and its count, ascending.
    fn recorded(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.blocks.iter().flat_map(|(block, counts)| (block * BLOCK..).zip(counts.iter()));
        counts.filter(|(_, n)| **n > 0).map(|(bucket, n)| (upper_end(bucket).min(self.max), *n))
    }

    /// The value, microseconds, that a share `percentile` (0..100) of all does not exceed; at most a thousandth too large.
    /// 0 without values.
    pub(crate) fn percentile(&self, percentile: f64) -> u64 {
        let rank = (percentile * self.count as f64 / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (value, n) in self.recorded() {
            seen += n;
            if seen >= rank {
                return value;
            }
        }
        self.max
    }

    /// Number of values that are at most `micros`, to a thousandth.
    pub(crate) fn count_to(&self, micros: u64) -> u64 {
        let last = upper_end(bucket(micros));
        self.recorded().take_while(|(value, _)| *value <= last).map(|(_, n)| n).sum()
    }

    /// Returns the values added since `earlier`, a former state of this: the largest value of each bucket, microseconds,
    /// and its additional count, ascending.
    pub(crate) fn since(&self, earlier: &Self) -> Vec<(u64, u64)> {
        let before = |block: &u64, place: usize| earlier.blocks.get(block).map_or(0, |block| block[place]);
        let mut added = Vec::new();
        for (block, counts) in &self.blocks {
            for (place, n) in counts.iter().enumerate() {
                let more = n.saturating_sub(before(block, place));
                if more > 0 {
                    added.push((upper_end(block * BLOCK + place as u64).min(self.max), more));
                }
            }
        }
        added
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[(u64, u64)]) -> Histogram {
        let mut histogram = Histogram::default();
        values.iter().for_each(|(value, n)| histogram.add(*value, *n));
        histogram
    }

    #[test]
    fn buckets_are_narrow_and_follow_each_other() {
        for value in (1..10_000).chain((10_000..LONGEST).step_by(7_777_777)) {
            let (bucket_of, end) = (bucket(value), upper_end(bucket(value)));
            assert!(end >= value && (end - value) as f64 <= value as f64 / 1000.0, "{value}: {end}");
            assert_eq!((bucket(end), bucket(end + 1)), (bucket_of, bucket_of + 1), "{value}");
        }
    }

    #[test]
    fn nothing_recorded_takes_nothing() {
        let empty = Histogram::default();
        assert!(empty.blocks.is_empty());
        assert_eq!((empty.percentile(99.0), empty.mean(), empty.max(), empty.count_to(5)), (0, 0.0, 0, 0));
        let mut spread = Histogram::default();
        (1000..100_000).for_each(|micros| spread.add(micros, 1));
        assert!(spread.blocks.len() * BLOCK as usize * 8 < 60 << 10, "{} blocks", spread.blocks.len());
    }

    proptest! {
        /// Compares with a library's histogram of this precision.
        #[test]
        fn figures_are_those_of_the_library(
            values in prop::collection::vec((0u64..1 << 33, 0u64..50, 0u32..33), 1..200),
            percentile in 0.0..100.0f64,
        ) {
            let values: Vec<(u64, u64)> = values.into_iter().map(|(value, n, shift)| (value >> shift, n + 1)).collect();
            let ours = of(&values);
            let mut theirs = hdrhistogram::Histogram::<u64>::new_with_bounds(1, LONGEST, 3).expect("valid bounds");
            for (value, n) in &values {
                theirs.record_n((*value).clamp(1, LONGEST), *n).expect("within the bounds");
            }
            let near = |ours: f64, theirs: f64| (ours - theirs).abs() <= theirs / 1000.0;
            prop_assert_eq!(ours.count(), theirs.len());
            prop_assert!(near(ours.mean(), theirs.mean()));
            prop_assert!(near(ours.max() as f64, theirs.max() as f64));
            for percentile in [percentile, 50.0, 95.0, 99.0, 100.0] {
                let value = theirs.value_at_percentile(percentile);
                prop_assert!(near(ours.percentile(percentile) as f64, value as f64));
                prop_assert_eq!(ours.count_to(value), theirs.count_between(0, value));
            }
        }

        /// Partial updates add up to the whole, and contain only the changes.
        #[test]
        fn what_has_changed_is_as_good_as_all(
            looks in prop::collection::vec(prop::collection::vec((1u64..LONGEST, 1u64..9), 0..6), 1..8),
        ) {
            let (mut now, mut told, mut held) = (Histogram::default(), Histogram::default(), Histogram::default());
            for more in &looks {
                more.iter().for_each(|(value, n)| now.add(*value, *n));
                let part = now.clone().changed_since(&told);
                prop_assert!(part.is_sound_part() && part.blocks.len() <= more.len());
                told = now.clone();
                held.take_changed(part);
                prop_assert_eq!(&held, &now);
                prop_assert!(held.is_sound());
            }
        }

        /// No value is lost between two looks.
        #[test]
        fn what_was_added_is_the_difference(
            first in prop::collection::vec((1u64..LONGEST, 1u64..9), 0..40),
            second in prop::collection::vec((1u64..LONGEST, 1u64..9), 0..40),
        ) {
            let earlier = of(&first);
            let mut later = earlier.clone();
            second.iter().for_each(|(value, n)| later.add(*value, *n));
            let added: u64 = later.since(&earlier).iter().map(|(_, n)| n).sum();
            prop_assert_eq!(added, second.iter().map(|(_, n)| n).sum::<u64>());
            prop_assert!(later.since(&later).is_empty());
        }
    }
}
