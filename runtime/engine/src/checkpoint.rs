//! Checkpoints that outlive the process: what another process needs to continue the run.
//!
//! A checkpoint is of one epoch: everything before it is durable in all sinks. It has the past of every stateful stage up to
//! that epoch (a snapshot and the calls since, of which only the new ones are written), where every source stood, and
//! what every sink has committed, which may be more: a sink drops the rows of epochs that it knows, so that what is repeated from
//! the checkpoint on comes out once. Nothing is written on the threads of the slots.
//!
//! Repeating needs sources that can be read again and epochs that depend on the records alone ([`crate::Cut`]).
use crate::clock::Nanoseconds;
use crate::failure::{RunError, operator_error};
use crate::frame::{CLOSED, Epoch};
use crate::node::sink::lock;
use crate::report::RunFacts;
use crate::slot::SlotShared;
use crate::store::{Call, EpochLog, StageDelta};
use crate::supervisor::Event;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use crossbeam_channel::{Receiver, Sender, bounded};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

/// Keeps checkpoints, one after the other.
pub trait CheckpointWriter: Send {
    /// Makes a checkpoint durable; the one before may be forgotten when this returns.
    ///
    /// # Errors
    /// Why it cannot be written, and what to do. The one before must still hold; the run tries again for a while.
    fn write(&mut self, checkpoint: Checkpoint) -> Result<(), String>;
}

/// A run that another process can continue.
pub struct Durability {
    /// Takes the checkpoints.
    pub writer: Box<dyn CheckpointWriter>,
    /// The checkpoint to continue from.
    pub past: Option<Past>,
    /// Least engine time between two checkpoints.
    pub interval: Duration,
}

/// What is new since the checkpoint before.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// Everything before this epoch is durable; [`CLOSED`]: the run has come to its end, and only its sinks are to be closed.
    pub epoch: Epoch,
    /// Engine time since the run began, the time between two processes left out.
    pub elapsed: Nanoseconds,
    /// The sinks are closed too: there is nothing to continue.
    pub is_complete: bool,
    /// By instance of a stateful stage.
    pub stages: BTreeMap<String, StageChange>,
    /// By source stage.
    pub sources: BTreeMap<String, EpochLog>,
    /// By sink.
    pub sinks: BTreeMap<String, SinkPast>,
    /// Dead letters.
    pub letters: LettersPast,
}

/// What has become of the state of a stage.
#[derive(Debug, Clone)]
pub struct StageChange {
    /// A new state "all of the epochs before this one", in place of all that was written before.
    pub snapshot: Option<(Epoch, Arc<Vec<u8>>)>,
    /// Calls of the epochs `from..upto`, which follow the snapshot or what was written before; opaque.
    pub calls: Vec<u8>,
    /// See `calls`.
    pub from: Epoch,
    /// See `calls`.
    pub upto: Epoch,
}

/// What a sink has committed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkPast {
    /// All epochs before it.
    pub committed: Epoch,
    /// Rows, of all processes.
    pub rows: u64,
    /// What the sink continues from; none: it cannot be continued, and repeats what it has given since.
    pub token: Option<Vec<u8>>,
}

/// The dead letters that were written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LettersPast {
    /// Those of all epochs before this one.
    pub epoch: Epoch,
    /// What the writer continues from.
    pub token: Option<Vec<u8>>,
}

/// A checkpoint to continue from.
#[derive(Debug, Clone, Default)]
pub struct Past {
    /// As in [`Checkpoint`].
    pub epoch: Epoch,
    /// As in [`Checkpoint`].
    pub elapsed: Nanoseconds,
    /// By instance of a stateful stage.
    pub stages: BTreeMap<String, StagePast>,
    /// By source stage.
    pub sources: BTreeMap<String, EpochLog>,
    /// By sink.
    pub sinks: BTreeMap<String, SinkPast>,
    /// Dead letters; its token is for whoever makes the writer.
    pub letters: LettersPast,
}

/// The past of a stage, put together from its changes.
#[derive(Debug, Clone, Default)]
pub struct StagePast {
    /// The newest snapshot.
    pub snapshot: (Epoch, Vec<u8>),
    /// The calls since, in order.
    pub calls: Vec<Vec<u8>>,
}

/// What is written in front of each call.
#[derive(Serialize, Deserialize)]
enum Head {
    Apply { epoch: Epoch, port: usize, bytes: usize },
    Advance { epoch: Epoch, watermark: i64 },
}

/// Calls as bytes: for each a line of JSON, then its rows as an Arrow IPC stream.
pub(crate) fn encode(calls: &[(Epoch, Call)]) -> Result<Vec<u8>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("a call cannot be written: {error}");
    let mut out = Vec::new();
    for (epoch, call) in calls {
        let mut rows = Vec::new();
        let head = match call {
            Call::Advance(watermark) => Head::Advance { epoch: *epoch, watermark: *watermark },
            Call::Apply(port, batch) => {
                let mut writer =
                    StreamWriter::try_new(&mut rows, &batch.schema()).map_err(|error| failed(&error))?;
                writer.write(batch).and_then(|()| writer.finish()).map_err(|error| failed(&error))?;
                drop(writer);
                Head::Apply { epoch: *epoch, port: *port, bytes: rows.len() }
            }
        };
        serde_json::to_writer(&mut out, &head).map_err(|error| failed(&error))?;
        out.push(b'\n');
        out.extend_from_slice(&rows);
    }
    Ok(out)
}

