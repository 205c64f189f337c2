//! End to end, through the built binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod book;
mod changing_load;
mod command;
mod doctor;
mod emulation;
mod examples;
mod exit_codes;
mod expected_latency;
mod fetching;
mod full_disk;
mod graphs;
mod help;
mod live;
mod losses;
mod manual;
mod mistakes;
mod model_verbs;
mod new_project;
mod planning;
mod profiling;
mod reference;
mod reports;
mod schemas;
mod session;
mod simulating;
