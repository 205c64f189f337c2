//! Storage of changed parts of the document.
use super::{Document, FactsError, JobFacts, QueueFacts, Removed, RunFacts, WorkerFacts};
use crate::api::{Event, NetPolicy};
use serde::de::DeserializeOwned;
use std::sync::Arc;

const RUN: &str = "run";
const WORKER: &str = "worker";
const EVENT: &str = "event";
const REMOVED: &str = "removed";
const NET_POLICIES: &str = "net_policies";
const JOB: &str = "job";
const QUEUE: &str = "queue";
/// The only part of removed runs, of policies on edges, and of the queue of jobs.
const ALL: &str = "all";
/// Kinds of parts.
pub(super) const KINDS: [&str; 7] = [RUN, WORKER, EVENT, REMOVED, NET_POLICIES, JOB, QUEUE];

/// A part of the document that has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) kind: &'static str,
    pub(super) name: String,
    /// JSON; `None` if it was removed.
    pub(super) value: Option<String>,
}

/// Storage of facts.
pub(super) trait Keeper: Send {
    /// Stores all changes or none; `document` is the result.
    fn keep(&mut self, changes: &[Changed], document: &Document) -> Result<(), FactsError>;
}

/// Name of an event's part: sorts by number.
fn event_name(number: u64) -> String {
    format!("{number:020}")
}

/// Changes from one document to the next.
pub(super) fn changes(before: &Document, now: &Document) -> Result<Vec<Changed>, serde_json::Error> {
    let mut all = Vec::new();
    for (name, run) in now.runs.changed(&before.runs) {
        let value = run.map(serde_json::to_string).transpose()?;
        all.push(Changed { kind: RUN, name: name.clone(), value });
    }
    for (name, worker) in now.workers.changed(&before.workers) {
        let value = worker.map(serde_json::to_string).transpose()?;
        all.push(Changed { kind: WORKER, name: name.clone(), value });
    }
    if now.removed != before.removed {
        let value = Some(serde_json::to_string(&now.removed)?);
        all.push(Changed { kind: REMOVED, name: ALL.to_owned(), value });
    }
    if now.net_policies != before.net_policies {
        let value = Some(serde_json::to_string(&now.net_policies)?);
        all.push(Changed { kind: NET_POLICIES, name: ALL.to_owned(), value });
    }
    for (name, job) in now.jobs.changed(&before.jobs) {
        let value = job.map(serde_json::to_string).transpose()?;
        all.push(Changed { kind: JOB, name: name.clone(), value });
    }
    if !Arc::ptr_eq(&now.queue, &before.queue) {
        let value = Some(serde_json::to_string(&now.queue)?);
        all.push(Changed { kind: QUEUE, name: ALL.to_owned(), value });
    }
    // Events are only appended, and the oldest are dropped.
    for event in now.events.iter().rev().take_while(|event| event.number > before.event_number) {
        let value = Some(serde_json::to_string(event)?);
        all.push(Changed { kind: EVENT, name: event_name(event.number), value });
    }
    let oldest = now.events.front().map_or(u64::MAX, |event| event.number);
    for event in before.events.iter().take_while(|event| event.number < oldest) {
        all.push(Changed { kind: EVENT, name: event_name(event.number), value: None });
    }
    Ok(all)
}

fn parsed<T: DeserializeOwned>(value: &[u8]) -> Result<T, String> {
    serde_json::from_slice(value).map_err(|error| error.to_string())
}

impl Document {
    /// Applies a stored part; `None`: it was removed. Events come in order.
    pub(super) fn take(&mut self, kind: &str, name: &str, value: Option<&[u8]>) -> Result<(), String> {
        match (kind, value) {
            (RUN, Some(value)) => self.runs.insert(name.to_owned(), parsed::<RunFacts>(value)?),
            (RUN, None) => drop(self.runs.remove(name)),
            (WORKER, Some(value)) => self.workers.insert(name.to_owned(), parsed::<WorkerFacts>(value)?),
            (WORKER, None) => drop(self.workers.remove(name)),
            (REMOVED, Some(value)) => self.removed = parsed::<Vec<Removed>>(value)?,
            (REMOVED, None) => self.removed.clear(),
            (NET_POLICIES, Some(value)) => self.net_policies = parsed::<Vec<NetPolicy>>(value)?,
            (NET_POLICIES, None) => self.net_policies.clear(),
            (JOB, Some(value)) => self.jobs.insert(name.to_owned(), parsed::<JobFacts>(value)?),
            (JOB, None) => drop(self.jobs.remove(name)),
            (QUEUE, Some(value)) => self.queue = Arc::new(parsed::<QueueFacts>(value)?),
            (QUEUE, None) => self.queue = Arc::default(),
            (EVENT, Some(value)) => {
                let event: Event = parsed(value)?;
                self.event_number = self.event_number.max(event.number);
                let place = self.events.partition_point(|other| other.number < event.number);
                self.events.insert(place, Arc::new(event));
            }
            (EVENT, None) => self.events.retain(|event| event_name(event.number) != name),
            (kind, _) => return Err(format!("`{kind}` is not a kind of fact")),
        }
        Ok(())
    }
}
