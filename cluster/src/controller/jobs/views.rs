//! Jobs as people see them.
use super::{now, service};
use crate::agent::tasks::log_of;
use crate::api::{JobExplanation, JobState, JobView, LogLine, TaskView};
use crate::controller::{Shared, locked};
use crate::facts::{Document, JobFacts, TaskFacts, TaskStep};
use std::collections::BTreeMap;
use std::time::Duration;
use tidemill_jobs::{Phase, Reason};

fn view(document: &Document, id: &str, job: &JobFacts) -> JobView {
    let account = document.queue.queue.as_ref().and_then(|queue| queue.account(id));
    let service_seconds = account.map_or(job.service_seconds, |account| service(account, now()));
    let because = match (job.state, account) {
        (JobState::Waiting, Some(account)) => Some(account.reason.to_string()),
        _ => job.because.clone(),
    };
    let obstacle = account.and_then(|account| match &account.reason {
        Reason::TooWide { .. } if account.phase == Phase::Waiting => Some(account.reason.to_string()),
        _ => None,
    });
    let task = |(rank, task): (usize, &TaskFacts)| TaskView {
        rank: u32::try_from(rank).unwrap_or(u32::MAX),
        worker: task.worker.clone().filter(|_| task.step != TaskStep::Idle || job.state.is_over()),
        incarnation: task.incarnation,
        checkpoint_bytes: task.checkpoint.as_ref().map(crate::api::Checkpoint::bytes),
        progress: task.checkpoint.as_ref().and_then(|checkpoint| checkpoint.progress),
        words: task.checkpoint.as_ref().and_then(|checkpoint| checkpoint.words.clone()),
        is_done: task.is_done,
        is_lost: task.is_lost,
    };
    JobView {
        job: id.to_owned(),
        user: job.user.clone(),
        kind: job.submission.kind,
        state: job.state,
        because,
        obstacle,
        since: job.since.clone(),
        gang: job.submission.gang,
        service_seconds,
        preemptions: job.preemptions,
        submitted: job.submitted.clone(),
        tasks: job.tasks.iter().enumerate().map(task).collect(),
        results: job.results.clone(),
    }
}

impl Shared {
    /// One job.
    pub(crate) fn job_view(&self, id: &str) -> Option<JobView> {
        self.facts.look(|document| document.jobs.get(id).map(|job| view(document, id, job)))
    }

    /// All jobs in the order of their submissions.
    pub(crate) fn job_views(&self) -> Vec<JobView> {
        self.facts.look(|document| {
            let mut jobs: Vec<(&String, &JobFacts)> = document.jobs.iter().collect();
            jobs.sort_by_key(|(_, job)| job.number);
            jobs.into_iter().map(|(id, job)| view(document, id, job)).collect()
        })
    }

    /// Reasons for the state of a job.
    pub(crate) fn explain_job(&self, id: &str) -> Option<JobExplanation> {
        let silent: BTreeMap<String, Duration> = {
            let workers = locked(&self.workers);
            let silent = workers.iter().filter(|(_, live)| !live.is_alive);
            silent.map(|(name, live)| (name.clone(), live.heard.elapsed())).collect()
        };
        self.facts.look(|document| {
            let job = document.jobs.get(id)?;
            let explanation = document.queue.queue.as_ref().and_then(|queue| queue.explain(id));
            let now = match explanation {
                Some(explanation) => {
                    let mut text = explanation.to_string();
                    let there = |name: &String| {
                        job.tasks.iter().any(|task| task.worker.as_ref() == Some(name) && task.step != TaskStep::Idle)
                    };
                    for (name, time) in silent.iter().filter(|(name, _)| there(name)) {
                        text += &format!(
                            "\n  silent       worker {name}, for {:.0} s; its tasks stay there until its lease ends",
                            time.as_secs_f64()
                        );
                    }
                    if let Some(queue) = &document.queue.queue {
                        text += &format!("\n  policy       {}", queue.settings().policy);
                        if queue.uses_history() {
                            let count = queue.history().len();
                            let plural = if count == 1 { "" } else { "s" };
                            text += &format!(", with the services of {count} ended job{plural}");
                        }
                    }
                    text
                }
                None => match &job.because {
                    Some(because) => format!("{}: {because}", job.state),
                    None => job.state.to_string(),
                },
            };
            let history = job.history.iter().cloned().collect();
            Some(JobExplanation { job: view(document, id, job), now, history })
        })
    }

    /// Lines of the log of a job after a number.
    pub(crate) fn job_logs(&self, id: &str, after: u64) -> Vec<LogLine> {
        self.logs.behind(&log_of(id), after)
    }

    /// Number of jobs by state, and of preemptions.
    pub(crate) fn job_counts(&self) -> (BTreeMap<JobState, usize>, u64) {
        self.facts.look(|document| {
            let mut counts: BTreeMap<JobState, usize> =
                JobState::ALL.into_iter().map(|state| (state, 0)).collect();
            document.jobs.values().for_each(|job| *counts.entry(job.state).or_default() += 1);
            (counts, document.queue.preemptions)
        })
    }
}
