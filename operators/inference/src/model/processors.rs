//! Processors that compute a model.
use super::Model;
use crate::backend::placement::{self, Placed};
use crate::backend::{Session, Timed};
use std::time::Duration;

impl Model {
    /// Its sessions: that of the model, and that of its decoder.
    fn sessions(&self) -> impl Iterator<Item = &Timed> {
        std::iter::once(&self.session).chain(self.decoder.iter().map(|decoder| &decoder.session))
    }

    /// Time so far of the runs of its sessions, without the preparation of inputs and outputs.
    pub fn run_time(&self) -> Duration {
        self.sessions().map(Timed::ran).sum()
    }

    /// Processor time so far of the backend's own threads, if it has any.
    pub fn processor_time_elsewhere(&self) -> Duration {
        self.sessions().map(Session::processor_time_elsewhere).sum()
    }

    /// Providers that compute its operators, see [`Session::placement`].
    pub fn placement(&self) -> Vec<Placed> {
        let mut all = Vec::new();
        self.sessions().for_each(|session| placement::add(&mut all, session.placement()));
        all
    }
}
