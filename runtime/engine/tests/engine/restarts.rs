//! Restarts at awkward moments: neighbours at once, after the end, with late rows, through every kind of stage.
use crate::parts::*;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use std::sync::Arc;
use std::time::Duration;
use tidemill_engine::clock::{Clock, ManualClock};
use tidemill_engine::faults::{Faults, Point};
use tidemill_engine::{Program, Run, RunOptions};
use tidemill_operators::api::*;
use tidemill_operators::record::*;
use tidemill_spec::plan::Freshness;

/// Options of a run with manual time and slots killed by order.
fn by_hand() -> (Arc<ManualClock>, Arc<Kills>, RunOptions) {
    let (clock, kills) = (Arc::new(ManualClock::new()), Kills::new());
    let options = RunOptions { clock: clock.clone(), faults: Some(kills.clone()), ..RunOptions::default() };
    (clock, kills, options)
}

/// A model that waits at a gate before every batch.
fn held_model(id: &str, gate: &Arc<Gate>) -> BoundOperator {
    let gate = Arc::clone(gate);
    model(id, move |_| gate.pass())
}

fn window_lines(windows: i64, rows: i64) -> Vec<String> {
    let sum = |window: i64| (window * rows..(window + 1) * rows).sum::<i64>();
    (0..windows).map(|window| format!("w{window:06}={}", rows * 1_000_000_000 + sum(window))).collect()
}

/// The sender's next incarnation learns that its receiver has ended in the meantime.
#[test]
fn a_sender_restarted_while_its_receiver_ends() {
    let (clock, kills, options) = by_hand();
    let mut b = Builder::new(&[1.0]);
    let gate = Gate::closed();
    let held = Arc::clone(&gate);
    let (out, collected) = sink_with("out", true, move |epoch| {
        if epoch == u64::MAX {
            held.pass();
        }
    });
    b.source(rows_source("src", numbered(100), None, Some(0), 40), "a");
    b.sink(out, "b").edge("src", "out", 0);
    let run = Run::start(b.program, options).expect("starts");
    until(&clock, || gate.holds());
    kills.kill("w/a", &clock);
    gate.open();
    assert_eq!(kills.drive(&run, &clock).restarts, 1);
    assert_eq!(lines(&collected).len(), 100);
}

/// The end of an input is a checkpoint too: later epochs become durable after it.
#[test]
fn a_stateful_slot_dies_after_its_input_ended() {
    let (clock, kills, options) = by_hand();
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    b.source(rows_source("short", numbered(100), Some(1000.0), Some(0), 40), "a");
    b.source(rows_source("long", numbered(1500), Some(1000.0), Some(0), 40), "a");
    b.operator("w", window("w", 10_000), "b", &[]).edge("short", "w", 0);
    b.sink(out, "c").edge("w", "out", 0).edge("long", "out", 0);
    let run = Run::start(b.program, options).expect("starts");
    passes(&clock, MILLISECOND, || lines(&collected).len() >= 800);
    kills.kill("w/b", &clock);
    assert_eq!(kills.drive(&run, &clock).restarts, 1);
    assert_eq!(lines(&collected).len(), 1510);
}

/// The stage itself has finished and another one of its slot has not.
#[test]
fn a_slot_dies_with_one_finished_stateful_stage() {
    let (clock, kills, options) = by_hand();
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    let (other, others) = sink("other");
    b.source(rows_source("short", numbered(100), Some(1000.0), Some(0), 40), "a");
    b.source(rows_source("long", numbered(1500), Some(1000.0), Some(0), 40), "c");
    b.operator("w", window("w", 10_000), "b", &[]).edge("short", "w", 0);
    b.operator("v", window("v", 10_000), "b", &[]).edge("long", "v", 0);
    b.sink(out, "d").edge("w", "out", 0);
    b.sink(other, "e").edge("v", "other", 0);
    let run = Run::start(b.program, options).expect("starts");
    passes(&clock, MILLISECOND, || kills.finished("w/d") && lines(&others).len() >= 75);
    kills.kill("w/b", &clock);
    assert_eq!(kills.drive(&run, &clock).restarts, 1);
    assert_eq!(lines(&collected), window_lines(10, 10));
    assert_eq!(lines(&others), window_lines(150, 10));
}

