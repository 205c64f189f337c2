//! The tasks of jobs on this machine. Each has a folder of its own for each start, a process that ends it whatever happens
//! ([`crate::task_process`]), and a control group with less weight than runs.
//!
//! The controller owns a task by the number of its start: this agent has just the tasks that the controller names, and ends the others. Without
//! an answer to its heartbeats the lease of this agent ends, and all tasks with it.
mod ending;
mod environment;
mod preparing;
mod saving;

use super::fetching::Fetcher;
use super::relay::Relay;
use super::transport::Transport;
use crate::api::{
    Checkpoint, JobDuties, LogLine, TaskAssignment, TaskDuty, TaskEnd, TaskOrder, TaskStage, TaskStatus,
};
use crate::blobs::Blobs;
use crate::client::Client;
use crate::clock::boot_nanoseconds;
use crate::task_process::{Order, ProcessEnd, ProcessTask};
use ending::{Ending, Left};
use environment::Known;
use preparing::{Folders, Prepared};
use saving::{Mark, Saver};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tidemill_elastic::confinement::{Confinement, RunLimits};
use tidemill_spec::job::JobKind;

/// Weight of a job in processor time, percent of that of a run.
const WEIGHT: u32 = 10;
/// Time in which the transport service must know the other ones before a gang starts without it.
const GROUPS_WITHIN: Duration = Duration::from_secs(10);
/// Checkpoints in a row that a task may replace before its log says so.
const MOST_REPLACED: u32 = 20;
/// Prefix of the names of jobs among those of runs: in logs and control groups.
pub(crate) const PREFIX: &str = "job:";

/// The job, and the number of the task.
type Key = (String, u32);

/// A task, and what is done before and after it.
enum Stage {
    Preparing,
    Ready(TcpListener),
    Running { child: Child, input: ChildStdin },
    Saving,
    Ended(TaskEnd),
}

struct Task {
    incarnation: u64,
    assignment: TaskAssignment,
    folders: Folders,
    stage: Stage,
    /// Until when it waits for the transport service, without which its gang is no group.
    waits_until: Option<Instant>,
    /// The time that it was given to stop, milliseconds.
    asked_to_stop: Option<u64>,
    /// The mark of the last checkpoint that was looked at.
    seen: Option<Mark>,
    is_saving: bool,
    /// Checkpoints in a row that the task replaced while they were read.
    replaced: u32,
    /// Its last checkpoint, all of whose files the controller has.
    checkpoint: Option<Checkpoint>,
    /// Set when the controller does not want it any more: its files are no longer sent.
    is_unwanted: Arc<AtomicBool>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.is_unwanted.store(true, Ordering::Release);
    }
}

/// Results of the threads that fetch and send files.
enum News {
    Prepared(Key, u64, Result<Prepared, String>),
    Saved(Key, u64, Result<Option<Checkpoint>, String>),
    Ended(Key, u64, Option<Checkpoint>, TaskEnd),
}

/// Settings of the tasks of an agent.
pub(super) struct Settings {
    /// Folder of all tasks.
    pub(super) root: PathBuf,
    /// The command that is the process between the agent and a task.
    pub(super) command: Vec<String>,
    /// Name of this worker.
    pub(super) worker: String,
    /// Control groups, where this process may make them.
    pub(super) confinement: Option<Confinement>,
    /// The transport service, by which the tasks of a gang are a group.
    pub(super) transport: Transport,
}

/// See the module.
pub(super) struct Tasks {
    settings: Settings,
    client: Arc<Client>,
    fetcher: Arc<Fetcher>,
    blobs: Arc<Blobs>,
    relay: Relay,
    all: BTreeMap<Key, Task>,
    /// Processes that are ending.
    ending: Vec<Ending>,
    /// End of the lease, by [`boot_nanoseconds`].
    lease_until: u64,
    news: (Sender<News>, Receiver<News>),
}

impl Tasks {
    /// Ends the tasks of an earlier process of the agent, and removes their folders.
    ///
    /// # Errors
    /// A process of such a task does not end: it must not start again.
    pub(super) fn open(
        settings: Settings,
        client: &Arc<Client>,
        fetcher: &Arc<Fetcher>,
        blobs: &Arc<Blobs>,
    ) -> Result<Self, String> {
        preparing::clear(&settings.root, settings.confinement.as_ref()).map_err(|error| {
            format!("{error}; this worker starts no tasks beside them: start it again, or the machine")
        })?;
        Ok(Self {
            settings,
            client: Arc::clone(client),
            fetcher: Arc::clone(fetcher),
            blobs: Arc::clone(blobs),
            relay: Relay::default(),
            all: BTreeMap::new(),
            ending: Vec::new(),
            lease_until: 0,
            news: channel(),
        })
    }

