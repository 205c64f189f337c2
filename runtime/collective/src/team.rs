//! The ranks of a group on one host, and how their operations go on.
//!
//! A [`Team`] never blocks: [`Team::advance`] moves what can move, and [`Team::waits`] says what to wait for. Bytes between ranks of
//! the host go from memory to memory; those to other hosts by [`Wire`]s, which the caller connects as [`Team::needed`] says.
//!
//! ```
//! # use std::{collections::BTreeMap, sync::Arc};
//! # use tidemill_collective::{element::*, memory::*, operation::*, strategy::*, team::*};
//! let strategy = Strategy::rank_order(1, vec![0, 1]);
//! // Both ranks are here, so no wires are needed.
//! assert!(Team::needed(&strategy, &[0, 1]).is_empty());
//! let mut team = Team::new(strategy, &[0, 1], BTreeMap::new(), host_clock())?;
//! let buffers = [1i32, 2].map(|value| Arc::new(Plain::new(value.to_le_bytes().to_vec())));
//! let operation = Operation::AllReduce { reduction: Reduction::Sum };
//! let numbered = Numbered::new(1, operation, Element::I32, 1);
//! team.begin(numbered, (0..).zip(&buffers).map(|(rank, buffer)| (rank, buffer.clone() as _)).collect())?;
//! assert_eq!(team.advance()?, Progress::Done);
//! assert_eq!(buffers[0].to_vec(), 3i32.to_le_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
use crate::element::{Element, Reduction};
use crate::memory::{Memory, Outside, transfer};
use crate::operation::{Numbered, Operation};
use crate::schedule::{MESH, Program, Receive, Send, programs};
use crate::strategy::Strategy;
use crate::wire::{Head, Wire};
use ends::{Inbound, Outbound};
pub use errors::{Failed, NoTeam, NotBegun};
pub use holding::Gate;
use holding::Holding;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

mod ends;
mod errors;
mod holding;
#[cfg(test)]
mod tests;

/// The time since the epoch of Unix, for windows that hosts have in common.
pub type Clock = Arc<dyn Fn() -> Duration + std::marker::Send + Sync>;

/// Returns the clock of the host.
#[expect(clippy::disallowed_methods, reason = "windows are by the clock of the host")]
pub fn host_clock() -> Clock {
    Arc::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A wire of a strategy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireName {
    /// The rank that sends.
    pub from: u32,
    /// The rank that receives.
    pub to: u32,
    /// The channel, a tree after the channels, or [`MESH`].
    pub channel: u16,
    /// The path that the sender's host takes; none: as the system routes it.
    pub path: Option<String>,
}

/// How far an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It continues when a descriptor of [`Team::waits`] is ready, or after [`Team::wait_at_most`].
    Working,
    /// All ranks of this host have their result, and other hosts have all bytes from here on their way. None runs.
    Done,
}

/// Counters of a team.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes to each rank of other hosts, with the heads of frames.
    pub sent: BTreeMap<u32, u64>,
    /// Bytes from each rank of other hosts.
    pub received: BTreeMap<u32, u64>,
    /// Bytes between ranks of this host.
    pub within: u64,
    /// Time in [`Team::advance`].
    pub busy: Duration,
    /// Operations that ended.
    pub operations: u64,
    /// Time in which bytes for other hosts waited, because windows were shut or a group that goes first sent.
    pub held: Duration,
}

/// Pieces that one call moves at most, about, so that its thread gets to do other things.
const MOVES: usize = 256;

/// From, to, lane.
type Key = (u32, u32, u16);

/// The ranks of a group on one host. See the [module](self).
pub struct Team {
    strategy: Strategy,
    local: BTreeSet<u32>,
    outbound: BTreeMap<Key, Outbound>,
    inbound: BTreeMap<Key, Inbound>,
    running: Option<Running>,
    /// The number of the last operation that began.
    last: u64,
    failed: Option<Failed>,
    clock: Clock,
    counters: Counters,
    wait_at_most: Option<Duration>,
    holding: Holding,
}

