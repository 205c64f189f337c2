//! The history of stateful stages: the data that leads to the state of a restart.
use crate::frame::{CLOSED, Epoch};
use arrow_array::RecordBatch;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tidemill_operators::api::{OperatorError, WriteSnapshot};
use tidemill_operators::record::{EventTime, batch_bytes};

/// Bytes of calls that a stage may add while its snapshot is written, even if its state is small.
const ROOM: usize = 16 << 20;

/// A change of the state of a stateful operator.
#[derive(Debug, Clone)]
pub(crate) enum Call {
    /// Rows arrived at a port.
    Apply(usize, RecordBatch),
    /// The watermark advanced.
    Advance(EventTime),
}

impl Call {
    fn bytes(&self) -> usize {
        let rows = match self {
            Call::Apply(_, batch) => batch_bytes(batch),
            Call::Advance(_) => 0,
        };
        rows + size_of::<(Epoch, Self)>()
    }
}

/// A state "all of the epochs before `epoch`".
#[derive(Debug, Clone)]
struct Snapshot {
    epoch: Epoch,
    bytes: Arc<Vec<u8>>,
}

/// The past of one stage instance: snapshots, and every call since the oldest of them.
#[derive(Debug, Default)]
struct History {
    /// Ascending by epoch.
    snapshots: VecDeque<Snapshot>,
    /// With their epochs, ascending.
    calls: VecDeque<(Epoch, Call)>,
    /// Bytes of the calls since the newest snapshot.
    since: usize,
    /// The snapshot being written.
    writing: Option<Writing>,
    /// Number of snapshots started.
    begun: u64,
    /// Failure of the last write.
    failure: Option<OperatorError>,
    /// Whether its stage waits for the snapshot being written.
    is_waiting: bool,
    /// What came from outside, by the epoch that it was given to; unlike calls it outlives a restart before that epoch.
    news: BTreeMap<Epoch, RecordBatch>,
    /// In all epochs before this one the operator was asked for news.
    asked: Epoch,
}

/// A snapshot that is written while its stage continues.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writing {
    /// It covers all epochs before this one.
    epoch: Epoch,
    number: u64,
    /// Bytes of calls since the newest snapshot that it covers.
    since: usize,
}

impl History {
    /// Number of calls of epochs before this one: they ascend, so only a few are inspected.
    fn before(&self, epoch: Epoch) -> usize {
        self.calls.partition_point(|(of, _)| *of < epoch)
    }

    /// Removes data about `epoch` and later.
    fn truncate(&mut self, epoch: Epoch) {
        self.snapshots.retain(|snapshot| snapshot.epoch <= epoch);
        self.calls.truncate(self.before(epoch));
        // Of a former incarnation: it is no longer awaited.
        (self.writing, self.failure) = (None, None);
        let newest = self.snapshots.back().map_or(0, |snapshot| snapshot.epoch);
        let since = self.calls.range(self.before(newest)..);
        self.since = since.map(|(_, call)| call.bytes()).sum();
    }

    /// Adds a snapshot, replacing data about its epoch and later.
    fn put(&mut self, snapshot: Snapshot) {
        self.snapshots.retain(|known| known.epoch < snapshot.epoch);
        self.calls.truncate(self.before(snapshot.epoch));
        self.snapshots.push_back(snapshot);
        self.since = 0;
        self.writing = None;
    }

    /// Starts writing the state "all of the epochs before `epoch`", which results from all calls so far.
    fn begin(&mut self, epoch: Epoch) -> Writing {
        self.begun += 1;
        *self.writing.insert(Writing { epoch, number: self.begun, since: self.since })
    }

    /// Adds the written snapshot or the failure; drops one that is no longer awaited.
    fn complete(&mut self, writing: Writing, written: Result<Vec<u8>, OperatorError>) {
        if self.writing.is_none_or(|awaited| awaited.number != writing.number) {
            return;
        }
        self.writing = None;
        match written {
            Ok(bytes) => {
                self.snapshots.push_back(Snapshot { epoch: writing.epoch, bytes: Arc::new(bytes) });
                self.since -= writing.since;
            }
            Err(error) => self.failure = Some(error),
        }
    }

    /// Adds the calls of an epoch.
    fn add(&mut self, epoch: Epoch, calls: Vec<Call>) {
        self.since += calls.iter().map(Call::bytes).sum::<usize>();
        self.calls.extend(calls.into_iter().map(|call| (epoch, call)));
    }

