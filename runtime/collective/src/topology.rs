//! Hosts, racks and paths, from which strategies are made. Tenants never see them.
use serde::{Deserialize, Serialize};
use tidemill_hints::staleness::Decision;

/// A host with a service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its rack, or site; empty: all hosts without one are one rack.
    #[serde(default)]
    pub rack: String,
    /// Its pod: racks with short ways between them; empty: all racks without one are one pod.
    #[serde(default)]
    pub pod: String,
    /// The paths from here to hosts of other racks, the preferred one first; none: as the system routes.
    #[serde(default)]
    pub paths: Vec<Path>,
}

/// A path out of the rack. The network sends by it what comes from one of its ports.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// Its name, the same at all hosts that use the same links, such as a spine or an uplink.
    pub name: String,
    /// The source ports that the network routes by it; none: by `interface`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<(u16, u16)>,
    /// The interface or address of the host that leads to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Its rate, bytes per second.
    pub rate: f64,
}

/// A group, as far as strategies need to know it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Ranks that take part, and the host of each.
    pub ranks: Vec<(u32, String)>,
    /// Its priority.
    #[serde(default)]
    pub priority: Priority,
}

/// The loads of links, from hints.
#[derive(Debug, Clone, PartialEq)]
pub struct Loads {
    /// The hosts that they are of, and the rack of each.
    pub tree: Vec<(String, String)>,
    /// Bytes per second that one more flow would get on each link, by the numbers of the links of a
    /// [`Tree`](tidemill_hints::tree::Tree) of the hosts in that order.
    pub rates: Vec<f64>,
    /// Whether they are worth using, and why.
    pub decision: Decision,
}

impl Default for Loads {
    fn default() -> Self {
        let decision = Decision::defaults("no hints have come yet");
        Self { tree: Vec::new(), rates: Vec::new(), decision }
    }
}

/// Which groups have paths first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// After all others.
    Bulk,
    /// As most.
    #[default]
    Normal,
    /// Before all others.
    High,
}
