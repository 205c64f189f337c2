//! Hints: the bandwidth that a transfer would get on each link now, from counters of hosts and racks.
//!
//! Hosts count their traffic ([`collect`]) and report it to the leader of their rack ([`leader`]), leaders exchange what they
//! know ([`message`]), and a tenant gets the links between its own machines ([`tree`]), with how much of each is free and how many
//! share it. A rate that is not stated is learned ([`peak`]). From that it estimates what its flows would get ([`estimate`]), chooses how to broadcast and reduce ([`schedule`]) and
//! where to receive ([`placement`]), unless the hints are older than the network stays as it is ([`staleness`], [`changes`]).
//!
//! Nothing here sends to other hosts: callers carry the messages.
#![forbid(unsafe_code)]

pub mod changes;
pub mod collect;
pub mod estimate;
pub mod leader;
pub mod message;
pub mod peak;
pub mod placement;
pub mod schedule;
pub mod staleness;
pub mod tenant;
pub mod tree;
