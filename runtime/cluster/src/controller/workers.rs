//! Workers: who is there, who is lost, who is drained.
use super::{Shared, locked, placing};
use crate::api::{Assignment, DETECTION_MILLISECONDS, Duties, Heartbeat, HostStatus, WorkerView};
use crate::facts::WorkerFacts;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_identity::VerifiedPeer;

/// How often silence is looked for.
const LOOK: Duration = Duration::from_millis(100);

/// A worker that was heard since this process began.
pub(crate) struct LiveWorker {
    pub(crate) heard: Instant,
    pub(crate) is_alive: bool,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) address: String,
}

#[expect(clippy::disallowed_methods, reason = "silence is measured in real time")]
fn instant() -> Instant {
    Instant::now()
}

impl Shared {
    /// A worker says that it lives; what it has to do.
    pub(crate) fn heard(
        &self,
        peer: &VerifiedPeer,
        name: &str,
        heartbeat: Heartbeat,
        address: String,
    ) -> Duties {
        let is_new = {
            let mut workers = locked(&self.workers);
            let before = workers.get(name).is_some_and(|worker| worker.is_alive);
            let logs = heartbeat.logs.clone();
            let heartbeat = Heartbeat { logs: Vec::new(), ..heartbeat };
            workers
                .insert(name.to_owned(), LiveWorker { heard: instant(), is_alive: true, heartbeat, address });
            drop(workers);
            self.log(Some(name), logs);
            !before
        };
        if is_new {
            let known = self.facts.look(|document| document.workers.contains_key(name));
            let location = peer.location.as_ref().map(ToString::to_string);
            let tier = peer.tier.as_ref().map(ToString::to_string);
            let kept = self.facts.change(|document| {
                let facts = document.workers.entry(name.to_owned()).or_default();
                (facts.location, facts.tier) = (location, tier);
            });
            if let Err(error) = kept {
                tracing::error!("{error}");
            }
            let text = if known { "it is there" } else { "it has joined" };
            self.tell("worker_alive", None, Some(name), &format!("worker {name}: {text}"));
        }
        let revoked = self.authority.revoked_serials().iter().map(ToString::to_string).collect();
        Duties { assignments: self.assignments(name), revoked }
    }

    /// Processes that a worker must have.
    fn assignments(&self, worker: &str) -> Vec<Assignment> {
        let runs = locked(&self.runs);
        let mut assignments = Vec::new();
        self.facts.look(|document| {
            for (name, live) in runs.iter() {
                let (Some(run), Some(job)) = (document.runs.get(name), &live.job) else { continue };
                for (role, of) in &run.roles {
                    let is_wanted = live.wanted.get(role).is_some_and(|wanted| *wanted);
                    if is_wanted && of.worker.as_deref() == Some(worker) {
                        assignments.push(Assignment {
                            run: name.clone(),
                            role: role.clone(),
                            generation: of.generation,
                            secret: run.secret.clone(),
                            coordinator_port: self.exchange_port,
                            bundle: run.bundle.clone(),
                            plan: job.plan.clone(),
                            rates: job.rates.clone(),
                        });
                    }
                }
            }
        });
        assignments
    }

    /// Whether a worker was heard in time.
    pub(crate) fn is_alive(&self, name: &str) -> bool {
        locked(&self.workers).get(name).is_some_and(|worker| worker.is_alive)
    }

    /// What a worker said of a process.
    pub(crate) fn host_status(&self, worker: &str, run: &str, role: &str) -> Option<HostStatus> {
        let workers = locked(&self.workers);
        let hosts = &workers.get(worker)?.heartbeat.hosts;
        hosts.iter().find(|host| host.run == run && host.role == role).cloned()
    }

    /// All workers.
    pub(crate) fn worker_views(&self) -> Vec<WorkerView> {
        let live = locked(&self.workers);
        self.facts.look(|document| {
            let views = document.workers.iter().map(|(name, facts)| {
                let WorkerFacts { is_drained, location, tier } = facts.clone();
                let worker = live.get(name);
                let heartbeat = worker.map(|worker| worker.heartbeat.clone()).unwrap_or_default();
                let running = heartbeat.hosts.iter().filter(|host| host.ended.is_none());
                WorkerView {
                    name: name.clone(),
                    is_alive: worker.is_some_and(|worker| worker.is_alive),
                    silent_milliseconds: worker
                        .map(|worker| u64::try_from(worker.heard.elapsed().as_millis()).unwrap_or(u64::MAX)),
                    is_drained,
                    location,
                    tier,
                    worker_type: heartbeat.worker_type.clone(),
                    capacity: heartbeat.capacity.clone(),
                    labels: heartbeat.labels.clone(),
                    address: worker.map(|worker| worker.address.clone()),
                    hosts: running.map(|host| (host.run.clone(), host.role.clone())).collect(),
                    version: heartbeat.version,
                }
            });
            views.collect()
        })
    }

    /// A worker belongs to the cluster no more: what it had goes elsewhere.
    pub(crate) fn forget_worker(&self, name: &str, by: &str) -> Result<(), crate::facts::FactsError> {
        locked(&self.workers).remove(name);
        self.facts.change(|document| drop(document.workers.remove(name)))?;
        self.tell("worker_revoked", None, Some(name), &format!("{by} revokes worker {name}"));
        placing::leave(self, name, "it was revoked");
        Ok(())
    }

    /// Takes the work from a worker, or gives it back; false: there is no such worker.
    pub(crate) fn drain(
        &self,
        name: &str,
        is_drained: bool,
        by: &str,
    ) -> Result<bool, crate::facts::FactsError> {
        let found = self.facts.change(|document| match document.workers.get_mut(name) {
            Some(facts) => {
                facts.is_drained = is_drained;
                true
            }
            None => false,
        })?;
        if found {
            let kind = if is_drained { "worker_drained" } else { "worker_resumed" };
            let what = if is_drained { "drains" } else { "gives work back to" };
            self.tell(kind, None, Some(name), &format!("{by} {what} worker {name}"));
            if is_drained {
                placing::leave(self, name, "it is drained");
            }
        }
        Ok(found)
    }
}

/// Finds out who has been silent for too long.
pub(super) fn watch(shared: &Arc<Shared>) {
    while !shared.is_ending() {
        let mut lost = Vec::new();
        for (name, worker) in locked(&shared.workers).iter_mut() {
            if worker.is_alive && worker.heard.elapsed() >= Duration::from_millis(DETECTION_MILLISECONDS) {
                worker.is_alive = false;
                lost.push(name.clone());
            }
        }
        for name in lost {
            let seconds = DETECTION_MILLISECONDS as f64 / 1e3;
            let text = format!("worker {name} was not heard for {seconds} s and counts as lost");
            shared.tell("worker_lost", None, Some(&name), &text);
            placing::leave(shared, &name, "it is lost");
        }
        std::thread::park_timeout(LOOK);
    }
}
