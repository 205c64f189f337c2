//! Devices `turns:NAME`: the models on one device compute in turn, as on an accelerator that runs one model at a time. A plan names the
//! device at a stage. Emulated workers do not slow it down.
//!
//! ```yaml
//! - {id: sized, operator: sized, variant: size, device: "turns:0", worker: hub}
//! ```
//! ```
//! use tidemill_extension::turns::Turns;
//! assert!(tidemill_engine::register_executors(std::sync::Arc::new(Turns::default())));
//! assert!(tidemill_engine::factory_of("turns:0").is_ok_and(|factory| factory.loads_here()));
//! ```
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidemill_engine::{
    Completion, ExecutorFactory, ExecutorRequest, ExecutorSpec, Job, JobResult, LocalModel, ModelExecutor,
    Notifier, PreparedModel,
};
use tidemill_operators::api::{MakeInstance, OperatorError};

/// The factory of these devices; a model that computes holds the lock of its device.
#[derive(Default)]
pub struct Turns(Mutex<HashMap<String, Arc<Mutex<()>>>>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ExecutorFactory for Turns {
    fn scheme(&self) -> &str {
        "turns"
    }

    fn loads_here(&self) -> bool {
        true
    }

    fn may_be_lost(&self) -> bool {
        false
    }

    fn prepare(&self, _spec: &ExecutorSpec, make: &MakeInstance) -> Result<PreparedModel, OperatorError> {
        LocalModel::load(make).map(LocalModel::prepared)
    }

    fn start(&self, request: &ExecutorRequest) -> Result<Arc<dyn ModelExecutor>, OperatorError> {
        let (device, mut model) = (request.spec.device.clone(), LocalModel::load(&request.make)?);
        let turn = Arc::clone(locked(&self.0).entry(device.clone()).or_default());
        let (clock, processor) = (Arc::clone(&request.clock), Arc::clone(&request.processor));
        let (state, (jobs, taken)) = (Arc::new(Mutex::<State>::default()), channel::<Job>());
        let executor = Executor { device, jobs, state: Arc::clone(&state) };
        let serve = move || {
            for job in taken {
                let _turn = locked(&turn);
                let (started, before) = (clock.now(), tidemill_machine::thread_time());
                let (result, elsewhere) = match job.incarnation < locked(&state).incarnation {
                    true => (JobResult::Cancelled, std::time::Duration::ZERO),
                    false => model.compute(&job.parts),
                };
                processor.add(tidemill_machine::thread_time().saturating_sub(before) + elsewhere);
                let (id, incarnation, finished) = (job.id, job.incarnation, clock.now());
                let mut state = locked(&state);
                state.bytes -= job.bytes;
                state.done.push_back(Completion { id, incarnation, result, started, finished });
                state.notifier.iter().for_each(Notifier::notify);
            }
        };
        // The engine keeps the panics of threads with this prefix off the terminal: it reports them itself.
        let thread = std::thread::Builder::new().name(format!("tm-{}", executor.device)).spawn(serve);
        thread.map_err(|error| OperatorError::new(format!("no thread for a model: {error}")))?;
        Ok(Arc::new(executor))
    }
}

/// One model on a device, with a thread of its own, which ends after the last job.
struct Executor {
    device: String,
    jobs: Sender<Job>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    incarnation: u32,
    notifier: Option<Notifier>,
    bytes: usize,
    done: VecDeque<Completion>,
}

impl ModelExecutor for Executor {
    fn submit(&self, job: Job) {
        locked(&self.state).bytes += job.bytes;
        // The thread ends only when this sender is dropped.
        let _ = self.jobs.send(job);
    }

    fn completion(&self) -> Option<Completion> {
        locked(&self.state).done.pop_front()
    }

    fn attach(&self, notifier: Notifier, incarnation: u32) {
        let mut state = locked(&self.state);
        (state.notifier, state.incarnation) = (Some(notifier), incarnation);
    }

    fn device(&self) -> &str {
        &self.device
    }

    fn bytes_in_flight(&self) -> usize {
        locked(&self.state).bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::RecordBatch;
    use tidemill_engine::clock::ManualClock;
    use tidemill_operators::api::{Inference, Instance, Output};

    /// Fails where another one computes.
    struct Alone(Arc<Mutex<()>>);

    impl Inference for Alone {
        fn infer(&mut self, _: &RecordBatch, _: &mut Output) -> Result<(), OperatorError> {
            let _alone = self.0.try_lock().map_err(|error| OperatorError::new(error.to_string()))?;
            (0..100).for_each(|_| std::thread::yield_now());
            Ok(())
        }
    }

    #[test]
    fn models_on_one_device_compute_in_turn() {
        let (turns, alone) = (Turns::default(), Arc::new(Mutex::new(())));
        let make = Arc::new(move || Ok(Instance::Inference(Box::new(Alone(Arc::clone(&alone))))));
        let spec = ExecutorSpec { device: "turns:0".into(), max_batch: 1, ..Default::default() };
        let (operator, clock, processor) = ("o".into(), Arc::new(ManualClock::new()), Arc::default());
        let request = ExecutorRequest { spec, operator, make, clock, processor, gate: None, again: false };
        let executors = [(), ()].map(|()| turns.start(&request).unwrap());
        let parts = vec![RecordBatch::new_empty(Arc::new(arrow_schema::Schema::empty()))];
        let job = |id| Job { id, incarnation: 0, parts: parts.clone(), bytes: 1 };
        (0..40).for_each(|id| executors[id as usize % 2].submit(job(id)));
        for executor in &executors {
            let next = std::iter::repeat_with(|| executor.completion()).inspect(|_| std::thread::yield_now());
            let done = next.flatten().take(20).filter(|done| matches!(done.result, JobResult::Done(_)));
            assert_eq!((done.count(), executor.bytes_in_flight()), (20, 0));
        }
    }
}
