//! The service between two ends of a channel, as a run has them.
#![allow(clippy::disallowed_methods, reason = "tests give up after some real time")]

mod calls;
mod ends;
mod policies;
mod service;
mod users;
