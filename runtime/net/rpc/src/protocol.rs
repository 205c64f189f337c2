//! The language of programs and the service of their host.
//!
//! They share two rings of descriptors (from the program, to the program), a heap of the program that the service reads, and a heap
//! of the service that the program reads. A packet socket beside them carries what happens seldom ([`ToService`],
//! [`ToProgram`]): JSON, one value a packet, with descriptors of files.
//!
//! A message is in *flat form* (see `tidemill_schema`). Its parts come first, as [`kind::PART`] and [`kind::METADATA`]; the
//! descriptor that means something comes last and has the root part.
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tidemill_shm::heap::HeapLimits;
use tidemill_shm::region::GRANULE;
use tidemill_shm::ring::words;

/// Version of this language. A program and a service with different ones refuse each other.
pub const VERSION: u32 = 1;
/// Descriptors that fit into a ring.
pub const PLACES: u32 = 4096;
/// Bytes of a message, at most.
pub const MOST_BYTES: u32 = 16 << 20;
/// Parts of a message, at most; more are copied together.
pub const MOST_PARTS: usize = 16;
/// Calls of one program that wait for their end, at most.
pub const MOST_CALLS: usize = 128;
/// Replies of a stream that may be under way.
pub const CREDIT: u32 = 32;
/// Bytes of a packet beside the rings.
pub const PACKET: usize = 64 << 10;
/// The heap of either side.
pub const HEAP: HeapLimits = HeapLimits { largest: MOST_BYTES, region: 32 << 20, regions: 4 };

/// Kinds of descriptors.
pub mod kind {
    /// A part of the message whose descriptor follows.
    pub const PART: u8 = 0;
    /// Metadata of the message whose descriptor follows.
    pub const METADATA: u8 = 1;
    /// A call: `lane` is the binding, `sequence` the method, `tag` the caller's number of the call.
    pub const CALL: u8 = 2;
    /// A reply that others follow.
    pub const ITEM: u8 = 3;
    /// The only reply: the call has ended.
    pub const REPLY: u8 = 4;
    /// The call has ended: `class` is the code, the payload a text.
    pub const END: u8 = 5;
    /// Nobody waits for the call any more.
    pub const CANCEL: u8 = 6;
    /// So many more replies (`sequence`) may come.
    pub const MORE: u8 = 7;
    /// The payload of a reply was taken; `tag` is the number that the sender gave it in `lease`.
    pub const TAKEN: u8 = 8;
    /// The number of kinds.
    pub const COUNT: u8 = 9;
}

/// Words of one ring, of which there are two in the region: from the program, then to it.
pub const RING: usize = words(PLACES);

/// Bytes of the region with both rings.
pub fn rings_bytes() -> u64 {
    (2 * RING as u64 * 8).next_multiple_of(GRANULE)
}

/// Returns where programs find the calls of the service with this socket.
pub fn socket_of(service: &Path) -> PathBuf {
    service.with_extension("rpc")
}

/// A packet of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToService {
    /// The first one.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// Its name for people and policies.
        program: String,
    },
    /// A region of its heap, whose descriptor comes with it.
    Region,
    /// A schema lies in its heap.
    Schema {
        /// Where.
        region: u32,
        /// See `region`.
        offset: u64,
        /// See `region`.
        length: u32,
    },
    /// It wants to call a service.
    Bind {
        /// Comes back with the answer.
        id: u64,
        /// The full name.
        service: String,
        /// Digest of its schema's bytes, in hexadecimal.
        schema: String,
        /// Where it is served; none: on this host. Several: calls are balanced between them.
        at: Vec<String>,
    },
    /// It serves a service.
    Serve {
        /// Comes back with the answer.
        id: u64,
        /// The full name.
        service: String,
        /// Digest of its schema's bytes, in hexadecimal.
        schema: String,
    },
    /// It wants the schema of a service that is served on this host.
    Describe {
        /// Comes back with the answer.
        id: u64,
        /// The full name.
        service: String,
    },
    /// It calls a binding no more, or serves no more.
    Leave {
        /// The number of the binding.
        lane: u32,
    },
}

/// A packet of the service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToProgram {
    /// The answer to [`ToService::Hello`], with the region of the rings and one end of a bell.
    Welcome {
        /// [`VERSION`].
        version: u32,
        /// Milliseconds since the service began: programs that serve may not be back yet.
        age_ms: u64,
    },
    /// A region of the heap that it reads, whose descriptor comes with it.
    Region,
    /// It does not know the schema: send it, and ask again.
    Unknown {
        /// See [`ToService::Bind`].
        id: u64,
    },
    /// It is bound, or served.
    Bound {
        /// See [`ToService::Bind`].
        id: u64,
        /// The number of the binding.
        lane: u32,
    },
    /// The schema lies in memory of the service.
    Described {
        /// See [`ToService::Bind`].
        id: u64,
        /// Where.
        region: u32,
        /// See `region`.
        offset: u64,
        /// See `region`.
        length: u32,
        /// Comes back when it was read.
        lease: u64,
    },
    /// It is not, and why.
    Refused {
        /// See [`ToService::Bind`]; none: the whole program is refused.
        id: Option<u64>,
        /// Code of gRPC.
        code: u8,
        /// For people.
        reason: String,
    },
}
