use super::event::Joined;
use super::*;
use crate::channel::Role;
use crate::checkpoint::Past;
use crate::clock::ManualClock;
use crate::graph::{ChannelSpec, InstanceSpec, MetricsTable, Port, Program, SlotSpec};
use crate::letters::Letters;
use crate::protocol::{Standing, StandingSlot};
use crate::report::SlotFacts;
use arrow_schema::Schema;
use crossbeam_channel::unbounded;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use tidemill_spec::plan::{Freshness, Plan, PlanWorkflow};

/// Two slots that feed each other.
fn graph() -> Graph {
    let instance = |channel| InstanceSpec {
        stage: "s".into(),
        instance: "s".into(),
        operator: "s".into(),
        ports: vec![Port { local: Vec::new(), remote: vec![(channel, Freshness::Block)] }],
        outputs: Vec::new(),
    };
    let slot = |name: &str, channel| SlotSpec {
        name: name.into(),
        worker: "w".into(),
        instances: vec![instance(channel)],
        byte_budget: 1,
    };
    let channel = |from_slot, to_slot| ChannelSpec {
        name: format!("{from_slot}->{to_slot}"),
        from_slot,
        to_slot,
        schema: Arc::new(Schema::empty()),
        edge: 0,
        role: Role::None,
    };
    Graph { slots: vec![slot("w/a", 1), slot("w/b", 0)], channels: vec![channel(0, 1), channel(1, 0)] }
}

fn facts(graph: &Graph) -> RunFacts {
    let program = Program {
        plan: Plan::new(PlanWorkflow { name: "test".into(), digest: None }),
        sources: BTreeMap::new(),
        operators: BTreeMap::new(),
        sinks: BTreeMap::new(),
        on_panic: BTreeMap::new(),
        when_cut: BTreeMap::new(),
    };
    RunFacts {
        metrics: MetricsTable::default(),
        letters: Arc::new(Letters::new(None)),
        sampler: None,
        tracer: None,
        clock: Arc::new(ManualClock::new()),
        started: AtomicI64::new(0),
        elapsed_before: AtomicI64::new(0),
        ended: Mutex::new(None),
        cut_short: AtomicBool::new(false),
        program,
        slots: graph.slots.iter().map(|slot| SlotFacts::of(slot, Arc::default())).collect(),
        restarts: AtomicU64::new(0),
        emulated: None,
        hosts: Vec::new(),
        opened: Vec::new(),
        clocks: Mutex::default(),
        paths: Mutex::default(),
        feeds: crate::feeds::RunFeeds::default(),
        places: Mutex::default(),
        heard: Mutex::default(),
        promises: BTreeMap::new(),
    }
}

/// A running coordinator, and its orders.
fn coordinator() -> (Coordinator, Receiver<Order>) {
    let (graph, (sender, orders)) = (graph(), unbounded());
    let facts = Arc::new(facts(&graph));
    let hands = Hands::Here(Arc::new(move |order| drop(sender.send(order))));
    let (_, events) = unbounded();
    let mut coordinator = Coordinator::new(&graph, facts, Arc::default(), hands, events);
    coordinator.is_running = true;
    coordinator.start_all();
    (coordinator, orders)
}

impl Coordinator {
    /// Reports the end of a slot, with these incarnations of its receivers.
    fn finishes_by(&mut self, slot: usize, heard: BTreeMap<usize, u32>) {
        let (incarnation, durable) = (self.slots[slot].number, vec![CLOSED]);
        self.noticed(0, Notice::Ended { slot, incarnation, durable, end: End::Finished, heard });
    }

    /// Finishes a slot by a report of a receiver that is gone.
    fn finishes(&mut self, slot: usize) {
        self.finishes_by(slot, BTreeMap::from([(slot, 0)]));
    }

    /// Loses the host of a slot, with what the slot had.
    fn loses_host_of(&mut self, slot: usize) {
        self.moment += 1;
        self.lost += 1;
        self.slots[slot].lost_at = self.moment;
    }

