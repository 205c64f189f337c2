//! Seeded random numbers, reproducible on every machine and in every version: a seed identifies a simulation, search or
//! generated problem. Not for secrets.
//!
//! ```
//! use tidemill_random::Random;
//! let (mut one, mut other) = (Random::of_seed(7), Random::of_seed(7));
//! assert_eq!(one.below(100), other.below(100));
//! ```

const INCREMENT: u64 = 0x9E37_79B9_7F4A_7C15;

/// The generator SplitMix64 of Steele, Lea and Flood (2014).
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates a generator whose stream depends on the seed alone.
    pub fn of_seed(seed: u64) -> Self {
        let mut generator = Self { state: seed.wrapping_mul(INCREMENT) ^ 0xD1B5_4A32_D192_ED03 };
        for _ in 0..4 {
            generator.draw();
        }
        generator
    }

    /// Returns 64 random bits.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(INCREMENT);
        finished(self.state)
    }

    /// Returns a number from 0 on, below 1.
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number between two others.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Returns a whole number below `count`; 0 where that is 0.
    pub fn below(&mut self, count: usize) -> usize {
        ((self.unit() * count as f64) as usize).min(count.saturating_sub(1))
    }

    /// Returns true with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

/// Spreads numbers over all 64 bits, so that neighbours become unrelated.
pub fn mixed(number: u64) -> u64 {
    finished(number.wrapping_mul(INCREMENT))
}

/// The generator's finishing step.
fn finished(state: u64) -> u64 {
    let mut mixed = state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_one() {
        // First outputs for the raw state 1234567, as in the reference implementation.
        let mut generator = Random { state: 1_234_567 };
        assert_eq!(generator.draw(), 6_457_827_717_110_365_317);
        assert_eq!(generator.draw(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn numbers_keep_their_limits_and_their_mean() {
        let mut random = Random::of_seed(3);
        let below: Vec<usize> = (0..10_000).map(|_| random.below(4)).collect();
        for value in 0..4 {
            let count = below.iter().filter(|drawn| **drawn == value).count();
            assert!((2_300..2_700).contains(&count), "{count} times {value}");
        }
        assert_eq!(random.below(0), 0);
        let mean = (0..10_000).map(|_| random.uniform(2.0, 4.0)).sum::<f64>() / 10_000.0;
        assert!((mean - 3.0).abs() < 0.03, "{mean}");
        assert!(!random.chance(0.0) && random.chance(1.0));
    }
}
