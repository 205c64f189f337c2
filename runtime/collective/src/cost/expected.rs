//! The time of an operation by simulation: what each rank does by its [programs](crate::schedule) is drawn as flows that share links by
//! max-min (`tidemill_flows`). So rings, trees, doubling and exchanges come out as the service carries them out.
//!
//! | counted | as |
//! |---|---|
//! | bytes on links | those of pieces with their heads; [`PAYLOAD`] is the part of a link that they get |
//! | a piece at its sender | after those before it on its wire, and after the receives that it waits for |
//! | the path of a piece | [`Facts::step`](super::Facts::step) after its last byte has left, while the next one leaves |
//! | a rank at work | [`Facts::piece`](super::Facts::piece) for each piece that it receives, one after the other |
//! | other groups | flows without end along their rings |
//!
//! The network is fair at each moment and loses nothing. What congestion control and packets that are sent again cost beyond that
//! is measured in `docs/benchmarks/collectives.md`.
use super::{Link, Network, Places, edges, places, step, time};
use crate::element::Element;
use crate::operation::{Numbered, Operation};
use crate::schedule::{Program, programs};
use crate::strategy::Strategy;
use crate::topology::{Group, Host};
use crate::type_name::TypeName;
use crate::wire::HEAD;
use std::collections::BTreeMap;
use tidemill_flows::{Flow, FlowError, FlowId, LinkId, Simulation};

/// The part of a link that is payload of TCP: of each frame of Ethernet of 1514 bytes, TCP with timestamps (RFC 9293, RFC 7323) over IPv4
/// leaves 1448.
pub const PAYLOAD: f64 = 1448.0 / 1514.0;
/// Most transfers that are drawn. Operations of more are drawn with smaller buffers; where that does not help, [`time`] is the answer.
const MOST: usize = 512;
/// Bytes of an element.
const ELEMENT: u64 = 4;

/// Returns the seconds that an operation takes with a buffer of this many bytes, beside the rings of other groups.
pub fn expected(
    network: &Network<'_>,
    group: &Group,
    strategy: &Strategy,
    operation: Operation,
    length: f64,
    others: &[(&Group, &Strategy)],
) -> f64 {
    let strategy = &as_for(strategy, operation, length);
    let draw = |programs: Vec<Drawn>| -> Option<f64> {
        let mut drawing = Drawing::new(network, group, programs);
        for (other, strategy) in others.iter().filter(|_| network.loads.is_none()) {
            drawing.beside(other, strategy).ok()?;
        }
        drawing.draw(strategy).ok().flatten()
    };
    let simulated = || -> Option<f64> {
        let mut part = length;
        let programs = loop {
            if let Some(programs) = drawn(strategy, operation, part) {
                break programs;
            }
            part = Some(part / 2.0).filter(|part| *part >= 1.0)?;
        };
        let seconds = draw(programs)?;
        if part == length {
            return Some(seconds);
        }
        // Beyond the first pieces, which all steps wait for, each byte takes as long as the one before.
        let half = draw(drawn(strategy, operation, part / 2.0)?)?;
        Some(seconds + (seconds - half) * (length - part) / (part / 2.0))
    };
    simulated().unwrap_or_else(|| time(network, group, strategy, operation, length, others).seconds)
}

/// Returns a strategy by which a buffer of any size goes as one of this many bytes does.
fn as_for(strategy: &Strategy, operation: Operation, length: f64) -> Strategy {
    let bytes = length as u64;
    let mut fixed = strategy.clone();
    fixed.small = if bytes <= strategy.small { u64::MAX } else { 0 };
    if strategy.trees_of(operation, bytes).is_none() {
        (fixed.all_reduce, fixed.broadcast) = (None, None);
    }
    for trees in fixed.all_reduce.iter_mut().chain(&mut fixed.broadcast) {
        trees.most = None;
    }
    fixed
}

