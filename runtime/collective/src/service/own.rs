//! Facts of the service that its groups need.
use super::budget::Budget;
use super::counted::Groups;
use super::hints::Wires;
use super::locked;
use crate::topology::Host;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidemill_link::remote::Security;

/// Facts of the service that groups need.
pub(super) struct Own {
    pub(super) host: Host,
    pub(super) security: Security,
    /// Time after which a host that says nothing is lost.
    pub(super) silence: Duration,
    /// Where ranks are introduced, for messages.
    pub(super) conductor: String,
    /// Why it is not reached now.
    pub(super) problem: Arc<Mutex<Option<String>>>,
    pub(super) budget: Arc<Budget>,
    /// The congestion control of connections between ranks; none: that of the system.
    pub(super) congestion: Option<String>,
    /// The connections between ranks, counted.
    pub(super) wires: Arc<Wires>,
    /// The groups of this host, counted.
    pub(super) groups: Arc<Groups>,
}

impl Own {
    /// Why the conductor is not reached, to append.
    pub(super) fn why(&self) -> String {
        locked(&self.problem).as_ref().map_or_else(String::new, |problem| format!(": {problem}"))
    }
}
