//! What users and programs write down: workflow, infrastructure, model and plan files.
pub mod plan;
pub mod types;
pub mod units;