/// Output of a former incarnation becomes durable while the next one's state is still earlier: its input must be kept.
#[test]
fn a_commit_behind_a_restarted_window_does_not_take_its_input() {
    let (clock, kills, options) = by_hand();
    let mut b = Builder::new(&[1.0]);
    let (commit, sender) = (Gate::closed(), Gate::closed());
    let held = Arc::clone(&commit);
    let (out, collected) = sink_with("out", true, move |epoch| {
        if epoch >= 50 {
            held.pass();
        }
    });
    b.source(rows_source("src", numbered(1000), Some(1000.0), Some(0), 40), "a");
    let (committing, held) = (Arc::clone(&commit), Arc::clone(&sender));
    let stall = pass("p", move |_| {
        if committing.holds() {
            held.pass();
        }
    });
    b.operator("p", stall, "a", &[]).edge("src", "p", 0);
    b.operator("w", window("w", 10_000), "b", &[]).edge("p", "w", 0);
    b.sink(out, "c").edge("w", "out", 0);
    let run = Run::start(b.program, options).expect("starts");
    // The sink is in the middle of a commit while the window dies and is restarted before that commit.
    passes(&clock, MILLISECOND, || sender.holds());
    kills.kill("w/b", &clock);
    let turns = kills.turns("w/c");
    commit.open();
    until(&clock, || kills.turns("w/c") > turns + 2);
    let turns = kills.turns("w/b");
    until(&clock, || kills.turns("w/b") > turns + 2);
    // The sender handles its channel only when it knows both where to resume and which epochs are durable.
    sender.open();
    assert_eq!(kills.drive(&run, &clock).restarts, 1);
    assert_eq!(lines(&collected), window_lines(100, 10));
}

/// A source that ends early, before a model that takes `each` per row. Time stands still when the source has ended, and the
/// source dies before the model continues. It must repeat its output.
fn source_restarted_after_its_end(rate: Option<f64>, duration: Option<Duration>, each: i64) {
    let (clock, kills, options) = by_hand();
    let mut b = Builder::new(&[1.0]);
    b.byte_budget = 1 << 12;
    if rate.is_some() {
        b.program.plan.checkpoint_every = 50;
    }
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(100_000), rate, Some(0), 40), "a");
    b.operator("m", model("m", takes(&clock, each)), "b", &[]).edge("src", "m", 0);
    b.sink(out, "c").edge("m", "out", 0);
    let run = Run::start(b.program, RunOptions { duration, ..options }).expect("starts");
    let has_ended = || run.epoch_log().get("src").is_some_and(|log| log.end.is_some());
    match duration {
        Some(_) => passes(&clock, MILLISECOND, has_ended),
        None => {
            passes(&clock, MILLISECOND, || run.progress().arrived >= 100);
            run.stopper().stop();
            until(&clock, has_ended);
        }
    }
    let emitted = run.progress().emitted;
    assert!((100..100_000).contains(&emitted), "{emitted} emitted");
    kills.kill("w/a", &clock);
    assert_eq!(kills.drive(&run, &clock).restarts, 1);
    assert_eq!(lines(&collected), row_lines(emitted as usize));
}

/// After a stop a restarted source ends at its former end, not at once.
#[test]
fn a_source_restarted_after_a_stop_repeats_what_it_had_emitted() {
    source_restarted_after_its_end(Some(1000.0), None, 3 * MILLISECOND);
}

/// A stop by duration, of a source without a rate.
#[test]
fn a_source_restarted_after_the_duration_repeats_what_it_had_emitted() {
    source_restarted_after_its_end(None, Some(Duration::from_millis(300)), MILLISECOND / 2);
}

/// The last windows close after a stop and a restart.
#[test]
fn windows_close_after_a_stop_and_a_restart() {
    let (clock, kills, options) = by_hand();
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    // A record every 500 ms: the current epoch is already that of the next record when the stop comes.
    b.source(rows_source("src", numbered(1000), Some(2.0), Some(0), 40), "a");
    b.operator("w", window("w", 10_000_000), "b", &[]).edge("src", "w", 0);
    b.sink(out, "c").edge("w", "out", 0);
    let run = Run::start(b.program, options).expect("starts");
    passes(&clock, 10 * MILLISECOND, || run.progress().emitted == 3);
    // The stop is sent before the death is noticed.
    let stopper = run.stopper();
    kills.order("w/a", move |_| {
        stopper.stop();
        true
    });
    assert_eq!(kills.drive(&run, &clock).restarts, 1);
    // Records 0, 1 and 2 were emitted: one window with three rows, sum 3.
    assert_eq!(lines(&collected), ["w000000=3000000003"]);
}

