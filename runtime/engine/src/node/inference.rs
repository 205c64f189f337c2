//! Runs an inference operator: batches go to an executor and return; their epochs stay held meanwhile.
//!
//! The rule for starting a batch is in [`tidemill_spec::batching`], which the simulator uses too.
use super::stateless::panic_letter;
use super::{Emit, Node, Processing};
use crate::clock::Nanoseconds;
use crate::context::{Account, SlotContext, StageContext};
use crate::executor::{Completion, Job, JobResult, ModelExecutor};
use crate::failure::{OnPanic, RunError, SlotEnd};
use crate::frame::Epoch;
use crate::freshness::{FreshnessQueue, Waiting};
use crate::metrics::count;
use crate::traces::Happening;
use arrow_array::{BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidemill_operators::record::{Metadata, RecordId, batch_bytes};
use tidemill_spec::batching::{Batching, Load, Step};

/// Origin of a row of a job: its source record. Rows of one job with equal origin share their epoch.
type Origin = (u32, u64);

/// A job without a result yet.
struct InFlight {
    /// Parts of one epoch each.
    parts: Vec<Waiting>,
    bytes: usize,
    rows: usize,
    first_epoch: Epoch,
}

impl InFlight {
    /// Epoch of one of its records.
    fn epoch_of(&self, id: RecordId) -> Option<Epoch> {
        let is_in = |part: &&Waiting| {
            let metadata = Metadata::of(&part.batch);
            (0..part.batch.num_rows()).any(|row| metadata.id(row) == id)
        };
        self.parts.iter().find(is_in).map(|part| part.epoch)
    }

    /// Epochs by origin; `None` if all parts have one epoch.
    fn epochs(&self) -> Option<HashMap<Origin, Epoch>> {
        if self.parts.iter().all(|part| part.epoch == self.first_epoch) {
            return None;
        }
        let origins = self.parts.iter().flat_map(|part| {
            let metadata = Metadata::of(&part.batch);
            (0..part.batch.num_rows()).map(move |row| (origin(&metadata, row), part.epoch))
        });
        Some(origins.collect())
    }
}

fn origin(metadata: &Metadata<'_>, row: usize) -> Origin {
    (metadata.sources.value(row), metadata.sequences.value(row))
}

pub(crate) struct InferenceNode {
    slot: Rc<SlotContext>,
    stage: StageContext,
    executor: Arc<dyn ModelExecutor>,
    incarnation: u32,
    batching: Batching,
    queue: FreshnessQueue,
    account: Account,
    /// Suspects that are computed alone, before the queue.
    alone: VecDeque<Waiting>,
    in_flight: BTreeMap<u64, InFlight>,
    /// Jobs that ended before earlier ones: they wait for those, so that records leave in the order of arrival.
    ended: BTreeMap<u64, Completion>,
    next_job: u64,
    /// The last reported number of records that wait or are computed.
    told: i64,
    index: usize,
}

impl Drop for InferenceNode {
    fn drop(&mut self) {
        self.stage.metrics.waiting.change(&mut self.told, 0);
    }
}

impl InferenceNode {
    #[expect(clippy::too_many_arguments, reason = "the parts of one stage, each of another kind")]
    pub(crate) fn new(
        slot: Rc<SlotContext>,
        stage: StageContext,
        executor: Arc<dyn ModelExecutor>,
        incarnation: u32,
        batching: Batching,
        queue: FreshnessQueue,
        account: Account,
        index: usize,
    ) -> Self {
        Self {
            slot,
            stage,
            executor,
            incarnation,
            batching,
            queue,
            account,
            alone: VecDeque::new(),
            in_flight: BTreeMap::new(),
            ended: BTreeMap::new(),
            next_job: 0,
            told: 0,
            index,
        }
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
            let Some(since) = self.queue.waits_since() else { return };
            let most = self.executor.concurrency().and_then(|own| own.in_flight);
            if most.is_some_and(|most| self.in_flight.len() >= most.max(1)) {
                return;
            }
            let load = Load {
                waiting: self.queue.rows(),
                since,
                running: self.in_flight.len() - self.ended.len(),
                in_flight: self.in_flight.len(),
                copies: self.executor.copies(),
            };
            match self.batching.step(load, self.slot.now()) {
                // Starts a batch of all waiting rows, or fewer if an epoch limits it.
                Step::Start(_) => {}
                Step::Wait(due) => {
                    self.slot.wake_at(due, self.index);
                    return;
                }
                Step::Nothing => return,
            }
            let batch = self.next_batch();
            self.submit(batch);
        }
    }

    /// Takes up to `max_batch` rows; stops where a source record comes a second time in another epoch, because results are
    /// identified by their source record.
    fn next_batch(&mut self) -> Vec<Waiting> {
        let mut parts: Vec<Waiting> = Vec::new();
        let mut rows = 0;
        // Only needed from the second epoch on.
        let mut epochs: Option<HashMap<Origin, Epoch>> = None;
        while rows < self.batching.max_batch() {
            let Some(mut waiting) = self.queue.pop() else { break };
            let mut take = waiting.batch.num_rows().min(self.batching.max_batch() - rows);
            if epochs.is_none() && parts.first().is_some_and(|first| first.epoch != waiting.epoch) {
                let taken = parts.iter().flat_map(|part| {
                    let metadata = Metadata::of(&part.batch);
                    (0..part.batch.num_rows()).map(move |row| (origin(&metadata, row), part.epoch))
                });
                epochs = Some(taken.collect());
            }
            if let Some(epochs) = &mut epochs {
                let metadata = Metadata::of(&waiting.batch);
                let fits = |row: &usize| {
                    *epochs.entry(origin(&metadata, *row)).or_insert(waiting.epoch) == waiting.epoch
                };
                take = (0..take).take_while(fits).count();
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
        let Some(first_epoch) = parts.iter().map(|part| part.epoch).min() else { return };
        let bytes = parts.iter().map(|part| part.bytes).sum();
        let rows = parts.iter().map(|part| part.batch.num_rows()).sum();
        let id = self.next_job;
        self.next_job += 1;
        let batches = parts.iter().map(|part| part.batch.clone()).collect();
        self.executor.submit(Job { id, incarnation: self.incarnation, parts: batches, bytes });
        self.in_flight.insert(id, InFlight { parts, bytes, rows, first_epoch });
    }

    /// Takes finished jobs from the executor, in the order of submission.
    fn complete_all(&mut self, out: &mut Emit) {
        let is_ordered = self.executor.concurrency().is_none_or(|own| own.is_ordered);
        while let Some(completion) = self.executor.completion() {
            if completion.incarnation == self.incarnation && self.in_flight.contains_key(&completion.id) {
                match is_ordered {
                    true => drop(self.ended.insert(completion.id, completion)),
                    false => self.complete(completion, out),
                }
            }
        }
        while let Some((first, _)) = self.in_flight.first_key_value()
            && let Some(completion) = self.ended.remove(first)
        {
            self.complete(completion, out);
        }
    }

    fn complete(&mut self, completion: Completion, out: &mut Emit) {
        let Some(job) = self.in_flight.remove(&completion.id) else { return };
        let metrics = &self.stage.metrics;
        match completion.result {
            JobResult::Done(mut output) => {
                self.account.release(job.bytes);
                let rows = job.rows as u64;
                let elapsed = completion.finished - completion.started;
                for Waiting { batch, arrived, .. } in &job.parts {
                    metrics.queue.record(completion.started - arrived, batch.num_rows() as u64);
                    let times = (completion.started, completion.finished);
                    self.slot.trace(&self.stage, (None, Happening::Queue), batch, (*arrived, times.0));
                    let what = (Some(Happening::Queue), Happening::Compute);
                    self.slot.trace(&self.stage, what, batch, times);
                    self.slot.mark(&self.stage, batch, &mut output.dead_letters);
                }
                metrics.computed(elapsed, rows);
                if let Some(times) = &output.device {
                    metrics.computed_on_device(elapsed, rows, times, self.slot.clock.dilation());
                }
                metrics.batch_sizes.record(rows);
                self.batching.served(elapsed);
                // Each letter at the epoch of its record: batches may be cut differently in a replay.
                for letter in output.dead_letters.drain(..) {
                    let epoch = letter.id.and_then(|id| job.epoch_of(id)).unwrap_or(job.first_epoch);
                    self.stage.dead_letter(&self.slot, epoch, letter);
                }
                self.stage.account(&self.slot, job.first_epoch, &mut output);
                let epochs = job.epochs();
                for batch in output.batches {
                    match &epochs {
                        None => out.give(job.first_epoch, batch),
                        Some(epochs) => emit_by_epoch(epochs, job.first_epoch, batch, out),
                    }
                }
            }
            JobResult::Cancelled => {
                // Only jobs of former incarnations are cancelled, and those were sorted out above.
                self.account.release(job.bytes);
                self.stage.operator_failed(&self.slot, "the executor cancelled a job that is waited for");
            }
            JobResult::Failed(error) => {
                self.account.release(job.bytes);
                self.stage.operator_failed(&self.slot, error);
            }
            JobResult::Panicked(text) => self.panicked(job, &text),
            JobResult::Lost(text) => {
                self.account.release(job.bytes);
                let instance = self.stage.instance.clone();
                let parts = job.parts.into_iter().map(|part| part.batch).collect();
                self.slot.end_with(SlotEnd::ExecutorLost { instance, text, parts });
            }
        }
    }

    fn panicked(&mut self, job: InFlight, text: &str) {
        if self.stage.on_panic == OnPanic::Stop {
            self.account.release(job.bytes);
            self.slot.fail(RunError::Panic { operator: self.stage.operator.clone(), text: text.to_owned() });
            return;
        }
        tracing::warn!(operator = %self.stage.operator, rows = job.rows, "the model panicked: {text}");
        self.stage.metrics.restarts.fetch_add(1, Ordering::Relaxed);
        let parts: Vec<&RecordBatch> = job.parts.iter().map(|part| &part.batch).collect();
        self.stage.suspects.record_panic_of(&parts, text);
        self.account.release(job.bytes);
        // Row by row; the next try goes through `receive`-like queueing again.
        for part in &job.parts {
            for row in 0..part.batch.num_rows() {
                self.enqueue(part.epoch, part.batch.slice(row, 1), part.arrived);
            }
        }
    }

    fn enqueue(&mut self, epoch: Epoch, batch: RecordBatch, arrived: Nanoseconds) {
        let (portions, guilty) = self.stage.suspects.split(epoch, batch);
        for (record, text) in guilty {
            let mut letter = panic_letter(&record, &text);
            self.slot.mark(&self.stage, &record, std::slice::from_mut(&mut letter));
            self.stage.dead_letter(&self.slot, epoch, letter);
        }
        for portion in portions {
            let before = self.queue.bytes();
            if portion.alone {
                let bytes = batch_bytes(&portion.batch);
                self.account.hold(bytes);
                self.alone.push_back(Waiting { epoch, batch: portion.batch, bytes, arrived, since: arrived });
                continue;
            }
            let dropped = self.queue.push(epoch, portion.batch, arrived, !self.in_flight.is_empty());
            self.stage.metrics.drops.add("freshness", dropped);
            self.account.change(before, self.queue.bytes());
        }
    }
}

/// Emits the rows of a result at the epochs of the rows they came from.
fn emit_by_epoch(known: &HashMap<Origin, Epoch>, first: Epoch, batch: RecordBatch, out: &mut Emit) {
    let metadata = Metadata::of(&batch);
    // A model that invents origins emits at the first epoch of its batch.
    let epoch = |row| known.get(&origin(&metadata, row)).copied().unwrap_or(first);
    let epochs: Vec<Epoch> = (0..batch.num_rows()).map(epoch).collect();
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
        self.batching.arrived(now, batch.num_rows());
        self.enqueue(epoch, batch, now);
    }

    fn run(&mut self, _frontier: Epoch, out: &mut Emit) {
        self.complete_all(out);
        self.submit_what_is_due();
        // The queue holds the most that may be in flight.
        let enough = self.batching.max_batch() * self.batching.ahead(self.executor.copies());
        let queued = self.queue.rows();
        self.account.set_full(self.queue.keeps_all() && queued >= enough);
        let alone: usize = self.alone.iter().map(|waiting| waiting.batch.num_rows()).sum();
        let in_flight: usize = self.in_flight.values().map(|job| job.rows).sum();
        self.stage.metrics.waiting.change(&mut self.told, (queued + alone + in_flight) as i64);
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

#[cfg(test)]
pub(super) mod tests;
