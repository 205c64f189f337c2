//! A model in this process, for the executors that compute here.
use super::{JobResult, PreparedModel};
use crate::failure::panic_text;
use arrow_array::RecordBatch;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tidemill_operators::api::{Concurrency, Inference, Instance, MakeInstance, OperatorError, Output};

/// A model in this process. After a panic it is made again, for the next batch.
pub struct LocalModel {
    instance: Option<Box<dyn Inference>>,
    make: MakeInstance,
}

impl LocalModel {
    /// Loads a model with the `make` of a factory that [loads here](super::ExecutorFactory::loads_here).
    ///
    /// # Errors
    /// The model cannot be loaded; the text or the findings have a fix.
    pub fn load(make: &MakeInstance) -> Result<Self, OperatorError> {
        made(make).map(|instance| Self::of(instance, make))
    }

    /// A model that is loaded already; the next one is made.
    pub(super) fn of(instance: Box<dyn Inference>, make: &MakeInstance) -> Self {
        Self { instance: Some(instance), make: MakeInstance::clone(make) }
    }

    /// Returns the result of [`ExecutorFactory::prepare`](super::ExecutorFactory::prepare) with this model.
    pub fn prepared(self) -> PreparedModel {
        let backend = self.instance.as_ref().and_then(|model| model.backend());
        PreparedModel { backend, instance: self.instance }
    }

    /// Returns the model's own settings of concurrency, if it has some.
    pub(super) fn concurrency(&self) -> Option<Concurrency> {
        self.instance.as_ref().and_then(|model| model.concurrency())
    }

    /// Computes a batch on this thread. Returns the result and the processor time of other threads that the model used.
    pub fn compute(&mut self, parts: &[RecordBatch]) -> (JobResult, Duration) {
        let none = Duration::ZERO;
        let mut instance = match self.instance.take() {
            Some(instance) => instance,
            // A model that cannot be made is no fault of the records.
            None => match catch_unwind(AssertUnwindSafe(|| made(&self.make))) {
                Ok(Ok(instance)) => instance,
                Ok(Err(error)) if error.lost => return (JobResult::Lost(error.message), none),
                Ok(Err(error)) => return (JobResult::Failed(error), none),
                Err(payload) => {
                    let text = panic_text(payload.as_ref());
                    let error = OperatorError::new(format!("it cannot be made again: {text}"));
                    return (JobResult::Failed(error), none);
                }
            },
        };
        let infer = || {
            let mut output = Output::default();
            let before = instance.processor_time_elsewhere();
            instance.infer_parts(parts, &mut output)?;
            let elsewhere = instance.processor_time_elsewhere().saturating_sub(before);
            self.instance = Some(instance);
            Ok::<_, OperatorError>((output, elsewhere))
        };
        match catch_unwind(AssertUnwindSafe(infer)) {
            Ok(Ok((output, elsewhere))) => (JobResult::Done(output), elsewhere),
            Ok(Err(error)) if error.lost => (JobResult::Lost(error.message), none),
            Ok(Err(error)) => (JobResult::Failed(error), none),
            Err(payload) => (JobResult::Panicked(panic_text(payload.as_ref())), none),
        }
    }
}

fn made(make: &MakeInstance) -> Result<Box<dyn Inference>, OperatorError> {
    match make()? {
        Instance::Inference(model) => Ok(model),
        _ => Err(OperatorError::new("only models have a device, and this operator runs none")),
    }
}
