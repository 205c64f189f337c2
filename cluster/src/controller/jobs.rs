//! The queue of jobs. The policies are those of `tidemill-jobs`, which also the simulation uses: it gets events, and its decisions are carried
//! out in the same change of the facts, before any worker gets them.
//!
//! | question | module |
//! |---|---|
//! | what becomes of a job? | `course` |
//! | what must a worker have, and what does it report? | `duties` |
//! | what is left for jobs, and when do they give way? | `capacity`, `devices` |
//! | what do people see and ask for? | `views`, `requests` |
mod capacity;
mod course;
mod devices;
mod duties;
mod removal;
pub(super) mod requests;
mod views;

use super::Shared;
use crate::agent::health::civil_milliseconds;
use crate::agent::tasks::log_of;
use crate::api::{JobSubmission, JobView};
use crate::clock::instant;
use crate::facts::{Document, FactsError, JobFacts, Verdict};
use course::Settled;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tidemill_jobs::{
    Account, Action, Decision, Event, Job, Phase, Queue, Resources, Service, Settings, Time,
};

/// Interval of looks at capacities and leases.
const LOOK: Duration = Duration::from_millis(200);
/// Ended jobs that are kept; older ones go.
const MOST_ENDED: usize = 500;
/// Time after the end of a lease by the clock of the controller after which it has ended by that of the worker.
const MARGIN: Duration = Duration::from_secs(1);

/// Time that the tasks of a cancelled job have to tidy up, milliseconds.
const CANCEL_WITHIN: u64 = 5_000;

/// Settings of the queue of jobs.
#[derive(Debug, Clone)]
pub struct JobOptions {
    /// The policy and its numbers.
    pub queue: Settings,
    /// Silence of the controller after which a worker ends its tasks, and silence of a worker after which its tasks may start elsewhere.
    pub lease: Duration,
    /// Time within which jobs leave what a stream needs.
    pub give_back: Duration,
}

impl Default for JobOptions {
    fn default() -> Self {
        Self {
            queue: Settings { remembered: MOST_ENDED, ..Settings::default() },
            lease: Duration::from_secs(30),
            give_back: Duration::from_secs(10),
        }
    }
}

impl JobOptions {
    /// Settings of the queue, checked.
    ///
    /// # Errors
    /// There is no such policy, or a number does not fit. Durations are not known in a cluster, so policies that need them are none.
    pub fn settings(&self) -> Result<Settings, JobOptionsError> {
        Queue::new(self.queue.clone(), [])?;
        match tidemill_jobs::policy::find(&self.queue.policy).filter(|policy| policy.needs_durations()) {
            Some(policy) => Err(JobOptionsError::Durations(policy.name())),
            None => Ok(self.queue.clone()),
        }
    }
}

/// Settings that the queue of a cluster cannot have.
#[derive(Debug, thiserror::Error)]
pub enum JobOptionsError {
    /// A wrong setting.
    #[error(transparent)]
    Settings(#[from] tidemill_jobs::SettingsError),
    /// A policy that knows how long jobs take.
    #[error(
        "the policy {0} needs the durations of jobs, which a cluster does not know: write `2d-las`, `2d-gittins`, `fifo` or `best-effort`"
    )]
    Durations(&'static str),
}

/// Reason for a refused request about a job.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    #[error("{0}")]
    Wrong(String),
    #[error("there is no job `{0}`: `tidemill job queue --all` lists all")]
    NoSuch(String),
    #[error(transparent)]
    Facts(#[from] FactsError),
}

