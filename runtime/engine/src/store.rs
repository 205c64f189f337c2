//! What outlives a slot: snapshots of stateful stages and the epoch logs of sources.
use crate::frame::{CLOSED, Epoch};
use serde::{Deserialize, Serialize};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidemill_operators::api::SourcePosition;
use tidemill_operators::record::EventTime;

/// A state that holds "all of the epochs before e" for every e in `from ..= to`.
#[derive(Debug, Clone)]
struct Snapshot {
    from: Epoch,
    to: Epoch,
    bytes: Arc<Vec<u8>>,
}

/// Snapshots by stage instance.
#[derive(Debug, Default)]
pub(crate) struct SnapshotStore {
    stages: Mutex<HashMap<String, VecDeque<Snapshot>>>,
}

impl SnapshotStore {
    fn with<R>(&self, stage: &str, act: impl FnOnce(&mut VecDeque<Snapshot>) -> R) -> R {
        let mut stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        if !stages.contains_key(stage) {
            stages.insert(stage.to_owned(), VecDeque::new());
        }
        act(stages.get_mut(stage).expect("inserted above"))
    }

    /// Adds the state that holds from `from` to `to`; replaces what a former life wrote about the same epochs.
    pub(crate) fn put(&self, stage: &str, from: Epoch, to: Epoch, bytes: Vec<u8>) {
        self.with(stage, |snapshots| {
            snapshots.retain(|snapshot| snapshot.from < from);
            snapshots.push_back(Snapshot { from, to, bytes: Arc::new(bytes) });
        });
    }

    /// The newest state holds up to `to` as well.
    pub(crate) fn extend(&self, stage: &str, to: Epoch) {
        self.with(stage, |snapshots| {
            if let Some(newest) = snapshots.back_mut() {
                newest.to = newest.to.max(to);
            }
        });
    }

    /// The state "all of the epochs before `epoch`".
    pub(crate) fn at(&self, stage: &str, epoch: Epoch) -> Option<Arc<Vec<u8>>> {
        self.with(stage, |snapshots| {
            let found =
                snapshots.iter().rev().find(|snapshot| snapshot.from <= epoch && epoch <= snapshot.to);
            found.map(|snapshot| Arc::clone(&snapshot.bytes))
        })
    }

    /// Forgets states that no restart at or after `epoch` needs.
    pub(crate) fn prune(&self, stage: &str, epoch: Epoch) {
        if epoch != CLOSED {
            self.with(stage, |snapshots| snapshots.retain(|snapshot| snapshot.to >= epoch));
        }
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

    /// Forgets cuts that no restart at or after `epoch` needs.
    pub(crate) fn prune(&self, source: &str, epoch: Epoch) {
        if let Some(log) = self.lock().of.get_mut(source)
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

    #[test]
    fn a_snapshot_serves_every_epoch_up_to_the_next_change() {
        let store = SnapshotStore::default();
        store.put("s", 0, 4, b"empty".to_vec());
        store.put("s", 8, 20, b"eight".to_vec());
        store.extend("s", 30);
        let at = |epoch| store.at("s", epoch).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert_eq!(at(0).as_deref(), Some("empty"));
        assert_eq!(at(6), None);
        assert_eq!(at(25).as_deref(), Some("eight"));
        store.prune("s", 10);
        assert_eq!(at(0), None);
        store.put("s", 8, 9, b"again".to_vec());
        assert_eq!(at(25), None, "a restart replaces what the former life wrote");
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
