//! Tracks workers: joined, lost and drained.
use super::detection::Rhythm;
use super::measured_links::MeasuredLinks;
use super::planning::part_of_quota;
use super::runs::{Job, LiveRun};
use super::{Shared, locked, placing};
use crate::agent::health::civil_milliseconds;
use crate::api::{
    Assignment, Duties, Heartbeat, HostStatus, LinkTarget, NetReport, Quota, TrafficReport, WorkerHealth,
    WorkerView,
};
use crate::clock::instant;
use crate::facts::{Document, Role, RunFacts, WorkerFacts};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tidemill_identity::{Name, PeerIdentity, Timestamp, VerifiedPeer};

/// Interval of the search for silent workers.
const LOOK: Duration = Duration::from_millis(100);

/// Largest number of workers that one measures its link to.
const MOST_WAYS: usize = 8;
/// Least time for which these stay the same.
const WAYS_STAY: Duration = Duration::from_secs(5);
/// Largest phi that is reported.
const MOST_PHI: f64 = 99.0;
/// Time since a sign of life of a run's process within which its worker is not lost, whatever its heartbeats do.
const HEARD: Duration = Duration::from_secs(1);
/// A pause between two looks longer than usual by this much is this process's own fault.
const STANDSTILL: Duration = Duration::from_millis(500);

/// A worker with a heartbeat since this process started.
pub(crate) struct LiveWorker {
    pub(crate) heard: Instant,
    pub(crate) is_alive: bool,
    /// Its heartbeats do not come, but its runs are heard; reported.
    pub(crate) is_heard_in_runs: bool,
    pub(crate) heartbeat: Heartbeat,
    /// Backends for models there, if it reports them. Shared, because many read it.
    pub(crate) backends: Option<Arc<[String]>>,
    pub(crate) address: String,
    /// Measured links to others.
    pub(crate) ways: MeasuredLinks,
    /// Last report about the traffic of its machine.
    pub(crate) traffic: Option<(Instant, TrafficReport)>,
    /// Digests of the files that it can serve.
    pub(crate) held: BTreeSet<String>,
    /// Its clock less ours, milliseconds.
    pub(crate) clock_offset: i64,
    /// End of its certificate.
    pub(crate) certificate_ends: Timestamp,
    /// Workers that it measures its link to.
    pub(crate) measures: Option<Measures>,
    /// Last report of its agent about its transport service.
    pub(crate) net: Option<Arc<NetReport>>,
    /// Its heartbeat intervals while it was alive.
    pub(crate) rhythm: Rhythm,
}

/// Workers that one measures its link to.
pub(crate) struct Measures {
    /// The change count of the workers at the search.
    changes: u64,
    since: Instant,
    targets: Vec<LinkTarget>,
}

/// Starts after the worker's own name, so that not all measure the same few. Other places come first.
fn ways_from(workers: &BTreeMap<String, LiveWorker>, document: &Document, name: &str) -> Vec<LinkTarget> {
    let place_of = |name: &str| document.workers.get(name).map(|facts| (&facts.tier, &facts.location));
    let own = place_of(name);
    let (before, behind) = (
        workers.range::<str, _>((Bound::Unbounded, Bound::Excluded(name))),
        workers.range::<str, _>((Bound::Included(name), Bound::Unbounded)),
    );
    let (mut far, mut near) = (Vec::new(), Vec::new());
    for (other, worker) in behind.chain(before).filter(|(other, worker)| *other != name && worker.is_alive) {
        let Some(address) = worker.heartbeat.measured_at.clone() else { continue };
        let list = if place_of(other) == own { &mut near } else { &mut far };
        if list.len() < MOST_WAYS {
            list.push(LinkTarget { worker: other.clone(), address, only_delay: false });
        }
        if far.len() == MOST_WAYS {
            break;
        }
    }
    far.into_iter().chain(near).take(MOST_WAYS).collect()
}

