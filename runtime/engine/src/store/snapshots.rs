//! The past of stateful stages: what leads to the state that a restart begins with.
use crate::frame::{CLOSED, Epoch};
use arrow_array::RecordBatch;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tidemill_operators::api::{OperatorError, WriteSnapshot};
use tidemill_operators::record::{EventTime, batch_bytes};

/// So many bytes of calls may come to a stage while its snapshot is written, however small its state is.
const ROOM: usize = 16 << 20;

/// What changes the state of a stateful operator.
#[derive(Debug, Clone)]
pub(crate) enum Call {
    /// Rows came at a port.
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
    /// By epoch, ascending.
    snapshots: VecDeque<Snapshot>,
    /// With the epochs that they belong to, ascending.
    calls: VecDeque<(Epoch, Call)>,
    /// Bytes of the calls since the newest snapshot.
    since: usize,
    /// The snapshot that is being written.
    writing: Option<Writing>,
    /// How many were begun.
    begun: u64,
    /// Why the last one could not be written.
    failure: Option<OperatorError>,
    /// Its stage waits for the snapshot that is being written.
    is_waiting: bool,
}

/// A snapshot that is being written while its stage goes on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writing {
    /// It is of all epochs before this one.
    epoch: Epoch,
    number: u64,
    /// Bytes of calls since the newest snapshot that it makes up for.
    since: usize,
}

impl History {
    /// How many calls are of epochs before this one: they ascend, so nothing but a few is looked at.
    fn before(&self, epoch: Epoch) -> usize {
        self.calls.partition_point(|(of, _)| *of < epoch)
    }

    /// Forgets what was written about `epoch` and later.
    fn truncate(&mut self, epoch: Epoch) {
        self.snapshots.retain(|snapshot| snapshot.epoch <= epoch);
        self.calls.truncate(self.before(epoch));
        // Of a former incarnation: nobody waits for it any more.
        (self.writing, self.failure) = (None, None);
        let newest = self.snapshots.back().map_or(0, |snapshot| snapshot.epoch);
        let since = self.calls.range(self.before(newest)..);
        self.since = since.map(|(_, call)| call.bytes()).sum();
    }

    /// Adds a snapshot, in place of what was written about its epoch and later.
    fn put(&mut self, snapshot: Snapshot) {
        self.snapshots.retain(|known| known.epoch < snapshot.epoch);
        self.calls.truncate(self.before(snapshot.epoch));
        self.snapshots.push_back(snapshot);
        self.since = 0;
        self.writing = None;
    }

    /// The state "all of the epochs before `epoch`", to which all calls so far have led, is being written.
    fn begin(&mut self, epoch: Epoch) -> Writing {
        self.begun += 1;
        *self.writing.insert(Writing { epoch, number: self.begun, since: self.since })
    }

    /// It is written, or cannot be; what is not waited for any more is dropped.
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

    /// What leads to the state "all of the epochs before `to`", where `base` is the newest snapshot that is known and all
    /// calls before `from` are.
    fn since(&self, base: Option<Epoch>, from: Epoch, to: Epoch) -> Option<StageDelta> {
        let newest = self.snapshots.iter().rev().find(|snapshot| snapshot.epoch <= to)?;
        let is_new = base.is_none_or(|base| newest.epoch > base);
        let from = if is_new { newest.epoch } else { from };
        let first = self.before(from);
        let calls = self.calls.range(first..self.before(to).max(first)).cloned().collect();
        let snapshot = is_new.then(|| (newest.epoch, Arc::clone(&newest.bytes)));
        Some(StageDelta { snapshot, calls, from })
    }

    /// More has come while a snapshot is written than the state had when that was begun: what comes faster than it can be written would
    /// be kept without a bound.
    fn is_behind(&self) -> bool {
        self.writing.is_some_and(|writing| {
            let state = self.snapshots.back().map_or(0, |newest| newest.bytes.len()) + writing.since;
            self.since.saturating_sub(writing.since) >= state.max(ROOM)
        })
    }

    /// As many bytes of calls as the newest snapshot has: the next one is worth its cost.
    fn is_snapshot_due(&self) -> bool {
        self.writing.is_none() && self.snapshots.back().is_none_or(|newest| self.since >= newest.bytes.len())
    }
}