/// A sparse source (rows, rate, slot) far ahead in event time, and a dense one whose every tenth row is 50 ms late.
fn late_rows(b: &mut Builder, (rows, rate, slot): (i64, f64, &str), dense_slot: &str) {
    let sparse =
        (0..rows).map(|i| Row { key: "s".into(), value: 0, time: 1_000_000_000 + i * 1000 }).collect();
    let dense = numbered(1500)
        .into_iter()
        .map(|row| if row.value % 10 == 9 { Row { time: row.time - 50_000, ..row } } else { row })
        .collect();
    b.source(rows_source("sparse", sparse, Some(rate), Some(0), 4), slot);
    b.source(rows_source("dense", dense, Some(1000.0), Some(0), 4), dense_slot);
}

/// Late rows and windows with the slots of the two sources, the window and the sink; slots die at these times, ms.
fn late_rows_are_dropped_the_same(sparse: (i64, f64), slots: [&str; 4], deaths: &[(&str, i64)]) {
    let build = || {
        let mut b = Builder::new(&[1.0]);
        let (out, collected) = sink("out");
        late_rows(&mut b, (sparse.0, sparse.1, slots[0]), slots[1]);
        b.operator("w", window("w", 20_000), slots[2], &[]).edge("sparse", "w", 0).edge("dense", "w", 0);
        b.sink(out, slots[3]).edge("w", "out", 0);
        (b.program, collected)
    };
    let (clock, kills, options) = by_hand();
    let (program, expected) = build();
    kills.drive(&Run::start(program, options).expect("starts"), &clock);
    let (clock, kills, options) = by_hand();
    let (program, found) = build();
    for (slot, at) in deaths.iter().copied() {
        let clock = Arc::clone(&clock);
        kills.order(slot, move |_| clock.now() >= at * MILLISECOND);
    }
    let report = kills.drive(&Run::start(program, options).expect("starts"), &clock);
    assert_eq!(report.restarts, deaths.len() as u64);
    let (found, expected) = (lines(&found), lines(&expected));
    let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
    assert!(
        found.len() == expected.len() && differs.is_none(),
        "{:?}",
        differs.map(|at| (&found[at..at + 4], &expected[at..at + 4]))
    );
}

/// Watermarks from before the restart still hold.
#[test]
fn late_rows_are_dropped_the_same_after_a_restart() {
    late_rows_are_dropped_the_same((4, 2.0), ["all"; 4], &[("w/all", 700)]);
}

/// Across slots: the source's slot dies, later the window's. The first step of the sparse source is at 800 ms, the next at
/// 1600 ms.
#[test]
fn late_rows_are_dropped_the_same_after_two_restarts() {
    late_rows_are_dropped_the_same((3, 1.25), ["a", "b", "c", "d"], &[("w/a", 1000), ("w/c", 1100)]);
}

/// A restarted sender keeps nothing for a receiver that has finished.
#[test]
fn a_restarted_sender_does_not_queue_for_a_finished_receiver() {
    let (clock, kills, options) = by_hand();
    let mut b = Builder::new(&[1.0]);
    b.byte_budget = 1 << 12;
    let gate = Gate::closed();
    let (fast, _) = sink("fast");
    let (slow, slow_out) = sink("slow");
    // 3.2 MB: less than the credit window, more than the quota of one scheduling.
    let rows: Vec<Row> =
        (0..400).map(|i| Row { key: format!("{i:08192}"), value: i as i64, time: i as i64 * 1000 }).collect();
    b.source(rows_source("src", rows, None, Some(0), 4), "a");
    b.operator("m", held_model("m", &gate), "b", &[]).edge("src", "m", 0);
    b.sink(fast, "c").edge("src", "fast", 0);
    b.sink(slow, "b").edge("m", "slow", 0);
    let run = Run::start(b.program, options).expect("starts");
    until(&clock, || kills.finished("w/c"));
    kills.kill("w/a", &clock);
    gate.open();
    assert_eq!(kills.drive(&run, &clock).restarts, 1);
    assert_eq!(lines(&slow_out).len(), 400);
}

/// Kills by order, and holds one slot between its end and its notification.
struct HeldAtItsEnd {
    kills: Arc<Kills>,
    slot: &'static str,
    gate: Arc<Gate>,
}

