//! Types of elements, and how two values are combined.
use serde::{Deserialize, Serialize};

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
