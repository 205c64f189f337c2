//! The end of a plan whose lost hosts are not waited for, because the next plan continues without them.
//!
//! The next plan begins with the last checkpoint that is written. It has all that the lost hosts had, and the sinks of the others
//! return to it: no record is lost or doubled, by the same steps as after any other change of a plan.
use super::Coordinator;
use super::lives::Phase;

impl Coordinator {
    /// Ends the run at its last checkpoint, without these hosts. One that is only silent counts as lost from now on.
    pub(super) fn stop_without(&mut self, lost: &[String]) {
        let Some(checkpoints) = self.checkpoints.as_ref().filter(|_| !self.is_closing) else {
            return self.abort();
        };
        let epoch = checkpoints.epoch();
        // Their parts of a checkpoint that is being gathered do not come. One that is being written has all parts, and counts.
        self.cancel_checkpoint();
        for host in 0..self.hosts.len() {
            let life = &mut self.hosts[host];
            if !lost.contains(&life.name) {
                continue;
            }
            tracing::warn!("the plan ends without worker '{}', and another one continues", life.name);
            (life.phase, life.orders, life.missing_since) = (Phase::Away, None, None);
            life.is_left_behind = true;
            if let Some((remote, _)) = &self.remote {
                remote.close(host);
            }
            for slot in self.slots.iter_mut().filter(|slot| slot.host == host) {
                // What they had acknowledged after the checkpoint is gone: no later checkpoint can be written.
                slot.alive = false;
                slot.durable.fill(epoch);
            }
        }
        self.abort();
    }
}
