//! Rust code of RPC services, written from .proto files.
//!
//! A build script writes the code of its services, for which no other program is needed:
//!
//! ```no_run
//! // build.rs
//! fn main() -> Result<(), tidemill_stub::StubError> {
//!     tidemill_stub::build::Stubs::new().include("protos").file("shop.proto").write()
//! }
//! ```
//!
//! The program takes it in with `tidemill_rpc::include_stubs!("shop")`, where `shop` is the package of the .proto file.
//! There is one file for each package of the .proto files that are named; messages that they use from other packages are
//! in it as modules, so that it stands alone.
//!
//! - A message is a struct with public fields; messages and enums within it are in a module with its name, as with prost.
//! - A field with explicit presence is an `Option`, a message within itself an `Option<Box<..>>`, a map a `BTreeMap`, and
//!   a oneof an `Option` of an enum.
//! - An enum is a struct around its number, with a constant for each value, so that unknown values survive.
//! - A service is a client, a trait and a server. Methods to which the client sends a stream are refused.

mod comments;
mod compiling;
mod messages;
mod names;
mod printing;
mod services;

pub mod build;

pub use compiling::{StubError, compile};

use prost::Message as _;
use prost_types::FileDescriptorSet;

/// Writes the Rust code of the package of the last file in a set of descriptors, which is the one that was compiled; the
/// files before it are its imports. Comments become documentation if the set has them.
///
/// # Errors
///
/// Descriptors that are no schema, and methods to which the client sends a stream.
pub fn rust(descriptor_set: &[u8]) -> Result<String, StubError> {
    let set =
        FileDescriptorSet::decode(descriptor_set).map_err(|error| StubError::Malformed(error.to_string()))?;
    let package = set.file.last().map(|file| file.package().to_owned()).unwrap_or_default();
    messages::package(&set, &package)
}
