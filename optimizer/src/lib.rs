//! Chooses variants, machines and routes of a workflow together, at the least total cost.
//!
//! | module | holds |
//! |---|---|
//! | [`assemble`] | files to a planning problem |
//! | [`problem`] | a planning problem in plain numbers |
//! | [`solution`] | a planner's decisions and proofs |
//! | [`cost`] | the only cost function |
//! | [`queueing`] | waiting time at a worker, linear in the flows |
//! | [`junction`] | when flows over parts of a workflow combine into routes |
//! | [`realise`] | shares per worker class to single workers and route classes |
//! | [`check`] | the independent checker of plans |
//! | [`planner`] | the trait that every planner implements |
//! | [`planners`] | the planners |
//! | [`summary`] | load, traffic and latency of a solution |
//! | [`explain`] | binding limits, prices of service levels, least relaxations |
//! | [`waits`] | the least waits that the workers of a plan keep |
//! | [`physical`] | a solution to a plan that can run |
// The test problems that other crates use too. Included as a module, because a crate's unit tests cannot take types
// from a second build of it.
#[cfg(test)]
extern crate self as tidemill_optimizer;
#[cfg(test)]
#[path = "../problems/src/lib.rs"]
pub mod generator;

pub mod assemble;
pub mod check;
pub mod cost;
pub mod explain;
pub mod junction;
pub mod physical;
pub mod planner;
pub mod planners;
pub mod problem;
pub mod queueing;
pub mod realise;
mod search_time;
pub mod solution;
pub mod summary;
pub mod waits;

pub use search_time::SearchTime;
