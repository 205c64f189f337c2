//! Arithmetic on pictures and sounds, value by value: decoding, sizes, filters, colours, sample rates, spectrograms.
//!
//! A separate crate because it is fully optimised, also in development builds: unoptimised, a second of sound or one
//! frame takes longer than the model after it. Generic functions ([`signal`]) are compiled and optimised like their
//! callers.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may fail by panicking"))]
mod completeness;
mod compressed;
pub mod filter;
pub mod format;
pub mod grey;
pub mod image;
pub mod mel;
pub mod planes;
pub mod raw_image;
pub mod resample;
pub mod signal;
pub mod wav;

/// Why one record cannot be given to the model; it becomes a dead letter and the others continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Rejected {
    /// Stable reason, `snake_case`.
    pub reason: &'static str,
    /// The finding, in words.
    pub detail: String,
}

impl Rejected {
    /// Creates a rejection.
    pub fn new(reason: &'static str, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }
}
