//! Reads sources that meet in a stateful operator by event time, so that none runs ahead and fills the operator's state
//! with rows whose partners were not read yet.
//!
//! The sources of a group cut their epochs at common event times: each publishes the event times of records that it has
//! read ahead, and learns up to which of its records the epochs are known. This depends on the records alone, so every run,
//! replay and restart cuts alike. Readers of one process share the group; between processes the four calls of a [`Seat`]
//! would become messages.
mod merge;

pub(crate) use merge::Place;

use crate::checkpoint::Past;
use crate::executor::Notifier;
use crate::frame::Epoch;
use crate::graph::Program;
use crate::store::EpochLog;
use merge::Merge;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidemill_operators::api::Computation;
use tidemill_operators::record::EventTime;

/// One reader of a source: a source with several stages is read by each of them.
#[derive(Default)]
struct Reader {
    notifier: Option<Notifier>,
    left: bool,
    durable: Epoch,
}

struct State {
    merge: Merge,
    /// By source and stage instance.
    readers: Vec<BTreeMap<String, Reader>>,
}

impl State {
    /// Changes the merge and notifies the other readers for which more epochs are known then.
    fn change(&mut self, asking: &Seat, change: impl FnOnce(&mut Merge)) {
        let members = 0..self.readers.len();
        let before: Vec<_> = members.clone().map(|member| self.merge.reached(member)).collect();
        change(&mut self.merge);
        for member in members.filter(|member| self.merge.reached(*member) != before[*member]) {
            for (name, reader) in &self.readers[member] {
                let asks = member == asking.member && *name == asking.reader;
                if let Some(notifier) = reader.notifier.as_ref().filter(|_| !asks && !reader.left) {
                    notifier.notify();
                }
            }
        }
    }
}

/// The place of one reader in its group.
#[derive(Clone)]
pub(crate) struct Seat {
    group: Arc<Mutex<State>>,
    member: usize,
    reader: String,
}

impl Seat {
    fn state(&self) -> MutexGuard<'_, State> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reader<'a>(&self, state: &'a mut State) -> &'a mut Reader {
        state.readers[self.member].entry(self.reader.clone()).or_default()
    }

    /// Starts an incarnation of the reader, which is notified when more epochs are known.
    pub(crate) fn enter(&self, notifier: Notifier) {
        let mut state = self.state();
        let reader = self.reader(&mut state);
        (reader.notifier, reader.left) = (Some(notifier), false);
    }

    /// Publishes records that were read, from number `first` on: the newest event time of the source up to each, and its
    /// bytes.
    pub(crate) fn publish(&self, first: u64, records: &[(EventTime, usize)]) {
        self.state().change(self, |merge| merge.publish(self.member, first, records));
    }

    /// Returns the place of record `sequence`, for a reader that is in epoch `current`. A reader whose record has no epoch
    /// yet is in the last epoch that has started, so that it delays no other.
    pub(crate) fn place(&self, sequence: u64, current: Epoch) -> Place {
        self.state().merge.place(self.member, sequence, current)
    }

    /// The reader emits no more; `complete`: because its source has ended.
    pub(crate) fn leave(&self, complete: bool) {
        let mut state = self.state();
        self.reader(&mut state).left = true;
        if complete || state.readers[self.member].values().all(|reader| reader.left) {
            state.change(self, |merge| merge.end(self.member));
        }
    }

    /// No restart of the reader starts before `epoch`.
    pub(crate) fn durable(&self, epoch: Epoch) {
        let mut state = self.state();
        self.reader(&mut state).durable = epoch;
        let needed = state.readers.iter().flat_map(BTreeMap::values).map(|reader| reader.durable).min();
        state.merge.forget(needed.unwrap_or(0));
    }
}

/// The groups of a program.
pub(crate) struct Groups(BTreeMap<String, (Arc<Mutex<State>>, usize)>);

impl Groups {
    /// Groups the sources without a rate that meet in a stateful operator, directly or through others. Live sources are
    /// left out, because future records have no event time. So are sources that follow a log.
    pub(crate) fn of(
        program: &Program,
        replay: Option<&BTreeMap<String, EpochLog>>,
        past: Option<&Past>,
    ) -> Self {
        let mut places = BTreeMap::new();
        for group in grouped(program, replay) {
            let readers = group.iter().map(|_| BTreeMap::new()).collect();
            let merge = match past.filter(|past| past.epoch > 0) {
                None => Merge::new(group.len()),
                Some(past) => {
                    let begun = group.iter().map(|source| begun(program, source, past)).collect();
                    Merge::continued(past.epoch, begun)
                }
            };
            let state = Arc::new(Mutex::new(State { merge, readers }));
            for (member, source) in group.into_iter().enumerate() {
                places.insert(source.to_owned(), (Arc::clone(&state), member));
            }
        }
        Self(places)
    }