    /// Returns the data that leads to the state "all of the epochs before `to`", given the newest known snapshot `base` and
    /// all calls before `from`.
    fn since(&self, base: Option<Epoch>, from: Epoch, to: Epoch) -> Option<StageDelta> {
        let newest = self.snapshots.iter().rev().find(|snapshot| snapshot.epoch <= to)?;
        let is_new = base.is_none_or(|base| newest.epoch > base);
        let from = if is_new { newest.epoch } else { from };
        let first = self.before(from);
        let calls = self.calls.range(first..self.before(to).max(first)).cloned().collect();
        let snapshot = is_new.then(|| (newest.epoch, Arc::clone(&newest.bytes)));
        Some(StageDelta { snapshot, calls, from })
    }

    /// Returns whether more calls have arrived during a write than the size of the state at its start: calls that arrive faster
    /// than a write would be kept without a bound.
    fn is_behind(&self) -> bool {
        self.writing.is_some_and(|writing| {
            let state = self.snapshots.back().map_or(0, |newest| newest.bytes.len()) + writing.since;
            self.since.saturating_sub(writing.since) >= state.max(ROOM)
        })
    }

    /// Returns whether the calls have reached the bytes of the newest snapshot, so that the next one is worth its cost.
    fn is_snapshot_due(&self) -> bool {
        self.writing.is_none() && self.snapshots.back().is_none_or(|newest| self.since >= newest.bytes.len())
    }
}

/// Additions of a checkpoint about a stage.
pub(crate) struct StageDelta {
    /// Replaces everything before.
    pub(crate) snapshot: Option<(Epoch, Arc<Vec<u8>>)>,
    /// Calls of the epochs from `from` on.
    pub(crate) calls: Vec<(Epoch, Call)>,
    pub(crate) from: Epoch,
}

/// Restart data of stateful stages, by instance.
///
/// A snapshot copies the whole state, so one at every checkpoint would cost the square of a growing state. One is taken
/// when the calls since the last one reach its size; a restart repeats the calls after it. So snapshots cost as much as the
/// data through the stage, and take at most a few times the memory of the state.
///
/// A stage does not wait for a write, unless it is slower than the input: after as many bytes of calls as its state had, it
/// waits for the end of the write, as if it had written the snapshot itself.
#[derive(Debug)]
pub(crate) struct SnapshotStore {
    stages: Mutex<HashMap<String, Arc<StageHistory>>>,
    /// Epochs needed by a checkpoint: everything from here on is kept.
    kept: AtomicU64,
}

/// Each has its own lock: reading one for a checkpoint delays no other stage.
#[derive(Debug, Default)]
struct StageHistory {
    history: Mutex<History>,
    /// Signals that a snapshot was written, or will not be.
    written: Condvar,
}

impl StageHistory {
    fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for SnapshotStore {
    fn default() -> Self {
        Self { stages: Mutex::default(), kept: AtomicU64::new(CLOSED) }
    }
}

impl SnapshotStore {
    fn stage(&self, stage: &str) -> Arc<StageHistory> {
        let mut stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        match stages.get(stage) {
            Some(known) => Arc::clone(known),
            None => Arc::clone(stages.entry(stage.to_owned()).or_default()),
        }
    }

    fn with<R>(&self, stage: &str, act: impl FnOnce(&mut History) -> R) -> R {
        act(&mut self.stage(stage).lock())
    }

    /// Adds the state "all of the epochs before `epoch`".
    pub(crate) fn put(&self, stage: &str, epoch: Epoch, bytes: Vec<u8>) {
        let snapshot = Snapshot { epoch, bytes: Arc::new(bytes) };
        self.with(stage, |history| history.put(snapshot));
    }

    /// Writes the state "all of the epochs before `epoch`" on its own thread. Earlier data of the stage remains valid
    /// meanwhile.
    pub(crate) fn write(self: &Arc<Self>, stage: &str, epoch: Epoch, write: WriteSnapshot) {
        let writing = self.with(stage, |history| history.begin(epoch));
        let (store, name) = (Arc::clone(self), stage.to_owned());
        let work = move || {
            let written = catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_| {
                Err(OperatorError::new("a snapshot of the state could not be written: it panicked"))
            });
            let stage = store.stage(&name);
            stage.lock().complete(writing, written);
            stage.written.notify_all();
        };
        if std::thread::Builder::new().name("tm-snapshot".into()).spawn(work).is_err() {
            // A later attempt is possible: a snapshot is still due then.
            self.with(stage, |history| history.writing = None);
        }
    }

