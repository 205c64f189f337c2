//! Carries frames between two slots of a run, whether they are threads of one process or on two hosts.
//!
//! [`frame`] defines the frames: records and progress in one direction, control words in the other. [`link`] has the
//! kinds of links, which one suite of tests holds to the same behaviour; [`transport`] carries bytes between
//! processes and hosts, and [`remote`] connects these; [`wake`] lets their ends wake the threads that use them.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod deadline;
pub mod frame;
pub mod link;
pub mod remote;
pub mod transport;
pub mod wake;
