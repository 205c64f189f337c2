//! Limits of processes, by properties and on a kernel.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod kernel;
mod properties;
