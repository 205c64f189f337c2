//! Limits that follow the load: processor time and memory move between the control groups of several containers, ten times
//! per second, under one cap. Works with containers of any program; nothing here depends on workflows.
//!
//! | question | module |
//! |---|---|
//! | reading and writing limits | [`cgroup`], for versions 1 and 2 |
//! | the size of each limit | [`rules`] |
//! | who gives and who gets | [`allocator`] |
//! | memory that runs out | [`rescue`] |
//! | the loop, and restoring the original limits | [`agent`] |
//! | the containers | [`docker`] |
//! | original limits on disk, in case the agent dies | [`record`] |
//! | a control group per process | [`confinement`] |
//!
//! The rules are those of Escra (a dissertation by M. Nazari, 2025, chapter 2, and the program published with it), with the
//! changes listed in docs/decisions/0032-elastic-limits.md.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
pub mod agent;
pub mod allocator;
pub mod cgroup;
pub mod confinement;
pub mod docker;
pub mod record;
pub mod rescue;
pub mod rules;
