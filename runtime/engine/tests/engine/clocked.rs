//! Streams with irregular rows: the clock ends their epochs, and those ends never change afterwards.
use crate::parts::*;
use arrow_array::RecordBatch;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use tidemill_engine::clock::ManualClock;
use tidemill_engine::{Program, Run, RunOptions};
use tidemill_operators::api::*;
use tidemill_operators::journal::{Journal, LEAST_SIZE};
use tidemill_random::Random;

/// Number of rows so far, and whether the stream has ended.
#[derive(Default)]
struct Feed {
    come: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Feed {
    fn change(&self, act: impl FnOnce(&mut (usize, bool))) {
        act(&mut self.come.lock().expect("not poisoned"));
        self.changed.notify_all();
    }

    fn give(&self, rows: usize) {
        self.change(|come| come.0 += rows);
    }

    fn end(&self) {
        self.change(|come| come.1 = true);
    }
}

/// Reads rows on arrival, repeatedly if it is made several times.
struct Reader {
    feed: Arc<Feed>,
    journal: Option<Arc<Journal>>,
    rows: Box<dyn Source>,
    next: usize,
    has_caught_up: bool,
}

impl Source for Reader {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        let come = self.feed.come.lock().expect("not poisoned");
        let waits = |come: &mut (usize, bool)| come.0 == self.next && !come.1;
        let come = self.feed.changed.wait_while(come, waits).expect("not poisoned").0;
        if come == self.next {
            return Ok(SourceRead::End);
        }
        let read = self.rows.read(rows.min(come - self.next), bytes)?;
        self.next = self.rows.position().0.parse().expect("a number");
        self.has_caught_up = self.next == come;
        Ok(read)
    }

    fn position(&self) -> SourcePosition {
        self.rows.position()
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        self.rows.seek(position)?;
        self.next = position.0.parse().expect("a number");
        Ok(())
    }

    fn has_caught_up(&self) -> bool {
        self.has_caught_up
    }

    fn journal(&self) -> Option<Arc<Journal>> {
        self.journal.clone()
    }
}

fn fed(id: &str, rate: Option<f64>, most: usize, journal: Option<&Arc<Journal>>) -> (BoundSource, Arc<Feed>) {
    let feed = Arc::new(Feed::default());
    let mut source = rows_source(id, numbered(most), rate, Some(0), 100);
    let (make, come) = (Arc::clone(&source.make), Arc::clone(&feed));
    let journal = journal.cloned();
    source.stream = Some("standard input".into());
    source.make = Arc::new(move || {
        let (feed, journal) = (Arc::clone(&come), journal.clone());
        Ok(Box::new(Reader { feed, journal, rows: make()?, next: 0, has_caught_up: false }))
    });
    (source, feed)
}

/// A stream through two workers into a sink.
fn piped(source: BoundSource) -> (Program, Collected) {
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    b.source(source, "a");
    b.operator("w", pass("w", |_| {}), "b", &[]).edge("src", "w", 0);
    b.sink(out, "c").edge("w", "out", 0);
    (b.program, collected)
}

fn a_row_is_seen_a_tick_later(rate: Option<f64>) {
    let (source, feed) = fed("src", rate, 10, None);
    let (program, collected) = piped(source);
    let tick = program.plan.tick.0 as i64;
    let clock = Arc::new(ManualClock::new());
    let options = RunOptions { clock: clock.clone(), ..RunOptions::default() };
    let run = Run::start(program, options).expect("starts");
    let seen = || collected.lock().expect("not poisoned").len();
    let emitted = || {
        run.report()
            .stages
            .iter()
            .filter(|stage| stage.stage == "src")
            .map(|stage| stage.records_out)
            .sum::<u64>()
    };
    for expected in 1..=3 {
        feed.give(1);
        until(&clock, || emitted() == expected);
        assert_eq!(seen(), expected as usize - 1);
        clock.advance(tick - 1);
        let looks = AtomicUsize::new(0);
        until(&clock, || looks.fetch_add(1, Ordering::Relaxed) == 20);
        assert_eq!(seen(), expected as usize - 1, "the tick has not passed");
        clock.advance(1);
        until(&clock, || seen() == expected as usize);
    }
    feed.end();
    drive(&run, &clock);
    assert_eq!(lines(&collected).len(), 3);
}

