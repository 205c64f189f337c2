//! Group communication as a service of the transport layer.
//!
//! The programs of a *group* are its *ranks*. Each calls the same operations in the same order; the service of each host moves and
//! combines their memory. The provider of the service, not the program, chooses the [`strategy`]: rings, trees and paths.
//!
//! - [`barrier`]: agreement of hosts on the operation after which a new strategy begins.
//! - [`client`]: the side of a program. [`number`]: its numbers.
//! - [`cost`]: a model of how long an operation takes under a strategy.
//! - [`element`]: types of elements, and how two values are combined.
//! - [`hints`]: what services know of the traffic on links.
//! - [`memory`]: the buffer of a rank.
//! - [`operation`]: the operations of a group.
//! - [`policies`]: strategies of all groups from hosts, paths and what others send.
//! - [`protocol`]: packets between programs and the service. [`peers`]: messages between services.
//! - [`schedule`]: what each rank sends and receives in an operation.
//! - [`service`]: the service of a host.
//! - [`strategy`]: rings, trees, paths and pieces by which a group carries them out.
//! - [`team`]: the ranks of a group on one host, and how their operations go on.
//! - [`topology`]: hosts, racks and paths, from which strategies are made.
//! - [`type_name`]: names of types of elements that are only moved.
//! - [`wire`]: wires between ranks of different hosts.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking"))]

pub mod barrier;
pub mod client;
mod conductor;
pub mod cost;
pub mod element;
#[doc(hidden)]
pub mod fuzz_entry;
pub mod hints;
pub mod memory;
pub mod number;
pub mod operation;
pub mod peers;
pub mod policies;
pub mod protocol;
pub mod schedule;
pub mod service;
pub mod strategy;
pub mod team;
pub mod topology;
pub mod type_name;
pub mod wire;
