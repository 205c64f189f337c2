//! Measures the operators of a workflow and writes what it found as a [`Profile`](tidemill_spec::profile::Profile).
//!
//! | module | what |
//! |---|---|
//! | [`subject`] | the workflow and the models that can run here |
//! | [`records`] | real records from the sources |
//! | [`flow`], [`cache`] | every operator's output with every choice of models, each model once per record |
//! | [`accuracy`], [`messages`] | what follows from these outputs |
//! | [`worker`], [`child`] | one operator measured in a process of its own |
//! | [`overheads`] | what the engine itself takes |
//! | [`limits`] | processes that are held back, as slower machines are |
//! | [`tasks`], [`schedule`], [`state`] | what is to be measured, what comes next, what was measured already |
//! | [`fit`] | a profile made elsewhere beside this machine |
//! | [`predict`] | times of models and machines that were not measured |
//! | [`profiling`] | all of it together |
//!
//! Service times are taken with the same calls as in the engine (`infer`, `process`, `apply` and `advance`), so that
//! preparation of inputs and outputs is in them; what is not in them is the engine's own work around these calls.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod accuracy;
pub mod cache;
pub mod child;
mod entries;
pub mod error;
pub mod fit;
pub mod flow;
pub mod limits;
pub mod messages;
mod notes;
pub mod overheads;
mod pace;
pub mod predict;
pub mod profiling;
pub mod records;
pub mod schedule;
pub mod state;
pub mod statistics;
mod stopwatch;
pub mod subject;
pub mod tasks;
pub mod worker;

pub use error::ProfileError;
pub use fit::Fit;
pub use profiling::{Finished, Observer, Options, Stage, fit, profile};
