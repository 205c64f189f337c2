//! Requests about the feeds of live sources.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidemill_engine::{FeedOrder, FeedStatus};

/// The feeds of a run, such as its cameras.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FeedsView {
    /// The workflow of the run.
    pub workflow: String,
    /// The feeds of each live source; none while the process that reads it is away.
    pub sources: BTreeMap<String, Vec<FeedStatus>>,
}

/// A change of the feeds of a source while it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FeedRequest {
    /// The source in the workflow.
    pub source: String,
    /// The change.
    pub order: FeedOrder,
}
