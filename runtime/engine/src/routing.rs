//! Which way a record goes: class and lane from its key, once, at the source; then the class decides at every
//! hop (`docs/architecture.md`).
//!
//! Keys that end in a number (`camera-7`, `000123`, 42) are spread by the golden-ratio sequence, whose share in
//! any interval of n consecutive numbers deviates by O(log n / n) instead of a hash's O(1 / sqrt n); so short runs
//! already follow the plan's shares. Other keys are hashed.
//!
//! ```
//! use tidemill_engine::routing::ClassTable;
//! let table = ClassTable::new(&[0.3, 0.7]);
//! let first = (0..10_000).filter(|n| table.class_of(format!("frame{n:05}").as_bytes()) & 0xffff == 0).count();
//! assert!((2_970..=3_030).contains(&first));
//! ```
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;
use std::sync::LazyLock;
use tidemill_operators::record::{self, Metadata};
use xxhash_rust::xxh3::xxh3_64;

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15; // 2^64 / golden ratio: Knuth, TAOCP vol. 3, section 6.4 (Fibonacci hashing)

/// Digits at the end of a key that count as a number.
const NUMBER_DIGITS: usize = 18;

/// Position of a key in [0, 1) as a fraction of 2^64.
pub fn key_position(key: &[u8]) -> u64 {
    let digits = key.iter().rev().take(NUMBER_DIGITS).take_while(|byte| byte.is_ascii_digit()).count();
    let (prefix, number) = key.split_at(key.len() - digits);
    if number.is_empty() {
        return xxh3_64(key);
    }
    let number = number.iter().fold(0u64, |value, byte| value * 10 + u64::from(byte - b'0'));
    xxh3_64(prefix).wrapping_add(number.wrapping_mul(GOLDEN))
}

/// Position of a whole number as a key: that of its decimal digits.
pub(crate) fn number_position(number: i128) -> u64 {
    /// Position of no prefix.
    static BARE: LazyLock<u64> = LazyLock::new(|| xxh3_64(b""));
    static MINUS: LazyLock<u64> = LazyLock::new(|| xxh3_64(b"-"));
    let digits = number.unsigned_abs();
    if digits >= 10u128.pow(NUMBER_DIGITS as u32) {
        return key_position(number.to_string().as_bytes());
    }
    let prefix = if number < 0 { *MINUS } else { *BARE };
    prefix.wrapping_add((digits as u64).wrapping_mul(GOLDEN))
}

/// Cumulative shares as fractions of 2^64.
fn thresholds(shares: &[f64]) -> Vec<u64> {
    let total: f64 = shares.iter().sum();
    let mut sum = 0.0;
    let mut ends: Vec<u64> = shares
        .iter()
        .map(|share| {
            sum += share / total;
            // Saturates at the top.
            (sum * 2f64.powi(64)) as u64
        })
        .collect();
    if let Some(last) = ends.last_mut() {
        *last = u64::MAX;
    }
    ends
}

/// Decides class and lane of a key.
#[derive(Debug, Clone)]
pub struct ClassTable {
    ends: Vec<u64>,
}

impl ClassTable {
    /// A table of classes 0.. with these shares.
    pub fn new(shares: &[f64]) -> Self {
        Self { ends: thresholds(shares) }
    }

    /// The `_class` value of a key: class in the low 16 bits, lane (position within the class) in the high.
    pub fn class_of(&self, key: &[u8]) -> u32 {
        self.class_at(key_position(key))
    }

    /// The `_class` value of a position (see [`key_position`]).
    pub fn class_at(&self, position: u64) -> u32 {
        let class = self.ends.partition_point(|end| *end <= position).min(self.ends.len() - 1);
        let start = if class == 0 { 0 } else { self.ends[class - 1] };
        let width = (self.ends[class] - start).max(1);
        let lane =
            ((u128::from(position - start.min(position)) << 16) / u128::from(width)).min(0xffff) as u32;
        lane << 16 | class as u32
    }
}

/// Which rows of a stream go to one receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selector {
    /// All of them.
    All,
    /// Those whose class is routed to the stage; of these the lanes of the partition.
    Class { classes: Vec<bool>, partition: u32, partitions: u32 },
    /// Those whose column value lies in a part of the hash space (a group-by on another column than the key).
    Column { index: usize, from: u64, to: u64 },
}

