//! What outlives a slot: the past of stateful stages and the epoch logs of sources.
use crate::frame::{CLOSED, Epoch};
use arrow_array::RecordBatch;
use serde::{Deserialize, Serialize};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidemill_operators::api::SourcePosition;
use tidemill_operators::record::{EventTime, batch_bytes};

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
}

impl History {
    /// Forgets what was written about `epoch` and later.
    fn truncate(&mut self, epoch: Epoch) {
        self.snapshots.retain(|snapshot| snapshot.epoch <= epoch);
        self.calls.retain(|(of, _)| *of < epoch);
        let newest = self.snapshots.back().map_or(0, |snapshot| snapshot.epoch);
        let since = self.calls.iter().filter(|(of, _)| *of >= newest);
        self.since = since.map(|(_, call)| call.bytes()).sum();
    }

    /// What leads to the state "all of the epochs before `to`", where `base` is the newest snapshot that is known and all
    /// calls before `from` are.
    fn since(&self, base: Option<Epoch>, from: Epoch, to: Epoch) -> Option<StageDelta> {
        let newest = self.snapshots.iter().rev().find(|snapshot| snapshot.epoch <= to)?;
        let is_new = base.is_none_or(|base| newest.epoch > base);
        let from = if is_new { newest.epoch } else { from };
        let calls = self.calls.iter().filter(|(of, _)| (from..to).contains(of)).cloned().collect();
        let snapshot = is_new.then(|| (newest.epoch, Arc::clone(&newest.bytes)));
        Some(StageDelta { snapshot, calls, from })
    }

    /// As many bytes of calls as the newest snapshot has: the next one is worth its cost.
    fn is_snapshot_due(&self) -> bool {
        self.snapshots.back().is_none_or(|newest| self.since >= newest.bytes.len())
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
#[derive(Debug)]
pub(crate) struct SnapshotStore {
    stages: Mutex<HashMap<String, History>>,
    /// What a checkpoint still needs: nothing from here on is forgotten.
    kept: AtomicU64,
}

impl Default for SnapshotStore {
    fn default() -> Self {
        Self { stages: Mutex::default(), kept: AtomicU64::new(CLOSED) }
    }
}

impl SnapshotStore {
    fn with<R>(&self, stage: &str, act: impl FnOnce(&mut History) -> R) -> R {
        let mut stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        if !stages.contains_key(stage) {
            stages.insert(stage.to_owned(), History::default());
        }
        act(stages.get_mut(stage).expect("inserted above"))
    }

    /// Adds the state "all of the epochs before `epoch`".
    pub(crate) fn put(&self, stage: &str, epoch: Epoch, bytes: Vec<u8>) {
        self.with(stage, |history| {
            history.truncate(epoch);
            history.snapshots.retain(|snapshot| snapshot.epoch < epoch);
            history.snapshots.push_back(Snapshot { epoch, bytes: Arc::new(bytes) });
            history.since = 0;
        });
    }

    /// Adds the calls of an epoch, later than all before; tells whether a snapshot is due.
    pub(crate) fn record(&self, stage: &str, epoch: Epoch, calls: Vec<Call>) -> bool {
        self.with(stage, |history| {
            history.since += calls.iter().map(Call::bytes).sum::<usize>();
            history.calls.extend(calls.into_iter().map(|call| (epoch, call)));
            history.is_snapshot_due()
        })
    }

    /// For a next incarnation that begins with the state "all of the epochs before `epoch`": a snapshot and the calls that lead
    /// from it to that state. What a former incarnation wrote about later epochs is forgotten.
    pub(crate) fn resume(&self, stage: &str, epoch: Epoch) -> Option<(Arc<Vec<u8>>, Vec<Call>)> {
        self.with(stage, |history| {
            history.truncate(epoch);
            let snapshot = history.snapshots.back()?;
            let calls = history.calls.iter().filter(|(of, _)| *of >= snapshot.epoch);
            Some((Arc::clone(&snapshot.bytes), calls.map(|(_, call)| call.clone()).collect()))
        })
    }

    /// The past of a stage that another process has written.
    pub(crate) fn begin_with(&self, stage: &str, epoch: Epoch, state: Vec<u8>, calls: Vec<(Epoch, Call)>) {
        self.put(stage, epoch, state);
        for (epoch, call) in calls {
            self.record(stage, epoch, vec![call]);
        }
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
            while history.calls.front().is_some_and(|(of, _)| *of < oldest) {
                history.calls.pop_front();
            }
        });
    }
}

/// Where a source stood before the first record of an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Position to seek to.
    pub position: SourcePosition,
    /// Records to skip from there.
    pub skip: u64,
    /// Sequence number of the first record of the epoch.
    pub sequence: u64,
    /// Newest event time seen before, microseconds.
    pub newest: EventTime,
    /// Watermark with which the epoch began.
    pub watermark: EventTime,
}

