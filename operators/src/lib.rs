//! Operator, source and sink traits, the record layout, and the operators that need no model.
#![cfg_attr(test, allow(clippy::unwrap_used))] // a test that finds nothing where something must be has failed
pub mod api;
pub mod bind;
mod columns;
pub mod dead_letters;
pub mod ground_truth;
pub mod record;
pub mod registry;
pub mod relational;
pub mod sinks;
pub mod sources;
#[cfg(test)]
mod testing;
