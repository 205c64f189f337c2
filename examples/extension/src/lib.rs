//! Seven parts that are no part of Tidemill, each written with its public interface alone and in one file. `src/main.rs` registers each
//! with one line and is then a `tidemill` that has them.
//!
//! | part | name | file |
//! |---|---|---|
//! | source | `counter` | [`counter`] |
//! | operator | `pack` | [`pack`] |
//! | sink | `tally` | [`tally`] |
//! | transport | `network://NAME@HOST:PORT` | [`network`] |
//! | executor | device `turns:NAME` | [`turns`] |
//! | backend | `weights` | [`weights`] |
//! | host service | `heartbeat` | [`heartbeat`] |
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
pub mod counter;
pub mod heartbeat;
pub mod network;
pub mod pack;
pub mod tally;
pub mod turns;
pub mod weights;