/// The epochs of one source: which records belong to which.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochLog {
    /// The non-empty epochs.
    pub cuts: BTreeMap<Epoch, Cut>,
    /// Where the source ended, once it has.
    pub end: Option<End>,
    /// Sequence number after the last record emitted so far.
    #[serde(default)]
    pub emitted: u64,
}

/// Where a source ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Sequence number after the last record.
    pub sequence: u64,
    /// Its last epoch.
    pub epoch: Epoch,
}

/// What is added to an epoch log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpochEntry {
    /// An epoch with records begins.
    Cut {
        /// The epoch.
        epoch: Epoch,
        /// Where the source stood.
        #[serde(flatten)]
        cut: Cut,
    },
    /// The run ended before the source did: sequence number after the last record emitted.
    Emitted(u64),
    /// The source ended.
    End(End),
}

/// Takes entries of epoch logs as they are made, on the thread of the source: it must not take long. What goes wrong is
/// its own affair; the run goes on.
pub trait EpochWriter: Send {
    /// Takes an entry of a source stage.
    fn write(&mut self, source: &str, entry: &EpochEntry);
}

impl EpochLog {
    /// Adds what a writer was given.
    pub fn add(&mut self, entry: EpochEntry) {
        match entry {
            EpochEntry::Cut { epoch, cut } => drop(self.cuts.entry(epoch).or_insert(cut)),
            EpochEntry::Emitted(sequence) => self.emitted = self.emitted.max(sequence),
            EpochEntry::End(end) => self.end = Some(end),
        }
    }

    /// Where a replay stops: where the source ended, else after the last record known to be emitted. Of a process that
    /// was killed that is the beginning of the last epoch.
    pub fn stop(&self) -> End {
        self.end.unwrap_or_else(|| {
            let (epoch, begun) = self.cuts.last_key_value().map_or((0, 0), |(e, cut)| (*e, cut.sequence));
            End { sequence: self.emitted.max(begun), epoch }
        })
    }

    /// The cut to restart from so that every record of `epoch` and later is read again.
    pub(crate) fn restart(&self, epoch: Epoch) -> Option<(Epoch, Cut)> {
        let cut = self.cuts.range(..=epoch).next_back().or_else(|| self.cuts.iter().next());
        cut.map(|(epoch, cut)| (*epoch, cut.clone()))
    }
}

#[derive(Default)]
struct Logs {
    of: BTreeMap<String, EpochLog>,
    writer: Option<Box<dyn EpochWriter>>,
    kept: Option<Epoch>,
}

impl Logs {
    fn write(&mut self, source: &str, entry: &EpochEntry) {
        if let Some(writer) = &mut self.writer {
            writer.write(source, entry);
        }
    }
}

/// Epoch logs by source stage.
#[derive(Default)]
pub(crate) struct EpochLogs {
    logs: Mutex<Logs>,
}

impl EpochLogs {
    pub(crate) fn new(writer: Option<Box<dyn EpochWriter>>) -> Self {
        Self { logs: Mutex::new(Logs { writer, ..Logs::default() }) }
    }

