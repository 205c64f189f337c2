//! Chooses the source of a file for each worker, and follows how files reach workers. The choice itself is in [`tree`].
mod tree;

use super::answering::{Answer, No, blocking, worker};
use super::racks::rack_of;
use super::{LiveWorker, Shared, locked};
use crate::api::{FetchView, Fetching, OBJECT_STORE, Source, SourceRequest};
use crate::blobs::is_digest;
use crate::clock::instant;
use axum::Json;
use axum::extract::{ConnectInfo, Path, State};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_app::figures::bytes;
use tidemill_http::server::Peer;
pub(crate) use tree::RollOuts;
use tree::{Asker, Candidate, Choice, Origin, RollOut, Taker};

/// Pause before a worker asks again.
const PAUSE: Duration = Duration::from_millis(200);
/// Time after the start in which the workers that were there before are waited for.
const SETTLING: Duration = Duration::from_secs(3);
/// Files that a worker fetches at the same time, as far as they are followed.
const MOST_FETCHED: usize = 64;
/// Size from which on an event reports that a file has reached its workers.
const LARGE: u64 = 1 << 20;

/// Whether a live worker has a file.
fn holds(workers: &BTreeMap<String, LiveWorker>, name: &str, digest: &str) -> bool {
    workers.get(name).is_some_and(|live| live.held.contains(digest))
}

/// The place at which a worker gives files.
fn place_of(live: &LiveWorker) -> Option<&str> {
    live.heartbeat.health.as_ref()?.files_at.as_deref()
}

impl Shared {
    fn source(&self, digest: &str, name: &str, failed: &[String]) -> Source {
        if !is_digest(digest) {
            return Source::Controller;
        }
        // The store serves many at once, without the controller's uplink.
        let is_open = !failed.iter().any(|place| place == OBJECT_STORE);
        let link = if is_open { self.blobs.link(digest) } else { None };
        let now = instant();
        let wait = Source::Wait { milliseconds: PAUSE.as_millis().try_into().unwrap_or(u64::MAX) };
        let workers = locked(&self.workers);
        if !workers.contains_key(name) || self.begun.elapsed() < SETTLING && self.misses_any(&workers) {
            return wait;
        }
        let racks: BTreeMap<&str, String> = self.facts.look(|document| {
            let rack = |(name, live): (&String, &LiveWorker)| {
                rack_of(&live.heartbeat.labels, document.workers.get(name))
            };
            workers.iter().map(|of| (of.0.as_str(), rack(of))).collect()
        });
        let rack_at = |name: &str| racks.get(name).map_or("", String::as_str);
        let candidates: Vec<Candidate<'_>> = workers
            .iter()
            .filter(|(other, live)| *other != name && live.is_alive)
            .filter(|(_, live)| place_of(live).is_some_and(|place| !failed.iter().any(|one| one == place)))
            .map(|(other, live)| Candidate {
                name: other,
                rack: rack_at(other).to_owned(),
                is_complete: live.held.contains(digest),
                gives_parts: live.heartbeat.fetching.is_some(),
            })
            .collect();
        let asker = Asker { worker: name, rack: rack_at(name), digest, has_store: link.is_some() };
        let rate = |from: &str| {
            let direct = workers.get(from).and_then(|live| live.ways.rate(name));
            if direct.is_some() || rack_at(from) == asker.rack {
                return direct;
            }
            // All workers of two racks share a link.
            let near = workers.iter().filter(|(other, _)| rack_at(other) == rack_at(from));
            near.filter_map(|(_, live)| live.ways.best(|to| rack_at(to) == asker.rack)).max_by(f64::total_cmp)
        };
        let mut roll_outs = locked(&self.roll_outs);
        let is_alive = |name: &str| workers.get(name).is_some_and(|live| live.is_alive);
        roll_outs.tidy(|worker, digest| holds(&workers, worker, digest), is_alive, now);
        let choice = roll_outs.choose(&asker, &candidates, rate, now);
        drop(roll_outs);
        match choice {
            Choice::From(Origin::Worker(from)) => {
                let place = workers.get(&from).and_then(place_of).unwrap_or_default();
                Source::Worker { place: place.to_owned() }
            }
            Choice::From(Origin::Store) => link.map_or(Source::Controller, |link| Source::Store { link }),
            Choice::From(Origin::Controller) => Source::Controller,
            Choice::Wait => wait,
        }
    }