/// The calls that [`encode`] wrote.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<(Epoch, Call)>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("calls of the state cannot be read: {error}");
    let (mut calls, mut left) = (Vec::new(), bytes);
    while !left.is_empty() {
        let end = left.iter().position(|byte| *byte == b'\n').ok_or_else(|| failed(&"they are cut off"))?;
        let head: Head = serde_json::from_slice(&left[..end]).map_err(|error| failed(&error))?;
        left = &left[end + 1..];
        match head {
            Head::Advance { epoch, watermark } => calls.push((epoch, Call::Advance(watermark))),
            Head::Apply { epoch, port, bytes } => {
                let (rows, rest) = left.split_at_checked(bytes).ok_or_else(|| failed(&"they are cut off"))?;
                left = rest;
                let reader =
                    StreamReader::try_new(Cursor::new(rows), None).map_err(|error| failed(&error))?;
                for batch in reader {
                    calls.push((epoch, Call::Apply(port, batch.map_err(|error| failed(&error))?)));
                }
            }
        }
    }
    Ok(calls)
}

/// What the writing thread is given.
struct Job {
    epoch: Epoch,
    elapsed: Nanoseconds,
    is_complete: bool,
    stages: BTreeMap<String, StageDelta>,
    sources: BTreeMap<String, EpochLog>,
}

/// A run whose checkpoints cannot be written fails after so much engine time: until then it keeps all that they lack.
const GIVES_UP_AFTER: Nanoseconds = 30_000_000_000;

/// Decides when a checkpoint is written, and has it written on another thread.
pub(crate) struct Checkpoints {
    facts: Arc<RunFacts>,
    shared: Arc<SlotShared>,
    interval: Nanoseconds,
    /// Source stages that are read side by side: a checkpoint needs their places in just this epoch.
    seated: BTreeSet<String>,
    jobs: Option<Sender<Job>>,
    written: Receiver<Result<(), String>>,
    /// Being written: its epoch, and the newest snapshots with it.
    pending: Option<(Epoch, BTreeMap<String, Epoch>)>,
    epoch: Epoch,
    snapshots: BTreeMap<String, Epoch>,
    /// When the last one was begun.
    begun: Nanoseconds,
    /// Since when none could be written, and why.
    failing: Option<(Nanoseconds, String)>,
}

impl Checkpoints {
    /// Starts the writing thread. `past`: the epoch and the snapshots that are written already.
    pub(crate) fn start(
        facts: &Arc<RunFacts>,
        shared: &Arc<SlotShared>,
        mut writer: Box<dyn CheckpointWriter>,
        interval: Duration,
        past: (Epoch, BTreeMap<String, Epoch>),
        seated: BTreeSet<String>,
        events: Sender<Event>,
    ) -> Result<Self, RunError> {
        let (jobs, waiting) = bounded::<Job>(1);
        let (written_sender, written) = bounded(1);
        let of_thread = Arc::clone(facts);
        std::thread::Builder::new()
            .name("tm-checkpoint".into())
            .spawn(move || {
                for job in waiting {
                    let result = checkpoint(&of_thread, job).and_then(|checkpoint| writer.write(checkpoint));
                    if written_sender.send(result).is_err() {
                        return;
                    }
                    let _ = events.send(Event::Durable);
                }
            })
            .map_err(|error| RunError::System(format!("no thread for checkpoints: {error}")))?;
        let (epoch, snapshots) = past;
        shared.snapshots.keep_from(epoch);
        shared.epochs.keep_from(epoch);
        Ok(Self {
            facts: Arc::clone(facts),
            shared: Arc::clone(shared),
            interval: interval.as_nanos() as Nanoseconds,
            seated,
            jobs: Some(jobs),
            written,
            pending: None,
            epoch,
            snapshots,
            begun: facts.clock.now(),
            failing: None,
        })
    }

    /// Writes the first checkpoint of a run that begins, so that its outputs are known to be its own from now on.
    pub(crate) fn first(&mut self) -> Result<(), RunError> {
        if self.epoch > 0 {
            return Ok(());
        }
        self.begin(0, false);
        self.wait()?;
        match self.failing.take() {
            Some((_, text)) => {
                Err(RunError::System(format!("the first checkpoint cannot be written: {text}")))
            }
            None => Ok(()),
        }
    }

    /// Writes a checkpoint of `epoch` if it is time for one; an error when none could be written for too long.
    pub(crate) fn advance(&mut self, epoch: Epoch) -> Result<(), RunError> {
        if let Ok(result) = self.written.try_recv() {
            self.ended(result)?;
        }
        let now = self.facts.clock.now();
        if self.pending.is_some()
            || epoch <= self.epoch
            || epoch == CLOSED
            || now - self.begun < self.interval
        {
            return Ok(());
        }
        self.begin(epoch, false);
        Ok(())
    }