/// The operation that runs.
struct Running {
    numbered: Numbered,
    buffers: BTreeMap<u32, Arc<dyn Memory>>,
    doing: Vec<Doing>,
    /// The wires that it uses. Inbound ones with the program that they belong to.
    outbound: BTreeSet<Key>,
    inbound: BTreeMap<Key, usize>,
    /// Bytes that are staged between ranks of this host.
    staged: BTreeMap<Key, Vec<u8>>,
}

/// A program, and how far it is.
struct Doing {
    rank: u32,
    program: Program,
    sent: usize,
    applied: usize,
}

impl Doing {
    fn send(&self) -> Option<&Send> {
        self.program.sends.get(self.sent).filter(|send| send.after <= self.applied)
    }

    fn receive(&self) -> Option<&Receive> {
        self.program.receives.get(self.applied).filter(|receive| receive.after <= self.sent)
    }

    fn is_done(&self) -> bool {
        self.sent == self.program.sends.len() && self.applied == self.program.receives.len()
    }
}

impl Team {
    /// Returns the wires between ranks of this host and those of other ones: along the rings, in both directions along the trees, and the mesh.
    pub fn needed(strategy: &Strategy, local: &[u32]) -> Vec<WireName> {
        let crosses = |from: &u32, to: &u32| local.contains(from) != local.contains(to);
        let mut names = Vec::new();
        for (number, channel) in (0..).zip(&strategy.channels) {
            let next = channel.ring.iter().cycle().skip(1);
            for ((from, to), path) in channel.ring.iter().zip(next).zip(&channel.paths) {
                if crosses(from, to) {
                    names.push(WireName { from: *from, to: *to, channel: number, path: path.clone() });
                }
            }
        }
        for (number, tree) in (strategy.channels.len() as u16..).zip(strategy.trees()) {
            for (one, other) in tree.edges.iter().filter(|(one, other)| crosses(one, other)) {
                for (from, to) in [(*one, *other), (*other, *one)] {
                    names.push(WireName { from, to, channel: number, path: None });
                }
            }
        }
        for from in &strategy.members {
            for to in strategy.members.iter().filter(|to| crosses(from, to)) {
                let path = strategy.mesh_path(*from, *to).map(str::to_owned);
                names.push(WireName { from: *from, to: *to, channel: MESH, path });
            }
        }
        names
    }

    /// Makes one of the local ranks that take part, with the wires that are [needed](Self::needed).
    ///
    /// # Errors
    /// [`NoTeam`]
    pub fn new(
        strategy: Strategy,
        local: &[u32],
        mut wires: BTreeMap<WireName, Box<dyn Wire>>,
        clock: Clock,
    ) -> Result<Self, NoTeam> {
        strategy.check()?;
        let (mut outbound, mut inbound) = (BTreeMap::new(), BTreeMap::new());
        for name in Self::needed(&strategy, local) {
            let Some(wire) = wires.remove(&name) else { return Err(NoTeam::Wire(name)) };
            let key = (name.from, name.to, name.channel);
            if local.contains(&name.from) {
                outbound.insert(key, Outbound::new(wire));
            } else {
                inbound.insert(key, Inbound::new(wire));
            }
        }
        let local = strategy.members.iter().copied().filter(|rank| local.contains(rank)).collect();
        Ok(Self {
            strategy,
            local,
            outbound,
            inbound,
            running: None,
            last: 0,
            failed: None,
            clock,
            counters: Counters::default(),
            wait_at_most: None,
            holding: Holding::default(),
        })
    }