/// What a checkpoint has to add about a stage.
pub(crate) struct StageDelta {
    /// In place of everything before.
    pub(crate) snapshot: Option<(Epoch, Arc<Vec<u8>>)>,
    /// Of the epochs from `from` on.
    pub(crate) calls: Vec<(Epoch, Call)>,
    pub(crate) from: Epoch,
}

/// What a restart needs of stateful stages, by instance.
///
/// A snapshot copies the whole state, so one at every checkpoint would cost the square of a state that grows. One is
/// taken when the calls since the last one have as many bytes as it has; a restart repeats the calls after it. So
/// snapshots cost as much as what goes through the stage, and take at most a few times the memory of the state.
///
/// Who writes one is not waited for, unless it is slower than what comes: a stage to which as much has come meanwhile as its state had
/// goes on when it is there, as if it had written it itself.
#[derive(Debug)]
pub(crate) struct SnapshotStore {
    stages: Mutex<HashMap<String, Arc<StageHistory>>>,
    /// What a checkpoint still needs: nothing from here on is forgotten.
    kept: AtomicU64,
}

/// Each has a lock of its own: what a checkpoint reads of one keeps no other stage waiting.
#[derive(Debug, Default)]
struct StageHistory {
    history: Mutex<History>,
    /// A snapshot is there, or will not be.
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

    /// Writes the state "all of the epochs before `epoch`" on a thread of its own. What was known of the stage before holds meanwhile.
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
            // There may be one later: a snapshot is still due then.
            self.with(stage, |history| history.writing = None);
        }
    }

    /// Adds the calls of an epoch, later than all before; tells whether a snapshot is due. Waits for one that is being written, where too much
    /// has come meanwhile.
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

    /// For a next incarnation that begins with the state "all of the epochs before `epoch`": a snapshot and the calls that lead
    /// from it to that state. What a former incarnation wrote about later epochs is forgotten.
    pub(crate) fn resume(&self, stage: &str, epoch: Epoch) -> Option<(Arc<Vec<u8>>, Vec<Call>)> {
        self.with(stage, |history| {
            history.truncate(epoch);
            let snapshot = history.snapshots.back()?;
            let calls = history.calls.range(history.before(snapshot.epoch)..);
            Some((Arc::clone(&snapshot.bytes), calls.map(|(_, call)| call.clone()).collect()))
        })
    }

    /// The past of a stage that another process has written.
    pub(crate) fn begin_with(&self, stage: &str, epoch: Epoch, state: Vec<u8>, calls: Vec<(Epoch, Call)>) {
        self.put(stage, epoch, state);
        self.with(stage, |history| {
            for (epoch, call) in calls {
                history.add(epoch, vec![call]);
            }
        });
    }

    /// The stages of which something is known.
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

    /// Nothing from `epoch` on is forgotten until this is called again.
    pub(crate) fn keep_from(&self, epoch: Epoch) {
        self.kept.store(epoch, Ordering::Release);
    }

    /// Forgets what no restart at or after `epoch` needs.
    pub(crate) fn prune(&self, stage: &str, epoch: Epoch) {
        if epoch == CLOSED {
            return;
        }
        let epoch = epoch.min(self.kept.load(Ordering::Acquire));
        self.with(stage, |history| {
            while history.snapshots.get(1).is_some_and(|next| next.epoch <= epoch) {
                history.snapshots.pop_front();
            }
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

    /// The snapshot and the watermarks after it that a restart at an epoch gets.
    fn resumed(store: &SnapshotStore, epoch: Epoch) -> Option<(String, Vec<EventTime>)> {
        let (bytes, calls) = store.resume("s", epoch)?;
        let times = calls.iter().map(|call| match call {
            Call::Advance(time) => *time,
            Call::Apply(..) => unreachable!("only watermarks are recorded here"),
        });
        Some((String::from_utf8_lossy(&bytes).into_owned(), times.collect()))
    }

    /// Which snapshot a checkpoint of the epochs before this one has, and how many calls.
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
        // It begins again before what is being written, and may be going to record other calls.
        assert_eq!(resumed(&store, 2), Some(("none".into(), vec![0, 1])));
        store.with("s", |history| history.complete(writing, Ok(b"six".to_vec())));
        assert_eq!(resumed(&store, 6), Some(("none".into(), vec![0, 1])));
    }

    /// What comes while a snapshot is written is kept; faster than it is written, it would be kept without a bound.
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
        // Three times as much as there is room for.
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
        // The fault: it is still being written, and much has come.
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
