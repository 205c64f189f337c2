//! A run from its submission to its end: judged, coordinated, and gone on with after failures that another try may survive.
use super::launcher::Launcher;
use super::runs::{Job, figures};
use super::{Shared, locked};
use crate::api::{Bundle, RunState};
use crate::facts::LastFigures;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Silent;
use tidemill_app::preparation::{Prepared, prepare, prepare_worker};
use tidemill_app::run_options::run_options;
use tidemill_app::state::{Begin, Habit};
use tidemill_app::state_place::StatePlace;
use tidemill_app::{engine_failure, levels, state};
use tidemill_engine::{Hosts, Listen, Run, RunError};
use tidemill_spec::plan::Plan;

/// Least time between two checkpoints where the workflow says nothing.
const INTERVAL: Duration = Duration::from_secs(1);
/// Checkpoints that are kept where the workflow says nothing.
const KEEP: usize = 2;
/// How often a run is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// Pauses between tries, the longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Tries without one more record.
const MOST_TRIES: u32 = 8;

/// A submission that can run.
pub(super) struct Judged {
    pub(super) workflow: String,
    pub(super) plan: Plan,
    /// Workers of the plan; whether each has files that are nowhere else.
    pub(super) roles: BTreeMap<String, bool>,
}

/// Checks a workflow and its plan, without the models of stages that have a place.
pub(super) fn judge(
    shared: &Shared,
    name: &str,
    bundle: &Bundle,
    plan: Option<Plan>,
) -> Result<Judged, String> {
    let missing: Vec<&str> = bundle
        .files
        .iter()
        .filter(|file| !shared.blobs.has(&file.digest))
        .map(|file| file.path.as_str())
        .collect();
    if !missing.is_empty() {
        return Err(format!("these files were not sent: {}", missing.join(", ")));
    }
    let prepared = prepared(shared, name, bundle, plan).map_err(|error| in_words(&error))?;
    if let Some(source) = prepared.program.sources.values().find(|source| source.stream.is_some()) {
        let what = source.stream.as_deref().unwrap_or("a stream");
        return Err(format!(
            "source '{}' reads {what}: this version reads files only in a cluster; run it with `tidemill run --state`, which keeps a \
             journal of streams",
            source.id
        ));
    }
    let mut roles: BTreeMap<String, bool> = BTreeMap::new();
    for stage in &prepared.program.plan.stages {
        let writes = prepared.program.sinks.get(&stage.operator).is_some_and(|sink| !sink.files.is_empty());
        *roles.entry(stage.worker.clone()).or_default() |= writes;
    }
    Ok(Judged { workflow: prepared.workflow.name.value.clone(), plan: prepared.program.plan.clone(), roles })
}

fn in_words(error: &anyhow::Error) -> String {
    match error.downcast_ref::<tidemill_spec::diagnostic::Diagnostics>() {
        Some(findings) => findings.to_string(),
        None => format!("{error:#}"),
    }
}

fn prepared(shared: &Shared, name: &str, bundle: &Bundle, plan: Option<Plan>) -> anyhow::Result<Prepared> {
    let folder = shared.run_folder(name).join("files");
    shared.blobs.lay_out(bundle, &folder)?;
    let workflow = folder.join(&bundle.workflow);
    match plan {
        Some(plan) => prepare_worker(&workflow, plan, "", &Silent),
        None => prepare(&workflow, None, &[], &Silent),
    }
}

/// Begins to drive a run on a thread of its own.
pub(super) fn begin(shared: &Arc<Shared>, name: &str) {
    let (of_thread, run) = (Arc::clone(shared), name.to_owned());
    let mut runs = locked(&shared.runs);
    let live = runs.entry(name.to_owned()).or_default();
    let thread = std::thread::Builder::new().name("tm-drive".into()).spawn(move || drive(&of_thread, &run));
    match thread {
        Ok(thread) => live.thread = Some(thread),
        Err(error) => tracing::error!("no thread for run {name}: {error}"),
    }
}

/// What came of one try.
enum End {
    Over(RunState, Option<String>),
    /// Another try may do better.
    Again(String),
    /// This controller ends; another one goes on.
    SteppedDown,
}

