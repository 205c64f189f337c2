//! Sources without a rate that meet in a join are read by event time: for any densities, the join holds few rows, and
//! neither speed nor interruption changes its result.
use crate::parts::*;
use arrow_array::RecordBatch;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tidemill_engine::clock::ManualClock;
use tidemill_engine::{Run, RunOptions};
use tidemill_operators::api::*;
use tidemill_operators::record::Metadata;
use tidemill_spec::plan::Freshness;

/// `n` rows `step` microseconds apart from `start` on; every seventh is `back` late.
fn dense(n: usize, start: i64, step: i64, back: i64) -> Vec<Row> {
    (0..n as i64)
        .map(|i| {
            let time = start + i * step - if i % 7 == 6 { back } else { 0 };
            Row { key: format!("k{:03}", i % 40), value: i, time }
        })
        .collect()
}

/// Keeps event times until the watermark exceeds them by `within`, and the largest number kept.
struct Keeper {
    within: i64,
    kept: Vec<i64>,
    most: Arc<AtomicUsize>,
}

impl Stateful for Keeper {
    fn apply(&mut self, _port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        self.kept.extend(Metadata::of(batch).times.values());
        self.most.fetch_max(self.kept.len(), Ordering::Relaxed);
        output.push(batch.clone());
        Ok(())
    }

    fn advance(&mut self, watermark: i64, _output: &mut Output) -> Result<(), OperatorError> {
        self.kept.retain(|time| time.saturating_add(self.within) >= watermark);
        Ok(())
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        serde_json::to_vec(&self.kept).map_err(|error| OperatorError::new(error.to_string()))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), OperatorError> {
        self.kept =
            serde_json::from_slice(snapshot).map_err(|error| OperatorError::new(error.to_string()))?;
        Ok(())
    }
}

fn keeper(within: i64) -> (BoundOperator, Arc<AtomicUsize>) {
    let most = Arc::new(AtomicUsize::new(0));
    let shared = Arc::clone(&most);
    let bound = operator("keeper", Computation::Stateful, move || {
        Instance::Stateful(Box::new(Keeper { within, kept: vec![], most: Arc::clone(&shared) }))
    });
    (BoundOperator { spread: Spread::One, ..bound }, most)
}

/// Most rows that a join of these sources holds, its output rows, and epochs of the first source.
fn most_held(sources: Vec<BoundSource>, within: i64, one_slot: bool) -> (usize, usize, usize) {
    let mut b = Builder::new(&[1.0]);
    let (keeper, most) = keeper(within);
    let (out, collected) = sink("out");
    let ids: Vec<String> = sources.iter().map(|source| source.id.clone()).collect();
    for source in sources {
        let slot = if one_slot { "all".to_owned() } else { source.id.clone() };
        b.source(source, &slot);
    }
    b.operator("keeper", keeper, "all", &[]);
    for (port, id) in ids.iter().enumerate() {
        b.edge(id, "keeper", port as u32);
    }
    b.sink(out, "all").edge("keeper", "out", 0);
    let run = Run::start(b.program, RunOptions { keep_epoch_log: true, ..RunOptions::default() });
    let run = run.expect("starts");
    wait(&run);
    let rows = collected.lock().expect("not poisoned").len();
    (most.load(Ordering::Relaxed), rows, run.epoch_log()[&ids[0]].cuts.len())
}

/// One epoch of each source and the rows within the bound, as far as they exceed an epoch.
const HELD: usize = 2 * 1024 + 400;

#[test]
fn a_sparse_source_is_not_read_ahead_of_a_dense_one() {
    for one_slot in [true, false] {
        for (step, sparse) in [(4_000, 10_000), (100_000, 400), (20_000_000, 3)] {
            let sources = vec![
                rows_source("dense", dense(40_000, 0, 1000, 0), None, Some(0), 256),
                rows_source("sparse", dense(sparse, 0, step, 0), None, Some(0), 64),
            ];
            let (held, rows, epochs) = most_held(sources, 100_000, one_slot);
            assert_eq!((rows, epochs), (40_000 + sparse, 40));
            assert!(held <= HELD, "{held} rows held with a row every {step} us, one slot: {one_slot}");
        }
    }
}

