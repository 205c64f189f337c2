//! Policies on edges of workers, and what their transport services report.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use tidemill_net::protocol::{Listing, PolicySpec};

/// Beginning of the names that policies of the controller have in the services of workers.
pub const NET_POLICY_PREFIX: &str = "cluster-";

/// A policy that the controller keeps attached on workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NetPolicy {
    /// Names of the workers; none: all, also those that join later.
    #[serde(default)]
    pub workers: Option<Vec<String>>,
    /// The policy.
    pub policy: PolicySpec,
}

/// Other options of a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NetPolicyOptions {
    /// All of them.
    pub options: Value,
}

/// Report of an agent about the transport service of its worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NetReport {
    /// Its edges and policies; none: it cannot be asked.
    #[serde(default)]
    pub listing: Option<Listing>,
    /// Number of edges that the listing leaves out, because there are too many.
    #[serde(default)]
    pub left_out: u64,
    /// Reason why it cannot be asked.
    #[serde(default)]
    pub problem: Option<String>,
    /// Reasons why policies of the controller are not in force, by name.
    #[serde(default)]
    pub problems: BTreeMap<String, String>,
}

/// The transport service of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerNetView {
    /// The worker.
    pub worker: String,
    /// Whether it is alive.
    pub is_alive: bool,
    /// Last report of its agent; none: there is none since the controller started.
    pub report: Option<NetReport>,
    /// Policies that the controller keeps attached there.
    pub wanted: Vec<NetPolicy>,
}
