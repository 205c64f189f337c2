//! Intended times of rows that readers of a sink cannot see yet, in bounded memory.
use crate::clock::Nanoseconds;
use std::collections::BTreeMap;

/// Most distinct times; 16 bytes each.
const MOST: usize = 1024;
/// The finest resolution, 2^10 ns: histograms count microseconds.
const FINEST: u32 = 10;

/// Number of rows by intended time. Times are rounded to `2^shift` ns; when there are too many of them the resolution is
/// halved. So the error of a time is less than a thousandth of the span of all waiting times (or half a microsecond, if
/// that is more).
#[derive(Debug)]
pub(super) struct Unpublished {
    rows: BTreeMap<Nanoseconds, u64>,
    shift: u32,
}

impl Default for Unpublished {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), shift: FINEST }
    }
}

impl Unpublished {
    /// Adds rows with one intended time.
    pub(super) fn add(&mut self, intended: Nanoseconds, rows: u64) {
        *self.rows.entry(intended >> self.shift).or_default() += rows;
        while self.rows.len() > MOST {
            self.shift += 1;
            let mut coarser = BTreeMap::new();
            for (time, rows) in &self.rows {
                *coarser.entry(time >> 1).or_default() += rows;
            }
            self.rows = coarser;
        }
    }

    /// Adds all waiting rows of another one.
    pub(super) fn append(&mut self, other: &Self) {
        other.times().for_each(|(intended, rows)| self.add(intended, rows));
    }

    /// Returns intended times, ascending, each with the number of rows.
    pub(super) fn times(&self) -> impl Iterator<Item = (Nanoseconds, u64)> {
        let middle = 1i64 << (self.shift - 1);
        self.rows.iter().map(move |(time, rows)| ((time << self.shift) + middle, *rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn rows_are_kept_and_times_are_near(
            span in 1i64..4_000_000_000_000,
            parts in prop::collection::vec((0f64..1.0, 1u64..5), 1..5000),
        ) {
            let mut due: Vec<(i64, u64)> =
                parts.iter().map(|(part, rows)| ((part * span as f64) as i64, *rows)).collect();
            let mut waiting = Unpublished::default();
            due.iter().for_each(|(time, rows)| waiting.add(*time, *rows));
            prop_assert!(waiting.rows.len() <= MOST);
            due.sort_unstable();
            let exact = due.iter().flat_map(|(time, rows)| std::iter::repeat_n(*time, *rows as usize));
            let kept = waiting.times().flat_map(|(time, rows)| std::iter::repeat_n(time, rows as usize));
            let (exact, kept): (Vec<i64>, Vec<i64>) = (exact.collect(), kept.collect());
            prop_assert_eq!(exact.len(), kept.len());
            let range = due[due.len() - 1].0 - due[0].0;
            let allowed = (range / (MOST as i64 - 1)).max(512);
            for (exact, kept) in exact.iter().zip(&kept) {
                prop_assert!((exact - kept).abs() <= allowed, "{exact} {kept} {allowed}");
            }
        }
    }
}
