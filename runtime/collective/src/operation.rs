//! The operations of a group.
use crate::element::{Element, Reduction};
use crate::type_name::TypeName;
use serde::{Deserialize, Serialize};

/// An operation, the same at each rank. The buffer of each rank has the same length, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Each rank gets the bytes of one rank.
    Broadcast {
        /// That rank.
        root: u32,
    },
    /// Each rank gets the combination of all buffers.
    AllReduce {
        /// How they are combined.
        reduction: Reduction,
    },
    /// The member at position p of n gets part p of the combination: elements p·len/n to (p+1)·len/n (integers, rounded down). The
    /// rest of its buffer is undefined.
    ReduceScatter {
        /// How they are combined.
        reduction: Reduction,
    },
    /// Part p of each buffer becomes that of the member at position p. Parts are as of [`Self::ReduceScatter`].
    AllGather,
    /// Part q of the member at position p becomes part p of the member at position q. The length is a multiple of the number of members.
    AllToAll,
}

impl Operation {
    /// Returns its name, as tables and metrics write it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Broadcast { .. } => "broadcast",
            Self::AllReduce { .. } => "all-reduce",
            Self::ReduceScatter { .. } => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::AllToAll => "all-to-all",
        }
    }
}

/// An operation with its buffer, in the order of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbered {
    /// Its number in the group; the first is 1. The same at all ranks.
    pub number: u64,
    /// The operation.
    pub operation: Operation,
    /// The type of its elements.
    pub element: Element,
    /// Elements of the buffer of each rank.
    pub length: u64,
    /// What the program says of their type, where it is none of [`Element`].
    #[serde(default, skip_serializing_if = "TypeName::is_empty")]
    pub type_name: TypeName,
}

impl Numbered {
    /// Makes one whose elements are of a type that is known here.
    pub fn new(number: u64, operation: Operation, element: Element, length: u64) -> Self {
        Self { number, operation, element, length, type_name: TypeName::default() }
    }
}
