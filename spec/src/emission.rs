//! When the records of a source with an even rate are due, and which epoch they belong to: the same in a run and in a
//! simulation.
//!
//! ```
//! assert_eq!(tidemill_spec::emission::offset(328, 40.0), 8_200_000_000);
//! ```

/// Nanoseconds from the first record to the record `sequence`, the nearest whole number. Where a record is due on a tick it
/// belongs to the epoch that begins there, so nothing may be lost on the way: a rate is a whole number times a power of
/// two, and with whole numbers the division is exact.
pub fn offset(sequence: u64, rate: f64) -> u64 {
    exact_offset(sequence, rate).unwrap_or_else(|| (sequence as f64 / rate * 1e9).round() as u64)
}

/// Epoch of a record that is due so many nanoseconds after the source's beginning: a tick is an epoch, and the record that
/// is due when a tick begins belongs to it.
pub fn epoch(offset: u64, tick: u64) -> u64 {
    offset / tick.max(1)
}

/// None beyond 128 bits: after some decades, or below one record in hours.
fn exact_offset(sequence: u64, rate: f64) -> Option<u64> {
    const SIGNIFICAND_BITS: u32 = f64::MANTISSA_DIGITS - 1;
    let bits = rate.to_bits();
    let exponent = i32::try_from(bits >> SIGNIFICAND_BITS & 0x7ff).ok()?;
    if !rate.is_normal() || rate < 0.0 {
        return None;
    }
    let significand = bits & ((1 << SIGNIFICAND_BITS) - 1) | 1 << SIGNIFICAND_BITS;
    // rate = divisor x 2^-shift
    let shift = 1023 + SIGNIFICAND_BITS as i32 - exponent;
    let zeros = significand.trailing_zeros() as i32;
    let (divisor, shift) = (u128::from(significand >> zeros), shift - zeros);
    let nanoseconds = u128::from(sequence) * 1_000_000_000;
    let (dividend, divisor) = match shift {
        0.. => (nanoseconds.checked_mul(1u128.checked_shl(shift.unsigned_abs())?)?, divisor),
        _ => (nanoseconds, divisor.checked_mul(1u128.checked_shl(shift.unsigned_abs())?)?),
    };
    u64::try_from((dividend + divisor / 2) / divisor).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn offsets_are_exact() {
        for sequence in 0..1000 {
            assert_eq!(offset(sequence * 30, 30.0), sequence * 1_000_000_000);
        }
        assert_eq!(
            (offset(328, 40.0), offset(1, 30.0), offset(2, 30.0)),
            (8_200_000_000, 33_333_333, 66_666_667)
        );
        assert_eq!(offset(3, 2f64.powi(-30)), 3_221_225_472_000_000_000);
        assert_eq!((offset(1 << 40, 2f64.powi(60)), offset(u64::MAX, 1e18)), (954, 18_446_744_074));
        assert_eq!((offset(0, 10.0 / 3600.0), offset(10, 10.0 / 3600.0)), (0, 3_600_000_000_000));
    }

    /// Every second and every tick at 40/s, for ten days: none falls into the tick before.
    #[test]
    fn a_record_that_is_due_on_a_tick_belongs_to_it() {
        let tick = 50_000_000;
        assert!((0..40 * 86_400 * 10).all(|sequence| epoch(offset(sequence, 40.0), tick) == sequence / 2));
        assert_eq!(epoch(7, 0), 7);
    }

    proptest! {
        /// What a later record is due is never earlier, and the nearest nanosecond to what floats say.
        #[test]
        fn offsets_rise_and_are_near(sequence in 0u64..1 << 36, rate in 0.01f64..1e6) {
            let due = offset(sequence, rate);
            prop_assert!(offset(sequence + 1, rate) >= due);
            // 584 years are the most that can be told.
            let floats = (sequence as f64 / rate * 1e9).min(u64::MAX as f64);
            prop_assert!((due as f64 - floats).abs() <= 0.5 + floats * 4.0 * f64::EPSILON);
        }
    }
}
