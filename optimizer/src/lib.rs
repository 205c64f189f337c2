//! Chooses variants, machines and routes of a workflow together, at the least total cost.
//!
//! | module | holds |
//! |---|---|
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
pub mod check;
pub mod cost;
pub mod generator;
pub mod junction;
pub mod planner;
pub mod planners;
pub mod problem;
pub mod queueing;
pub mod realise;
mod search_time;
pub mod solution;

pub use search_time::SearchTime;