#[test]
fn sources_of_different_times_are_read_one_after_the_other() {
    let sources = vec![
        rows_source("late", dense(9000, 1_000_000_000, 1000, 0), None, Some(0), 100),
        rows_source("early", dense(9000, 0, 1000, 3000), None, Some(3000), 100),
        rows_source("never", vec![], None, Some(0), 1),
        rows_source("once", dense(1, 5_000_000, 1, 0), None, Some(0), 1),
    ];
    let (held, rows, _) = most_held(sources, 100_000, false);
    assert_eq!(rows, 18_001);
    assert!(held <= HELD, "{held} rows held");
}

/// Unreadable records have no event time.
#[test]
fn sources_with_dead_letters_are_aligned_too() {
    let mut bad = rows_source("bad", vec![], None, Some(0), 1);
    bad.make = Arc::new(|| Ok(Box::new(Holes { next: 0 })));
    let sources = vec![rows_source("plain", dense(30_000, 0, 1000, 0), None, Some(0), 256), bad];
    let (held, rows, epochs) = most_held(sources, 100_000, false);
    assert_eq!((rows, epochs), (30_000 + 4_000, 30));
    assert!(held <= HELD, "{held} rows held");
}

/// 8000 records 4 ms apart, every second of them unreadable.
struct Holes {
    next: usize,
}

impl Source for Holes {
    fn read(&mut self, _rows: usize, _bytes: usize) -> Result<SourceRead, OperatorError> {
        if self.next == 8000 {
            return Ok(SourceRead::End);
        }
        let numbers: Vec<usize> = (self.next..self.next + 50).collect();
        let (bad, good): (Vec<usize>, Vec<usize>) = numbers.into_iter().partition(|n| n % 2 == 0);
        let keys: arrow_array::StringArray = good.iter().map(|_| Some("k")).collect();
        let values: arrow_array::Int64Array = good.iter().map(|n| *n as i64).collect();
        let schema = tidemill_operators::record::payload_schema(&stream());
        let payload =
            RecordBatch::try_new(schema, vec![Arc::new(keys), Arc::new(values)]).expect("two columns");
        let letter = |n: usize| DeadLetter {
            id: None,
            time: None,
            reason: "bad".into(),
            detail: n.to_string(),
            values: Default::default(),
        };
        let read = SourceRead::Rows {
            payload,
            times: Some(good.iter().map(|n| *n as i64 * 4000).collect()),
            dead_letters: bad.into_iter().map(letter).collect(),
            offsets: Some(good.iter().map(|n| (*n - self.next) as u64).collect()),
        };
        self.next += 50;
        Ok(read)
    }

    fn position(&self) -> SourcePosition {
        SourcePosition(self.next.to_string())
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        self.next = position.0.parse().map_err(|_| OperatorError::new("not a position"))?;
        Ok(())
    }
}

/// Rows of one source: number, start, distance, lateness, and rows per read.
type Shape = (usize, i64, i64, i64, usize);

fn shapes() -> impl Strategy<Value = [Shape; 2]> {
    let shape =
        (0usize..4000, 0i64..400_000, prop_oneof![1i64..2000, 5_000i64..400_000], 0i64..20_000, 1usize..300);
    [shape.clone(), shape].prop_map(|shapes| {
        // Widely spaced sources have few rows, so that the reference stays fast.
        shapes.map(|(n, start, step, back, chunk)| {
            (if step >= 5_000 { n / 20 } else { n }, start, step, back, chunk)
        })
    })
}

