//! The agreement of a group's hosts on the operation after which a new strategy begins.
//!
//! Each host has a [`Barrier`], a pure state machine: it is told what happens and says what to do. While no order is under way,
//! it sends nothing and holds nothing up. An order of the provider goes through four phases at each host:
//!
//! 1. *Collecting.* The host launches no further operation and tells the others which one it launched last. Whoever hears of an
//!    order first from another host does the same, so that a provider that dies in the middle leaves nobody behind.
//! 2. *Draining.* Each host of the old and the new strategy has spoken: all know the same last operation, the largest number of
//!    the hosts that stay. Operations up to it are launched and finished under the old strategy.
//! 3. *Switching.* [`Action::Switch`]: the caller closes the old wires and opens new ones, and calls [`Barrier::switched`].
//! 4. Operations continue under the new strategy.
//!
//! Of two orders at once the one with the higher epoch wins. A host that has spoken for an order finishes it before the next
//! one, unless a host that it needs has passed it over: then it can end nowhere, and all go on to the higher one.
//!
//! **Hosts that die.** A strategy with a dead member computes nothing any more ([`Barrier::is_broken`]) until an order without
//! that member comes. Such an order waits for nothing to drain: the operations that were under way have failed, and numbers
//! continue after the last one that a survivor launched ([`Barrier::last`]). An order whose own hosts include a dead one is
//! abandoned; the provider then orders a higher one.
//!
//! Two things are up to the caller. Messages of a host arrive in the order in which it sent them, each once, or the host is
//! [lost](Barrier::lost). And who calls [`Barrier::lost`] or [`Barrier::broke`] has the other hosts do the same.
//!
//! ```
//! use tidemill_collective::barrier::{Action, Barrier, Order};
//! use tidemill_collective::strategy::Strategy;
//! let order = |epoch| Order { strategy: Strategy::rank_order(epoch, vec![0, 1]), hosts: vec![0, 1] };
//! let (mut one, mut other) = (Barrier::new(0, order(1)), Barrier::new(1, order(1)));
//! one.launched(1);
//! let Some(Action::Tell(of_one)) = one.order(order(2)).pop() else { panic!("tells the other host") };
//! let [Action::Tell(of_other)] = &other.receive(*of_one)[..] else { panic!("hears of the order, and speaks") };
//! one.receive((**of_other).clone());
//! assert!(other.may_launch(1) && !other.may_launch(2), "the first operation still runs under the old strategy");
//! other.launched(1);
//! assert_eq!(other.finished(1), [Action::Switch(Box::new(order(2)))]);
//! ```
use crate::strategy::Strategy;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A strategy, and where its members are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The strategy. Its epoch is the number of the order.
    pub strategy: Strategy,
    /// The host of each member, in the order of [`Strategy::members`].
    pub hosts: Vec<u32>,
}

/// A message of a host to the others about an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The host that speaks.
    pub host: u32,
    /// Where it stands.
    #[serde(flatten)]
    pub position: Position,
    /// The order.
    pub order: Order,
}

/// Where a host stands when it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The number of the operation that it launched last; it launches no further one before it knows all positions.
    pub launched: u64,
    /// The epoch of the strategy under which it did.
    pub under: u64,
    /// That strategy computes nothing any more.
    pub broken: bool,
}

/// A step for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send this to all other hosts of the group.
    Tell(Box<Message>),
    /// End what has not finished with an error, close the wires of the old strategy, open those of this one, and call
    /// [`Barrier::switched`]. [`Barrier::last`] is the operation before the next one. A host that the order leaves out only
    /// closes.
    Switch(Box<Order>),
    /// Tell the provider and the programs that this order came to nothing. The group is broken.
    Abandon {
        /// The epoch of the order.
        epoch: u64,
        /// Why.
        reason: Reason,
    },
}

