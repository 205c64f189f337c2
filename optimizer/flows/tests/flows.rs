//! Shares and times that were computed by hand, and properties of random networks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use proptest::prelude::*;
use tidemill_flows::patterns::{Member, barrier, ring, shuffle, streamed_ring, tree};
use tidemill_flows::{Competitor, Flow, FlowError, LinkId, Load, Simulation, gigabits, max_min};

fn is_near(value: f64, expected: f64) -> bool {
    (value - expected).abs() <= 1e-9 * expected.abs().max(1e-9)
}

/// Both directions of the cable of each node of a tree of two layers.
struct Tree {
    up: Vec<LinkId>,
    down: Vec<LinkId>,
    rack: Vec<usize>,
    rack_up: Vec<LinkId>,
    rack_down: Vec<LinkId>,
}

impl Tree {
    fn new(simulation: &mut Simulation, hosts: &[(usize, f64)], racks: &[f64]) -> Self {
        let mut both =
            |rate: f64| (simulation.link(gigabits(rate)).unwrap(), simulation.link(gigabits(rate)).unwrap());
        let (up, down) = hosts.iter().map(|&(_, rate)| both(rate)).unzip();
        let (rack_up, rack_down) = racks.iter().map(|&rate| both(rate)).unzip();
        Self { up, down, rack: hosts.iter().map(|host| host.0).collect(), rack_up, rack_down }
    }

    fn route(&self, from: usize, to: usize) -> Vec<LinkId> {
        let (one, other) = (self.rack[from], self.rack[to]);
        let mut route = vec![self.up[from], self.down[to]];
        if one != other {
            route.extend([self.rack_up[one], self.rack_down[other]]);
        }
        route
    }
}

/// The second flow has a slow receiver, so that the third one has half of the sender's link at first, and then all that its own receiver
/// takes: 600 us of 5 Gbit/s, and 5 Mbit at 9 Gbit/s.
#[test]
fn three_flows_in_a_tree_take_as_long_as_computed_by_hand() {
    let mut simulation = Simulation::default();
    let hosts = [(0, 20.0), (0, 10.0), (0, 9.0), (1, 10.0), (1, 5.0)];
    let tree = Tree::new(&mut simulation, &hosts, &[35.0, 15.0]);
    let flows = [
        Flow::new(tree.route(0, 3), 1e6),
        Flow::new(tree.route(1, 4), 1e6),
        Flow::new(tree.route(1, 2), 1e6).at(1e-3),
    ]
    .map(|flow| simulation.flow(flow).unwrap());
    simulation.run().unwrap();
    let taken = flows.map(|flow| simulation.end(flow).unwrap() - simulation.beginning(flow).unwrap());
    assert!(is_near(taken[0], 800e-6) && is_near(taken[1], 1600e-6), "{taken:?}");
    assert!(is_near(taken[2], 600e-6 + 5.0 / 9.0 * 1e-3), "{taken:?}");
}

#[test]
fn weights_and_limits_change_shares() {
    let flow = |links, weight, limit| Competitor { links, weight, limit };
    let free = f64::INFINITY;
    assert_eq!(max_min(&[30.0], &[flow(&[0], 2.0, free), flow(&[0], 1.0, free)]), [20.0, 10.0]);
    assert_eq!(max_min(&[30.0], &[flow(&[0], 2.0, 6.0), flow(&[0], 1.0, free)]), [6.0, 24.0]);
    assert_eq!(max_min(&[], &[flow(&[], 1.0, 6.0), flow(&[], 1.0, free)]), [6.0, free]);
    assert_eq!(max_min(&[0.0, 8.0], &[flow(&[0, 1], 1.0, free), flow(&[1], 1.0, free)]), [0.0, 8.0]);
}