/// A diamond over two stages of a join, with a slow path, and one with little room that may lose nothing.
fn diamond(
    shapes: [Shape; 2],
    chunks: [usize; 2],
    slots: &[&str; 4],
    is_apart: bool,
) -> (Builder, Collected) {
    let mut b = Builder::new(&[0.5, 0.5]);
    b.is_apart = is_apart;
    b.byte_budget = 1 << 14;
    let (out, collected) = sink("out");
    for (at, id) in ["left", "right"].into_iter().enumerate() {
        let (n, start, step, back, _) = shapes[at];
        b.source(rows_source(id, dense(n, start, step, back), None, Some(back), chunks[at]), slots[at]);
    }
    b.operator("m", model("m", |_| std::thread::yield_now()), slots[1], &[]).edge("left", "m", 0);
    b.operator("j1", join("j", 3000), slots[2], &[0]).operator("j2", join("j", 3000), slots[3], &[1]);
    for (from, to, port) in [("m", "j1", 0), ("m", "j2", 0), ("right", "j1", 1), ("right", "j2", 1)] {
        b.edge(from, to, port);
    }
    b.operator("self", join("self", 0), slots[3], &[]).edge("left", "self", 0).edge("left", "self", 1);
    b.sink(out, slots[0]);
    for from in ["j1", "j2", "self"] {
        b.edge(from, "out", 0);
    }
    (b, collected)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 40, ..ProptestConfig::default() })]

    #[test]
    fn the_result_is_that_of_an_oracle_in_the_same_order_for_any_interleaving(
        shapes in shapes(),
        other_chunks in [1usize..300, 1usize..300],
        is_apart in any::<bool>(),
    ) {
        let chunks = shapes.map(|shape| shape.4);
        let (b, apart) = diamond(shapes, chunks, &["a", "b", "c", "d"], is_apart);
        wait(&Run::start(b.program, RunOptions::default()).expect("starts"));
        let (b, together) = diamond(shapes, other_chunks, &["one"; 4], is_apart);
        wait(&Run::start(b.program, RunOptions::default()).expect("starts"));
        let rows = shapes.map(|(n, start, step, back, _)| dense(n, start, step, back));
        let mut expected = Vec::new();
        for (right, within) in [(&rows[1], 3000), (&rows[0], 0)] {
            for l in &rows[0] {
                let partners = right.iter().filter(|r| r.key == l.key && (l.time - r.time).abs() <= within);
                expected.extend(partners.map(|r| format!("{}={}", l.key, l.value * 1_000_000 + r.value)));
            }
        }
        expected.sort();
        prop_assert_eq!(sorted(&apart), expected);
        prop_assert!(
            *apart.lock().expect("not poisoned") == *together.lock().expect("not poisoned"),
            "another order of rows"
        );
    }
}

#[test]
fn a_replay_of_common_epochs_is_equal() {
    let shapes = [(9000, 0, 1000, 4000, 100), (900, 50_000, 10_000, 0, 100)];
    let logged = || RunOptions { keep_epoch_log: true, ..RunOptions::default() };
    let (b, first) = diamond(shapes, [100, 100], &["a", "b", "c", "d"], false);
    let run = Run::start(b.program, logged()).expect("starts");
    wait(&run);
    let log = run.epoch_log();
    let begun = |id: &str| log[id].cuts.keys().copied().collect::<Vec<_>>();
    assert_eq!(begun("left"), (0..9).collect::<Vec<_>>());
    assert_eq!(begun("right"), begun("left"));
    let (b, again) = diamond(shapes, [70, 30], &["a", "b", "c", "d"], false);
    let run = Run::start(b.program, RunOptions { replay: Some(log.clone()), ..logged() }).expect("starts");
    wait(&run);
    assert!(*first.lock().expect("not poisoned") == *again.lock().expect("not poisoned"));
    for id in ["left", "right"] {
        let cuts = |log: &tidemill_engine::EpochLog| {
            let of = |(epoch, cut): (&u64, &tidemill_engine::Cut)| (*epoch, cut.sequence, cut.watermark);
            (log.cuts.iter().map(of).collect::<Vec<_>>(), log.end)
        };
        assert_eq!(cuts(&run.epoch_log()[id]), cuts(&log[id]));
    }
}

