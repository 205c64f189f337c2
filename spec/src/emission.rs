//! Due times and epochs of the records of a source with an even rate: shared by runs and simulations.
//!
//! ```
//! assert_eq!(tidemill_spec::emission::offset(328, 40.0), 8_200_000_000);
//! ```

/// Returns the nanoseconds from the first record to the record `sequence`, rounded. A record due on a tick belongs to
/// the epoch that starts there, so the result must be exact: a rate is a whole number times a power of two, and with
/// whole numbers the division is exact.
pub fn offset(sequence: u64, rate: f64) -> u64 {
    exact_offset(sequence, rate).unwrap_or_else(|| (sequence as f64 / rate * 1e9).round() as u64)
}

/// Returns the epoch of a record that is due this many nanoseconds after the source's start: a tick is an epoch, and a
/// record due at the start of a tick belongs to it.
pub fn epoch(offset: u64, tick: u64) -> u64 {
    offset / tick.max(1)
}

/// Returns none beyond 128 bits: after some decades, or below one record in hours.
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

    /// Every second and every tick at 40/s, for ten days: none falls into the previous tick.
    #[test]
    fn a_record_that_is_due_on_a_tick_belongs_to_it() {
        let tick = 50_000_000;
        assert!((0..40 * 86_400 * 10).all(|sequence| epoch(offset(sequence, 40.0), tick) == sequence / 2));
        assert_eq!(epoch(7, 0), 7);
    }

    proptest! {
        /// Later records are never due earlier, and offsets are within rounding of the floating-point result.
        #[test]
        fn offsets_rise_and_are_near(sequence in 0u64..1 << 36, rate in 0.01f64..1e6) {
            let due = offset(sequence, rate);
            prop_assert!(offset(sequence + 1, rate) >= due);
            // 584 years are the largest value.
            let floats = (sequence as f64 / rate * 1e9).min(u64::MAX as f64);
            prop_assert!((due as f64 - floats).abs() <= 0.5 + floats * 4.0 * f64::EPSILON);
        }
    }
}