    /// Whether a worker that was there before this process has not been heard since: what it has and fetches is not known yet.
    fn misses_any(&self, workers: &BTreeMap<String, LiveWorker>) -> bool {
        self.facts.look(|document| {
            document.workers.iter().any(|(name, facts)| !facts.is_lost && !workers.contains_key(name))
        })
    }

    /// A worker still fetches a file from here.
    pub(super) fn gives(&self, digest: &str, name: &str) {
        locked(&self.roll_outs).heard(digest, name, instant());
    }

    /// A worker says what it is fetching. Reports files that have reached all who asked for them.
    pub(super) fn fetches(&self, name: &str, fetching: &[Fetching]) {
        let finished = {
            let workers = locked(&self.workers);
            let now = instant();
            let rack = self.facts.look(|document| {
                let labels = workers.get(name).map(|live| &live.heartbeat.labels);
                labels.map_or_else(String::new, |labels| rack_of(labels, document.workers.get(name)))
            });
            let mut roll_outs = locked(&self.roll_outs);
            let fetching = &fetching[..fetching.len().min(MOST_FETCHED)];
            let at = |place: &str| {
                workers.iter().find(|(_, live)| place_of(live) == Some(place)).map(|(name, _)| name.clone())
            };
            roll_outs.told((name, &rack), fetching, at, now);
            let is_alive = |name: &str| workers.get(name).is_some_and(|live| live.is_alive);
            roll_outs.tidy(|worker, digest| holds(&workers, worker, digest), is_alive, now);
            roll_outs.finished(|worker, digest| holds(&workers, worker, digest), now)
        };
        for (digest, roll_out) in finished.iter().filter(|(_, of)| of.workers.len() > 1) {
            self.tell_rolled_out(digest, roll_out);
        }
    }

    fn tell_rolled_out(&self, digest: &str, roll_out: &RollOut) {
        let file = self.facts.look(|document| {
            let mut files = document.runs.iter().flat_map(|(_, run)| &run.bundle.files);
            files.find(|file| file.digest == digest).cloned()
        });
        let Some(file) = file.filter(|file| file.bytes >= LARGE) else { return };
        let (workers, racks, copies) = (roll_out.workers.len(), roll_out.racks.len(), roll_out.copies);
        let racks = if racks == 1 { "1 rack".to_owned() } else { format!("{racks} racks") };
        let copies = if copies == 1 { "1 copy".to_owned() } else { format!("{copies} copies") };
        let text = format!(
            "`{}` ({}) has reached {workers} workers of {racks} after {:.1} s; {copies} came from outside the racks",
            file.path,
            bytes(file.bytes),
            roll_out.took().as_secs_f64()
        );
        self.tell("rolled_out", None, None, &text);
    }

    /// Files of a run that its workers are fetching now.
    pub(super) fn fetching_of(&self, run: &str) -> Vec<FetchView> {
        let roll_outs = locked(&self.roll_outs);
        if roll_outs.0.values().all(|of| of.takers.is_empty()) {
            return Vec::new();
        }
        self.facts.look(|document| {
            let Some(run) = document.runs.get(run).filter(|run| !run.state.is_over()) else {
                return Vec::new();
            };
            let next = run.next.as_ref().map(|next| &next.roles);
            let roles = || run.roles.values().chain(next.into_iter().flat_map(BTreeMap::values));
            let is_of_run = |taker: &&Taker| roles().any(|role| role.worker.as_ref() == Some(&taker.worker));
            let mut views = Vec::new();
            for file in &run.bundle.files {
                let takers = roll_outs.0.get(&file.digest).into_iter().flat_map(|of| &of.takers);
                views.extend(takers.filter(is_of_run).map(|taker| FetchView {
                    worker: taker.worker.clone(),
                    path: file.path.clone(),
                    bytes: taker.bytes,
                    size: file.bytes,
                    from: match &taker.from {
                        Origin::Worker(name) => Some(name.clone()),
                        Origin::Controller | Origin::Store => None,
                    },
                }));
            }
            views
        })
    }
}

pub(super) async fn source(
    State(shared): State<Arc<Shared>>,
    Path(digest): Path<String>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(request): Json<SourceRequest>,
) -> Answer<Source> {
    blocking(&shared, move |shared| {
        let (name, _) = worker(shared, &peer)?;
        Ok::<_, No>(Json(shared.source(&digest, &name, &request.failed)))
    })
    .await
}
