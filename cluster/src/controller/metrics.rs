//! Metrics of the controller and of all runs.
use super::answering::{No, blocking, broken, known_person};
use super::{Shared, locked};
use crate::api::RunState;
use crate::metrics as of;
use axum::extract::{ConnectInfo, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE as CONTENT;
use axum::response::{IntoResponse, Response};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tidemill_app::metrics::{self, CONTENT_TYPE, Collector, Labels, RunsCollector, Values};
use tidemill_http::server::Peer;
use tidemill_identity::{Action, CertificateFacts, Timestamp};

/// Counters of this process.
#[derive(Default)]
pub(crate) struct Counts {
    heartbeats: AtomicU64,
    events: Mutex<BTreeMap<String, u64>>,
}

impl Counts {
    pub(crate) fn heartbeat(&self) {
        self.heartbeats.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn event(&self, kind: &str) {
        *locked(&self.events).entry(kind.to_owned()).or_default() += 1;
    }
}

/// All metrics, as text.
pub(super) fn text(shared: &Arc<Shared>) -> Result<String, fmt::Error> {
    let mut values = Values::of_process();
    own(shared, &mut values);
    workers(shared, &mut values);
    runs(shared, &mut values);
    jobs(shared, &mut values);
    let observed = Arc::downgrade(shared);
    let runs = move || observed.upgrade().map_or_else(Vec::new, |shared| shared.observed_runs());
    metrics::text([Box::new(RunsCollector(runs)) as Box<dyn Collector>, Box::new(values)])
}

fn seconds_to(expires: Timestamp) -> f64 {
    let now = Timestamp::now();
    expires.since(now).as_secs_f64() - now.since(expires).as_secs_f64()
}

fn own(shared: &Shared, values: &mut Values) {
    values.add(&of::CONTROLLER_INFO, vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0);
    values.add(&of::HEARTBEATS, Labels::new(), shared.counts.heartbeats.load(Ordering::Relaxed) as f64);
    for (kind, count) in locked(&shared.counts.events).iter() {
        values.add(&of::EVENTS, vec![("kind", kind.clone())], *count as f64);
    }
    if let Ok(facts) = CertificateFacts::of_der(&shared.credentials.certificate()) {
        values.add(&of::CERTIFICATE, Labels::new(), seconds_to(facts.not_after));
    }
    let (files, bytes) = of::files(&shared.folder.join("blobs"));
    values.add(&of::FILES, Labels::new(), files);
    values.add(&of::FILE_BYTES, Labels::new(), bytes);
}

fn jobs(shared: &Shared, values: &mut Values) {
    let (counts, preemptions) = shared.job_counts();
    for (state, count) in counts {
        values.add(&of::JOBS, vec![("state", state.to_string())], count as f64);
    }
    values.add(&of::PREEMPTIONS, Labels::new(), preemptions as f64);
}

fn workers(shared: &Shared, values: &mut Values) {
    let views = shared.worker_views();
    let certificates: BTreeMap<String, Timestamp> = {
        let workers = locked(&shared.workers);
        workers.iter().map(|(name, worker)| (name.clone(), worker.certificate_ends)).collect()
    };
    for state in ["alive", "drained", "lost"] {
        let count = views.iter().filter(|view| {
            let is = match (view.is_alive, view.is_drained) {
                (false, _) => "lost",
                (true, true) => "drained",
                (true, false) => "alive",
            };
            is == state
        });
        values.add(&of::WORKERS, vec![("state", state.to_owned())], count.count() as f64);
    }
    for view in &views {
        let mut labels = vec![("cluster_worker", view.name.clone())];
        labels.extend(view.tier.clone().map(|tier| ("tier", tier)));
        values.add(&of::WORKER_ALIVE, labels.clone(), f64::from(u8::from(view.is_alive)));
        if let Some(silent) = view.silent_milliseconds {
            values.add(&of::WORKER_SILENT, labels.clone(), silent as f64 / 1e3);
        }
        if let Some(expires) = certificates.get(&view.name) {
            values.add(&of::WORKER_CERTIFICATE, labels, seconds_to(*expires));
        }
    }
}

fn runs(shared: &Shared, values: &mut Values) {
    let alive = shared.alive_workers();
    let states: Vec<(String, RunState)> = shared.facts.look(|document| {
        let state = |run| super::waiting::state_now(document, run, &alive);
        document.runs.iter().map(|(name, run)| (name.clone(), state(run))).collect()
    });
    let all = [
        RunState::Starting,
        RunState::Running,
        RunState::Waiting,
        RunState::Complete,
        RunState::Failed,
        RunState::Cancelled,
    ];
    for state in all {
        let count = states.iter().filter(|(_, of)| *of == state).count();
        values.add(&of::RUNS, vec![("state", state.to_string())], count as f64);
    }
    for (name, _) in states.iter().filter(|(_, state)| !state.is_over()) {
        losses(shared, name, values);
        let Some(figures) = shared.figures(name) else { continue };
        let labels = || vec![("workflow", figures.workflow.clone()), ("run", name.clone())];
        for (basis, cost) in [("now", figures.cost.now), ("predicted", figures.cost.predicted)] {
            let mut labels = labels();
            labels.push(("basis", basis.to_owned()));
            cost.into_iter().for_each(|cost| values.add(&of::COST, labels.clone(), cost));
        }
        for level in &figures.levels {
            let mut labels = labels();
            labels.push(("slo", level.level.clone()));
            if let Some(is_missed) = level.is_missed {
                values.add(&of::MISSED, labels.clone(), f64::from(u8::from(is_missed)));
            }
            let unit = if level.percentile.is_some() { 1e-3 } else { 1.0 };
            labels.extend(level.percentile.map(|percentile| ("percentile", format!("p{percentile}"))));
            if let Some(measured) = level.measured {
                values.add(&of::MEASURED, labels, measured * unit);
            }
        }
        for stage in &figures.stages {
            let mut labels = labels();
            labels.extend([
                ("operator", stage.operator.clone()),
                ("stage", stage.stage.clone()),
                ("worker", stage.worker.clone()),
            ]);
            labels.extend(stage.cluster_worker.clone().map(|worker| ("cluster_worker", worker)));
            if let Some(busy) = stage.busy {
                values.add(&of::BUSY, labels, busy);
            }
        }
    }
}

/// Lost workers of a run, and how many more may be.
fn losses(shared: &Shared, name: &str, values: &mut Values) {
    let Some((workflow, lost, seconds, covered)) = shared.facts.look(|document| {
        let run = document.runs.get(name)?;
        let seconds = run.losses().last().and_then(|loss| loss.seconds);
        Some((run.workflow.clone(), run.losses().len(), seconds, run.losses_covered()?))
    }) else {
        return;
    };
    let labels = || vec![("workflow", workflow.clone()), ("run", name.to_owned())];
    values.add(&of::LOST_WORKERS, labels(), lost as f64);
    values.add(&of::LOSSES_COVERED, labels(), f64::from(covered));
    seconds.into_iter().for_each(|seconds| values.add(&of::LOSS_SECONDS, labels(), seconds));
}

/// `GET /metrics`.
pub(super) async fn served(
    State(shared): State<Arc<Shared>>,
    _: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Result<Response, No> {
    blocking(&shared, move |shared| {
        known_person(shared, &headers, Action::View)?;
        let text = text(shared).map_err(|error| broken(&error))?;
        Ok(([(CONTENT, CONTENT_TYPE)], text).into_response())
    })
    .await
}
