//! Where models run: submit a batch, be told when it is done. Inference never blocks a timely thread.
use crate::clock::{Clock, Nanoseconds};
use crate::processor::{ProcessorTime, ThreadMeter};
use crate::wake::Waker;
use arrow_array::RecordBatch;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_operators::api::{Inference, Instance, MakeInstance, OperatorError, Output};
use tidemill_operators::record::batch_bytes;

/// Tells a slot that one of its nodes has something to look at.
#[derive(Debug, Clone)]
pub struct Notifier {
    pub(crate) flag: Arc<AtomicBool>,
    pub(crate) waker: Arc<Waker>,
}

impl Notifier {
    /// Tells it.
    pub fn notify(&self) {
        self.flag.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// One batch to compute.
#[derive(Debug)]
pub struct Job {
    /// Number chosen by the submitter.
    pub id: u64,
    /// Which life of the stage submitted it.
    pub generation: u32,
    /// The rows.
    pub batch: RecordBatch,
    /// After this (engine clock) nobody needs the result; it is then not computed.
    pub deadline: Option<Nanoseconds>,
}

/// How a job ended.
#[derive(Debug)]
pub enum JobResult {
    /// The model's output.
    Done(Output),
    /// The deadline passed, or the generation was cancelled, before the computation began.
    Cancelled,
    /// The model failed as a whole.
    Failed(OperatorError),
    /// The model panicked with this text.
    Panicked(String),
}

/// A finished job.
#[derive(Debug)]
pub struct Completion {
    /// The submitter's number.
    pub id: u64,
    /// The submitter's life.
    pub generation: u32,
    /// How it ended.
    pub result: JobResult,
    /// Engine time at which the computation began.
    pub started: Nanoseconds,
    /// Engine time at which it ended.
    pub finished: Nanoseconds,
}

/// Runs batches of one model. Another process or a remote accelerator is one more implementation.
pub trait ModelExecutor: Send + Sync {
    /// Queues a job; never blocks.
    fn submit(&self, job: Job);
    /// The next finished job.
    fn completion(&self) -> Option<Completion>;
    /// Whom to tell about finished jobs, from now on. Jobs of earlier generations are cancelled.
    fn attach(&self, notifier: Notifier, generation: u32);
    /// Which device computes, for reports.
    fn device(&self) -> &str;
    /// Bytes submitted and not completed.
    fn bytes_in_flight(&self) -> usize;
}

struct Shared {
    notifier: Mutex<Option<Notifier>>,
    generation: AtomicU64,
    bytes: AtomicUsize,
}

/// One model on one thread of this process.
pub struct LocalExecutor {
    jobs: Sender<Job>,
    completions: Receiver<Completion>,
    shared: Arc<Shared>,
}

impl LocalExecutor {
    /// Starts the thread. `instance` is the first copy of the model; after a panic `make` makes another. What the
    /// thread and those of the model's backend use is added to `processor`.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start(
        name: &str,
        instance: Box<dyn Inference>,
        make: MakeInstance,
        clock: Arc<dyn Clock>,
        processor: Arc<ProcessorTime>,
    ) -> std::io::Result<Self> {
        let (job_sender, job_receiver) = unbounded::<Job>();
        let (completion_sender, completion_receiver) = unbounded();
        let shared = Arc::new(Shared {
            notifier: Mutex::new(None),
            generation: AtomicU64::new(0),
            bytes: AtomicUsize::new(0),
        });
        let thread_shared = Arc::clone(&shared);
        std::thread::Builder::new().name(format!("tm-model-{name}")).spawn(move || {
            let mut model = Some(instance);
            let mut meter = ThreadMeter::begin(processor);
            for job in job_receiver {
                let bytes = batch_bytes(&job.batch);
                let started = clock.now();
                let current = thread_shared.generation.load(Ordering::Acquire);
                let stale = u64::from(job.generation) < current || job.deadline.is_some_and(|d| d < started);
                let result = match stale {
                    true => JobResult::Cancelled,
                    false => compute(&mut model, &make, &job.batch, &meter),
                };
                let finished = clock.now();
                meter.look();
                thread_shared.bytes.fetch_sub(bytes, Ordering::AcqRel);
                let completion =
                    Completion { id: job.id, generation: job.generation, result, started, finished };
                if completion_sender.send(completion).is_err() {
                    return;
                }
                let notifier = thread_shared.notifier.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(notifier) = notifier.as_ref() {
                    notifier.notify();
                }
            }
        })?;
        Ok(Self { jobs: job_sender, completions: completion_receiver, shared })
    }
}

fn compute(
    model: &mut Option<Box<dyn Inference>>,
    make: &MakeInstance,
    batch: &RecordBatch,
    meter: &ThreadMeter,
) -> JobResult {
    let mut instance = match model.take() {
        Some(instance) => instance,
        // A model that cannot even be made is no fault of the records.
        None => match catch_unwind(AssertUnwindSafe(|| make())) {
            Ok(Ok(Instance::Inference(instance))) => instance,
            Ok(Ok(_)) => return JobResult::Failed(OperatorError::new("it became another kind of operator")),
            Ok(Err(error)) => return JobResult::Failed(error),
            Err(payload) => {
                let text = crate::failure::panic_text(payload.as_ref());
                return JobResult::Failed(OperatorError::new(format!("it cannot be made again: {text}")));
            }
        },
    };
    let infer = || {
        let mut output = Output::default();
        let before = instance.processor_time_elsewhere();
        instance.infer(batch, &mut output)?;
        meter.add_of_others(instance.processor_time_elsewhere().saturating_sub(before));
        *model = Some(instance);
        Ok(output)
    };
    match catch_unwind(AssertUnwindSafe(infer)) {
        Ok(Ok(output)) => JobResult::Done(output),
        Ok(Err(error)) => JobResult::Failed(error),
        Err(payload) => {
            // What the panic left behind was taken out and is made anew for the next batch.
            JobResult::Panicked(crate::failure::panic_text(payload.as_ref()))
        }
    }
}

impl ModelExecutor for LocalExecutor {
    fn submit(&self, job: Job) {
        self.shared.bytes.fetch_add(batch_bytes(&job.batch), Ordering::AcqRel);
        // The thread ends only when this sender is dropped.
        let _ = self.jobs.send(job);
    }

    fn completion(&self) -> Option<Completion> {
        self.completions.try_recv().ok()
    }

    fn attach(&self, notifier: Notifier, generation: u32) {
        self.shared.generation.store(u64::from(generation), Ordering::Release);
        *self.shared.notifier.lock().unwrap_or_else(PoisonError::into_inner) = Some(notifier);
    }

    fn device(&self) -> &str {
        "cpu"
    }

    fn bytes_in_flight(&self) -> usize {
        self.shared.bytes.load(Ordering::Acquire)
    }
}
