#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
use super::super::inference::tests::{ByHand, node_in, rows, slot_with};
use super::*;
use crate::clock::ManualClock;
use crate::context::Account;
use crate::freshness::FreshnessQueue;
use proptest::prelude::*;
use std::collections::BTreeSet;
use tidemill_operators::record::Metadata;
use tidemill_spec::batching::Batching;
use tidemill_spec::plan::Freshness;

const SECOND: Nanoseconds = 1_000_000_000;
/// Rows per epoch.
const ROWS: u64 = 4;
/// Answers of the other side have numbers from here on.
const THERE: u64 = 1 << 40;
const CHANNEL: usize = 5;

/// A stage at the edge, its stand-in, and the other side, connected as in a run, but every event is a step of the test.
struct World {
    clock: Arc<ManualClock>,
    shared: Arc<StandIn>,
    elsewhere: Rc<RefCell<EpochRanges>>,
    executor: Arc<ByHand>,
    node: StandInNode,
    /// Epochs emitted by the source.
    given: Epoch,
    is_cut: bool,
    /// The sending end: pending epochs, the next one, and its knowledge of the stand-in's epochs.
    unsent: BTreeMap<Epoch, (u64, u64)>,
    announced: Epoch,
    known: EpochRanges,
    seen: u64,
    /// The other side: received epochs, their end, and the reported ones.
    got: BTreeMap<Epoch, (u64, u64)>,
    far: Epoch,
    told: EpochRanges,
    /// The first epoch with missing answers.
    back: Epoch,
    /// Emitted answers, by epoch.
    left: BTreeMap<Epoch, Vec<u64>>,
    hold: Epoch,
    /// The restart position of a process that dies, and the events so far.
    checkpoint: Epoch,
    taken_over: u64,
    deaths: u64,
    /// Complete epochs that downstream stages had when the slot restarted within its process.
    passed: BTreeMap<Epoch, Vec<u64>>,
}

fn new_node(
    clock: &Arc<ManualClock>,
    shared: &Arc<StandIn>,
    elsewhere: &Rc<RefCell<EpochRanges>>,
    start: Epoch,
) -> (Arc<ByHand>, StandInNode) {
    let (executor, account) = (Arc::new(ByHand::default()), Account::default());
    let slot = Rc::new(slot_with(clock));
    let queue = FreshnessQueue::new(Freshness::Block, usize::MAX);
    let model = node_in(Rc::clone(&slot), &executor, &account, Batching::new(3, 0), queue);
    let node = StandInNode::new(slot, model, Arc::clone(shared), Rc::clone(elsewhere), start, 0);
    (executor, node)
}