/// A program, and how far it is drawn.
struct Drawn {
    rank: u32,
    program: Program,
    sent: usize,
    /// What has ended when the last send has left.
    left: Vec<FlowId>,
    /// What ends when each receive is applied.
    applied: Vec<FlowId>,
}

/// Returns the programs of all ranks. None: there are too many transfers.
fn drawn(strategy: &Strategy, operation: Operation, length: f64) -> Option<Vec<Drawn>> {
    let members = strategy.members.len();
    // Each member sends a part of its buffer at least, so what is far beyond need not be made.
    if members.saturating_pow(2) > MOST || length / f64::from(strategy.piece.max(1)) > MOST as f64 {
        return None;
    }
    let elements = (length.max(0.0) as u64).div_ceil(ELEMENT).next_multiple_of(members.max(1) as u64);
    let numbered = Numbered {
        number: 1,
        operation,
        element: Element::F32,
        length: elements,
        type_name: TypeName::default(),
    };
    let mut made = Vec::new();
    let mut count = 0;
    for rank in &strategy.members {
        for program in programs(strategy, &numbered, *rank) {
            count += program.sends.len();
            made.push(Drawn { rank: *rank, program, sent: 0, left: Vec::new(), applied: Vec::new() });
        }
        if count > MOST {
            return None;
        }
    }
    Some(made)
}

/// From, to, lane.
type Wire = (u32, u32, u16);

/// Frames of a wire.
#[derive(Default)]
struct Frames {
    /// When the last one has left.
    last: Option<FlowId>,
    /// When each has arrived.
    arrived: Vec<FlowId>,
    received: usize,
}

/// A simulation that programs are added to.
struct Drawing<'a> {
    network: &'a Network<'a>,
    places: Places<'a>,
    step: f64,
    simulation: Simulation,
    links: BTreeMap<Link<'a>, LinkId>,
    programs: Vec<Drawn>,
    wires: BTreeMap<Wire, Frames>,
    /// Sends to ranks of the same host that the receiver has not taken: the program, and what has ended when it may take them.
    offered: BTreeMap<Wire, (usize, Vec<FlowId>)>,
}

impl<'a> Drawing<'a> {
    fn new(network: &'a Network<'a>, group: &Group, programs: Vec<Drawn>) -> Self {
        Self {
            network,
            places: places(network, group),
            step: step(network, group),
            simulation: Simulation::default(),
            links: BTreeMap::new(),
            programs,
            wires: BTreeMap::new(),
            offered: BTreeMap::new(),
        }
    }

