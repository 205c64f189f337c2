//! The schema of an RPC service and the flat form of its messages.
//!
//! Programs hand over typed values in shared memory, and the service of the host reads them by their schema: it checks
//! them, looks at fields for its policies, and turns them into protobuf and back. A [`Schema`] is read from a set of
//! protobuf descriptors; each message has a [`Layout`], which is its marshal program.
//!
//! # The flat form, version 1
//!
//! Little-endian. One address space per message; offsets are `u32` from its beginning, and everything is at multiples
//! of 8.
//!
//! - A message struct has presence words (`u64`, one for 64 fields; bit `i` of word `i / 64` says that field `i` is
//!   there), then one slot of 8 bytes for each field. Both are in the order of the field numbers.
//! - The slot of a number, a bool or an enum is its value as 64 bits: `i64` with the sign extended, `u64`, the bits of an
//!   `f32` in the low half, the bits of an `f64`.
//! - The slot of a string or of bytes is an offset and a length; that of a message an offset and the size of its struct;
//!   that of a repeated field an offset and a count, to an array of slots. A map is a repeated field of entry messages;
//!   if a key comes twice, the last one counts.
//! - The members of a oneof are ordinary fields, of which at most one is there. A field without explicit presence is there
//!   if it is not the default, a repeated field if it is not empty. What is absent has a slot of 0. Floats compare by
//!   their bits: -0 is there.
//! - The root struct is at offset 0. What has no bytes (an empty string, a message without fields) may have any offset
//!   within the message; this crate writes 0.
//! - A message is at most [`MAX_DEPTH`] structs deep, the root included, and [`MAX_MESSAGE`] bytes long.
//!
//! A message is a list of segments, the root first; bytes of [`OWN_SEGMENT`] and more are segments of their own, so that
//! they are not copied. Each segment begins at a multiple of 8: who puts them one after the other fills the gap with
//! zeros, as [`join`] does and [`starts`] computes.
//!
//! Unknown fields and proto2 extensions are not kept. Groups and editions are refused. Enums are open, also those of
//! proto2; defaults of proto2 are not applied, and fields that it requires may be absent. Strings must be UTF-8.
//!
//! # Example
//!
//! ```
//! use tidemill_schema::{Schema, Value};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // message Point { int32 x = 1; } as protoc would compile it
//! let set = b"\x0a\x1d\x0a\x01p\x22\x10\x0a\x05Point\x12\x07\x0a\x01x\x18\x01\x28\x05\x62\x06proto3";
//! let schema = Schema::from_bytes(set)?;
//! let point = schema.message_named("Point").ok_or("no Point")?;
//! let segments = point.decode(&schema, &bytes::Bytes::from_static(b"\x08\x07"))?;
//! let flat = tidemill_schema::join(&segments);
//! point.check(&schema, &flat)?;
//! assert!(matches!(point.get(&schema, &flat, 0), Some(Value::I64(7))));
//! # Ok(())
//! # }
//! ```

mod canonical;
mod check;
mod decode;
mod descriptor;
mod encode;
mod evolve;
mod flat;
mod get;
mod invalid;
mod layout;
mod value;
mod wire;

pub use canonical::Hash;
pub use descriptor::{Schema, SchemaError};
pub use evolve::{Conversion, MethodFit, Mismatch, service_fits};
pub use flat::{MAX_DEPTH, MAX_MESSAGE, OWN_SEGMENT, join, starts};
pub use get::{List, MessageRef, Value};
pub use invalid::Invalid;
pub use layout::{Field, Kind, Layout, Method, Presence, Service};
pub use value::{FlatReader, FlatValue, FlatWriter, Message, from_flat, to_segments};
