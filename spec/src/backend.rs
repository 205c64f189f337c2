//! Names of inference backends, which run models.
//!
//! The program that registers backends knows them, so it rejects unknown ones; this crate does not. `ort:cuda` is the
//! runtime `ort` on the provider `cuda`: another candidate than `ort`, which loads the same file.
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

/// Returns the runtime of a backend: `ort` of `ort:cuda`, and of `ort`.
///
/// ```
/// use tidemill_spec::backend::runtime;
/// assert_eq!((runtime("ort:cuda"), runtime("rten")), ("ort", "rten"));
/// ```
pub fn runtime(backend: &str) -> &str {
    backend.split_once(':').map_or(backend, |(runtime, _)| runtime)
}

/// Back ends that compute in programs of their own, `tidemill-device-NAME`, and never in the process of a stage.
pub const OWN_PROGRAMS: [&str; 2] = ["torch", "tvm"];

/// Returns the device of a stage with this back end, where the back end decides it: `proxy:torch` for `torch`.
///
/// ```
/// use tidemill_spec::backend::own_device;
/// assert_eq!(own_device("torch").as_deref(), Some("proxy:torch"));
/// assert_eq!(own_device("ort"), None);
/// ```
pub fn own_device(backend: &str) -> Option<String> {
    OWN_PROGRAMS.contains(&backend).then(|| format!("proxy:{backend}"))
}