    /// The sources of each group.
    pub(crate) fn members(program: &Program) -> Vec<Vec<String>> {
        let groups = grouped(program, None).into_iter();
        groups.map(|group| group.into_iter().map(str::to_owned).collect()).collect()
    }

    /// Returns the seat of stage instance `reader` of a source; `None` if the source is in no group. To be called for all
    /// of them before any starts.
    pub(crate) fn seat(&self, source: &str, reader: &str) -> Option<Seat> {
        let (group, member) = self.0.get(source)?;
        let seat = Seat { group: Arc::clone(group), member: *member, reader: reader.to_owned() };
        seat.reader(&mut seat.state());
        Some(seat)
    }
}

/// Returns sources that are read together, in groups of at least two.
fn grouped<'a>(program: &'a Program, replay: Option<&BTreeMap<String, EpochLog>>) -> Vec<BTreeSet<&'a str>> {
    let stages = &program.plan.stages;
    let is_read_ahead =
        |id: &str| {
            program.sources.get(id).is_some_and(|source| {
                source.has_event_times && source.rate_per_second.is_none() && !source.live
            }) && !stages.iter().any(|s| s.operator == id && replay.is_some_and(|r| r.contains_key(&s.id)))
        };
    let mut groups: Vec<BTreeSet<&str>> = Vec::new();
    for mut group in meetings(program) {
        group.retain(|source| is_read_ahead(source));
        let (touching, rest): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|other| !other.is_disjoint(&group));
        groups = rest;
        group.extend(touching.into_iter().flatten());
        groups.push(group);
    }
    groups.retain(|group| group.len() > 1);
    groups
}

/// Number of records of a source in epochs before the checkpoint that is continued from.
fn begun(program: &Program, source: &str, past: &Past) -> u64 {
    let stages = program.plan.stages.iter().filter(|stage| stage.operator == source);
    let logs = stages.filter_map(|stage| past.sources.get(&stage.id));
    let begun = logs.map(|log| match (log.end, log.cuts.get(&past.epoch)) {
        (Some(end), _) if end.epoch < past.epoch => end.sequence,
        (_, Some(cut)) => cut.sequence,
        _ => 0, // no checkpoint is written without one of both
    });
    begun.max().unwrap_or(0)
}

/// For every stateful operator, the sources whose records can reach it.
fn meetings(program: &Program) -> Vec<BTreeSet<&str>> {
    let plan = &program.plan;
    let operator_of: BTreeMap<&str, &str> =
        plan.stages.iter().map(|stage| (stage.id.as_str(), stage.operator.as_str())).collect();
    let mut inputs: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for edge in &plan.edges {
        let ends = [&edge.from, &edge.to].map(|stage| operator_of.get(stage.as_str()).copied());
        if let [Some(from), Some(to)] = ends {
            inputs.entry(to).or_default().insert(from);
        }
    }
    let stateful = program.operators.values().filter(|bound| bound.computation == Computation::Stateful);
    let stateful: BTreeSet<&str> = stateful.map(|bound| bound.id.as_str()).collect();
    let behind = |operator: &str| {
        let mut found: BTreeSet<&str> = BTreeSet::new();
        let mut open: Vec<&str> = inputs.get(operator).into_iter().flatten().copied().collect();
        while let Some(operator) = open.pop() {
            if found.insert(operator) {
                open.extend(inputs.get(operator).into_iter().flatten());
            }
        }
        found.retain(|id| program.sources.contains_key(*id));
        found
    };
    stateful.into_iter().map(behind).filter(|sources| sources.len() > 1).collect()
}
