//! Decides when a checkpoint is written, gathers the parts of all hosts and has it written on another thread.
use super::ends::Ends;
use super::event::Event;
use crate::checkpoint::{Checkpoint, CheckpointWriter, LettersPast};
use crate::clock::Nanoseconds;
use crate::failure::{RunError, operator_error};
use crate::frame::{CLOSED, Epoch};
use crate::protocol::{Part, PartRequest};
use crate::report::RunFacts;
use crate::store::EpochLogs;
use crossbeam_channel::{Sender, bounded};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// Engine time after which a run whose checkpoints cannot be written fails. Until then it keeps everything that they
/// lack.
const GIVES_UP_AFTER: Nanoseconds = 30_000_000_000;

/// A job of the writing thread.
enum Job {
    Write {
        request: PartRequest,
        elapsed: Nanoseconds,
        part: Part,
        letters: LettersPast,
    },
    /// Reads the last checkpoint again.
    Read,
}

enum State {
    Idle,
    /// Some hosts have not answered.
    Gathering {
        request: PartRequest,
        elapsed: Nanoseconds,
        parts: BTreeMap<usize, Part>,
        hosts: usize,
        /// The letters of just its epoch, or why there are none.
        letters: Result<LettersPast, String>,
    },
    /// The epoch, and its newest snapshots.
    Writing(Epoch, BTreeMap<String, Epoch>),
    /// For a host that was lost.
    Reading,
}

/// Result of a step of a checkpoint.
pub(crate) enum Step {
    GoesOn,
    /// The checkpoint of this epoch is written.
    Written(Epoch),
    /// None could be written for too long, with the reason.
    GivesUp(String),
}

pub(crate) struct Checkpoints {
    facts: Arc<RunFacts>,
    interval: Nanoseconds,
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
    ends: Arc<Ends>,
    state: State,
    /// Number of the last request.
    number: u64,
    /// Epoch of the last that was written; its sources and snapshots are known.
    epoch: Epoch,
    snapshots: BTreeMap<String, Epoch>,
    /// When the last one was begun.
    begun: Nanoseconds,
    /// The last that was begun was given up for a host that was lost.
    was_cancelled: bool,
    /// Since when none could be written, and the reason.
    failing: Option<(Nanoseconds, String)>,
    /// None could be written for too long, and the run fails.
    has_given_up: bool,
}

impl Checkpoints {
    /// Starts the writing thread. `past`: the epoch and the snapshots that are written already.
    pub(crate) fn start(
        facts: &Arc<RunFacts>,
        mut writer: Box<dyn CheckpointWriter>,
        interval: Duration,
        (epoch, snapshots): (Epoch, BTreeMap<String, Epoch>),
        epochs: &Arc<EpochLogs>,
        events: Sender<Event>,
    ) -> Result<Self, RunError> {
        // There is one at a time: a new one waits until the former one is written.
        let (jobs, waiting) = bounded::<Job>(1);
        let ends = Arc::new(Ends::of(&facts.program, epochs));
        let ends_of_thread = Arc::clone(&ends);
        let facts_of_thread = Arc::clone(facts);
        let thread = std::thread::Builder::new()
            .name("tm-checkpoint".into())
            .spawn(move || {
                for job in waiting {
                    let event = match job {
                        Job::Write { request, elapsed, part, letters } => {
                            let restarts = facts_of_thread.restarts.load(Ordering::Relaxed);
                            let checkpoint =
                                Checkpoint { restarts, ..whole(request, elapsed, part, letters) };
                            let written = match ends_of_thread.forbid(&checkpoint) {
                                true => Ok(false),
                                false => writer.write(checkpoint).map(|()| true),
                            };
                            let journals = writer.journals();
                            if !journals.is_empty() && events.send(Event::Journals(journals)).is_err() {
                                return;
                            }
                            Event::Written(written)
                        }
                        Job::Read => Event::Past(writer.past()),
                    };
                    if events.send(event).is_err() {
                        return;
                    }
                }
            })
            .map_err(|error| RunError::System(format!("no thread for checkpoints: {error}")))?;
        Ok(Self {
            facts: Arc::clone(facts),
            interval: interval.as_nanos() as Nanoseconds,
            jobs,
            thread,
            ends,
            state: State::Idle,
            number: any_number(),
            epoch,
            snapshots,
            begun: facts.clock.now(),
            was_cancelled: false,
            failing: None,
            has_given_up: false,
        })
    }

