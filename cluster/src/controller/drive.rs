//! Drives a run from its submission to its end: judges it, coordinates it, and retries after failures.
mod retries;
mod without_workers;

use super::changing::{Suspended, Switch};
use super::launcher::Launcher;
use super::runs::{Job, figures};
use super::{Shared, backends, locked, placing, sharing};
use crate::api::{Bundle, BundleFile, PromiseView, RunState};
use crate::blobs::{self, BlobError};
use crate::facts::{LastFigures, Output, Role};
use crate::run_id::run_id;
use retries::{MOST_TRIES, Retries};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Silent;
use tidemill_app::preparation::{PlanFrom, Prepared, Scope, is_of_worker, prepare};
use tidemill_app::run_options::run_options;
use tidemill_app::sent::Sent;
use tidemill_app::service_level::LevelSetting;
use tidemill_app::state::{Begin, Habit, Limits};
use tidemill_app::tally::Tally;
use tidemill_app::{engine_failure, letters, levels, state, streams};
use tidemill_engine::{FENCE, Hosts, Listen, Run, RunError, RunReport, Timing, TraceOptions, promises};
use tidemill_spec::plan::Plan;
use without_workers::wait_for_workers;

/// Default least time between two checkpoints.
const INTERVAL: Duration = Duration::from_secs(1);
/// Default number of checkpoints that are kept.
const KEEP: usize = 2;
/// Interval of looks at a run.
const LOOK: Duration = Duration::from_millis(50);
/// Pause between tries while a disk is full. Long, because each try emits an event.
const PAUSE_WHEN_FULL: Duration = Duration::from_secs(10);
/// Pause before the end of a run is stored again.
const PAUSE_UNTIL_KEPT: Duration = Duration::from_secs(1);

/// A submission that can run.
pub(super) struct Judged {
    pub(super) workflow: String,
    pub(super) plan: Plan,
    /// Workers of the plan.
    pub(super) roles: BTreeMap<String, Role>,
    /// Files that its sinks write.
    pub(super) outputs: Vec<Output>,
    /// Sources whose journals are on the workers that read them.
    pub(super) streams: BTreeSet<String>,
    /// Delivery guarantees of its sinks.
    pub(super) promises: Vec<PromiseView>,
}

/// Checks a workflow and its plan, without the models of stages that have a place.
pub(super) fn judge(
    shared: &Shared,
    name: &str,
    bundle: &Bundle,
    plan: Option<Plan>,
) -> Result<Judged, String> {
    arrived(shared, bundle.files.iter())?;
    let prepared = prepared(shared, name, bundle, plan).map_err(|error| in_words(&error))?;
    streams::check(&prepared)?;
    let (workflow, roles) = (prepared.workflow.name.value.clone(), roles(&prepared));
    check_names(&roles)?;
    backends::check(&shared.worker_views(), &roles)?;
    let outputs = outputs(&prepared, &shared.run_folder(name)).into_iter();
    let outputs =
        outputs.map(|(sink, role, path)| Output { sink, role, path: path.display().to_string() }).collect();
    let streams = streams::kept(&prepared.program).map(|source| source.id.clone()).collect();
    let promises = promises(&prepared.program, true).into_iter().map(|(sink, promise)| PromiseView {
        sink,
        guarantee: promise.guarantee.text().to_owned(),
        because: promise.because,
    });
    let promises = promises.collect();
    Ok(Judged { workflow, plan: prepared.program.plan.clone(), roles, outputs, streams, promises })
}

/// Unassigned workers of a plan: whether each has files that exist nowhere else, how long it continues alone, and its backends.
pub(super) fn roles(prepared: &Prepared) -> BTreeMap<String, Role> {
    let program = &prepared.program;
    let own_files: BTreeSet<&str> = {
        let sources = prepared.workflow.sources.iter().filter(|source| is_of_worker(source));
        sources.map(|source| source.id.value.as_str()).collect()
    };
    let mut roles: BTreeMap<String, Role> = BTreeMap::new();
    for stage in &program.plan.stages {
        let has_files = program.sinks.get(&stage.operator).is_some_and(|sink| !sink.files.is_empty())
            || program.sources.get(&stage.operator).is_some_and(streams::is_kept)
            || own_files.contains(stage.operator.as_str());
        let role = roles.entry(stage.worker.clone()).or_insert_with(|| {
            let alone = program.alone(&stage.worker);
            let held = alone.map(|alone| alone.patience() + FENCE);
            let held_milliseconds = held.map(|held| u64::try_from(held.as_millis()).unwrap_or(u64::MAX));
            Role { held_milliseconds, ..Role::default() }
        });
        role.is_bound |= has_files;
        if let Some(backend) = backends::named(&prepared.workflow, stage) {
            role.backends.entry(backend.to_owned()).or_insert_with(|| stage.operator.clone());
        }
    }
    roles
}

