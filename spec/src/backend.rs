//! Names of inference backends, which run models.
//!
//! The program that registers backends knows them, so it rejects unknown ones; this crate does not.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// An inference backend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(rename = "Backend")]
pub struct BackendId(
    /// Its name.
    pub String,
);

impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which inference backend an operator uses.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct BackendChoice(
    /// `auto` or the name of a backend.
    pub String,
);

impl BackendChoice {
    /// The choice that leaves it to a short measurement.
    pub const AUTO: &str = "auto";

    /// Returns the backend, where one is named.
    pub fn named(&self) -> Option<&str> {
        (self.0 != Self::AUTO).then_some(self.0.as_str())
    }
}