    /// Loses the host of a slot and restarts the slot.
    fn loses(&mut self, slot: usize) {
        self.loses_host_of(slot);
        self.start(slot, vec![0], None);
    }
}

#[test]
fn slots_that_begin_again_in_turn_end_the_run() {
    let (mut coordinator, orders) = coordinator();
    coordinator.loses(1);
    let mut ends = 0;
    // Each finishes by a report of a former incarnation of the other, before the present one has got as far.
    while coordinator.failure.is_none() && ends < 1000 {
        coordinator.finishes(ends % 2);
        ends += 1;
    }
    let numbers: Vec<u32> = coordinator.slots.iter().map(|slot| slot.number).collect();
    // The fault: both were started again and again, each for the other.
    assert!(numbers.iter().all(|number| *number > STARTS_IN_TURN), "{numbers:?}");
    let failure = coordinator.failure.take().expect("it does not go on for ever").to_string();
    assert!(failure.contains("'w/a'") && failure.contains("begin again in turn"), "{failure}");
    assert_eq!(ends, 2 * STARTS_IN_TURN as usize + 1);
    assert!(orders.try_iter().any(|order| matches!(order, Order::Abort)));
}

/// A slot whose receiver is lost again and again is started each time: losses have a bound of their own.
#[test]
fn a_slot_is_needed_again_after_each_loss_of_its_receiver() {
    let (mut coordinator, _orders) = coordinator();
    for _ in 0..3 * STARTS_IN_TURN {
        coordinator.loses(1);
        coordinator.finishes(0);
    }
    assert_eq!(coordinator.failure, None);
    assert_eq!(coordinator.slots[0].number, 3 * STARTS_IN_TURN + 1);
}

/// A receiver that has reported that it has everything is no reason to restart.
#[test]
fn a_receiver_that_has_everything_needs_nobody_again() {
    let (mut coordinator, _orders) = coordinator();
    coordinator.loses(1);
    let incarnation = coordinator.slots[1].number;
    coordinator.noticed(0, Notice::Durable { slot: 1, incarnation, epochs: vec![CLOSED] });
    coordinator.finishes(0);
    coordinator.finishes(1);
    assert!(coordinator.slots.iter().all(SlotLife::has_finished));
    assert_eq!(coordinator.slots[0].number, 1);
}

/// Its report to the upstream slot may arrive before its report to the coordinator.
#[test]
fn a_receiver_that_has_told_the_slot_in_front_needs_nobody_again() {
    let (mut coordinator, _orders) = coordinator();
    coordinator.loses(1);
    let second = coordinator.slots[1].number;
    coordinator.finishes_by(0, [(0, second)].into());
    assert!(coordinator.slots[0].has_finished());
    // The fault: nothing of the receiver is known here to be durable.
    assert_eq!((coordinator.slots[1].durable(), coordinator.slots[0].number), (0, 1));
    coordinator.finishes(1);
    assert!(coordinator.slots.iter().all(SlotLife::has_finished));
}

/// Not where it is gone since: the next one has not reported that.
#[test]
fn a_receiver_that_is_gone_needs_the_slot_in_front_whatever_it_had_said() {
    let (mut coordinator, _orders) = coordinator();
    let first = coordinator.slots[1].number;
    coordinator.loses_host_of(1);
    coordinator.finishes_by(0, [(0, first)].into());
    assert_eq!((coordinator.slots[0].number, coordinator.slots[0].alive), (2, true));
}

/// Otherwise its sources would continue where those of all others have ended.
#[test]
fn a_host_that_begins_again_after_the_run_was_stopped_is_told_so() {
    let (mut coordinator, orders) = coordinator();
    coordinator.stop();
    coordinator.hosts[0].phase = Phase::Opening(0);
    let _ = orders.try_iter().count();
    coordinator.host_opened(0, Ok(()));
    let told: Vec<_> = orders.try_iter().collect();
    let starts = |order: &Order| matches!(order, Order::Start { .. });
    assert_eq!(told.iter().filter(|order| starts(order)).count(), 2, "{told:?}");
    assert!(matches!(told.last(), Some(Order::Stop)), "{told:?}");
}

