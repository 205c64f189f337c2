//! Dead letters of a run: told once each, whatever is replayed.
use crate::frame::Epoch;
use serde::Serialize;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use tidemill_operators::api::{DeadLetter, OperatorError};
use tidemill_operators::values::Values;
use xxhash_rust::xxh3::xxh3_128;

/// Where dead letters are kept.
pub trait LetterWriter: Send {
    /// Keeps one letter of `operator`.
    ///
    /// # Errors
    /// When it cannot be written; the run stops.
    fn write(&mut self, operator: &str, letter: &DeadLetter, epoch: u64) -> Result<(), OperatorError>;
    /// Makes what was written durable.
    ///
    /// # Errors
    /// When that fails; the run stops.
    fn commit(&mut self, epoch: u64) -> Result<(), OperatorError>;
    /// Last call.
    ///
    /// # Errors
    /// When temporaries cannot be removed.
    fn close(&mut self) -> Result<(), OperatorError>;
}

/// A dead letter as the report shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LetterSample {
    /// Operator or source id.
    pub operator: String,
    /// Stable reason.
    pub reason: String,
    /// What was found.
    pub detail: String,
    /// The record, as far as it is known.
    pub values: Values,
}

/// The dead letters of one operator with one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LetterGroup {
    /// Operator or source id.
    pub operator: String,
    /// Stable reason.
    pub reason: String,
    /// All of them.
    pub count: u64,
    /// The first ones.
    pub samples: Vec<LetterSample>,
}

/// Letters kept for the report.
const SAMPLES: usize = 10;
/// Letters of each operator and reason kept for the report.
const SAMPLES_OF_A_GROUP: usize = 3;

#[derive(Default)]
struct State {
    writer: Option<Box<dyn LetterWriter>>,
    /// By epoch, so that it can be forgotten when no replay can repeat it.
    told: BTreeMap<Epoch, HashSet<(String, u128)>>,
    /// All letters of the epochs before it are told: a restarted slot may still repeat some of them.
    durable: Epoch,
    samples: VecDeque<LetterSample>,
    /// Reasons are few and fixed, so this stays small.
    groups: BTreeMap<(String, &'static str), (u64, Vec<LetterSample>)>,
    error: Option<OperatorError>,
    total: u64,
}

/// The dead letters of a run.
#[derive(Default)]
pub(crate) struct Letters {
    state: Mutex<State>,
}

impl Letters {
    pub(crate) fn new(writer: Option<Box<dyn LetterWriter>>) -> Self {
        Self { state: Mutex::new(State { writer, ..State::default() }) }
    }

    /// Adds a letter; `false` if it was told before.
    pub(crate) fn add(&self, operator: &str, epoch: Epoch, letter: DeadLetter) -> bool {
        let identity = match letter.id {
            Some(id) => u128::from_le_bytes(id),
            None => xxh3_128(letter.detail.as_bytes()),
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if epoch < state.durable
            || !state.told.entry(epoch).or_default().insert((operator.to_owned(), identity))
        {
            return false;
        }
        state.total += 1;
        let sample = || LetterSample {
            operator: operator.to_owned(),
            reason: letter.reason.to_owned(),
            detail: letter.detail.clone(),
            values: letter.values.clone(),
        };
        if state.samples.len() < SAMPLES {
            state.samples.push_back(sample());
        }
        let group = state.groups.entry((operator.to_owned(), letter.reason)).or_default();
        group.0 += 1;
        if group.1.len() < SAMPLES_OF_A_GROUP {
            group.1.push(sample());
        }
        if let Some(writer) = state.writer.as_mut()
            && let Err(error) = writer.write(operator, &letter, epoch)
        {
            state.error.get_or_insert(error);
        }
        true
    }

    /// All epochs before `epoch` are durable everywhere.
    pub(crate) fn durable(&self, epoch: Epoch) -> Result<(), OperatorError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.durable = state.durable.max(epoch);
        state.told = state.told.split_off(&epoch);
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        state.writer.as_mut().map_or(Ok(()), |writer| writer.commit(epoch))
    }

    pub(crate) fn close(&self) -> Result<(), OperatorError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut writer) = state.writer.take() else { return Ok(()) };
        writer.commit(Epoch::MAX)?;
        writer.close()
    }

    pub(crate) fn samples(&self) -> Vec<LetterSample> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).samples.iter().cloned().collect()
    }

    pub(crate) fn groups(&self) -> Vec<LetterGroup> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let groups = state.groups.iter().map(|((operator, reason), (count, samples))| LetterGroup {
            operator: operator.clone(),
            reason: (*reason).to_owned(),
            count: *count,
            samples: samples.clone(),
        });
        groups.collect()
    }

    pub(crate) fn total(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).total
    }
}