fn shared() -> Arc<StandIn> {
    StandIn::new(2 * SECOND, "see".into(), "tiny".into(), Arc::default())
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new());
        let (shared, elsewhere) = (shared(), Rc::default());
        let (executor, node) = new_node(&clock, &shared, &elsewhere, 0);
        Self {
            clock,
            shared,
            elsewhere,
            executor,
            node,
            given: 0,
            is_cut: false,
            unsent: BTreeMap::new(),
            announced: 0,
            known: EpochRanges::default(),
            seen: 0,
            got: BTreeMap::new(),
            far: 0,
            told: EpochRanges::default(),
            back: 0,
            left: BTreeMap::new(),
            hold: 0,
            checkpoint: 0,
            taken_over: 0,
            deaths: 0,
            passed: BTreeMap::new(),
        }
    }

    fn run(&mut self) {
        let mut emit = Emit::default();
        let was = self.node.answering.is_some();
        self.node.run(0, &mut emit);
        self.taken_over += u64::from(!was && self.node.answering.is_some());
        for (epoch, batch) in emit.take() {
            assert!(epoch >= self.hold, "epoch {epoch} was complete, {} is the next", self.hold);
            self.left.entry(epoch).or_default().extend(Metadata::of(&batch).sequences.values());
        }
        let hold = self.node.hold(0);
        assert!(hold >= self.hold, "{hold} after {}", self.hold);
        self.hold = hold;
    }

    fn record(&mut self, port: usize, epoch: Epoch, (from, to): (u64, u64)) {
        let mut emit = Emit::default();
        self.node.receive(port, epoch, rows(from, to), &mut emit);
        assert!(emit.take().is_empty());
    }

    /// The source emits an epoch; some have no records.
    fn give(&mut self) {
        let epoch = self.given;
        let of = (epoch * ROWS, (epoch + 1) * ROWS);
        if epoch % 7 != 3 {
            self.record(RECORDS, epoch, of);
            if !self.known.contains(epoch) {
                self.unsent.insert(epoch, of);
            }
        }
        self.given += 1;
        self.node.advanced(RECORDS, self.given);
        self.run();
    }

    /// The sending end checks the stand-in's epochs, as it does before sending.
    fn look(&mut self) {
        if let Some(news) = self.shared.news(&mut self.seen) {
            self.unsent.retain(|epoch, _| !news.contains(*epoch));
            self.known = news;
        }
    }

    /// The next epoch, or half of its records, reaches the other side.
    fn send(&mut self, is_half: bool) {
        if self.is_cut {
            return;
        }
        self.look();
        let Some((epoch, (from, to))) = self.unsent.pop_first() else { return self.announce(self.given) };
        self.announce(epoch);
        let half = from + (to - from) / 2;
        let sent = if is_half && half > from { half } else { to };
        let got = self.got.entry(epoch).or_insert((from, from));
        got.1 = got.1.max(sent);
        if sent < to {
            self.unsent.insert(epoch, (sent, to));
        }
    }

    fn announce(&mut self, epoch: Epoch) {
        if epoch <= self.announced {
            return;
        }
        for (from, until) in self.known.within(self.announced, epoch) {
            self.told.insert(from, until);
        }
        self.announced = epoch;
        self.far = self.far.max(epoch);
    }

    /// The answers of all complete epochs return from the other side, or the first rows of an incomplete one.
    fn answer(&mut self, is_all: bool) {
        if self.is_cut {
            return;
        }
        let ready: Vec<_> = self.got.range(self.back..self.far).map(|(epoch, of)| (*epoch, *of)).collect();
        for (epoch, (from, to)) in ready {
            if !is_all {
                self.record(ANSWERS, epoch, (THERE + from, THERE + from + 1));
                self.got.insert(epoch, (from + 1, to));
                if from + 1 >= to {
                    self.got.remove(&epoch);
                }
                return self.run();
            }
            if to > from {
                self.record(ANSWERS, epoch, (THERE + from, THERE + to));
            }
            self.got.remove(&epoch);
        }
        for (from, until) in self.told.within(self.back, self.far) {
            self.elsewhere.borrow_mut().insert(from, until);
        }
        self.back = self.far;
        self.node.advanced(ANSWERS, self.back);
        self.run();
    }

    fn cut(&mut self, is_cut: bool) {
        self.is_cut = is_cut;
        let now = self.node.slot.now();
        self.shared.connected(CHANNEL, is_cut.then_some(now));
        self.run();
    }

    fn compute(&mut self) {
        while let Some((id, ..)) = self.executor.jobs().first().copied() {
            self.executor.end(id);
            self.run();
        }
    }

    /// The process at the edge dies and restarts from the last checkpoint: its later output is undone, the other side keeps
    /// its data, and answers again.
    fn die(&mut self) {
        self.deaths += 1;
        self.shared = shared();
        let start = self.checkpoint;
        self.passed.retain(|epoch, _| *epoch < start);
        self.go_on_from(start);
    }

    /// The slot at the edge restarts within its process; downstream stages continue with their data.
    fn begin_again(&mut self) {
        self.deaths += 1;
        for (epoch, rows) in self.left.range(..self.hold) {
            self.passed.insert(*epoch, rows.clone());
        }
        self.shared.connected(CHANNEL, None);
        self.go_on_from(self.checkpoint);
    }

    fn go_on_from(&mut self, start: Epoch) {
        self.elsewhere = Rc::default();
        let (executor, node) = new_node(&self.clock, &self.shared, &self.elsewhere, start);
        (self.executor, self.node) = (executor, node);
        self.left.retain(|epoch, _| *epoch < start);
        (self.hold, self.given, self.seen, self.known) = (start, start, 0, EpochRanges::default());
        (self.back, self.announced) = (start, start);
        // The other side kept its answers since the checkpoint; here it computes them again. Partial ones come as a whole.
        self.unsent.clear();
        self.got.clear();
        for epoch in (start..self.far).filter(|epoch| epoch % 7 != 3 && !self.told.contains(*epoch)) {
            self.got.insert(epoch, (epoch * ROWS, (epoch + 1) * ROWS));
        }
        self.cut(self.is_cut);
    }

    /// A restarted source repeats records that the other side has: they are not sent.
    fn forget_what_is_there(&mut self) {
        let far = self.far;
        self.unsent.retain(|epoch, _| *epoch >= far);
        self.announced = self.announced.max(far.min(self.given));
    }

    fn finish(&mut self, epochs: Epoch) {
        self.cut(false);
        while self.given < epochs {
            self.give();
            self.forget_what_is_there();
        }
        for _ in 0..3 * epochs {
            self.send(false);
            self.answer(true);
            self.compute();
        }
        assert_eq!(self.hold, epochs, "all is complete");
    }

    /// Each record once, and each epoch as a whole from one side.
    fn check(&self, epochs: Epoch) {
        let mut sides = BTreeSet::new();
        for epoch in 0..epochs {
            let sorted = |mut rows: Vec<u64>| {
                rows.sort_unstable();
                rows
            };
            let found = sorted(self.left.get(&epoch).cloned().unwrap_or_default());
            if let Some(passed) = self.passed.get(&epoch) {
                assert_eq!(found, sorted(passed.clone()), "epoch {epoch} was answered otherwise before");
            }
            let is_there = found.first().is_some_and(|first| *first >= THERE);
            sides.insert(is_there);
            let offset = if is_there { THERE } else { 0 };
            let of = if epoch % 7 == 3 { 0..0 } else { epoch * ROWS..(epoch + 1) * ROWS };
            let expected: Vec<u64> = of.map(|row| row + offset).collect();
            assert_eq!(found, expected, "epoch {epoch}");
        }
    }
}

