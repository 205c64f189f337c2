//! A function without state: batches of the engine, on its executor threads, each with a process.
use crate::caller::{Caller, NoPast};
use arrow_array::RecordBatch;
use std::time::Duration;
use tidemill_operators::api::{Concurrency, Inference, OperatorError, Output};

/// One process of a function.
pub(crate) struct Function {
    pub(crate) caller: Caller,
    pub(crate) concurrency: Concurrency,
}

impl Inference for Function {
    fn infer(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        self.caller.compute(batch, &mut NoPast, output)
    }

    fn processor_time_elsewhere(&self) -> Duration {
        self.caller.processor_time()
    }

    fn concurrency(&self) -> Option<Concurrency> {
        Some(self.concurrency)
    }
}
