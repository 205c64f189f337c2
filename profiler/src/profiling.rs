//! The whole process: records, outputs, accuracy, then times within a budget.
use crate::accuracy;
use crate::cache::{self, OutputCache};
use crate::child::{Measuring, Program};
use crate::device::Device;
use crate::entries::{machine, service};
use crate::error::ProfileError;
use crate::fit::{self, Comparison, Fit};
use crate::flow::Flow;
use crate::limits::{Restraint, cgroup};
use crate::messages;
use crate::notes::{drifted, not_reached, without_pauses};
use crate::pace;
use crate::records;
use crate::schedule;
use crate::state::{StateFolder, TaskState};
use crate::statistics::quantile;
use crate::stopwatch::Stopwatch;
use crate::subject::Subject;
use crate::tasks::{self, Host, Kind, Task};
use crate::worker::{Load, Reply, Request};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tidemill_operators::api::Computation;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::overheads::Overheads;
use tidemill_spec::profile::{Machine, Profile, ProfileWorkflow};

/// Most seconds of the first visit to a figure, and of a later one.
const FIRST: (f64, f64) = (0.02, 0.5);
const LATER: (f64, f64) = (0.25, 2.0);
/// Calls of each model after a pause: enough for a distribution.
const CALLS_AFTER_PAUSE: usize = 24;
/// Measurements of a task while the processor does not keep its pace.
const TRIES: usize = 3;
/// Seconds beyond the budget for the least samples of figures without any.
const GRACE: f64 = 10.0;
/// Least budget in seconds with which the engine itself is measured too, some seconds per worker type.
const LEAST_BUDGET_FOR_OVERHEADS: f64 = 60.0;
/// Seconds per figure that is compared with a profile.
const COMPARED: f64 = 0.4;

/// Options of profiling.
#[derive(Debug, Clone)]
pub struct Options {
    /// Records of each source.
    pub samples: usize,
    /// Time for everything. Even if that takes longer, outputs are computed and a minimum is measured: every operator,
    /// variant and machine gets the least samples of its smallest batch as far as ten more seconds suffice. Figures beyond
    /// the budget are left out.
    pub budget: Duration,
    /// Slowdown of worker types against this machine.
    pub factors: BTreeMap<String, f64>,
    /// Devices to measure too.
    pub devices: Vec<Device>,
    /// Folder for outputs of models.
    pub cache: PathBuf,
    /// Folder for measurements so far.
    pub state: PathBuf,
    /// Command of a measuring process.
    pub program: Program,
    /// The machine.
    pub host: Host,
}

/// Progress.
#[derive(Debug, Clone, PartialEq)]
pub enum Stage {
    /// Models compute their outputs; counts combinations of models.
    Outputs {
        /// Done.
        done: usize,
        /// Total.
        of: usize,
        /// Seconds since the start.
        seconds: f64,
    },
    /// Times are measured.
    Times {
        /// Figures that are certain enough.
        certain: usize,
        /// Total.
        of: usize,
        /// Seconds until the end, estimated.
        left: f64,
        /// The current task.
        what: String,
        /// Seconds since the start.
        seconds: f64,
    },
}

/// Receives progress.
pub type Observer<'a> = &'a mut dyn FnMut(Stage);

/// Result of profiling.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// The profile.
    pub profile: Profile,
    /// Omissions, with reasons.
    pub notes: Vec<String>,
    /// Figures of times.
    pub figures: usize,
    /// Number of them whose mean is known to 5 %.
    pub certain: usize,
}