impl Selector {
    /// Selector of receiver `i` among receivers with these shares, by the value of a column.
    pub(crate) fn by_column(index: usize, shares: &[f64], i: usize) -> Self {
        let ends = thresholds(shares);
        Self::Column { index, from: if i == 0 { 0 } else { ends[i - 1] }, to: ends[i] }
    }

    /// Which rows it takes; `None`: all.
    fn mask(&self, batch: &RecordBatch) -> Option<BooleanArray> {
        match self {
            Self::All => None,
            Self::Class { classes, partition, partitions } => {
                Some(BooleanArray::from_unary(Metadata::of(batch).classes, |value| {
                    classes.get((value & 0xffff) as usize).copied().unwrap_or(false)
                        && ((value >> 16) * partitions) >> 16 == *partition
                }))
            }
            Self::Column { index, from, to } => {
                let takes = |position: u64| *from <= position && (position < *to || *to == u64::MAX);
                let positions = column_positions(batch.column(*index));
                Some(positions.into_iter().map(|position| Some(takes(position))).collect())
            }
        }
    }

    /// The rows for this receiver; `None` when there are none.
    pub(crate) fn select(&self, batch: &RecordBatch) -> Option<RecordBatch> {
        let Some(mask) = self.mask(batch) else { return Some(batch.clone()) };
        match mask.true_count() {
            0 => None,
            n if n == batch.num_rows() => Some(batch.clone()),
            _ => Some(filter_record_batch(batch, &mask).expect("the mask is as long as the batch")),
        }
    }
}

/// Positions of a column's values, for keys of any type.
pub(crate) fn column_positions(column: &ArrayRef) -> Vec<u64> {
    let each = |position: &dyn Fn(usize) -> u64| -> Vec<u64> {
        (0..column.len()).map(|row| if column.is_null(row) { 0 } else { position(row) }).collect()
    };
    if let Some(texts) = record::text(column) {
        each(&|row| key_position(texts.value(row).as_bytes()))
    } else if let Some(numbers) = record::int64(column) {
        each(&|row| number_position(i128::from(numbers.value(row))))
    } else if let Some(numbers) = record::float64(column) {
        each(&|row| xxh3_64(&numbers.value(row).to_bits().to_le_bytes()))
    } else if let Some(flags) = record::boolean(column) {
        each(&|row| xxh3_64(&[u8::from(flags.value(row))]))
    } else if let Some(bytes) = record::binary(column) {
        each(&|row| xxh3_64(bytes.value(row)))
    } else {
        vec![0; column.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_stand_where_their_digits_do(number in any::<i64>(), shift in 0u32..64, unsigned in any::<u64>()) {
            for number in [i128::from(number >> shift), i128::from(unsigned >> shift)] {
                prop_assert_eq!(number_position(number), key_position(number.to_string().as_bytes()));
            }
        }
    }

    #[test]
    fn numbered_keys_follow_the_shares_closely() {
        for shares in [vec![0.3, 0.7], vec![0.1, 0.2, 0.7], vec![0.5, 0.5]] {
            let table = ClassTable::new(&shares);
            let mut counts = vec![0usize; shares.len()];
            for n in 0..10_000 {
                counts[(table.class_of(n.to_string().as_bytes()) & 0xffff) as usize] += 1;
            }
            for (count, share) in counts.iter().zip(&shares) {
                assert!((*count as f64 / 10_000.0 - share).abs() < 0.01 * share, "{counts:?} for {shares:?}");
            }
        }
    }

    #[test]
    fn lanes_split_a_class_evenly() {
        let table = ClassTable::new(&[0.3, 0.7]);
        let mut lanes = [[0usize; 2]; 2];
        for n in 0..10_000 {
            let value = table.class_of(format!("k{n}").as_bytes());
            lanes[(value & 0xffff) as usize][(((value >> 16) * 2) >> 16) as usize] += 1;
        }
        for [a, b] in lanes {
            assert!(a.abs_diff(b) * 50 < a + b, "{lanes:?}");
        }
    }

    #[test]
    fn random_keys_are_hashed() {
        let table = ClassTable::new(&[0.5, 0.5]);
        let first = (0..4000u64)
            .filter(|n| table.class_of(format!("{:x}z", xxh3_64(&n.to_le_bytes())).as_bytes()) & 0xffff == 0)
            .count();
        assert!((1800..2200).contains(&first), "{first}");
    }
}
