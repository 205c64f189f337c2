//! Models that compute on the processors of this machine: each copy on a thread of its own, all taking from one queue.
use super::{
    CPU, CallGate, Completion, ExecutorFactory, ExecutorRequest, ExecutorSpec, Job, JobResult, LocalModel,
    ModelExecutor, Notifier, PreparedModel, Span,
};
use crate::clock::{Clock, Nanoseconds};
use crate::failure::panic_text;
use crate::processor::{ProcessorTime, ThreadMeter};
use arrow_array::RecordBatch;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidemill_machine::thread_time;
use tidemill_operators::api::{Concurrency, MakeInstance, OperatorError};

/// Runs each model on threads of this process.
pub(super) struct LocalExecutors;

impl ExecutorFactory for LocalExecutors {
    fn scheme(&self) -> &str {
        CPU
    }

    fn loads_here(&self) -> bool {
        true
    }

    fn prepare(&self, _spec: &ExecutorSpec, make: &MakeInstance) -> Result<PreparedModel, OperatorError> {
        LocalModel::load(make).map(LocalModel::prepared)
    }

    fn start(&self, request: &ExecutorRequest) -> Result<Arc<dyn ModelExecutor>, OperatorError> {
        start_local(request, &request.make, CPU)
    }

    fn may_be_lost(&self) -> bool {
        false
    }
}

/// Starts an executor with threads of this process, whose models `make` loads, for reports on the device `device`. A model whose
/// computation is elsewhere waits for it on such a thread: with several copies, several batches are on their way.
///
/// # Errors
/// The model cannot be loaded; the text or the findings have a fix.
pub fn start_local(
    request: &ExecutorRequest,
    make: &MakeInstance,
    device: &str,
) -> Result<Arc<dyn ModelExecutor>, OperatorError> {
    let ExecutorRequest { spec: _, operator, make: _, clock, processor, gate, again: _ } = request;
    let model = LocalModel::load(make)?;
    let (make, clock, processor) = (Arc::clone(make), Arc::clone(clock), Arc::clone(processor));
    let executor = LocalExecutor::start((operator, device), model, make, clock, processor, gate.clone())
        .map_err(|error| OperatorError::new(format!("no thread for a model: {error}")))?;
    Ok(Arc::new(executor))
}

/// Engine time spent computing.
#[derive(Default)]
struct Busy {
    /// Time of jobs that ended.
    ended: Nanoseconds,
    /// Running jobs, and the sum of when they began.
    running: i64,
    begun: Nanoseconds,
}

struct Shared {
    name: String,
    device: String,
    clock: Arc<dyn Clock>,
    processor: Arc<ProcessorTime>,
    /// Delays calls, if the worker is emulated.
    gate: Option<Arc<dyn CallGate>>,
    make: MakeInstance,
    notifier: Mutex<Option<Notifier>>,
    incarnation: AtomicU64,
    bytes: AtomicUsize,
    copies: AtomicUsize,
    concurrency: Option<Concurrency>,
    busy: Mutex<Busy>,
}

/// One model in this process: each copy on a thread of its own, all taking from one queue.
struct LocalExecutor {
    /// Jobs with their times of submission.
    jobs: Sender<(Job, Nanoseconds)>,
    /// The other ends, for further copies.
    taken: Receiver<(Job, Nanoseconds)>,
    completed: Sender<Completion>,
    completions: Receiver<Completion>,
    shared: Arc<Shared>,
}

