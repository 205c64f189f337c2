//! The queue of jobs. The policies are those of `tidemill-jobs`, which also the simulation uses: it gets events, and its decisions are carried
//! out in the same change of the facts, before any worker gets them.
//!
//! | question | module |
//! |---|---|
//! | what becomes of a job? | `course` |
//! | what must a worker have, and what does it report? | `duties` |
//! | what is left for jobs, and when do they give way? | `capacity` |
//! | what do people see and ask for? | `views`, `requests` |
mod capacity;
mod course;
mod duties;
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
use tidemill_jobs::{Action, Decision, Event, Job, Phase, Queue, Resources, Settings, Time};

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
    /// Name of the policy.
    pub policy: String,
    /// Silence of the controller after which a worker ends its tasks, and silence of a worker after which its tasks may start elsewhere.
    pub lease: Duration,
    /// Time within which jobs leave what a stream needs.
    pub give_back: Duration,
}

impl Default for JobOptions {
    fn default() -> Self {
        Self {
            policy: tidemill_jobs::policy::DEFAULT.to_owned(),
            lease: Duration::from_secs(30),
            give_back: Duration::from_secs(10),
        }
    }
}

impl JobOptions {
    /// Settings of the queue.
    ///
    /// # Errors
    /// There is no such policy, or it needs a history.
    pub fn settings(&self) -> Result<Settings, tidemill_jobs::SettingsError> {
        let settings = Settings { policy: self.policy.clone(), ..Settings::default() };
        Queue::new(settings.clone(), []).map(|_| settings)
    }
}

/// Reason for a refused request about a job.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    #[error("{0}")]
    Wrong(String),
    #[error("there is no job `{0}`: `tidemill job queue` lists all")]
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
        devices: submission.device.iter().map(|kind| (kind.clone(), 1)).collect(),
        ..Resources::default()
    }
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
    let service = account.map_or(0.0, |account| account.service.slot_seconds());
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
            let old = forget_old(document);
            let job = Job {
                user: by.to_owned(),
                kind: submission.kind.to_string(),
                is_preemptible: submission.preemptible,
                checkpoint_within: Time(submission.checkpoint_within_milliseconds),
                ..Job::new(id.clone(), submission.gang, demand(&submission), now())
            };
            ((id, old), capacities.into_iter().chain([Event::Submitted { job }]).collect())
        })?;
        for old in old {
            self.logs.forget(&log_of(&old));
            let _ = std::fs::remove_dir_all(self.run_folder(&log_of(&old))); // it may have none
        }
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
        if submission.command.is_empty() {
            return wrong("the job has no command");
        }
        if submission.gang == 0 || submission.gang > tidemill_spec::job::MOST_TASKS {
            return wrong("the number of tasks is not possible: write 1 to 4096");
        }
        if !(submission.cores.is_finite() && submission.cores > 0.0) || submission.memory_bytes == 0 {
            return wrong("a task needs processors and memory: write numbers above 0");
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

/// Removes the oldest ended jobs beyond the limit; their names.
fn forget_old(document: &mut Document) -> Vec<String> {
    let mut ended: Vec<(u64, String)> = document
        .jobs
        .iter()
        .filter(|(_, job)| job.state.is_over())
        .map(|(id, job)| (job.number, id.clone()))
        .collect();
    ended.sort();
    let surplus = ended.len().saturating_sub(MOST_ENDED);
    let old: Vec<String> = ended.into_iter().take(surplus).map(|(_, id)| id).collect();
    for id in &old {
        document.jobs.remove(id);
    }
    old
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
