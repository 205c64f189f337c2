//! Traffic of a worker's machine besides that of runs, from which rates of links follow.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Traffic of a machine since its last report, without that of the worker and its processes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrafficReport {
    /// Milliseconds over which it was counted.
    pub milliseconds: u64,
    /// TCP traffic by the other end, the most first. What has no traffic is left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PeerTraffic>,
    /// Bytes per second that the machine sent and received otherwise, such as by UDP.
    #[serde(default)]
    pub other: [u64; 2],
    /// The reason why nothing is counted; none: it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// TCP traffic of a machine with another one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PeerTraffic {
    /// The other end; none: all others together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<IpAddr>,
    /// It is reached without a router, so its traffic does not leave the site.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_near: bool,
    /// Traffic to it.
    pub sent: FlowRate,
    /// Traffic from it.
    pub received: FlowRate,
}

/// Traffic in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowRate {
    /// Connections that carry bytes, an average.
    pub flows: f64,
    /// Bytes per second.
    pub bytes_per_second: u64,
}
