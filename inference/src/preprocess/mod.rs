//! From a record's values to a model's input: one file for each kind of step.
pub mod characters;
pub mod completeness;
pub mod fit;
pub mod image;
pub mod mel;
pub mod resample;
pub mod signal;
pub mod wav;

/// Why one record cannot be given to the model; it becomes a dead letter and the others go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Rejected {
    /// Stable reason, `snake_case`.
    pub reason: &'static str,
    /// What was found, in words.
    pub detail: String,
}

impl Rejected {
    /// A rejection.
    pub fn new(reason: &'static str, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }
}
