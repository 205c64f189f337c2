//! Streams that are read through a journal, and end because their producer does: a continued run reads on.
use crate::continued::{Kept, options};
use crate::parts::*;
use arrow_array::RecordBatch;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tidemill_engine::clock::ManualClock;
use tidemill_engine::frame::{CLOSED, Epoch};
use tidemill_engine::{Past, Program, Run};
use tidemill_operators::api::{
    BoundSink, JournalledReading, MakeDurableSink, MakeSink, OperatorError, Sink, Unread,
};
use tidemill_spec::publication::Publication;
use tidemill_spec::workflow::Journal;

/// Rows before the end: several epochs, the last one not full.
const FIRST: usize = 20 * 1024 + 500;
/// Rows after another producer has continued.
const ALL: usize = FIRST + 5_000;

#[derive(Default)]
struct State {
    waiting: Option<Epoch>,
    upto: Epoch,
    asked: u64,
}

/// Commits of a sink, each of which waits for permission.
#[derive(Default)]
struct Commits {
    state: Mutex<State>,
    changed: Condvar,
}

impl Commits {
    fn with<Result>(&self, act: impl FnOnce(&mut State) -> Result) -> Result {
        act(&mut self.state.lock().expect("not poisoned"))
    }

    fn wait(&self, epoch: Epoch) {
        let mut state = self.state.lock().expect("not poisoned");
        state.waiting = Some(epoch);
        let mut state = self.changed.wait_while(state, |state| state.upto < epoch).expect("not poisoned");
        state.waiting = None;
    }

    fn let_through(&self, epoch: Epoch) {
        self.with(|state| state.upto = epoch);
        self.changed.notify_all();
    }
}

/// Keeps nothing, and counts the requests of checkpoints.
struct Waiting(Arc<Commits>);

impl Sink for Waiting {
    fn write(&mut self, _batch: &RecordBatch) -> Result<(), OperatorError> {
        Ok(())
    }

    fn commit(&mut self, epoch: Epoch) -> Result<(), OperatorError> {
        self.0.wait(epoch);
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        self.0.with(|state| state.asked += 1);
        Ok(Some(Vec::new()))
    }

    fn exactly_once(&self) -> bool {
        true
    }

    fn publication(&self) -> Publication {
        Publication::EachEpoch
    }
}

/// A stream of `rows` rows, its rows and its windows in sinks, and a sink that delays the checkpoints.
fn streamed(rows: usize, commits: &Arc<Commits>) -> (Program, [Collected; 2]) {
    let mut b = Builder::new(&[1.0]);
    b.program.plan.checkpoint_every = 1;
    let mut source = rows_source("src", numbered(rows), None, Some(0), 500);
    let make = Arc::clone(&source.make);
    source.stream = Some("standard input".into());
    source.journal = Some(Journal::default());
    source.journalled = Some(JournalledReading {
        make: Arc::new(move |_| Arc::clone(&make)),
        place: |_| None,
        unread: Unread::Stays,
    });
    let ((out, of_out), (table, of_table)) = (sink("out"), sink("table"));
    let (fresh, continued) = (Arc::clone(commits), Arc::clone(commits));
    let make: MakeSink = Arc::new(move || Ok(Box::new(Waiting(Arc::clone(&fresh)))));
    let durable: MakeDurableSink = Arc::new(move |_| Ok(Box::new(Waiting(Arc::clone(&continued)))));
    let slow = BoundSink { make, durable: Some(durable), ..sink("slow").0 };
    b.source(source, "a");
    b.sink(out, "b").edge("src", "out", 0);
    b.operator("w", window("w", 1_000_000), "c", &[]).edge("src", "w", 0);
    b.sink(table, "c").edge("w", "table", 0);
    b.sink(slow, "d").edge("src", "slow", 0);
    (b.program, [of_out, of_table])
}

