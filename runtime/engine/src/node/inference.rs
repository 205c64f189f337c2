//! Runs an inference operator: batches go to an executor and come back; the epochs stay held meanwhile.
//!
//! Batching is adaptive. A free model takes what waits as soon as it is as much as arrives during one
//! computation, so a light load is never delayed and a heavy one fills its batches; it waits for more at most
//! the batching budget that the plan gives.
use super::stateless::panic_letter;
use super::{Emit, Node, Processing};
use crate::clock::Nanoseconds;
use crate::context::{Account, SlotContext, StageContext};
use crate::executor::{Completion, Job, JobResult, ModelExecutor};
use crate::failure::{OnPanic, RunError};
use crate::frame::Epoch;
use crate::freshness::{FreshnessQueue, Waiting};
use crate::metrics::count;
use crate::order;
use arrow_array::{BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidemill_operators::record::{Metadata, RecordId, batch_bytes};

/// Where a row of a job came from: its source record. Rows of one job with the same origin share their epoch.
type Origin = (u32, u64);

struct InFlight {
    batch: RecordBatch,
    bytes: usize,
    first_epoch: Epoch,
    epochs: HashMap<Origin, Epoch>,
    /// When its rows came to the stage, with how many came together.
    arrivals: Vec<(Nanoseconds, u64)>,
}

impl InFlight {
    /// Epoch of one of its records.
    fn epoch_of(&self, id: RecordId) -> Option<Epoch> {
        let metadata = Metadata::of(&self.batch);
        let row = (0..self.batch.num_rows()).find(|row| metadata.id(*row) == id)?;
        self.epochs.get(&(metadata.sources.value(row), metadata.sequences.value(row))).copied()
    }
}

/// Settings of an inference stage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batching {
    pub(crate) max_batch: usize,
    pub(crate) budget: Nanoseconds,
}

pub(crate) struct InferenceNode {
    slot: Rc<SlotContext>,
    stage: StageContext,
    executor: Arc<dyn ModelExecutor>,
    generation: u32,
    batching: Batching,
    queue: FreshnessQueue,
    account: Account,
    /// Suspects that are computed alone, before the queue.
    alone: VecDeque<Waiting>,
    in_flight: HashMap<u64, InFlight>,
    next_job: u64,
    index: usize,
    /// Smoothed time between arriving rows, and computation time of one batch, nanoseconds.
    interval: f64,
    service: f64,
    last_arrival: Nanoseconds,
}

impl InferenceNode {
    #[expect(clippy::too_many_arguments, reason = "the parts of one stage, each of another kind")]
    pub(crate) fn new(
        slot: Rc<SlotContext>,
        stage: StageContext,
        executor: Arc<dyn ModelExecutor>,
        generation: u32,
        batching: Batching,
        queue: FreshnessQueue,
        account: Account,
        index: usize,
    ) -> Self {
        Self {
            slot,
            stage,
            executor,
            generation,
            batching,
            queue,
            account,
            alone: VecDeque::new(),
            in_flight: HashMap::new(),
            next_job: 0,
            index,
            interval: f64::INFINITY,
            service: 0.0,
            last_arrival: 0,
        }
    }

    fn note_arrival(&mut self, now: Nanoseconds, rows: usize) {
        let gap = (now - self.last_arrival).max(1) as f64 / rows as f64;
        self.interval = if self.interval.is_finite() { 0.8 * self.interval + 0.2 * gap } else { gap };
        self.last_arrival = now;
    }

    /// How many waiting rows make a batch worth starting now.
    fn target(&self) -> usize {
        if self.batching.budget == 0 {
            return 1;
        }
        ((self.service / self.interval) as usize).clamp(1, self.batching.max_batch)
    }

    /// How many full batches may be with the executor: one beside the one that runs, and more of a quick model,
    /// so that one wake-up serves a millisecond of work.
    fn ahead(&self) -> usize {
        const WORK_AHEAD: f64 = 1e6;
        if self.service == 0.0 { 2 } else { ((WORK_AHEAD / self.service) as usize).clamp(2, 64) }
    }

