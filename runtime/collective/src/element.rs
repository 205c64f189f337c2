//! Types of elements, and how two values are combined.
use serde::{Deserialize, Serialize};

mod sixteen;

/// The type of the elements of a buffer. Elements are in the byte order of the machine, which is little endian everywhere that we
/// support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Element {
    /// Floats of 32 bits.
    F32,
    /// Floats of 16 bits (IEEE 754).
    F16,
    /// Floats of 16 bits with the exponent of `f32`.
    Bf16,
    /// Integers of 32 bits.
    I32,
    /// Integers of 64 bits.
    I64,
}

impl Element {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::I32, Self::I64];

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }
}

/// How two values become one. All are commutative; sums of floats depend on the order of the ranks, and are the same at all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// The sum. Integers wrap around.
    #[default]
    Sum,
    /// The smaller one; NaN if one is NaN.
    Min,
    /// The larger one; NaN if one is NaN.
    Max,
}

impl Reduction {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sum, Self::Min, Self::Max];
}

/// Combines elements of `from` with those of `into`, as many as both have whole. Neither needs to be aligned.
///
/// The result does not depend on which side an element is on, bit for bit: a NaN is always the same one, and the smaller zero is the
/// negative one. So ranks that combine the same values in trees of the same shape get the same bytes.
pub fn combine(element: Element, reduction: Reduction, into: &mut [u8], from: &[u8]) {
    match element {
        Element::F32 => floats(reduction, into, from, f32::from_le_bytes, f32::to_le_bytes),
        Element::F16 => {
            let read = |bytes| sixteen::of_f16(u16::from_le_bytes(bytes));
            floats(reduction, into, from, read, |value| sixteen::to_f16(value).to_le_bytes());
        }
        Element::Bf16 => {
            let read = |bytes| sixteen::of_bf16(u16::from_le_bytes(bytes));
            floats(reduction, into, from, read, |value| sixteen::to_bf16(value).to_le_bytes());
        }
        Element::I32 => match reduction {
            Reduction::Sum => each(into, from, |a, b| {
                i32::from_le_bytes(a).wrapping_add(i32::from_le_bytes(b)).to_le_bytes()
            }),
            Reduction::Min => {
                each(into, from, |a, b| i32::from_le_bytes(a).min(i32::from_le_bytes(b)).to_le_bytes());
            }
            Reduction::Max => {
                each(into, from, |a, b| i32::from_le_bytes(a).max(i32::from_le_bytes(b)).to_le_bytes());
            }
        },
        Element::I64 => match reduction {
            Reduction::Sum => each(into, from, |a, b| {
                i64::from_le_bytes(a).wrapping_add(i64::from_le_bytes(b)).to_le_bytes()
            }),
            Reduction::Min => {
                each(into, from, |a, b| i64::from_le_bytes(a).min(i64::from_le_bytes(b)).to_le_bytes());
            }
            Reduction::Max => {
                each(into, from, |a, b| i64::from_le_bytes(a).max(i64::from_le_bytes(b)).to_le_bytes());
            }
        },
    }
}

/// Combines floats that are computed with in 32 bits.
fn floats<const N: usize>(
    reduction: Reduction,
    into: &mut [u8],
    from: &[u8],
    read: impl Fn([u8; N]) -> f32,
    write: impl Fn(f32) -> [u8; N],
) {
    match reduction {
        Reduction::Sum => each(into, from, |a, b| write(one_nan(read(a) + read(b)))),
        Reduction::Min => each(into, from, |a, b| write(smaller(read(a), read(b)))),
        Reduction::Max => each(into, from, |a, b| write(larger(read(a), read(b)))),
    }
}

/// Which of two NaN a sum becomes depends on their order, so all become one.
fn one_nan(value: f32) -> f32 {
    if value.is_nan() { f32::NAN } else { value }
}

fn smaller(a: f32, b: f32) -> f32 {
    // Equal values have the same bits, but for zeros.
    let equal = f32::from_bits(a.to_bits() | b.to_bits());
    let value = if a < b {
        a
    } else if b < a {
        b
    } else {
        equal
    };
    if a.is_nan() | b.is_nan() { f32::NAN } else { value }
}

