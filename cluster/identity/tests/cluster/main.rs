//! An authority, its workers and its people, and those who are none of them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod at_once;
mod calls;
mod joining;
mod kills;
mod one_database;
mod parts;
mod people;
mod renewing;
mod tls;
mod worker_folder;
