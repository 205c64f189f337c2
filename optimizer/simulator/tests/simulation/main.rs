//! Simulations against theory and invariants.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod batches;
mod detectors;
mod devices;
mod event_time;
mod figures;
mod joins;
mod overload;
mod pauses;
mod plans;
mod progress;
mod properties;
mod publication;
mod theory;
mod windows;
