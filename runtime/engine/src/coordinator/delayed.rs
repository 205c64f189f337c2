//! Delays starts while a checkpoint is being written.
//!
//! Until it is written, it is unknown whether a restart uses this checkpoint or the previous one. Slots started from the
//! previous one would request data that upstream slots no longer send, since a host lost meanwhile restarts from the
//! newest. So all restarts use one checkpoint: none is being written when a slot is started.
use super::{Checkpoints, Coordinator};
use std::collections::{BTreeMap, BTreeSet};

/// Delayed starts.
#[derive(Debug, Default)]
pub(super) struct Delayed {
    /// Lost hosts: finished upstream slots are needed again.
    lost: BTreeSet<usize>,
    /// Slots, with the instance whose executor is to be replaced.
    restarts: BTreeMap<usize, Option<String>>,
    /// Finished slots that are needed again.
    needed: BTreeSet<usize>,
}

impl Coordinator {
    /// Returns whether starts must be delayed. Within one process no restart uses a checkpoint.
    fn is_delayed(&self) -> bool {
        self.remote.is_some() && self.checkpoints.as_ref().is_some_and(Checkpoints::is_writing)
    }

    /// Delays the restart of a slot if necessary; returns whether it is delayed.
    pub(super) fn delays_restart(&mut self, slot: usize, new_executor: Option<&String>) -> bool {
        let is_delayed = self.is_delayed();
        if is_delayed {
            self.delayed.restarts.entry(slot).or_insert_with(|| new_executor.cloned());
        }
        is_delayed
    }

    /// Delays the start of a needed slot if necessary; returns whether it is delayed.
    pub(super) fn delays_needed(&mut self, slot: usize) -> bool {
        let is_delayed = self.is_delayed();
        if is_delayed {
            self.delayed.needed.insert(slot);
        }
        is_delayed
    }

    /// Restarts the finished slots that a lost host's slots need again, now or later. Its own start when it has joined
    /// again.
    pub(super) fn start_in_front_of(&mut self, host: usize) {
        let is_there = |slot: &usize| self.slots[*slot].host != host;
        self.delayed.restarts.retain(|slot, _| is_there(slot));
        self.delayed.needed.retain(is_there);
        if self.is_delayed() {
            self.delayed.lost.insert(host);
            return;
        }
        let lost = (0..self.slots.len()).filter(|slot| self.slots[*slot].host == host).collect();
        let again = self.finished_in_front_of(lost);
        self.start_from_checkpoint(again);
    }

    /// Starts the delayed slots.
    pub(super) fn start_delayed(&mut self) {
        if self.is_delayed() {
            return;
        }
        let Delayed { lost, restarts, needed } = std::mem::take(&mut self.delayed);
        lost.into_iter().for_each(|host| self.start_in_front_of(host));
        for (slot, new_executor) in restarts {
            self.restart(slot, new_executor);
        }
        for slot in needed {
            // One of them may have ended the run, by too many restarts.
            match self.aborting {
                true => self.slots[slot].alive = false,
                false => self.needed_again(slot),
            }
        }
    }

    /// Drops the delayed starts, because the run is ending.
    pub(super) fn forget_delayed(&mut self) {
        let Delayed { restarts, needed, .. } = std::mem::take(&mut self.delayed);
        restarts.into_keys().chain(needed).for_each(|slot| self.slots[slot].alive = false);
    }
}