    /// Digests of the files that its tasks need, and those of these duties.
    pub(super) fn needed(&self, duties: Option<&JobDuties>) -> BTreeSet<String> {
        let new = duties.into_iter().flat_map(|duties| &duties.tasks).filter_map(|duty| duty.task.as_deref());
        let assignments = self.all.values().map(|task| &task.assignment).chain(new);
        let files = assignments.flat_map(|task| {
            task.submission.files.iter().chain(task.from.iter().flat_map(|from| &from.files))
        });
        let saved = self.all.values().flat_map(|task| &task.checkpoint).flat_map(|saved| &saved.files);
        files.chain(saved).map(|file| file.digest.clone()).collect()
    }

    /// Has just these tasks. `asked_at` is the time of the heartbeat that was answered.
    pub(super) fn follow(&mut self, duties: JobDuties, asked_at: u64) {
        let lease = duties.lease_milliseconds.saturating_mul(1_000_000);
        self.lease_until = self.lease_until.max(asked_at.saturating_add(lease));
        let until = Order::Lease(self.lease_until);
        self.all.values_mut().for_each(|task| task.say(&until));
        let wanted: BTreeSet<(Key, u64)> =
            duties.tasks.iter().map(|duty| ((duty.job.clone(), duty.rank), duty.incarnation)).collect();
        let unwanted: Vec<Key> = {
            let all = self.all.iter();
            let gone = all.filter(|(key, task)| !wanted.contains(&((*key).clone(), task.incarnation)));
            gone.map(|(key, _)| key.clone()).collect()
        };
        for key in unwanted {
            self.drop_task(&key);
        }
        for duty in duties.tasks {
            self.take(duty);
        }
    }

    fn take(&mut self, duty: TaskDuty) {
        let key = (duty.job, duty.rank);
        if !self.all.contains_key(&key) {
            // An earlier start of it may still be ending here.
            let is_ending = self.ending.iter().any(|other| other.key == key);
            if let Some(assignment) = duty.task.filter(|_| !is_ending) {
                self.prepare(key, duty.incarnation, *assignment);
            }
            return;
        }
        let Some(task) = self.all.get_mut(&key) else { return };
        if task.checkpoint.as_ref().is_some_and(|known| known.number <= duty.checkpoint) {
            task.assignment.from = task.checkpoint.take();
        }
        match duty.order {
            TaskOrder::Prepare => {}
            TaskOrder::Run { first } => {
                if matches!(task.stage, Stage::Ready(_)) {
                    self.run(&key, &first);
                }
            }
            TaskOrder::Stop { within_milliseconds, why } => {
                if task.asked_to_stop.is_some_and(|before| before <= within_milliseconds) {
                    return;
                }
                task.asked_to_stop = Some(within_milliseconds);
                match task.stage {
                    Stage::Running { .. } => {
                        self.relay.say(
                            &log_of(&key.0),
                            &key.1.to_string(),
                            &format!("it is asked to stop: {why}"),
                        );
                        task.say(&Order::Stop(within_milliseconds));
                    }
                    Stage::Preparing | Stage::Ready(_) => {
                        task.stage = Stage::Ended(TaskEnd::Released { why, is_unasked: false });
                    }
                    Stage::Saving | Stage::Ended(_) => {}
                }
            }
        }
    }

    fn prepare(&mut self, key: Key, incarnation: u64, assignment: TaskAssignment) {
        let folders =
            Folders::of(&self.settings.root, &key.0, key.1, incarnation, assignment.submission.kind);
        let (fetcher, blobs) = (Arc::clone(&self.fetcher), Arc::clone(&self.blobs));
        let (news, theirs, of) = (self.news.0.clone(), assignment.clone(), folders.clone());
        let name = key.clone();
        let work = move || {
            let prepared = preparing::prepare(&fetcher, &blobs, &theirs, &of);
            let _ = news.send(News::Prepared(name, incarnation, prepared)); // the agent may be ending
        };
        let stage = match std::thread::Builder::new().name("tm-task-files".into()).spawn(work) {
            Ok(_) => Stage::Preparing,
            Err(error) => {
                Stage::Ended(TaskEnd::NotStarted { why: format!("no thread fetches its files: {error}") })
            }
        };
        let task = Task {
            incarnation,
            assignment,
            folders,
            stage,
            waits_until: None,
            asked_to_stop: None,
            seen: None,
            is_saving: false,
            replaced: 0,
            checkpoint: None,
            is_unwanted: Arc::default(),
        };
        self.all.insert(key, task);
    }

