//! The transport service of a host: policies on edges that run.
//!
//! Ordinary edges join the two ends of a channel directly, and the service only counts them. Where a policy is attached to an edge,
//! both ends dial the service instead ("attach by redial"): the channel resumes at an epoch, as after any lost connection, so
//! nothing is lost, doubled or reordered. Attaching, changing and detaching a policy, and a new version of the service, are one
//! mechanism.
//!
//! [`Service`] serves a host; [`program::register`] is the side of a process with channels, [`Client`] that of people.
//! [`policy`] says what a policy is, and [`policies`] has those that there are; [`mod@bench`] is for tests of policies. Libraries of
//! others bring more: `include/tidemill_policy.h`.
#![deny(unsafe_code)]
mod attached;
pub mod bench;
pub mod client;
mod edge;
pub mod edge_name;
pub mod gateway;
mod keeping;
mod legs;
mod matching;
pub mod passage;
pub mod policies;
pub mod policy;
pub mod program;
pub mod protocol;
mod rpc;
mod service;
pub mod supervise;
mod switchboard;
pub mod urgency;

pub use client::{Client, ClientError, usual_socket};
pub use legs::MOVED;
pub use service::{OnUpgrade, Options, Service, ServiceError, Upgrade};
