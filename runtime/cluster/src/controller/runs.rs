//! Runs: submitted, told about, cancelled, taken over.
use super::{Shared, drive, locked};
use crate::api::{OutputView, RunState, RunView, Submission};
use crate::blobs;
use crate::facts::{FactsError, LastFigures, Role, RunFacts};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use tidemill_engine::{Observer, Stopper};
use tidemill_spec::plan::Plan;

/// Letters of the name of a run.
const NAME_LENGTH: usize = 63;

/// What the workers of a run are given.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) plan: Plan,
    pub(crate) rates: BTreeMap<String, Option<f64>>,
}

/// A run that this process drives.
#[derive(Default)]
pub(crate) struct LiveRun {
    pub(crate) job: Option<Job>,
    /// Roles whose processes are wanted.
    pub(crate) wanted: BTreeMap<String, bool>,
    /// Roles that were given to another worker since they were launched.
    pub(crate) moved: BTreeSet<String>,
    pub(crate) stopper: Option<Stopper>,
    pub(crate) observer: Option<Observer>,
    pub(crate) is_cancelled: bool,
    pub(crate) outputs: Vec<(String, String, PathBuf)>,
    pub(crate) thread: Option<JoinHandle<()>>,
}

/// Why a run is not begun.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubmitError {
    #[error("{0}")]
    Wrong(String),
    #[error("run `{0}` is another one: choose another name, or cancel and remove that one")]
    Taken(String),
    #[error(transparent)]
    Facts(#[from] FactsError),
}

/// Takes over the runs that are to go on.
pub(super) fn resume(shared: &Arc<Shared>) {
    let names: Vec<String> = shared.facts.look(|document| {
        let running = document.runs.iter().filter(|(_, run)| !run.state.is_over());
        running.map(|(name, _)| name.clone()).collect()
    });
    for name in names {
        drive::begin(shared, &name);
    }
}

/// Leaves all runs to the next controller.
pub(super) fn step_down(shared: &Arc<Shared>) {
    let threads: Vec<JoinHandle<()>> = {
        let mut runs = locked(&shared.runs);
        runs.values().filter_map(|live| live.stopper.as_ref()).for_each(Stopper::step_down);
        runs.values_mut().filter_map(|live| live.thread.take()).collect()
    };
    for thread in threads {
        let _ = thread.join(); // what it panicked of was told
    }
}

impl Shared {
    pub(crate) fn run_folder(&self, run: &str) -> PathBuf {
        self.folder.join("runs").join(run)
    }

    /// Begins a run, or finds it begun.
    pub(crate) fn submit(self: &Arc<Self>, submission: Submission, by: &str) -> Result<RunView, SubmitError> {
        let Submission { name, bundle, plan, records } = &submission;
        let is_name =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        if name.is_empty() || name.len() > NAME_LENGTH || !name.bytes().all(is_name) {
            let text = format!(
                "`{name}` is no name for a run: write up to {NAME_LENGTH} lower-case letters, digits, `-` and `_`"
            );
            return Err(SubmitError::Wrong(text));
        }
        let digest = serde_json::to_vec(&submission)
            .map(|bytes| blobs::digest(&bytes))
            .map_err(|error| SubmitError::Wrong(error.to_string()))?;
        let known = self.facts.look(|document| document.runs.get(name).map(|run| run.digest.clone()));
        match known {
            Some(known) if known == digest => {
                return self.run_view(name).ok_or_else(|| SubmitError::Taken(name.clone()));
            }
            Some(_) => return Err(SubmitError::Taken(name.clone())),
            None => {}
        }
        let judged = drive::judge(self, name, bundle, plan.clone()).map_err(SubmitError::Wrong)?;
        let secret = tidemill_app::processes::secret_number()
            .map_err(|error| SubmitError::Wrong(format!("/dev/urandom: {error}")))?;
        let roles = judged.roles.iter().map(|(role, is_bound)| {
            (role.clone(), Role { worker: None, generation: 0, is_bound: *is_bound })
        });
        let run = RunFacts {
            workflow: judged.workflow,
            bundle: bundle.clone(),
            plan: judged.plan,
            records: *records,
            digest,
            secret: format!("{secret:032x}"),
            submitted: tidemill_app::machine::now(),
            submitted_by: by.to_owned(),
            state: RunState::Starting,
            reason: None,
            roles: roles.collect(),
            last: None,
        };
        let is_new = self.facts.change(|document| {
            let is_new = !document.runs.contains_key(name);
            document.runs.entry(name.clone()).or_insert(run);
            is_new
        })?;
        if is_new {
            self.tell("run_submitted", Some(name), None, &format!("{by} submits run {name}"));
            drive::begin(self, name);
        }
        self.run_view(name).ok_or_else(|| SubmitError::Taken(name.clone()))
    }

