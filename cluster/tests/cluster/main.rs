//! A controller and many agents in one process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod again;
mod cache;
mod heartbeats;
mod introduced;
mod net_policies;
mod parents;
mod place;
mod renewal;
mod roll_out;
mod routes;
#[path = "../../../storage/bucket/tests/server/mod.rs"]
mod server;
mod silent;
