//! Devices that compute models in a process of their own.
//!
//! A *device proxy* is a process that holds one session's models and tensors and runs them. The engine's executor talks to
//! it by one ordered *lane* of calls: over a socket on one host, where tensors go through shared [`memory`], over TCP, TLS or a session of several paths between hosts.
//! So a model can run on an accelerator of another machine, a crash of a back end ends no engine, and the kernel frees what
//! a dead client held.
//!
//! - [`call`]: the calls, and their classes: *async* and *shadow* calls are posted and return at once, *local* ones read
//!   the snapshot of the greeting, *sync* ones wait for a reply, one round trip.
//! - [`session`]: the side of the client. [`proxy`]: the side of the device, which computes the calls by a [`device::Device`].
//! - [`value`]: tensors as bytes. [`store`]: files of models by content, so that each is uploaded once.
//! - [`batching`]: sessions that share models, and whose runs are computed together.
//! - [`emulated`]: a device with times and memory from a table and outputs that follow from its inputs; the reference of tests.
//!
//! ```
//! # use std::os::unix::net::UnixStream;
//! use tidemill_device::{carrier::Carrier, emulated::*, proxy::*, session::Session, store::*, value::*};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let (ours, theirs) = UnixStream::pair()?;
//! # let place = folder.path().to_owned();
//! let device = std::thread::spawn(move || {
//!     let mut store = Store::open(&place.join("models"), 1 << 30)?;
//!     let emulated = Emulated::new(Profile::default());
//!     serve(Carrier::of_socket(theirs)?, &emulated, &mut Everybody::default(), &mut store, &place.join("1"))?;
//!     Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! });
//! let session = Session::open(Carrier::of_socket(ours)?, "me", "example")?;
//! let artifact = artifact_of("double", b"x", 1, 1);
//! let model = session.load(&artifact, |_| Ok(Box::new(&b"x"[..])))?;
//! let mut lane = session.lane();
//! let input = lane.upload(Element::Float32, &[1], &1f32.to_le_bytes())?;
//! let outputs = lane.run(model, &[input], &[0])?; // posted: nothing waits
//! let pending = lane.read(outputs[0])?;
//! drop(lane); // sent
//! let value = pending.wait()?.value()?; // one round trip for all of it
//! assert_eq!(value.shape(), [1]);
//! drop(session);
//! device.join().map_err(|_| "it panicked")?.map_err(|error| error.to_string())?;
//! # Ok(())
//! # }
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking"))]

pub mod batching;
pub mod call;
pub mod carrier;
pub mod child;
pub mod daemon;
pub mod device;
pub mod dial;
pub mod emulated;
pub mod memory;
pub mod own;
pub mod processor;
pub mod proxy;
pub mod session;
pub mod store;
pub mod value;

#[cfg(test)]
mod hostile;