    /// Ends a run; none: there is no such run.
    pub(crate) fn cancel(&self, name: &str, by: &str) -> Result<Option<RunView>, FactsError> {
        let Some(state) = self.facts.look(|document| document.runs.get(name).map(|run| run.state)) else {
            return Ok(None);
        };
        if !state.is_over() {
            self.tell("run_cancelled", Some(name), None, &format!("{by} cancels run {name}"));
            if let Some(live) = locked(&self.runs).get_mut(name) {
                live.is_cancelled = true;
                if let Some(stopper) = &live.stopper {
                    stopper.abort();
                }
                if let Some(thread) = &live.thread {
                    thread.thread().unpark();
                }
            }
        }
        Ok(self.run_view(name))
    }

    /// Sets how far a run is.
    pub(crate) fn set_state(
        &self,
        name: &str,
        state: RunState,
        reason: Option<String>,
        last: Option<LastFigures>,
    ) {
        let changed = self.facts.change(|document| {
            let Some(run) = document.runs.get_mut(name) else { return false };
            let changed = run.state != state || run.reason != reason;
            (run.state, run.reason) = (state, reason.clone());
            run.last = last.or(run.last);
            changed
        });
        match changed {
            Ok(true) => {
                let why = reason.map_or_else(String::new, |reason| format!(": {reason}"));
                self.tell(&format!("run_{state}"), Some(name), None, &format!("run {name} is {state}{why}"));
            }
            Ok(false) => {}
            Err(error) => tracing::error!("{error}"),
        }
    }

    /// A run as people see it.
    pub(crate) fn run_view(&self, name: &str) -> Option<RunView> {
        let (observer, outputs) = {
            let runs = locked(&self.runs);
            let live = runs.get(name);
            (
                live.and_then(|live| live.observer.clone()),
                live.map_or_else(Vec::new, |live| live.outputs.clone()),
            )
        };
        let figures = observer.map(|observer| figures(&observer));
        self.facts.look(|document| {
            let run = document.runs.get(name)?;
            let figures = figures.or(run.last).unwrap_or_default();
            let placement: BTreeMap<_, _> =
                run.roles.iter().map(|(role, of)| (role.clone(), of.worker.clone())).collect();
            let outputs = outputs.iter().map(|(sink, role, path)| OutputView {
                sink: sink.clone(),
                worker: placement.get(role).cloned().flatten(),
                path: path.display().to_string(),
            });
            Some(RunView {
                name: name.to_owned(),
                workflow: run.workflow.clone(),
                state: run.state,
                reason: run.reason.clone(),
                submitted: run.submitted.clone(),
                emitted: figures.emitted,
                arrived: figures.arrived,
                dead_letters: figures.dead_letters,
                restarts: figures.restarts,
                seconds: figures.seconds,
                outputs: outputs.collect(),
                placement,
            })
        })
    }

    /// All runs.
    pub(crate) fn run_views(&self) -> Vec<RunView> {
        let names: Vec<String> = self.facts.look(|document| document.runs.keys().cloned().collect());
        names.iter().filter_map(|name| self.run_view(name)).collect()
    }
}

/// What a run has done so far.
pub(super) fn figures(observer: &Observer) -> LastFigures {
    let report = observer.report();
    let progress = observer.progress();
    LastFigures {
        emitted: progress.emitted,
        arrived: progress.arrived,
        dead_letters: progress.dead_letters,
        restarts: report.restarts,
        seconds: progress.seconds,
    }
}