impl LocalExecutor {
    /// Starts the thread with the first copy of the model; `make` makes further ones. The time of the thread and of those of
    /// the model's backend is added to `processor`.
    ///
    /// # Errors
    /// When the system has no thread left.
    fn start(
        (name, device): (&str, &str),
        model: LocalModel,
        make: MakeInstance,
        clock: Arc<dyn Clock>,
        processor: Arc<ProcessorTime>,
        gate: Option<Arc<dyn CallGate>>,
    ) -> std::io::Result<Self> {
        let (jobs, taken) = unbounded();
        let (completed, completions) = unbounded();
        let concurrency = model.concurrency();
        let copies = concurrency.map_or(1, |own| own.copies.max(1));
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            device: device.to_owned(),
            clock,
            processor,
            gate,
            make,
            notifier: Mutex::new(None),
            incarnation: AtomicU64::new(0),
            bytes: AtomicUsize::new(0),
            copies: AtomicUsize::new(copies),
            concurrency,
            busy: Mutex::default(),
        });
        let executor = Self { jobs, taken, completed, completions, shared };
        executor.spawn(Some(model))?;
        (1..copies).try_for_each(|_| executor.spawn(None))?;
        Ok(executor)
    }

    /// Starts a thread with a copy of the model, which it makes first if there is none.
    fn spawn(&self, model: Option<LocalModel>) -> std::io::Result<()> {
        let (taken, completed) = (self.taken.clone(), self.completed.clone());
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(format!("tm-model-{}", shared.name));
        let spawned = thread.spawn(move || {
            let load = || model.map_or_else(|| LocalModel::load(&shared.make), Ok);
            let reason = match catch_unwind(AssertUnwindSafe(load)) {
                Ok(Ok(model)) => return serve(model, &shared, &taken, &completed),
                Ok(Err(error)) => error.message,
                Err(payload) => panic_text(payload.as_ref()),
            };
            // The others continue without it.
            tracing::warn!(model = shared.name, reason, "no further copy of the model");
            shared.copies.fetch_sub(1, Ordering::AcqRel);
        });
        spawned.map(drop)
    }
}

/// Computes jobs until the queue is closed.
fn serve(
    mut model: LocalModel,
    shared: &Shared,
    jobs: &Receiver<(Job, Nanoseconds)>,
    completed: &Sender<Completion>,
) {
    let mut meter = ThreadMeter::begin(Arc::clone(&shared.processor));
    for (job, submitted) in jobs {
        let records = job.parts.iter().map(RecordBatch::num_rows).sum();
        let mut result = JobResult::Cancelled;
        // The processor time that it took; none if the result is not needed any more.
        let mut work = || {
            let started = shared.clock.now();
            let current = shared.incarnation.load(Ordering::Acquire);
            if u64::from(job.incarnation) < current {
                return None;
            }
            shared.begin(started);
            // Only a gate needs it, and it takes two system calls.
            let before = shared.gate.as_ref().map(|_| thread_time());
            let (done, elsewhere) = model.compute(&job.parts);
            let used =
                before.map_or(Duration::ZERO, |before| thread_time().saturating_sub(before) + elsewhere);
            meter.add_of_others(elsewhere);
            result = done;
            shared.end(started, shared.clock.now());
            Some(used)
        };
        let call = match &shared.gate {
            Some(gate) => gate.call(records, submitted, &mut work),
            None => {
                let started = shared.clock.now();
                work();
                Some(Span { started, finished: shared.clock.now() }.into())
            }
        };
        let call = call.unwrap_or_else(|| Span { started: submitted, finished: shared.clock.now() }.into());
        if let (JobResult::Done(output), Some(times)) = (&mut result, call.device) {
            output.device = Some(times);
        }
        meter.look();
        shared.bytes.fetch_sub(job.bytes, Ordering::AcqRel);
        let completion = Completion {
            id: job.id,
            incarnation: job.incarnation,
            result,
            started: call.span.started,
            finished: call.span.finished,
        };
        // The rows are given back before the result is known.
        drop(job.parts);
        if completed.send(completion).is_err() {
            return;
        }
        let notifier = shared.notifier.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(notifier) = notifier.as_ref() {
            notifier.notify();
        }
    }
}

impl Shared {
    fn begin(&self, now: Nanoseconds) {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.running += 1;
        busy.begun += now;
    }

    fn end(&self, started: Nanoseconds, now: Nanoseconds) {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.running -= 1;
        busy.begun -= started;
        busy.ended += now - started;
    }
}

impl ModelExecutor for LocalExecutor {
    fn submit(&self, job: Job) {
        self.shared.bytes.fetch_add(job.bytes, Ordering::AcqRel);
        // The thread ends only when this sender is dropped.
        let _ = self.jobs.send((job, self.shared.clock.now()));
    }

    fn completion(&self) -> Option<Completion> {
        self.completions.try_recv().ok()
    }

    fn attach(&self, notifier: Notifier, incarnation: u32) {
        self.shared.incarnation.store(u64::from(incarnation), Ordering::Release);
        *self.shared.notifier.lock().unwrap_or_else(PoisonError::into_inner) = Some(notifier);
    }

