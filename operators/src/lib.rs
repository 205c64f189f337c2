//! Operator, source and sink traits, the record layout, and the operators that need no model.
pub mod api;
pub mod bind;
mod columns;
pub mod ground_truth;
pub mod record;
pub mod registry;
pub mod relational;
pub mod sources;
#[cfg(test)]
mod testing;