    /// Writes the last checkpoint of this process and waits for it.
    pub(crate) fn finish(&mut self, epoch: Epoch, is_complete: bool) -> Result<(), RunError> {
        self.wait()?;
        if epoch <= self.epoch && !is_complete {
            return Ok(());
        }
        self.begin(epoch, is_complete);
        self.wait()?;
        match &self.failing {
            Some((_, text)) => {
                Err(RunError::System(format!("the last checkpoint cannot be written: {text}")))
            }
            None => Ok(()),
        }
    }

    fn wait(&mut self) -> Result<(), RunError> {
        if self.pending.is_some() {
            let result = self.written.recv().unwrap_or_else(|_| Err("the thread for it is gone".to_owned()));
            self.ended(result)?;
        }
        Ok(())
    }

    fn ended(&mut self, result: Result<(), String>) -> Result<(), RunError> {
        let Some((epoch, snapshots)) = self.pending.take() else { return Ok(()) };
        match result {
            Ok(()) => {
                self.epoch = epoch;
                self.snapshots.extend(snapshots);
                self.shared.snapshots.keep_from(epoch);
                self.shared.epochs.keep_from(epoch);
                self.failing = None;
            }
            Err(text) => {
                tracing::warn!("a checkpoint cannot be written: {text}");
                let now = self.facts.clock.now();
                let since = self.failing.as_ref().map_or(now, |(since, _)| *since);
                self.failing = Some((since, text.clone()));
                if now - since >= GIVES_UP_AFTER {
                    return Err(RunError::System(format!("checkpoints cannot be written: {text}")));
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, epoch: Epoch, is_complete: bool) {
        let sources = self.shared.epochs.since(epoch);
        // Sources that are read side by side cut their epochs together, which a new process begins from one place of each.
        let is_placed = |log: &EpochLog| {
            log.cuts.contains_key(&epoch) || log.end.is_some_and(|end| end.epoch < epoch) || epoch == CLOSED
        };
        if epoch > 0 && !self.seated.iter().all(|source| sources.get(source).is_some_and(is_placed)) {
            return;
        }
        let mut stages = BTreeMap::new();
        if epoch != CLOSED {
            for stage in self.shared.snapshots.stages() {
                let base = self.snapshots.get(&stage).copied();
                // Not known up to here: the next checkpoint will do.
                let Some(delta) = self.shared.snapshots.since(&stage, base, self.epoch, epoch) else {
                    return;
                };
                stages.insert(stage, delta);
            }
        }
        let of = |(stage, delta): (&String, &StageDelta)| Some((stage.clone(), delta.snapshot.as_ref()?.0));
        let snapshots = stages.iter().filter_map(of).collect();
        let now = self.facts.clock.now();
        let elapsed = now - self.facts.started + self.facts.elapsed_before;
        let job = Job { epoch, elapsed, is_complete, stages, sources };
        if self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok()) {
            self.pending = Some((epoch, snapshots));
            self.begun = now;
        }
    }
}

/// Puts a checkpoint together, on the thread that writes it.
fn checkpoint(facts: &RunFacts, job: Job) -> Result<Checkpoint, String> {
    let mut stages = BTreeMap::new();
    for (stage, StageDelta { snapshot, calls, from }) in job.stages {
        let calls = encode(&calls)?;
        stages.insert(stage, StageChange { snapshot, calls, from, upto: job.epoch });
    }
    let mut sinks = BTreeMap::new();
    for (id, cell) in &facts.sinks {
        let mut cell = lock(cell);
        let token = match job.is_complete {
            true => None,
            false => cell.sink.token().map_err(|error| operator_error(id, error).to_string())?,
        };
        let rows = cell.rows_before + cell.rows;
        sinks.insert(id.clone(), SinkPast { committed: cell.committed, rows, token });
    }
    let letters = facts.letters.past().map_err(|error| operator_error("dead letters", error).to_string())?;
    Ok(Checkpoint {
        epoch: job.epoch,
        elapsed: job.elapsed,
        is_complete: job.is_complete,
        stages,
        sources: job.sources,
        sinks,
        letters,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};

    #[test]
    fn calls_come_back_as_they_were() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "", "\n{"]));
        let first = RecordBatch::try_from_iter([("n", Arc::clone(&numbers))]).expect("a batch");
        let second = RecordBatch::try_from_iter([("n", numbers), ("t", texts)]).expect("a batch");
        let calls =
            vec![(4, Call::Apply(0, first)), (4, Call::Advance(-5)), (7, Call::Apply(1, second.slice(1, 2)))];
        let bytes = encode(&calls).expect("encodes");
        assert_eq!(format!("{:?}", decode(&bytes).expect("decodes")), format!("{calls:?}"));
        for cut in 1..bytes.len() {
            let found = decode(&bytes[..cut]).map_or(0, |calls| calls.len());
            assert!(found < calls.len(), "{cut} bytes");
        }
    }
}
