//! Deployments of three plans: what is written, and whether the programs take it that read it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod case;
mod golden;
mod machines;
mod programs;
