//! What users and programs write down: workflow, infrastructure, model and plan files.
pub mod deserializer;
pub mod diagnostic;
mod document;
mod identifier;
pub mod infrastructure;
pub mod manifest;
pub mod plan;
pub mod schema;
pub mod secret;
pub mod span;
pub mod types;
pub mod units;
pub mod value;
pub mod variables;
pub mod workflow;
pub mod yaml;
