//! Measures the operators of a workflow and writes the results as a [`Profile`](tidemill_spec::profile::Profile).
//!
//! | module | content |
//! |---|---|
//! | [`subject`] | the workflow and the models that can run here |
//! | [`records`] | real records from the sources |
//! | [`flow`], [`cache`] | every operator's output with every choice of models, each model once per record |
//! | [`accuracy`], [`messages`] | figures from these outputs |
//! | [`worker`], [`child`] | one operator measured in a process of its own |
//! | [`overheads`] | costs of the engine itself |
//! | [`device`] | models on a device, by the times that it reports |
//! | [`limits`] | processes restrained to the speed of slower machines |
//! | [`tasks`], [`schedule`], [`state`] | the measurements to make, their order, and those already made |
//! | [`fit`] | a profile made elsewhere compared with this machine |
//! | [`predict`] | times of models and machines that were not measured |
//! | [`profiling`] | all of it together |
//!
//! Service times are measured with the engine's calls (`infer`, `process`, `apply` and `advance`), so they include the
//! preparation of inputs and outputs; `model_part` is the model's own part of them. They exclude the engine's own work around these calls.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod accuracy;
pub mod cache;
pub mod child;
pub mod device;
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
