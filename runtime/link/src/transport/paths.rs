//! Figures of transports that use several paths.
use serde::{Deserialize, Serialize};

/// The state of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Nothing is known yet.
    Unknown,
    /// Data arrives in both directions.
    Up,
    /// Nothing arrives, or the connection that shows it broke.
    Silent,
}

/// Figures of one path to one peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathFigures {
    /// The place that was dialled; none at the side that accepted.
    pub peer: Option<String>,
    /// Name of the path.
    pub path: String,
    /// The interface or address by which it leaves this host; none: as the system chooses.
    pub from: Option<String>,
    /// The address at the other end.
    pub to: String,
    /// Its state.
    pub health: Health,
    /// Connections leave it while another one works.
    pub is_drained: bool,
    /// Dollars per GiB.
    pub price: f64,
    /// The smoothed round trip, microseconds.
    pub round_trip_us: Option<u64>,
    /// Connections that it carries.
    pub lanes: usize,
    /// Bytes of connections sent and received over it, with the headers of the transport.
    pub sent_bytes: u64,
    /// See `sent_bytes`.
    pub received_bytes: u64,
    /// Bytes of signs of life in both directions, with those of packets.
    pub hello_bytes: u64,
    /// Times that it fell silent.
    pub silences: u64,
    /// Connections that left it for another path.
    pub moves: u64,
}
