//! Models that compute elsewhere.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod measured_device;
mod open_inference;
mod stage_on_a_server;
mod started_again;