/// Profiles a workflow. `should_end` is polled; once it returns true, profiling ends with [`ProfileError::Interrupted`] and
/// resumes from there at the next call.
///
/// # Errors
/// [`ProfileError`]. An operator whose times cannot be measured is no error, but a note.
pub fn profile(
    subject: &Subject,
    infrastructure: &Infrastructure,
    options: &Options,
    tell: Observer<'_>,
    should_end: &dyn Fn() -> bool,
) -> Result<Finished, ProfileError> {
    let stopwatch = Stopwatch::start();
    cgroup::remove_left_behind();
    let (kinds, mut notes) = tasks::kinds(infrastructure, &options.host, &options.factors, &options.devices);
    let mut flow = Flow::new(subject, options.samples, OutputCache::new(&options.cache), should_end)?;
    let states = StateFolder::new(&options.state);
    let inputs = inputs(subject, &mut flow, &states, &mut notes)?;
    let choices = subject.combinations();
    let mut done = 0;
    tell(Stage::Outputs { done, of: choices.len(), seconds: stopwatch.seconds() });
    let accuracy = accuracy::measure(subject, &mut flow, &choices, &mut || {
        done += 1;
        tell(Stage::Outputs { done, of: choices.len(), seconds: stopwatch.seconds() });
    })?;
    let mut profile = Profile {
        workflow: ProfileWorkflow {
            name: subject.workflow.name.value.clone(),
            digest: Some(subject.workflow.profiled_digest()),
        },
        ratios: messages::ratios(subject, &mut flow, &choices)?,
        messages: messages::sizes(subject, &mut flow, &choices)?,
        accuracy,
        ..Profile::empty("")
    };
    drop(flow); // its models would only take memory while others are measured
    let best_pace = Cell::new(0);
    let mut session =
        Session { subject, options, states, inputs, stopwatch, tell: &mut *tell, should_end, best_pace };
    let all: Vec<Task> = tasks::tasks(subject, &kinds)
        .into_iter()
        .filter(|task| session.inputs.contains_key(&task.operator))
        .collect();
    let found = session.measure(&all)?;
    for (task, state) in all.iter().zip(&found) {
        if let Some(error) = &state.failed {
            notes.push(format!("{}: {error}", task.name()));
        }
    }
    let best = session.best_pace.get();
    for kind in &kinds {
        let overheads = match kind.device {
            Some(_) => None, // no stage runs on a device
            None => session.overheads(kind, &mut notes)?,
        };
        let of_kind = all.iter().zip(&found).filter(|(task, _)| task.is_of(kind));
        let slowness = of_kind.map(|(_, state)| pace::slowness(state, best)).fold(1.0, f64::max);
        profile.machines.push(Machine { overheads, ..machine(kind, &options.host, slowness) });
        profile.services.extend(
            all.iter()
                .zip(&found)
                .filter(|(task, _)| task.is_of(kind))
                .filter_map(|(task, state)| service(subject, kind, task, state)),
        );
    }
    let (steady, steady_found): (Vec<Task>, Vec<TaskState>) = all
        .iter()
        .zip(&found)
        .filter(|(_, state)| !pace::has_drifted(state, best))
        .map(|(task, state)| (task.clone(), state.clone()))
        .unzip();
    let (figures, certain) = (schedule::figures(&all, &found).0, schedule::known(&steady, &steady_found));
    notes.extend(drifted(&all, &found, best));
    let unreached = schedule::unreached(&all, &found);
    if unreached > 0 {
        notes.push(not_reached(options.budget, unreached, figures, schedule::unbegun(&all, &found)));
    }
    notes.extend(without_pauses(&all, &found));
    Ok(Finished { profile, notes, figures, certain })
}

/// Compares a profile with this machine: measures a few of its figures again, each for some tenths of a second. `None` if
/// the profile has no figure that this machine can measure.
///
/// # Errors
/// [`ProfileError`]; here also when a figure cannot be measured.
pub fn fit(
    subject: &Subject,
    infrastructure: &Infrastructure,
    options: &Options,
    profile: &Profile,
    tell: Observer<'_>,
    should_end: &dyn Fn() -> bool,
) -> Result<Option<Fit>, ProfileError> {
    let stopwatch = Stopwatch::start();
    cgroup::remove_left_behind();
    let (kinds, mut notes) = tasks::kinds(infrastructure, &options.host, &options.factors, &options.devices);
    let mut flow = Flow::new(subject, options.samples, OutputCache::new(&options.cache), should_end)?;
    let states = StateFolder::new(&options.state);
    tell(Stage::Outputs { done: 0, of: 1, seconds: stopwatch.seconds() });
    let inputs = inputs(subject, &mut flow, &states, &mut notes)?;
    drop(flow);
    let all: Vec<Task> = tasks::tasks(subject, &kinds)
        .into_iter()
        .filter(|task| inputs.contains_key(&task.operator))
        .collect();
    let chosen = fit::tasks_to_compare(profile, &kinds, &all);
    let mut comparisons = Vec::new();
    let best_pace = Cell::new(0);
    let session =
        Session { subject, options, states, inputs, stopwatch, tell: &mut *tell, should_end, best_pace };
    for (done, (task, profiled)) in chosen.iter().enumerate() {
        (session.tell)(Stage::Times {
            certain: done,
            of: chosen.len(),
            left: (chosen.len() - done) as f64 * (COMPARED + 0.3),
            what: task.name(),
            seconds: session.stopwatch.seconds(),
        });
        let mut state = TaskState::default();
        let visited = session.visit(task, &mut state, COMPARED, Extent::Times);
        // An interrupt of the process group ends the measuring process too.
        if should_end() {
            return Err(ProfileError::Interrupted);
        }
        visited?;
        let (Some(variant), Some(backend)) = (&task.variant, &task.backend) else { continue };
        for mut samples in state.batches.into_values() {
            samples.sort_unstable();
            comparisons.push(Comparison {
                operator: task.operator.clone(),
                variant: variant.clone(),
                backend: backend.clone(),
                profiled: *profiled,
                measured: quantile(&samples, 0.5),
            });
        }
    }
    Ok(Fit::from_comparisons(comparisons))
}

