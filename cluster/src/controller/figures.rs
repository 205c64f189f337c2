//! Figures of a controller's runs, sampled several times a second.
use super::answering::{Answer, asked, none};
use super::measured_links::{RunTraffic, Sent, Traffic};
use super::{Shared, locked};
use crate::api::{HEARTBEAT_MILLISECONDS, Myself, RunFigures};
use crate::clock::instant;
use crate::facts::{LastFigures, WorkerFacts};
use crate::replanning::Late;
use axum::Json;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::HeaderMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_app::metrics::ObservedRun;
use tidemill_app::run_figures::{RunPlace, Watched};
use tidemill_engine::Observer;
use tidemill_http::server::Peer;
use tidemill_identity::Action;
use tidemill_spec::plan::Plan;
use tidemill_spec::workflow::Slo;

/// Interval of looks at runs.
const LOOK: Duration = Duration::from_millis(200);
/// Interval of looks at the traffic between workers.
const TRAFFIC: Duration = Duration::from_secs(1);
/// Interval of looks at what agents have counted.
const HINTS: Duration = Duration::from_millis(HEARTBEAT_MILLISECONDS);

/// The sampled runs, and the last figures of those that are over.
pub(crate) struct Watching {
    begun: Instant,
    live: BTreeMap<String, Watched>,
    last: BTreeMap<String, RunFigures>,
}

impl Watching {
    pub(crate) fn new() -> Self {
        Self { begun: instant(), live: BTreeMap::new(), last: BTreeMap::new() }
    }

    /// Seconds since this controller began.
    fn now(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }
}

/// Looks at all runs until the controller ends.
pub(super) fn watch(shared: &Arc<Shared>) {
    let (mut looked, mut hinted): (Option<Instant>, Option<Instant>) = (None, None);
    while !shared.is_ending() {
        let live: Vec<(String, Observer, Slo)> = {
            let runs = locked(&shared.runs);
            let live = runs
                .iter()
                .filter_map(|(name, live)| Some((name.clone(), live.observer.clone()?, live.levels.clone())));
            live.collect()
        };
        for (name, observer, levels) in live {
            let mut watching = locked(&shared.watching);
            let is_known = watching.live.get(&name).is_some_and(|known| known.is_of(&observer));
            if !is_known {
                watching.last.remove(&name);
                watching.live.insert(name.clone(), Watched::new(observer, &levels));
            }
            let now = watching.now();
            if let Some(watched) = watching.live.get_mut(&name) {
                watched.look(now);
            }
        }
        if looked.is_none_or(|at| at.elapsed() >= TRAFFIC) {
            looked = Some(instant());
            shared.look_at_traffic();
        }
        if hinted.is_none_or(|at| at.elapsed() >= HINTS) {
            hinted = Some(instant());
            shared.look_at_hints();
        }
        std::thread::park_timeout(LOOK);
    }
}

impl Shared {
    /// Returns the current or last figures of a run; none: there is no such run.
    pub(crate) fn figures(&self, name: &str) -> Option<RunFigures> {
        let place = self.place_of(name)?;
        let watching = locked(&self.watching);
        let seen = watching.live.get(name).map(|watched| watched.figures(name, &place.of));
        let seen = seen.or_else(|| watching.last.get(name).cloned());
        drop(watching);
        let mut figures = seen.unwrap_or_else(|| place.unseen(name));
        figures.state = place.of.state;
        figures.losses = self.losses_in_words(name);
        Some(figures)
    }

    /// Returns recent measurements of a run; nothing for one that has ended.
    pub(crate) fn late(&self, name: &str) -> Late {
        let watching = locked(&self.watching);
        let Some(watched) = watching.live.get(name) else { return Late::default() };
        Late { measured: watched.late().clone(), stages: watched.computed(), levels: watched.levels_now() }
    }

    /// Returns a run whose process on a worker was heard within this time: the paths of runs may work where that of heartbeats
    /// does not.
    pub(crate) fn heard_in_a_run(&self, worker: &str, within: Duration) -> Option<String> {
        let names: Vec<String> = locked(&self.watching).live.keys().cloned().collect();
        names.into_iter().find(|run| {
            let roles = self.facts.look(|document| {
                let roles = document.runs.get(run).map(|run| run.roles.iter()).into_iter().flatten();
                let here = roles.filter(|(_, role)| role.worker.as_deref() == Some(worker));
                here.map(|(name, _)| name.clone()).collect::<Vec<_>>()
            });
            let watching = locked(&self.watching);
            let watched = watching.live.get(run);
            let silence = |role: &String| watched.and_then(|watched| watched.silence(role));
            roles.iter().filter_map(silence).any(|time| time < within)
        })
    }