    fn device(&self) -> &str {
        &self.shared.device
    }

    fn bytes_in_flight(&self) -> usize {
        self.shared.bytes.load(Ordering::Acquire)
    }

    fn copies(&self) -> usize {
        self.shared.copies.load(Ordering::Acquire)
    }

    fn busy(&self, now: Nanoseconds) -> Nanoseconds {
        let busy = self.shared.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.ended + busy.running * now - busy.begun
    }

    fn concurrency(&self) -> Option<Concurrency> {
        self.shared.concurrency
    }

    fn add_copy(&self) -> bool {
        if self.shared.concurrency.is_some() {
            return false;
        }
        self.shared.copies.fetch_add(1, Ordering::AcqRel);
        let started = self.spawn(None);
        if started.is_err() {
            self.shared.copies.fetch_sub(1, Ordering::AcqRel);
        }
        started.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use arrow_schema::Schema;
    use std::sync::Barrier;
    use tidemill_operators::api::{Inference, Instance, Output};

    /// Ends a batch only when another one is computed at the same time.
    struct Together(Arc<Barrier>);

    impl Inference for Together {
        fn infer(&mut self, _batch: &RecordBatch, _output: &mut Output) -> Result<(), OperatorError> {
            self.0.wait();
            Ok(())
        }
    }

    fn start(first: Box<dyn Inference>, make: MakeInstance, clock: Arc<dyn Clock>) -> LocalExecutor {
        let first = LocalModel::of(first, &make);
        LocalExecutor::start(("m", CPU), first, make, clock, Arc::default(), None).expect("a thread")
    }

    fn job(id: u64) -> Job {
        let batch = RecordBatch::new_empty(Arc::new(Schema::empty()));
        Job { id, incarnation: 1, parts: vec![batch], bytes: 7 }
    }

    fn completions(executor: &LocalExecutor, count: usize) -> Vec<Completion> {
        (0..count).map(|_| executor.completions.recv().expect("the threads live")).collect()
    }

    #[test]
    fn a_further_copy_takes_from_the_same_queue() {
        let barrier = Arc::new(Barrier::new(2));
        let first = Box::new(Together(Arc::clone(&barrier)));
        let again = Arc::clone(&barrier);
        let make: MakeInstance =
            Arc::new(move || Ok(Instance::Inference(Box::new(Together(Arc::clone(&again))))));
        let executor = start(first, make, Arc::new(ManualClock::new()));
        assert!(executor.add_copy());
        assert_eq!(executor.copies(), 2);
        (0..4).for_each(|id| executor.submit(job(id)));
        let mut ids: Vec<u64> = completions(&executor, 4).iter().map(|completion| completion.id).collect();
        ids.sort_unstable();
        assert_eq!((ids, executor.bytes_in_flight()), (vec![0, 1, 2, 3], 0));
    }

    #[test]
    fn a_copy_that_cannot_be_made_is_none() {
        let barrier = Arc::new(Barrier::new(1));
        let make: MakeInstance = Arc::new(|| Err(OperatorError::new("no memory")));
        let first = Box::new(Together(barrier));
        let executor = start(first, make, Arc::new(ManualClock::new()));
        assert!(executor.add_copy());
        while executor.copies() == 2 {
            std::thread::yield_now();
        }
        executor.submit(job(0));
        assert!(matches!(completions(&executor, 1)[0].result, JobResult::Done(_)));
    }

    #[test]
    fn time_spent_computing_includes_what_goes_on() {
        let clock = Arc::new(ManualClock::new());
        let barrier = Arc::new(Barrier::new(2));
        let make: MakeInstance = Arc::new(|| Err(OperatorError::new("none")));
        let first = Box::new(Together(Arc::clone(&barrier)));
        let executor = start(first, make, Arc::clone(&clock) as Arc<dyn Clock>);
        executor.submit(job(0));
        while executor.shared.busy.lock().expect("not poisoned").running == 0 {
            std::thread::yield_now();
        }
        clock.advance(30);
        assert_eq!(executor.busy(clock.now()), 30);
        barrier.wait();
        completions(&executor, 1);
        clock.advance(50);
        assert_eq!(executor.busy(clock.now()), 30);
    }
}
