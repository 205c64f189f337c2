//! What users and programs write down: workflow, infrastructure, model and plan files.
pub mod deserializer;
pub mod diagnostic;
mod document;
pub mod manifest;
pub mod plan;
pub mod span;
pub mod types;
pub mod units;
pub mod value;
pub mod workflow;
pub mod yaml;
