//! State in a bucket, against a server of the tests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod bucket;
mod files;
mod server;
mod signatures;