#[test]
fn a_row_is_seen_a_tick_later_though_no_other_comes() {
    a_row_is_seen_a_tick_later(None);
}

/// Its schedule says that an epoch has ten rows.
#[test]
fn a_stream_that_is_slower_than_its_rate_does_not_wait_for_the_schedule() {
    a_row_is_seen_a_tick_later(Some(1000.0));
}

/// The clock moves it beyond its schedule, and then many rows arrive at once: they are emitted together, and their epochs
/// are bounded.
#[test]
fn what_comes_late_for_its_rate_comes_in_large_batches_and_bounded_epochs() {
    const ROWS: usize = 5_000;
    let (source, feed) = fed("src", Some(50_000.0), ROWS, None);
    let (batches, largest) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, seen_largest) = (Arc::clone(&batches), Arc::clone(&largest));
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    b.source(source, "a");
    let count = move |batch: &RecordBatch| {
        counted.fetch_add(1, Ordering::Relaxed);
        seen_largest.fetch_max(batch.num_rows(), Ordering::Relaxed);
    };
    b.operator("w", pass("w", count), "b", &[]).edge("src", "w", 0);
    b.sink(out, "c").edge("w", "out", 0);
    let clock = Arc::new(ManualClock::new());
    let options = RunOptions { clock: clock.clone(), ..RunOptions::default() };
    let run = Run::start(b.program, options).expect("starts");
    let seen = || collected.lock().expect("not poisoned").len();
    const SINGLE: usize = 6;
    for row in 1..=SINGLE {
        feed.give(1);
        passes(&clock, 25 * MILLISECOND, || seen() == row);
    }
    assert_eq!(batches.load(Ordering::Relaxed), SINGLE, "each had an epoch of its own");
    feed.give(ROWS - SINGLE);
    feed.end();
    drive(&run, &clock);
    assert_eq!(seen(), ROWS);
    let (batches, largest) = (batches.load(Ordering::Relaxed), largest.load(Ordering::Relaxed));
    assert!(batches < 100, "{batches} batches");
    assert!(largest <= 1024, "{largest} rows of one epoch");
}

/// Rows arrive at random, and slots die at random, including the reading one.
fn comes_once_whatever_dies(seed: u64) -> usize {
    const ROWS: usize = 3_000;
    let folder = tempfile::tempdir().expect("a folder");
    let journal = Journal::open(folder.path(), 1, LEAST_SIZE).expect("it opens");
    let (source, feed) = fed("src", None, ROWS, Some(&journal));
    let (program, collected) = piped(source);
    let (clock, kills) = (Arc::new(ManualClock::new()), Kills::new());
    let options = RunOptions { clock: clock.clone(), faults: Some(kills.clone()), ..RunOptions::default() };
    let run = Run::start(program, options).expect("starts");
    let mut random = Random::of_seed(seed);
    let mut given = 0;
    while given < ROWS {
        let rows = (1 + random.below(60)).min(ROWS - given);
        feed.give(rows);
        given += rows;
        clock.advance(random.below(40) as i64 * MILLISECOND);
        if random.chance(0.15) {
            // All rows that arrived are committed, also after a restart, though no more arrive.
            passes(&clock, MILLISECOND, || collected.lock().expect("not poisoned").len() == given);
        }
        if random.chance(0.15) {
            kills.kill(["w/a", "w/b", "w/c"][random.below(3)], &clock);
        }
    }
    feed.end();
    assert!(kills.drive(&run, &clock).restarts > 0);
    assert_eq!(sorted(&collected), row_lines(ROWS), "seed {seed}");
    journal.marks("src").expect("they are whole").len()
}

#[test]
fn a_stream_comes_once_whatever_dies() {
    let marked: usize = (0..10).map(comes_once_whatever_dies).sum();
    assert!(marked > 10, "the clock has ended {marked} epochs that were not durable at the end");
}
