//! Dials other workers when the controller wants to know whether they are reached.
use crate::api::{Probe, Probed};
use crate::client::Client;
use crate::clock::instant;
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_link::remote::Credentials;

/// See the module.
#[derive(Default)]
pub(super) struct Prober {
    last: u64,
    found: Arc<Mutex<Option<Probed>>>,
}

impl Prober {
    /// Begins, unless it is the request that was answered.
    pub(super) fn begin(&mut self, probe: Probe, credentials: &Credentials) {
        if probe.number == self.last {
            return;
        }
        self.last = probe.number;
        let (credentials, found) = (credentials.clone(), Arc::clone(&self.found));
        let work = move || {
            let dial = |(name, place): (String, String)| match dial(&place, &credentials) {
                Ok(microseconds) => (name, Some(microseconds), None),
                Err(error) => (name, None, Some(error)),
            };
            // At the same time: one that does not answer holds up no other.
            let threads: Vec<_> = std::thread::scope(|scope| {
                let started: Vec<_> =
                    probe.targets.into_iter().map(|target| scope.spawn(|| dial(target))).collect();
                started.into_iter().filter_map(|thread| thread.join().ok()).collect()
            });
            *found.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(Probed { number: probe.number, found: threads });
        };
        if let Err(error) = std::thread::Builder::new().name("tm-probe".into()).spawn(work) {
            tracing::error!("cannot start the thread that connects to others: {error}");
        }
    }

    /// Returns the last result.
    pub(super) fn found(&self) -> Option<Probed> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The controller knows what was found.
    pub(super) fn was_told(&self, number: u64) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.as_ref().is_some_and(|found| found.number == number) {
            *found = None;
        }
    }
}

/// Microseconds until a worker has answered over a new connection.
fn dial(place: &str, credentials: &Credentials) -> Result<u64, String> {
    let begun = instant();
    let peer = Client::of_peer(place, credentials).map_err(|error| error.to_string())?;
    peer.content("/v1/here").map_err(|error| error.to_string())?;
    Ok(u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX))
}