/// Two stages of one source read it separately, here one of them far behind a slow model.
#[test]
fn two_readers_of_one_source_share_its_epochs() {
    let build = |shares: &[f64]| {
        let mut b = Builder::new(shares);
        b.byte_budget = 1 << 12;
        let (out, collected) = sink("out");
        b.source(rows_source("left", dense(6000, 0, 1000, 0), None, Some(0), 256), "a");
        b.source(rows_source("right", dense(600, 0, 10_000, 0), None, Some(0), 256), "b");
        b.operator("m", model("m", |_| std::thread::yield_now()), "c", &[]);
        b.operator("j", join("j", 2000), "d", &[]).edge("m", "j", 0).edge("right", "j", 1);
        b.sink(out, "d").edge("j", "out", 0).edge("left", "m", 0);
        if shares.len() > 1 {
            b.second_stage("left", "left2", "e", 1);
            b.edge("left2", "m", 0);
        }
        wait(&Run::start(b.program, RunOptions::default()).expect("starts"));
        let lines = collected.lock().expect("not poisoned").clone();
        assert!(!lines.is_empty());
        lines
    };
    assert!(build(&[1.0]) == build(&[0.3, 0.7]), "another result with two stages of a source");
}

/// Emits rows, waits for a signal, then emits the others.
struct Stalling {
    rows: Box<dyn Source>,
    reads: usize,
    go_on: Receiver<()>,
    stalls: Sender<()>,
}

impl Source for Stalling {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        self.reads += 1;
        if self.reads == 3 {
            let _ = self.stalls.send(());
            let _ = self.go_on.recv();
        }
        self.rows.read(rows, bytes)
    }

    fn position(&self) -> SourcePosition {
        self.rows.position()
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        self.rows.seek(position)
    }
}

/// A run whose right source stalls after twenty rows; a signal through the sender resumes it.
fn stalling() -> (Builder, Collected, Sender<()>, Receiver<()>) {
    let shapes = [(9000, 0, 1000, 0, 100), (900, 0, 10_000, 0, 10)];
    let (mut b, collected) = diamond(shapes, [100, 10], &["a", "b", "c", "d"], false);
    let ((word, go_on), (stalls, stalled)) = (bounded(1), bounded(1));
    let right = b.program.sources.get_mut("right").expect("added");
    let make = Arc::clone(&right.make);
    right.make = Arc::new(move || {
        let (go_on, stalls) = (go_on.clone(), stalls.clone());
        Ok(Box::new(Stalling { rows: make()?, reads: 0, go_on, stalls }))
    });
    (b, collected, word, stalled)
}

#[test]
fn a_source_that_stalls_holds_up_the_run_until_it_goes_on() {
    let (b, expected, word, _stalled) = stalling();
    word.send(()).expect("room for one");
    wait(&Run::start(b.program, RunOptions::default()).expect("starts"));
    let (b, found, word, stalled) = stalling();
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    stalled.recv().expect("it stalls");
    word.send(()).expect("room for one");
    wait(&run);
    let (found, expected) = (found.lock().expect("not poisoned"), expected.lock().expect("not poisoned"));
    assert!(*found == *expected && found.len() > 9000, "{} of {} rows", found.len(), expected.len());
}

#[test]
fn a_run_with_a_stalled_source_can_be_stopped() {
    let (b, found, _word, stalled) = stalling();
    let run = Run::start(b.program, RunOptions::default()).expect("starts");
    stalled.recv().expect("it stalls");
    run.stopper().stop();
    assert!(ended(&run, 30).complete);
    assert!(found.lock().expect("not poisoned").len() < 9000);
}

#[test]
fn a_duration_ends_a_run_with_a_stalled_source() {
    let clock = Arc::new(ManualClock::new());
    let (b, found, _word, stalled) = stalling();
    let duration = Some(std::time::Duration::from_secs(1));
    let options = RunOptions { clock: clock.clone(), duration, ..RunOptions::default() };
    let run = Run::start(b.program, options).expect("starts");
    stalled.recv().expect("it stalls");
    clock.advance(2_000_000_000);
    assert!(ended(&run, 30).complete);
    assert!(found.lock().expect("not poisoned").len() < 9000);
}

