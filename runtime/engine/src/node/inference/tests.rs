#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
use super::*;
use crate::clock::{Clock, ManualClock};
use crate::executor::Notifier;
use crate::letters::Letters;
use crate::store::{EpochLogs, SnapshotStore};
use arrow_array::{ArrayRef, FixedSizeBinaryArray, Int8Array, Int64Array, UInt32Array, UInt64Array};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;
use tidemill_operators::api::{DeviceTimes, Output};
use tidemill_operators::record::{record_schema, source_id};
use tidemill_spec::plan::Freshness;
use tidemill_spec::types::StreamType;

/// Copies of a model that returns its input; the test ends jobs in any order.
pub(in crate::node) struct ByHand {
    copies: usize,
    submitted: Mutex<Vec<Job>>,
    ended: Mutex<VecDeque<Completion>>,
}

impl Default for ByHand {
    fn default() -> Self {
        Self { copies: 2, submitted: Mutex::default(), ended: Mutex::default() }
    }
}

impl ByHand {
    pub(in crate::node) fn end(&self, id: u64) {
        self.end_after(id, 1_000_000);
    }

    fn end_after(&self, id: u64, call: Nanoseconds) {
        self.end_on(id, call, None);
    }

    fn end_on(&self, id: u64, call: Nanoseconds, device: Option<DeviceTimes>) {
        let mut submitted = self.submitted.lock().unwrap();
        let place = submitted.iter().position(|job| job.id == id).unwrap();
        let job = submitted.remove(place);
        let result = JobResult::Done(Output { batches: job.parts, device, ..Output::default() });
        self.ended.lock().unwrap().push_back(Completion {
            id,
            incarnation: job.incarnation,
            result,
            started: 0,
            finished: call,
        });
    }

    /// Rows and parts of the running jobs, by id.
    pub(in crate::node) fn jobs(&self) -> Vec<(u64, usize, usize)> {
        let rows = |job: &Job| job.parts.iter().map(RecordBatch::num_rows).sum();
        self.submitted.lock().unwrap().iter().map(|job| (job.id, rows(job), job.parts.len())).collect()
    }
}

impl ModelExecutor for ByHand {
    fn submit(&self, job: Job) {
        self.submitted.lock().unwrap().push(job);
    }
    fn completion(&self) -> Option<Completion> {
        self.ended.lock().unwrap().pop_front()
    }
    fn attach(&self, _notifier: Notifier, _incarnation: u32) {}
    fn device(&self) -> &str {
        "hand"
    }
    fn bytes_in_flight(&self) -> usize {
        0
    }
    fn copies(&self) -> usize {
        self.copies
    }
}

pub(in crate::node) fn rows(from: u64, to: u64) -> RecordBatch {
    let n = (to - from) as usize;
    let ids: Vec<u8> = (from..to).flat_map(|sequence| source_id(0, sequence)).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
        Arc::new(UInt32Array::from(vec![0; n])),
        Arc::new(UInt64Array::from_iter_values(from..to)),
        Arc::new(Int64Array::from(vec![0; n])),
        Arc::new(Int64Array::from(vec![0; n])),
        Arc::new(UInt32Array::from(vec![0; n])),
        Arc::new(Int8Array::from(vec![1; n])),
    ];
    RecordBatch::try_new(record_schema(&StreamType::new([])), columns).unwrap()
}

fn node(executor: &Arc<ByHand>, account: &Account) -> InferenceNode {
    let batching = Batching::new(4, 0);
    let queue = FreshnessQueue::new(Freshness::Block, usize::MAX);
    node_with(executor, account, batching, queue, &Arc::new(ManualClock::new()))
}

pub(in crate::node) fn node_with(
    executor: &Arc<ByHand>,
    account: &Account,
    batching: Batching,
    queue: FreshnessQueue,
    clock: &Arc<ManualClock>,
) -> InferenceNode {
    let slot = Rc::new(slot_with(clock));
    node_in(slot, executor, account, batching, queue)
}