/// A process that a worker must have.
struct RequiredProcess<'a> {
    run: &'a str,
    role: &'a str,
    generation: u64,
    version: u64,
    facts: &'a RunFacts,
    job: &'a Job,
    /// All of its plan.
    roles: &'a BTreeMap<String, Role>,
}

/// Processes that a worker must have.
fn wanted_of<'a>(
    runs: &'a BTreeMap<String, LiveRun>,
    document: &'a Document,
    worker: &str,
) -> Vec<RequiredProcess<'a>> {
    let mut wanted = Vec::new();
    for (name, live) in runs {
        let Some(run) = document.runs.get(name) else { continue };
        for (version, set) in &live.sets {
            let (Some(roles), Some(job)) = (run.roles_of(*version), &set.job) else { continue };
            for (role, of) in roles {
                let is_wanted = of.worker.as_deref() == Some(worker) && set.wanted.get(role) == Some(&true);
                if is_wanted {
                    let (generation, version) = (of.generation, *version);
                    wanted.push(RequiredProcess {
                        run: name,
                        role,
                        generation,
                        version,
                        facts: run,
                        job,
                        roles,
                    });
                }
            }
        }
    }
    wanted
}

impl Shared {
    /// Handles a heartbeat and returns the worker's duties. `None`: its certificate was revoked during the request.
    pub(crate) fn heard(
        &self,
        peer: &VerifiedPeer,
        name: &str,
        mut heartbeat: Heartbeat,
        address: String,
    ) -> Option<Duties> {
        // The caller of `forget_worker` takes this lock after the revocation, so nothing of the worker comes back.
        let is_revoked = || self.authority.revoked().contains(peer.serial.as_bytes());
        self.counts.heartbeat();
        let (folders, probed) = (heartbeat.folders.clone(), heartbeat.probed.take());
        let follows = heartbeat.follows.take();
        let lost_files = std::mem::take(&mut heartbeat.lost_files);
        let fetching = heartbeat.fetching.clone().unwrap_or_default();
        let (session, tasks) = (heartbeat.session, std::mem::take(&mut heartbeat.tasks));
        let tell_held;
        let traffic = self.traffic();
        let is_new = {
            let mut workers = locked(&self.workers);
            if is_revoked() {
                return None;
            }
            let known = workers.remove(name);
            let before = known.as_ref().is_some_and(|worker| worker.is_alive);
            let logs = std::mem::take(&mut heartbeat.logs);
            // It reports its files when they change, or when they are unknown here.
            let mut ways = known.as_ref().map(|worker| worker.ways.clone()).unwrap_or_default();
            let measured = std::mem::take(&mut heartbeat.ways);
            if !measured.is_empty() {
                let measured = &measured[..measured.len().min(MOST_WAYS)];
                let sent = |to: &str| traffic.between(name, to, None);
                self.facts.look(|document| {
                    ways.learn(measured, sent, |to| document.workers.contains_key(to), instant());
                });
            }
            let is_elsewhere =
                known.as_ref().map(|worker| &worker.heartbeat.measured_at) != Some(&heartbeat.measured_at);
            if !before || is_elsewhere {
                self.worker_changes.fetch_add(1, Ordering::AcqRel);
            }
            let mut rhythm = known.as_ref().map(|worker| worker.rhythm.clone()).unwrap_or_default();
            if let Some(worker) = known.as_ref().filter(|worker| worker.is_alive) {
                rhythm.beats(worker.heard.elapsed());
            }
            let processors = heartbeat.capacity.processors;
            if known.as_ref().map(|worker| worker.heartbeat.capacity.processors) != Some(processors) {
                locked(&self.processors).insert(name.to_owned(), processors);
            }
            let news = heartbeat.net.take().map(Arc::new);
            let net = news.or_else(|| known.as_ref()?.net.clone());
            let counted = heartbeat.traffic.take().map(|report| (instant(), report));
            let counted = counted.or_else(|| known.as_ref()?.traffic.clone());
            let (known_held, measures) = known.map(|worker| (worker.held, worker.measures)).unzip();
            let held = match heartbeat.held.take() {
                Some(held) => Some(held.into_iter().collect()),
                None => known_held,
            };
            tell_held = held.is_none();
            let live = LiveWorker {
                heard: instant(),
                is_alive: true,
                is_heard_in_runs: false,
                held: held.unwrap_or_default(),
                clock_offset: clock_offset(&heartbeat),
                certificate_ends: peer.expires,
                backends: heartbeat.backends.take().map(Arc::from),
                heartbeat,
                address,
                ways,
                traffic: counted,
                measures: measures.flatten(),
                net,
                rhythm,
            };
            workers.insert(name.to_owned(), live);
            drop(workers);
            self.log(Some(name), logs);
            !before
        };
        if is_new {
            let known = self.facts.look(|document| document.workers.get(name).map(|facts| facts.is_lost));
            let location = peer.location.as_ref().map(ToString::to_string);
            let tier = peer.tier.as_ref().map(ToString::to_string);
            let kept = self.facts.change(|document| {
                if is_revoked() {
                    return false;
                }
                let facts = document.workers.or_insert(name, WorkerFacts::default());
                (facts.location, facts.tier, facts.is_lost) = (location, tier, false);
                true
            });
            match kept {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => tracing::error!("{error}"),
            }
            match known {
                None => {
                    self.tell("worker_joined", None, Some(name), &format!("worker {name} has joined"));
                }
                Some(true) => self.tell("worker_alive", None, Some(name), &format!("worker {name} is back")),
                // It was alive all the time: only this process of the controller is new.
                Some(false) => {}
            }
            self.wake_waiting();
        }
        if lost_files > 0 {
            let text =
                format!("worker {name} has lost {lost_files} kept files: it fetches the needed ones again");
            self.tell("files_lost", None, Some(name), &text);
        }
        self.fetches(name, &fetching);
        self.tasks_heard(name, session, &tasks);
        let revoked = self.authority.revoked_serials().iter().map(ToString::to_string).collect();
        let unsettled = self.unsettled();
        let (assignments, digest, is_same) = self.assigned(name, follows.as_deref(), &unsettled);
        Some(Duties {
            assignments,
            unsettled,
            digest,
            is_same,
            revoked,
            tell_held,
            remove: self.folders_to_remove(name, &folders),
            parts: self.parts.wanted(name),
            probe: self.probing(name, probed.as_ref()),
            measure: self.ways_to_measure(name),
            drained_paths: self.drained_paths(name),
            groups: self.group_duties(name),
            net_policies: Some(self.net_policies(name).into_iter().map(|of| of.policy).collect()),
            pause_milliseconds: self.pause_of(name),
            term: self.term(),
            jobs: Some(self.job_duties(name, &tasks)),
        })
    }

