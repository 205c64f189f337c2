//! Starts that wait while a checkpoint is being written.
//!
//! Until it is written, nobody knows whether what begins again does so with this checkpoint or with the one before. Slots that were
//! started from the one before would ask those in front of them for what these do not give again: a host that is lost meanwhile
//! begins with the newest. So all that begins again does so with the same checkpoint: none is being written when a slot is started.
use super::{Checkpoints, Coordinator};
use std::collections::{BTreeMap, BTreeSet};

/// What waits.
#[derive(Debug, Default)]
pub(super) struct Delayed {
    /// Hosts that were lost: slots in front of theirs that have come to their end are needed again.
    lost: BTreeSet<usize>,
    /// Slots, with the instance whose executor is to be started anew.
    restarts: BTreeMap<usize, Option<String>>,
    /// Slots that have come to their end and are needed again.
    needed: BTreeSet<usize>,
}

impl Coordinator {
    /// Whether nothing may be started now. Within one process nobody begins again with a checkpoint.
    fn is_delayed(&self) -> bool {
        self.remote.is_some() && self.checkpoints.as_ref().is_some_and(Checkpoints::is_writing)
    }

    /// Whether the restart of a slot has to wait, and is done later.
    pub(super) fn delays_restart(&mut self, slot: usize, new_executor: Option<&String>) -> bool {
        let is_delayed = self.is_delayed();
        if is_delayed {
            self.delayed.restarts.entry(slot).or_insert_with(|| new_executor.cloned());
        }
        is_delayed
    }

    /// Whether a slot that is needed again has to wait, and is started later.
    pub(super) fn delays_needed(&mut self, slot: usize) -> bool {
        let is_delayed = self.is_delayed();
        if is_delayed {
            self.delayed.needed.insert(slot);
        }
        is_delayed
    }

    /// Starts again what those slots of a host that is lost need again, now or later. Its own begin when it has joined again.
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

    /// Starts what has waited for a checkpoint.
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
            // One of them may have ended the run, by beginning again too often.
            match self.aborting {
                true => self.slots[slot].alive = false,
                false => self.needed_again(slot),
            }
        }
    }

    /// The run is being ended: what waits is not started any more.
    pub(super) fn forget_delayed(&mut self) {
        let Delayed { restarts, needed, .. } = std::mem::take(&mut self.delayed);
        restarts.into_keys().chain(needed).for_each(|slot| self.slots[slot].alive = false);
    }
}
