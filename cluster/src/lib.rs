//! A cluster: a controller that takes workflows, and agents on machines that run their stages.
//!
//! | question | module |
//! |---|---|
//! | what is said between them, and to people? | [`api`] |
//! | who takes workflows and decides? | [`controller`] |
//! | who runs stages on a machine? | [`agent`] |
//! | who else has a certificate? | [`member`] |
//! | what is between an agent and a task of a job? | [`task_process`] |
//! | how is the controller asked? | [`client`] |
//! | should it have another plan? | [`replanning`] |
//! | what does a monitoring system see? | [`metrics`] |
//! | which files does a workflow need? | [`bundle`], [`blobs`], [`parcel`] |
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
pub mod agent;
pub mod api;
pub mod blobs;
pub mod bundle;
pub mod client;
mod clock;
pub mod controller;
mod facts;
#[doc(hidden)]
pub mod fuzz_entry;
pub mod member;
pub mod metrics;
pub mod parcel;
pub mod replanning;
mod run_id;
mod serving;
pub mod task_process;
