//! Policies of edges, as workflow and infrastructure files declare them: settings of the transport of what one operator sends to
//! another.
//!
//! The kind of a policy and its options are data here; the service that executes policies knows their meaning.
//!
//! ```
//! use tidemill_spec::{policies::resolve, workflow::Workflow};
//! let text = "
//! version: 1
//! name: watch
//! sources: [{id: cameras, kind: csv, options: {path: cameras.csv}}]
//! operators: [{id: detect, kind: filter, input: cameras, options: {where: size > 20}}]
//! sinks: [{id: found, kind: jsonl, input: detect, options: {path: found.jsonl}}]
//! policies:
//!   - edge: cameras -> detect
//!     rate_limit: {rps: 5, burst: 10}
//! ";
//! let workflow = Workflow::parse(text, "workflow.yaml")?;
//! let policies = resolve(&workflow, None);
//! assert_eq!(policies[0].id, "rate_limit-1");
//! assert!(policies[0].applies_to("cameras", "detect") && !policies[0].applies_to("detect", "found"));
//!
//! let wrong = text.replace("-> detect", "-> detekt");
//! let errors = Workflow::parse(&wrong, "workflow.yaml").unwrap_err();
//! assert!(errors.to_string().contains("did you mean `detect`?"));
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
mod check;
pub(crate) mod edge;
mod read;
mod resolve;

pub use edge::EdgePattern;
pub use resolve::{added_to, resolve};

pub(crate) use check::check;

use crate::span::Located;
use crate::value::Value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Characters that an id or a kind of a policy may have.
const LONGEST: usize = 64;

/// A policy of edges.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Id, unique in the file; none: the kind and a number.
    pub id: Option<Located<String>>,
    /// The edges that it applies to.
    pub edge: Located<EdgePattern>,
    /// The host that executes it.
    pub side: PolicySide,
    /// Its kind.
    pub kind: Located<String>,
    /// Settings by kind, a map.
    pub options: Value,
}

/// A policy of edges in an infrastructure: for all workflows that run there, or for one.
#[derive(Debug, Clone, PartialEq)]
pub struct InfrastructurePolicy {
    /// Name of the workflow; none: all.
    pub workflow: Option<Located<String>>,
    /// The policy.
    pub policy: Policy,
}

/// Host that executes a policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicySide {
    /// The one that sends.
    #[default]
    Sender,
    /// The one that receives.
    Receiver,
}

impl PolicySide {
    /// Returns the word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        }
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Kind of file with policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    Workflow,
    Infrastructure,
}

impl Home {
    /// Code of errors in policies.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::Workflow => "E0217",
            Self::Infrastructure => "E0317",
        }
    }

    /// Keys of a policy that are not its kind.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Workflow => &["id", "edge", "side"],
            Self::Infrastructure => &["id", "edge", "side", "workflow"],
        }
    }
}
