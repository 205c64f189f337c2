//! The coordinator's view of slots and hosts.
use super::event::Orders;
use crate::frame::{CLOSED, Epoch, Nanoseconds};
use crate::metrics::Own;
use crate::protocol::{Order, Standing, StandingSlot};
use std::collections::BTreeMap;
use tidemill_link::remote::Address;

/// A slot, with all its incarnations in turn.
pub(super) struct SlotLife {
    pub(super) host: usize,
    /// Number of the incarnation; 0 before the first.
    pub(super) number: u32,
    pub(super) alive: bool,
    /// By instance: everything before is durable downstream of it.
    pub(super) durable: Vec<Epoch>,
    pub(super) restarts_without_progress: u32,
    durable_at_restart: Epoch,
    /// When this incarnation began, and when the data that the former one had acknowledged was lost: moments of the
    /// coordinator.
    pub(super) begun_at: u64,
    pub(super) lost_at: u64,
    /// Number of losses, epoch of the checkpoint, and how often since then it had finished and was needed again.
    pub(super) needed: (u64, Epoch, u32),
}

impl SlotLife {
    pub(super) fn new(host: usize, instances: usize) -> Self {
        Self {
            host,
            number: 0,
            alive: false,
            durable: vec![0; instances],
            restarts_without_progress: 0,
            durable_at_restart: 0,
            begun_at: 0,
            lost_at: 0,
            needed: (0, 0, 0),
        }
    }

    /// Begins a new incarnation.
    pub(super) fn begin(&mut self, resume_at: Vec<Epoch>, moment: u64) {
        self.number += 1;
        self.begun_at = moment;
        self.alive = true;
        self.restarts_without_progress = 0;
        self.durable_at_restart = resume_at.iter().copied().min().unwrap_or(0);
        self.durable = resume_at;
    }

    /// Takes over a slot that another coordinator started, or whose end was not received.
    pub(super) fn stand(&mut self, standing: &StandingSlot) {
        self.number = standing.incarnation;
        self.alive = true;
        self.durable.clone_from(&standing.durable);
        self.durable_at_restart = self.durable();
    }

    /// Returns the epoch before which everything is durable downstream of the whole slot.
    pub(super) fn durable(&self) -> Epoch {
        self.durable.iter().copied().min().unwrap_or(CLOSED)
    }

    pub(super) fn has_finished(&self) -> bool {
        !self.alive && self.durable() == CLOSED
    }

    pub(super) fn has_progressed(&self) -> bool {
        self.durable() > self.durable_at_restart
    }

    /// Returns the restarts since the last progress.
    pub(super) fn tries(&self) -> u32 {
        if self.has_progressed() { 0 } else { self.restarts_without_progress }
    }
}

/// Progress of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has not joined, or is lost.
    Away,
    Joined,
    /// It opens its files, to continue from this epoch.
    Opening(Epoch),
    Open,
}

/// A host.
pub(super) struct HostLife {
    pub(super) name: String,
    pub(super) own: Own,
    pub(super) orders: Option<Orders>,
    pub(super) phase: Phase,
    /// Its address for other hosts.
    pub(super) address: Option<Address>,
    /// The identity of its certificate, if it has one.
    pub(super) identity: Option<String>,
    /// The addresses of others that were sent to it.
    pub(super) peers: BTreeMap<String, Address>,
    /// Its processes are numbered from 1.
    pub(super) process: u64,
    /// Processes lost since the checkpoint of an epoch.
    pub(super) losses: u32,
    pub(super) lost_at: Option<Epoch>,
    /// It continued without a coordinator; until the run is taken over.
    pub(super) standing: Option<Box<Standing>>,
    /// Its connection is lost since then, and it may come back.
    pub(super) missing_since: Option<Nanoseconds>,
    /// Its process has finished and leaves; another one is wanted.
    pub(super) is_leaving: bool,
    /// It is lost, and the run ends without it: another plan continues on the others.
    pub(super) is_left_behind: bool,
    /// It was running when the run was taken over: its slots continue.
    pub(super) has_stood: bool,
}

impl HostLife {
    /// Makes a host in this process.
    pub(super) fn here(orders: Orders) -> Self {
        Self { orders: Some(orders), phase: Phase::Open, ..Self::away(String::new(), Own::default()) }
    }

    /// Makes a host in another process, which will join.
    pub(super) fn away(name: String, own: Own) -> Self {
        Self {
            name,
            own,
            orders: None,
            phase: Phase::Away,
            address: None,
            identity: None,
            peers: BTreeMap::new(),
            process: 0,
            losses: 0,
            lost_at: None,
            standing: None,
            missing_since: None,
            is_leaving: false,
            is_left_behind: false,
            has_stood: false,
        }
    }

    /// Sends it the present address of another host.
    pub(super) fn tell_peer(&mut self, host: &str, address: &Address) {
        if self.peers.get(host) != Some(address) {
            self.peers.insert(host.to_owned(), address.clone());
            self.order(Order::Peer { host: host.to_owned(), address: address.clone() });
        }
    }

    /// Sends an order. A lost host gets none: the order is sent later, or does not matter any more.
    pub(super) fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            orders(order);
        }
    }
}