/// Why an order came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// A host of it died.
    #[error("host {0} of the new strategy was lost before it took part")]
    Lost(u32),
    /// Another host has an order of the same number and other contents.
    #[error("host {0} has another strategy with the same number")]
    Conflict(u32),
}

/// Orders above the current one for which a host speaks, at most.
const MOST_HEARD: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Collecting {
        epoch: u64,
    },
    Draining {
        epoch: u64,
        /// The last operation under the old strategy.
        last: u64,
        /// None is to be waited for.
        at_once: bool,
    },
    Switching,
}

/// The part of one host in the barrier of its group.
#[derive(Debug, Clone)]
pub struct Barrier {
    me: u32,
    current: Arc<Order>,
    phase: Phase,
    launched: u64,
    /// Launched and not finished.
    running: BTreeSet<u64>,
    broken: bool,
    lost: BTreeSet<u32>,
    /// Hosts that [ended](Barrier::ended), with their last operations.
    ended: BTreeMap<u32, u64>,
    /// The highest order that this host spoke for or refused; it never speaks for a lower one.
    told: u64,
    /// Orders above the current one.
    orders: BTreeMap<u64, Arc<Order>>,
    /// Messages of hosts, this one included, about orders above the current one.
    heard: BTreeMap<(u32, u64), Position>,
}

impl Barrier {
    /// Begins with the first strategy of the group.
    pub fn new(me: u32, first: Order) -> Self {
        Self {
            me,
            told: first.strategy.epoch,
            current: Arc::new(first),
            phase: Phase::Idle,
            launched: 0,
            running: BTreeSet::new(),
            broken: false,
            lost: BTreeSet::new(),
            ended: BTreeMap::new(),
            orders: BTreeMap::new(),
            heard: BTreeMap::new(),
        }
    }

    /// Returns the strategy of operations that are launched now.
    pub fn current(&self) -> &Order {
        &self.current
    }

    /// Returns the number of the operation that was launched last, or that a [switch](Action::Switch) counts as such. The next
    /// one has the number after it.
    pub fn last(&self) -> u64 {
        self.launched
    }

    /// Tells whether the current strategy computes nothing any more: only a higher order helps.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Returns the order under way and the hosts that have not spoken yet; none: no order is under way, or all have.
    pub fn waits_for(&self) -> Option<(u64, Vec<u32>)> {
        let Phase::Collecting { epoch } = self.phase else { return None };
        let order = self.orders.get(&epoch)?;
        let mut silent = self.awaited(order);
        silent.retain(|host| !self.heard.contains_key(&(*host, epoch)));
        Some((epoch, silent.into_iter().collect()))
    }