    /// The strategy that it follows.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// Its counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Begins an operation, with the buffer of each local rank that takes part. [`Team::advance`] carries it out.
    ///
    /// # Errors
    /// [`NotBegun`]; nothing has changed then.
    pub fn begin(
        &mut self,
        numbered: Numbered,
        buffers: BTreeMap<u32, Arc<dyn Memory>>,
    ) -> Result<(), NotBegun> {
        self.check(&numbered, &buffers)?;
        let mut running = Running {
            numbered,
            buffers,
            doing: Vec::new(),
            outbound: BTreeSet::new(),
            inbound: BTreeMap::new(),
            staged: BTreeMap::new(),
        };
        for rank in &self.local {
            for program in programs(&self.strategy, &numbered, *rank) {
                let key = |from, to| (from, to, program.lane);
                let out = program.sends.iter().map(|send| key(*rank, send.to));
                running.outbound.extend(out.filter(|key| self.outbound.contains_key(key)));
                let into = program.receives.iter().map(|receive| key(receive.from, *rank));
                let into = into.filter(|key| self.inbound.contains_key(key));
                running.inbound.extend(into.map(|key| (key, running.doing.len())));
                running.doing.push(Doing { rank: *rank, program, sent: 0, applied: 0 });
            }
        }
        self.outbound.values_mut().for_each(Outbound::begin);
        self.inbound.values_mut().for_each(Inbound::begin);
        self.last = numbered.number;
        self.running = Some(running);
        Ok(())
    }