    fn run(&mut self, key: &Key, first: &str) {
        let Some(task) = self.all.get_mut(key) else { return };
        let state = Self::spawn(&self.settings, &self.relay, self.lease_until, key, task, first);
        task.stage = state.unwrap_or_else(|why| {
            self.relay.say(&log_of(&key.0), &key.1.to_string(), &why);
            Stage::Ended(TaskEnd::NotStarted { why })
        });
    }

    fn spawn(
        settings: &Settings,
        relay: &Relay,
        lease_until: u64,
        key: &Key,
        task: &Task,
        first: &str,
    ) -> Result<Stage, String> {
        let (job, rank) = key;
        let submission = &task.assignment.submission;
        let mut command = submission.command.clone();
        if let Some(program) = command.first_mut().filter(|program| *program == "tidemill") {
            *program = settings.command.first().cloned().unwrap_or_default();
        }
        if submission.kind == JobKind::Backfill {
            command.extend(["--state".to_owned(), "state".to_owned()]);
        }
        let net = settings.transport.socket();
        let known = Known {
            job,
            rank: *rank,
            size: task.assignment.world,
            incarnation: task.incarnation,
            worker: &settings.worker,
            checkpoint: &task.folders.checkpoint,
            first,
            net: net.as_deref(),
        };
        let environment = known.variables(&submission.environment);
        let order = ProcessTask {
            command,
            environment,
            folder: task.folders.work.clone(),
            signal: submission.signal,
            checkpoint_within_milliseconds: submission.checkpoint_within_milliseconds,
            lock: task.folders.lock.clone(),
            end: task.folders.end.clone(),
            lease_until,
        };
        let [program, arguments @ ..] = settings.command.as_slice() else {
            return Err("this worker has no program for tasks".to_owned());
        };
        let mut child = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(environment::passed(std::env::vars_os()))
            .env("ORT_DISABLE_TELEMETRY", "1")
            .current_dir(&task.folders.work)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{program}: {error}"))?;
        let output = child.stdout.take().map(|output| Box::new(output) as Box<dyn Read + Send>);
        let errors = child.stderr.take().map(|errors| Box::new(errors) as Box<dyn Read + Send>);
        for from in output.into_iter().chain(errors) {
            let (relay, log, role) = (relay.clone(), log_of(job), rank.to_string());
            let thread = std::thread::Builder::new().name("tm-relay".into());
            let thread = thread.spawn(move || relay.all(from, &log, &role));
            thread.map_err(|error| format!("cannot start the thread for its output: {error}"))?;
        }
        // Before it has anything to do.
        if let Some(confinement) = &settings.confinement {
            let limits =
                RunLimits { processors: Some(submission.cores), memory: Some(submission.memory_bytes) };
            let name = group_of(*rank, task.incarnation);
            let admitted = confinement
                .admit(&log_of(job), &name, child.id(), (RunLimits::default(), limits))
                .and_then(|_| confinement.weigh_less(&log_of(job), WEIGHT));
            if let Err(error) = admitted {
                let text = format!("this worker does not enforce the limits of this task: {error}");
                relay.say(&log_of(job), &rank.to_string(), &text);
            }
        }
        let Some(mut input) = child.stdin.take() else { return Err("it has no standard input".to_owned()) };
        let line = serde_json::to_string(&order).map_err(|error| error.to_string())? + "\n";
        let _ = input.write_all(line.as_bytes()); // it says itself why it ended
        Ok(Stage::Running { child, input })
    }

