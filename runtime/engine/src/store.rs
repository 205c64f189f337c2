//! Data that outlives a slot: the history of stateful stages and the epoch logs of sources.
use crate::clock::Nanoseconds;
use crate::frame::{CLOSED, Epoch};
use crate::node::source::Schedule;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidemill_operators::api::SourcePosition;
use tidemill_operators::record::EventTime;

mod snapshots;

pub(crate) use snapshots::{Call, SnapshotStore, StageDelta};

/// Position of a source before the first record of an epoch.
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
    /// Watermark at the start of the epoch.
    pub watermark: EventTime,
}

/// The epochs of one source and their records.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochLog {
    /// The non-empty epochs.
    pub cuts: BTreeMap<Epoch, Cut>,
    /// End of the source, once reached.
    pub end: Option<End>,
    /// Sequence number after the last record emitted so far.
    #[serde(default)]
    pub emitted: u64,
    /// Start of its schedule, unless that is its first record in the first epoch: the source, or its rate, is newer than
    /// the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
}

/// Start of a source's schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// Sequence number of the first record that follows it.
    pub sequence: u64,
    /// The epoch that starts with that record.
    pub epoch: Epoch,
    /// Event time of that record if records have none of their own, microseconds.
    pub event_time: EventTime,
}

/// End of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Sequence number after the last record.
    pub sequence: u64,
    /// Its last epoch.
    pub epoch: Epoch,
    /// A limit of the run ended it ([`crate::RunOptions::records`], [`crate::RunOptions::duration`]): it has more to give.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub limit: bool,
}

/// An entry of an epoch log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpochEntry {
    /// An epoch with records starts.
    Cut {
        /// The epoch.
        epoch: Epoch,
        /// Position of the source.
        #[serde(flatten)]
        cut: Cut,
    },
    /// The run ended before the source did: sequence number after the last record emitted.
    Emitted(u64),
    /// The source ended.
    End(End),
}

/// Receives entries of epoch logs on the thread of the source, so it must be fast. It handles its own failures; the run
/// continues.
pub trait EpochWriter: Send {
    /// Writes an entry of a source stage.
    fn write(&mut self, source: &str, entry: &EpochEntry);
}

impl EpochLog {
    /// Adds an entry.
    pub fn add(&mut self, entry: EpochEntry) {
        match entry {
            EpochEntry::Cut { epoch, cut } => drop(self.cuts.entry(epoch).or_insert(cut)),
            EpochEntry::Emitted(sequence) => self.emitted = self.emitted.max(sequence),
            EpochEntry::End(end) => self.end = Some(end),
        }
    }

    /// Returns where a replay stops: at the end of the source, else after the last record known to be emitted. For a killed
    /// process that is the start of the last epoch.
    pub fn stop(&self) -> End {
        self.end.unwrap_or_else(|| {
            let (epoch, begun) = self.cuts.last_key_value().map_or((0, 0), |(e, cut)| (*e, cut.sequence));
            End { sequence: self.emitted.max(begun), epoch, limit: false }
        })
    }

    /// Number of records in the epochs before this one, including unreadable ones.
    pub fn records_before(&self, epoch: Epoch) -> u64 {
        self.cuts.range(epoch..).next().map_or(self.emitted, |(_, cut)| cut.sequence)
    }

    /// Returns the log of a source that continues from the start of `epoch` with another rate. `rate` (records per second)
    /// and `tick` (nanoseconds) are those of the run that wrote the log. Entries of `epoch` and later are dropped except
    /// for their start: records belong to other epochs from there on.
    #[must_use]
    pub fn with_other_rate(&self, epoch: Epoch, rate: Option<f64>, tick: u64) -> Self {
        if self.end.is_some_and(|end| end.epoch < epoch) {
            return self.clone();
        }
        let sequence = self.records_before(epoch);
        let former = Schedule {
            rate,
            start: 0,
            tick: Nanoseconds::try_from(tick).unwrap_or(Nanoseconds::MAX),
            base: self.base,
            records: None,
            duration: None,
        };
        let base = Base { sequence, epoch, event_time: former.event_time(sequence) };
        let cuts = self.cuts.range(..=epoch).map(|(epoch, cut)| (*epoch, cut.clone())).collect();
        Self { cuts, end: None, emitted: sequence, base: Some(base) }
    }

    /// Returns the log of a source that is added to a run at `epoch`.
    pub fn beginning_at(epoch: Epoch) -> Self {
        Self { base: Some(Base { sequence: 0, epoch, event_time: 0 }), ..Self::default() }
    }

    /// Returns the cut to restart from so that every record of `epoch` and later is read again.
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
    is_whole: bool,
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

    /// All records before `sequence` were emitted.
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

    /// Adds an entry from another process.
    pub(crate) fn add(&self, source: &str, entry: EpochEntry) {
        match entry {
            EpochEntry::Cut { epoch, cut } => self.record(source, epoch, cut),
            EpochEntry::End(end) => self.end(source, end),
            EpochEntry::Emitted(sequence) => self.emit(source, sequence),
        }
    }

    /// Records at the end of the run the progress of sources that did not end.
    pub(crate) fn finish(&self) {
        let mut logs = self.lock();
        let open = logs.of.iter().filter(|(_, log)| log.end.is_none());
        let open: Vec<_> = open.map(|(source, log)| (source.clone(), log.emitted)).collect();
        for (source, emitted) in open {
            logs.write(&source, &EpochEntry::Emitted(emitted));
        }
    }