/// Inputs of an operator for measuring processes: files, and a digest of them.
struct Input {
    files: Vec<PathBuf>,
    digest: String,
}

/// Writes the inputs of all operators, computed with the most accurate models before them.
fn inputs(
    subject: &Subject,
    flow: &mut Flow<'_>,
    states: &StateFolder,
    notes: &mut Vec<String>,
) -> Result<BTreeMap<String, Input>, ProfileError> {
    let reference = subject.reference();
    let mut all = BTreeMap::new();
    for source in &subject.workflow.sources {
        let digest = OutputCache::key("", &source.id, &flow.output(&source.id, &reference)?)?;
        all.insert(source.id.value.clone(), Input { files: Vec::new(), digest });
    }
    for operator in &subject.workflow.operators {
        let id = operator.id.value.as_str();
        let batches = flow.inputs(id, &reference)?;
        if batches.iter().any(|batch| batch.num_rows() == 0) {
            notes.push(format!("{id}: no records reach it, so that nothing is known of its times"));
            continue;
        }
        let ordered = flow.bound().operators[id].computation == Computation::Stateful;
        let (mut files, mut digests) = (Vec::new(), String::new());
        for (port, batch) in batches.iter().enumerate() {
            let batch = if ordered { records::by_time(batch) } else { batch.clone() };
            let file = states.input(id, port);
            cache::write(&file, &batch)?;
            digests.push_str(&OutputCache::key("", id, &batch)?);
            files.push(file);
        }
        all.insert(id.to_owned(), Input { files, digest: digests });
    }
    Ok(all)
}

/// Extent of a visit to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// The least samples of the smallest batch.
    Least,
    /// All batches.
    Times,
    /// All batches, and calls after a pause.
    All,
}

/// One run of the profiler.
struct Session<'a> {
    subject: &'a Subject,
    options: &'a Options,
    states: StateFolder,
    inputs: BTreeMap<String, Input>,
    stopwatch: Stopwatch,
    tell: Observer<'a>,
    should_end: &'a dyn Fn() -> bool,
    /// Nanoseconds of the fixed computation of [`pace`] at its fastest; 0: not measured yet.
    best_pace: Cell<u64>,
}