#[test]
fn what_was_under_way_when_the_link_broke_is_answered_here() {
    let mut world = World::new();
    for _ in 0..6 {
        world.give();
        world.send(false);
    }
    world.answer(true);
    assert_eq!(world.hold, 5, "the last one is not known to be complete");
    world.cut(true);
    world.give();
    assert_eq!((world.hold, world.executor.jobs().len()), (5, 0), "it may be back at once");
    world.clock.advance(2 * SECOND);
    world.run();
    assert!(!world.executor.jobs().is_empty() && world.taken_over == 1);
    world.compute();
    assert_eq!(world.hold, 7, "the edge goes on");
    world.give();
    world.compute();
    assert_eq!(world.hold, 8);
    world.cut(false);
    world.give();
    assert_eq!((world.hold, world.executor.jobs().len()), (8, 0), "the other side is asked again");
    world.look();
    assert_eq!(world.unsent.keys().copied().collect::<Vec<_>>(), [8], "and for nothing else");
    world.send(false);
    world.send(false);
    world.answer(true);
    assert_eq!(world.hold, 9);
    let here: Vec<Epoch> =
        world.left.iter().filter(|(_, rows)| rows[0] < THERE).map(|(epoch, _)| *epoch).collect();
    assert_eq!(here, [5, 6, 7]);
    assert!(world.told.contains(6) && !world.told.contains(8));
    world.check(9);
}

#[test]
fn a_link_that_is_back_in_time_changes_nothing() {
    let mut world = World::new();
    for _ in 0..3 {
        world.give();
        world.cut(true);
        world.clock.advance(1900 * SECOND / 1000);
        world.run();
        world.cut(false);
    }
    world.finish(3);
    assert_eq!(world.taken_over, 0);
    assert!(world.left.values().flatten().all(|row| *row >= THERE));
    world.check(3);
}

