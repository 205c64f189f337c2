//! Machines, links and their prices, `infrastructure.yaml` version 1.
//!
//! ```
//! use tidemill_spec::infrastructure::Infrastructure;
//! let text = "
//! version: 1
//! name: two-tiers
//! tiers:
//!   - {id: edge, workers: [{type: small, count: 4, vcpu: 2, memory: 2GiB, price: 0.02 $/h}]}
//!   - {id: cloud, workers: [{type: large, vcpu: 16, memory: 64GiB, price: 0.68 $/h}]}
//! links:
//!   - {from: edge, to: cloud, price: 0.1 $/GiB, bandwidth: 10Mbps, delay: 20ms}
//! ";
//! let infrastructure = Infrastructure::parse(text, "infrastructure.yaml")?;
//! assert!(infrastructure.link("edge", "cloud").is_some());
//! assert!(infrastructure.link("cloud", "edge").is_none());
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
use crate::policies::InfrastructurePolicy;
use crate::span::Located;
use crate::units::{Bandwidth, Bytes, HourlyPrice, Percent, TimeSpan, TransferPrice};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod check;
mod devices;
mod hosts;
mod load;
mod machines;
mod paths;

pub use devices::Device;
pub(crate) use devices::{ADDRESSES, is_address};
pub use hosts::{Architecture, Host, SshAddress};
pub use machines::{Machine, numbered_machine};
pub use paths::{NetworkPath, PathRule};

/// Tiers of machines and the links between them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Infrastructure {
    /// Format version; 1.
    pub version: Located<u32>,
    /// Name of the infrastructure.
    pub name: Located<String>,
    /// Tiers, the lowest (nearest to the sources) first.
    pub tiers: Vec<Tier>,
    /// Links between tiers. Traffic between tiers needs one; inside a tier it is free unless a link gives a price.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// Places of sources. A source that is not listed is at the lowest tier, spread evenly over its locations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourcePlace>,
    /// Machines of the sites, for `tidemill deploy`. A site that is not listed is the machine that deploys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<Host>,
    /// Settings of the transport of edges, besides those of the workflows. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<InfrastructurePolicy>,
}

/// Place of a source of the workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourcePlace {
    /// Source id in the workflow.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9_-]*$"))]
    pub id: Located<String>,
    /// Tier of the source.
    pub tier: Located<String>,
    /// Location in the tier; none: all locations, with an equal part of the records each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<Located<String>>,
}

/// A level of the infrastructure: edge, hub, cloud.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Id, unique in the infrastructure.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9_-]*$"))]
    pub id: Located<String>,
    /// Sites. Each has all workers of the tier except those that name other locations. None: one site without a name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<Located<String>>,
    /// Machines at each location.
    pub workers: Located<Vec<WorkerType>>,
}

/// Machines of one type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerType {
    /// Name of the type, as in profiles.
    #[serde(rename = "type")]
    #[schemars(regex(pattern = r"^[a-z][a-z0-9_.-]*$"))]
    pub worker_type: Located<String>,
    /// Number of machines at each location, at least 1. Default: 1.
    #[serde(default = "one")]
    pub count: Located<u32>,
    /// Virtual processors; none: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<Located<f64>>,
    /// Main memory; none: not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Located<Bytes>>,
    /// Accelerators of one machine that its container gets. What runs models for stages is in `devices`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accelerators: Vec<Accelerator>,
    /// Devices of one machine that run models: for its own stages, and for those of other machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// Price of one machine.
    pub price: Located<HourlyPrice>,
    /// Names of the machines, those of the first location first, one per machine. In a cluster these are the workers.
    /// None: they are numbered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<Located<String>>,
    /// The locations of the tier that have these machines. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<Located<String>>,
    /// Part of the time of each machine that another program uses, such as another workflow. Default: 0%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<Located<Percent>>,
}

/// Accelerators of one type in a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Accelerator {
    /// Name of the type.
    #[serde(rename = "type")]
    pub accelerator_type: Located<String>,
    /// Number of accelerators in one machine, at least 1. Default: 1.
    #[serde(default = "one")]
    pub count: Located<u32>,
    /// Memory of one accelerator; none: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Located<Bytes>>,
}

/// A link between two tiers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Sending tier.
    pub from: Located<String>,
    /// Receiving tier.
    pub to: Located<String>,
    /// Price of traffic. Default: 0 $/GB.
    #[serde(default)]
    pub price: Located<TransferPrice>,
    /// Bandwidth; none: not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Located<Bandwidth>>,
    /// One-way delay. Default: 0s.
    #[serde(default)]
    pub delay: Located<TimeSpan>,
    /// Direction of the link. Default: forward.
    #[serde(default)]
    pub direction: Direction,
}

/// Direction of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Only from `from` to `to`.
    #[default]
    Forward,
    /// In both directions, with the same price, bandwidth and delay.
    Both,
}

fn one() -> Located<u32> {
    Located::from(1)
}

impl Infrastructure {
    /// Returns the tier with this id.
    pub fn tier(&self, id: &str) -> Option<&Tier> {
        self.tiers.iter().find(|tier| tier.id.value == id)
    }

    /// Returns the place of a source, if it is listed.
    pub fn source(&self, id: &str) -> Option<&SourcePlace> {
        self.sources.iter().find(|source| source.id.value == id)
    }

    /// Returns the link that carries traffic from one tier to another.
    pub fn link(&self, from: &str, to: &str) -> Option<&Link> {
        let leads = |link: &&Link| {
            let forward = link.from.value == from && link.to.value == to;
            let back = link.direction == Direction::Both && link.from.value == to && link.to.value == from;
            forward || back
        };
        self.links.iter().find(leads)
    }
}

impl WorkerType {
    /// Whether a site of the tier has these machines.
    pub fn is_at(&self, location: Option<&str>) -> bool {
        self.locations.is_empty() || location.is_some_and(|at| self.locations.iter().any(|name| name == at))
    }
}

impl Tier {
    /// Returns the machines of this type.
    pub fn worker_type(&self, name: &str) -> Option<&WorkerType> {
        self.workers.iter().find(|worker| worker.worker_type.value == name)
    }
}
