//! Join tokens.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Request for a join token.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Number of workers that can join with it; default: 1.
    #[serde(default)]
    pub uses: Option<u32>,
    /// Seconds until it expires; default: 3600.
    #[serde(default)]
    pub seconds: Option<u64>,
    /// Name that the worker must have; none: any name.
    #[serde(default)]
    pub name: Option<String>,
    /// The worker replaces the one of this name.
    #[serde(default)]
    pub replaces: bool,
}

/// A join token.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct TokenAnswer {
    /// Its text, which no later answer contains.
    pub token: String,
    /// Address to join.
    pub address: String,
}

impl std::fmt::Debug for TokenAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the token.
        f.debug_struct("TokenAnswer").field("address", &self.address).finish_non_exhaustive()
    }
}
