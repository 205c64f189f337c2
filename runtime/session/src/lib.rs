//! Connections between two hosts that outlive each of the paths between them.
//!
//! A *session* joins two processes over one or several *paths*, such as fibre and LTE. Each stream over it is a *lane*: it
//! has a TCP connection, its *carrier*, over one path. Both sides send hellos over each path. When a path falls silent or
//! breaks, its lanes continue over another one: the side that dialled connects again, both sides say how much they have
//! taken, and what was not acknowledged is sent again. The users of a stream notice nothing but a pause.
//!
//! Where no path is left, the streams of channels report at once that their peer is lost: channels resume by epoch over
//! their next connection. Streams of control messages wait [`PEER_TIMEOUT`](tidemill_link::transport::PEER_TIMEOUT).
//!
//! A session is a transport like others, with the scheme `session` ([`install`]). TLS, greetings, frames and credits are
//! above it and see one stream:
//!
//! ```
//! use std::time::Duration;
//! use tidemill_link::transport::Address;
//!
//! tidemill_session::install()?;
//! let address: Address = "session://fibre=127.0.0.1:0,lte=127.0.0.1:0".parse()?;
//! let transport = address.transport()?;
//! let listening = transport.listen(address.place())?;
//! let mut dialled = transport.dial(&listening.place(), Duration::from_secs(5))?;
//! dialled.write(&[std::io::IoSlice::new(b"hello")])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Users of a lane
//! Acknowledgements come between the bytes of a lane. A side that writes more than 8 MiB without reading what the other one
//! has written stops, as over TCP when the buffers of both sides are full. Whoever waits for a lane to be readable may be
//! woken for nothing.
//!
//! # Permissions of a peer
//! The header of a session is not encrypted; what a lane carries is, as soon as TLS is above it. Who can change packets on
//! a path can break its connections, as with TCP. Who cannot read them cannot resume a lane: the number of a session is
//! random. What a peer says of lengths is never memory, and a lane that says something else than its bytes ends.
//!
//! # Cost
//! One hello is [`HELLO_IN_A_PACKET`] bytes: every 50 ms in each direction on a path that carries lanes, about 4.6 kB/s or
//! 11 GiB a month for both directions; every second, 0.6 GiB a month, on one that only stands by. Each byte that is sent is
//! copied once, into the memory from which it can be sent again, at most 8 MiB a lane.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod clock;
mod detector;
mod dialling;
mod door;
mod header;
mod hello;
mod lane;
mod place;
mod policy;
mod readiness;
mod session;
mod sessions;
mod transport;
mod window;

pub use detector::Hellos;
pub use dialling::address_of;
pub use hello::HELLO_IN_A_PACKET;
pub use place::{OwnPath, is_path_name};
pub use policy::Policy;
pub use sessions::Sessions;
pub use tidemill_link::transport::{Health, PathFigures};
pub use transport::{SCHEME, SessionTransport, address, install, sessions};

/// How a process uses its paths.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The ways out of this host, the preferred one first; none: as the system chooses.
    pub paths: Vec<OwnPath>,
    /// The rule by which they are used.
    pub policy: Policy,
    /// How often paths are checked.
    pub hellos: Hellos,
    /// Names of paths that lanes leave while another one works.
    pub drained: Vec<String>,
}
