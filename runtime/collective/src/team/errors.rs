//! Why there is no team, an operation does not begin, or cannot continue.
use super::WireName;
use crate::operation::Numbered;
use crate::strategy::Invalid;
use crate::wire::Mismatch;

/// An operation that cannot continue. The team stays so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank}: {reason}")]
pub struct Failed {
    /// The rank at the other end of the wire that broke, or whose buffer is wrong.
    pub rank: u32,
    /// Why.
    pub reason: String,
    /// The call of that rank, where it is another one than here.
    pub called: Option<Numbered>,
}

impl Failed {
    pub(super) fn new(rank: u32, reason: impl Into<String>) -> Self {
        Self { rank, reason: reason.into(), called: None }
    }

    pub(super) fn of(rank: u32, mismatch: Mismatch) -> Self {
        match mismatch {
            Mismatch::Other(reason) => Self::new(rank, reason),
            Mismatch::Call(called) => {
                Self { called: Some(called), ..Self::new(rank, "it calls something else") }
            }
        }
    }
}

/// Why there is no team.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoTeam {
    /// The strategy is none.
    #[error(transparent)]
    Strategy(#[from] Invalid),
    /// A wire is not there.
    #[error("no wire from rank {} to rank {} for channel {}", .0.from, .0.to, .0.channel)]
    Wire(WireName),
}

/// Why an operation did not begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotBegun {
    /// One at a time.
    #[error("operation {0} has not ended")]
    Busy(u64),
    /// The team has failed before.
    #[error(transparent)]
    Failed(#[from] Failed),
    /// Numbers ascend.
    #[error("operation {found} after operation {last}")]
    Number {
        /// That of this operation.
        found: u64,
        /// That of the last one.
        last: u64,
    },
    /// The ranks with buffers are not those of the team.
    #[error("buffers of ranks {found:?} for a team of ranks {local:?}")]
    Ranks {
        /// Those with buffers.
        found: Vec<u32>,
        /// Those of the team.
        local: Vec<u32>,
    },
    /// A broadcast of somebody else.
    #[error("rank {0}, whose bytes are sent to all, does not take part")]
    Root(u32),
    /// Parts would not be equally long.
    #[error("{length} elements do not make equal parts for {members} ranks")]
    Parts {
        /// Elements of each buffer.
        length: u64,
        /// Ranks that take part.
        members: usize,
    },
    /// A buffer is too small.
    #[error("the buffer of rank {rank} has {bytes} bytes, not the {length} elements of {element} bytes")]
    Buffer {
        /// Whose.
        rank: u32,
        /// Its bytes.
        bytes: u64,
        /// Elements of the operation.
        length: u64,
        /// Bytes of an element.
        element: usize,
    },
}