/// The content of the sinks after a run to the end of the whole stream, with its initial state and the initial content of
/// its sinks.
fn read_on(past: Option<Past>, before: &[Vec<String>; 2]) -> [Vec<String>; 2] {
    let commits = Arc::new(Commits::default());
    commits.let_through(CLOSED);
    let (program, collected) = streamed(ALL, &commits);
    for (collected, before) in collected.iter().zip(before) {
        collected.lock().expect("not poisoned").extend_from_slice(before);
    }
    let (clock, kept) = (Arc::new(ManualClock::new()), Kept::default());
    let run = Run::start(program, options(&clock, &kept, past)).expect("starts");
    assert!(drive(&run, &clock).complete);
    collected.each_ref().map(lines)
}

/// A run whose producer has died.
struct Ended {
    is_complete: bool,
    checkpoints: Vec<(Past, bool)>,
    lines: [Vec<String>; 2],
    /// Checkpoints started after the end.
    asked: u64,
}

/// Runs to the end of the first part; `is_stopped`: the run is stopped when the stream has ended and not all rows have
/// passed through.
fn ended(is_stopped: bool) -> Ended {
    let commits = Arc::new(Commits::default());
    let (program, collected) = streamed(FIRST, &commits);
    let (clock, kept) = (Arc::new(ManualClock::new()), Kept::default());
    let run = Run::start(program, options(&clock, &kept, None)).expect("starts");
    let mut asked_before = None;
    let report = (0..100_000).find_map(|_| {
        if let Some(result) = run.wait_for(Duration::from_micros(500)) {
            return Some(result.expect("the run succeeds"));
        }
        clock.advance(5 * MILLISECOND);
        let epoch = commits.with(|state| state.waiting)?;
        // The rows of the last epoch come only when no more can.
        if asked_before.is_none() && collected[0].lock().expect("not poisoned").len() == FIRST {
            asked_before = Some(commits.with(|state| state.asked));
            if is_stopped {
                run.stopper().stop();
            }
        }
        commits.let_through(epoch);
        None
    });
    let is_complete = report.expect("the run does not hang").complete;
    let asked = asked_before.map_or(0, |before| commits.with(|state| state.asked) - before);
    Ended { is_complete, checkpoints: kept.all(), lines: collected.each_ref().map(lines), asked }
}

#[test]
fn no_checkpoint_before_the_end_of_the_run_knows_of_the_end_of_a_stream() {
    let expected = read_on(None, &Default::default());
    let mut most = 0;
    for _ in 0..20 {
        let Ended { is_complete, checkpoints, lines, asked } = ended(false);
        assert!(is_complete && checkpoints.last().is_some_and(|(_, is_complete)| *is_complete));
        let kept: Vec<_> = checkpoints.into_iter().filter(|(past, _)| past.epoch != CLOSED).collect();
        for (past, is_complete) in &kept {
            assert!(!is_complete && past.sources.values().all(|log| log.end.is_none()), "{past:?}");
            assert!(past.sinks.values().all(|sink| sink.committed != CLOSED), "epoch {}", past.epoch);
        }
        // The number written before the end depends on the threads.
        let Some((last, _)) = kept.last() else { continue };
        assert!(read_on(Some(last.clone()), &lines) == expected, "from epoch {}", last.epoch);
        // One belongs to the end of the run.
        most = most.max(asked);
        if most > 1 {
            return;
        }
    }
    panic!("no checkpoint was begun between the end of the stream and that of the run: {most}");
}

/// Ctrl-C ends the producer, too, and the run may notice that first.
#[test]
fn a_run_that_is_stopped_when_its_stream_has_ended_is_read_on() {
    let expected = read_on(None, &Default::default());
    let mut most = 0;
    for _ in 0..20 {
        let Ended { is_complete, checkpoints, lines, asked } = ended(true);
        // The run may come to its end before it is stopped: then this round shows nothing.
        if is_complete {
            continue;
        }
        for (past, is_complete) in &checkpoints {
            assert!(!is_complete && past.epoch != CLOSED, "epoch {}", past.epoch);
            assert!(past.sources.values().all(|log| log.end.is_none()), "{past:?}");
        }
        let (last, _) = &checkpoints[checkpoints.len() - 1];
        assert!(read_on(Some(last.clone()), &lines) == expected, "from epoch {}", last.epoch);
        most = most.max(asked);
        if most > 0 {
            return;
        }
    }
    panic!("no checkpoint was begun behind the end of the stream");
}