    /// Workers to measure the link to, marked where traffic of runs or of machines shows the rate.
    fn ways_to_measure(&self, name: &str) -> Vec<LinkTarget> {
        let mut targets = self.ways_of(name);
        let shown = self.shown_by_hints(name);
        if let Some(worker) = locked(&self.workers).get(name) {
            for target in &mut targets {
                target.only_delay = worker.ways.is_shown(&target.worker) || shown.contains(&target.worker);
            }
        }
        targets
    }

    /// Workers to measure the link to, other places first. Cached for a while, because the search visits all workers.
    fn ways_of(&self, name: &str) -> Vec<LinkTarget> {
        let changes = self.worker_changes.load(Ordering::Acquire);
        let mut workers = locked(&self.workers);
        let known = workers.get(name).and_then(|worker| worker.measures.as_ref());
        if let Some(known) =
            known.filter(|known| known.changes == changes || known.since.elapsed() < WAYS_STAY)
        {
            return known.targets.clone();
        }
        let targets = self.facts.look(|document| ways_from(&workers, document, name));
        if let Some(worker) = workers.get_mut(name) {
            worker.measures = Some(Measures { changes, since: instant(), targets: targets.clone() });
        }
        targets
    }

    /// Runs that this process still has to take over.
    fn unsettled(&self) -> Vec<String> {
        let runs = locked(&self.runs);
        self.facts.look(|document| {
            let open = document.runs.iter().filter(|(name, run)| {
                !run.state.is_over() && runs.get(*name).is_none_or(|live| !live.is_settled)
            });
            open.map(|(name, _)| name.clone()).collect()
        })
    }

