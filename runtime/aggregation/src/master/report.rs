//! Jobs and aggregators, as the master reports them.
use serde::{Deserialize, Serialize};

/// Everything that a master knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version of this form.
    pub version: u32,
    /// The processes.
    pub aggregators: Vec<Aggregator>,
    /// The jobs.
    pub jobs: Vec<Job>,
}

/// An aggregator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Aggregator {
    /// Its name.
    pub name: String,
    /// Whether it answers.
    pub answers: bool,
    /// The tensors that it has, copies of moves included.
    pub tensors: usize,
    /// The memory of these.
    pub bytes: u64,
    /// Its cycle by the model, in milliseconds; none outside of the service.
    pub cycle_ms: Option<f64>,
    /// The part of the cycle that has work.
    pub utilisation: Option<f64>,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// Its workers.
    pub workers: u32,
    /// `profiled`, `placed` or `fixed`.
    pub stage: String,
    /// Why it is fixed.
    pub reason: Option<String>,
    /// Steps that all its tensors have made.
    pub steps: u64,
    /// The last measured duration of an iteration, in milliseconds.
    pub iteration_ms: Option<f64>,
    /// The same when it was alone.
    pub alone_ms: Option<f64>,
    /// The loss of speed by the model.
    pub expected_loss: Option<f64>,
    /// The tensors.
    pub tensors: Vec<Tensor>,
}

/// A tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// Its number.
    pub tensor: u32,
    /// Its name.
    pub name: String,
    /// Its numbers.
    pub count: usize,
    /// The aggregator.
    pub aggregator: String,
    /// The aggregator to which it moves.
    pub moves_to: Option<String>,
    /// Its steps; none while it waits for its state.
    pub steps: Option<u64>,
    /// Gradients that the current step waits for.
    pub missing: Option<u32>,
    /// Memory on the aggregator.
    pub bytes: u64,
    /// Mean processor time of a step on this aggregator, in microseconds.
    pub work_us: Option<f64>,
}
