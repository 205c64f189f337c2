//! Chooses variants, machines and routes of a workflow together, at the least total cost.
//!
//! | module | holds |
//! |---|---|
//! | [`assemble`] | from files to a planning problem |
//! | [`problem`] | a planning problem in plain numbers |
//! | [`solution`] | what a planner decides, and what it can say about it |
//! | [`cost`] | the one cost function |
//! | [`queueing`] | waiting time in front of a worker, linear in the flows |
//! | [`junction`] | when flows over parts of a workflow fit together to routes |
//! | [`realise`] | from shares per worker class to single workers and route classes |
//! | [`check`] | the independent checker of plans |
//! | [`planner`] | the trait that every planner implements |
//! | [`planners`] | the planners |
//! | [`summary`] | load, traffic and latency of a solution |
//! | [`explain`] | what binds a plan, what service levels cost, what has to give way |
//! | [`waits`] | what the workers of a plan keep at least |
//! | [`physical`] | from a solution to a plan that can run |
// The problems of other crates' tests, also for those in here: as a module, because a crate's own tests cannot take types
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
