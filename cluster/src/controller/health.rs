//! Health of the cluster: the controller, and whether workers reach each other.
use super::answering::No;
use super::answering::{Answer, asked, broken};
use super::{Shared, locked};
use crate::agent::health::{civil_milliseconds, free_bytes};
use crate::api::{ControllerView, LinkView, Probe, ProbeView, Probed, SharedView, StandByView};
use crate::clock::instant;
use axum::extract::{ConnectInfo, State};
use axum::http::HeaderMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tidemill_http::server::Peer;
use tidemill_identity::{Action, CertificateFacts};
use tidemill_postgres::{Lead, StandsBy};

/// Requests within this time of another one share its result.
const SHORTEST: Duration = Duration::from_secs(3);
/// Time that workers dial others after a request.
const LONGEST: Duration = Duration::from_secs(60);

/// Workers that dial each other.
#[derive(Default)]
pub(crate) struct Probes {
    number: u64,
    begun: Option<Instant>,
    /// Names of workers and where they are dialled.
    targets: Vec<(String, String)>,
    only_dial: Vec<String>,
    asked: BTreeSet<String>,
    answers: BTreeMap<String, Probed>,
}

impl Probes {
    fn begin(&mut self, workers: Vec<(String, Option<String>)>, first: u64) {
        if self.begun.is_some_and(|begun| begun.elapsed() < SHORTEST) {
            return;
        }
        let number = self.number.max(first) + 1;
        *self = Self { number, begun: Some(instant()), ..Self::default() };
        for (name, place) in workers {
            self.asked.insert(name.clone());
            match place {
                Some(place) => self.targets.push((name, place)),
                None => self.only_dial.push(name),
            }
        }
    }

    /// Returns the task of a worker.
    fn wanted(&self, worker: &str) -> Option<Probe> {
        let is_open = self.begun.is_some_and(|begun| begun.elapsed() < LONGEST);
        let is_wanted = is_open && self.asked.contains(worker) && !self.answers.contains_key(worker);
        is_wanted.then(|| {
            let targets = self.targets.iter().filter(|(name, _)| name != worker);
            Probe { number: self.number, targets: targets.cloned().collect() }
        })
    }

    fn answered(&mut self, worker: &str, probed: &Probed) {
        if probed.number == self.number && self.asked.contains(worker) {
            self.answers.insert(worker.to_owned(), probed.clone());
        }
    }

    fn view(&self) -> ProbeView {
        let links = self.answers.iter().flat_map(|(from, probed)| {
            probed.found.iter().map(|(to, microseconds, error)| LinkView {
                from: from.clone(),
                to: to.clone(),
                microseconds: *microseconds,
                error: error.clone(),
            })
        });
        let waiting = self.asked.iter().filter(|name| !self.answers.contains_key(*name));
        ProbeView {
            number: self.number,
            links: links.collect(),
            waiting: waiting.cloned().collect(),
            only_dial: self.only_dial.clone(),
        }
    }
}

impl Shared {
    /// Takes the result of a worker, and returns its next task.
    pub(super) fn probing(&self, worker: &str, probed: Option<&Probed>) -> Option<Probe> {
        let mut probes = locked(&self.probes);
        if let Some(probed) = probed {
            probes.answered(worker, probed);
        }
        probes.wanted(worker)
    }
}

pub(super) async fn begin(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<ProbeView> {
    asked(shared, (who, headers), Action::View, |shared, _| {
        let workers = locked(&shared.workers)
            .iter()
            .filter(|(_, live)| live.is_alive)
            .map(|(name, live)| {
                let health = live.heartbeat.health.as_ref();
                (name.clone(), health.and_then(|health| health.files_at.clone()))
            })
            .collect();
        let mut probes = locked(&shared.probes);
        // Workers remember the number of a controller that was there before.
        probes.begin(workers, civil_milliseconds());
        Ok(probes.view())
    })
    .await
}

pub(super) async fn probes(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<ProbeView> {
    asked(shared, (who, headers), Action::View, |shared, _| Ok(locked(&shared.probes).view())).await
}

fn shared_view(lead: &Lead) -> Result<SharedView, No> {
    let others = lead.others().map_err(|error| broken(&error))?;
    let view = |other: StandsBy| StandByView {
        place: other.address,
        silent_milliseconds: u64::try_from(other.silent.as_millis()).unwrap_or(u64::MAX),
    };
    Ok(SharedView {
        store: lead.place(),
        term: lead.term(),
        stand_by: others.into_iter().map(view).collect(),
    })
}

pub(super) async fn controller(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<ControllerView> {
    asked(shared, (who, headers), Action::View, |shared, _| {
        let certificate = shared.credentials.certificate();
        let facts = CertificateFacts::of_der(&certificate).map_err(|error| broken(&error))?;
        Ok(ControllerView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            time_milliseconds: civil_milliseconds(),
            address: shared.address.to_string(),
            hosts_port: shared.exchange_port,
            certificate_ends: facts.not_after.as_unix(),
            disk_free_bytes: free_bytes(&shared.folder),
            files_bytes: shared.blobs.bytes(),
            files_sent_bytes: shared.sent_bytes.load(Ordering::Relaxed),
            keep_ended_seconds: shared.keeping.time.map(|time| time.as_secs()),
            keep_bytes: shared.keeping.bytes,
            shared: match &shared.lead {
                Some(lead) => Some(shared_view(lead)?),
                None => None,
            },
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_dials_every_other_one_that_can_be_dialled() {
        let mut probes = Probes::default();
        let place = |name: &str| (name.to_owned(), Some(format!("{name}:1")));
        probes.begin(vec![place("a"), place("b"), ("router".to_owned(), None)], 7);
        let names = |worker: &str, probes: &Probes| -> Option<Vec<String>> {
            let wanted = probes.wanted(worker)?;
            Some(wanted.targets.into_iter().map(|(name, _)| name).collect())
        };
        assert_eq!(names("a", &probes), Some(vec!["b".to_owned()]));
        assert_eq!(names("router", &probes), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(names("later", &probes), None);
        let found = |number: u64| Probed { number, found: vec![("b".to_owned(), Some(900), None)] };
        probes.answered("a", &found(7));
        assert!(names("a", &probes).is_some(), "that was another question");
        probes.answered("a", &found(8));
        assert_eq!(names("a", &probes), None);
        let view = probes.view();
        assert_eq!((view.links.len(), view.waiting.len(), view.only_dial), (1, 2, vec!["router".to_owned()]));
        probes.begin(Vec::new(), 0);
        assert_eq!(probes.number, 8, "the same is asked again at once");
    }
}
