//! The groups of the panes of windows.
use super::aggregate::{Accumulator, Aggregate};
use super::keys::Key;
use crate::record::{EventTime, RecordId};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::sync::Arc;

/// One group of one pane, or of a whole window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Group {
    /// Time and id of the first row by (time, id), in any order of arrival; the result takes its metadata from it.
    pub(super) first: (EventTime, RecordId),
    pub(super) source: u32,
    pub(super) sequence: u64,
    pub(super) class: u32,
    /// Latest intended time of all rows.
    pub(super) intended: i64,
    pub(super) state: Vec<Accumulator>,
}

impl Group {
    /// Adds the same group of another pane.
    pub(super) fn merge(&mut self, other: &Self, aggregates: &[Aggregate]) {
        if other.first < self.first {
            (self.first, self.source, self.sequence, self.class) =
                (other.first, other.source, other.sequence, other.class);
        }
        self.intended = self.intended.max(other.intended);
        for ((aggregate, state), other) in aggregates.iter().zip(&mut self.state).zip(&other.state) {
            aggregate.merge(state, other);
        }
    }
}

/// The groups of one pane or window.
#[derive(Clone, Default)]
pub(super) struct Groups {
    /// Hash, key and group.
    pub(super) all: Vec<(u64, Key, Group)>,
    /// Indices in `all`, by key.
    places: HashTable<usize>,
}

impl Groups {
    /// Returns the group of a key, created by `make` if it is new, and whether it is.
    pub(super) fn find(
        &mut self,
        hash: u64,
        is_it: impl Fn(&Key) -> bool,
        make: impl FnOnce() -> (Key, Group),
    ) -> (&Key, &mut Group, bool) {
        let Self { all, places } = self;
        let is_there = |place: &usize| all[*place].0 == hash && is_it(&all[*place].1);
        let (place, is_new) = match places.entry(hash, is_there, |place| all[*place].0) {
            Entry::Occupied(entry) => (*entry.get(), false),
            Entry::Vacant(entry) => (*entry.insert(all.len()).get(), true),
        };
        if is_new {
            let (key, group) = make();
            all.push((hash, key, group));
        }
        let (_, key, group) = &mut all[place];
        (key, group, is_new)
    }

    /// Returns the groups in the order of their keys.
    pub(super) fn sorted(&self) -> Vec<(&Key, &Group)> {
        let mut sorted: Vec<_> = self.all.iter().map(|(_, key, group)| (key, group)).collect();
        sorted.sort_unstable_by_key(|(key, _)| *key);
        sorted
    }

    pub(super) fn into_sorted(mut self) -> Vec<(Key, Group)> {
        self.all.sort_unstable_by(|a, b| a.1.cmp(&b.1));
        self.all.into_iter().map(|(_, key, group)| (key, group)).collect()
    }
}

/// The groups of one pane. A snapshot in progress may share them: they are copied if they change meanwhile.
pub(super) enum Pane {
    Own(Groups),
    Shared(Arc<Groups>),
}

impl Default for Pane {
    fn default() -> Self {
        Self::Own(Groups::default())
    }
}

impl Pane {
    pub(super) fn groups(&self) -> &Groups {
        match self {
            Self::Own(groups) => groups,
            Self::Shared(groups) => groups,
        }
    }

    /// Returns the groups for a change.
    pub(super) fn groups_mut(&mut self) -> &mut Groups {
        if let Self::Shared(groups) = self {
            *self = Self::Own(Arc::unwrap_or_clone(std::mem::take(groups)));
        }
        match self {
            Self::Own(groups) => groups,
            Self::Shared(_) => unreachable!("made its own above"),
        }
    }

    pub(super) fn into_groups(self) -> Groups {
        match self {
            Self::Own(groups) => groups,
            Self::Shared(groups) => Arc::unwrap_or_clone(groups),
        }
    }

    /// Returns the current groups, shared.
    pub(super) fn share(&mut self) -> Arc<Groups> {
        let groups = match self {
            Self::Own(groups) => Arc::new(std::mem::take(groups)),
            Self::Shared(groups) => return Arc::clone(groups),
        };
        *self = Self::Shared(Arc::clone(&groups));
        groups
    }
}
