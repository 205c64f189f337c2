//! Carries frames between two slots of a run, whether they are threads of one process or live on two hosts.
//!
//! [`frame`] says what travels: records and progress one way, control words the other way. [`link`] has the kinds of links,
//! which one suite of tests holds to the same behaviour; [`transport`] has what bytes travel over between
//! processes and hosts, and [`remote`] connects these; [`wake`] is how their ends wake the threads that use them.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod deadline;
pub mod frame;
pub mod link;
pub mod remote;
pub mod transport;
pub mod wake;