    /// Returns the links of a simulation from a host to another one, for each path that the system may choose.
    fn routes(
        &mut self,
        from: &'a Host,
        to: &'a Host,
        path: Option<&str>,
    ) -> Result<Vec<Vec<LinkId>>, FlowError> {
        if from.name == to.name {
            return Ok(vec![vec![self.link(Link::Memory(&from.name))?]]);
        }
        let known = |path: &'a crate::topology::Path| path.name.as_str();
        let chosen = path.map(|path| from.paths.iter().map(known).find(|name| *name == path));
        let paths: Vec<Option<&'a str>> = match chosen {
            None if from.rack != to.rack && !from.paths.is_empty() => {
                from.paths.iter().map(known).map(Some).collect()
            }
            path => vec![path.flatten()],
        };
        let mut routes = Vec::with_capacity(paths.len());
        for path in paths {
            let between = self.network.rack_links(from, to, path);
            let ends = [Link::HostOut(&from.name), Link::HostIn(&to.name)];
            let links = ends.into_iter().chain(between);
            routes.push(links.map(|link| self.link(link)).collect::<Result<_, _>>()?);
        }
        Ok(routes)
    }

    fn link(&mut self, link: Link<'a>) -> Result<LinkId, FlowError> {
        if let Some(id) = self.links.get(&link) {
            return Ok(*id);
        }
        let part = if matches!(link, Link::Memory(_)) { 1.0 } else { PAYLOAD };
        let id = self.simulation.link(self.network.left(link) * part)?;
        self.links.insert(link, id);
        Ok(id)
    }

    /// Adds a transfer from a rank to another one, an even part by each path that the system may choose.
    fn transfer(
        &mut self,
        (from, to): (u32, u32),
        path: Option<&str>,
        bytes: f64,
        after: &[FlowId],
    ) -> Result<FlowId, FlowError> {
        let (Some(&from), Some(&to)) = (self.places.get(&from), self.places.get(&to)) else {
            // Where a host is unknown, so are its links.
            return self.simulation.flow(Flow::pause(0.0).after(after));
        };
        let routes = self.routes(from, to, path)?;
        let part = bytes / routes.len() as f64;
        let flows = (routes.into_iter())
            .map(|route| self.simulation.flow(Flow::new(route, part).after(after)))
            .collect::<Result<Vec<FlowId>, FlowError>>()?;
        match flows[..] {
            [flow] => Ok(flow),
            _ => self.simulation.flow(Flow::pause(0.0).after(&flows)),
        }
    }

    /// Adds the rings of another group.
    fn beside(&mut self, group: &Group, strategy: &Strategy) -> Result<(), FlowError> {
        let places = places(self.network, group);
        for (from, to, path) in edges(strategy) {
            let (Some(&from), Some(&to)) = (places.get(&from), places.get(&to)) else { continue };
            let routes = self.routes(from, to, path)?;
            let weight = 1.0 / routes.len() as f64;
            for route in routes {
                self.simulation.flow(Flow::new(route, f64::INFINITY).weight(weight))?;
            }
        }
        Ok(())
    }

    /// Draws all programs, and returns the time of the last end. None: a program waits for what never comes.
    fn draw(mut self, strategy: &Strategy) -> Result<Option<f64>, FlowError> {
        loop {
            let mut has_moved = false;
            for at in 0..self.programs.len() {
                while self.send(at, strategy)? || self.receive(at)? {
                    has_moved = true;
                }
            }
            if !has_moved {
                break;
            }
        }
        let is_done = |one: &Drawn| {
            one.sent == one.program.sends.len() && one.applied.len() == one.program.receives.len()
        };
        if !self.programs.iter().all(is_done) {
            return Ok(None);
        }
        self.simulation.run().map(Some)
    }

    /// Adds the next send of a program, if what it waits for is drawn.
    fn send(&mut self, at: usize, strategy: &Strategy) -> Result<bool, FlowError> {
        let one = &self.programs[at];
        let (rank, lane) = (one.rank, one.program.lane);
        let Some(send) = one.program.sends.get(one.sent).filter(|send| send.after <= one.applied.len())
        else {
            return Ok(false);
        };
        let (to, is_staged) = (send.to, send.staged);
        let bytes = (send.bytes.end - send.bytes.start) as f64;
        let mut ready = one.left.clone();
        ready.extend(send.after.checked_sub(1).and_then(|last| one.applied.get(last)));
        let wire = (rank, to, lane);
        let host = |rank| self.places.get(&rank).map(|host| host.name.as_str());
        if host(rank) == host(to) && !is_staged {
            self.offered.entry(wire).or_insert((at, ready));
            // It has left when the receiver has taken it.
            return Ok(false);
        }
        let is_local = host(rank) == host(to);
        let path = match strategy.channels.get(usize::from(lane)) {
            Some(channel) => {
                let edge = channel.ring.iter().position(|member| *member == rank);
                edge.and_then(|edge| channel.paths.get(edge)).and_then(Option::as_deref)
            }
            None if lane == crate::schedule::MESH => strategy.mesh_path(rank, to),
            None => None,
        };
        let mut after = ready.clone();
        after.extend(self.wires.get(&wire).and_then(|frames| frames.last));
        let sent = self.transfer((rank, to), path, bytes + HEAD as f64, &after)?;
        let delay = if is_local { 0.0 } else { self.step };
        let arrived = self.simulation.flow(Flow::pause(delay).after(&[sent]))?;
        let frames = self.wires.entry(wire).or_default();
        frames.last = Some(sent);
        frames.arrived.push(arrived);
        let one = &mut self.programs[at];
        (one.sent, one.left) = (one.sent + 1, ready);
        Ok(true)
    }

    /// Adds the next receive of a program, if what it waits for is drawn.
    fn receive(&mut self, at: usize) -> Result<bool, FlowError> {
        let one = &self.programs[at];
        let (rank, lane) = (one.rank, one.program.lane);
        let Some(receive) = one.program.receives.get(one.applied.len()).filter(|next| next.after <= one.sent)
        else {
            return Ok(false);
        };
        let bytes = (receive.bytes.end - receive.bytes.start) as f64;
        let wire = (receive.from, rank, lane);
        let mut after: Vec<FlowId> = one.applied.last().copied().into_iter().collect();
        if receive.after > 0 {
            after.extend_from_slice(&one.left);
        }
        let work = self.network.facts.piece;
        let applied = if let Some((sender, ready)) = self.offered.remove(&wire) {
            after.extend(ready);
            let moved = self.transfer((wire.0, rank), None, bytes, &after)?;
            let applied = self.simulation.flow(Flow::pause(work).after(&[moved]))?;
            let sender = &mut self.programs[sender];
            (sender.sent, sender.left) = (sender.sent + 1, vec![applied]);
            applied
        } else {
            let frames = self.wires.get_mut(&wire);
            let Some(frames) = frames.filter(|frames| frames.received < frames.arrived.len()) else {
                return Ok(false);
            };
            after.push(frames.arrived[frames.received]);
            frames.received += 1;
            self.simulation.flow(Flow::pause(work).after(&after))?
        };
        self.programs[at].applied.push(applied);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Facts;
    use crate::element::Reduction;
    use crate::policies::tests::Lab;
    use crate::policies::{Policy, ffa, locality};
    use crate::strategy::Strategy;
    use proptest::prelude::*;

    const SUM: Operation = Operation::AllReduce { reduction: Reduction::Sum };
    const MIB: f64 = (1 << 20) as f64;

    /// Links alone: steps and pieces take no time.
    fn links_alone(mut lab: Lab) -> Lab {
        lab.facts = Facts { step: 0.0, local_step: 0.0, piece: 0.0, memory_rate: 1e15, ..lab.facts };
        lab
    }

    #[test]
    fn a_ring_takes_its_bytes_by_the_slowest_link() {
        let lab = links_alone(Lab::racks(2, 2).spines(2).group("one", 4));
        let strategy = &ffa::strategies(&lab.cluster())["one"];
        let took = |bytes: f64| expected(&lab.network(), &lab.groups[0], strategy, SUM, bytes, &[]);
        // Two rings, each with half of the buffer: 6 steps of an eighth over a spine of 6.25 GB/s.
        let least = 0.75 * 64.0 * MIB / (6.25e9 * PAYLOAD);
        let part = took(64.0 * MIB) / least;
        assert!((1.0..1.02).contains(&part), "{part} times what the links take");
        assert!((took(128.0 * MIB) / took(64.0 * MIB) - 2.0).abs() < 0.02);
    }

    #[test]
    fn a_piece_waits_at_each_edge_of_a_chain_and_a_tree() {
        let lab = links_alone(Lab::racks(1, 8).group("one", 8));
        let chain = locality::strategies(&lab.cluster(), false).remove("one").unwrap();
        let strategy = |text: &str| {
            let mut made = text.parse::<Policy>().unwrap().strategies(&lab.cluster()).unwrap();
            made.remove("one").unwrap()
        };
        let root = Operation::Broadcast { root: 0 };
        let piece = f64::from(chain.piece);
        let seconds = |strategy: &Strategy, pieces: f64| {
            let took = expected(&lab.network(), &lab.groups[0], strategy, root, pieces * piece, &[]);
            took * lab.facts.host_rate * PAYLOAD / (piece + HEAD as f64)
        };
        let chain = Strategy { broadcast: None, ..chain };
        assert!((seconds(&chain, 40.0) - 46.0).abs() < 0.01, "40 pieces, and 6 more edges for the last one");
        // A binary tree: the root sends each piece twice, and the last one goes over two more levels.
        let tree = strategy("tree:0-1,0-2,1-3,1-4,2-5,2-6,3-7");
        let took = seconds(&tree, 40.0);
        assert!((80.0..=85.0).contains(&took), "{took} pieces one after another");
    }

    #[test]
    fn another_group_takes_its_share() {
        let lab = links_alone(Lab::racks(2, 1).spines(2).group("one", 2).group("other", 2));
        let made = ffa::strategies(&lab.cluster());
        let (one, other) = (&lab.groups[0], &lab.groups[1]);
        let took = |others: &[(&Group, &Strategy)]| {
            expected(&lab.network(), one, &made["one"], SUM, 64.0 * MIB, others)
        };
        let alone = took(&[]);
        assert!((took(&[(other, &made["other"])]) / alone - 1.0).abs() < 1e-6, "it has another spine");
        assert!((took(&[(other, &made["one"])]) / alone - 2.0).abs() < 0.01, "it has the same spine");
    }

    #[test]
    fn a_buffer_of_many_pieces_takes_as_long_as_if_all_were_drawn() {
        let lab = links_alone(Lab::racks(1, 16).group("one", 16));
        let chain = Strategy {
            broadcast: None,
            piece: 16 << 10,
            ..locality::strategies(&lab.cluster(), false).remove("one").unwrap()
        };
        let root = Operation::Broadcast { root: 0 };
        let took = expected(&lab.network(), &lab.groups[0], &chain, root, 64.0 * MIB, &[]);
        let of_piece = (f64::from(chain.piece) + HEAD as f64) / (lab.facts.host_rate * PAYLOAD);
        let pieces = took / of_piece;
        assert!((pieces / (4096.0 + 14.0) - 1.0).abs() < 1e-6, "{pieces} pieces one after another");
    }

    #[test]
    fn what_is_too_much_to_draw_is_estimated() {
        let lab = Lab::racks(4, 32).group("one", 128);
        let strategy = &locality::strategies(&lab.cluster(), false)["one"];
        assert!(drawn(strategy, SUM, 64.0 * MIB).is_none());
        let closed = time(&lab.network(), &lab.groups[0], strategy, SUM, 64.0 * MIB, &[]).seconds;
        assert_eq!(expected(&lab.network(), &lab.groups[0], strategy, SUM, 64.0 * MIB, &[]), closed);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn all_programs_end_and_no_link_carries_more_than_it_can(
            lab in Lab::any(), policy in 0usize..3, operation in 0usize..5, kib in 1u32..4096,
        ) {
            let lab = links_alone(lab);
            let policy: Policy = ["rank-order", "locality", "ffa"][policy].parse().unwrap();
            let made = policy.strategies(&lab.cluster()).unwrap();
            for group in &lab.groups {
                let strategy = &made[&group.name];
                let root = strategy.members[0];
                let reduction = Reduction::Sum;
                let operation = [SUM, Operation::Broadcast { root }, Operation::ReduceScatter { reduction },
                    Operation::AllGather, Operation::AllToAll][operation];
                let length = f64::from(kib) * 1024.0;
                let network = lab.network();
                if let Some(drawn) = drawn(strategy, operation, length) {
                    let took = Drawing::new(&network, group, drawn).draw(strategy).unwrap();
                    prop_assert!(took.is_some(), "a program waits for ever");
                    // Small operations send more bytes than those that the closed form has.
                    let least = time(&network, group, strategy, operation, length, &[]).on_slowest;
                    prop_assert!(took.unwrap() >= 0.99 * least / PAYLOAD.max(1.0), "{took:?} of {least}");
                }
            }
        }
    }
}