/// The other side skips epochs that it was never asked for: a restarted process learns this from its reports, and answers.
#[test]
fn what_a_process_gave_away_before_it_died_is_answered_by_the_next() {
    let mut world = World::new();
    world.cut(true);
    world.clock.advance(3 * SECOND);
    for _ in 0..3 {
        world.give();
    }
    world.compute();
    world.cut(false);
    world.send(false);
    assert!(world.far == 3 && world.told.contains(0) && world.told.contains(2));
    world.die();
    for _ in 0..3 {
        world.give();
        world.forget_what_is_there();
    }
    world.answer(true);
    assert_eq!(world.hold, 0, "not lost, but not answered yet");
    world.compute();
    assert_eq!(world.hold, 3);
    world.check(3);
}

/// A slot that restarts while the link is cut repeats its records: downstream stages have the answers of the other side,
/// and must not get this one's, too.
#[test]
fn what_has_left_is_not_answered_otherwise_by_a_slot_that_begins_again() {
    let mut world = World::new();
    for _ in 0..5 {
        world.give();
        world.send(false);
    }
    world.send(false);
    world.answer(true);
    world.give();
    world.cut(true);
    world.clock.advance(2 * SECOND);
    world.run();
    world.compute();
    assert_eq!((world.hold, world.taken_over), (6, 1));
    world.begin_again();
    // The fault: the connection is cut, and nothing is repeated over it.
    assert!(world.passed.len() == 5 && world.is_cut, "{:?}", world.passed);
    world.run();
    assert_eq!(world.hold, 5, "what the other side had answered is there at once");
    world.clock.advance(2 * SECOND);
    world.run();
    for _ in 0..8 {
        world.give();
        world.compute();
    }
    assert_eq!((world.hold, world.taken_over), (8, 2), "the edge goes on");
    world.finish(10);
    let here: Vec<Epoch> =
        world.left.iter().filter(|(_, rows)| rows[0] < THERE).map(|(epoch, _)| *epoch).collect();
    assert_eq!(here, [5, 6, 7]);
    world.check(10);
}

/// Also if epochs of both sides had left, and not all is repeated when the connection returns.
#[test]
fn a_slot_that_begins_again_takes_no_answer_twice() {
    let mut world = World::new();
    world.cut(true);
    world.clock.advance(2 * SECOND);
    world.give();
    world.give();
    world.compute();
    world.cut(false);
    for _ in 0..3 {
        world.give();
        world.send(false);
    }
    world.send(false);
    world.answer(true);
    assert_eq!(world.hold, 5);
    world.begin_again();
    // The other side answers again before the records answered here are repeated.
    world.answer(true);
    assert_eq!(world.hold, 0);
    world.finish(6);
    world.check(6);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// For any cut of the link, death of the edge's process, or restart of its slot.
    #[test]
    fn each_record_is_answered_once(steps in prop::collection::vec(0u8..22, 0..300)) {
        let mut world = World::new();
        for step in steps {
            match step {
                0..=5 => { world.give(); world.forget_what_is_there(); }
                6..=8 => world.send(false),
                9 => world.send(true),
                10 | 11 => world.answer(true),
                12 => world.answer(false),
                13 => world.cut(true),
                14 => world.cut(false),
                15 | 16 => { world.clock.advance(900 * SECOND / 1000); world.run(); }
                17 => world.compute(),
                18 => { if let Some((id, ..)) = world.executor.jobs().last().copied() { world.executor.end(id); } world.run(); }
                _ if world.hold > world.checkpoint + 3 => {
                    // The other side has progressed as far.
                    world.checkpoint = world.checkpoint.max((world.hold - 2).min(world.back));
                    world.shared.prune(world.checkpoint);
                }
                19 => world.die(),
                _ => world.begin_again(),
            }
        }
        let epochs = world.given.max(world.far) + 5;
        world.finish(epochs);
        world.check(epochs);
    }
}
