//! Views, tested from outside.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod chains;
mod own_view;
