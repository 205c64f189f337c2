//! The route class of a key: shared by engine, simulator and checker.
//!
//! Keys with a number at the end (`camera-7`, `000123`, 42) are spread by the golden-ratio sequence, whose share in any
//! interval of n consecutive numbers deviates by O(log n / n) instead of a hash's O(1 / sqrt n), so short runs already
//! follow the plan's shares. Other keys are hashed.
//!
//! ```
//! use tidemill_spec::routing::{ClassTable, key_position};
//! let table = ClassTable::new(&[0.3, 0.7]);
//! let class = |n: u32| table.class_at(key_position(format!("frame{n:05}").as_bytes()));
//! assert!((2_970..=3_030).contains(&(0..10_000).filter(|n| class(*n) == 0).count()));
//! ```
use std::sync::LazyLock;
use xxhash_rust::xxh3::xxh3_64;

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15; // 2^64 / golden ratio: Knuth, TAOCP vol. 3, section 6.4 (Fibonacci hashing)

/// Most digits at the end of a key that count as a number.
const NUMBER_DIGITS: usize = 18;

/// Returns the position of a key in [0, 1) as a fraction of 2^64.
pub fn key_position(key: &[u8]) -> u64 {
    let digits = key.iter().rev().take(NUMBER_DIGITS).take_while(|byte| byte.is_ascii_digit()).count();
    let (prefix, number) = key.split_at(key.len() - digits);
    if number.is_empty() {
        return xxh3_64(key);
    }
    let number = number.iter().fold(0u64, |value, byte| value * 10 + u64::from(byte - b'0'));
    position_after(xxh3_64(prefix), number)
}

/// Returns the position of the key that ends in `number`, where `start` is that of its prefix with the number 0.
pub fn position_after(start: u64, number: u64) -> u64 {
    start.wrapping_add(number.wrapping_mul(GOLDEN))
}

/// Returns the position of a whole number as a key: that of its decimal digits.
pub fn number_position(number: i128) -> u64 {
    /// Position of the empty prefix.
    static BARE: LazyLock<u64> = LazyLock::new(|| xxh3_64(b""));
    static MINUS: LazyLock<u64> = LazyLock::new(|| xxh3_64(b"-"));
    let digits = number.unsigned_abs();
    if digits >= 10u128.pow(NUMBER_DIGITS as u32) {
        return key_position(number.to_string().as_bytes());
    }
    position_after(if number < 0 { *MINUS } else { *BARE }, digits as u64)
}

/// The parts of the key space for given shares: class and lane of a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassTable {
    /// Cumulative shares as fractions of 2^64.
    ends: Vec<u64>,
}

impl ClassTable {
    /// Creates a table of classes 0.. with these shares, which need not add up to 1; without shares, one class has all
    /// keys.
    pub fn new(shares: &[f64]) -> Self {
        let total: f64 = shares.iter().sum();
        let mut sum = 0.0;
        let end = |share: &f64| {
            sum += share / total;
            // Saturates at the top.
            (sum * 2f64.powi(64)) as u64
        };
        let mut ends: Vec<u64> = shares.iter().map(end).collect();
        ends.pop();
        ends.push(u64::MAX);
        Self { ends }
    }

    /// Returns the number of classes.
    pub fn classes(&self) -> usize {
        self.ends.len()
    }

    /// Returns the class of a position.
    pub fn class_at(&self, position: u64) -> usize {
        self.ends.partition_point(|end| *end <= position).min(self.ends.len() - 1)
    }

    /// Returns the positions of a class: the first one, and the first beyond it; the last class takes the last position
    /// too.
    pub fn part(&self, class: usize) -> (u64, u64) {
        (if class == 0 { 0 } else { self.ends[class - 1] }, self.ends[class])
    }

    /// Returns the `_class` value of a position: class in the low 16 bits, lane (position within the class) in the
    /// high.
    pub fn value_at(&self, position: u64) -> u32 {
        let class = self.class_at(position);
        let (start, end) = self.part(class);
        let width = (end - start).max(1);
        let lane =
            ((u128::from(position - start.min(position)) << 16) / u128::from(width)).min(0xffff) as u32;
        lane << 16 | class as u32
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

        /// The value of a position names its class and a lane within it, and the parts are adjacent.
        #[test]
        fn values_and_parts_agree(shares in prop::collection::vec(0.001f64..1.0, 1..8), position in any::<u64>()) {
            let table = ClassTable::new(&shares);
            let class = table.class_at(position);
            prop_assert_eq!((table.value_at(position) & 0xffff) as usize, class);
            let (first, beyond) = table.part(class);
            prop_assert!(first <= position && (position < beyond || class + 1 == table.classes()));
        }
    }

    #[test]
    fn numbered_keys_follow_the_shares_closely() {
        for shares in [vec![0.3, 0.7], vec![0.1, 0.2, 0.7], vec![0.5, 0.5]] {
            let table = ClassTable::new(&shares);
            let mut counts = vec![0usize; shares.len()];
            for n in 0..10_000 {
                counts[table.class_at(number_position(n))] += 1;
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
            let value = table.value_at(key_position(format!("k{n}").as_bytes()));
            lanes[(value & 0xffff) as usize][(((value >> 16) * 2) >> 16) as usize] += 1;
        }
        for [a, b] in lanes {
            assert!(a.abs_diff(b) * 50 < a + b, "{lanes:?}");
        }
    }

    #[test]
    fn random_keys_are_hashed() {
        let table = ClassTable::new(&[0.5, 0.5]);
        let key = |n: u64| format!("{:x}z", xxh3_64(&n.to_le_bytes()));
        let first = (0..4000).filter(|n| table.class_at(key_position(key(*n).as_bytes())) == 0).count();
        assert!((1800..2200).contains(&first), "{first}");
    }
}