/// The shared context of a slot's nodes.
pub(in crate::node) fn slot_with(clock: &Arc<ManualClock>) -> SlotContext {
    let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(clock);
    SlotContext {
        clock,
        checkpoint_every: 1,
        snapshots: Arc::new(SnapshotStore::default()),
        epochs: Arc::new(EpochLogs::default()),
        letters: Arc::new(Letters::new(None)),
        sampler: None,
        tracer: None,
        faults: None,
        budget: usize::MAX,
        kept: Arc::new(std::sync::atomic::AtomicU64::new(crate::frame::CLOSED)),
        reads_stream: false,
        ahead: Cell::new(false),
        deadlines: RefCell::new(BTreeSet::new()),
        end: RefCell::new(None),
    }
}

pub(in crate::node) fn node_in(
    slot: Rc<SlotContext>,
    executor: &Arc<ByHand>,
    account: &Account,
    batching: Batching,
    queue: FreshnessQueue,
) -> InferenceNode {
    let stage = StageContext {
        stage: "model".into(),
        instance: "model".into(),
        operator: "model".into(),
        metrics: Arc::default(),
        suspects: Arc::default(),
        on_panic: OnPanic::Stop,
    };
    let executor: Arc<dyn ModelExecutor> = Arc::<ByHand>::clone(executor);
    InferenceNode::new(slot, stage, executor, 0, batching, queue, account.clone(), 0)
}

/// Epochs and sequence numbers that left the node.
fn left(emit: &mut Emit) -> Vec<(Epoch, Vec<u64>)> {
    emit.take()
        .into_iter()
        .map(|(epoch, batch)| (epoch, Metadata::of(&batch).sequences.values().to_vec()))
        .collect()
}

#[test]
fn several_copies_keep_the_order_and_the_epochs() {
    let (executor, account) = (Arc::new(ByHand::default()), Account::default());
    let mut node = node(&executor, &account);
    let mut emit = Emit::default();
    for (epoch, from, to) in [(0, 0, 3), (1, 3, 7), (1, 7, 8), (2, 8, 12), (3, 12, 15)] {
        node.receive(0, epoch, rows(from, to), &mut emit);
    }
    node.run(4, &mut emit);
    // Batches in parts of one epoch each; two copies are busy, and two full batches wait.
    assert_eq!(executor.jobs(), [(0, 4, 2), (1, 4, 2), (2, 4, 1)]);
    executor.end(1);
    node.run(4, &mut emit);
    assert_eq!(left(&mut emit), [], "the first job goes on");
    assert_eq!(node.hold(4), 0);
    executor.end(2);
    executor.end(0);
    node.run(4, &mut emit);
    let expected: Vec<(Epoch, Vec<u64>)> =
        vec![(0, vec![0, 1, 2]), (1, vec![3]), (1, vec![4, 5, 6]), (1, vec![7]), (2, vec![8, 9, 10, 11])];
    assert_eq!(left(&mut emit), expected);
    assert_eq!(node.hold(4), 3, "the last batch is not full, but a copy was free");
    executor.end(3);
    node.run(4, &mut emit);
    assert_eq!(left(&mut emit), [(3, vec![12, 13, 14])]);
    assert_eq!((node.hold(4), account.bytes()), (4, 0));
}

#[test]
fn what_waits_is_told_until_it_has_left_or_the_node_ends() {
    let (executor, account) = (Arc::new(ByHand::default()), Account::default());
    let mut node = node(&executor, &account);
    let metrics = Arc::clone(&node.stage.metrics);
    let mut emit = Emit::default();
    node.receive(0, 0, rows(0, 30), &mut emit);
    node.run(1, &mut emit);
    assert_eq!(metrics.waiting.get(), 30, "in the queue and in flight");
    executor.end(0);
    node.run(1, &mut emit);
    assert_eq!(metrics.waiting.get(), 26);
    drop(node);
    assert_eq!(metrics.waiting.get(), 0, "whoever takes over counts anew");
}