    /// Ends the writing thread after its present job.
    pub(crate) fn end(self) {
        drop(self.jobs);
        let _ = self.thread.join();
    }

    /// Returns the epoch of the last that was written.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(crate) fn is_first(&self) -> bool {
        self.epoch == 0
    }

    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.state, State::Idle)
    }

    /// Returns whether one is being written: it counts as soon as that is done.
    pub(crate) fn is_writing(&self) -> bool {
        matches!(self.state, State::Writing(..))
    }

    /// Returns whether the end of the run is written, or may be. Then only closing the sinks is left.
    pub(crate) fn is_of_the_end(&self) -> bool {
        self.epoch == CLOSED || matches!(self.state, State::Writing(CLOSED, _))
    }

    /// Returns whether the last that was begun was given up for a host that was lost.
    pub(crate) fn was_cancelled(&self) -> bool {
        self.was_cancelled
    }

    /// Returns why the last one could not be written.
    pub(crate) fn failing(&self) -> Option<&str> {
        self.failing.as_ref().map(|(_, text)| text.as_str())
    }

    /// Returns whether the run fails because none can be written.
    pub(crate) fn has_given_up(&self) -> bool {
        self.has_given_up
    }

    /// Returns whether it is time for a checkpoint of `epoch`.
    pub(crate) fn is_due(&self, epoch: Epoch) -> bool {
        self.is_wanted(epoch) && self.facts.clock.now() - self.begun >= self.interval
    }

    /// Returns the real time until a checkpoint of `epoch` is due; none: never, or the clock does not run by itself.
    pub(crate) fn due_in(&self, epoch: Epoch) -> Option<Duration> {
        self.is_wanted(epoch).then(|| self.facts.clock.real_time_until(self.begun + self.interval))?
    }

    fn is_wanted(&self, epoch: Epoch) -> bool {
        !self.is_busy() && epoch > self.epoch && epoch != CLOSED
    }

    /// Begins a checkpoint. Returns the request for all hosts.
    pub(crate) fn begin(&mut self, epoch: Epoch, is_complete: bool, hosts: usize) -> PartRequest {
        let facts = &self.facts;
        let now = facts.clock.now();
        (self.begun, self.was_cancelled) = (now, false);
        self.number = self.number.wrapping_add(1);
        let (number, from, snapshots) = (self.number, self.epoch, self.snapshots.clone());
        let request = PartRequest { number, epoch, from, snapshots, is_complete };
        let elapsed =
            now - facts.started.load(Ordering::Acquire) + facts.elapsed_before.load(Ordering::Acquire);
        // Everything before the epoch is durable, so its letters are published. Those that come meanwhile belong to
        // the next one.
        let letters = facts.letters.durable(epoch).and_then(|()| facts.letters.past());
        let letters = letters.map_err(|error| operator_error("dead letters", error).to_string());
        let parts = BTreeMap::new();
        self.state = State::Gathering { request: request.clone(), elapsed, parts, hosts, letters };
        request
    }

    /// Gives up the checkpoint: a host that should contribute is lost.
    pub(crate) fn cancel(&mut self) {
        if matches!(self.state, State::Gathering { .. }) {
            (self.state, self.was_cancelled) = (State::Idle, true);
        }
    }

    /// Reads the last checkpoint again, unless a checkpoint is under way.
    pub(crate) fn read(&mut self) {
        self.cancel();
        if !self.is_busy() && self.jobs.send(Job::Read).is_ok() {
            self.state = State::Reading;
        }
    }

    /// The last checkpoint was read.
    pub(crate) fn was_read(&mut self) {
        self.state = State::Idle;
    }

    /// Adds the answer of a host.
    pub(crate) fn part(&mut self, host: usize, number: u64, part: Result<Option<Part>, String>) -> Step {
        let State::Gathering { request, parts, hosts, .. } = &mut self.state else { return Step::GoesOn };
        if number != request.number {
            return Step::GoesOn;
        }
        match part {
            Ok(Some(part)) => {
                parts.insert(host, part);
                if parts.len() < *hosts {
                    return Step::GoesOn;
                }
            }
            Ok(None) => {
                self.state = State::Idle;
                return Step::GoesOn;
            }
            Err(text) => return self.failed(text),
        }
        let State::Gathering { request, elapsed, parts, letters, .. } =
            std::mem::replace(&mut self.state, State::Idle)
        else {
            return Step::GoesOn;
        };
        let letters = match letters {
            Ok(letters) => letters,
            Err(text) => return self.failed(text),
        };
        let mut whole = Part::default();
        for part in parts.into_values() {
            whole.stages.extend(part.stages);
            whole.sources.extend(part.sources);
            whole.sinks.extend(part.sinks);
        }
        let newest = whole.stages.iter().filter_map(|(stage, change)| {
            let (epoch, _) = change.snapshot.as_ref()?;
            Some((stage.clone(), *epoch))
        });
        let writing = State::Writing(request.epoch, newest.collect());
        if self.jobs.send(Job::Write { request, elapsed, part: whole, letters }).is_err() {
            return self.failed("the thread for it is gone".to_owned());
        }
        self.state = writing;
        Step::GoesOn
    }

    /// Records that the run ends before its sources do.
    pub(crate) fn end_early(&self) {
        self.ends.end_early();
    }

    /// Handles the end of a write; `false`: the checkpoint will not be kept.
    pub(crate) fn written(&mut self, result: Result<bool, String>) -> Step {
        let State::Writing(epoch, snapshots) = std::mem::replace(&mut self.state, State::Idle) else {
            return Step::GoesOn;
        };
        match result {
            Ok(false) => Step::GoesOn,
            Ok(true) => {
                self.epoch = epoch;
                self.snapshots.extend(snapshots);
                if self.failing.take().is_some() {
                    tracing::warn!("checkpoints are written again");
                }
                Step::Written(epoch)
            }
            Err(text) => self.failed(text),
        }
    }

    fn failed(&mut self, text: String) -> Step {
        self.state = State::Idle;
        let now = self.facts.clock.now();
        if self.failing.as_ref().is_none_or(|(_, before)| plain(before) != plain(&text)) {
            tracing::warn!(
                "a checkpoint cannot be written: {text}; it is tried again, and the run ends if that fails for {} s",
                GIVES_UP_AFTER / 1_000_000_000
            );
        }
        // The store may have tried for long itself.
        let since = self.failing.as_ref().map_or(self.begun, |(since, _)| *since);
        self.failing = Some((since, text.clone()));
        self.has_given_up = now - since >= GIVES_UP_AFTER;
        match self.has_given_up {
            true => Step::GivesUp(text),
            false => Step::GoesOn,
        }
    }
}

/// Removes words with digits, which may differ each time, such as the name of an object.
fn plain(text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric());
    words.filter(|word| !word.contains(|c: char| c.is_ascii_digit())).collect::<Vec<_>>().join(" ")
}

/// Returns a number from which no other coordinator starts: its hosts may answer the last request of a former one
/// late.
fn any_number() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Assembles a checkpoint, on the thread that writes it.
fn whole(request: PartRequest, elapsed: Nanoseconds, part: Part, letters: LettersPast) -> Checkpoint {
    let Part { stages, sources, sinks } = part;
    let PartRequest { epoch, is_complete, .. } = request;
    Checkpoint { epoch, elapsed, is_complete, stages, sources, sinks, letters, restarts: 0 }
}
