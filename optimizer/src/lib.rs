//! Chooses variants, machines and routes of a workflow together, at the least total cost.
//!
//! | module | holds |
//! |---|---|
//! | [`problem`] | a planning problem in plain numbers |
//! | [`solution`] | what a planner decides, and what it can say about it |
//! | [`cost`] | the one cost function |
//! | [`planner`] | the trait that every planner implements |
//! | [`planners`] | the planners |
pub mod cost;
pub mod planner;
pub mod planners;
pub mod problem;
mod search_time;
pub mod solution;

pub use search_time::SearchTime;