/// A host whose first slot continues.
fn standing() -> Box<Standing> {
    let slot = StandingSlot { incarnation: 7, durable: vec![3], end: None };
    let (slots, met) = ([(0, slot)].into(), BTreeMap::new());
    Box::new(Standing { started: 0, elapsed_before: 0, now: 0, slots, met, closed: None })
}

/// A host that runs when the run is taken over; the slot of the other one restarts from the checkpoint, without its
/// former data.
#[test]
fn who_stands_in_front_of_a_slot_that_begins_again_is_needed() {
    let (mut coordinator, _orders) = coordinator();
    let (sender, _orders_of_new) = unbounded();
    let new = HostLife::here(Arc::new(move |order| drop(sender.send(order))));
    coordinator.hosts.push(new);
    (coordinator.hosts[0].has_stood, coordinator.slots[1].host) = (true, 1);
    let standing = standing();
    coordinator.slots[0].stand(&standing.slots[&0]);
    coordinator.hosts[0].standing = Some(standing);
    coordinator.start_all();
    assert_eq!(coordinator.slots[0].number, 7, "it goes on");
    // It finishes by the report of the one before.
    coordinator.finishes_by(0, [(0, 1)].into());
    assert_eq!((coordinator.slots[0].number, coordinator.slots[0].alive), (8, true));
}

/// While others open their files: no other coordinator would take it over.
#[test]
fn a_host_that_is_lost_before_the_run_goes_on_stands_again() {
    let (mut coordinator, _orders) = coordinator();
    coordinator.is_running = false;
    (coordinator.hosts[0].has_stood, coordinator.hosts[0].standing) = (true, Some(standing()));
    coordinator.host_lost(0, 0, "cut");
    assert_eq!(coordinator.hosts[0].phase, Phase::Away);
    let hello =
        crate::protocol::Hello { graph: coordinator.graph, address: None, standing: Some(standing()) };
    let joined = Joined { orders: Arc::new(|_| ()), hello, identity: None, process: 1 };
    coordinator.host_joined(0, joined);
    // The fault: it had joined, and the coordinator waited for it.
    assert_eq!(coordinator.hosts[0].phase, Phase::Open);
    assert_eq!(coordinator.slots[0].number, 7);
}

/// Keeps nothing.
struct Nowhere;

impl crate::checkpoint::CheckpointWriter for Nowhere {
    fn write(&mut self, _: crate::checkpoint::Checkpoint) -> Result<(), String> {
        Ok(())
    }
    fn past(&mut self) -> Result<Past, String> {
        Err("there is none".into())
    }
}

/// A slot of a host that was lost meanwhile continues; a checkpoint would say that it had finished.
#[test]
fn the_end_is_not_written_while_a_slot_runs() {
    let (mut coordinator, orders) = coordinator();
    let (sender, events) = unbounded();
    let (interval, begun) = (std::time::Duration::from_secs(1), (5, BTreeMap::new()));
    let epochs = Arc::clone(&coordinator.epochs);
    let checkpoints =
        Checkpoints::start(&coordinator.facts, Box::new(Nowhere), interval, begun, &epochs, sender);
    coordinator.checkpoints = Some(checkpoints.expect("a thread"));
    coordinator.events = events;
    let _ = orders.try_iter().count();
    assert_eq!(coordinator.last_checkpoint(CLOSED, false), Ok(()));
    assert!(!orders.try_iter().any(|order| matches!(order, Order::Part(_))), "nothing is asked for");
    assert_eq!(coordinator.checkpoints.as_ref().map(Checkpoints::epoch), Some(5));
}