impl Faults for HeldAtItsEnd {
    fn dies(&self, slot: &str, incarnation: u32, point: Point<'_>) -> bool {
        let dies = self.kills.dies(slot, incarnation, point);
        if point == Point::Finished && slot == self.slot {
            self.gate.pass();
        }
        dies
    }
}

/// A restarted sender's queue for a receiver whose end it learns of later does not block it.
#[test]
fn a_restarted_sender_hears_late_that_its_receiver_has_finished() {
    let (clock, kills, mut options) = by_hand();
    let (told, gate) = (Gate::closed(), Gate::closed());
    options.faults = Some(Arc::new(HeldAtItsEnd { kills: kills.clone(), slot: "w/c", gate: told.clone() }));
    let mut b = Builder::new(&[1.0]);
    b.byte_budget = 1 << 12;
    let (fast, _) = sink("fast");
    let (slow, slow_out) = sink("slow");
    let rows: Vec<Row> =
        (0..400).map(|i| Row { key: format!("{i:08192}"), value: i as i64, time: i as i64 * 1000 }).collect();
    b.source(rows_source("src", rows, None, Some(0), 4), "a");
    b.operator("m", held_model("m", &gate), "b", &[]).edge("src", "m", 0);
    b.sink(fast, "c").edge("src", "fast", 0);
    b.sink(slow, "b").edge("m", "slow", 0);
    let run = Run::start(b.program, options).expect("starts");
    until(&clock, || told.holds());
    let before = kills.emitted("src");
    kills.kill("w/a", &clock);
    until(&clock, || kills.emitted("src") > before);
    told.open();
    gate.open();
    assert_eq!(kills.drive(&run, &clock).restarts, 1);
    assert_eq!(lines(&slow_out).len(), 400);
}

// Chaos over more shapes of plans.

/// Rows with every seventh record unreadable.
struct Patchy {
    next: usize,
    end: usize,
}

