//! The kinds of this crate with a real broker.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod broker;
mod cable;
mod publisher;
mod publishing;
mod subscribing;