    /// Returns whether no order is under way: all hosts of the group have the wires of the current strategy.
    pub fn is_at_rest(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Takes an order of the provider. Ignores one that is not above the current one, and one that came too late for this host.
    pub fn order(&mut self, order: Order) -> Vec<Action> {
        self.learn(order);
        self.advance()
    }

    /// Takes the message of another host.
    pub fn receive(&mut self, message: Message) -> Vec<Action> {
        let Message { host, position, order } = message;
        let epoch = order.strategy.epoch;
        if host == self.me || self.lost.contains(&host) || epoch < self.current.strategy.epoch {
            return Vec::new();
        }
        // A host speaks for one order after the other. One that speaks for more than these means none of them.
        if self.heard.range((host, 0)..=(host, u64::MAX)).count() >= MOST_HEARD {
            return Vec::new();
        }
        let mut actions = Vec::new();
        if !self.learn(order) {
            actions.push(self.abandon(epoch, Reason::Conflict(host)));
        } else if epoch > self.current.strategy.epoch {
            self.heard.insert((host, epoch), position);
        }
        actions.extend(self.advance());
        actions
    }

    /// Tells whether the operation with this number may be launched, now.
    pub fn may_launch(&self, number: u64) -> bool {
        let is_open = match self.phase {
            Phase::Idle => true,
            Phase::Draining { last, at_once, .. } => number <= last && !at_once,
            Phase::Collecting { .. } | Phase::Switching => false,
        };
        is_open && number == self.launched + 1 && !self.broken && self.current.hosts.contains(&self.me)
    }

    /// Takes note that the operation with this number, which [may be](Self::may_launch), is launched.
    pub fn launched(&mut self, number: u64) {
        debug_assert!(self.may_launch(number), "operation {number} may not be launched");
        self.launched = number;
        self.running.insert(number);
    }

    /// Takes note that an operation has finished here, or failed: this host sends and receives nothing for it any more.
    pub fn finished(&mut self, number: u64) -> Vec<Action> {
        self.running.remove(&number);
        self.advance()
    }

    /// Takes note that the wires of the new strategy are open.
    pub fn switched(&mut self) -> Vec<Action> {
        if self.phase == Phase::Switching {
            self.phase = Phase::Idle;
        }
        self.advance()
    }

    /// Takes note that a host died. Its further messages are ignored.
    pub fn lost(&mut self, host: u32) -> Vec<Action> {
        self.lost.insert(host);
        self.heard.retain(|(of, _), _| *of != host);
        let mut actions = Vec::new();
        if self.current.hosts.contains(&host) {
            if self.phase == Phase::Switching {
                actions.push(self.abandon(self.current.strategy.epoch, Reason::Lost(host)));
            }
            self.broken = true;
        }
        actions.extend(self.advance());
        actions
    }

    /// Takes note that a host speaks for no further order, and launches nothing after this operation: the others can still end it.
    pub fn ended(&mut self, host: u32, last: u64) -> Vec<Action> {
        self.ended.insert(host, last);
        if let Phase::Collecting { epoch } = self.phase {
            self.stand_in(epoch);
        }
        self.advance()
    }

    /// Speaks for hosts that have ended before they did.
    fn stand_in(&mut self, epoch: u64) {
        for (host, launched) in &self.ended {
            let position =
                Position { launched: *launched, under: self.current.strategy.epoch, broken: false };
            self.heard.entry((*host, epoch)).or_insert(position);
        }
    }

    /// Takes note that a lost host is back, as one that has said nothing yet. A later order may have it again.
    pub fn found(&mut self, host: u32) {
        self.lost.remove(&host);
    }

    /// Takes note that the current strategy computes nothing any more: a rank died, or a wire of it broke or cannot be opened.
    pub fn broke(&mut self) -> Vec<Action> {
        self.broken = true;
        if self.phase == Phase::Switching {
            self.phase = Phase::Idle;
        }
        self.advance()
    }

    /// Keeps an order. Returns false if it contradicts one of the same number.
    fn learn(&mut self, order: Order) -> bool {
        let epoch = order.strategy.epoch;
        if epoch <= self.current.strategy.epoch {
            return epoch < self.current.strategy.epoch || *self.current == order;
        }
        **self.orders.entry(epoch).or_insert_with(|| Arc::new(order.clone())) == order
    }

    fn abandon(&mut self, epoch: u64, reason: Reason) -> Action {
        self.broken = true;
        self.told = self.told.max(epoch);
        match self.phase {
            Phase::Collecting { epoch: under_way } | Phase::Draining { epoch: under_way, .. }
                if under_way != epoch => {}
            _ => self.phase = Phase::Idle,
        }
        Action::Abandon { epoch, reason }
    }

    /// Goes on as far as what is known allows.
    fn advance(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        loop {
            let next = match self.phase {
                Phase::Idle => self.begin(),
                Phase::Collecting { epoch } => self.collect(epoch),
                Phase::Draining { epoch, last, at_once } => self.drain(epoch, last, at_once),
                Phase::Switching => Next::Wait,
            };
            match next {
                Next::Wait => return actions,
                Next::Continue => {}
                Next::Do(action) => actions.push(action),
            }
        }
    }

    /// Begins with the highest order, if there is one.
    fn begin(&mut self) -> Next {
        let Some((&epoch, order)) = self.orders.last_key_value().filter(|(epoch, _)| **epoch > self.told)
        else {
            return Next::Wait;
        };
        let order = Arc::clone(order);
        if let Some(host) = self.lost_of(&order) {
            return Next::Do(self.abandon(epoch, Reason::Lost(host)));
        }
        let position =
            Position { launched: self.launched, under: self.current.strategy.epoch, broken: self.broken };
        self.told = epoch;
        self.phase = Phase::Collecting { epoch };
        self.heard.insert((self.me, epoch), position);
        self.stand_in(epoch);
        Next::Do(Action::Tell(Box::new(Message { host: self.me, position, order: (*order).clone() })))
    }

    /// Finds out whether all hosts of an order have spoken.
    fn collect(&mut self, epoch: u64) -> Next {
        let Some(order) = self.orders.get(&epoch).map(Arc::clone) else { return Next::Wait };
        if let Some(host) = self.lost_of(&order) {
            return Next::Do(self.abandon(epoch, Reason::Lost(host)));
        }
        let mut is_complete = true;
        for host in self.awaited(&order) {
            if self.heard.contains_key(&(host, epoch)) {
                continue;
            }
            is_complete = false;
            // It spoke for a higher order, and so never will for this one.
            if self.heard.range((host, epoch)..=(host, u64::MAX)).next().is_some() {
                self.phase = Phase::Idle;
                return Next::Continue;
            }
        }
        if !is_complete {
            return Next::Wait;
        }
        // Hosts that the order leaves out do not count: one that dies may have spoken to some of the others only.
        let positions: Vec<(u32, Position)> =
            order.hosts.iter().filter_map(|host| Some((*host, *self.heard.get(&(*host, epoch))?))).collect();
        // A host that was left out of orders that others have finished has an old strategy: what it launched under that is void.
        let newest = positions.iter().map(|(_, position)| position.under).max().unwrap_or(0);
        let last = positions.iter().filter(|(_, position)| position.under == newest);
        let last = last.map(|(_, position)| position.launched).max().unwrap_or(0);
        let at_once = newest > self.current.strategy.epoch
            || !self.current.hosts.contains(&self.me)
            || positions.iter().any(|(host, position)| {
                self.current.hosts.contains(host) && (position.broken || position.under < newest)
            });
        self.phase = Phase::Draining { epoch, last, at_once };
        Next::Continue
    }

    /// Switches if the operations of the old strategy have finished, or can not.
    fn drain(&mut self, epoch: u64, last: u64, at_once: bool) -> Next {
        let is_drained = self.launched >= last && self.running.range(..=last).next().is_none();
        let Some(order) = self.orders.get(&epoch).map(Arc::clone) else { return Next::Wait };
        if let Some(host) = self.lost_of(&order) {
            return Next::Do(self.abandon(epoch, Reason::Lost(host)));
        }
        if !(is_drained || at_once || self.broken) {
            return Next::Wait;
        }
        self.current = Arc::clone(&order);
        self.phase = Phase::Switching;
        self.launched = last;
        self.running.clear();
        self.broken = false;
        self.orders.retain(|of, _| *of > epoch);
        self.heard.retain(|(_, of), _| *of > epoch);
        Next::Do(Action::Switch(Box::new((*order).clone())))
    }

    /// Returns the hosts that are to speak for an order: its own, and the living ones of the current strategy, without which
    /// nothing drains.
    fn awaited(&self, order: &Order) -> BTreeSet<u32> {
        let living = self.current.hosts.iter().filter(|host| !self.lost.contains(host));
        order.hosts.iter().chain(living).copied().collect()
    }

    /// Returns a host of the order that is lost.
    fn lost_of(&self, order: &Order) -> Option<u32> {
        order.hosts.iter().copied().find(|host| self.lost.contains(host))
    }
}

/// How to go on.
enum Next {
    Wait,
    Continue,
    Do(Action),
}

#[cfg(test)]
mod tests;