impl Session<'_> {
    /// Visits tasks until all is certain or the budget is used up.
    fn measure(&mut self, tasks: &[Task]) -> Result<Vec<TaskState>, ProfileError> {
        let mut begun = Visits::default();
        let keys: Vec<String> = tasks
            .iter()
            .map(|task| task.key(self.subject, &self.options.host, &self.inputs[&task.operator].digest))
            .collect();
        let mut found: Vec<TaskState> = keys.iter().map(|key| self.states.load(key)).collect();
        found.iter().for_each(|state| self.paced(state.quickest_pace));
        let mut again: BTreeMap<usize, usize> = BTreeMap::new();
        loop {
            let left = self.options.budget.as_secs_f64() - self.stopwatch.seconds();
            // The least time of the other tasks is reserved.
            let unbegun = schedule::unbegun(tasks, &found);
            let least = unbegun as f64 * begun.mean_seconds();
            let is_short = left <= least;
            let next = match is_short {
                true if left < -GRACE && begun.number > 0 => None,
                true => schedule::next_unbegun(tasks, &found),
                false => {
                    schedule::next(tasks, &found).or_else(|| schedule::next_without_pause(tasks, &found))
                }
            };
            // Figures measured while the processor was slower than its best pace are measured again.
            let drifted = || {
                let is_drifted = |place: &usize| {
                    again.get(place).is_none_or(|times| *times < TRIES)
                        && found[*place].failed.is_none()
                        && pace::has_drifted(&found[*place], self.best_pace.get())
                };
                (0..found.len()).find(is_drifted).filter(|_| !is_short)
            };
            let Some(place) = next.or_else(drifted) else { break };
            if next.is_none() {
                *again.entry(place).or_default() += 1;
                let load = std::mem::take(&mut found[place].load);
                found[place] = TaskState { load, ..TaskState::default() };
            }
            let (of, certain) = schedule::figures(tasks, &found);
            let slice = (left / (of - certain) as f64).clamp(FIRST.0, FIRST.1);
            let estimate =
                schedule::seconds_left(tasks, &found, slice + 0.2).min(left).max(least.min(left + GRACE));
            (self.tell)(Stage::Times {
                certain,
                of,
                left: estimate,
                what: tasks[place].name(),
                seconds: self.stopwatch.seconds(),
            });
            let visited = self.stopwatch.seconds();
            let extent = if is_short { Extent::Least } else { Extent::All };
            let result = self.visit(&tasks[place], &mut found[place], slice, extent);
            if is_short {
                begun.add(self.stopwatch.seconds() - visited);
            }
            if (self.should_end)() || matches!(result, Err(ProfileError::Interrupted)) {
                // The batch sizes that this visit completed are whole.
                self.states.save(&keys[place], &found[place])?;
                return Err(ProfileError::Interrupted);
            }
            if let Err(error) = result {
                found[place].failed = Some(error.to_string());
                continue;
            }
            self.states.save(&keys[place], &found[place])?;
        }
        Ok(found)
    }

    /// Measures the engine's costs on a worker type; `None` if the budget is too small for it, or it cannot be measured.
    fn overheads(&self, kind: &Kind, notes: &mut Vec<String>) -> Result<Option<Overheads>, ProfileError> {
        if self.options.budget.as_secs_f64() < LEAST_BUDGET_FOR_OVERHEADS {
            return Ok(None);
        }
        let what = format!("the engine itself on {}", kind.worker_type);
        let restraint = Restraint::of(kind.cpus);
        let found = Measuring::start(&self.options.program, what.clone(), &restraint)
            .and_then(|mut process| process.ask(&Request::Overheads));
        match found {
            Ok(Reply::Overheads(found)) => Ok(Some(found.times(restraint.factor() * kind.factor))),
            Err(ProfileError::Interrupted) => Err(ProfileError::Interrupted),
            other => {
                notes.push(format!("{what} was not measured: {other:?}"));
                Ok(None)
            }
        }
    }

    /// Records a pace of the processor.
    fn paced(&self, pace: u64) {
        let best = self.best_pace.get();
        if pace > 0 && (best == 0 || pace < best) {
            self.best_pace.set(pace);
        }
    }

    /// The processor's pace; 0 for a device, whose pace this processor does not show.
    fn pace(&self, task: &Task, process: &mut Measuring) -> Result<u64, ProfileError> {
        if task.device.is_some() {
            return Ok(0);
        }
        match process.ask(&Request::Pace)? {
            Reply::Measured(times) => {
                let pace = times.each.into_iter().min().unwrap_or(0);
                self.paced(pace);
                Ok(pace)
            }
            other => Err(unexpected(task, &other)),
        }
    }

    /// Measures a task, again if the processor did not keep its pace. If that does not help, the result is kept, with a
    /// note.
    fn visit(
        &self,
        task: &Task,
        state: &mut TaskState,
        slice: f64,
        extent: Extent,
    ) -> Result<(), ProfileError> {
        for tries in 1.. {
            // Judged by its own pace: earlier visits are not improved here.
            let mut tried = TaskState { slowest_pace: 0, ..state.clone() };
            let visited = self.visit_once(task, &mut tried, slice, extent);
            let is_last = visited.is_err() || tries == TRIES || (self.should_end)();
            if is_last || !pace::has_drifted(&tried, self.best_pace.get()) {
                tried.slowest_pace = tried.slowest_pace.max(state.slowest_pace);
                *state = tried;
                return visited;
            }
        }
        Ok(())
    }

    /// Runs one process that measures the open batch sizes of a task, each for a while.
    fn visit_once(
        &self,
        task: &Task,
        state: &mut TaskState,
        slice: f64,
        extent: Extent,
    ) -> Result<(), ProfileError> {
        let restraint = Restraint::of(task.cpus);
        let factor = restraint.factor();
        let scaled = |nanoseconds: u64| (nanoseconds as f64 * factor) as u64;
        // Dropped before the restraint, whose group must be empty then.
        let mut process = Measuring::start(&self.options.program, task.name(), &restraint)?;
        let variants = self.subject.reference().into_iter().map(|(operator, id)| {
            let id = match (&task.variant, operator == task.operator) {
                (Some(variant), true) => variant.clone(),
                _ => id,
            };
            let written = self.subject.model(&operator, &id).map(|model| model.written.clone());
            (operator, written.unwrap_or_default())
        });
        let load = Load {
            workflow: self.subject.file.clone(),
            operator: task.operator.clone(),
            variants: variants.collect(),
            backend: task.backend.clone(),
            inputs: self.inputs[&task.operator].files.clone(),
            device: task.device.clone(),
        };
        state.what = task.name();
        match process.ask(&Request::Load(load))? {
            // A device gets the files of a model once: the time is that of no load.
            Reply::Loaded(_) if task.device.is_some() => {}
            Reply::Loaded(nanoseconds) => state.load.push(scaled(nanoseconds)),
            other => return Err(unexpected(task, &other)),
        }
        let before = self.pace(task, &mut process)?;
        let mut open = schedule::open(task, state);
        if extent == Extent::Least {
            open.truncate(1);
        }
        for batch in open {
            if (self.should_end)() {
                return Err(ProfileError::Interrupted);
            }
            let samples = state.batches.entry(batch).or_default();
            let seconds = match samples.len() < schedule::LEAST {
                true => slice,
                false => schedule::more_seconds(samples).clamp(LATER.0, LATER.1),
            };
            let most = schedule::MOST.saturating_sub(samples.len()).max(1);
            let least = schedule::LEAST.saturating_sub(samples.len()).max(1);
            let request = Request::Measure { batch: batch as usize, seconds, least, most };
            match process.ask(&request)? {
                Reply::Measured(times) => {
                    if let Some(model) = times.model {
                        let (own, whole) = state.model.entry(batch).or_default();
                        *own += model;
                        *whole += times.each.iter().sum::<u64>();
                    }
                    samples.extend(times.each.into_iter().map(scaled));
                }
                other => return Err(unexpected(task, &other)),
            }
        }
        if extent == Extent::All && schedule::wants_pause(task, state) {
            match process.ask(&Request::MeasureAfterPause { calls: CALLS_AFTER_PAUSE })? {
                Reply::Measured(times) => state.after_pause.extend(times.each.into_iter().map(scaled)),
                other => return Err(unexpected(task, &other)),
            }
        }
        let after = self.pace(task, &mut process)?;
        let quickest = before.min(after);
        state.quickest_pace =
            if state.quickest_pace == 0 { quickest } else { state.quickest_pace.min(quickest) };
        state.slowest_pace = state.slowest_pace.max(before).max(after);
        if let Reply::Memory(bytes) = process.ask(&Request::Memory)? {
            state.peak_memory = state.peak_memory.max(bytes);
        }
        Ok(())
    }
}

/// Durations of visits for the least samples.
#[derive(Debug, Default)]
struct Visits {
    number: usize,
    seconds: f64,
}

impl Visits {
    fn add(&mut self, seconds: f64) {
        self.number += 1;
        self.seconds += seconds;
    }

    /// Mean of one visit; before the first, the time of starting a process and loading a small model on the developer's
    /// machine.
    fn mean_seconds(&self) -> f64 {
        if self.number == 0 { 0.4 } else { self.seconds / self.number as f64 }
    }
}

fn unexpected(task: &Task, reply: &Reply) -> ProfileError {
    ProfileError::Process { what: task.name(), error: format!("it answered {reply:?}") }
}
