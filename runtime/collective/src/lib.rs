//! Group communication as a service of the transport layer.
//!
//! The programs of a *group* are its *ranks*. Each calls the same operations in the same order; the service of each host moves and
//! combines their memory. The provider of the service, not the program, chooses the [`strategy`]: rings, trees and paths.
//!
//! - [`element`]: types of elements, and how two values are combined.
//! - [`operation`]: the operations of a group.
//! - [`strategy`]: rings, trees, paths and pieces by which a group carries them out.
//! - [`topology`]: hosts, racks and paths, from which strategies are made.

pub mod element;
pub mod operation;
pub mod strategy;
pub mod topology;
