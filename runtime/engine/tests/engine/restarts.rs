//! Restarts at awkward moments: neighbours at once, after the end, with late rows, through every kind of stage.
use crate::parts::*;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidemill_engine::{Run, RunOptions};
use tidemill_operators::api::*;
use tidemill_operators::record::*;
use tidemill_spec::plan::{Freshness, LinkKind};

/// The sender's new life is told that its receiver has ended in the meantime.
#[test]
fn a_sender_restarted_while_its_receiver_ends() {
    let mut b = Builder::new(LinkKind::InProcess, &[1.0]);
    let closing = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&closing);
    let (out, collected) = sink_with("out", true, move |epoch| {
        if epoch == u64::MAX {
            flag.store(true, Ordering::Release);
            std::thread::sleep(Duration::from_millis(500));
        }
    });
    b.source(rows_source("src", numbered(100), None, Some(0), 40), "a");
    b.sink(out, "b").edge("src", "out", 0);
    let run = Run::start(b.program, killable()).expect("starts");
    while !closing.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(1));
    }
    run.kill_slot("w/a");
    ended(&run, 10);
    assert_eq!(collected.lock().expect("not poisoned").len(), 100);
}

/// The end of an input is a checkpoint too: later epochs become durable behind it.
#[test]
fn a_stateful_slot_dies_after_its_input_ended() {
    let mut b = Builder::new(LinkKind::InProcess, &[1.0]);
    let (out, collected) = sink("out");
    b.source(rows_source("short", numbered(100), Some(1000.0), Some(0), 40), "a");
    b.source(rows_source("long", numbered(1500), Some(1000.0), Some(0), 40), "a");
    b.operator("w", window("w", 10_000), "b", &[]).edge("short", "w", 0);
    b.sink(out, "c").edge("w", "out", 0).edge("long", "out", 0);
    let run = Run::start(b.program, killable()).expect("starts");
    std::thread::sleep(Duration::from_millis(800));
    run.kill_slot("w/b");
    ended(&run, 10);
    assert_eq!(collected.lock().expect("not poisoned").len(), 1510);
}

/// The same where the stage itself has finished and another of its slot has not.
#[test]
fn a_slot_dies_with_one_finished_stateful_stage() {
    let mut b = Builder::new(LinkKind::InProcess, &[1.0]);
    let (out, collected) = sink("out");
    let (other, others) = sink("other");
    b.source(rows_source("short", numbered(100), Some(1000.0), Some(0), 40), "a");
    b.source(rows_source("long", numbered(1500), Some(1000.0), Some(0), 40), "c");
    b.operator("w", window("w", 10_000), "b", &[]).edge("short", "w", 0);
    b.operator("v", window("v", 10_000), "b", &[]).edge("long", "v", 0);
    b.sink(out, "d").edge("w", "out", 0);
    b.sink(other, "e").edge("v", "other", 0);
    let run = Run::start(b.program, killable()).expect("starts");
    std::thread::sleep(Duration::from_millis(800));
    run.kill_slot("w/b");
    ended(&run, 10);
    assert_eq!(collected.lock().expect("not poisoned").len(), 10);
    let others = others.lock().expect("not poisoned");
    let missing: Vec<_> =
        (0..150).filter(|w| !others.iter().any(|l| l.starts_with(&format!("w{w:06}")))).collect();
    assert!(missing.is_empty(), "windows {missing:?} of 150 are missing");
    assert_eq!(others.len(), 150);
}

