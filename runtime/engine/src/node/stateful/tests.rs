//! Joins that get rows early give the results of joins that get them at the end of each epoch, in every order of arrival
//! and after restarts.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
use super::*;
use crate::clock::ManualClock;
use crate::failure::OnPanic;
use crate::frame::CLOSED;
use crate::letters::Letters;
use crate::store::EpochLogs;
use arrow_array::{
    ArrayRef, FixedSizeBinaryArray, Int8Array, Int64Array, StringArray, UInt32Array, UInt64Array,
};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;
use tidemill_operators::api::Instance;
use tidemill_operators::kind::{InputPort, OperatorContext};
use tidemill_operators::record::{Metadata, RecordId, record_schema, source_id};
use tidemill_operators::registry::Registry;
use tidemill_spec::span::{SourceFile, Span};
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::yaml;

/// Event time at an epoch's start, which is the watermark there.
const SPAN: i64 = 100;

/// A row in transit: port, epoch, event time, key.
#[derive(Debug, Clone, Copy)]
struct Row {
    port: usize,
    epoch: Epoch,
    time: i64,
    key: u8,
    number: u64,
}

fn batch(row: Row) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeBinaryArray::new(16, source_id(row.port as u32, row.number).to_vec().into(), None)),
        Arc::new(UInt32Array::from(vec![row.port as u32])),
        Arc::new(UInt64Array::from(vec![row.number])),
        Arc::new(Int64Array::from(vec![row.time])),
        Arc::new(Int64Array::from(vec![0])),
        Arc::new(UInt32Array::from(vec![0])),
        Arc::new(Int8Array::from(vec![1])),
        Arc::new(StringArray::from(vec![row.key.to_string()])),
    ];
    RecordBatch::try_new(record_schema(&stream()), columns).unwrap()
}

fn stream() -> StreamType {
    StreamType::new([Column::new("key", ColumnType::Text)])
}

/// A join of two streams; `early`: unchanged, else as one that gets its rows at the end of each epoch.
fn join(early: bool) -> Box<dyn Stateful> {
    let port = |from: &str| InputPort { from: from.into(), stream: stream(), span: Span::nowhere() };
    let id = "pair".into();
    let context = OperatorContext::new(&id, Path::new("."));
    let options = yaml::parse(&SourceFile::new("workflow.yaml", "key: key\nwithin: 150us")).unwrap();
    let registry = Registry::builtin();
    let bound = registry.operator("join").unwrap().bind(&context, &[port("a"), port("b")], &options).unwrap();
    let Ok(Instance::Stateful(join)) = (bound.make)() else { panic!("a join has state") };
    if early { join } else { Box::new(AtTheEnd(join)) }
}

struct AtTheEnd(Box<dyn Stateful>);

impl Stateful for AtTheEnd {
    fn apply(&mut self, port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        self.0.apply(port, batch, output)
    }
    fn advance(&mut self, watermark: EventTime, output: &mut Output) -> Result<(), OperatorError> {
        self.0.advance(watermark, output)
    }
    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        self.0.snapshot()
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), OperatorError> {
        self.0.restore(snapshot)
    }
}

/// One stage with a join, the shared state of its incarnations, and its output.
struct Stage {
    snapshots: Arc<SnapshotStore>,
    input: Track,
    early: bool,
    node: StatefulNode,
    metrics: Arc<crate::metrics::StageMetrics>,
    /// The receiver recognises repeated rows of its open epochs.
    seen: HashSet<(Epoch, RecordId)>,
    left: BTreeMap<Epoch, Vec<RecordBatch>>,
}

const CHECKPOINT: u64 = 2;

impl Stage {
    fn new(early: bool) -> Self {
        let (snapshots, input) = (Arc::default(), Track::own());
        let (node, metrics) = Self::incarnation(early, &snapshots, &input, 0);
        Self { snapshots, input, early, node, metrics, seen: HashSet::new(), left: BTreeMap::new() }
    }

    fn incarnation(
        early: bool,
        snapshots: &Arc<SnapshotStore>,
        input: &Track,
        done: Epoch,
    ) -> (StatefulNode, Arc<crate::metrics::StageMetrics>) {
        let slot = SlotContext {
            clock: Arc::new(ManualClock::new()),
            checkpoint_every: CHECKPOINT,
            snapshots: Arc::clone(snapshots),
            epochs: Arc::new(EpochLogs::default()),
            letters: Arc::new(Letters::new(None)),
            sampler: None,
            tracer: None,
            budget: usize::MAX,
            kept: Arc::new(std::sync::atomic::AtomicU64::new(CLOSED)),
            reads_stream: false,
            ahead: Cell::new(false),
            deadlines: RefCell::new(BTreeSet::new()),
            faults: None,
            end: RefCell::new(None),
        };
        let stage = StageContext {
            stage: "pair".into(),
            instance: "pair".into(),
            operator: "pair".into(),
            metrics: Arc::default(),
            suspects: Arc::default(),
            on_panic: OnPanic::Stop,
        };
        let metrics = Arc::clone(&stage.metrics);
        let mut operator = join(early);
        let is_known = restore(operator.as_mut(), snapshots, "pair", done).unwrap();
        assert!(is_known || done == 0);
        let (input, output) = (input.clone(), Track::own());
        let node = StatefulNode::new(
            Rc::new(slot),
            stage,
            (operator, None),
            (input, output),
            done,
            Backpressure::default(),
            0,
            true,
        );
        (node.unwrap(), metrics)
    }

