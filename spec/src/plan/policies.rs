//! The policies of a plan's edges.
use crate::policies::{PolicySide, edge};
use crate::value::Value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A setting of the transport of edges between operators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanPolicy {
    /// Id, unique among the policies of the plan.
    pub id: String,
    /// Id of the sending source or operator in the workflow. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Id of the receiving operator or sink in the workflow. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The host that executes it. Default: sender.
    #[serde(default, skip_serializing_if = "PolicySide::is_default")]
    pub side: PolicySide,
    /// Its kind.
    pub kind: String,
    /// Settings by kind.
    #[serde(default = "Value::empty_map", skip_serializing_if = "Value::is_empty_map")]
    #[schemars(extend("type" = "object"))]
    pub options: Value,
}

impl PlanPolicy {
    /// Whether it applies to the edge between these parts of the workflow: sources, operators and sinks by id.
    pub fn applies_to(&self, from: &str, to: &str) -> bool {
        edge::includes(self.from.as_deref(), self.to.as_deref(), from, to)
    }
}
