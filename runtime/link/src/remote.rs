//! Links between processes and between hosts.
//!
//! One side listens ([`Listener`]), the other one dials ([`dial`]). Both greet each other ([`Greeting`]): which run
//! they belong to and what the connection is for. The connection then becomes either end of a channel, which is used
//! like that of any other link, or carries messages of control between two hosts.
//!
//! The ends of a channel use their socket on the thread of their slot: no other thread moves bytes. Bytes that a
//! socket does not take at once stay in a queue of the memory they came from, until the descriptor is writable again.
//! Payloads are written from the memory of the records, and read into the memory that becomes records; only TLS and
//! small parts are copied. Between processes of one host, over a transport that can hand over descriptors and without
//! TLS, payloads from 64 KiB on go through shared memory.
//!
//! # Permissions of a peer
//! Nothing a peer sends makes this side panic or keep more memory than was really sent: lengths are bounded, headers
//! and payloads have checksums (crc32c), and memory grows as bytes come. A connection that breaks, or that delivers
//! other bytes than were sent, is reported as [`LinkError::Lost`] or [`LinkError::Damaged`] after everything that
//! came whole.
//!
//! # Who a peer is
//! With [`Security::mutual`] both sides show certificates, and [`Incoming::peer_certificate`] and
//! [`Connection::peer_certificate`] return the peer's; its greeting proves nothing. Where a certificate has an
//! identity ([`peer_name`]), [`dial_to`] greets no other peer, and [`Incoming::peer_name`] returns it before an
//! answer. [`Credentials`] let a certificate be renewed, and others be refused, while a listener runs: new
//! connections use the change. Existing ones continue when a certificate is renewed, and end at the next read or
//! write when that of the peer is refused ([`Revoked`]).
//! Over a Unix socket with a name and no file ([`Address::unix`]) the system knows the user of the other process, and
//! both sides turn away all but their own.
//!
//! # A peer that is silent
//! Over TCP, a host that is gone without a word is reported as [`LinkError::Lost`] after [`PEER_TIMEOUT`]. So is a
//! host whose process takes nothing for that time while the kernel's buffers are full. An end reads ahead whenever
//! its thread looks at its descriptors, whether or not records are taken, up to [`READ_AHEAD`]; so only a thread that
//! stands still for that time counts as dead.
mod byte_stream;
mod carrier;
mod certificates;
mod credentials;
mod ends;
#[doc(hidden)]
pub mod fuzz_entry;
mod handshake;
mod inbound;
mod listener;
mod memory;
mod messages;
#[cfg(test)]
mod mutations;
mod outgoing;
mod parcels;
mod peer_name;
mod pool;
mod recoding;
mod secured;
mod security;
#[cfg(test)]
mod tests;
mod turned_away;
mod waiting;

pub use byte_stream::ByteStream;
pub use certificates::Certificates;
pub use credentials::{ClientCertificates, Credentials, FurtherCheck, Revoked};
pub use handshake::{Connection, GREETING_BYTES, HANDSHAKE_TIMEOUT, Incoming, dial, dial_over, dial_to};
pub use inbound::MAX_PAYLOAD;
pub use listener::{Listener, MAX_HANDSHAKES, Serving};
pub use messages::{MAX_MESSAGE, MessageReader, MessageWriter};
pub use parcels::{Parcel, ParcelReceiver, ParcelSender};
pub use peer_name::{PEER_SCHEME, peer_name};
pub use pool::{POOL_BYTES, READ_AHEAD};
pub use recoding::Recoder;
pub use security::Security;

pub use crate::transport::{Address, AddressError, PEER_TIMEOUT};

use arrow_schema::SchemaRef;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

#[cfg(doc)]
use crate::link::LinkError;

/// Version of the protocol. Two sides with different versions refuse each other.
pub const PROTOCOL_VERSION: u32 = 6;

/// The role of the greeting side on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Sends records.
    Sender,
    /// Receives them.
    Receiver,
}

/// The purpose of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Purpose {
    /// A channel of the plan.
    Channel {
        /// Which one.
        channel: u64,
        /// The role of the greeting side on it.
        role: Role,
        /// The incarnation of the greeting side's slot.
        incarnation: u32,
        /// [`schema_hash`] of the records.
        schema: u64,
    },
    /// Calls between the services of two hosts.
    Calls {
        /// Name of the greeting host.
        host: String,
    },
    /// Messages between two hosts.
    Control {
        /// Name of the greeting host.
        host: String,
    },
    /// A session with a device.
    Device {
        /// Name of the greeting side, for messages.
        client: String,
        /// The tenant for which the client computes, as in its first call. None: it is known by that call alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tenant: Option<String>,
    },
    /// Group communication between the services of two hosts.
    Group {
        /// Name of the greeting host.
        host: String,
        /// The group; empty where the connection is of none.
        group: String,
        /// The use of the connection.
        lane: GroupLane,
    },
}

