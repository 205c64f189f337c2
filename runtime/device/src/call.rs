//! Calls and their bytes.
//!
//! Each message is a head of 48 bytes, little-endian, and a payload:
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `0x7d11` |
//! | 2 | [`Op`] of a call; 128 for a reply, 129 for a receipt, 130 for a goodbye, 131 for memory, whose descriptor comes with it, 132 for a sign of life, 133 for a computation that takes too long |
//! | 3 | flags: 1 in a reply to a call that failed, 2 where the rest of the payload is in shared memory |
//! | 4..8 | bytes of the payload |
//! | 8..16 | sequence number of the call |
//! | 16..48 | three numbers, by kind; then the number of payloads that the sender has copied out of shared memory |
//!
//! The second number of a goodbye is 1 if the device is drained: it ends all sessions, and serves nobody any more.
use crate::device::DeviceError;
use serde::{Deserialize, Serialize};

/// Version of the protocol: sides with different ones refuse each other.
pub const VERSION: u32 = 2;
/// Bytes of a head.
pub const HEAD: usize = 48;
/// Largest payload. Files of models go in pieces.
pub const MOST_PAYLOAD: usize = 1 << 30;
const MAGIC: u16 = 0x7d11;
/// Kind of a reply.
pub(crate) const REPLY: u8 = 128;
/// Kind of a receipt: bytes that the proxy has handled.
pub(crate) const RECEIPT: u8 = 129;
/// Kind of the last message: the device ends the session, and its payload says why.
pub(crate) const GOODBYE: u8 = 130;
/// Kind of the message that shares a region of memory.
pub(crate) const MEMORY: u8 = 131;
/// Kind of a sign of life, which comes while calls arrive or are handled.
pub(crate) const BEAT: u8 = 132;
/// Kind of the message that a computation takes too long; its payload says which limit it exceeds.
pub(crate) const LATE: u8 = 133;
const FAILED: u8 = 1;
const PLACED: u8 = 2;

/// When a call returns to its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// At once: it is posted, and its payload is copied. An error surfaces at the next sync call.
    Async,
    /// At once, with a handle that the client chose.
    Shadow,
    /// At once, from the snapshot: no message is sent.
    Local,
    /// When the reply is there: one round trip.
    Sync,
}

/// Calls of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Op {
    /// Version, tenant and token of the client; the reply is the snapshot.
    Hello = 1,
    /// Hashes of files; the reply names those that the host lacks.
    Offer = 2,
    /// A piece of a file.
    Store = 3,
    /// Loads a model from files of the host.
    Load = 4,
    /// Frees a model.
    Unload = 5,
    /// Makes a tensor of zeros.
    Create = 6,
    /// Makes a tensor of a value.
    Upload = 7,
    /// Runs a model.
    Run = 8,
    /// Returns the value of a tensor.
    Read = 9,
    /// Frees tensors.
    Free = 10,
    /// Waits for all runs.
    Flush = 11,
    /// Facts of the device.
    Facts = 12,
    /// Wants a receipt of the calls before it.
    Report = 13,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Hello,
        Self::Offer,
        Self::Store,
        Self::Load,
        Self::Unload,
        Self::Create,
        Self::Upload,
        Self::Run,
        Self::Read,
        Self::Free,
        Self::Flush,
        Self::Facts,
        Self::Report,
    ];

    /// When it returns.
    ///
    /// ```
    /// use tidemill_device::call::{Class, Op};
    /// assert_eq!(Op::Run.class(), Class::Async);
    /// assert_eq!(Op::Read.class(), Class::Sync);
    /// ```
    pub const fn class(self) -> Class {
        match self {
            Self::Hello | Self::Offer | Self::Read | Self::Flush => Class::Sync,
            Self::Create => Class::Shadow,
            Self::Facts => Class::Local,
            Self::Store
            | Self::Load
            | Self::Unload
            | Self::Upload
            | Self::Run
            | Self::Free
            | Self::Report => Class::Async,
        }
    }

    pub(crate) fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|op| *op as u8 == number)
    }
}

/// First bytes of a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: u8,
    pub(crate) failed: bool,
    /// The payload begins with a [descriptor](tidemill_shm::descriptor) of its rest.
    pub(crate) placed: bool,
    pub(crate) payload: u32,
    pub(crate) sequence: u64,
    pub(crate) numbers: [u64; 4],
}

impl Head {
    pub(crate) fn to_bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[2] = self.kind;
        bytes[3] = (u8::from(self.failed) * FAILED) | (u8::from(self.placed) * PLACED);
        bytes[4..8].copy_from_slice(&self.payload.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        for (place, number) in bytes[16..].chunks_exact_mut(8).zip(self.numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; HEAD]) -> Result<Self, String> {
        let number = |at: usize| {
            let part = bytes[at..at + 8].iter().rev();
            part.fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let magic = u16::from_le_bytes([bytes[0], bytes[1]]);
        if magic != MAGIC {
            return Err(format!("{magic:#06x} begins no message of a device"));
        }
        let payload = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        if payload as usize > MOST_PAYLOAD {
            return Err(format!("a message of {payload} bytes is longer than {MOST_PAYLOAD}"));
        }
        Ok(Self {
            kind: bytes[2],
            failed: bytes[3] & FAILED != 0,
            placed: bytes[3] & PLACED != 0,
            payload,
            sequence: number(8),
            numbers: [number(16), number(24), number(32), number(40)],
        })
    }
}

/// What a client says first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// For whom it computes: limits and shares are those of the tenant.
    pub tenant: String,
    /// Name of the client for `tidemill device ls`, such as `workflow/operator`.
    pub client: String,
}

/// A call that failed, as its lane reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("call {sequence} ({op:?}) failed: {error}")]
pub struct Failure {
    /// Its sequence number.
    pub sequence: u64,
    /// The call.
    pub op: Op,
    /// The reason.
    pub error: DeviceError,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_their_bytes() {
        let head = Head {
            kind: REPLY,
            failed: true,
            placed: false,
            payload: 7,
            sequence: u64::MAX,
            numbers: [1, 2, 3, 1 << 60],
        };
        let placed = Head { failed: false, placed: true, ..head };
        for head in [head, placed] {
            assert_eq!(Head::from_bytes(&head.to_bytes()), Ok(head));
        }
        let mut wrong = head.to_bytes();
        wrong[0] = 0;
        assert!(Head::from_bytes(&wrong).is_err());
        let long = Head { payload: u32::MAX, ..head };
        assert!(Head::from_bytes(&long.to_bytes()).is_err());
    }

    #[test]
    fn every_call_has_its_number() {
        for op in Op::ALL {
            assert_eq!(Op::of(op as u8), Some(op));
        }
        assert_eq!(Op::of(REPLY), None);
    }
}
