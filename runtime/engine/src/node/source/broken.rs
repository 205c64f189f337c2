//! Fails the run if a source cannot be read any further, after earlier records have passed through.
use super::SourceNode;
use crate::clock::Nanoseconds;
use tidemill_operators::api::OperatorError;

/// Nanoseconds that such a source waits for earlier records to be durable.
const PATIENCE: Nanoseconds = 10_000_000_000;

/// The error of a source, and the deadline before the run fails.
pub(super) struct Broken {
    error: OperatorError,
    until: Nanoseconds,
}

impl SourceNode {
    /// Ends the epoch of the last readable record. The source has not ended: a run that continues reads further. Sources
    /// that are read together end epochs together, so one of them does not end its epoch here.
    pub(super) fn break_off(&mut self, error: OperatorError) {
        if self.settings.replay.is_none() && self.settings.seat.is_none() {
            // The next epoch of a checkpoint: hosts report durable epochs up to there.
            let every = self.slot.checkpoint_every;
            self.begin_epoch((self.epoch / every + 1) * every, self.watermark);
        }
        self.broken = Some(Broken { error, until: self.slot.now() + PATIENCE });
        self.fail_when_durable();
    }

    /// Fails the run once the records read are durable downstream, or at the deadline.
    pub(super) fn fail_when_durable(&mut self) {
        let Some(broken) = &self.broken else { return };
        let is_through = self.settings.replay.is_some() || self.durable.get() >= self.epoch;
        if is_through || broken.until <= self.slot.now() {
            self.stage.operator_failed(&self.slot, &broken.error);
        } else {
            self.slot.ahead.set(true);
            self.slot.wake_at(broken.until, self.index);
        }
    }
}