/// Checks that these files were sent.
pub(super) fn arrived<'a>(
    shared: &Shared,
    files: impl Iterator<Item = &'a BundleFile>,
) -> Result<(), String> {
    let missing = files.filter(|file| !shared.blobs.has(&file.digest));
    let missing: Vec<&str> = missing.map(|file| file.path.as_str()).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!("these files were not sent: {}", missing.join(", "))),
    }
}

/// Workers of a plan have folders of their names on the machines.
pub(super) fn check_names(roles: &BTreeMap<String, Role>) -> Result<(), String> {
    let is_name =
        |name: &str| !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
    match roles.keys().find(|role| !is_name(role)) {
        Some(role) => Err(format!(
            "`{role}` is not a name for a worker of a plan: write one without `/` that does not start with `.`"
        )),
        None => Ok(()),
    }
}

/// Gives the sources the rates of the previous plan, by which epochs are counted.
pub(super) fn keep_rates(prepared: &mut Prepared, rates: &BTreeMap<String, Option<f64>>) {
    for (id, source) in &mut prepared.program.sources {
        if let Some(rate) = rates.get(id) {
            source.rate_per_second = *rate;
        }
    }
}

pub(super) fn in_words(error: &anyhow::Error) -> String {
    match error.downcast_ref::<tidemill_spec::diagnostic::Diagnostics>() {
        Some(findings) => findings.to_string(),
        None => format!("{error:#}"),
    }
}

/// A submission that is laid out in a folder.
pub(super) fn sent<'a>(folder: &'a Path, bundle: &'a Bundle) -> Result<Sent<'a>, BlobError> {
    blobs::workflow_in(folder, bundle)?;
    Ok(Sent { folder, workflow: &bundle.workflow, variables: &bundle.variables })
}

pub(super) fn prepared(
    shared: &Shared,
    name: &str,
    bundle: &Bundle,
    plan: Option<Plan>,
) -> anyhow::Result<Prepared> {
    let folder = shared.run_folder(name).join("files");
    shared.blobs.lay_out(bundle, &folder).map_err(|error| match error {
        // The disk or store is unavailable; the run itself is valid.
        error @ BlobError::System { .. } => Failure::new(Kind::Unavailable, error.to_string()).into(),
        error => anyhow::Error::from(error),
    })?;
    let sent = sent(&folder, bundle)?;
    let plan = plan.as_ref().map_or(PlanFrom::Settings(&[]), PlanFrom::Given);
    prepare(sent.load(&Silent)?, plan, Scope::Elsewhere(&sent), &Silent)
}

/// Starts a thread that drives a run.
pub(super) fn begin(shared: &Arc<Shared>, name: &str) {
    let (of_thread, run) = (Arc::clone(shared), name.to_owned());
    let mut runs = locked(&shared.runs);
    let live = runs.entry(name.to_owned()).or_default();
    let thread = std::thread::Builder::new().name("tm-drive".into()).spawn(move || drive(&of_thread, &run));
    match thread {
        Ok(thread) => live.thread = Some(thread),
        Err(error) => tracing::error!("cannot start the thread for run {name}: {error}"),
    }
}

/// Outcome of one try.
enum End {
    Over(RunState, Option<String>),
    /// Another try may succeed.
    Again(String),
    /// A disk is full: the run continues from its last checkpoint once there is space, however late.
    Full(String),
    /// This controller ends; another one continues the run.
    SteppedDown,
    /// The plan has been ended for another one, whose processes are ready.
    Switched(Box<Switched>),
}

/// A plan that follows another one.
struct Switched {
    switch: Box<Switch>,
    suspended: Suspended,
}