#[test]
fn the_time_of_a_batch_on_a_device_is_split() {
    const MS: Nanoseconds = 1_000_000;
    let (executor, account) = (Arc::new(ByHand::default()), Account::default());
    let mut node = node(&executor, &account);
    let metrics = Arc::clone(&node.stage.metrics);
    let mut emit = Emit::default();
    node.receive(0, 0, rows(0, 12), &mut emit);
    node.run(1, &mut emit);
    let [network, queue, compute] = [3, 1, 8].map(Duration::from_millis);
    let there = DeviceTimes {
        network,
        queue,
        compute,
        round_trips: 2,
        sent: 900,
        received: 60,
        ..Default::default()
    };
    executor.end_on(0, 14 * MS, Some(there));
    // The session was lost, and this process has computed the batch.
    executor.end_on(1, 50 * MS, Some(DeviceTimes { lost: 1, ..DeviceTimes::default() }));
    executor.end_on(2, 6 * MS, None);
    node.run(1, &mut emit);
    let parts =
        [&metrics.device_client, &metrics.device_network, &metrics.device_queue, &metrics.device_compute];
    let parts = parts.map(|part| (part.summary().count, part.summary().max_ms));
    assert_eq!(parts, [(4, 2.0), (4, 3.0), (4, 1.0), (4, 8.0)]);
    let counts = [
        &metrics.device_batches,
        &metrics.device_round_trips,
        &metrics.device_sent,
        &metrics.device_received,
        &metrics.device_lost,
    ];
    assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [1, 2, 900, 60, 1]);
    assert_eq!((metrics.compute.summary().count, metrics.batches.load(Ordering::Relaxed)), (12, 3));
}

#[test]
fn a_source_that_can_wait_is_told_when_enough_waits() {
    let (executor, account) = (Arc::new(ByHand::default()), Account::default());
    let mut node = node(&executor, &account);
    let backpressure = crate::context::Backpressure::default();
    backpressure.accounts.borrow_mut().push(account);
    let mut emit = Emit::default();
    node.receive(0, 0, rows(0, 4), &mut emit);
    node.run(1, &mut emit);
    backpressure.can_wait.set(true);
    assert!(backpressure.may_take(usize::MAX));
    node.receive(0, 0, rows(4, 100), &mut emit);
    node.run(1, &mut emit);
    assert!(!backpressure.may_take(usize::MAX) && !backpressure.is_ready(usize::MAX));
    backpressure.can_wait.set(false);
    assert!(backpressure.may_take(usize::MAX), "records that come by the clock are taken");
    backpressure.can_wait.set(true);
    while let Some((id, ..)) = executor.jobs().first().copied() {
        executor.end(id);
        node.run(1, &mut emit);
    }
    assert!(backpressure.is_ready(usize::MAX));
    assert_eq!(
        left(&mut emit).into_iter().flat_map(|(_, rows)| rows).collect::<Vec<_>>(),
        (0..100).collect::<Vec<_>>()
    );
}

#[test]
fn a_record_that_comes_again_in_another_epoch_ends_its_batch() {
    let (executor, account) = (Arc::new(ByHand::default()), Account::default());
    let mut node = node(&executor, &account);
    let mut emit = Emit::default();
    node.receive(0, 0, rows(0, 2), &mut emit);
    node.receive(0, 1, rows(1, 2), &mut emit);
    node.run(2, &mut emit);
    assert_eq!(executor.jobs(), [(0, 2, 1), (1, 1, 1)]);
}

