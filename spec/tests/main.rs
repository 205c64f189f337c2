//! Files that users write: parsed, written, rejected.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod errors;
mod golden;
mod hostile;
mod policies;
mod round_trip;
mod schemas;
mod variables;