/// What a former life sent becomes durable while the new life's state is still behind it: its input must be kept.
#[test]
fn a_commit_behind_a_restarted_window_does_not_take_its_input() {
    let mut b = Builder::new(LinkKind::InProcess, &[1.0]);
    let committing = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&committing);
    // The sink is in the middle of a commit while the window dies and is restarted before that commit.
    let (out, collected) = sink_with("out", true, move |epoch| {
        if epoch >= 50 && !flag.swap(true, Ordering::AcqRel) {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let flag = Arc::clone(&committing);
    b.source(rows_source("src", numbered(1000), Some(1000.0), Some(0), 40), "a");
    // The sender looks at its channel only when it has heard both where to resume and what is durable.
    let stalled = AtomicBool::new(false);
    let stall = pass("p", move |_| {
        if flag.load(Ordering::Acquire) && !stalled.swap(true, Ordering::AcqRel) {
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    b.operator("p", stall, "a", &[]).edge("src", "p", 0);
    b.operator("w", window("w", 10_000), "b", &[]).edge("p", "w", 0);
    b.sink(out, "c").edge("w", "out", 0);
    let run = Run::start(b.program, killable()).expect("starts");
    while !committing.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(1));
    }
    run.kill_slot("w/b");
    ended(&run, 10);
    let found = collected.lock().expect("not poisoned");
    let expected: Vec<_> = (0..100i64)
        .map(|window| {
            format!("w{window:06}={}", 10_000_000_000 + (0..10).map(|i| window * 10 + i).sum::<i64>())
        })
        .collect();
    assert_eq!(*found, expected);
}

/// After a stop a restarted source ends where it had ended, not at once.
#[test]
fn a_source_restarted_after_a_stop_repeats_what_it_had_emitted() {
    let mut b = Builder::new(LinkKind::InProcess, &[1.0]);
    b.byte_budget = 1 << 12;
    b.program.plan.checkpoint_every = 50;
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(100_000), Some(1000.0), Some(0), 40), "a");
    b.operator(
        "m",
        model("m", |batch| std::thread::sleep(Duration::from_millis(3 * batch.num_rows() as u64))),
        "b",
        &[],
    )
    .edge("src", "m", 0);
    b.sink(out, "c").edge("m", "out", 0);
    let run = Run::start(b.program, killable()).expect("starts");
    while run.progress().arrived < 100 {
        std::thread::sleep(Duration::from_millis(5));
    }
    run.stopper().stop();
    std::thread::sleep(Duration::from_millis(30));
    let emitted = run.progress().emitted;
    run.kill_slot("w/a");
    ended(&run, 20);
    assert_eq!(collected.lock().expect("not poisoned").len() as u64, emitted);
}

/// The same with a duration and a source without a rate.
#[test]
fn a_source_restarted_after_the_duration_repeats_what_it_had_emitted() {
    let mut b = Builder::new(LinkKind::InProcess, &[1.0]);
    b.byte_budget = 1 << 12;
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(100_000), None, Some(0), 40), "a");
    b.operator(
        "m",
        model("m", |batch| std::thread::sleep(Duration::from_micros(500 * batch.num_rows() as u64))),
        "b",
        &[],
    )
    .edge("src", "m", 0);
    b.sink(out, "c").edge("m", "out", 0);
    let options = RunOptions { duration: Some(Duration::from_millis(300)), ..killable() };
    let run = Run::start(b.program, options).expect("starts");
    std::thread::sleep(Duration::from_millis(400));
    let emitted = run.progress().emitted;
    run.kill_slot("w/a");
    ended(&run, 20);
    assert_eq!(collected.lock().expect("not poisoned").len() as u64, emitted);
}