    /// Adds the calls of an epoch, later than all before; returns whether a snapshot is due. Waits for the one being
    /// written after too many calls.
    ///
    /// # Errors
    /// The last snapshot could not be written.
    pub(crate) fn record(&self, stage: &str, epoch: Epoch, calls: Vec<Call>) -> Result<bool, OperatorError> {
        let stage = self.stage(stage);
        let mut history = stage.lock();
        while history.is_behind() {
            history.is_waiting = true;
            history = stage.written.wait(history).unwrap_or_else(PoisonError::into_inner);
        }
        history.is_waiting = false;
        history.add(epoch, calls);
        history.failure.take().map_or_else(|| Ok(history.is_snapshot_due()), Err)
    }

    /// Returns the news of an epoch: those of the first incarnation that began it, which `take` gives.
    pub(crate) fn news(
        &self,
        stage: &str,
        epoch: Epoch,
        take: impl FnOnce() -> Option<RecordBatch>,
    ) -> Option<RecordBatch> {
        self.with(stage, |history| {
            if epoch >= history.asked {
                history.asked = epoch + 1;
                history.news.extend(take().map(|news| (epoch, news)));
            }
            history.news.get(&epoch).cloned()
        })
    }

    /// Returns for a next incarnation that starts with the state "all of the epochs before `epoch`" a snapshot and the
    /// calls that lead from it to that state. Removes data of a former incarnation about later epochs.
    pub(crate) fn resume(&self, stage: &str, epoch: Epoch) -> Option<(Arc<Vec<u8>>, Vec<Call>)> {
        self.with(stage, |history| {
            history.truncate(epoch);
            let snapshot = history.snapshots.back()?;
            let calls = history.calls.range(history.before(snapshot.epoch)..);
            Some((Arc::clone(&snapshot.bytes), calls.map(|(_, call)| call.clone()).collect()))
        })
    }

    /// Starts with the history of a stage from another process.
    pub(crate) fn begin_with(&self, stage: &str, epoch: Epoch, state: Vec<u8>, calls: Vec<(Epoch, Call)>) {
        self.put(stage, epoch, state);
        self.with(stage, |history| {
            for (epoch, call) in calls {
                history.add(epoch, vec![call]);
            }
        });
    }