fn larger(a: f32, b: f32) -> f32 {
    let equal = f32::from_bits(a.to_bits() & b.to_bits());
    let value = if a > b {
        a
    } else if b > a {
        b
    } else {
        equal
    };
    if a.is_nan() | b.is_nan() { f32::NAN } else { value }
}

/// Arrays of bytes instead of numbers: the compiler makes vectors of them, at each alignment.
fn each<const N: usize>(into: &mut [u8], from: &[u8], with: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    for (a, b) in into.as_chunks_mut::<N>().0.iter_mut().zip(from.as_chunks::<N>().0) {
        *a = with(*a, *b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;

    fn of_f32(reduction: Reduction, a: f32, b: f32) -> f32 {
        let mut into = a.to_le_bytes();
        combine(Element::F32, reduction, &mut into, &b.to_le_bytes());
        f32::from_le_bytes(into)
    }

    #[test]
    fn values_of_each_type_are_combined() {
        let mut ints = [i32::MAX.to_le_bytes(), (-5i32).to_le_bytes()].concat();
        combine(Element::I32, Reduction::Sum, &mut ints, &[1i32.to_le_bytes(), 7i32.to_le_bytes()].concat());
        assert_eq!(ints, [i32::MIN.to_le_bytes(), 2i32.to_le_bytes()].concat(), "they wrap around");
        let mut longs = (-5i64).to_le_bytes();
        combine(Element::I64, Reduction::Max, &mut longs, &3i64.to_le_bytes());
        assert_eq!(i64::from_le_bytes(longs), 3);
        let mut halves = f16::from_f32(1.5).to_le_bytes();
        combine(Element::F16, Reduction::Sum, &mut halves, &f16::from_f32(-0.25).to_le_bytes());
        assert_eq!(f16::from_le_bytes(halves).to_f32(), 1.25);
        let mut brains = bf16::from_f32(3.0).to_le_bytes();
        combine(Element::Bf16, Reduction::Min, &mut brains, &bf16::from_f32(2.0).to_le_bytes());
        assert_eq!(bf16::from_le_bytes(brains).to_f32(), 2.0);
    }

    #[test]
    fn nan_wins_and_zeros_have_an_order() {
        for reduction in Reduction::ALL {
            for (a, b) in [(f32::NAN, 1.0), (1.0, f32::from_bits(0xffc0_1234)), (f32::NAN, f32::NAN)] {
                assert_eq!(of_f32(reduction, a, b).to_bits(), f32::NAN.to_bits(), "{reduction:?}");
            }
        }
        assert_eq!(of_f32(Reduction::Sum, f32::INFINITY, f32::NEG_INFINITY).to_bits(), f32::NAN.to_bits());
        for (a, b) in [(0.0, -0.0), (-0.0, 0.0)] {
            assert!(of_f32(Reduction::Min, a, b).is_sign_negative());
            assert!(of_f32(Reduction::Max, a, b).is_sign_positive());
        }
    }

    #[test]
    fn what_is_not_a_whole_element_stays() {
        let mut into = [1u8, 0, 0, 0, 9, 9];
        combine(Element::I32, Reduction::Sum, &mut into, &[1, 0, 0, 0, 1, 1]);
        assert_eq!(into, [2, 0, 0, 0, 9, 9]);
        combine(Element::I32, Reduction::Sum, &mut into, &[]);
        assert_eq!(into, [2, 0, 0, 0, 9, 9]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_order_of_both_does_not_matter(bytes in proptest::collection::vec(any::<[u8; 16]>(), 1..20), shift in 0usize..8) {
            for element in Element::ALL {
                for reduction in Reduction::ALL {
                    // At any alignment.
                    let halves = |from: usize| {
                        let mut place = vec![0; shift];
                        place.extend(bytes.iter().flat_map(|both| &both[from..from + 8]));
                        place
                    };
                    let (mut one, mut other) = (halves(0), halves(8));
                    combine(element, reduction, &mut one[shift..], &halves(8)[shift..]);
                    combine(element, reduction, &mut other[shift..], &halves(0)[shift..]);
                    prop_assert_eq!(&one, &other, "{:?} {:?}", element, reduction);
                }
            }
        }
    }
}
