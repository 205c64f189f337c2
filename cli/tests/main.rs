//! End to end, through the built binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod command;
mod examples;
mod exit_codes;
mod fetching;
mod graphs;
mod help;
mod live;
mod losses;
mod model_verbs;
mod schemas;