#[test]
fn a_ring_takes_its_steps_and_its_slowest_link() {
    for (slow, expected) in [(8.0, 6.0 * 0.25), (4.0, 6.0 * 0.5)] {
        let mut simulation = Simulation::default();
        let rates = [8.0, 8.0, slow, 8.0];
        let routes: Vec<_> =
            rates.iter().map(|&rate| vec![simulation.link(gigabits(rate)).unwrap()]).collect();
        let last = ring(&mut simulation, &routes, 1e9, 6, &[]).unwrap();
        let end = barrier(&mut simulation, &last).unwrap();
        simulation.run().unwrap();
        assert!(is_near(simulation.end(end).unwrap(), expected), "{:?}", simulation.end(end));
        let mut streamed = Simulation::default();
        let routes: Vec<_> = rates.iter().map(|&rate| vec![streamed.link(gigabits(rate)).unwrap()]).collect();
        streamed_ring(&mut streamed, &routes, 1e9, 6, &[]).unwrap();
        assert!(is_near(streamed.run().unwrap(), expected));
    }
}

/// A chain of three with as many pieces as make a pipeline: up and down 4 hops, and a piece a hop for each further one.
#[test]
fn pieces_of_a_tree_follow_each_other() {
    for (pieces, expected) in [(1, 4.0), (4, (4.0 + 3.0) / 4.0)] {
        let mut simulation = Simulation::default();
        let mut link = || vec![simulation.link(1e9).unwrap()];
        let members = [0, 1].map(|parent| Member { parent, up: link(), down: link() });
        tree(&mut simulation, &members, 1e9, pieces, &[]).unwrap();
        let end = simulation.run().unwrap();
        assert!(is_near(end, expected), "{end}");
    }
    let mut simulation = Simulation::default();
    let own = Member { parent: 1, up: Vec::new(), down: Vec::new() };
    assert!(tree(&mut simulation, &[own], 1.0, 1, &[]).is_err());
}

#[test]
fn a_shuffle_is_as_slow_as_its_busiest_port() {
    let mut simulation = Simulation::default();
    let tree = Tree::new(&mut simulation, &[(0, 8.0), (0, 8.0), (1, 8.0), (1, 8.0)], &[8.0, 8.0]);
    let pairs = (0..4).flat_map(|from| (0..4).filter(move |&to| to != from).map(move |to| (from, to)));
    let routes: Vec<_> = pairs.map(|(from, to)| (tree.route(from, to), 1e9)).collect();
    shuffle(&mut simulation, &routes, &[]).unwrap();
    // Four flows of 1 GB leave each rack over 1 GB/s.
    assert!(is_near(simulation.run().unwrap(), 4.0));
}

#[test]
fn background_takes_its_part_while_it_lasts() {
    let mut simulation = Simulation::default();
    let link = simulation.link(100.0).unwrap();
    // 75 of 100 between 1 s and 3 s.
    let load = |now: f64| match now {
        now if now < 1.0 => Load { rate: 0.0, until: 1.0 },
        now if now < 3.0 => Load { rate: 75.0, until: 3.0 },
        _ => Load { rate: 0.0, until: f64::INFINITY },
    };
    simulation.background(link, load).unwrap();
    let flow = simulation.flow(Flow::new([link], 300.0)).unwrap();
    simulation.run().unwrap();
    assert!(is_near(simulation.end(flow).unwrap(), 1.0 + 2.0 + 1.5));
}

#[test]
fn a_controller_moves_a_flow_and_adds_another_one() {
    let mut simulation = Simulation::default();
    let (one, other) = (simulation.link(100.0).unwrap(), simulation.link(100.0).unwrap());
    let first = simulation.flow(Flow::new([one], 100.0)).unwrap();
    let second = simulation.flow(Flow::new([one], 200.0)).unwrap();
    let pause = simulation.flow(Flow::pause(1.0)).unwrap();
    let ended = simulation.advance().unwrap().unwrap();
    assert_eq!((ended.at, ended.flows.as_slice()), (1.0, [pause].as_slice()));
    assert_eq!(simulation.rates(), [50.0, 50.0, 0.0]);
    simulation.reroute(second, &[other]).unwrap();
    let third = simulation.flow(Flow::new([other], 25.0)).unwrap();
    simulation.run().unwrap();
    assert!(is_near(simulation.end(first).unwrap(), 1.5));
    assert!(is_near(simulation.end(third).unwrap(), 1.5));
    assert!(is_near(simulation.end(second).unwrap(), 1.0 + 0.5 + 1.25));
    assert!(is_near(simulation.carried(one), 150.0) && is_near(simulation.carried(other), 175.0));
}

