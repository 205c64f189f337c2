//! Limits that follow the load: processor time and memory are moved between the control groups of several containers, ten
//! times a second, under one cap. Of use for containers of any program; nothing here knows of workflows.
//!
//! | question | module |
//! |---|---|
//! | how are limits read and written? | [`cgroup`], for versions 1 and 2 |
//! | how much should one have? | [`rules`] |
//! | who gives, who gets? | [`allocator`] |
//! | what happens when memory runs out? | [`rescue`] |
//! | who does all this, and puts back what it found? | [`agent`] |
//! | which containers? | [`docker`] |
//! | who remembers what was found, should the agent die? | [`record`] |
//! | how is a process put into a group of its own? | [`confinement`] |
//!
//! The rules are those of Escra (a dissertation by M. Nazari, 2025, chapter 2, and the program published with it), with the changes
//! that docs/decisions/0032-elastic-limits.md names.
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
