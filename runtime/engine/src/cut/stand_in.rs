//! State that the parts of a stand-in share: the stage that answers while the path to another one is cut, and the
//! ends, on the same host, of the channels to and from that one.
use super::EpochRanges;
use crate::channel::ChannelId;
use crate::clock::Nanoseconds;
use crate::executor::Notifier;
use crate::frame::Epoch;
use crate::metrics::EdgeMetrics;
use arrow_array::RecordBatch;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// State shared by a stand-in, the channels to the stage that it stands in for, and those back. It outlives
/// incarnations of slots: an epoch that was given to the stand-in stays with it.
pub(crate) struct StandIn {
    /// How long the path there or back is cut before it answers.
    pub(crate) after: Nanoseconds,
    /// The stage that it stands in for, and the variant with which it answers.
    pub(crate) of: String,
    pub(crate) variant: String,
    /// Metrics of the edge to the other side.
    pub(crate) metrics: Arc<EdgeMetrics>,
    own: Mutex<EpochRanges>,
    /// Counts changes of its epochs.
    changes: AtomicU64,
    /// Channels there and back that are not connected, and since when.
    missing: Mutex<BTreeMap<ChannelId, Nanoseconds>>,
    notifier: Mutex<Option<Notifier>>,
    let_go: Mutex<LetGo>,
}

/// Output that has left the stand-in, while an upstream slot of this process may restart. That slot may not ask the
/// other side, which may be away, nor answer again what others have answers to.
#[derive(Debug, Clone, Default)]
pub(crate) struct LetGo {
    /// All epochs before this one have left.
    pub(crate) until: Epoch,
    /// The answers of the other side, to its own epochs.
    pub(crate) answers: BTreeMap<Epoch, Vec<RecordBatch>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StandIn {
    pub(crate) fn new(
        after: Nanoseconds,
        of: String,
        variant: String,
        metrics: Arc<EdgeMetrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            after,
            of,
            variant,
            metrics,
            own: Mutex::default(),
            changes: AtomicU64::new(0),
            missing: Mutex::default(),
            notifier: Mutex::default(),
            let_go: Mutex::default(),
        })
    }

    /// Sets the notifier of connected and disconnected channels.
    pub(crate) fn tells(&self, notifier: Notifier) {
        *locked(&self.notifier) = Some(notifier);
    }

    /// Records whether a channel is connected, or since when it is not.
    pub(crate) fn connected(&self, channel: ChannelId, missing: Option<Nanoseconds>) {
        let mut all = locked(&self.missing);
        let has_changed = match missing {
            Some(since) => {
                let is_new = !all.contains_key(&channel);
                all.entry(channel).or_insert(since);
                is_new
            }
            None => all.remove(&channel).is_some(),
        };
        drop(all);
        if has_changed && let Some(notifier) = &*locked(&self.notifier) {
            notifier.notify();
        }
    }

    /// Returns since when a channel is not connected; none: all are.
    pub(crate) fn missing_since(&self) -> Option<Nanoseconds> {
        locked(&self.missing).values().min().copied()
    }

    /// Assigns epochs to the stand-in; this is final.
    pub(crate) fn take(&self, from: Epoch, until: Epoch) {
        if locked(&self.own).insert(from, until) {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Returns whether an epoch is the stand-in's, and the next epoch where that may change.
    pub(crate) fn stretch(&self, epoch: Epoch) -> (bool, Epoch) {
        locked(&self.own).stretch(epoch)
    }

    /// Returns its epochs if they have changed since the last call.
    pub(crate) fn news(&self, seen: &mut u64) -> Option<EpochRanges> {
        let changes = self.changes.load(Ordering::Acquire);
        (changes != *seen).then(|| {
            *seen = changes;
            locked(&self.own).clone()
        })
    }

    /// Records that all epochs before `until` have left, these with answers of the other side.
    pub(crate) fn let_go(&self, until: Epoch, answers: BTreeMap<Epoch, Vec<RecordBatch>>) {
        let mut let_go = locked(&self.let_go);
        let_go.until = let_go.until.max(until);
        let_go.answers.extend(answers);
    }

    /// Returns the output of this epoch or later that has left.
    pub(crate) fn has_let_go(&self, from: Epoch) -> LetGo {
        let let_go = locked(&self.let_go);
        let answers = let_go.answers.range(from..);
        LetGo { until: let_go.until, answers: answers.map(|(epoch, of)| (*epoch, of.clone())).collect() }
    }

    /// Forgets epochs that are not requested again.
    pub(crate) fn prune(&self, before: Epoch) {
        locked(&self.own).prune(before);
        let mut let_go = locked(&self.let_go);
        let_go.answers = let_go.answers.split_off(&before);
    }
}