    /// All tasks, as the controller should know them.
    pub(super) fn statuses(&mut self) -> Vec<TaskStatus> {
        self.hear();
        self.ending.retain_mut(|ending| !ending.is_over());
        let keys: Vec<Key> = self.all.keys().cloned().collect();
        for key in &keys {
            self.look_at(key);
        }
        let status = |((job, rank), task): (&Key, &Task)| TaskStatus {
            job: job.clone(),
            rank: *rank,
            incarnation: task.incarnation,
            stage: match &task.stage {
                Stage::Preparing => TaskStage::Preparing,
                Stage::Ready(_) if task.waits_until.is_some() => TaskStage::Preparing,
                Stage::Ready(listener) => {
                    TaskStage::Ready { port: listener.local_addr().map_or(0, |address| address.port()) }
                }
                Stage::Running { .. } => TaskStage::Running,
                Stage::Saving => TaskStage::Saving,
                Stage::Ended(end) => TaskStage::Ended { end: end.clone() },
            },
            checkpoint: task.checkpoint.clone(),
        };
        self.all.iter().map(status).collect()
    }

    /// Takes what the threads have found.
    fn hear(&mut self) {
        while let Ok(news) = self.news.1.try_recv() {
            match news {
                News::Prepared(key, incarnation, prepared) => {
                    if self.current(&key, incarnation).is_none() {
                        // It was dropped while its files came.
                        let kind = JobKind::default();
                        let folders = Folders::of(&self.settings.root, &key.0, key.1, incarnation, kind);
                        preparing::remove(folders.all);
                    }
                    let Some(task) = self.current(&key, incarnation) else { continue };
                    if !matches!(task.stage, Stage::Preparing) {
                        continue; // it was asked to stop meanwhile
                    }
                    task.seen = Mark::of(&task.folders.checkpoint);
                    task.waits_until =
                        (task.assignment.world > 1).then(|| crate::clock::instant() + GROUPS_WITHIN);
                    task.stage = match prepared {
                        Ok(Prepared { listener }) => Stage::Ready(listener),
                        Err(why) => Stage::Ended(TaskEnd::NotStarted { why }),
                    };
                }
                News::Saved(key, incarnation, saved) => {
                    let Some(task) = self.current(&key, incarnation) else { continue };
                    task.is_saving = false;
                    match saved {
                        // The task may have ended meanwhile, with a later one.
                        Ok(Some(one)) => {
                            task.replaced = 0;
                            if task.checkpoint.as_ref().is_none_or(|last| last.number < one.number) {
                                task.checkpoint = Some(one);
                            }
                        }
                        Ok(None) => {
                            task.replaced += 1;
                            if task.replaced == MOST_REPLACED {
                                let text = format!(
                                    "{MOST_REPLACED} checkpoints in a row were replaced while they were read: write them less often"
                                );
                                self.relay.say(&log_of(&key.0), &key.1.to_string(), &text);
                            }
                        }
                        Err(why) => {
                            let text = format!("a checkpoint is left out: {why}");
                            self.relay.say(&log_of(&key.0), &key.1.to_string(), &text);
                        }
                    }
                }
                News::Ended(key, incarnation, checkpoint, end) => {
                    let Some(task) = self.current(&key, incarnation) else { continue };
                    if checkpoint.is_some() {
                        task.checkpoint = checkpoint;
                    }
                    task.stage = Stage::Ended(end);
                }
            }
        }
    }

    fn current(&mut self, key: &Key, incarnation: u64) -> Option<&mut Task> {
        self.all.get_mut(key).filter(|task| task.incarnation == incarnation)
    }

