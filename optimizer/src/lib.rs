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
//! | [`generator`] | random problems, for tests and benchmarks |
//! | [`summary`] | load, traffic and latency of a solution |
//! | [`explain`] | what binds a plan, what service levels cost, what has to give way |
//! | [`physical`] | from a solution to a plan that can run |
pub mod assemble;
pub mod check;
pub mod cost;
pub mod explain;
pub mod generator;
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

pub use search_time::SearchTime;
