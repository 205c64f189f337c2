//! Submits, describes, cancels and resumes runs.
use super::changing::{self, Switch};
use super::losses::Lost;
use super::planning::{PlanningRequest, mark_of};
use super::removal::{RemovalError, trial_of};
use super::{Shared, drive, locked, waiting};
use crate::api::{CutView, LevelView, OutputView, Replan, RunState, RunView, StandInView, Submission};
use crate::blobs;
use crate::facts::{FactsError, LastFigures, PlannedFacts, RunFacts};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use tidemill_engine::{Observer, Stopper};
use tidemill_identity::Timestamp;
use tidemill_spec::plan::Plan;
use tidemill_spec::workflow::Slo;

/// Largest length of a run's name.
const NAME_LENGTH: usize = 63;

/// Input of a run's workers.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) plan: Plan,
    pub(crate) rates: BTreeMap<String, Option<f64>>,
    /// Digest of both: a plan is long, and workers compare twice a second.
    pub(crate) digest: String,
}

impl Job {
    pub(crate) fn new(plan: Plan, rates: BTreeMap<String, Option<f64>>) -> Self {
        // Both are JSON. An empty digest would be sent again each time.
        let digest =
            serde_json::to_vec(&(&plan, &rates)).map(|bytes| blobs::digest(&bytes)).unwrap_or_default();
        Self { plan, rates, digest }
    }
}

/// The processes of one plan of a run.
#[derive(Default)]
pub(crate) struct LiveSet {
    pub(crate) job: Option<Job>,
    /// Roles whose processes are wanted.
    pub(crate) wanted: BTreeMap<String, bool>,
    /// Roles that moved to another worker since they were launched.
    pub(crate) moved: BTreeSet<String>,
}

/// A run that this process drives.
#[derive(Default)]
pub(crate) struct LiveRun {
    /// By version of the plan: the running one, and one that is being prepared.
    pub(crate) sets: BTreeMap<u64, LiveSet>,
    /// A prepared plan for which the present one is being ended.
    pub(crate) switch: Option<Box<Switch>>,
    /// Wanted processes are known; until then none is ended.
    pub(crate) is_settled: bool,
    pub(crate) stopper: Option<Stopper>,
    pub(crate) observer: Option<Observer>,
    /// Records of its sinks can be looked at.
    pub(crate) is_sampled: bool,
    /// The service levels that count.
    pub(crate) levels: Slo,
    pub(crate) is_cancelled: bool,
    pub(crate) outputs: Vec<(String, String, PathBuf)>,
    pub(crate) thread: Option<JoinHandle<()>>,
    /// Edges that are cut or deliver stored records.
    pub(crate) cuts: Vec<CutView>,
    /// Stages that answer in place of others.
    pub(crate) stand_ins: Vec<StandInView>,
    /// Workers of its plan that were lost, and since when, while it changes to the plan without them.
    pub(crate) lost: Lost,
    /// Whether its thread waits for workers and may be woken.
    pub(crate) waits_for_workers: bool,
}

/// Reason for a rejected submission.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubmitError {
    #[error("{0}")]
    Wrong(String),
    #[error("run `{0}` is another submission: choose another name (`--as`), or cancel and remove that run")]
    Taken(String),
    #[error(
        "run `{0}` is this submission, and it was {1}: nothing to start. `tidemill submit --again`, or \
         `tidemill up --again`, removes it and starts it again; `--as NAME` starts another run and keeps \
         it"
    )]
    Ended(String, RunState),
    #[error(
        "run `{0}` has not ended: another run of its name cannot start. Cancel it first, or choose another \
         name (`--as`)"
    )]
    GoesOn(String),
    #[error("run `{0}` was removed during the submission: submit it again")]
    Removed(String),
    #[error(transparent)]
    Removal(#[from] RemovalError),
    #[error(transparent)]
    Facts(#[from] FactsError),
}

/// Outcome of a submission.
enum Fate {
    /// The run exists already.
    There(Box<RunView>),
    Begins,
    /// It replaces a finished run of its name.
    Replaces,
}

/// Takes over open runs.
pub(super) fn resume(shared: &Arc<Shared>) {
    changing::give_up_all(shared);
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
        thread.thread().unpark();
        let _ = thread.join(); // what it panicked of was told
    }
}

impl Shared {
    pub(crate) fn run_folder(&self, run: &str) -> PathBuf {
        self.folder.join("runs").join(run)
    }