    fn submit_what_is_due(&mut self) {
        loop {
            if let Some(waiting) = self.alone.front() {
                if !self.in_flight.is_empty() {
                    return;
                }
                let waiting = Waiting { batch: waiting.batch.clone(), ..*waiting };
                self.alone.pop_front();
                self.submit(vec![waiting]);
                return;
            }
            let Some(oldest) = self.queue.front() else { return };
            let rows = self.queue.rows();
            let now = self.slot.now();
            match self.in_flight.len() {
                0 => {
                    let due = oldest.arrived + self.batching.budget;
                    if rows < self.target() && now < due {
                        self.slot.wake_at(due, self.index);
                        return;
                    }
                }
                // Batches wait in the executor only when they are full anyway: then nothing is lost by not
                // waiting, and the model never idles while this thread wakes up.
                waiting if rows >= self.batching.max_batch && waiting < self.ahead() => {}
                _ => return,
            }
            let batch = self.next_batch();
            self.submit(batch);
        }
    }

    /// Takes up to `max_batch` rows; stops where a source record comes a second time in another epoch,
    /// because results are told apart by their source record.
    fn next_batch(&mut self) -> Vec<Waiting> {
        let mut parts: Vec<Waiting> = Vec::new();
        let mut rows = 0;
        let mut epochs: HashMap<Origin, Epoch> = HashMap::new();
        while rows < self.batching.max_batch {
            let Some(mut waiting) = self.queue.pop() else { break };
            let metadata = Metadata::of(&waiting.batch);
            let mut take = waiting.batch.num_rows().min(self.batching.max_batch - rows);
            if !parts.is_empty() || take > 1 {
                for row in 0..take {
                    let origin = (metadata.sources.value(row), metadata.sequences.value(row));
                    if *epochs.entry(origin).or_insert(waiting.epoch) != waiting.epoch {
                        take = row;
                        break;
                    }
                }
            } else {
                epochs.insert((metadata.sources.value(0), metadata.sequences.value(0)), waiting.epoch);
            }
            if take < waiting.batch.num_rows() {
                let rest = waiting.batch.slice(take, waiting.batch.num_rows() - take);
                let bytes = batch_bytes(&rest).min(waiting.bytes);
                waiting.bytes -= bytes;
                waiting.batch = waiting.batch.slice(0, take);
                self.queue.push_front(Waiting { batch: rest, bytes, ..waiting });
            }
            if take == 0 {
                break;
            }
            rows += take;
            parts.push(waiting);
        }
        parts
    }

    fn submit(&mut self, parts: Vec<Waiting>) {
        let mut epochs = HashMap::new();
        let mut arrivals = Vec::with_capacity(parts.len());
        let (mut bytes, mut first_epoch) = (0, Epoch::MAX);
        let mut batches = Vec::with_capacity(parts.len());
        for part in parts {
            let metadata = Metadata::of(&part.batch);
            for row in 0..part.batch.num_rows() {
                epochs.insert((metadata.sources.value(row), metadata.sequences.value(row)), part.epoch);
            }
            arrivals.push((part.arrived, part.batch.num_rows() as u64));
            bytes += part.bytes;
            first_epoch = first_epoch.min(part.epoch);
            batches.push(part.batch);
        }
        let Some(batch) = order::join(batches) else { return };
        let id = self.next_job;
        self.next_job += 1;
        self.executor.submit(Job { id, generation: self.generation, batch: batch.clone(), deadline: None });
        self.in_flight.insert(id, InFlight { batch, bytes, first_epoch, epochs, arrivals });
    }

    fn complete(&mut self, completion: Completion, out: &mut Emit) {
        if completion.generation != self.generation {
            return;
        }
        let Some(job) = self.in_flight.remove(&completion.id) else { return };
        let metrics = &self.stage.metrics;
        match completion.result {
            JobResult::Done(mut output) => {
                self.account.release(job.bytes);
                let rows = job.batch.num_rows() as u64;
                let elapsed = completion.finished - completion.started;
                for (arrived, rows) in &job.arrivals {
                    metrics.queue.record(completion.started - arrived, *rows);
                }
                metrics.compute.record(elapsed, rows);
                metrics.batches.fetch_add(1, Ordering::Relaxed);
                metrics.batch_sizes.record(rows);
                let smooth = if self.service == 0.0 { 1.0 } else { 0.2 };
                self.service += smooth * (elapsed as f64 - self.service);
                // Each letter at the epoch of its record: batches may be cut differently in a replay.
                for letter in output.dead_letters.drain(..) {
                    let epoch = letter.id.and_then(|id| job.epoch_of(id)).unwrap_or(job.first_epoch);
                    self.stage.dead_letter(&self.slot, epoch, letter);
                }
                self.stage.account(&self.slot, job.first_epoch, &mut output);
                for batch in output.batches {
                    emit_by_epoch(&job, batch, out);
                }
            }
            JobResult::Cancelled => {
                self.account.release(job.bytes);
                metrics.drops.add("deadline", job.batch.num_rows() as u64);
            }
            JobResult::Failed(error) => {
                self.account.release(job.bytes);
                self.stage.operator_failed(&self.slot, error);
            }
            JobResult::Panicked(text) => self.panicked(job, &text),
        }
    }