#[test]
fn policies_that_lose_records_do_not_stop_the_others() {
    for policy in [Freshness::Latest, Freshness::DropOldest] {
        let shapes = [(9000, 0, 1000, 0, 100), (900, 0, 10_000, 0, 100)];
        let (mut b, _) = diamond(shapes, [100, 100], &["a", "b", "c", "d"], true);
        b.program.plan.edges.iter_mut().for_each(|edge| edge.freshness = Some(policy));
        assert!(ended(&Run::start(b.program, RunOptions::default()).expect("starts"), 30).complete);
    }
}

#[test]
fn records_end_aligned_sources_at_the_same_place() {
    let build = || {
        let shapes = [(9000, 0, 1000, 0, 100), (9000, 0, 3000, 0, 100)];
        diamond(shapes, [100, 100], &["a", "b", "c", "d"], false)
    };
    let ends = [(), ()].map(|()| {
        let (b, collected) = build();
        let run = Run::start(b.program, RunOptions { records: Some(5050), ..RunOptions::default() });
        let run = run.expect("starts");
        wait(&run);
        let end = |id: &str| run.epoch_log()[id].end.expect("it ended");
        let lines = collected.lock().expect("not poisoned").clone();
        (end("left"), end("right"), lines)
    });
    assert_eq!([ends[0].0.sequence, ends[0].1.sequence], [5050, 5050]);
    assert!(ends[0] == ends[1]);
}

/// Kills each slot in turn while the slot of the sink waits, so that none has ended.
#[test]
fn slots_that_die_change_nothing() {
    let build = |at_gate: Box<dyn Fn() + Send + Sync>| {
        let shapes = [(45_000, 0, 1000, 2000, 100), (2250, 0, 20_000, 0, 10)];
        let (mut b, collected) = diamond(shapes, [100, 10], &["a", "b", "c", "d"], false);
        b.program.plan.edges.iter_mut().filter(|e| e.to == "out").for_each(|e| e.to = "gate".into());
        b.operator("gate", pass("gate", move |_| at_gate()), "e", &[]).edge("gate", "out", 0);
        let sink = b.program.plan.stages.iter_mut().find(|stage| stage.id == "out").expect("added");
        sink.slot_group = "e".into();
        (b.program, collected)
    };
    let (program, expected) = build(Box::new(|| {}));
    wait(&Run::start(program, RunOptions::default()).expect("starts"));
    let (gate, at_gate) = bounded::<Sender<()>>(1);
    let calls = AtomicUsize::new(0);
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let (program, found) = build(Box::new(move || {
        let (go_on, told) = bounded(1);
        // The receiver is gone once all kills are done, also while a sender waits.
        if calls.fetch_add(1, Ordering::Relaxed) % 7 == 3 && gate.send(go_on).is_ok() {
            let moment = Duration::from_millis(5);
            while !over.load(Ordering::Acquire) && told.recv_timeout(moment) == Err(RecvTimeoutError::Timeout)
            {
            }
        }
    }));
    let (clock, kills) = (Arc::new(ManualClock::new()), Kills::new());
    let options = RunOptions { clock: clock.clone(), faults: Some(kills.clone()), ..RunOptions::default() };
    let run = Run::start(program, options).expect("starts");
    for slot in ["w/a", "w/b", "w/c", "w/d"] {
        let go_on = at_gate.recv().expect("rows at the gate");
        kills.kill(slot, &clock);
        go_on.send(()).expect("the gate waits");
    }
    is_over.store(true, Ordering::Release);
    drop(at_gate);
    assert_eq!(kills.drive(&run, &clock).restarts, 4);
    let (found, expected) = (found.lock().expect("not poisoned"), expected.lock().expect("not poisoned"));
    assert!(*found == *expected && found.len() > 45_000, "{} rows, {} expected", found.len(), expected.len());
}