impl Source for Patchy {
    fn read(&mut self, rows: usize, _bytes: usize) -> Result<SourceRead, OperatorError> {
        if self.next == self.end {
            return Ok(SourceRead::End);
        }
        let end = (self.next + rows.min(37)).min(self.end);
        let all = self.next..end;
        let good: Vec<usize> = all.clone().filter(|i| i % 7 != 3).collect();
        let bad = all.filter(|i| i % 7 == 3);
        let keys: StringArray = good.iter().map(|i| Some(format!("k{i:06}"))).collect();
        let values: Int64Array = good.iter().map(|i| *i as i64).collect();
        let payload = RecordBatch::try_new(payload_schema(&stream()), vec![Arc::new(keys), Arc::new(values)])
            .expect("two columns");
        let read = SourceRead::Rows {
            payload,
            times: Some(good.iter().map(|i| *i as i64 * 1000).collect()),
            dead_letters: bad
                .map(|i| DeadLetter {
                    id: None,
                    time: None,
                    reason: "bad".into(),
                    detail: format!("record {i}"),
                    values: Default::default(),
                })
                .collect(),
            offsets: Some(good.iter().map(|i| (*i - self.next) as u64).collect()),
        };
        self.next = end;
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

fn patchy(id: &str, n: usize, rate: Option<f64>) -> BoundSource {
    let mut source = rows_source(id, vec![], rate, Some(0), 1);
    source.make = Arc::new(move || Ok(Box::new(Patchy { next: 0, end: n })));
    source
}

fn shape(partitions: u32, rate: Option<f64>, is_apart: bool) -> (Program, Vec<Collected>) {
    let mut b = Builder::new(&[1.0]);
    b.is_apart = is_apart;
    let (out, collected) = sink("out");
    b.source(patchy("left", 3000, rate), "s");
    b.source(patchy("right", 3000, rate), "t");
    b.operator("f", pass("f", |_| {}), "t", &[]).edge("left", "f", 0);
    b.operator("m", model("m", |_| {}), "s", &[]).edge("right", "m", 0);
    b.operator("j", join("j", 0), "p", &[]);
    b.program.plan.stages.last_mut().expect("just added").partitions = partitions;
    b.edge("f", "j", 0).edge("m", "j", 1);
    b.sink(out, "s").edge("j", "out", 0);
    (b.program, vec![collected])
}

fn disturbance(rounds: u64, times: u64, together: usize) -> Disturbance {
    Disturbance { rounds, times, together, seed: 1 }
}

#[test]
fn partitions_and_dead_letters() {
    survives(|| shape(3, Some(3000.0), true), RunOptions::default, disturbance(3, 20, 1));
}

#[test]
fn all_slots_at_once() {
    survives(|| shape(2, Some(3000.0), false), RunOptions::default, disturbance(3, 6, 5));
}

#[test]
fn unpaced_and_limited() {
    let options = || RunOptions { records: Some(2500), ..RunOptions::default() };
    survives(|| shape(2, None, false), options, disturbance(6, 6, 2));
}

#[test]
fn a_join_of_one_stage_with_itself() {
    let build = || {
        let mut b = Builder::new(&[0.5, 0.5]);
        let (out, collected) = sink("out");
        let rows: Vec<Row> =
            (0..1500).map(|i| Row { key: format!("k{}", i / 3), value: i, time: i * 1000 }).collect();
        b.source(rows_source("src", rows, Some(1500.0), Some(0), 64), "a");
        b.operator("j1", join("j", 5000), "b", &[0]).operator("j2", join("j", 5000), "c", &[1]);
        for stage in ["j1", "j2"] {
            b.edge("src", stage, 0).edge("src", stage, 1);
        }
        b.operator("m", model("m", |_| {}), "d", &[]).edge("j1", "m", 0).edge("j2", "m", 0);
        b.sink(out, "e").edge("m", "out", 0);
        (b.program, vec![collected])
    };
    survives(build, RunOptions::default, disturbance(4, 20, 1));
}

#[test]
fn a_sink_that_is_not_exactly_once() {
    let build = || {
        let (mut program, _) = shape(2, Some(3000.0), false);
        let (out, collected) = sink_with("out", false, |_| {});
        program.sinks.insert("out".into(), out);
        (program, vec![collected])
    };
    survives(build, RunOptions::default, disturbance(3, 20, 1));
}

/// The lost records differ from run to run; none counts twice, and windows stay in order.
#[test]
fn freshness_and_windows_survive_restarts() {
    const ROWS: i64 = 20;
    for policy in [Freshness::Latest, Freshness::DropOldest] {
        for round in 0..3 {
            let (clock, kills, options) = by_hand();
            let mut b = Builder::new(&[1.0]);
            b.byte_budget = 1 << 12;
            let (out, collected) = sink("out");
            b.source(rows_source("src", numbered(1200), Some(1000.0), Some(0), 40), "a");
            let slow = model("m", takes(&clock, 2 * MILLISECOND));
            b.operator("m", slow, "b", &[]).edge_with("src", "m", 0, Some(policy));
            b.operator("w", window("w", ROWS * 1000), "c", &[]).edge("m", "w", 0);
            b.sink(out, "d").edge("w", "out", 0);
            for at in 0..12 {
                let (clock, slot) = (Arc::clone(&clock), ["w/a", "w/b", "w/c", "w/d"][(at * 3 + round) % 4]);
                let at = 60 * (at as i64 + 1) * MILLISECOND;
                kills.order(slot, move |_| clock.now() >= at);
            }
            let report = kills.drive(&Run::start(b.program, options).expect("starts"), &clock);
            assert_eq!((report.complete, report.restarts), (true, 12));
            let mut last = -1;
            let mut rows = 0;
            for line in lines(&collected) {
                let (window, value) = line[1..].split_once('=').expect("window=value");
                let (window, value): (i64, i64) =
                    (window.parse().expect("a number"), value.parse().expect("a number"));
                let (count, sum) = (value / 1_000_000_000, value % 1_000_000_000);
                assert!(window > last && window < 60, "window {window} after {last}");
                assert!((1..=ROWS).contains(&count), "{line}");
                // Range of the sum of this number of different rows of the window.
                let first = window * ROWS;
                let (least, most) =
                    ((first..first + count).sum(), (first + ROWS - count..first + ROWS).sum());
                assert!((least..=most).contains(&sum), "{line}: not {count} different rows");
                (last, rows) = (window, rows + count);
            }
            let drops: u64 = report.edges.iter().flat_map(|edge| edge.drops.values()).sum();
            let dropped = drops + report.stages.iter().flat_map(|stage| stage.drops.values()).sum::<u64>();
            assert!(dropped > 0 && rows < 1200, "{rows} rows, {dropped} dropped: the model kept up");
        }
    }
}