    /// Returns the ends of sources.
    pub(crate) fn ends(&self) -> BTreeMap<String, End> {
        let logs = self.lock();
        logs.of.iter().filter_map(|(source, log)| Some((source.clone(), log.end?))).collect()
    }

    pub(crate) fn known_end(&self, source: &str) -> Option<End> {
        self.lock().of.get(source)?.end
    }

    /// Returns the start of a source's schedule; see [`EpochLog::base`].
    pub(crate) fn base(&self, source: &str) -> Option<Base> {
        self.lock().of.get(source)?.base
    }

    pub(crate) fn restart(&self, source: &str, epoch: Epoch) -> Option<(Epoch, Cut)> {
        self.lock().of.get(source)?.restart(epoch)
    }

    /// Returns the started epochs of a source after this one.
    pub(crate) fn begun_after(&self, source: &str, epoch: Epoch) -> BTreeMap<Epoch, Cut> {
        let logs = self.lock();
        let cuts = logs.of.get(source).map(|log| log.cuts.range(epoch + 1..));
        cuts.into_iter().flatten().map(|(epoch, cut)| (*epoch, cut.clone())).collect()
    }

    /// Starts with the logs of another process.
    pub(crate) fn begin_with(&self, logs: BTreeMap<String, EpochLog>) {
        self.lock().of = logs;
    }

    /// Returns the logs, without entries that no restart at or after `epoch` needs.
    pub(crate) fn since(&self, epoch: Epoch) -> BTreeMap<String, EpochLog> {
        let logs = self.lock();
        let since = |(source, log): (&String, &EpochLog)| {
            let first = log.restart(epoch).map_or(0, |(epoch, _)| epoch);
            let cuts = log.cuts.range(first..).map(|(epoch, cut)| (*epoch, cut.clone())).collect();
            (source.clone(), EpochLog { cuts, end: log.end, emitted: log.emitted, base: log.base })
        };
        logs.of.iter().map(since).collect()
    }

    /// Keeps everything that a restart at or after `epoch` needs, until the next call.
    pub(crate) fn keep_from(&self, epoch: Epoch) {
        self.lock().kept = Some(epoch);
    }

    /// The first epoch that may be read again, by this process or another one.
    pub(crate) fn kept(&self) -> Epoch {
        self.lock().kept.unwrap_or(0)
    }

    /// Makes [`Self::forget_before`] keep everything: the logs are wanted whole.
    pub(crate) fn keep_all(&self) {
        self.lock().is_whole = true;
    }

    /// Removes entries of all sources that no restart at or after `epoch` needs.
    pub(crate) fn forget_before(&self, epoch: Epoch) {
        let sources: Vec<String> = {
            let logs = self.lock();
            if logs.is_whole {
                return;
            }
            logs.of.keys().cloned().collect()
        };
        sources.iter().for_each(|source| self.prune(source, epoch));
    }

    /// Removes cuts that no restart at or after `epoch` needs.
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

    fn cut(sequence: u64) -> Cut {
        Cut { position: SourcePosition::default(), skip: 0, sequence, newest: 0, watermark: 0 }
    }

    #[test]
    fn a_restart_begins_at_or_before_the_epoch() {
        let logs = EpochLogs::default();
        logs.record("s", 2, cut(0));
        logs.record("s", 5, cut(10));
        assert_eq!(logs.restart("s", 0).map(|(epoch, _)| epoch), Some(2));
        assert_eq!(logs.restart("s", 4).map(|(epoch, _)| epoch), Some(2));
        assert_eq!(logs.restart("s", 7).map(|(epoch, _)| epoch), Some(5));
        logs.prune("s", 6);
        assert_eq!(logs.restart("s", 7).map(|(epoch, _)| epoch), Some(5));
    }

    #[test]
    fn logs_do_not_grow_with_the_run_unless_they_are_wanted_whole() {
        let (logs, whole) = (EpochLogs::default(), EpochLogs::default());
        whole.keep_all();
        for epoch in 0..1_000 {
            for logs in [&logs, &whole] {
                logs.record("left", epoch, cut(epoch));
                logs.record("right", epoch, cut(epoch));
                logs.forget_before(epoch.saturating_sub(20));
            }
        }
        let count = |logs: &EpochLogs| logs.all().values().map(|log| log.cuts.len()).sum::<usize>();
        assert_eq!((count(&logs), count(&whole)), (2 * 21, 2_000));
        assert_eq!(logs.restart("left", 979).map(|(epoch, _)| epoch), Some(979));
    }

    #[test]
    fn a_log_of_a_run_that_did_not_end_says_where_to_stop() {
        let mut log = EpochLog::default();
        assert_eq!(log.stop(), End { sequence: 0, epoch: 0, limit: false });
        for (epoch, sequence) in [(2, 0), (5, 10)] {
            log.add(EpochEntry::Cut { epoch, cut: cut(sequence) });
        }
        assert_eq!(
            log.stop(),
            End { sequence: 10, epoch: 5, limit: false },
            "killed: epochs known to be whole"
        );
        log.add(EpochEntry::Emitted(17));
        assert_eq!(log.stop(), End { sequence: 17, epoch: 5, limit: false });
        log.add(EpochEntry::End(End { sequence: 17, epoch: 6, limit: false }));
        assert_eq!(log.stop().epoch, 6);
    }
}