/// The use of a connection of group communication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupLane {
    /// A service registers with the one that introduces ranks.
    Registration,
    /// Messages between two hosts of a group.
    Control,
    /// Bytes from one rank to another one.
    Wire {
        /// The number of the strategy that needs it.
        epoch: u64,
        /// The rank that sends.
        from: u32,
        /// The rank that receives.
        to: u32,
        /// Which of the wires between the two.
        channel: u16,
    },
}

/// The first words of either side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Greeting {
    /// The run that the side belongs to.
    #[serde(with = "hexadecimal")]
    pub run: u128,
    /// Version of the plan it works by. Sides with different versions may meet: the one that accepts decides.
    pub plan_version: u64,
    /// The purpose of the connection.
    pub purpose: Purpose,
}

impl Greeting {
    /// Returns why the two greetings do not fit, if they do not.
    fn mismatch(&self, other: &Self) -> Option<String> {
        if self.run != other.run {
            // Its number is a secret.
            return Some("another run".to_owned());
        }
        match (&self.purpose, &other.purpose) {
            (Purpose::Control { .. }, Purpose::Control { .. })
            | (Purpose::Calls { .. }, Purpose::Calls { .. })
            | (Purpose::Device { .. }, Purpose::Device { .. })
            | (Purpose::Group { .. }, Purpose::Group { .. }) => None,
            (
                Purpose::Channel { channel, role, schema, .. },
                Purpose::Channel { channel: their_channel, role: their_role, schema: their_schema, .. },
            ) => {
                if channel != their_channel {
                    Some(format!("another channel: {their_channel}, here it is {channel}"))
                } else if role == their_role {
                    Some(format!("both sides of channel {channel} want to be its {role:?}").to_lowercase())
                } else if schema != their_schema {
                    Some(format!(
                        "another schema on channel {channel}: {their_schema:016x}, here {schema:016x}"
                    ))
                } else {
                    None
                }
            }
            _ => Some("the two sides want to connect for different purposes".into()),
        }
    }
}

/// JSON has no numbers of 128 bits.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{value:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}

/// Returns a hash that distinguishes schemas: names, types, nullability and metadata. Equal on all hosts.
pub fn schema_hash(schema: &SchemaRef) -> u64 {
    let mut text = String::new();
    for field in schema.fields() {
        let parts = (field.name(), field.data_type(), field.is_nullable(), field.metadata());
        text.push_str(&format!("{parts:?}\n"));
    }
    text.push_str(&format!("{:?}", schema.metadata()));
    xxh3_64(text.as_bytes())
}

/// Why two sides cannot connect.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The peer does not want this connection.
    #[error("the peer refused: {0}")]
    Refused(String),
    /// The greeting of the peer is for something else.
    #[error("the peer does not fit: {0}")]
    Mismatch(String),
    /// The operating system refused, or the connection broke.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The peer was too slow.
    #[error("the peer did not answer in time")]
    Timeout,
    /// The peer speaks another version of the protocol.
    #[error("the peer speaks version {theirs} of the protocol, this side version {ours}")]
    Version {
        /// This side's.
        ours: u32,
        /// The peer's.
        theirs: u32,
    },
    /// The peer's first message is no greeting.
    #[error("no greeting: {0}")]
    Malformed(String),
    /// The peer speaks TLS, and this side does not.
    #[error("the peer uses certificates, and this side has none")]
    NoCertificates,
    /// The peer is not who it should be, or this side is not for the peer; or TLS failed otherwise.
    #[error("TLS: {0}")]
    Tls(String),
    /// The peer is good, but another one is meant: its certificate has another identity.
    #[error("{found} answers, and {wanted} is meant")]
    Stranger {
        /// The identity that is meant.
        wanted: String,
        /// The identity in its certificate.
        found: String,
    },
    /// Certificates that cannot be used.
    #[error("certificates: {0}")]
    Certificates(String),
    /// The own side stops serving.
    #[error("this side stops")]
    Stopped,
}
