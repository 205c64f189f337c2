//! Predicts what it costs to run a model on another machine's accelerator, by virtual time alone: no clocks, no files, no
//! networks. Times are seconds, sizes are bytes, bandwidths are bytes per second.
//!
//! | module | contents |
//! |---|---|
//! | [`call`] | calls of a session, by class |
//! | [`link`] | links between a session and its device |
//! | [`replay`] | a sequence of calls over a link, pipelined: the model that all others are compared with |
//! | [`serial`] | the published model, which charges half a round trip to every call, for comparison |
//! | [`run`] | runs of one model: their cost over a link, in closed form |
//! | [`frontier`] | the links over which a run costs at most a budget |
//! | [`change`] | what would make a run fit a link |
//! | [`published`] | counts, times and bytes of four published applications |
//! | [`trace`] | call sequences made of those counts |
//!
//! ```
//! use tidemill_replay::{frontier::Bound, link::Link, run::Run};
//! // 602 kB to the device and 4 kB back, 60 ms of computing: what does 5 % allow?
//! let run = Run { up: 602_112.0, down: 4_000.0, round_trips: 1, local: 0.060, software: 0.0, queue: 0.0 };
//! let bound = Bound { budget: 0.05, window: 1 };
//! let least = bound.least_bandwidth(&run, 0.001).ok_or("no bandwidth is enough")?;
//! assert!((least * 8.0 / 1e9 - 2.42).abs() < 0.01, "2.4 Gbit/s at 1 ms");
//! assert_eq!(bound.least_bandwidth(&run, 0.020), None, "20 ms is more than 5 % of 60 ms");
//! assert!(run.slow_down(&Link::nominal(0.020, 100e6, 100e6), 1) > 1.1);
//! # Ok::<(), &str>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
pub mod call;
pub mod change;
pub mod frontier;
pub mod link;
pub mod published;
pub mod replay;
pub mod run;
pub mod serial;
pub mod trace;