#[test]
fn what_cannot_be_is_refused() {
    let mut simulation = Simulation::default();
    let link = simulation.link(1.0).unwrap();
    let mut other = Simulation::default();
    assert_eq!(other.flow(Flow::new([link], 1.0)), Err(FlowError::NoLink(0)));
    assert_eq!(simulation.flow(Flow::new([link, link], 1.0)), Err(FlowError::Twice(0)));
    assert!(simulation.link(-1.0).is_err() && simulation.link(f64::NAN).is_err());
    for flow in [
        Flow::new([link], -1.0),
        Flow::new([link], f64::NAN),
        Flow::new([link], 1.0).weight(0.0),
        Flow::new([link], 1.0).limit(0.0),
        Flow::new([link], 1.0).delay(-1.0),
    ] {
        assert!(matches!(simulation.flow(flow), Err(FlowError::Range { .. })));
    }
    let flow = simulation.flow(Flow::new([link], 1.0)).unwrap();
    assert!(matches!(other.flow(Flow::pause(0.0).after(&[flow])), Err(FlowError::NoFlow(0))));
    simulation.run().unwrap();
    assert!(matches!(simulation.flow(Flow::new([link], 1.0).at(0.5)), Err(FlowError::Past { .. })));
    simulation.set_capacity(link, 0.0).unwrap();
    simulation.flow(Flow::new([link], 1.0)).unwrap();
    assert_eq!(simulation.run(), Err(FlowError::Stalled { flow: 1, at: 1.0 }));
}

#[test]
fn an_endless_flow_takes_its_share_and_holds_up_nothing() {
    let mut simulation = Simulation::default();
    let link = simulation.link(100.0).unwrap();
    simulation.flow(Flow::new([link], f64::INFINITY).limit(20.0)).unwrap();
    simulation.flow(Flow::new([link], 80.0)).unwrap();
    assert!(is_near(simulation.run().unwrap(), 1.0));
}

/// 768 ranks in one ring, step by step: more than a million flows.
#[test]
fn a_ring_of_many_ranks_ends_when_it_must() {
    let mut simulation = Simulation::default();
    let routes: Vec<_> = (0..768).map(|_| vec![simulation.link(gigabits(200.0)).unwrap()]).collect();
    let steps = 2 * 767;
    ring(&mut simulation, &routes, 100e6, steps, &[]).unwrap();
    let expected = steps as f64 * 100e6 / 768.0 / gigabits(200.0);
    assert!(is_near(simulation.run().unwrap(), expected));
}

/// Links, bytes, beginning, weight, limit, and whether it waits for the flow before it.
type DrawnFlow = (Vec<usize>, f64, f64, f64, Option<f64>, bool);

#[derive(Debug, Clone)]
struct Drawn {
    capacities: Vec<f64>,
    flows: Vec<DrawnFlow>,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    prop::collection::vec(1.0..100.0f64, 1..7).prop_flat_map(|capacities| {
        let links =
            prop::sample::subsequence((0..capacities.len()).collect::<Vec<_>>(), 1..=capacities.len());
        let limit = prop::option::of(0.5..50.0f64);
        let flow = (links, 0.0..1000.0f64, 0.0..20.0f64, 0.25..4.0f64, limit, any::<bool>());
        prop::collection::vec(flow, 1..14)
            .prop_map(move |flows| Drawn { capacities: capacities.clone(), flows })
    })
}

