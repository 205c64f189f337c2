//! Deployments of three plans: the written files, and checks by the programs that read them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod case;
mod devices;
mod golden;
mod machines;
mod programs;
