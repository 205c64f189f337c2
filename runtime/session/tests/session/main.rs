//! Sessions over real sockets.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod conformance;
mod faults;
mod relay;
