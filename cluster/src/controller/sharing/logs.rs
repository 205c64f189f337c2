//! Log lines of runs, written once a second; the oldest are dropped. Lines of a dying controller's last second are lost.
use crate::api::LogLine;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidemill_postgres::{Change, Lead};

/// Rows of a run, each of at least a second.
const MOST_ROWS: usize = 200;
/// Bytes that wait. The oldest are dropped before a run is delayed.
const MOST_WAITING: usize = 4 << 20;

pub(super) fn kind(run: &str) -> String {
    format!("log:{run}")
}

/// See the module.
pub(in super::super) struct SharedLogs {
    lead: Arc<Lead>,
    waiting: Mutex<BTreeMap<String, Vec<u8>>>,
}

/// The first number in lines of JSON.
fn first(lines: &[u8]) -> u64 {
    let line = lines.split(|byte| *byte == b'\n').next().unwrap_or_default();
    serde_json::from_slice::<LogLine>(line).map_or(0, |line| line.number)
}

impl SharedLogs {
    pub(in super::super) fn new(lead: &Arc<Lead>) -> Self {
        Self { lead: Arc::clone(lead), waiting: Mutex::default() }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues lines of JSON.
    pub(in super::super) fn add(&self, run: String, lines: Vec<u8>) {
        let mut waiting = self.waiting();
        let of = waiting.entry(run).or_default();
        if of.len() + lines.len() > MOST_WAITING {
            of.clear();
        }
        of.extend(lines);
    }

    /// Writes the queue.
    pub(in super::super) fn write(&self) {
        let waiting = std::mem::take(&mut *self.waiting());
        for (run, lines) in waiting {
            let kind = kind(&run);
            let name = format!("{:020}", first(&lines));
            let written = self.lead.names(&kind).and_then(|names| {
                let surplus = (names.len() + 1).saturating_sub(MOST_ROWS);
                let gone = names.iter().take(surplus).map(|name| Change::delete(&kind, name));
                let changes: Vec<Change<'_>> = gone.chain([Change::put(&kind, &name, &lines)]).collect();
                self.lead.write(&changes)
            });
            if let Err(error) = written {
                tracing::debug!("cannot share lines of run {run}: {error}");
            }
        }
    }

    /// Stored lines, oldest first.
    pub(in super::super) fn read(&self, run: &str) -> Vec<LogLine> {
        let rows = self.lead.all(&kind(run)).unwrap_or_else(|error| {
            tracing::warn!("cannot read earlier lines of run {run}: {error}");
            Vec::new()
        });
        let lines = rows.iter().flat_map(|(_, lines)| lines.split(|byte| *byte == b'\n'));
        lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }

    pub(in super::super) fn forget(&self, run: &str) {
        self.waiting().remove(run);
    }
}