    fn lock(&self) -> MutexGuard<'_, Logs> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn record(&self, source: &str, epoch: Epoch, cut: Cut) {
        let mut logs = self.lock();
        let log = logs.of.entry(source.to_owned()).or_default();
        if let Entry::Vacant(place) = log.cuts.entry(epoch) {
            place.insert(cut.clone());
            logs.write(source, &EpochEntry::Cut { epoch, cut });
        }
    }

    /// Everything before `sequence` is emitted.
    pub(crate) fn emit(&self, source: &str, sequence: u64) {
        if let Some(log) = self.lock().of.get_mut(source) {
            log.emitted = log.emitted.max(sequence);
        }
    }

    pub(crate) fn emitted(&self, source: &str) -> u64 {
        self.lock().of.get(source).map_or(0, |log| log.emitted)
    }

    pub(crate) fn end(&self, source: &str, end: End) {
        let mut logs = self.lock();
        logs.of.entry(source.to_owned()).or_default().end = Some(end);
        logs.write(source, &EpochEntry::End(end));
    }

    /// Adds what another process tells of its source.
    pub(crate) fn add(&self, source: &str, entry: EpochEntry) {
        match entry {
            EpochEntry::Cut { epoch, cut } => self.record(source, epoch, cut),
            EpochEntry::End(end) => self.end(source, end),
            EpochEntry::Emitted(sequence) => self.emit(source, sequence),
        }
    }

    /// The run is over: how far the sources came that did not end.
    pub(crate) fn finish(&self) {
        let mut logs = self.lock();
        let open = logs.of.iter().filter(|(_, log)| log.end.is_none());
        let open: Vec<_> = open.map(|(source, log)| (source.clone(), log.emitted)).collect();
        for (source, emitted) in open {
            logs.write(&source, &EpochEntry::Emitted(emitted));
        }
    }

    pub(crate) fn known_end(&self, source: &str) -> Option<End> {
        self.lock().of.get(source)?.end
    }

    pub(crate) fn restart(&self, source: &str, epoch: Epoch) -> Option<(Epoch, Cut)> {
        self.lock().of.get(source)?.restart(epoch)
    }

    /// The logs that another process has written.
    pub(crate) fn begin_with(&self, logs: BTreeMap<String, EpochLog>) {
        self.lock().of = logs;
    }

    /// The logs, without what no restart at or after `epoch` needs.
    pub(crate) fn since(&self, epoch: Epoch) -> BTreeMap<String, EpochLog> {
        let logs = self.lock();
        let since = |(source, log): (&String, &EpochLog)| {
            let first = log.restart(epoch).map_or(0, |(epoch, _)| epoch);
            let cuts = log.cuts.range(first..).map(|(epoch, cut)| (*epoch, cut.clone())).collect();
            (source.clone(), EpochLog { cuts, end: log.end, emitted: log.emitted })
        };
        logs.of.iter().map(since).collect()
    }

    /// Nothing that a restart at or after `epoch` needs is forgotten until this is called again.
    pub(crate) fn keep_from(&self, epoch: Epoch) {
        self.lock().kept = Some(epoch);
    }

    /// Forgets cuts that no restart at or after `epoch` needs.
    pub(crate) fn prune(&self, source: &str, epoch: Epoch) {
        let mut logs = self.lock();
        let epoch = epoch.min(logs.kept.unwrap_or(CLOSED));
        if let Some(log) = logs.of.get_mut(source)
            && let Some(keep) = log.cuts.range(..=epoch).next_back().map(|(epoch, _)| *epoch)
        {
            log.cuts = log.cuts.split_off(&keep);
        }
    }

    pub(crate) fn all(&self) -> BTreeMap<String, EpochLog> {
        self.lock().of.clone()
    }
}

#[cfg(test)]
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

    #[test]
    fn a_restart_gets_the_snapshot_before_it_and_the_calls_since() {
        let store = SnapshotStore::default();
        assert_eq!(resumed(&store, 0), None);
        store.put("s", 0, b"empty".to_vec());
        for epoch in 0..10 {
            store.record("s", epoch, vec![Call::Advance(epoch as i64 * 10)]);
        }
        store.put("s", 10, b"ten".to_vec());
        for epoch in 10..14 {
            store.record("s", epoch, vec![Call::Advance(epoch as i64 * 10)]);
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
            store.record("s", epoch, vec![Call::Advance(0)]);
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
            if store.record("s", epoch, vec![call]) {
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
    fn a_restart_begins_at_or_before_the_epoch() {
        let logs = EpochLogs::default();
        let cut = |sequence| Cut {
            position: SourcePosition::default(),
            skip: 0,
            sequence,
            newest: 0,
            watermark: 0,
        };
        logs.record("s", 2, cut(0));
        logs.record("s", 5, cut(10));
        assert_eq!(logs.restart("s", 0).map(|(epoch, _)| epoch), Some(2));
        assert_eq!(logs.restart("s", 4).map(|(epoch, _)| epoch), Some(2));
        assert_eq!(logs.restart("s", 7).map(|(epoch, _)| epoch), Some(5));
        logs.prune("s", 6);
        assert_eq!(logs.restart("s", 7).map(|(epoch, _)| epoch), Some(5));
    }
    #[test]
    fn a_log_of_a_run_that_did_not_end_says_where_to_stop() {
        let cut = |sequence| Cut {
            position: SourcePosition::default(),
            skip: 0,
            sequence,
            newest: 0,
            watermark: 0,
        };
        let mut log = EpochLog::default();
        assert_eq!(log.stop(), End { sequence: 0, epoch: 0 });
        for (epoch, sequence) in [(2, 0), (5, 10)] {
            log.add(EpochEntry::Cut { epoch, cut: cut(sequence) });
        }
        assert_eq!(log.stop(), End { sequence: 10, epoch: 5 }, "killed: epochs known to be whole");
        log.add(EpochEntry::Emitted(17));
        assert_eq!(log.stop(), End { sequence: 17, epoch: 5 });
        log.add(EpochEntry::End(End { sequence: 17, epoch: 6 }));
        assert_eq!(log.stop().epoch, 6);
    }
}
