//! Writing of checkpoints: the first, those in between and the last one; and the data that hosts may drop then.
use super::checkpoints::Step;
use super::lives::{Phase, SlotLife};
use super::{Checkpoints, Coordinator};
use crate::failure::RunError;
use crate::frame::{CLOSED, Epoch};
use crate::protocol::{Order, Part};
use std::time::Duration;

impl Coordinator {
    /// Writes the first checkpoint of a new run, so that its outputs are known to be its own from now on.
    pub(super) fn first_checkpoint(&mut self) -> Result<(), RunError> {
        let Some(checkpoints) = self.checkpoints.as_ref().filter(|checkpoints| checkpoints.is_first()) else {
            return Ok(());
        };
        let epoch = checkpoints.epoch();
        self.write_checkpoint(epoch, false, "the first checkpoint cannot be written")
    }

    /// Writes the last checkpoint of this process.
    pub(super) fn last_checkpoint(&mut self, epoch: Epoch, is_complete: bool) -> Result<(), RunError> {
        self.wait_for_checkpoint()?;
        match self.checkpoints.as_ref().filter(|checkpoints| !checkpoints.has_given_up()) {
            Some(checkpoints) if epoch > checkpoints.epoch() || is_complete => {
                self.write_checkpoint(epoch, is_complete, "the last checkpoint cannot be written")
            }
            _ => Ok(()),
        }
    }

    pub(super) fn write_checkpoint(
        &mut self,
        epoch: Epoch,
        is_complete: bool,
        else_told: &str,
    ) -> Result<(), RunError> {
        loop {
            while self.hosts.iter().any(|host| host.missing_since.is_some()) {
                self.next_event()?;
            }
            // A host was lost meanwhile, and its work continues.
            if epoch == CLOSED && self.slots.iter().any(|slot| slot.alive) {
                return Ok(());
            }
            let hosts = self.hosts.len();
            let is_everybody_there = self.is_everybody_there();
            if !is_everybody_there && is_complete {
                let text =
                    "a worker was lost before the end of the run was written; the same command ends it";
                return Err(RunError::System(text.into()));
            }
            let Some(checkpoints) = self.checkpoints.as_mut().filter(|_| is_everybody_there) else {
                return Ok(());
            };
            let request = checkpoints.begin(epoch, is_complete, hosts);
            self.order_all(&Order::Part(request));
            self.wait_for_checkpoint()?;
            let checkpoints = self.checkpoints.as_ref();
            // A host was silent meanwhile: try again.
            if checkpoints.is_some_and(Checkpoints::was_cancelled) {
                continue;
            }
            return match checkpoints.and_then(Checkpoints::failing) {
                Some(text) => Err(RunError::System(format!("{else_told}: {text}"))),
                None => Ok(()),
            };
        }
    }

    pub(super) fn wait_for_checkpoint(&mut self) -> Result<(), RunError> {
        while self.checkpoints.as_ref().is_some_and(Checkpoints::is_busy) {
            self.next_event()?;
        }
        Ok(())
    }

    pub(super) fn is_everybody_there(&self) -> bool {
        self.hosts.iter().all(|host| host.phase == Phase::Open)
    }

    /// Time to wait for the next checkpoint if nothing else happens: records of a source that has become silent must be in
    /// one, too.
    pub(super) fn next_checkpoint_in(&self) -> Option<Duration> {
        let checkpoints = self.checkpoints.as_ref().filter(|_| self.is_running && !self.is_closing)?;
        if !self.is_everybody_there() {
            return None;
        }
        checkpoints.due_in(self.durable())
    }

    /// Starts a checkpoint if it is due.
    pub(super) fn begin_checkpoint(&mut self) {
        let durable = self.durable();
        let hosts = self.hosts.len();
        let is_everybody_there = self.is_everybody_there();
        let Some(checkpoints) = &mut self.checkpoints else { return };
        if is_everybody_there && checkpoints.is_due(durable) {
            let request = checkpoints.begin(durable, false, hosts);
            self.order_all(&Order::Part(request));
        }
    }

    /// Lets hosts drop the data in the last checkpoint, once it is no longer requested.
    pub(super) fn keep_from_checkpoint(&mut self) {
        let (told, epoch) = self.kept_from;
        let slowest = self.slots.iter().map(SlotLife::durable).min().unwrap_or(CLOSED);
        if epoch > told && slowest >= epoch {
            self.kept_from.0 = epoch;
            self.order_all(&Order::KeepFrom(epoch));
            // The reported epochs of sources would grow with the run.
            self.epochs.forget_before(epoch);
        }
    }

    pub(super) fn part(&mut self, host: usize, number: u64, part: Result<Option<Part>, String>) {
        let step = self.checkpoints.as_mut().map(|checkpoints| checkpoints.part(host, number, part));
        self.checkpoint_step(step);
    }

    pub(super) fn checkpoint_step(&mut self, step: Option<Step>) {
        match step {
            Some(Step::Written(epoch)) => {
                self.kept_from.1 = epoch;
                self.keep_from_checkpoint();
            }
            Some(Step::GivesUp(text)) => {
                self.fail(RunError::System(format!("checkpoints cannot be written: {text}")));
            }
            Some(Step::GoesOn) | None => {}
        }
    }
}
