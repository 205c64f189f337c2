//! Dead letters of a run: delivered once each, for any replay.
use crate::checkpoint::LettersPast;
use crate::frame::Epoch;
use crate::graph::Program;
use serde::Serialize;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tidemill_operators::api::{DeadLetter, OperatorError, Reason, Requests};
use tidemill_operators::record::operator_number;
use tidemill_operators::values::Values;
use xxhash_rust::xxh3::xxh3_128;

/// Storage of dead letters. The run delivers each letter once, also when a restart repeats its computation.
pub trait LetterWriter: Send {
    /// Stores one letter of `operator`.
    ///
    /// # Errors
    /// When it cannot be written; the run stops.
    fn write(&mut self, operator: &str, letter: &DeadLetter, epoch: u64) -> Result<(), OperatorError>;
    /// Makes the letters of all epochs before `epoch` durable.
    ///
    /// # Errors
    /// When that fails; the run stops.
    fn commit(&mut self, epoch: u64) -> Result<(), OperatorError>;
    /// Returns the token with which another process continues after the last commit; `None`: it starts from nothing.
    ///
    /// # Errors
    /// When the committed letters cannot be made durable.
    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        Ok(None)
    }
    /// Last call instead of `close`, if another process will continue.
    ///
    /// # Errors
    /// When temporaries cannot be removed.
    fn suspend(&mut self) -> Result<(), OperatorError> {
        self.close()
    }
    /// Last call.
    ///
    /// # Errors
    /// When temporaries cannot be removed.
    fn close(&mut self) -> Result<(), OperatorError>;
}

/// A dead letter in the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LetterSample {
    /// Operator or source id.
    pub operator: String,
    /// Stable reason.
    pub reason: String,
    /// The finding.
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
    /// Number of all of them.
    pub count: u64,
    /// The first ones.
    pub samples: Vec<LetterSample>,
}

/// Letters kept for the report.
const SAMPLES: usize = 10;
/// Letters of each operator and reason kept for the report.
const SAMPLES_OF_A_GROUP: usize = 3;

/// Most letters that wait for the writer. Then the next sender waits for the disk: memory stays bounded.
const WAITING: usize = 8192;

/// A letter that the writer does not have yet.
struct Waiting {
    operator: String,
    epoch: Epoch,
    letter: DeadLetter,
}

#[derive(Default)]
struct State {
    /// Operator and record, by epoch, so that it can be dropped when no replay can repeat it.
    told: BTreeMap<Epoch, HashSet<(u64, u128)>>,
    /// All letters of earlier epochs were delivered: a restarted slot may still repeat some of them.
    durable: Epoch,
    samples: VecDeque<LetterSample>,
    /// By operator and reason. Reasons are few and fixed, so this stays small.
    groups: BTreeMap<String, BTreeMap<Reason, (u64, Vec<LetterSample>)>>,
    waiting: Vec<Waiting>,
    total: u64,
    /// Number of letters of earlier processes.
    total_before: u64,
    /// Upper bound of the letters that hosts could not keep until they were delivered.
    lost: u64,
}

impl State {
    /// Number of letters of durable epochs: the next process may repeat others.
    fn durable_total(&self) -> u64 {
        let open: usize = self.told.values().map(HashSet::len).sum();
        self.total_before + self.total - open as u64
    }
}

/// Writes letters and remembers the first failure.
struct Keeper {
    writer: Box<dyn LetterWriter>,
    error: Option<OperatorError>,
}

impl Keeper {
    fn take(&mut self, letters: Vec<Waiting>) {
        for Waiting { operator, epoch, letter } in letters {
            if let Err(error) = self.writer.write(&operator, &letter, epoch) {
                self.error.get_or_insert(error);
            }
        }
    }

    fn commit(&mut self, epoch: Epoch) -> Result<(), OperatorError> {
        match self.error.take() {
            Some(error) => Err(error),
            None => self.writer.commit(epoch),
        }
    }
}

