//! Predicts when transfers over shared links complete: each flow has its max-min share of the links on its route, and shares change
//! when a flow begins or ends. Time is virtual: thousands of flows take milliseconds.
//!
//! A link has one direction; a cable is two links. A flow may wait for others, so that rings, trees and shuffles of several groups can
//! run beside each other: [`patterns`] builds them. A controller may watch the ends, add flows and change routes meanwhile.
//!
//! | module | holds |
//! |---|---|
//! | `shares` | the shares of flows that compete at one moment: [`max_min`] |
//! | `simulation` | links, flows, background traffic and time: [`Simulation`] |
//! | [`patterns`] | rings, trees and shuffles |
//!
//! Two flows leave host A, whose link carries 10 Gbit/s; one of them goes to a host with half of that:
//!
//! ```
//! use tidemill_flows::{Flow, Simulation, gigabits};
//! let mut simulation = Simulation::default();
//! let from_a = simulation.link(gigabits(10.0))?;
//! let to_b = simulation.link(gigabits(10.0))?;
//! let to_c = simulation.link(gigabits(5.0))?;
//! let first = simulation.flow(Flow::new([from_a, to_b], 1e6))?;
//! // It begins when the first one has arrived.
//! let second = simulation.flow(Flow::new([from_a, to_c], 1e6).after(&[first]))?;
//! simulation.run()?;
//! assert!((simulation.end(first).ok_or("runs")? - 800e-6).abs() < 1e-12);
//! assert!((simulation.end(second).ok_or("runs")? - 2400e-6).abs() < 1e-12);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
mod flow;
pub mod patterns;
mod shares;
mod simulation;

pub use flow::{Flow, FlowError, FlowId, LinkId, Load, gigabits};
pub use shares::{Competitor, max_min};
pub use simulation::{Ended, Simulation};
