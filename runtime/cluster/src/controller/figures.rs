//! What runs do now: their counters are looked at once a second, and what changed since some seconds ago is told as rates,
//! times and shares.
mod change;
mod watched;

use super::server::{Answer, asked, none};
use super::tls::Peer;
use super::ways::{RunTraffic, Sent, Traffic};
use super::{Shared, locked};
use crate::api::RunState;
use crate::facts::{LastFigures, WorkerFacts};
use crate::figures::{CostFigures, Myself, RoleFigures, RunFigures, StageFigures, Times};
use crate::replanning::Late;
use axum::Json;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::HeaderMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_app::metrics::ObservedRun;
use tidemill_engine::Observer;
use tidemill_identity::Action;
use tidemill_spec::plan::{Plan, PlanWorker, Stage};
use tidemill_spec::workflow::Slo;
use watched::Watched;

/// How often runs are looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How often it is looked what they send between workers.
const TRAFFIC: Duration = Duration::from_secs(1);

#[expect(clippy::disallowed_methods, reason = "rates are of real time")]
fn instant() -> Instant {
    Instant::now()
}

/// The runs that are looked at, and what was seen last of those that are over.
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
    let mut looked: Option<Instant> = None;
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
            let is_known = watching.live.get(&name).is_some_and(|known| known.observer.is_of(&observer));
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
        std::thread::park_timeout(LOOK);
    }
}

impl Shared {
    /// What a run does now, or did last; none: there is no such run.
    pub(crate) fn figures(&self, name: &str) -> Option<RunFigures> {
        let place = self.place_of(name)?;
        let watching = locked(&self.watching);
        let seen = watching.live.get(name).map(|watched| watched.tell(name, &place));
        let seen = seen.or_else(|| watching.last.get(name).cloned());
        drop(watching);
        let mut figures = seen.unwrap_or_else(|| unseen(name, &place));
        figures.state = place.state;
        Some(figures)
    }

    /// What was measured of a run of late; nothing of one that does not go on.
    pub(crate) fn late(&self, name: &str) -> Late {
        let watching = locked(&self.watching);
        let Some(watched) = watching.live.get(name) else { return Late::default() };
        Late {
            measured: watched.slo.late().clone(),
            stages: watched.computed(),
            levels: watched.levels_now(),
        }
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
                let ends = place.places.get(&link.from_worker).zip(place.places.get(&link.to_worker));
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
        let mut figures = watched.tell(name, &place);
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
        let figures = self.place_of(name).map(|place| unseen(name, &place));
        locked(&self.watching).last.extend(figures.map(|figures| (name.to_owned(), figures)));
    }

    #[cfg(test)]
    pub(crate) fn kept_figures(&self) -> usize {
        locked(&self.watching).last.len()
    }

    /// The runs that go on, for Prometheus.
    pub(crate) fn observed_runs(&self) -> Vec<ObservedRun> {
        let names: Vec<String> = locked(&self.watching).live.keys().cloned().collect();
        let observed = names.into_iter().filter_map(|name| {
            let place = self.place_of(&name)?;
            let watching = locked(&self.watching);
            let watched = watching.live.get(&name)?;
            Some(ObservedRun {
                workflow: place.workflow,
                run: Some(name.clone()),
                observer: watched.observer.clone(),
                levels: watched.slo.levels().clone(),
                violations: watched.slo.violations(),
                places: place.places,
            })
        });
        observed.collect()
    }

    fn place_of(&self, name: &str) -> Option<Place> {
        let alive = self.alive_workers();
        let mut place = self.facts.look(|document| {
            let run = document.runs.get(name)?;
            let places = run.roles.iter().filter_map(|(role, of)| Some((role.clone(), of.worker.clone()?)));
            Some(Place {
                workflow: run.workflow.clone(),
                state: super::waiting::state_now(document, run, &alive),
                plan: run.plan.clone(),
                places: places.collect(),
                processors: BTreeMap::new(),
                last: run.last.unwrap_or_default(),
            })
        })?;
        let workers = locked(&self.workers);
        let alive = workers.iter().filter(|(_, worker)| worker.is_alive);
        place.processors =
            alive.map(|(name, worker)| (name.clone(), worker.heartbeat.capacity.processors)).collect();
        Some(place)
    }
}

/// Where a run is, and what is known of it without looking.
struct Place {
    workflow: String,
    state: RunState,
    plan: Plan,
    /// By worker of the plan: that of the cluster.
    places: BTreeMap<String, String>,
    /// Of the workers of the cluster that are there.
    processors: BTreeMap<String, f64>,
    last: LastFigures,
}

/// Nobody has looked at it: it has not begun, or ended before this controller began.
fn unseen(name: &str, place: &Place) -> RunFigures {
    let last = place.last;
    let predicted = predicted_cost(&place.plan);
    RunFigures {
        run: name.to_owned(),
        workflow: place.workflow.clone(),
        state: place.state,
        taken: None,
        seconds: last.seconds,
        window_seconds: 0.0,
        plan_version: place.plan.plan_version,
        emitted: last.emitted,
        arrived: last.arrived,
        dead_letters: last.dead_letters,
        restarts: last.restarts,
        limit: None,
        stages: place.plan.stages.iter().map(|stage| still(stage, place)).collect(),
        sources: Vec::new(),
        sinks: Vec::new(),
        links: Vec::new(),
        workers: place.plan.workers.iter().map(|worker| role(worker, place, 0.0)).collect(),
        levels: Vec::new(),
        cost: CostFigures { predicted, ..CostFigures::default() },
    }
}

/// A stage of which nothing was counted.
fn still(stage: &Stage, place: &Place) -> StageFigures {
    StageFigures {
        stage: stage.id.clone(),
        operator: stage.operator.clone(),
        variant: stage.variant.clone(),
        worker: stage.worker.clone(),
        cluster_worker: place.places.get(&stage.worker).cloned(),
        in_per_second: 0.0,
        out_per_second: 0.0,
        records_in: 0,
        records_out: 0,
        queue: Times::default(),
        compute: Times::default(),
        transfer: Times::default(),
        busy: None,
        waiting: 0,
        drops: BTreeMap::new(),
        dead_letters: BTreeMap::new(),
        restarts: 0,
        state_bytes: 0,
    }
}

fn role(worker: &PlanWorker, place: &Place, processors: f64) -> RoleFigures {
    let cluster_worker = place.places.get(&worker.id).cloned();
    let of = cluster_worker.as_ref().and_then(|name| place.processors.get(name)).filter(|of| **of > 0.0);
    let predicted = place.plan.predicted.as_ref().and_then(|predicted| predicted.utilization.get(&worker.id));
    RoleFigures {
        worker: worker.id.clone(),
        tier: worker.tier.clone(),
        worker_type: worker.worker_type.clone(),
        price: worker.price.map(|price| price.0),
        processors,
        busy_percent: of.map(|of| processors / of * 100.0),
        predicted_percent: predicted.map(|percent| percent.0),
        cluster_worker,
    }
}

fn predicted_cost(plan: &Plan) -> Option<f64> {
    Some(plan.predicted.as_ref()?.cost.as_ref()?.value.0)
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
    super::server::blocking(&shared, move |shared| {
        let person = super::server::known_person(shared, &headers, Action::View)?;
        Ok(Json(Myself { name: person.name, role: person.role.to_string() }))
    })
    .await
}