fn drive(shared: &Arc<Shared>, name: &str) {
    let mut retries = Retries::default();
    let mut switched = None;
    loop {
        let end = match is_cancelled(shared, name) {
            true => End::Over(RunState::Cancelled, None),
            false => attempt(shared, name, switched.take()),
        };
        let last = take_figures(shared, name);
        give_up_switch(shared, name, &end);
        match end {
            End::Switched(next) => {
                switched = follow(shared, name, next, last);
                // The old plan ran well, and the new one counts records from 0.
                retries = Retries::default();
                if shared.is_ending() {
                    return;
                }
                continue;
            }
            End::Again(reason) | End::Over(RunState::Failed, Some(reason))
                if !shared.is_ending() && shared.go_back(name, &reason) =>
            {
                continue;
            }
            End::Over(state, reason) => return keep_end(shared, name, state, reason, last),
            End::SteppedDown => return shared.keep_counts(name, last),
            End::Full(reason) => {
                retries = Retries::default();
                let reason = format!("{reason}; trying again every {} s", PAUSE_WHEN_FULL.as_secs());
                shared.set_state(name, RunState::Starting, Some(reason), last);
                if shared.is_ending() {
                    return;
                }
                std::thread::park_timeout(PAUSE_WHEN_FULL);
            }
            End::Again(reason) => {
                let Some(pause) = retries.after(last.map_or(0, |last| last.arrived)) else {
                    let reason = format!("{reason}; {MOST_TRIES} times without progress");
                    return keep_end(shared, name, RunState::Failed, Some(reason), last);
                };
                shared.set_state(name, RunState::Starting, Some(reason), last);
                if shared.is_ending() {
                    return;
                }
                std::thread::park_timeout(pause);
            }
        }
    }
}

/// Adopts the next plan in the facts; `None` if it was given up meanwhile and the run keeps its plan.
fn follow(
    shared: &Shared,
    name: &str,
    next: Box<Switched>,
    counted: Option<LastFigures>,
) -> Option<Box<Switched>> {
    match shared.take_next(name, next.switch.version, counted.unwrap_or_default()) {
        Ok(true) => Some(next),
        Ok(false) => None,
        Err(error) => {
            shared.change_failed(name, next.switch.version, &error.to_string());
            None
        }
    }
}

/// Gives up the next plan of a run that ended for another reason.
fn give_up_switch(shared: &Shared, name: &str, end: &End) {
    let why = match end {
        End::Switched(_) => return,
        End::SteppedDown => "the controller ends".to_owned(),
        End::Over(state, _) => format!("the run is {state}"),
        End::Again(reason) | End::Full(reason) => {
            format!("the run did not end properly for it: {reason}")
        }
    };
    let switch = locked(&shared.runs).get_mut(name).and_then(|live| live.switch.take());
    if let Some(switch) = switch {
        let version = switch.version;
        drop(switch);
        if !matches!(end, End::SteppedDown) {
            shared.change_failed(name, version, &why);
        }
    }
}

fn is_cancelled(shared: &Shared, name: &str) -> bool {
    locked(&shared.runs).get(name).is_some_and(|live| live.is_cancelled)
        || shared.facts.look(|document| document.runs.get(name).is_some_and(|run| run.is_cancelled))
}

/// Stores the end of a run, with retries while a disk is full: until then it could not be removed or started again.
fn keep_end(shared: &Shared, name: &str, state: RunState, reason: Option<String>, last: Option<LastFigures>) {
    shared.end_changes(name, state);
    let all = of_checkpoint(shared, name).filter(|_| state == RunState::Complete);
    if let Some(all) = all {
        shared.count_anew(name, all);
    }
    let last = all.or(last);
    while !shared.set_state(name, state, reason.clone(), last) && !shared.is_ending() {
        std::thread::park_timeout(PAUSE_UNTIL_KEPT);
    }
}

/// Counts of a run in its last checkpoint, each record once: includes counts of killed controllers, and excludes repeated work.
fn of_checkpoint(shared: &Shared, name: &str) -> Option<LastFigures> {
    let plan = shared.facts.look(|document| document.runs.get(name).map(|run| run.plan.clone()))?;
    let state = shared.state_place(name).look();
    let state = state.inspect_err(|error| tracing::warn!("run {name}: {error}")).ok()?;
    let all = Tally::of(state.manifest()?, &plan);
    Some(LastFigures {
        emitted: all.records_in.values().sum(),
        arrived: all.records_out.values().sum(),
        dead_letters: all.dead_letters,
        restarts: all.restarts,
        seconds: all.seconds,
    })
}

fn take_figures(shared: &Shared, name: &str) -> Option<LastFigures> {
    let observer = locked(&shared.runs).get_mut(name).and_then(|live| {
        live.stopper = None;
        live.cuts.clear();
        live.stand_ins.clear();
        live.observer.take()
    })?;
    shared.seen_last(name);
    Some(figures(&observer))
}