/// News of a change: kind, job and text.
type News = (&'static str, String, String);

pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn now() -> Time {
    Time(civil_milliseconds())
}

/// Resources of one task.
fn demand(submission: &JobSubmission) -> Resources {
    Resources {
        millicores: (submission.cores * 1e3).ceil() as u64,
        memory: submission.memory_bytes,
        places: 1,
        devices: submission.device.iter().map(|kind| (kind.clone(), 1)).collect(),
        ..Resources::default()
    }
}

/// Service of a job until now in slot-seconds: the account counts it at events only.
fn service(account: &Account, now: Time) -> f64 {
    let running = if account.phase == Phase::Running { now - account.counted } else { Time::ZERO };
    (account.service + Service::of(account.weight, running)).slot_seconds()
}

/// Applies events to the queue and carries out its decisions, until nothing more follows.
fn apply(document: &mut Document, settings: &Settings, events: Vec<Event>) -> Vec<News> {
    let mut news = Vec::new();
    let mut open: VecDeque<Event> = events.into();
    while let Some(event) = open.pop_front() {
        let facts = Arc::make_mut(&mut document.queue);
        let Some(queue) = facts.queue_mut(settings) else { return news };
        let decisions = match queue.apply(now(), event) {
            Ok(decisions) => decisions,
            Err(error) => {
                tracing::error!("the queue of jobs: {error}");
                continue;
            }
        };
        for decision in decisions {
            open.extend(carry_out(document, decision, &mut news));
        }
    }
    news
}

/// Does what the queue decides about a job; what follows from it at once.
fn carry_out(document: &mut Document, decision: Decision, news: &mut Vec<News>) -> Vec<Event> {
    let Decision { job: id, action, reason } = decision;
    match action {
        Action::Start { shares, is_resumed } => {
            let Some(job) = document.jobs.get_mut(&id) else { return vec![Event::Cancelled { job: id }] };
            let of = |share: tidemill_jobs::Share| (0..share.tasks).map(move |_| share.machine.clone());
            let workers: Vec<String> = shares.into_iter().flat_map(of).collect();
            job.begin(&workers);
            let does = if is_resumed { "resumes" } else { "starts" };
            let text = format!("job {id} {does} on {}: {reason}", listed(&workers));
            job.note(text.clone());
            news.push(("job_starting", id, text));
            Vec::new()
        }
        Action::Preempt { deadline } => {
            let decided = document.queue.queue.as_ref().map_or(deadline, |queue| queue.now());
            let Some(job) = document.jobs.get_mut(&id) else { return vec![Event::Cancelled { job: id }] };
            job.preemptions += 1;
            let within = (deadline - decided).0;
            let text = format!("job {id} is preempted, and has {}: {reason}", Time(within));
            job.note(text.clone());
            let settled = job.stop(Verdict::Again(reason.to_string()), within);
            Arc::make_mut(&mut document.queue).preemptions += 1;
            news.push(("job_preempted", id.clone(), text));
            settled.map(|settled| settle(document, &id, settled, news)).unwrap_or_default()
        }
    }
}

/// The names of workers, each once.
fn listed(workers: &[String]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    workers.iter().for_each(|worker| *counts.entry(worker).or_default() += 1);
    let one = |(worker, count): (&str, usize)| match count {
        1 => worker.to_owned(),
        _ => format!("{worker} ({count} tasks)"),
    };
    counts.into_iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Events for the queue about a job whose tasks are on no worker any more.
fn settle(document: &mut Document, id: &str, settled: Settled, news: &mut Vec<News>) -> Vec<Event> {
    let account = document.queue.queue.as_ref().and_then(|queue| queue.account(id));
    let phase = account.map(|account| account.phase);
    let service = account.map_or(0.0, |account| service(account, now()));
    let job = id.to_owned();
    let (kind, text, event) = match settled {
        Settled::Released => {
            let because = document.jobs.get(id).and_then(|job| job.because.clone()).unwrap_or_default();
            let text = format!("job {id} waits again: {because}");
            let event = match phase {
                // Its files are kept as they come; what counts is that some were.
                Some(Phase::Releasing) => {
                    let is_kept = document.jobs.get(id).is_some_and(|job| {
                        job.tasks.iter().all(|task| task.is_done || task.checkpoint.is_some())
                    });
                    Event::Released { job, is_kept }
                }
                _ => Event::Lost { job },
            };
            ("job_released", text, event)
        }
        Settled::Complete => ("job_complete", format!("job {id} is complete"), Event::Ended { job }),
        Settled::Failed(why) => ("job_failed", format!("job {id} has failed: {why}"), Event::Failed { job }),
        Settled::Cancelled(why) => {
            ("job_cancelled", format!("job {id} is cancelled: {why}"), Event::Cancelled { job })
        }
    };
    if let Some(job) = document.jobs.get_mut(id) {
        job.note(text.clone());
        job.service_seconds = service;
    }
    news.push((kind, id.to_owned(), text));
    // It may have been cancelled before the queue knew it.
    if phase.is_some() { vec![event] } else { Vec::new() }
}

impl Shared {
    /// Changes jobs, applies the events that follow, and reports the news. The change is stored before any caller sees it.
    fn change_jobs<T>(
        &self,
        change: impl FnOnce(&mut Document, &mut Vec<News>) -> (T, Vec<Event>),
    ) -> Result<T, FactsError> {
        let (result, news) = self.facts.change(|document| {
            let mut news = Vec::new();
            let (result, events) = change(document, &mut news);
            news.extend(apply(document, &self.job_settings, events));
            (result, news)
        })?;
        for (kind, job, text) in news {
            self.tell(kind, None, None, &text);
            let line = crate::api::LogLine {
                run: log_of(&job),
                level: Some("EVENT".to_owned()),
                time: Some(tidemill_app::machine::now()),
                ..crate::api::LogLine::saying(&text)
            };
            self.log(None, vec![line]);
        }
        Ok(result)
    }

    /// Queues a job.
    pub(crate) fn submit_job(&self, submission: JobSubmission, by: &str) -> Result<JobView, JobError> {
        self.check_job(&submission)?;
        let capacities = self.changed_capacities();
        let (id, old) = self.change_jobs(|document, news| {
            let facts = Arc::make_mut(&mut document.queue);
            facts.last_number += 1;
            let mut job = JobFacts::new(facts.last_number, by, submission.clone());
            let id = job.id();
            let text = format!("{by} submits job {id}");
            job.note(text.clone());
            news.push(("job_submitted", id.clone(), text));
            document.jobs.insert(id.clone(), job);
            let old = removal::forget_old(document, MOST_ENDED);
            let job = Job {
                user: by.to_owned(),
                kind: submission.kind.to_string(),
                is_preemptible: submission.preemptible,
                checkpoint_within: Time(submission.checkpoint_within_milliseconds),
                ..Job::new(id.clone(), submission.gang, demand(&submission), now())
            };
            ((id, old), capacities.into_iter().chain([Event::Submitted { job }]).collect())
        })?;
        self.forget_logs(&old);
        // Its log is there for the next process.
        if let Err(error) = std::fs::create_dir_all(self.run_folder(&log_of(&id))) {
            tracing::warn!("the log of job {id} is not kept: {error}");
        }
        self.job_view(&id).ok_or(JobError::NoSuch(id))
    }

    fn check_job(&self, submission: &JobSubmission) -> Result<(), JobError> {
        let wrong = |text: &str| Err(JobError::Wrong(text.to_owned()));
        if !tidemill_spec::job::is_name(&submission.name) {
            return wrong(
                "the name of a job has lower-case letters, digits and `-`, and begins with a letter",
            );
        }
        if submission.command.first().is_none_or(|program| program.trim().is_empty()) {
            return wrong("the job has no command");
        }
        let variables = submission.environment.iter().flat_map(|(name, value)| [name, value]);
        if submission.command.iter().chain(variables).any(|text| text.contains('\0')) {
            return wrong("an argument or a variable has a NUL character: leave it out");
        }
        let refused = |name: &&String| tidemill_spec::job::refusal(name).is_some();
        if let Some(name) = submission.environment.keys().find(refused) {
            return wrong(&format!("`{name}` is not a name for a variable: write letters, digits and `_`"));
        }
        let longest = tidemill_spec::job::LONGEST_CHECKPOINT;
        if submission.checkpoint_within_milliseconds > longest.0 / 1_000_000 {
            return wrong(&format!("the time for a checkpoint is too long: write at most `{longest}`"));
        }
        if submission.gang == 0 || submission.gang > tidemill_spec::job::MOST_TASKS {
            return wrong("the number of tasks is not possible: write 1 to 4096");
        }
        if !(submission.cores.is_finite() && submission.cores > 0.0) {
            return wrong("a task needs processors: write a number above 0");
        }
        let least = tidemill_spec::job::LEAST_MEMORY;
        if submission.memory_bytes < least.0 {
            return wrong(&format!("a task needs memory: write at least `{least}`"));
        }
        let missing = submission.files.iter().find(|file| !self.blobs.has(&file.digest));
        match missing {
            Some(file) => wrong(&format!("the file `{}` was not sent: submit the job again", file.path)),
            None => Ok(()),
        }
    }

    /// Cancels a job.
    pub(crate) fn cancel_job(&self, id: &str, by: &str) -> Result<JobView, JobError> {
        self.change_jobs(|document, news| {
            let Some(job) = document.jobs.get_mut(id).filter(|job| !job.state.is_over()) else {
                return ((), Vec::new());
            };
            let within = job.submission.checkpoint_within_milliseconds.min(CANCEL_WITHIN);
            let settled = job.stop(Verdict::Cancelled(format!("{by} cancels it")), within);
            let events = settled.map(|settled| settle(document, id, settled, news));
            ((), events.unwrap_or_default())
        })?;
        self.job_view(id).ok_or_else(|| JobError::NoSuch(id.to_owned()))
    }

    /// Digests of files that jobs need.
    pub(crate) fn files_of_jobs(document: &Document) -> impl Iterator<Item = String> {
        document.jobs.values().flat_map(|job| {
            let checkpoints = job.tasks.iter().filter(|_| !job.state.is_over());
            let checkpoints = checkpoints.flat_map(|task| &task.checkpoint).flat_map(|one| &one.files);
            let results = job.results.iter().map(|result| &result.file);
            let files = job.submission.files.iter().chain(checkpoints).chain(results);
            files.map(|file| file.digest.clone()).collect::<Vec<_>>()
        })
    }
}

/// Applies the settings of this process to a queue of the one before.
fn configure(shared: &Shared) {
    let is_other = shared.facts.look(|document| {
        document.queue.queue.as_ref().is_some_and(|queue| *queue.settings() != shared.job_settings)
    });
    if !is_other {
        return;
    }
    let configured = shared.facts.change(|document| {
        let facts = Arc::make_mut(&mut document.queue);
        facts.queue_mut(&shared.job_settings).map(|queue| queue.configure(shared.job_settings.clone()))
    });
    match configured {
        Ok(Some(Err(error))) => tracing::error!("the queue of jobs keeps its settings: {error}"),
        Err(error) => tracing::error!("cannot store the settings of the queue of jobs: {error}"),
        Ok(_) => {}
    }
}

/// Gives the queue what it cannot know: capacities, lost workers, and the time.
pub(super) fn watch(shared: &Arc<Shared>) {
    let begun = instant();
    configure(shared);
    while !shared.is_ending() {
        std::thread::park_timeout(LOOK);
        let has_jobs = shared.facts.look(|document| document.jobs.values().any(|job| !job.state.is_over()));
        if !has_jobs {
            continue;
        }
        let wakes = shared.facts.look(|document| {
            let queue = document.queue.queue.as_ref()?;
            queue.next_wake()
        });
        let mut events = shared.changed_capacities();
        if events.is_empty() && wakes.is_some_and(|wake| wake <= now()) {
            events.push(Event::Tick);
        }
        if !events.is_empty()
            && let Err(error) = shared.change_jobs(|_, _| ((), events))
        {
            tracing::error!("cannot store the queue of jobs: {error}");
        }
        shared.miss_tasks(begun.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_counts_until_now_while_a_job_runs() {
        let mut queue = Queue::new(Settings::default(), []).unwrap();
        let capacity = Resources { millicores: 1_000, memory: 1 << 30, ..Resources::default() };
        let machine = "one".to_owned();
        let joined = Event::Capacity {
            machine,
            capacity: capacity.clone(),
            within: Time(0),
            cause: tidemill_jobs::Cause::default(),
        };
        queue.apply(Time(0), joined).unwrap();
        queue
            .apply(Time(0), Event::Submitted { job: Job::new("a-1".to_owned(), 1, capacity, Time(0)) })
            .unwrap();
        assert!((service(queue.account("a-1").unwrap(), Time(9_000))).abs() < 1e-9, "it has not begun");
        queue.apply(Time(1_000), Event::Started { job: "a-1".to_owned() }).unwrap();
        let after = |seconds: u64| service(queue.account("a-1").unwrap(), Time(1_000 + 1_000 * seconds));
        assert!(
            after(10) > 0.0 && (after(20) - 2.0 * after(10)).abs() < 1e-9,
            "{} and {}",
            after(10),
            after(20)
        );
    }
}
