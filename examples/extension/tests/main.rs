//! The seven parts at work: in the built program, in processes of workers, under the supervisor of an agent.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod files;
mod processes;
mod program;
mod services;