impl Drawn {
    fn simulation(&self) -> (Simulation, Vec<LinkId>) {
        let mut simulation = Simulation::default();
        let links: Vec<_> = self.capacities.iter().map(|&rate| simulation.link(rate).unwrap()).collect();
        let mut last = Vec::new();
        for (route, bytes, at, weight, limit, waits) in &self.flows {
            let route: Vec<_> = route.iter().map(|&link| links[link]).collect();
            let flow = Flow::new(route, *bytes).at(*at).weight(*weight).limit(limit.unwrap_or(f64::INFINITY));
            let after = if *waits { last.as_slice() } else { &[] };
            last = vec![simulation.flow(flow.after(after)).unwrap()];
        }
        (simulation, links)
    }

    /// The shares of the flows that send: no link carries more than it can, and each flow has its limit, or a full link on which none has
    /// more by weight, so that it cannot grow unless a smaller one shrinks.
    fn check(&self, rates: &[f64]) {
        let over = |link: usize| {
            (0..rates.len()).filter(move |&flow| rates[flow] > 0.0 && self.flows[flow].0.contains(&link))
        };
        let total = |link: usize| over(link).map(|flow| rates[flow]).sum::<f64>();
        for (link, capacity) in self.capacities.iter().enumerate() {
            assert!(total(link) <= capacity * (1.0 + 1e-9), "link {link}");
        }
        for (flow, &rate) in rates.iter().enumerate().filter(|(_, rate)| **rate > 0.0) {
            let (links, _, _, weight, limit, _) = &self.flows[flow];
            let has_limit = limit.is_some_and(|limit| rate >= limit * (1.0 - 1e-9));
            assert!(limit.is_none_or(|limit| rate <= limit * (1.0 + 1e-9)));
            let largest =
                |link: usize| over(link).map(|other| rates[other] / self.flows[other].3).fold(0.0, f64::max);
            let is_bottleneck = |&link: &usize| {
                total(link) >= self.capacities[link] * (1.0 - 1e-9)
                    && rate / weight >= largest(link) * (1.0 - 1e-9)
            };
            assert!(has_limit || links.iter().any(is_bottleneck), "flow {flow} could have more");
        }
    }
}

proptest! {
    /// Shares are max-min at each moment, no byte is lost, and a second run has the same result.
    #[test]
    fn shares_are_fair_and_bytes_arrive(drawn in drawn()) {
        let (mut simulation, links) = drawn.simulation();
        let mut again = drawn.simulation().0;
        let mut ended = 0;
        loop {
            drawn.check(&simulation.rates());
            let (event, other) = (simulation.advance().unwrap(), again.advance().unwrap());
            prop_assert_eq!(&event, &other);
            let Some(event) = event else { break };
            ended += event.flows.len();
        }
        prop_assert_eq!(ended, drawn.flows.len());
        for (position, &link) in links.iter().enumerate() {
            let over = drawn.flows.iter().filter(|flow| flow.0.contains(&position));
            prop_assert!(is_near(simulation.carried(link), over.map(|flow| flow.1).sum()));
            prop_assert!(simulation.carried(link) <= drawn.capacities[position] * simulation.now() * (1.0 + 1e-9) + 1e-9);
        }
    }

    /// The needs of flows elsewhere do not matter to a link that is full: it is full until its last flow ends.
    #[test]
    fn a_full_link_is_never_idle(bytes in prop::collection::vec(1.0..1000.0f64, 1..12)) {
        let mut simulation = Simulation::default();
        let link = simulation.link(50.0).unwrap();
        for &bytes in &bytes {
            simulation.flow(Flow::new([link], bytes)).unwrap();
        }
        prop_assert!(is_near(simulation.run().unwrap(), bytes.iter().sum::<f64>() / 50.0));
    }
}