    /// Starts a run, or returns the existing one.
    pub(crate) fn submit(self: &Arc<Self>, submission: Submission, by: &str) -> Result<RunView, SubmitError> {
        let Submission { name, bundle, plan, records, planning, replan, quota, again, .. } = &submission;
        let is_name =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        if name.is_empty() || name.len() > NAME_LENGTH || !name.bytes().all(is_name) {
            let text = format!(
                "`{name}` is not a name for a run: write up to {NAME_LENGTH} lower-case letters, digits, `-` and `_`"
            );
            return Err(SubmitError::Wrong(text));
        }
        // The origin of its files, a replaced run and later plans do not make it another run.
        let own = Submission { sent_from: None, again: false, ..submission.clone() };
        let own = match &own.plan {
            Some(_) => Submission { planning: None, replan: Replan::default(), ..own },
            None => own,
        };
        let digest = serde_json::to_vec(&own)
            .map(|bytes| blobs::digest(&bytes))
            .map_err(|error| SubmitError::Wrong(error.to_string()))?;
        if let Fate::There(view) = self.fate(name, &digest, *again)? {
            return Ok(*view);
        }
        // Plan submissions one by one: each uses the capacity that earlier ones leave.
        let _alone = locked(&self.planning);
        // Another submission of this name may have come first: lay out nothing in its folder, which may be removed at any time.
        let replaces = match self.fate(name, &digest, *again)? {
            Fate::There(view) => return Ok(*view),
            Fate::Begins => false,
            Fate::Replaces => true,
        };
        // Keep the replaced run until this one is checked, in a folder beside it.
        let place = if replaces { trial_of(name) } else { name.clone() };
        let begun = self.begin_planned(&submission, &place);
        // Rejected submissions and trials leave no files.
        let is_refused = || begun.is_err() && !self.facts.look(|document| document.runs.contains_key(name));
        if replaces || is_refused() {
            let _ = std::fs::remove_dir_all(self.run_folder(&place));
        }
        let sent_from = submission.sent_from.as_deref();
        let wrong = |place: &str, text: &str| SubmitError::Wrong(self.as_sent(place, sent_from, text));
        let (mut judged, planned) = begun.map_err(|text| wrong(&place, &text))?;
        if replaces {
            match self.remove_run(name, by, ", for another run of its name") {
                Ok(_) | Err(RemovalError::NoSuch(_)) => {} // somebody may have removed it meanwhile
                Err(error) => return Err(error.into()),
            }
            let plan = planning.as_ref().map(|_| judged.plan.clone()).or_else(|| plan.clone());
            judged = drive::judge(self, name, bundle, plan).map_err(|text| {
                // The run to replace is gone, so the files laid out here belong to no run.
                let _ = std::fs::remove_dir_all(self.run_folder(name));
                wrong(name, &text)
            })?;
        }
        let explanation = planned.explanation.first().cloned();
        let secret = tidemill_app::processes::secret_number()
            .map_err(|error| SubmitError::Wrong(format!("/dev/urandom: {error}")))?;
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
            roles: judged.roles,
            last: None,
            planned: PlannedFacts { planning: planning.clone(), replan: *replan, quota: *quota, ..planned },
            plan_version: 1,
            changes: Vec::new(),
            next: None,
            former: None,
            rates: None,
            before: LastFigures::default(),
            outputs: judged.outputs,
            streams: judged.streams,
            promises: judged.promises,
            sent_from: submission.sent_from.clone(),
            missed: BTreeSet::new(),
            ended: None,
            is_cancelled: false,
            survived: None,
        };
        let is_new = self.facts.change(|document| {
            let is_new = !document.runs.contains_key(name);
            document.runs.or_insert(name, run);
            is_new
        })?;
        if is_new {
            self.tell("run_submitted", Some(name), None, &format!("{by} submits run {name}"));
            if let Some(explanation) = explanation {
                self.tell("run_planned", Some(name), None, &format!("run {name}: {explanation}"));
            }
            drive::begin(self, name);
        }
        self.run_view(name).ok_or_else(|| SubmitError::Removed(name.clone()))
    }

    /// Outcome of a submission, by the known run of its name.
    fn fate(&self, name: &str, digest: &str, again: bool) -> Result<Fate, SubmitError> {
        let known =
            self.facts.look(|document| document.runs.get(name).map(|run| (run.digest.clone(), run.state)));
        match known {
            Some((_, state)) if again && state.is_over() => Ok(Fate::Replaces),
            Some(_) if again => Err(SubmitError::GoesOn(name.to_owned())),
            Some((known, state @ (RunState::Failed | RunState::Cancelled))) if known == digest => {
                Err(SubmitError::Ended(name.to_owned(), state))
            }
            Some((known, _)) if known == digest => {
                let view = self.run_view(name).ok_or_else(|| SubmitError::Removed(name.to_owned()))?;
                Ok(Fate::There(Box::new(view)))
            }
            Some(_) => Err(SubmitError::Taken(name.to_owned())),
            None => Ok(Fate::Begins),
        }
    }

    /// Replaces the paths of the controller's copies by those of the user's files.
    fn as_sent(&self, name: &str, sent_from: Option<&str>, text: &str) -> String {
        let folder = self.run_folder(name);
        let files = folder.join("files").display().to_string();
        let text = match sent_from {
            Some(from) => text.replace(&files, from.trim_end_matches('/')),
            None => text.replace(&format!("{files}/"), ""),
        };
        text.replace(&format!("{}/", folder.join("planning").display()), "")
    }

    /// Plans a submission if requested, and checks it, in the folder of this name.
    fn begin_planned(
        &self,
        submission: &Submission,
        name: &str,
    ) -> Result<(drive::Judged, PlannedFacts), String> {
        let Submission { bundle, plan, planning, quota, .. } = submission;
        let Some(planning) = planning else {
            return Ok((drive::judge(self, name, bundle, plan.clone())?, PlannedFacts::default()));
        };
        drive::arrived(self, bundle.files.iter().chain(&planning.profiles).chain(&planning.infrastructure))?;
        let wish = PlanningRequest { name, bundle, planning, quota: *quota, pins: &BTreeMap::new() };
        let found = match plan {
            Some(plan) => self.given_run(&wish, plan)?,
            None => self.planned_run(&wish)?,
        };
        let judged = drive::judge(self, name, bundle, Some(found.plan))?;
        let uses = vec![(mark_of(&judged.plan), found.uses)];
        let (explanation, models) = (found.explanation, found.models);
        Ok((judged, PlannedFacts { explanation, uses, models, ..PlannedFacts::default() }))
    }

    /// Cancels a run; `None` if there is no such run.
    pub(crate) fn cancel(&self, name: &str, by: &str) -> Result<Option<RunView>, FactsError> {
        let Some(state) = self.facts.look(|document| document.runs.get(name).map(|run| run.state)) else {
            return Ok(None);
        };
        if !state.is_over() {
            self.tell("run_cancelled", Some(name), None, &format!("{by} cancels run {name}"));
            // The next leader has to know. End the run here even if that cannot be stored: the run may be what fills the disk.
            let kept = self.facts.change(|document| {
                document.runs.get_mut(name).into_iter().for_each(|run| run.is_cancelled = true);
            });
            if let Some(live) = locked(&self.runs).get_mut(name) {
                live.is_cancelled = true;
                if let Some(stopper) = &live.stopper {
                    stopper.abort();
                }
                if let Some(thread) = &live.thread {
                    thread.thread().unpark();
                }
            }
            kept?;
        }
        Ok(self.run_view(name))
    }

    /// Wakes runs that wait for workers. Runs that pause before another try continue to pause.
    pub(crate) fn wake_waiting(&self) {
        let runs = locked(&self.runs);
        let waiting = runs.values().filter(|live| live.waits_for_workers);
        waiting.filter_map(|live| live.thread.as_ref()).for_each(|thread| thread.thread().unpark());
    }

    /// Sets the state of a run. Returns whether it was stored.
    pub(crate) fn set_state(
        &self,
        name: &str,
        state: RunState,
        reason: Option<String>,
        last: Option<LastFigures>,
    ) -> bool {
        let from = self.facts.look(|document| document.runs.get(name).and_then(|run| run.sent_from.clone()));
        let reason = reason.map(|reason| self.as_sent(name, from.as_deref(), &reason));
        let changed = self.facts.change(|document| {
            let Some(run) = document.runs.get_mut(name) else { return false };
            let changed = run.state != state || run.reason != reason;
            (run.state, run.reason) = (state, reason.clone());
            if state.is_over() {
                run.ended.get_or_insert(Timestamp::now().as_unix());
            }
            // A try without records does not undo earlier counts.
            let last = last.filter(|last| last.emitted > 0 || last.arrived > 0 || run.last.is_none());
            run.last = last.map(|last| last.and(run.before)).or(run.last);
            changed
        });
        match changed {
            Ok(true) => {
                let why = reason.map_or_else(String::new, |reason| format!(": {reason}"));
                self.tell(&format!("run_{state}"), Some(name), None, &format!("run {name} is {state}{why}"));
            }
            Ok(false) => {}
            Err(error) => {
                tracing::error!("{error}");
                return false;
            }
        }
        true
    }

    /// Stores the counts of the whole run in place of those of its parts.
    pub(crate) fn count_anew(&self, name: &str, all: LastFigures) {
        let kept = self.facts.change(|document| {
            if let Some(run) = document.runs.get_mut(name) {
                (run.before, run.last) = (LastFigures::default(), Some(all));
            }
        });
        if let Err(error) = kept {
            tracing::error!("{error}");
        }
    }

    /// Stores the counts until this controller ends: its successor may not get as far.
    pub(crate) fn keep_counts(&self, name: &str, last: Option<LastFigures>) {
        let Some(last) = last else { return };
        let kept = self.facts.change(|document| {
            if let Some(run) = document.runs.get_mut(name) {
                // Some hosts may not have reported their counts yet.
                let last = last.and(run.before);
                run.last = Some(run.last.map_or(last, |known| last.or_more(known)));
            }
        });
        if let Err(error) = kept {
            tracing::error!("{error}");
        }
    }

    /// Describes a run for users.
    pub(crate) fn run_view(&self, name: &str) -> Option<RunView> {
        let (observer, outputs, cuts, stand_ins) = {
            let runs = locked(&self.runs);
            let live = runs.get(name);
            (
                live.and_then(|live| live.observer.clone()),
                live.map_or_else(Vec::new, |live| live.outputs.clone()),
                live.map_or_else(Vec::new, |live| live.cuts.clone()),
                live.map_or_else(Vec::new, |live| live.stand_ins.clone()),
            )
        };
        let opening = observer.as_ref().map(Observer::opening);
        let levels: Vec<LevelView> = self.late(name).levels.into_iter().map(LevelView::from).collect();
        let figures = observer.map(|observer| figures(&observer));
        let alive = self.alive_workers();
        let fetching = self.fetching_of(name);
        self.facts.look(|document| {
            let run = document.runs.get(name)?;
            let figures = figures.map(|figures| figures.and(run.before)).or(run.last).unwrap_or(run.before);
            let opening = match (run.state.is_over(), opening) {
                (true, _) => Vec::new(),
                (false, Some(opening)) => opening,
                (false, None) => run.roles.keys().cloned().collect(),
            };
            let placement: BTreeMap<_, _> =
                run.roles.iter().map(|(role, of)| (role.clone(), of.worker.clone())).collect();
            let output = |sink: &str, role: &str, path: String| OutputView {
                sink: sink.to_owned(),
                worker: placement.get(role).cloned().flatten(),
                path,
            };
            // A run of another controller process: take the outputs from the submission.
            let outputs: Vec<OutputView> = match outputs.is_empty() {
                false => outputs
                    .iter()
                    .map(|(sink, role, path)| output(sink, role, path.display().to_string()))
                    .collect(),
                true => {
                    run.outputs.iter().map(|one| output(&one.sink, &one.role, one.path.clone())).collect()
                }
            };
            Some(RunView {
                name: name.to_owned(),
                workflow: run.workflow.clone(),
                state: waiting::state_now(document, run, &alive),
                waits_for: waiting::waits_for(document, run, &alive),
                reason: run.reason.clone(),
                submitted: run.submitted.clone(),
                plan_version: run.plan_version,
                emitted: figures.emitted,
                arrived: figures.arrived,
                dead_letters: figures.dead_letters,
                restarts: figures.restarts,
                seconds: figures.seconds,
                outputs,
                placement,
                opening,
                fetching,
                levels,
                promises: run.promises.clone(),
                cuts,
                stand_ins,
                losses: run.losses().to_vec(),
                losses_covered: run.losses_covered(),
                proposal: run.planned.proposal.as_ref().map(|proposal| proposal.reason.clone()),
            })
        })
    }

    /// All runs.
    pub(crate) fn run_views(&self) -> Vec<RunView> {
        let names: Vec<String> = self.facts.look(|document| document.runs.keys().cloned().collect());
        names.iter().filter_map(|name| self.run_view(name)).collect()
    }
}

/// Counts of a run so far.
pub(super) fn figures(observer: &Observer) -> LastFigures {
    let progress = observer.progress();
    LastFigures {
        emitted: progress.emitted,
        arrived: progress.arrived,
        dead_letters: progress.dead_letters,
        restarts: observer.restarts(),
        seconds: progress.seconds,
    }
}