    /// Processes that a worker must have, their digest, and whether it follows them already. They are then not sent again: a plan is far
    /// longer than a heartbeat and would be most of the traffic.
    fn assigned(
        &self,
        worker: &str,
        follows: Option<&str>,
        unsettled: &[String],
    ) -> (Vec<Assignment>, String, bool) {
        let there = locked(&self.workers).get(worker).map(|live| live.heartbeat.clone()).unwrap_or_default();
        let runs = locked(&self.runs);
        self.facts.look(|document| {
            let mut wanted = wanted_of(&runs, document, worker);
            // Jobs leave first; a process that is there stays.
            if !self.is_given_back(document, worker, &there.capacity) {
                let is_it = |host: &HostStatus, of: &RequiredProcess<'_>| {
                    (&*host.run, &*host.role, host.plan_version) == (of.run, of.role, of.version)
                };
                wanted.retain(|of| there.hosts.iter().any(|host| is_it(host, of)));
            }
            let processors = |role: &str, of: &RequiredProcess<'_>| {
                let at = of.roles.get(role).and_then(|of| of.worker.as_ref());
                at.and_then(|at| locked(&self.processors).get(at).copied()).unwrap_or(1.0)
            };
            let quotas: Vec<Quota> = wanted
                .iter()
                .map(|of| part_of_quota(of.facts, &of.job.plan, of.role, |role| processors(role, of)))
                .collect();
            let said = wanted.iter().zip(&quotas).map(|(of, quota)| {
                (of.run, of.role, of.generation, of.version, &of.facts.secret, &of.job.digest, quota)
            });
            let said = (said.collect::<Vec<_>>(), self.exchange_port, unsettled);
            let digest =
                serde_json::to_vec(&said).map(|bytes| crate::blobs::digest(&bytes)).unwrap_or_default();
            let is_known = !digest.is_empty() && wanted.iter().all(|of| !of.job.digest.is_empty());
            if is_known && follows == Some(digest.as_str()) {
                return (Vec::new(), digest, true);
            }
            let assignment = |(of, quota): (&RequiredProcess<'_>, Quota)| Assignment {
                run: of.run.to_owned(),
                role: of.role.to_owned(),
                generation: of.generation,
                plan_version: of.version,
                secret: of.facts.secret.clone(),
                coordinator_port: self.exchange_port,
                bundle: of.facts.bundle.clone(),
                plan: of.job.plan.clone(),
                rates: of.job.rates.clone(),
                quota,
            };
            (wanted.iter().zip(quotas).map(assignment).collect(), digest, false)
        })
    }

    /// Whether a worker is alive.
    pub(crate) fn is_alive(&self, name: &str) -> bool {
        locked(&self.workers).get(name).is_some_and(|worker| worker.is_alive)
    }

    /// Time since a worker's last heartbeat; `None` if there is none since this process started.
    pub(crate) fn silence(&self, name: &str) -> Option<Duration> {
        locked(&self.workers).get(name).map(|worker| worker.heard.elapsed())
    }

    /// Last status of a process that its worker reported.
    pub(crate) fn host_status(
        &self,
        worker: &str,
        run: &str,
        role: &str,
        plan_version: u64,
    ) -> Option<HostStatus> {
        let workers = locked(&self.workers);
        let hosts = &workers.get(worker)?.heartbeat.hosts;
        let is_it =
            |host: &&HostStatus| host.run == run && host.role == role && host.plan_version == plan_version;
        hosts.iter().find(is_it).cloned()
    }

    /// All workers.
    pub(crate) fn worker_views(&self) -> Vec<WorkerView> {
        let live = locked(&self.workers);
        self.facts.look(|document| {
            let views = document.workers.iter().map(|(name, facts)| {
                let WorkerFacts { is_drained, location, tier, drained_paths, .. } = facts.clone();
                let worker = live.get(name);
                let heartbeat = worker.map(|worker| worker.heartbeat.clone()).unwrap_or_default();
                let is_alive = worker.is_some_and(|worker| worker.is_alive);
                // Processes on a lost worker are not known to run.
                let running = heartbeat.hosts.iter().filter(|host| is_alive && host.ended.is_none());
                WorkerView {
                    name: name.clone(),
                    is_alive,
                    silent_milliseconds: worker
                        .map(|worker| u64::try_from(worker.heard.elapsed().as_millis()).unwrap_or(u64::MAX)),
                    is_drained,
                    location,
                    tier,
                    worker_type: heartbeat.worker_type.clone(),
                    price: heartbeat.price,
                    capacity: heartbeat.capacity.clone(),
                    backends: worker.and_then(|worker| Some(worker.backends.as_ref()?.to_vec())),
                    labels: heartbeat.labels.clone(),
                    address: worker.map(|worker| worker.address.clone()),
                    hosts: running.map(|host| (host.run.clone(), host.role.clone())).collect(),
                    version: heartbeat.version,
                    health: worker.and_then(health),
                    paths: heartbeat.paths,
                    drained_paths,
                }
            });
            views.collect()
        })
    }

    /// Finds workers of the previous process without a heartbeat to this one.
    fn miss_workers(&self) {
        let heard: BTreeSet<String> = locked(&self.workers).keys().cloned().collect();
        let missing: Vec<String> = self.facts.look(|document| {
            let there = document.workers.iter().filter(|(_, facts)| !facts.is_lost);
            there.filter(|(name, _)| !heard.contains(*name)).map(|(name, _)| name.clone()).collect()
        });
        for name in missing {
            self.is_lost(&name);
            let text = format!("worker {name} was lost while the controller was down");
            self.tell("worker_lost", None, Some(&name), &text);
        }
    }

    /// Records that the loss of a worker was reported.
    fn is_lost(&self, name: &str) {
        let kept = self.facts.change(|document| {
            if let Some(facts) = document.workers.get_mut(name) {
                facts.is_lost = true;
            }
        });
        if let Err(error) = kept {
            tracing::error!("{error}");
        }
    }

    /// Whether a worker of this name is known.
    pub(crate) fn remembers(&self, name: &str) -> bool {
        self.facts.look(|document| document.workers.contains_key(name))
    }

    /// Removes a worker with revoked certificates: its roles move, and its processes are rejected.
    pub(crate) fn forget_worker(&self, name: &Name, by: &str) -> Result<(), crate::facts::FactsError> {
        let expelled = self.exchange.expel(&PeerIdentity::Worker(name.clone()).to_string());
        tracing::debug!("ignoring {expelled} processes of worker {name}");
        let name = name.as_str();
        locked(&self.left).insert(name.to_owned(), instant());
        self.forget_ways(name);
        self.facts.change(|document| {
            document.workers.remove(name);
            for one in &mut document.removed {
                one.workers.remove(name);
            }
            document.removed.retain(|one| !one.workers.is_empty());
        })?;
        self.tell("worker_revoked", None, Some(name), &format!("{by} revokes worker {name}"));
        placing::leave(self, name, "it was revoked");
        Ok(())
    }

    /// Drops all about a worker that has left the cluster, and the links to it.
    fn forget_ways(&self, name: &str) {
        let mut workers = locked(&self.workers);
        workers.remove(name);
        workers.values_mut().for_each(|worker| worker.ways.forget(name));
        drop(workers);
        locked(&self.processors).remove(name);
    }

    /// Drains a worker or ends that; false if there is no such worker.
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
            match is_drained {
                true => drop(placing::leave(self, name, "it is drained")),
                false => self.wake_waiting(),
            }
        }
        Ok(found)
    }
}

