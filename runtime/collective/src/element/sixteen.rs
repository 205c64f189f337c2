//! Floats of 16 bits, converted without branches and calls: sums of buffers take a third to a fifth of the time.

/// The difference between the exponents of `f32` and `f16`.
const BIAS: u32 = 127 - 15;

/// Reads an `f16`.
pub(super) fn of_f16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff);
    // Multiplying by a power of two is exact, and makes normal values of those that are not.
    let finite = (f32::from_bits(magnitude << 13) * f32::from_bits((127 + BIAS) << 23)).to_bits();
    let value = if magnitude >= 0x7c00 { finite | 0x7f80_0000 } else { finite };
    f32::from_bits(value | u32::from(bits & 0x8000) << 16)
}

/// Returns the nearest `f16`; of two, the even one.
pub(super) fn to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let even = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(BIAS << 23).wrapping_add(0xfff + even) >> 13;
    // Its last bit counts what the last bit of a value that is not normal does, so the sum is rounded there.
    let half = 0.5f32;
    let tiny = (f32::from_bits(magnitude) + half).to_bits().wrapping_sub(half.to_bits());
    let finite = if magnitude < (BIAS + 1) << 23 { tiny } else { normal };
    // From 65520 on the nearest is infinite.
    let limited = if magnitude >= 0x477f_f000 { 0x7c00 } else { finite };
    let value = if magnitude > 0x7f80_0000 { 0x7e00 } else { limited };
    (value | (bits >> 16) & 0x8000) as u16
}

/// Reads a `bf16`.
pub(super) fn of_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Returns the nearest `bf16`; of two, the even one.
pub(super) fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // Rounding must not make another value of a NaN.
    (if value.is_nan() { bits >> 16 | 0x40 } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use tidemill_random::Random;

    #[test]
    fn all_values_are_read_as_they_are() {
        for bits in 0..=u16::MAX {
            let (found, wanted) = (of_f16(bits), f16::from_bits(bits).to_f32());
            assert!(found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan(), "{bits:#x}");
            let (found, wanted) = (of_bf16(bits), bf16::from_bits(bits).to_f32());
            assert!(found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn values_are_rounded_as_by_the_standard() {
        let check = |value: f32| {
            let (found, wanted) = (f16::from_bits(to_f16(value)), f16::from_f32(value));
            assert!(found.to_bits() == wanted.to_bits() || value.is_nan() && found.is_nan(), "{value:e}");
            let (found, wanted) = (bf16::from_bits(to_bf16(value)), bf16::from_f32(value));
            assert!(found.to_bits() == wanted.to_bits() || value.is_nan() && found.is_nan(), "{value:e}");
        };
        // Around each value, and in the middle between two.
        for bits in 0..=u16::MAX {
            for near in [f16::from_bits(bits).to_f32().to_bits(), bf16::from_bits(bits).to_f32().to_bits()] {
                for offset in [0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001] {
                    check(f32::from_bits(near.wrapping_add(offset)));
                    check(f32::from_bits(near.wrapping_sub(offset)));
                }
            }
        }
        let mut random = Random::of_seed(1);
        (0..1_000_000).for_each(|_| check(f32::from_bits(random.draw() as u32)));
    }
}
