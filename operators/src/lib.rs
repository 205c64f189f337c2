//! Operator, source and sink traits, the record layout, and the operators that need no model.
pub mod api;
pub mod record;