    /// Looks at what runs send between workers of the cluster.
    fn look_at_traffic(&self) {
        let names: Vec<String> = locked(&self.watching).live.keys().cloned().collect();
        let mut all = Vec::new();
        for run in names {
            let Some(place) = self.place_of(&run) else { continue };
            let watching = locked(&self.watching);
            let Some(watched) = watching.live.get(&run) else { continue };
            for link in watched.traffic() {
                let ends = place.of.places.get(&link.from_worker).zip(place.of.places.get(&link.to_worker));
                let Some((from, to)) = ends.filter(|(from, to)| from != to) else { continue };
                let sent =
                    Sent { bits_per_second: link.bytes_per_second * 8.0, is_waited_for: link.waiting > 0 };
                all.push(RunTraffic { run: run.clone(), from: from.clone(), to: to.clone(), sent });
            }
        }
        let places = match all.is_empty() {
            true => BTreeMap::new(),
            false => self.facts.look(|document| {
                let place = |facts: &WorkerFacts| (facts.tier.clone(), facts.location.clone());
                document.workers.iter().map(|(name, facts)| (name.clone(), place(facts))).collect()
            }),
        };
        self.sees_traffic(Traffic::new(all, places));
    }

    /// A run has come to an end of one of its tries: what was seen of it last is kept.
    pub(crate) fn seen_last(&self, name: &str) {
        let Some(place) = self.place_of(name) else { return };
        let mut watching = locked(&self.watching);
        let Some(mut watched) = watching.live.remove(name) else { return };
        watched.look_at_last(watching.now());
        let mut figures = watched.figures(name, &place.of);
        figures.cost.now = None;
        watching.last.insert(name.to_owned(), figures);
    }

    /// A run is removed.
    pub(crate) fn forget_figures(&self, name: &str) {
        let mut watching = locked(&self.watching);
        watching.live.remove(name);
        watching.last.remove(name);
    }

    #[cfg(test)]
    pub(crate) fn keep_figures(&self, name: &str) {
        let figures = self.place_of(name).map(|place| place.unseen(name));
        locked(&self.watching).last.extend(figures.map(|figures| (name.to_owned(), figures)));
    }

    #[cfg(test)]
    pub(crate) fn kept_figures(&self) -> usize {
        locked(&self.watching).last.len()
    }

    /// Returns the figures of the active runs.
    pub(crate) fn live_figures(&self) -> Vec<RunFigures> {
        let names: Vec<String> = locked(&self.watching).live.keys().cloned().collect();
        names.iter().filter_map(|name| self.figures(name)).collect()
    }

    /// Returns the active runs, for Prometheus.
    pub(crate) fn observed_runs(&self) -> Vec<ObservedRun> {
        let names: Vec<String> = locked(&self.watching).live.keys().cloned().collect();
        let observed = names.into_iter().filter_map(|name| {
            let place = self.place_of(&name)?;
            let watching = locked(&self.watching);
            Some(watching.live.get(&name)?.observed(Some(&name), &place.of))
        });
        observed.collect()
    }

    fn place_of(&self, name: &str) -> Option<Place> {
        let alive = self.alive_workers();
        let mut place = self.facts.look(|document| {
            let run = document.runs.get(name)?;
            let places = run.roles.iter().filter_map(|(role, of)| Some((role.clone(), of.worker.clone()?)));
            let of = RunPlace {
                workflow: run.workflow.clone(),
                state: super::waiting::state_now(document, run, &alive),
                places: places.collect(),
                processors: BTreeMap::new(),
            };
            Some(Place { of, plan: run.plan.clone(), last: run.last.unwrap_or_default() })
        })?;
        let workers = locked(&self.workers);
        let alive = workers.iter().filter(|(_, worker)| worker.is_alive);
        place.of.processors =
            alive.map(|(name, worker)| (name.clone(), worker.heartbeat.capacity.processors)).collect();
        Some(place)
    }
}

/// The place of a run, and the facts that need no look.
struct Place {
    of: RunPlace,
    plan: Plan,
    last: LastFigures,
}

impl Place {
    /// Figures of a run that has not started, or ended before this controller began.
    fn unseen(&self, name: &str) -> RunFigures {
        let LastFigures { emitted, arrived, dead_letters, restarts, seconds } = self.last;
        let unseen = RunFigures::unseen(name, &self.of, &self.plan);
        RunFigures { emitted, arrived, dead_letters, restarts, seconds, ..unseen }
    }
}

/// `GET /v1/runs/NAME/figures`.
pub(super) async fn figures(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<RunFigures> {
    asked(shared, (who, headers), Action::View, move |shared, _| {
        shared.figures(&name).ok_or_else(|| none("run", &name))
    })
    .await
}

/// `GET /v1/me`.
pub(super) async fn me(
    State(shared): State<Arc<Shared>>,
    _: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<Myself> {
    super::answering::blocking(&shared, move |shared| {
        let person = super::answering::known_person(shared, &headers, Action::View)?;
        Ok(Json(Myself { name: person.name, role: person.role.to_string() }))
    })
    .await
}