fn attempt(shared: &Arc<Shared>, name: &str, switched: Option<Box<Switched>>) -> End {
    match try_once(shared, name, switched) {
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

fn try_once(shared: &Arc<Shared>, name: &str, switched: Option<Box<Switched>>) -> anyhow::Result<End> {
    let Some(facts) = shared.facts.look(|document| document.runs.get(name).cloned()) else {
        return Ok(End::Over(RunState::Failed, Some("it was removed".into())));
    };
    let (mut prepared, standby, suspended) = match switched.map(|switched| *switched) {
        Some(Switched { switch, suspended }) => (switch.prepared, Some(switch.standby), Some(suspended)),
        None => {
            let prepared = prepared(shared, name, &facts.bundle, Some(facts.plan.clone()))?;
            if let Some(end) = wait_for_workers(shared, name, facts.plan_version) {
                return Ok(end);
            }
            (prepared, None, None)
        }
    };
    let (mut slo, _) = levels::settle(&mut prepared, None, &Silent);
    let own = facts.planned.planning.iter().flat_map(|planning| &planning.slo);
    let own: Vec<LevelSetting> = own.filter_map(|text| text.parse().ok()).collect();
    if facts.planned.planning.is_some()
        && prepared.program.sources.values().any(|source| source.gives_what_comes())
    {
        // The load determines what the current plan was made for.
        slo.rate.clone_from(&prepared.workflow.slo.rate);
    }
    own.iter().for_each(|level| level.apply(&mut slo));
    if let Some(rates) = &facts.rates {
        keep_rates(&mut prepared, rates);
    }
    let folder = shared.run_folder(name);
    let place = shared.state_place(name);
    let of_letters =
        prepared.workflow.run.dead_letters.as_ref().map(|path| prepared.workflow.resolve(&path.value));
    let of_letters = shared.lead.as_ref().zip(of_letters);
    if let Some((lead, path)) = &of_letters {
        let restored = sharing::restore_letters(lead, name, path);
        restored.map_err(|reason| Failure::new(Kind::Unavailable, format!("dead letters: {reason}")))?;
    }
    let habit = Habit { limits: Limits::new(facts.records, None), ..habit(&prepared) };
    let former = facts.former.as_ref().map(|former| &former.plan);
    let continued = match state::open_after(&place, &mut prepared, habit, former)? {
        Begin::Complete(_) => return Ok(End::Over(RunState::Complete, None)),
        Begin::Continued(continued) => continued,
    };
    let program = &prepared.program;
    let mut options = run_options(&prepared, None, Some(continued))?;
    if let Some((lead, path)) = of_letters {
        let share = |inner| letters::shared(inner, sharing::share_letters(lead, name, path));
        options.letters = options.letters.map(share);
    }
    options.records = facts.records;
    options.samples = tidemill_app::samples::newest(&prepared.workflow, &prepared.program);
    options.traces = shared.traced.as_ref().map(|traced| {
        // A run keeps the names of its traces under another controller.
        let seed = u64::from_str_radix(&run_id(&facts.secret), 16).unwrap_or_default();
        TraceOptions::new(traced.share, seed)
    });
    let version = facts.plan_version;
    let rates = program.sources.iter().map(|(id, source)| (id.clone(), source.rate_per_second));
    let job = Job::new(program.plan.clone(), rates.collect());
    if let Some(live) = locked(&shared.runs).get_mut(name) {
        live.outputs = outputs(&prepared, &folder);
        let set = live.sets.entry(version).or_default();
        set.job = Some(job);
        if standby.is_none() {
            set.wanted.clear();
        }
    }
    if standby.is_none() {
        placing::place_first(shared, name, version);
    }
    let is_sampled = options.samples.is_some();
    options.hosts = Some(match standby {
        Some(standby) => standby.into_hosts()?,
        None => Hosts {
            launcher: Box::new(Launcher::new(shared, name, version)),
            run: u128::from_str_radix(&facts.secret, 16)?,
            plan_version: version,
            listen: Listen::With(Arc::clone(&shared.exchange)),
        },
    });
    let run = Run::start(program.clone(), options)
        .map_err(|error| engine_failure::not_started(&error, &prepared.workflow))?;
    if let Some(live) = locked(&shared.runs).get_mut(name) {
        (live.stopper, live.observer) = (Some(run.stopper()), Some(run.observer()));
        (live.levels, live.is_sampled) = (slo, is_sampled);
    }
    if let (Some(traced), Some(traces)) = (&shared.traced, run.observer().traces()) {
        traced.exporter.follow(name, &facts.workflow, traces);
    }
    let is_new = facts.former.as_ref().is_some_and(|former| !former.is_past)
        || facts.changes.iter().any(|change| change.version == version && change.outcome.is_none());
    Ok(watch(shared, name, &run, &prepared, is_new.then_some(suspended)))
}

fn habit(prepared: &Prepared) -> Habit {
    let checkpoint = &prepared.workflow.checkpoint;
    let interval =
        checkpoint.interval.as_ref().map_or(INTERVAL, |interval| Duration::from_nanos(interval.value.0));
    let keep = checkpoint.keep.as_ref().map_or(KEEP, |keep| keep.value as usize);
    // The workers read the inputs.
    Habit { interval, keep, is_read_here: false, sees_inputs: false, limits: Limits::default() }
}

/// Sink, worker of the plan, and path within the run's files.
fn outputs(prepared: &Prepared, folder: &Path) -> Vec<(String, String, PathBuf)> {
    let program = &prepared.program;
    let files = program.sinks.iter().flat_map(|(id, sink)| sink.files.iter().map(move |file| (id, file)));
    let files = files.filter_map(|(id, file)| {
        let stage = program.plan.stages.iter().find(|stage| stage.operator == *id)?;
        let path = file.strip_prefix(folder.join("files")).map_or_else(|_| file.clone(), PathBuf::from);
        Some((id.clone(), stage.worker.clone(), path))
    });
    files.collect()
}

/// Watches a run. `change`: its plan follows another one that was ended in this process, which is not reported yet.
fn watch(
    shared: &Arc<Shared>,
    name: &str,
    run: &Run,
    prepared: &Prepared,
    mut change: Option<Option<Suspended>>,
) -> End {
    let mut told_cuts = super::cuts::ReportedCuts::default();
    let mut letters_lost = 0;
    loop {
        let result = run.wait_for(LOOK);
        let timing = run.observer().timing();
        let lost = run.observer().letters_not_told();
        if lost > letters_lost {
            let text = format!(
                "up to {} dead letters of run {name} are lost: more arrived than its workers keep without a controller",
                lost - std::mem::replace(&mut letters_lost, lost)
            );
            shared.tell("letters_lost", Some(name), None, &text);
        }
        if result.is_none() {
            shared.look_at_cuts(name, &run.observer(), &mut told_cuts);
        }
        let is_over = matches!(&result, Some(Ok(_)));
        if let Some(suspended) = &change
            && shared.tell_change(name, suspended.as_ref(), &timing, is_over)
        {
            change = None;
        }
        if let Some(result) = result {
            return ended(shared, name, prepared, result, timing);
        }
        if is_cancelled(shared, name) {
            run.stopper().abort();
        }
        if shared.is_ending() {
            run.stopper().step_down();
        }
        shared.follow_losses(name);
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

/// Whether any record of a run has reached its end, in this try or before.
fn has_got_on(shared: &Shared, name: &str) -> bool {
    let before = shared.facts.look(|document| document.runs.get(name).and_then(|run| run.last));
    let now = locked(&shared.runs).get(name).and_then(|live| live.observer.as_ref().map(figures));
    before.into_iter().chain(now).any(|last| last.arrived > 0)
}

/// Maps the end of an engine's run to an outcome.
fn ended(
    shared: &Shared,
    name: &str,
    prepared: &Prepared,
    result: Result<RunReport, RunError>,
    timing: Timing,
) -> End {
    match result {
        Ok(report) if report.complete => End::Over(RunState::Complete, None),
        Ok(_) if is_cancelled(shared, name) => End::Over(RunState::Cancelled, None),
        Ok(_) => match locked(&shared.runs).get_mut(name).and_then(|live| live.switch.take()) {
            Some(switch) => {
                let suspended = switch.suspended(timing);
                End::Switched(Box::new(Switched { switch, suspended }))
            }
            None => End::Again("it was ended".into()),
        },
        Err(_) if shared.is_ending() => End::SteppedDown,
        Err(_) if is_cancelled(shared, name) => End::Over(RunState::Cancelled, None),
        Err(RunError::System(text)) => End::Again(text),
        // An input that was there before may come back: a disk that is not mounted yet.
        Err(error @ RunError::NotOpened { .. }) if has_got_on(shared, name) => End::Again(error.to_string()),
        Err(error) => {
            let failure = engine_failure::failed(&error, &prepared.workflow);
            let reason = failure.to_string();
            match is_about_space(&reason) {
                true => End::Full(reason),
                false => End::Over(RunState::Failed, Some(reason)),
            }
        }
    }
}

/// Whether a full disk or quota caused a failure: looks for the system's numbers in the text (ENOSPC, EDQUOT).
fn is_about_space(reason: &str) -> bool {
    ["(os error 28)", "(os error 122)"].iter().any(|number| reason.contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_from_other_failures() {
        let told = |number: i32| {
            format!(
                "'answers' failed: `out.jsonl` cannot be written: {}",
                std::io::Error::from_raw_os_error(number)
            )
        };
        let numbers = [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT, rustix::io::Errno::ROFS];
        assert_eq!(numbers.map(|number| is_about_space(&told(number.raw_os_error()))), [true, true, false]);
    }
}