/// Its clock less ours in milliseconds; 0 if unknown.
fn clock_offset(heartbeat: &Heartbeat) -> i64 {
    let told = heartbeat.health.as_ref().map(|health| health.time_milliseconds).filter(|time| *time > 0);
    let signed = |time: u64| i64::try_from(time).unwrap_or(i64::MAX);
    told.map_or(0, |told| signed(told).saturating_sub(signed(civil_milliseconds())))
}

fn health(worker: &LiveWorker) -> Option<WorkerHealth> {
    Some(WorkerHealth {
        told: worker.heartbeat.health.clone()?,
        clock_offset_milliseconds: worker.clock_offset,
        certificate_ends: worker.certificate_ends.as_unix(),
    })
}

/// Finds workers that have been silent for too long.
pub(super) fn watch(shared: &Arc<Shared>) {
    let begun = instant();
    let mut looked = begun;
    let mut is_complete = false;
    // Silent workers whose processes may continue alone, and for how long.
    let mut held: BTreeMap<String, Duration> = BTreeMap::new();
    while !shared.is_ending() {
        let mut lost = Vec::new();
        if !is_complete && begun.elapsed() >= shared.expected() {
            is_complete = true;
            shared.miss_workers();
        }
        let now = instant();
        // While this process itself stood still (a suspended machine), it could receive nothing.
        let standstill = now.duration_since(looked).saturating_sub(LOOK);
        looked = now;
        let mut silent = Vec::new();
        for (name, worker) in locked(&shared.workers).iter_mut() {
            if standstill >= STANDSTILL {
                worker.heard += standstill;
            }
            if worker.is_alive && worker.rhythm.is_lost(worker.heard.elapsed(), &shared.detection) {
                silent.push(name.clone());
            }
        }
        shared.miss_covered();
        for name in silent {
            let run = shared.heard_in_a_run(&name, HEARD);
            let mut workers = locked(&shared.workers);
            let Some(worker) = workers.get_mut(&name) else { continue };
            let silent = worker.heard.elapsed();
            if let Some(run) = run {
                let is_told = std::mem::replace(&mut worker.is_heard_in_runs, true);
                drop(workers);
                if !is_told {
                    let text =
                        format!("worker {name} sends no heartbeats, but its process of run {run} is heard");
                    shared.tell("worker_silent", Some(&run), Some(&name), &text);
                }
                continue;
            }
            if worker.is_alive && worker.rhythm.is_lost(silent, &shared.detection) {
                worker.is_alive = false;
                shared.worker_changes.fetch_add(1, Ordering::AcqRel);
                let phi = shared.detection.phi.and_then(|_| worker.rhythm.phi(silent));
                lost.push((name.clone(), silent, phi));
            }
        }
        for (name, silent, phi) in lost {
            let seconds = match phi {
                Some(phi) => format!("{:.1} s (phi {:.0})", silent.as_secs_f64(), phi.min(MOST_PHI)),
                None => format!("{} s", shared.detection.time.as_secs_f64()),
            };
            let text = format!("worker {name} sent no heartbeat for {seconds} and is lost");
            shared.is_lost(&name);
            shared.tell("worker_lost", None, Some(&name), &text);
            if let Some(until) = placing::leave(shared, &name, "it is lost") {
                held.insert(name, until);
            }
        }
        for (name, until) in std::mem::take(&mut held) {
            if shared.is_alive(&name) {
                continue; // it is back
            }
            let is_over = shared.silence(&name).is_none_or(|silent| silent >= until);
            let until = match is_over {
                true => placing::leave(shared, &name, "it was silent for too long"),
                false => Some(until),
            };
            held.extend(until.map(|until| (name, until)));
        }
        std::thread::park_timeout(LOOK);
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::hears;
