//! Cells that slots write, and their plain values.
use super::{Amount, BatchSizes, ByReason, Latencies};
use crate::histogram::Histogram;
use crate::processor::ProcessorTime;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

/// A counted or measured value, shared by its writers and readers.
pub(crate) trait Cell: Default {
    /// Its value as plain data.
    type Value: Value;

    /// Returns its present value.
    fn read(&self) -> Self::Value;

    /// Shows the counts of other processes.
    fn show(&self, value: Self::Value);
}

/// A plain value of a cell.
pub(crate) trait Value {
    /// Returns the distribution, if it is one.
    fn histogram(&self) -> Option<&Histogram> {
        None
    }

    /// Returns the distribution for changes, if it is one.
    fn histogram_mut(&mut self) -> Option<&mut Histogram> {
        None
    }
}

/// Counts by reason.
pub(crate) type Reasons = BTreeMap<String, u64>;
/// Counts of batches by size, and the number of their records.
pub(crate) type Sizes = (Vec<u64>, u64);

impl Value for u64 {}
impl Value for i64 {}
impl Value for bool {}
impl Value for Reasons {}
impl Value for Sizes {}
impl<T> Value for Option<T> {}

impl Value for Histogram {
    fn histogram(&self) -> Option<&Histogram> {
        Some(self)
    }

    fn histogram_mut(&mut self) -> Option<&mut Histogram> {
        Some(self)
    }
}

impl Cell for AtomicU64 {
    type Value = u64;

    fn read(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    fn show(&self, value: u64) {
        self.store(value, Ordering::Relaxed);
    }
}

impl Cell for AtomicI64 {
    type Value = i64;

    fn read(&self) -> i64 {
        self.load(Ordering::Relaxed)
    }

    fn show(&self, value: i64) {
        self.store(value, Ordering::Relaxed);
    }
}

impl Cell for AtomicBool {
    type Value = bool;

    fn read(&self) -> bool {
        self.load(Ordering::Relaxed)
    }

    fn show(&self, value: bool) {
        self.store(value, Ordering::Release);
    }
}

impl Cell for Amount {
    type Value = u64;

    fn read(&self) -> u64 {
        self.get()
    }

    fn show(&self, value: u64) {
        self.set(i64::try_from(value).unwrap_or(i64::MAX));
    }
}

impl Cell for Arc<ProcessorTime> {
    type Value = u64;

    fn read(&self) -> u64 {
        self.nanoseconds()
    }

    fn show(&self, value: u64) {
        self.set(Duration::from_nanos(value));
    }
}

impl Cell for Latencies {
    type Value = Histogram;

    fn read(&self) -> Histogram {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn show(&self, value: Histogram) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }
}

impl Cell for ByReason {
    type Value = Reasons;

    fn read(&self) -> Reasons {
        self.counts()
    }

    fn show(&self, value: Reasons) {
        let counts = value.into_iter().map(|(reason, n)| (reason.into(), n)).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}

impl Cell for BatchSizes {
    type Value = Sizes;

    fn read(&self) -> Sizes {
        (self.counts.iter().map(AtomicU64::read).collect(), self.records.read())
    }

    fn show(&self, (counts, records): Sizes) {
        self.counts.iter().zip(counts).for_each(|(own, n)| own.show(n));
        self.records.show(records);
    }
}

/// A value that does not change once it is known.
impl<T: Clone> Cell for OnceLock<T> {
    type Value = Option<T>;

    fn read(&self) -> Option<T> {
        self.get().cloned()
    }

    fn show(&self, value: Option<T>) {
        if let Some(value) = value {
            let _ = self.set(value); // known already: it stays the same
        }
    }
}

/// Merges of a former process's value into the present one's.
pub(crate) mod merge {
    use super::{Reasons, Sizes};
    use crate::histogram::Histogram;

    /// Values that can be added up.
    pub(crate) trait Add {
        /// Adds `more`.
        fn add(&mut self, more: &Self);
    }

    impl Add for u64 {
        fn add(&mut self, more: &Self) {
            *self = self.saturating_add(*more);
        }
    }

    impl Add for Histogram {
        fn add(&mut self, more: &Self) {
            self.add_all(more);
        }
    }

    impl Add for Reasons {
        fn add(&mut self, more: &Self) {
            for (reason, n) in more {
                self.entry(reason.clone()).or_default().add(n);
            }
        }
    }

    impl Add for Sizes {
        fn add(&mut self, more: &Self) {
            self.0.resize(self.0.len().max(more.0.len()), 0);
            self.0.iter_mut().zip(&more.0).for_each(|(own, more)| own.add(more));
            self.1.add(&more.1);
        }
    }

    /// The sum of both.
    pub(crate) fn sum<T: Add>(now: &mut T, before: &T) {
        now.add(before);
    }

    /// The larger one.
    pub(crate) fn max<T: Ord + Copy>(now: &mut T, before: &T) {
        *now = (*now).max(*before);
    }

    /// The value of the former process, unless it is 0.
    pub(crate) fn first(now: &mut i64, before: &i64) {
        if *before != 0 {
            *now = *before;
        }
    }

    /// The value of either that has one.
    pub(crate) fn known<T: Clone>(now: &mut Option<T>, before: &Option<T>) {
        if now.is_none() {
            now.clone_from(before);
        }
    }

    /// Whether either is true.
    pub(crate) fn any(now: &mut bool, before: &bool) {
        *now |= before;
    }

    /// The value of the present process.
    pub(crate) fn last<T>(_: &mut T, _: &T) {}
}