    /// The known stages.
    pub(crate) fn stages(&self) -> Vec<String> {
        self.stages.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// See [`History::since`].
    pub(crate) fn since(
        &self,
        stage: &str,
        base: Option<Epoch>,
        from: Epoch,
        to: Epoch,
    ) -> Option<StageDelta> {
        self.with(stage, |history| history.since(base, from, to))
    }

    /// Keeps everything from `epoch` on until the next call.
    pub(crate) fn keep_from(&self, epoch: Epoch) {
        self.kept.store(epoch, Ordering::Release);
    }

    /// Removes data that no restart at or after `epoch` needs.
    pub(crate) fn prune(&self, stage: &str, epoch: Epoch) {
        if epoch == CLOSED {
            return;
        }
        let epoch = epoch.min(self.kept.load(Ordering::Acquire));
        self.with(stage, |history| {
            while history.snapshots.get(1).is_some_and(|next| next.epoch <= epoch) {
                history.snapshots.pop_front();
            }
            history.news = history.news.split_off(&epoch);
            let Some(oldest) = history.snapshots.front().map(|snapshot| snapshot.epoch) else { return };
            let gone = history.before(oldest);
            history.calls.drain(..gone);
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;
    use arrow_array::cast::AsArray;
    use arrow_array::{ArrayRef, StringArray};

    /// The snapshot and the later watermarks that a restart at an epoch gets.
    fn resumed(store: &SnapshotStore, epoch: Epoch) -> Option<(String, Vec<EventTime>)> {
        let (bytes, calls) = store.resume("s", epoch)?;
        let times = calls.iter().map(|call| match call {
            Call::Advance(time) => *time,
            Call::Apply(..) => unreachable!("only watermarks are recorded here"),
        });
        Some((String::from_utf8_lossy(&bytes).into_owned(), times.collect()))
    }

    /// The snapshot of a checkpoint of the epochs before this one, and its number of calls.
    fn kept(store: &SnapshotStore, epoch: Epoch) -> Option<(String, usize)> {
        let delta = store.since("s", None, 0, epoch)?;
        let (_, bytes) = delta.snapshot?;
        Some((String::from_utf8_lossy(&bytes).into_owned(), delta.calls.len()))
    }

    #[test]
    fn a_restart_gets_the_snapshot_before_it_and_the_calls_since() {
        let store = SnapshotStore::default();
        assert_eq!(resumed(&store, 0), None);
        store.put("s", 0, b"empty".to_vec());
        for epoch in 0..10 {
            store.record("s", epoch, vec![Call::Advance(epoch as i64 * 10)]).unwrap();
        }
        store.put("s", 10, b"ten".to_vec());
        for epoch in 10..14 {
            store.record("s", epoch, vec![Call::Advance(epoch as i64 * 10)]).unwrap();
        }
        assert_eq!(resumed(&store, 13), Some(("ten".into(), vec![100, 110, 120])));
        assert_eq!(resumed(&store, 14), Some(("ten".into(), vec![100, 110, 120])), "130 was forgotten");
        store.prune("s", 9);
        assert_eq!(resumed(&store, 2), Some(("empty".into(), vec![0, 10])));
        assert_eq!(resumed(&store, 12), Some(("empty".into(), vec![0, 10])), "ten was forgotten");
    }

    #[test]
    fn an_epoch_has_the_news_of_its_first_beginning() {
        let store = SnapshotStore::default();
        let news = |epoch, text: Option<&str>| {
            let batch = |text: &str| {
                let column: ArrayRef = Arc::new(StringArray::from(vec![text]));
                RecordBatch::try_from_iter([("text", column)]).unwrap()
            };
            let found = store.news("s", epoch, || text.map(batch))?;
            Some(found.column(0).as_string::<i32>().value(0).to_owned())
        };
        store.put("s", 0, Vec::new());
        assert_eq!(news(0, None), None);
        assert_eq!(news(1, Some("one")).as_deref(), Some("one"));
        assert_eq!(news(4, None), None);
        assert!(store.resume("s", 0).is_some(), "a restart");
        for epoch in 0..5 {
            let found = news(epoch, Some("two"));
            assert_eq!(found.as_deref(), (epoch == 1).then_some("one"), "{epoch}");
        }
        assert_eq!(news(5, Some("two")).as_deref(), Some("two"));
        store.prune("s", 2);
        store.with("s", |history| assert_eq!(history.news.keys().collect::<Vec<_>>(), [&5]));
    }

    #[test]
    fn what_no_restart_needs_is_forgotten() {
        let store = SnapshotStore::default();
        for epoch in 0..6 {
            store.put("s", epoch, vec![epoch as u8]);
            store.record("s", epoch, vec![Call::Advance(0)]).unwrap();
        }
        store.prune("s", 4);
        store.with("s", |history| {
            assert_eq!(history.snapshots.iter().map(|s| s.epoch).collect::<Vec<_>>(), [4, 5]);
            assert_eq!(history.calls.iter().map(|(of, _)| *of).collect::<Vec<_>>(), [4, 5]);
        });
    }

    #[test]
    fn snapshots_of_a_growing_state_cost_no_more_than_what_made_it_grow() {
        let store = SnapshotStore::default();
        let (mut state, mut copied, mut most) = (0, 0, 0);
        store.put("s", 0, Vec::new());
        for epoch in 0..10_000 {
            let call = Call::Advance(0);
            state += call.bytes();
            if store.record("s", epoch, vec![call]).unwrap() {
                store.put("s", epoch + 1, vec![0; state]);
                copied += state;
            }
            store.prune("s", epoch);
            most = most.max(store.with("s", |history| history.calls.len()));
        }
        assert!((state / 2..3 * state).contains(&copied), "{copied} bytes for a state of {state}");
        assert!(most < 5_000, "{most} of 10000 calls are kept");
    }

    #[test]
    fn a_snapshot_that_is_being_written_counts_when_it_is_there() {
        let store = SnapshotStore::default();
        store.put("s", 0, b"none".to_vec());
        let call = || vec![Call::Advance(7)];
        let due: Vec<bool> = (0..3).map(|epoch| store.record("s", epoch, call()).unwrap()).collect();
        assert_eq!(due, [true; 3]);
        let writing = store.with("s", |history| history.begin(3));
        assert!(!store.record("s", 3, call()).unwrap(), "one is enough");
        assert_eq!(kept(&store, 4), Some(("none".into(), 4)));
        store.with("s", |history| history.complete(writing, Ok(vec![b'x'; call()[0].bytes()])));
        assert_eq!(kept(&store, 4).map(|(_, calls)| calls), Some(1), "what came meanwhile stays");
        assert_eq!(store.with("s", |history| history.since), call()[0].bytes());
    }

    #[test]
    fn what_an_incarnation_before_was_writing_is_dropped() {
        let store = SnapshotStore::default();
        store.put("s", 0, b"none".to_vec());
        for epoch in 0..6 {
            store.record("s", epoch, vec![Call::Advance(epoch as i64)]).unwrap();
        }
        let writing = store.with("s", |history| history.begin(6));
        // It restarts before the snapshot being written, and may record other calls.
        assert_eq!(resumed(&store, 2), Some(("none".into(), vec![0, 1])));
        store.with("s", |history| history.complete(writing, Ok(b"six".to_vec())));
        assert_eq!(resumed(&store, 6), Some(("none".into(), vec![0, 1])));
    }

    /// Calls that arrive during a write are kept; faster than it is written, they would be kept without a bound.
    #[test]
    fn a_stage_waits_for_a_snapshot_that_is_slower_than_what_comes() {
        const CALLS: usize = 10_000;
        let call = Call::Advance(0).bytes();
        let store = Arc::new(SnapshotStore::default());
        store.put("s", 0, b"none".to_vec());
        let (go_on, held) = std::sync::mpsc::channel::<()>();
        let write = move || {
            held.recv().unwrap();
            Ok(b"one".to_vec())
        };
        store.write("s", 0, Box::new(write));
        // Three times the limit.
        let epochs = 3 * ROOM.div_ceil(CALLS * call) as u64;
        let of_stage = Arc::clone(&store);
        let stage = std::thread::spawn(move || {
            (0..epochs).for_each(|epoch| {
                of_stage.record("s", epoch, vec![Call::Advance(0); CALLS]).unwrap();
            });
        });
        while !store.with("s", |history| history.is_waiting) && !stage.is_finished() {
            std::thread::yield_now();
        }
        let (came, is_writing) = store.with("s", |history| (history.since, history.writing.is_some()));
        // The fault: the write is still in progress, and many calls have arrived.
        assert!(is_writing && came >= ROOM, "{came} bytes");
        assert!(came < ROOM + CALLS * call, "{came} bytes have come, and there is room for {ROOM}");
        go_on.send(()).unwrap();
        stage.join().unwrap();
        let (snapshots, calls) = store.with("s", |history| (history.snapshots.len(), history.calls.len()));
        assert_eq!((snapshots, calls), (2, epochs as usize * CALLS), "nothing is lost, and it goes on");
    }

    #[test]
    fn a_snapshot_that_cannot_be_written_is_told_to_the_stage() {
        let store = Arc::new(SnapshotStore::default());
        store.put("s", 0, b"none".to_vec());
        let told = |store: &SnapshotStore| loop {
            match store.record("s", 0, Vec::new()) {
                Err(error) => return error.message,
                Ok(_) => std::thread::yield_now(),
            }
        };
        store.write("s", 1, Box::new(|| Err(OperatorError::new("no more memory"))));
        assert_eq!(told(&store), "no more memory");
        store.write("s", 1, Box::new(|| panic!("an index is out of bounds")));
        assert!(told(&store).contains("panicked"));
        store.write("s", 1, Box::new(|| Ok(b"one".to_vec())));
        while store.with("s", |history| history.snapshots.len()) < 2 {
            std::thread::yield_now();
        }
        assert_eq!(resumed(&store, 1), Some(("one".into(), vec![])));
    }

    #[test]
    fn a_checkpoint_looks_at_no_calls_but_its_own() {
        let store = SnapshotStore::default();
        store.put("s", 0, Vec::new());
        for epoch in 0..100 {
            store.record("s", epoch, vec![Call::Advance(epoch as i64), Call::Advance(epoch as i64)]).unwrap();
        }
        let of = |base, from, to| {
            let delta = store.since("s", base, from, to).unwrap();
            let epochs: Vec<Epoch> = delta.calls.iter().map(|(epoch, _)| *epoch).collect();
            (delta.snapshot.is_some(), epochs)
        };
        assert_eq!(of(Some(0), 97, 99), (false, vec![97, 97, 98, 98]));
        assert_eq!(of(Some(0), 99, 99), (false, vec![]));
        assert_eq!(of(Some(0), 99, 98), (false, vec![]), "nothing is known that is not asked for");
        assert_eq!(of(None, 99, 2), (true, vec![0, 0, 1, 1]));
    }
}