/// The dead letters of a run. No operator waits for the disk during the sync of a commit: its letters wait here meanwhile.
#[derive(Default)]
pub(crate) struct Letters {
    /// Locked before the state, never after it.
    keeper: Option<Mutex<Option<Keeper>>>,
    state: Mutex<State>,
    /// Those who wait for results.
    requests: OnceLock<Vec<Arc<dyn Requests>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Letters {
    pub(crate) fn new(writer: Option<Box<dyn LetterWriter>>) -> Self {
        let keeper = writer.map(|writer| Mutex::new(Some(Keeper { writer, error: None })));
        Self { keeper, state: Mutex::default(), requests: OnceLock::new() }
    }

    /// Tells those who wait for results of the sources of a program.
    pub(crate) fn tell_requests(&self, program: &Program) {
        let requests = program.sources.values().filter_map(|source| source.requests.clone()).collect();
        let _ = self.requests.set(requests); // once a run
    }

    /// Adds a letter; `false` if it is a repetition.
    pub(crate) fn add(&self, operator: &str, epoch: Epoch, letter: DeadLetter) -> bool {
        self.requests.get().into_iter().flatten().for_each(|requests| requests.bury(&letter));
        let identity = match letter.id {
            Some(id) => u128::from_le_bytes(id),
            None => xxh3_128(letter.detail.as_bytes()),
        };
        let mut state = locked(&self.state);
        if epoch < state.durable
            || !state.told.entry(epoch).or_default().insert((operator_number(operator), identity))
        {
            return false;
        }
        state.total += 1;
        let sample = || LetterSample {
            operator: operator.to_owned(),
            reason: letter.reason.to_string(),
            detail: letter.detail.clone(),
            values: letter.values.clone(),
        };
        if state.samples.len() < SAMPLES {
            state.samples.push_back(sample());
        }
        if !state.groups.contains_key(operator) {
            state.groups.insert(operator.to_owned(), BTreeMap::new());
        }
        let reasons = state.groups.get_mut(operator).expect("inserted above");
        let group = reasons.entry(letter.reason.clone()).or_default();
        group.0 += 1;
        if group.1.len() < SAMPLES_OF_A_GROUP {
            group.1.push(sample());
        }
        if self.keeper.is_some() {
            state.waiting.push(Waiting { operator: operator.to_owned(), epoch, letter });
            let is_full = state.waiting.len() >= WAITING;
            drop(state);
            if is_full {
                self.flush();
            }
        }
        true
    }

    /// Records that all epochs before `epoch` are durable everywhere.
    pub(crate) fn durable(&self, epoch: Epoch) -> Result<(), OperatorError> {
        let advance = || {
            let mut state = locked(&self.state);
            state.durable = state.durable.max(epoch);
            state.told = state.told.split_off(&epoch);
        };
        if self.keeper.is_none() {
            advance();
        }
        self.with_keeper(|keeper| {
            advance();
            keeper.as_mut().map_or(Ok(()), |keeper| keeper.commit(epoch))
        })
    }

    /// Passes the waiting letters to the writer.
    pub(crate) fn flush(&self) {
        self.with_keeper(|_| Ok(())).expect("nothing that fails");
    }

    /// Returns the written letters, for another process.
    pub(crate) fn past(&self) -> Result<LettersPast, OperatorError> {
        let of_state = || {
            let state = locked(&self.state);
            LettersPast { epoch: state.durable, token: None, count: state.durable_total() }
        };
        let mut past = of_state();
        self.with_keeper(|keeper| {
            // Commits come one after the other, each under the lock of the keeper.
            past = of_state();
            past.token = keeper.as_mut().map_or(Ok(None), |keeper| keeper.writer.token())?;
            Ok(())
        })?;
        Ok(past)
    }

    /// Starts with the letters of other processes.
    pub(crate) fn begin_with(&self, past: &LettersPast) {
        let mut state = locked(&self.state);
        (state.durable, state.total_before) = (past.epoch, past.count);
    }

    /// Drops uncommitted letters, because another process will continue.
    pub(crate) fn suspend(&self) -> Result<(), OperatorError> {
        self.with_keeper(|keeper| keeper.take().map_or(Ok(()), |mut keeper| keeper.writer.suspend()))
    }

    pub(crate) fn close(&self) -> Result<(), OperatorError> {
        self.with_keeper(|keeper| {
            let Some(mut keeper) = keeper.take() else { return Ok(()) };
            keeper.commit(Epoch::MAX)?;
            keeper.writer.close()
        })
    }

    /// Passes the waiting letters to the writer, then calls a function with it.
    fn with_keeper(
        &self,
        act: impl FnOnce(&mut Option<Keeper>) -> Result<(), OperatorError>,
    ) -> Result<(), OperatorError> {
        let Some(keeper) = &self.keeper else { return Ok(()) };
        let mut keeper = locked(keeper);
        let waiting = std::mem::take(&mut locked(&self.state).waiting);
        if let Some(keeper) = keeper.as_mut() {
            keeper.take(waiting);
        }
        act(&mut keeper)
    }

    pub(crate) fn samples(&self) -> Vec<LetterSample> {
        locked(&self.state).samples.iter().cloned().collect()
    }

    pub(crate) fn groups(&self) -> Vec<LetterGroup> {
        let state = locked(&self.state);
        let groups = state.groups.iter().flat_map(|(operator, reasons)| {
            reasons.iter().map(|(reason, (count, samples))| LetterGroup {
                operator: operator.clone(),
                reason: reason.to_string(),
                count: *count,
                samples: samples.clone(),
            })
        });
        groups.collect()
    }

    pub(crate) fn total(&self) -> u64 {
        locked(&self.state).total
    }

    /// Records an upper bound of lost letters.
    pub(crate) fn lose(&self, count: u64) {
        let mut state = locked(&self.state);
        state.lost = state.lost.saturating_add(count);
    }

    /// See [`Self::lose`].
    pub(crate) fn lost(&self) -> u64 {
        locked(&self.state).lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    /// Letters received by a writer, and its commit.
    #[derive(Clone, Default)]
    struct Record(Arc<Mutex<Given>>);

    /// Letters by epoch, and the first uncommitted epoch.
    type Given = (Vec<(Epoch, u8)>, Epoch);

    impl LetterWriter for Record {
        fn write(&mut self, _operator: &str, letter: &DeadLetter, epoch: u64) -> Result<(), OperatorError> {
            locked(&self.0).0.push((epoch, letter.id.expect("each has one")[0]));
            Ok(())
        }
        fn commit(&mut self, epoch: u64) -> Result<(), OperatorError> {
            locked(&self.0).1 = epoch;
            Ok(())
        }
        fn close(&mut self) -> Result<(), OperatorError> {
            Ok(())
        }
    }

    fn letter(id: u8) -> DeadLetter {
        DeadLetter {
            id: Some([id; 16]),
            time: None,
            reason: "bad_value".into(),
            detail: "x".into(),
            values: Values::new(),
        }
    }

    #[test]
    fn nothing_is_remembered_of_epochs_that_no_replay_repeats() {
        let record = Record::default();
        let letters = Letters::new(Some(Box::new(record.clone())));
        for epoch in 0..100 {
            for id in 0..200 {
                assert!(letters.add("a", epoch, letter(id)));
                assert!(!letters.add("a", epoch, letter(id)), "told before");
            }
            letters.durable(epoch).expect("writes");
            let state = locked(&letters.state);
            assert_eq!((state.told.len(), state.waiting.len()), (1, 0));
        }
        assert_eq!(locked(&record.0).0.len(), 20_000);
    }

    #[test]
    fn what_waits_for_the_writer_is_bounded() {
        let record = Record::default();
        let letters = Letters::new(Some(Box::new(record.clone())));
        for epoch in 0..3 * WAITING as u64 {
            letters.add("a", epoch, letter(1));
            assert!(locked(&letters.state).waiting.len() < WAITING);
        }
        assert_eq!(locked(&record.0).0.len(), 3 * WAITING);
        assert_eq!(locked(&record.0).1, 0, "nothing was committed");
    }

    proptest! {
        /// A restarted slot repeats letters of epochs that are not durable, and maybe some before.
        #[test]
        fn each_letter_once_whatever_is_replayed(
            steps in prop::collection::vec((0u8..8, 0u64..6, 0u8..4), 1..60),
        ) {
            let record = Record::default();
            let letters = Letters::new(Some(Box::new(record.clone())));
            let (mut durable, mut expected) = (0, std::collections::BTreeSet::new());
            for (step, epoch, id) in steps {
                if step == 0 {
                    durable = durable.max(epoch);
                    letters.durable(durable).expect("writes");
                } else {
                    let is_new = epoch >= durable && expected.insert((epoch, id));
                    prop_assert_eq!(letters.add("a", epoch, letter(id)), is_new);
                }
            }
            letters.close().expect("writes");
            let mut given = locked(&record.0).0.clone();
            given.sort_unstable();
            prop_assert_eq!(given, expected.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(letters.total(), expected.len() as u64);
        }
    }
}