    /// The thread dies; the next incarnation starts with the state before `done`.
    fn restart(&mut self, done: Epoch) {
        (self.node, self.metrics) = Self::incarnation(self.early, &self.snapshots, &self.input, done);
    }

    fn run(&mut self, frontier: Epoch, rows: &[Row]) {
        let mut emit = Emit::default();
        for row in rows {
            self.node.receive(row.port, row.epoch, batch(*row), &mut emit);
        }
        self.node.run(frontier, &mut emit);
        for (epoch, batch) in emit.take() {
            for row in 0..batch.num_rows() {
                if self.seen.insert((epoch, Metadata::of(&batch).id(row))) {
                    self.left.entry(epoch).or_default().push(batch.slice(row, 1));
                }
            }
        }
    }

    /// The output of a sink: epoch by epoch, in its order.
    fn written(&self) -> Vec<(Epoch, RecordBatch)> {
        let epochs = self.left.iter();
        epochs.map(|(epoch, rows)| (*epoch, order::by_origin(order::join(rows.clone()).unwrap()))).collect()
    }

    fn pairs(&self) -> usize {
        self.left.values().map(Vec::len).sum()
    }
}

fn row(port: usize, epoch: Epoch, time: i64, key: u8, number: u64) -> Row {
    Row { port, epoch, time, key, number }
}

#[test]
fn a_pair_leaves_while_its_epoch_is_open() {
    let (mut early, mut late) = (Stage::new(true), Stage::new(false));
    let steps: [(Epoch, &[Row], [usize; 2]); 6] = [
        (0, &[row(0, 0, 10, 1, 0)], [0, 0]),
        (0, &[row(1, 0, 20, 1, 0)], [1, 0]),
        // Lateness in the next epoch is unknown before an epoch is complete.
        (0, &[row(0, 1, 110, 2, 1), row(1, 1, 120, 2, 1)], [1, 0]),
        (1, &[], [2, 1]),
        (1, &[row(1, 1, 130, 1, 2)], [3, 1]),
        (CLOSED, &[], [3, 3]),
    ];
    for (frontier, rows, expected) in steps {
        early.run(frontier, rows);
        late.run(frontier, rows);
        assert_eq!([early.pairs(), late.pairs()], expected, "at {frontier}");
    }
    assert_eq!(early.written(), late.written());
}

#[test]
fn no_snapshot_holds_a_part_of_an_epoch() {
    let mut stage = Stage::new(true);
    stage.run(0, &[row(0, 0, 10, 1, 0)]);
    stage.run(2, &[]);
    let before = stage.node.restorable().get();
    assert_eq!(before, 2);
    stage.run(2, &[row(0, 2, 210, 7, 1), row(1, 2, 220, 7, 0)]);
    assert_eq!(stage.pairs(), 1);
    stage.restart(before);
    // Only one of the two is repeated: if the state had kept the other, they would meet twice.
    stage.seen.clear();
    stage.left.clear();
    stage.run(2, &[row(1, 2, 220, 7, 0)]);
    assert_eq!(stage.pairs(), 0);
}

/// Rows in arrival order, early or late within a few epochs.
fn arrivals() -> impl Strategy<Value = Vec<Row>> {
    let arrival = (0usize..2, 0u64..8, -60..2 * SPAN, 0u8..4, 0u64..250);
    prop::collection::vec(arrival, 0..70).prop_map(|rows| {
        let mut rows: Vec<(u64, Row)> = (0..)
            .zip(rows)
            .map(|(number, (port, epoch, time, key, delay))| {
                (epoch * 100 + delay, row(port, epoch, epoch as i64 * SPAN + time, key, number))
            })
            .collect();
        rows.sort_by_key(|(arrival, _)| *arrival);
        rows.into_iter().map(|(_, row)| row).collect()
    })
}

fn frontier(rest: &[Row]) -> Epoch {
    rest.iter().map(|row| row.epoch).min().unwrap_or(CLOSED)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn results_are_those_of_whole_epochs_also_after_kills(
        rows in arrivals(), at_once in 1usize..5, kills in prop::collection::vec((0usize..70, 0u64..4), 0..4),
    ) {
        let (mut early, mut late) = (Stage::new(true), Stage::new(false));
        for stage in [&early, &late] {
            // Some rows are earlier than the watermark of their epoch: they are late.
            for epoch in 1..10 {
                stage.input.record(WatermarkStep { epoch, watermark: epoch as i64 * SPAN - 30 });
            }
            stage.input.record(WatermarkStep { epoch: 10, watermark: EventTime::MAX });
        }
        let mut drops = BTreeMap::new();
        let mut at = 0;
        while at < rows.len() {
            let next = (at + at_once).min(rows.len());
            early.run(frontier(&rows[at..]), &rows[at..next]);
            late.run(frontier(&rows[at..]), &rows[at..next]);
            for (_, back) in kills.iter().filter(|(place, _)| (at..next).contains(place)) {
                let safe = early.node.restorable().get().min(frontier(&rows[at..]));
                let done = (safe / CHECKPOINT).saturating_sub(*back) * CHECKPOINT;
                early.restart(done);
                // Senders repeat everything not durable, in another order.
                let again: Vec<Row> = rows[..next].iter().rev().filter(|row| row.epoch >= done).copied().collect();
                early.run(done, &again);
            }
            at = next;
        }
        early.run(CLOSED, &[]);
        late.run(CLOSED, &[]);
        prop_assert_eq!(early.written(), late.written());
        if kills.is_empty() {
            for stage in [&early, &late] {
                drops.insert(stage.early, stage.metrics.drops.counts());
            }
            prop_assert_eq!(&drops[&true], &drops[&false]);
        }
    }
}
