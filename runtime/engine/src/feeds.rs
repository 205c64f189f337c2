//! The feeds of the live sources of a run: shown beside its figures, and changed while it runs. The process that reads a
//! source has them; other hosts send their states with the figures, and follow orders of the coordinator.
use crate::graph::{Graph, Program};
use crate::report::Observer;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use tidemill_operators::feeds::{FeedOrder, FeedStatus, Feeds};

/// The feeds of live sources, by source.
pub type FeedTable = BTreeMap<String, Vec<FeedStatus>>;

/// The live sources that a process reads.
#[derive(Clone, Default)]
pub(crate) struct FeedsHere(BTreeMap<String, Arc<dyn Feeds>>);

impl FeedsHere {
    /// Returns those of a worker; `None`: of all workers.
    pub(crate) fn of(program: &Program, graph: &Graph, worker: Option<&str>) -> Self {
        let slots = graph.slots.iter().filter(|slot| worker.is_none_or(|worker| slot.worker == worker));
        let operators = slots.flat_map(|slot| &slot.instances).map(|instance| &instance.operator);
        let feeds = operators.filter_map(|operator| {
            let feeds = program.sources.get(operator)?.feeds.as_ref()?;
            Some((operator.clone(), Arc::clone(feeds)))
        });
        Self(feeds.collect())
    }

    pub(crate) fn status(&self) -> FeedTable {
        self.0.iter().map(|(source, feeds)| (source.clone(), feeds.status())).collect()
    }

    /// Follows an order.
    ///
    /// # Errors
    /// The reason why it is rejected.
    pub(crate) fn order(&self, source: &str, order: &FeedOrder) -> Result<(), String> {
        match self.0.get(source) {
            Some(feeds) => feeds.order(order),
            None => Err(format!("source `{source}` has no feeds that can be changed")),
        }
    }
}

/// Sends orders to the processes that read a source.
pub(crate) trait OrderFeeds: Send + Sync {
    /// Sends an order and waits for the answers.
    ///
    /// # Errors
    /// The reason why it is rejected, or no answer.
    fn order(&self, source: &str, order: &FeedOrder) -> Result<(), String>;
}

/// The feeds of a run, wherever its sources are read.
#[derive(Default)]
pub(crate) struct RunFeeds {
    here: OnceLock<FeedsHere>,
    /// By host, as they reported last.
    reported: Mutex<BTreeMap<usize, FeedTable>>,
    away: OnceLock<Weak<dyn OrderFeeds>>,
}

impl RunFeeds {
    /// The sources are read in this process.
    pub(crate) fn set_here(&self, here: FeedsHere) {
        let _ = self.here.set(here);
    }

    /// The sources are read by other processes.
    pub(crate) fn set_away(&self, away: Weak<dyn OrderFeeds>) {
        let _ = self.away.set(away);
    }

    /// A host has reported.
    pub(crate) fn report(&self, host: usize, feeds: FeedTable) {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner).insert(host, feeds);
    }

    /// A host is lost: nothing is known of its feeds.
    pub(crate) fn forget(&self, host: usize) {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner).remove(&host);
    }

    pub(crate) fn status(&self) -> FeedTable {
        if let Some(here) = self.here.get() {
            return here.status();
        }
        let reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = FeedTable::new();
        for (source, feeds) in reported.values().flatten() {
            all.entry(source.clone()).or_default().extend(feeds.iter().cloned());
        }
        all
    }

    pub(crate) fn order(&self, source: &str, order: &FeedOrder) -> Result<(), String> {
        match (self.here.get(), self.away.get().and_then(Weak::upgrade)) {
            (Some(here), _) => here.order(source, order),
            (None, Some(away)) => away.order(source, order),
            (None, None) => Err("the run has ended".into()),
        }
    }
}

impl Observer {
    /// Returns the feeds of the live sources, by source.
    pub fn feeds(&self) -> FeedTable {
        self.0.feeds.status()
    }

    /// Changes the feeds of a source, wherever it is read. A process that takes over the source starts with the feeds of the
    /// workflow.
    ///
    /// # Errors
    /// The reason why it is rejected, with advice.
    pub fn order_feeds(&self, source: &str, order: &FeedOrder) -> Result<(), String> {
        self.0.feeds.order(source, order)
    }
}