    /// Looks whether a task has ended, or has a new checkpoint.
    fn look_at(&mut self, key: &Key) {
        let Some(task) = self.all.get_mut(key) else { return };
        if let Some(until) = task.waits_until.filter(|_| matches!(task.stage, Stage::Ready(_))) {
            let why = self.settings.transport.not_in_groups();
            if let Some(why) = why.as_ref().filter(|_| crate::clock::instant() > until) {
                let text = format!("it starts although its gang may be no group: {why}");
                self.relay.say(&log_of(&key.0), &key.1.to_string(), &text);
            } else if why.is_some() {
                return;
            }
            task.waits_until = None;
        }
        let Stage::Running { child, .. } = &mut task.stage else { return };
        let (relay, log, role) = (self.relay.clone(), log_of(&key.0), key.1.to_string());
        let saver = Saver {
            client: Arc::clone(&self.client),
            blobs: Arc::clone(&self.blobs),
            path: format!("/v1/jobs/{}/tasks/{}/{}", key.0, key.1, task.incarnation),
            is_unwanted: Arc::clone(&task.is_unwanted),
            say: Box::new(move |text| relay.say(&log, &role, text)),
        };
        let (news, name, incarnation) = (self.news.0.clone(), key.clone(), task.incarnation);
        let number =
            task.checkpoint.as_ref().or(task.assignment.from.as_ref()).map_or(0, |one| one.number) + 1;
        let folders = task.folders.clone();
        if let Ok(Some(status)) = child.try_wait() {
            let end = ProcessEnd::read(&folders.end).ok_or_else(|| without_end(status));
            let left = Left::of(self.settings.confinement.as_ref(), key, incarnation, &folders.all);
            task.stage = Stage::Saving;
            let (kind, seen) = (task.assignment.submission.kind, task.seen.take());
            let results = task.assignment.submission.results.clone();
            // A checkpoint that is being saved at this moment has a number, too.
            let number = number + u64::from(task.is_saving);
            let work = move || {
                // A process that was killed has not ended what its task left.
                while let Err(error) = left.end(end.is_err(), ending::PATIENCE) {
                    (saver.say)(&error.to_string());
                }
                let (checkpoint, end) = saver.finish(&folders, kind, seen.as_ref(), number, &results, end);
                let _ = news.send(News::Ended(name, incarnation, checkpoint, end)); // the agent may be ending
            };
            if let Err(error) = std::thread::Builder::new().name("tm-task-save".into()).spawn(work) {
                let why = format!("no thread saves its files: {error}");
                task.stage = Stage::Ended(TaskEnd::Failed { why });
            }
            return;
        }
        let mark = Mark::of(&folders.checkpoint);
        if task.is_saving || mark.is_none() || mark == task.seen {
            return;
        }
        (task.seen, task.is_saving) = (mark, true);
        let work = move || {
            let saved = saver.checkpoint(&folders.checkpoint, number);
            let _ = news.send(News::Saved(name, incarnation, saved)); // the agent may be ending
        };
        if let Err(error) = std::thread::Builder::new().name("tm-task-save".into()).spawn(work) {
            tracing::error!("cannot start the thread that saves a checkpoint: {error}");
            task.is_saving = false;
        }
    }

    /// Ends a task that is not wanted any more.
    fn drop_task(&mut self, key: &Key) {
        let Some(mut task) = self.all.remove(key) else { return };
        let folder = &task.folders.all;
        let left = Left::of(self.settings.confinement.as_ref(), key, task.incarnation, folder);
        match std::mem::replace(&mut task.stage, Stage::Saving) {
            Stage::Running { child, input } => {
                drop(input); // which ends it
                self.ending.push(Ending::new(key.clone(), left, Some(child)));
            }
            // Processes that it left may still be ending.
            Stage::Saving => self.ending.push(Ending::new(key.clone(), left, None)),
            Stage::Preparing | Stage::Ready(_) | Stage::Ended(_) => preparing::remove(folder.clone()),
        }
    }

    pub(super) fn take_logs(&self) -> Vec<LogLine> {
        self.relay.take()
    }

    /// Lines that the controller did not take.
    pub(super) fn log_again(&self, lines: Vec<LogLine>) {
        self.relay.again(lines);
    }

    /// Ends all tasks.
    pub(super) fn end(&mut self) {
        let keys: Vec<Key> = self.all.keys().cloned().collect();
        for key in keys {
            self.drop_task(&key);
        }
        std::mem::take(&mut self.ending).into_iter().for_each(Ending::wait);
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.end();
    }
}

impl Task {
    fn say(&mut self, order: &Order) {
        if let Stage::Running { input, .. } = &mut self.stage
            && let Ok(line) = serde_json::to_string(order)
        {
            let _ = input.write_all((line + "\n").as_bytes()); // one that ends needs none
        }
    }
}

/// Name of the log of a job, among those of runs.
pub(crate) fn log_of(job: &str) -> String {
    format!("{PREFIX}{job}")
}

/// Words for the end of a process that did not say how its task ended.
fn without_end(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal} ended the process that runs it"),
        None => format!("the process that runs it ended with {status}: its log says why"),
    }
}

/// Returns the name of the control group of a start.
pub(super) fn group_of(rank: u32, incarnation: u64) -> String {
    format!("{rank}-{incarnation}")
}

/// The present time for [`Tasks::follow`].
pub(super) fn asked_at() -> u64 {
    boot_nanoseconds()
}