fn drive(shared: &Arc<Shared>, name: &str) {
    let (mut tries, mut pause, mut best) = (0, Duration::from_millis(200), 0);
    loop {
        let end = match is_cancelled(shared, name) {
            true => End::Over(RunState::Cancelled, None),
            false => attempt(shared, name),
        };
        let last = take_figures(shared, name);
        match end {
            End::Over(state, reason) => return shared.set_state(name, state, reason, last),
            End::SteppedDown => return,
            End::Again(reason) => {
                let arrived = last.map_or(0, |last| last.arrived);
                tries = if arrived > best { 0 } else { tries + 1 };
                best = best.max(arrived);
                if tries >= MOST_TRIES {
                    let reason = format!("{reason}; {MOST_TRIES} times without getting further");
                    return shared.set_state(name, RunState::Failed, Some(reason), last);
                }
                shared.set_state(name, RunState::Starting, Some(reason), last);
            }
        }
        if shared.is_ending() {
            return;
        }
        std::thread::park_timeout(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn is_cancelled(shared: &Shared, name: &str) -> bool {
    locked(&shared.runs).get(name).is_some_and(|live| live.is_cancelled)
}

fn take_figures(shared: &Shared, name: &str) -> Option<LastFigures> {
    let observer = locked(&shared.runs).get_mut(name).and_then(|live| {
        live.stopper = None;
        live.observer.take()
    })?;
    Some(figures(&observer))
}

fn attempt(shared: &Arc<Shared>, name: &str) -> End {
    match try_once(shared, name) {
        Ok(end) => end,
        Err(error) => {
            let kind = error.downcast_ref::<Failure>().map(Failure::kind);
            match kind {
                Some(Kind::Unavailable) => End::Again(in_words(&error)),
                _ => End::Over(RunState::Failed, Some(in_words(&error))),
            }
        }
    }
}

fn try_once(shared: &Arc<Shared>, name: &str) -> anyhow::Result<End> {
    let Some(facts) = shared.facts.look(|document| document.runs.get(name).cloned()) else {
        return Ok(End::Over(RunState::Failed, Some("it was removed".into())));
    };
    let mut prepared = prepared(shared, name, &facts.bundle, Some(facts.plan.clone()))?;
    let _ = levels::settle(&mut prepared, None, &Silent);
    let folder = shared.run_folder(name);
    let place = StatePlace::Folder(folder.join("state"));
    let habit = habit(&prepared);
    let continued = match state::open(&place, &mut prepared, habit)? {
        Begin::Complete(_) => return Ok(End::Over(RunState::Complete, None)),
        Begin::Continued(continued) => continued,
    };
    let program = &prepared.program;
    let mut options = run_options(&prepared, None, Some(continued))?;
    options.records = facts.records;
    let secret = u128::from_str_radix(&facts.secret, 16)?;
    options.hosts = Some(Hosts {
        launcher: Box::new(Launcher::new(shared, name)),
        run: secret,
        listen: Listen::With(Arc::clone(&shared.exchange)),
    });
    let rates = program.sources.iter().map(|(id, source)| (id.clone(), source.rate_per_second));
    let job = Job { plan: program.plan.clone(), rates: rates.collect() };
    if let Some(live) = locked(&shared.runs).get_mut(name) {
        (live.job, live.outputs) = (Some(job), outputs(&prepared, &folder));
        live.wanted.clear();
    }
    let run = Run::start(program.clone(), options)
        .map_err(|error| engine_failure::not_started(&error, &prepared.workflow))?;
    if let Some(live) = locked(&shared.runs).get_mut(name) {
        (live.stopper, live.observer) = (Some(run.stopper()), Some(run.observer()));
    }
    Ok(watch(shared, name, &run, &prepared))
}

fn habit(prepared: &Prepared) -> Habit {
    let checkpoint = &prepared.workflow.checkpoint;
    let interval =
        checkpoint.interval.as_ref().map_or(INTERVAL, |interval| Duration::from_nanos(interval.value.0));
    let keep = checkpoint.keep.as_ref().map_or(KEEP, |keep| keep.value as usize);
    // What workers read is not read here.
    Habit { interval, keep, is_read_here: false }
}

/// Sink, worker of the plan, and path within the run's files.
fn outputs(prepared: &Prepared, folder: &std::path::Path) -> Vec<(String, String, PathBuf)> {
    let program = &prepared.program;
    let files = program.sinks.iter().flat_map(|(id, sink)| sink.files.iter().map(move |file| (id, file)));
    let files = files.filter_map(|(id, file)| {
        let stage = program.plan.stages.iter().find(|stage| stage.operator == *id)?;
        let path = file.strip_prefix(folder.join("files")).map_or_else(|_| file.clone(), PathBuf::from);
        Some((id.clone(), stage.worker.clone(), path))
    });
    files.collect()
}

fn watch(shared: &Arc<Shared>, name: &str, run: &Run, prepared: &Prepared) -> End {
    loop {
        if let Some(result) = run.wait_for(LOOK) {
            return match result {
                Ok(report) if report.complete => End::Over(RunState::Complete, None),
                Ok(_) if is_cancelled(shared, name) => End::Over(RunState::Cancelled, None),
                Ok(_) => End::Again("it was ended".into()),
                Err(_) if shared.is_ending() => End::SteppedDown,
                Err(_) if is_cancelled(shared, name) => End::Over(RunState::Cancelled, None),
                Err(RunError::System(text)) => End::Again(text),
                Err(error) => {
                    let failure = engine_failure::failed(&error, &prepared.workflow);
                    End::Over(RunState::Failed, Some(failure.to_string()))
                }
            };
        }
        if is_cancelled(shared, name) {
            run.stopper().abort();
        }
        if shared.is_ending() {
            run.stopper().step_down();
        }
        let is_running = run.progress().emitted > 0;
        if is_running
            && shared
                .facts
                .look(|document| document.runs.get(name).is_some_and(|run| run.state == RunState::Starting))
        {
            shared.set_state(name, RunState::Running, None, None);
        }
    }
}