    fn check(&self, numbered: &Numbered, buffers: &BTreeMap<u32, Arc<dyn Memory>>) -> Result<(), NotBegun> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone().into());
        }
        if let Some(running) = &self.running {
            return Err(NotBegun::Busy(running.numbered.number));
        }
        if numbered.number <= self.last {
            return Err(NotBegun::Number { found: numbered.number, last: self.last });
        }
        if !buffers.keys().eq(&self.local) {
            let local = self.local.iter().copied().collect();
            return Err(NotBegun::Ranks { found: buffers.keys().copied().collect(), local });
        }
        let members = self.strategy.members.len();
        match numbered.operation {
            Operation::Broadcast { root } if !self.strategy.members.contains(&root) => {
                return Err(NotBegun::Root(root));
            }
            Operation::AllToAll if !numbered.length.is_multiple_of(members as u64) => {
                return Err(NotBegun::Parts { length: numbered.length, members });
            }
            _ => {}
        }
        let element = numbered.element.bytes();
        let needed = numbered.length.checked_mul(element as u64);
        for (rank, buffer) in buffers {
            let bytes = buffer.bytes();
            if needed.is_none_or(|needed| needed > bytes) {
                return Err(NotBegun::Buffer { rank: *rank, bytes, length: numbered.length, element });
            }
        }
        Ok(())
    }

    /// Moves what can move.
    ///
    /// # Errors
    /// [`Failed`] when a wire broke or brought something else than was due.
    pub fn advance(&mut self) -> Result<Progress, Failed> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let Some(mut running) = self.running.take() else { return Ok(Progress::Done) };
        let begun = (self.clock)();
        let result = self.rounds(&mut running);
        self.counters.busy += (self.clock)().saturating_sub(begun);
        if let Err(failed) = result {
            self.failed = Some(failed.clone());
            return Err(failed);
        }
        let has_left = |key| self.outbound.get(key).is_none_or(Outbound::is_empty);
        if running.doing.iter().all(Doing::is_done) && running.outbound.iter().all(has_left) {
            self.counters.operations += 1;
            self.wait_at_most = None;
            return Ok(Progress::Done);
        }
        self.running = Some(running);
        Ok(Progress::Working)
    }

    fn rounds(&mut self, running: &mut Running) -> Result<(), Failed> {
        let mut moves = 0;
        while moves < MOVES {
            let before = moves;
            for index in 0..running.doing.len() {
                while moves < MOVES && (self.leave(running, index)? || self.apply(running, index)?) {
                    moves += 1;
                }
            }
            let closed = self.closed_for();
            self.hold(running, !closed.is_zero());
            if closed.is_zero() {
                moves += usize::from(self.push(running)?);
            }
            moves += usize::from(self.pull(running)?);
            if moves == before {
                self.wait_at_most = (!closed.is_zero()).then_some(closed);
                return Ok(());
            }
        }
        self.wait_at_most = Some(Duration::ZERO);
        Ok(())
    }

    /// Copies the next send of a program to its wire, if it may leave.
    fn leave(&mut self, running: &mut Running, index: usize) -> Result<bool, Failed> {
        let doing = &mut running.doing[index];
        let (rank, lane) = (doing.rank, doing.program.lane);
        let Some(send) = doing.send() else { return Ok(false) };
        let Some(buffer) = running.buffers.get(&rank) else { return Ok(false) };
        let (key, start) = ((rank, send.to, lane), send.bytes.start);
        let bytes = (send.bytes.end - start) as u32;
        if let Some(outbound) = self.outbound.get_mut(&key) {
            if !outbound.is_empty() {
                return Ok(false);
            }
            let head = head(&self.strategy, &running.numbered, rank, lane);
            let filled = outbound.fill(Head { bytes, ..head }, |into| buffer.read(start, into));
            filled.map_err(|error| outside(rank, error))?;
        } else {
            // Without need the receiver takes it from where it is.
            let stage = running.staged.entry(key).or_default();
            if !send.staged || !stage.is_empty() {
                return Ok(false);
            }
            stage.resize(bytes as usize, 0);
            buffer.read(start, stage).map_err(|error| outside(rank, error))?;
        }
        doing.sent += 1;
        Ok(true)
    }

    /// Applies the next receive of a program, if its bytes are there.
    fn apply(&mut self, running: &mut Running, index: usize) -> Result<bool, Failed> {
        let doing = &running.doing[index];
        let (rank, lane) = (doing.rank, doing.program.lane);
        let Some(receive) = doing.receive() else { return Ok(false) };
        let Some(buffer) = running.buffers.get(&rank) else { return Ok(false) };
        let combined = combined(&running.numbered, receive);
        let write = |bytes: &[u8]| {
            let written = match combined {
                Some((element, reduction)) => buffer.combine(element, reduction, receive.bytes.start, bytes),
                None => buffer.write(receive.bytes.start, bytes),
            };
            written.map_err(|error| outside(rank, error))
        };
        let key = (receive.from, rank, lane);
        if let Some(inbound) = self.inbound.get_mut(&key) {
            let Some(bytes) = inbound.bytes() else { return Ok(false) };
            write(bytes)?;
            inbound.clear();
        } else if let Some(stage) = running.staged.get_mut(&key).filter(|stage| !stage.is_empty()) {
            write(stage)?;
            self.counters.within += stage.len() as u64;
            stage.clear();
        } else {
            let is_sender = |other: &Doing| {
                other.rank == receive.from
                    && other.program.lane == lane
                    && other.send().is_some_and(|send| send.to == rank)
            };
            let Some(other) = running.doing.iter().position(is_sender) else { return Ok(false) };
            let Some(from) = running.buffers.get(&receive.from) else { return Ok(false) };
            let Some(bytes) = running.doing[other].send().map(|send| send.bytes.clone()) else {
                return Ok(false);
            };
            let moved = transfer(&**from, bytes, &**buffer, receive.bytes.start, combined);
            moved.map_err(|error| outside(rank, error))?;
            self.counters.within += receive.bytes.end - receive.bytes.start;
            running.doing[other].sent += 1;
        }
        running.doing[index].applied += 1;
        Ok(true)
    }

    fn push(&mut self, running: &Running) -> Result<bool, Failed> {
        let mut has_moved = false;
        for key in &running.outbound {
            let Some(outbound) = self.outbound.get_mut(key).filter(|outbound| !outbound.is_empty()) else {
                continue;
            };
            let sent = outbound.push().map_err(|reason| Failed::new(key.1, reason))?;
            *self.counters.sent.entry(key.1).or_default() += sent as u64;
            has_moved |= outbound.is_empty();
        }
        Ok(has_moved)
    }

    fn pull(&mut self, running: &Running) -> Result<bool, Failed> {
        let mut has_moved = false;
        for (key, index) in &running.inbound {
            let Some(inbound) = self.inbound.get_mut(key).filter(|inbound| inbound.bytes().is_none()) else {
                continue;
            };
            let head = head(&self.strategy, &running.numbered, key.0, key.2);
            let came = inbound.pull(&running.doing[*index].program.receives, head);
            let came = came.map_err(|mismatch| Failed::of(key.0, mismatch))?;
            *self.counters.received.entry(key.0).or_default() += came as u64;
            has_moved |= inbound.bytes().is_some();
        }
        Ok(has_moved)
    }

    /// Advances until the operation is done. The thread waits meanwhile.
    ///
    /// # Errors
    /// As [`Team::advance`].
    pub fn finish(&mut self) -> Result<(), Failed> {
        while self.advance()? == Progress::Working {
            let most = self.wait_at_most().and_then(|most| Timespec::try_from(most).ok());
            let waited = poll(&mut self.waits(), most.as_ref());
            if let Err(error) = waited
                && error != Errno::INTR
            {
                let rank = self.local.first().copied().unwrap_or_default();
                let failed = Failed::new(rank, format!("cannot wait for its wires: {error}"));
                self.failed = Some(failed.clone());
                return Err(failed);
            }
        }
        Ok(())
    }

    /// Returns the descriptors to wait for after [`Team::advance`], of which one suffices, and for what.
    pub fn waits(&self) -> Vec<PollFd<'_>> {
        let Some(running) = &self.running else { return Vec::new() };
        let mut waits = Vec::new();
        for inbound in running.inbound.keys().filter_map(|key| self.inbound.get(key)) {
            if inbound.is_waiting() {
                waits.push(PollFd::from_borrowed_fd(inbound.wire.readable(), PollFlags::IN));
            }
        }
        if self.closed_for().is_zero() {
            for outbound in running.outbound.iter().filter_map(|key| self.outbound.get(key)) {
                if !outbound.is_empty() {
                    waits.push(match outbound.wire.writable() {
                        Some(writable) => PollFd::from_borrowed_fd(writable, PollFlags::IN),
                        None => PollFd::from_borrowed_fd(outbound.wire.readable(), PollFlags::OUT),
                    });
                }
            }
        }
        waits
    }

    /// Returns the wires to watch while no operation runs, each with the rank at its other end. One that is ready has
    /// [ended](has_ended); bytes of the next operation make none ready. Wires that are not sockets are not there.
    pub fn at_rest(&self) -> Vec<(u32, PollFd<'_>)> {
        let outbound = self.outbound.iter().map(|((_, to, _), outbound)| (*to, &outbound.wire));
        let inbound = self.inbound.iter().map(|((from, _, _), inbound)| (*from, &inbound.wire));
        let all = outbound.chain(inbound).filter(|(_, wire)| wire.writable().is_none());
        all.map(|(rank, wire)| (rank, PollFd::from_borrowed_fd(wire.readable(), PollFlags::RDHUP))).collect()
    }

    /// Returns after which time to call [`Team::advance`] again in any case: zero when it has more to do, the time to the next window
    /// when that is closed. None: a descriptor becomes ready.
    pub fn wait_at_most(&self) -> Option<Duration> {
        self.running.as_ref().and(self.wait_at_most)
    }

    /// Returns the ranks of other hosts whose bytes local ranks wait for now.
    pub fn waits_for(&self) -> BTreeSet<u32> {
        let Some(running) = &self.running else { return BTreeSet::new() };
        let next = running.doing.iter().filter_map(Doing::receive).map(|receive| receive.from);
        next.filter(|rank| !self.local.contains(rank)).collect()
    }
}

/// Returns whether a wire that was waited for has ended, at either side.
pub fn has_ended(wait: &PollFd<'_>) -> bool {
    wait.revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
}

fn head(strategy: &Strategy, numbered: &Numbered, from: u32, lane: u16) -> Head {
    Head { epoch: strategy.epoch, numbered: *numbered, from, piece: 0, bytes: 0, lane }
}

fn combined(numbered: &Numbered, receive: &Receive) -> Option<(Element, Reduction)> {
    match numbered.operation {
        Operation::AllReduce { reduction } | Operation::ReduceScatter { reduction } if receive.combined => {
            Some((numbered.element, reduction))
        }
        _ => None,
    }
}

fn outside(rank: u32, error: Outside) -> Failed {
    Failed::new(rank, error.to_string())
}