/// A model of 50 ms per call, with a budget of 20 ms, which gets a record every millisecond while it is free: the time of
/// its next batch, and the records in it.
fn first_batch_under(queue: FreshnessQueue) -> (Nanoseconds, Vec<u64>, u64) {
    const MS: Nanoseconds = 1_000_000;
    let (executor, account) = (Arc::new(ByHand::default()), Account::default());
    let clock = Arc::new(ManualClock::new());
    let batching = Batching::new(64, 20 * MS).under_load(MS as f64, 50.0 * MS as f64);
    let mut node = node_with(&executor, &account, batching, queue, &clock);
    for sequence in 0..200 {
        clock.advance(MS);
        node.receive(0, 0, rows(sequence, sequence + 1), &mut Emit::default());
        node.run(0, &mut Emit::default());
        if let Some(job) = executor.submitted.lock().unwrap().first() {
            let sequences = job.parts.iter().flat_map(|part| Metadata::of(part).sequences.values().to_vec());
            let drops = node.stage.metrics.drops.counts();
            return (clock.now() / MS, sequences.collect(), drops.get("freshness").copied().unwrap_or(0));
        }
    }
    panic!("the model was never given anything; {:?}", node.stage.metrics.drops.counts());
}

#[test]
fn the_budget_counts_from_the_first_arrival_whatever_replaces_it() {
    let bytes = batch_bytes(&rows(0, 1));
    let of = |policy, limit| first_batch_under(FreshnessQueue::new(policy, limit));
    // Due 20 ms after the first record, which came at 1 ms.
    assert_eq!(of(Freshness::Block, usize::MAX), (21, (0..21).collect(), 0));
    assert_eq!(of(Freshness::Latest, usize::MAX), (21, vec![20], 20));
    assert_eq!(of(Freshness::DropOldest, 3 * bytes), (21, vec![18, 19, 20], 18));
}

/// Times in microseconds; a start is a call, with its records.
#[derive(serde::Deserialize)]
struct BatchCase {
    name: String,
    max_batch: usize,
    budget: Nanoseconds,
    call: Nanoseconds,
    arrivals: Vec<(Nanoseconds, u64)>,
    starts: Vec<(Nanoseconds, usize)>,
}

/// Calls of one model that gets records: start time and number of records.
fn starts(case: &BatchCase) -> Vec<(Nanoseconds, usize)> {
    const US: Nanoseconds = 1000;
    let executor = Arc::new(ByHand { copies: 1, ..ByHand::default() });
    let clock = Arc::new(ManualClock::new());
    let queue = FreshnessQueue::new(Freshness::Block, usize::MAX);
    let batching = Batching::new(case.max_batch, case.budget * US);
    let mut node = node_with(&executor, &Account::default(), batching, queue, &clock);
    let (mut emit, mut starts, mut came) = (Emit::default(), Vec::new(), 0);
    let mut arrivals = case.arrivals.iter().peekable();
    let mut runs: Option<(u64, Nanoseconds)> = None;
    loop {
        let due = node.slot.deadlines.borrow().iter().map(|(due, _)| *due).find(|due| *due > clock.now());
        let next = arrivals.peek().map(|(at, _)| at * US);
        let Some(now) = [due, next, runs.map(|(_, end)| end)].into_iter().flatten().min() else { break };
        clock.advance(now - clock.now());
        if let Some((id, _)) = runs.take_if(|(_, end)| *end == now) {
            executor.end_after(id, case.call * US);
        }
        while let Some((_, records)) = arrivals.next_if(|(at, _)| at * US == now) {
            node.receive(0, 0, rows(came, came + records), &mut emit);
            came += records;
        }
        node.run(0, &mut emit);
        if let (None, Some((id, rows, _))) = (runs, executor.jobs().first()) {
            runs = Some((*id, now + case.call * US));
            starts.push((now / US, *rows));
        }
    }
    assert_eq!(left(&mut emit).iter().map(|(_, rows)| rows.len() as u64).sum::<u64>(), came);
    starts
}

/// The simulator's test of this name reads this file, too: both give the model equal batches at equal times.
#[test]
fn batches_start_alike_in_engine_and_simulator() {
    let text = include_str!("../../../../../tests/data/batches.json");
    let cases: Vec<BatchCase> = serde_json::from_str(text).unwrap();
    for case in cases {
        assert_eq!(starts(&case), case.starts, "{}", case.name);
    }
}