    fn panicked(&mut self, job: InFlight, text: &str) {
        if self.stage.on_panic == OnPanic::Stop {
            self.account.release(job.bytes);
            self.slot.fail(RunError::Panic { operator: self.stage.operator.clone(), text: text.to_owned() });
            return;
        }
        tracing::warn!(operator = %self.stage.operator, rows = job.batch.num_rows(), "the model panicked: {text}");
        self.stage.metrics.restarts.fetch_add(1, Ordering::Relaxed);
        self.stage.suspects.accuse(&job.batch, text);
        self.account.release(job.bytes);
        let metadata = Metadata::of(&job.batch);
        let arrived = job.arrivals.first().map_or_else(|| self.slot.now(), |(arrived, _)| *arrived);
        // Row by row with its own epoch; the next try goes through `receive`-like queueing again.
        for row in 0..job.batch.num_rows() {
            let origin = (metadata.sources.value(row), metadata.sequences.value(row));
            let epoch = job.epochs[&origin];
            self.enqueue(epoch, job.batch.slice(row, 1), arrived);
        }
    }

    fn enqueue(&mut self, epoch: Epoch, batch: RecordBatch, arrived: Nanoseconds) {
        let (portions, guilty) = self.stage.suspects.split(batch);
        for (record, text) in guilty {
            self.stage.dead_letter(&self.slot, epoch, panic_letter(&record, &text));
        }
        for portion in portions {
            let before = self.queue.bytes();
            if portion.alone {
                let bytes = batch_bytes(&portion.batch);
                self.account.hold(bytes);
                self.alone.push_back(Waiting { epoch, batch: portion.batch, bytes, arrived });
                continue;
            }
            let dropped = self.queue.push(epoch, portion.batch, arrived, !self.in_flight.is_empty());
            self.stage.metrics.drops.add("freshness", dropped);
            self.account.change(before, self.queue.bytes());
        }
    }
}

/// Emits the rows of a result at the epochs of the rows they came from.
fn emit_by_epoch(job: &InFlight, batch: RecordBatch, out: &mut Emit) {
    let metadata = Metadata::of(&batch);
    let epochs: Vec<Epoch> = (0..batch.num_rows())
        .map(|row| {
            let origin = (metadata.sources.value(row), metadata.sequences.value(row));
            // A model that invents origins emits at the first epoch of its batch.
            job.epochs.get(&origin).copied().unwrap_or(job.first_epoch)
        })
        .collect();
    let mut distinct = epochs.clone();
    distinct.sort_unstable();
    distinct.dedup();
    if let [epoch] = distinct[..] {
        out.give(epoch, batch);
        return;
    }
    for epoch in distinct {
        let mask: BooleanArray = epochs.iter().map(|of| Some(*of == epoch)).collect();
        out.give(epoch, filter_record_batch(&batch, &mask).expect("one flag a row"));
    }
}

impl Node for InferenceNode {
    fn receive(&mut self, _port: usize, epoch: Epoch, batch: RecordBatch, _out: &mut Emit) {
        let now = self.slot.now();
        count(&self.stage.metrics.records_in, batch.num_rows() as u64);
        self.note_arrival(now, batch.num_rows());
        self.enqueue(epoch, batch, now);
    }

    fn run(&mut self, _frontier: Epoch, out: &mut Emit) {
        while let Some(completion) = self.executor.completion() {
            self.complete(completion, out);
        }
        self.submit_what_is_due();
    }

    fn hold(&self, frontier: Epoch) -> Epoch {
        let waiting = self.queue.first_epoch().into_iter();
        let alone = self.alone.iter().map(|waiting| waiting.epoch);
        let in_flight = self.in_flight.values().map(|job| job.first_epoch);
        waiting.chain(alone).chain(in_flight).min().map_or(frontier, |epoch| epoch.min(frontier))
    }

    fn processing(&self) -> Option<Processing> {
        None
    }
}
