//! Operator, source and sink traits, the record layout, and the operators that need no model.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may fail by panicking"))]
#![cfg_attr(not(feature = "formats"), allow(dead_code, reason = "the writers of Parquet files use it"))]
#![allow(clippy::result_large_err, reason = "diagnostics are made once, when a workflow is bound")]
pub mod api;
pub mod bind;
mod columns;
pub mod dead_letters;
pub mod feeds;
pub mod ground_truth;
pub use tidemill_journal as journal;
pub mod kind;
pub mod measures;
pub mod model;
pub use tidemill_media::{format, raw_image};
pub mod record;
pub mod registry;
pub mod relational;
pub mod sinks;
pub mod sounds;
pub mod sources;
#[cfg(test)]
mod testing;
pub mod text_truth;
pub mod track_truth;
pub mod values;
pub mod video;
pub mod vision;

/// The page of the book about operators; its code is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../../docs/operator.md")]
mod book {}