/// The last windows close after a stop and a restart.
#[test]
fn windows_close_after_a_stop_and_a_restart() {
    let mut b = Builder::new(LinkKind::InProcess, &[1.0]);
    let (out, collected) = sink("out");
    // A record every 500 ms: the epoch has been turned to the next record's when the stop comes.
    b.source(rows_source("src", numbered(1000), Some(2.0), Some(0), 40), "a");
    b.operator("w", window("w", 10_000_000), "b", &[]).edge("src", "w", 0);
    b.sink(out, "c").edge("w", "out", 0);
    let run = Run::start(b.program, killable()).expect("starts");
    std::thread::sleep(Duration::from_millis(1200));
    run.kill_slot("w/a");
    run.stopper().stop();
    ended(&run, 10);
    // Records 0, 1 and 2 were emitted: one window with three rows, sum 3.
    assert_eq!(*collected.lock().expect("not poisoned"), ["w000000=3000000003"]);
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

/// Watermarks from before the restart still hold.
#[test]
fn late_rows_are_dropped_the_same_after_a_restart() {
    let build = || {
        let mut b = Builder::new(LinkKind::InProcess, &[1.0]);
        let (out, collected) = sink("out");
        late_rows(&mut b, (4, 2.0, "all"), "all");
        b.operator("w", window("w", 20_000), "all", &[]).edge("sparse", "w", 0).edge("dense", "w", 0);
        b.sink(out, "all").edge("w", "out", 0);
        (b.program, collected)
    };
    let (program, expected) = build();
    ended(&Run::start(program, killable()).expect("starts"), 20);
    let (program, control) = build();
    ended(&Run::start(program, killable()).expect("starts"), 20);
    assert_eq!(*control.lock().expect("not poisoned"), *expected.lock().expect("not poisoned"), "control");
    let (program, found) = build();
    let run = Run::start(program, killable()).expect("starts");
    std::thread::sleep(Duration::from_millis(700));
    run.kill_slot("w/all");
    ended(&run, 20);
    let (found, expected) = (found.lock().expect("not poisoned"), expected.lock().expect("not poisoned"));
    let differs = found.iter().zip(expected.iter()).position(|(a, b)| a != b);
    assert!(
        found.len() == expected.len() && differs.is_none(),
        "{:?}",
        differs.map(|at| (&found[at..at + 4], &expected[at..at + 4]))
    );
}

/// A restarted sender keeps nothing for a receiver that has finished.
#[test]
fn a_restarted_sender_does_not_queue_for_a_finished_receiver() {
    let mut b = Builder::new(LinkKind::InProcess, &[1.0]);
    b.byte_budget = 1 << 12;
    let (fast, fast_out) = sink("fast");
    let (slow, slow_out) = sink("slow");
    // 3.2 MB: less than the credit window, more than the quota of one scheduling.
    let rows: Vec<Row> =
        (0..400).map(|i| Row { key: format!("{i:08192}"), value: i as i64, time: i as i64 * 1000 }).collect();
    b.source(rows_source("src", rows, None, Some(0), 4), "a");
    let m = model("m", |batch| std::thread::sleep(Duration::from_millis(3 * batch.num_rows() as u64)));
    b.operator("m", m, "b", &[]).edge("src", "m", 0);
    b.sink(fast, "c").edge("src", "fast", 0);
    b.sink(slow, "b").edge("m", "slow", 0);
    let run = Run::start(b.program, killable()).expect("starts");
    while fast_out.lock().expect("not poisoned").len() < 400 {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(100));
    run.kill_slot("w/a");
    ended(&run, 15);
    assert_eq!(slow_out.lock().expect("not poisoned").len(), 400);
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
                    reason: "bad",
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

/// Runs undisturbed, then again killing `slots_at_once` slots every `pause` ms; `None`: all of them.
fn chaos(
    build: impl Fn() -> (tidemill_engine::Program, Collected),
    options: impl Fn() -> RunOptions,
    pause: u64,
    together: usize,
    rounds: usize,
) {
    let (program, expected) = build();
    let first = ended(&Run::start(program, options()).expect("starts"), 30);
    for round in 0..rounds {
        let (program, found) = build();
        let run = Run::start(program, options()).expect("starts");
        let slots = run.slots().to_vec();
        let mut at = round;
        let report = loop {
            if let Some(result) = run.wait_for(Duration::from_millis(pause + (at as u64 * 7) % 13)) {
                break result.expect("succeeds");
            }
            if at < round + 25 {
                for _ in 0..together {
                    run.kill_slot(&slots[(at * 5 + round) % slots.len()]);
                    at += 1;
                }
            } else {
                break ended(&run, 20);
            }
        };
        let (found, expected) = (found.lock().expect("not poisoned"), expected.lock().expect("not poisoned"));
        let differs = found.iter().zip(expected.iter()).position(|(a, b)| a != b);
        assert!(
            found.len() == expected.len() && differs.is_none(),
            "round {round}: {} of {} lines, first difference at {differs:?}",
            found.len(),
            expected.len()
        );
        assert_eq!(report.dead_letters, first.dead_letters, "dead letters");
    }
}

fn shape(partitions: u32, rate: Option<f64>, link: LinkKind) -> (tidemill_engine::Program, Collected) {
    let mut b = Builder::new(link, &[1.0]);
    let (out, collected) = sink("out");
    b.source(patchy("left", 3000, rate), "s");
    b.source(patchy("right", 3000, rate), "t");
    b.operator("f", pass("f", |_| {}), "t", &[]).edge("left", "f", 0);
    b.operator("m", model("m", |_| {}), "s", &[]).edge("right", "m", 0);
    b.operator("j", join("j", 0), "p", &[]);
    b.program.plan.stages.last_mut().expect("just added").partitions = partitions;
    b.edge("f", "j", 0).edge("m", "j", 1);
    b.sink(out, "s").edge("j", "out", 0);
    (b.program, collected)
}

#[test]
fn partitions_and_dead_letters() {
    chaos(|| shape(3, Some(3000.0), LinkKind::Memfd), killable, 30, 1, 3);
}

#[test]
fn all_slots_at_once() {
    chaos(|| shape(2, Some(3000.0), LinkKind::InProcess), killable, 40, 5, 3);
}

#[test]
fn unpaced_and_limited() {
    let options = || RunOptions { records: Some(2500), ..killable() };
    chaos(|| shape(2, None, LinkKind::InProcess), options, 2, 2, 6);
}

#[test]
fn a_join_of_one_stage_with_itself() {
    let build = || {
        let mut b = Builder::new(LinkKind::InProcess, &[0.5, 0.5]);
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
        (b.program, collected)
    };
    chaos(build, killable, 25, 1, 4);
}

#[test]
fn freshness_and_windows_survive_restarts() {
    for policy in [Freshness::Latest, Freshness::DropOldest] {
        for round in 0..3 {
            let mut b = Builder::new(LinkKind::InProcess, &[1.0]);
            b.byte_budget = 1 << 12;
            let (out, _) = sink("out");
            b.source(rows_source("src", numbered(1200), Some(1000.0), Some(0), 40), "a");
            let slow =
                model("m", |batch| std::thread::sleep(Duration::from_millis(2 * batch.num_rows() as u64)));
            b.operator("m", slow, "b", &[]).edge_with("src", "m", 0, Some(policy));
            b.operator("w", window("w", 20_000), "c", &[]).edge("m", "w", 0);
            b.sink(out, "d").edge("w", "out", 0);
            let run = Run::start(b.program, killable()).expect("starts");
            let slots = run.slots().to_vec();
            for at in 0..12 {
                std::thread::sleep(Duration::from_millis(60));
                run.kill_slot(&slots[(at * 3 + round) % slots.len()]);
            }
            assert!(ended(&run, 20).complete);
        }
    }
}

#[test]
fn a_sink_that_is_not_exactly_once() {
    let build = || {
        let (mut program, _) = shape(2, Some(3000.0), LinkKind::InProcess);
        let (out, collected) = sink_with("out", false, |_| {});
        program.sinks.insert("out".into(), out);
        (program, collected)
    };
    chaos(build, killable, 30, 1, 3);
}

/// The same over slots: the source's slot dies, later the window's.
#[test]
fn late_rows_are_dropped_the_same_after_two_restarts() {
    let build = || {
        let mut b = Builder::new(LinkKind::InProcess, &[1.0]);
        let (out, collected) = sink("out");
        late_rows(&mut b, (3, 1.25, "a"), "b");
        b.operator("w", window("w", 20_000), "c", &[]).edge("sparse", "w", 0).edge("dense", "w", 0);
        b.sink(out, "d").edge("w", "out", 0);
        (b.program, collected)
    };
    let (program, expected) = build();
    ended(&Run::start(program, killable()).expect("starts"), 20);
    let (program, found) = build();
    let run = Run::start(program, killable()).expect("starts");
    // The first step of the sparse source is at 800 ms, the next at 1600 ms.
    std::thread::sleep(Duration::from_millis(1000));
    run.kill_slot("w/a");
    std::thread::sleep(Duration::from_millis(100));
    run.kill_slot("w/c");
    ended(&run, 20);
    let (found, expected) = (found.lock().expect("not poisoned"), expected.lock().expect("not poisoned"));
    let differs = found.iter().zip(expected.iter()).position(|(a, b)| a != b);
    assert!(
        found.len() == expected.len() && differs.is_none(),
        "{:?}",
        differs.map(|at| (&found[at..at + 4], &expected[at..at + 4]))
    );
}

#[test]
fn a_manual_clock() {
    let clock = Arc::new(tidemill_engine::clock::ManualClock::new());
    let mut b = Builder::new(LinkKind::Memfd, &[1.0]);
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(300), Some(1000.0), Some(0), 40), "a");
    b.operator("w", window("w", 20_000), "b", &[]).edge("src", "w", 0);
    b.sink(out, "c").edge("w", "out", 0);
    let options = RunOptions { clock: clock.clone(), ..killable() };
    let run = Run::start(b.program, options).expect("starts");
    for step in 0..60 {
        std::thread::sleep(Duration::from_millis(2));
        clock.advance(10_000_000);
        if step == 13 {
            run.kill_slot("w/b");
        }
    }
    ended(&run, 5);
    assert_eq!(collected.lock().expect("not poisoned").len(), 15);
}
