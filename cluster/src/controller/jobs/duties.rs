//! Tasks that a worker must have, and what it reports of them.
use super::{MARGIN, milliseconds, settle};
use crate::api::{JobDuties, JobState, TaskAssignment, TaskDuty, TaskStatus};
use crate::controller::{Shared, locked};
use crate::facts::{JobFacts, TaskFacts, TaskStep};
use std::collections::BTreeSet;
use std::time::Duration;
use tidemill_jobs::Event;

impl Shared {
    /// Takes what a worker reports of its tasks.
    pub(crate) fn tasks_heard(&self, worker: &str, session: u64, statuses: &[TaskStatus]) {
        let changed: Vec<(String, Change)> = self.facts.look(|document| {
            let there = document.jobs.iter().filter(|(_, job)| is_at(job, worker));
            there
                .filter_map(|(id, job)| Some((id.clone(), changed(id, job, worker, session, statuses)?)))
                .collect()
        });
        if changed.is_empty() {
            return;
        }
        let kept = self.change_jobs(|document, news| {
            let mut events = Vec::new();
            for (id, _) in &changed {
                // It may have changed since the look.
                let Some(job) = document.jobs.get(id) else { continue };
                let Some(change) = changed_again(id, job, worker, session, statuses) else { continue };
                let has_begun = job.state == JobState::Starting && change.job.state == JobState::Running;
                let shrunk = shrunk(id, job, &change.job);
                document.jobs.insert(id.clone(), change.job);
                if has_begun {
                    events.push(Event::Started { job: id.clone() });
                    news.push(("job_running", id.clone(), format!("job {id} is running")));
                }
                events.extend(shrunk);
                if change.has_checkpoint {
                    events.push(Event::Checkpointed { job: id.clone() });
                }
                if let Some(settled) = change.settled {
                    events.extend(settle(document, id, settled, news));
                }
            }
            ((), events)
        });
        if let Err(error) = kept {
            tracing::error!("cannot store what worker {worker} reports of its tasks: {error}");
        }
    }

    /// Tasks that a worker must have now.
    pub(crate) fn job_duties(&self, worker: &str, statuses: &[TaskStatus]) -> JobDuties {
        let addresses = locked(&self.workers);
        let address = |name: &str| addresses.get(name).map_or("", |live| live.address.as_str()).to_owned();
        let tasks = self.facts.look(|document| {
            let mut tasks = Vec::new();
            for (id, job) in document.jobs.iter().filter(|(_, job)| is_at(job, worker)) {
                let first =
                    job.tasks.first().and_then(|task| task.worker.as_deref()).map_or(String::new(), address);
                for (rank, task) in job.tasks.iter().enumerate() {
                    if task.worker.as_deref() != Some(worker) {
                        continue;
                    }
                    let Some(order) = job.order(rank, &first) else { continue };
                    let rank = u32::try_from(rank).unwrap_or(u32::MAX);
                    let is_known = statuses.iter().any(|status| {
                        status.job == *id && status.rank == rank && status.incarnation == task.incarnation
                    });
                    let assignment = || TaskAssignment {
                        user: job.user.clone(),
                        world: job.submission.gang,
                        submission: job.submission.clone(),
                        from: task.checkpoint.clone(),
                    };
                    tasks.push(TaskDuty {
                        job: id.clone(),
                        rank,
                        incarnation: task.incarnation,
                        order,
                        checkpoint: task.checkpoint.as_ref().map_or(0, |one| one.number),
                        task: (!is_known).then(|| Box::new(assignment())),
                    });
                }
            }
            tasks
        });
        JobDuties { lease_milliseconds: milliseconds(self.job_options.lease), tasks }
    }

    /// Whether a worker has this start of a task: others may send no files for it.
    pub(crate) fn has_task(&self, worker: &str, job: &str, rank: u32, incarnation: u64) -> bool {
        self.facts.look(|document| {
            let task = document.jobs.get(job).and_then(|job| job.tasks.get(usize::try_from(rank).ok()?));
            task.is_some_and(|task| {
                task.worker.as_deref() == Some(worker)
                    && task.incarnation == incarnation
                    && task.step != TaskStep::Idle
            })
        })
    }

    /// Releases the tasks of workers whose leases have ended. A worker without a heartbeat to this process counts from its start on.
    pub(super) fn miss_tasks(&self, up: Duration) {
        let lease = self.job_options.lease;
        let names: BTreeSet<String> = self.facts.look(|document| {
            let tasks = document.jobs.values().filter(|job| !job.state.is_over()).flat_map(|job| &job.tasks);
            tasks.filter(|task| task.step != TaskStep::Idle).filter_map(|task| task.worker.clone()).collect()
        });
        let left = |name: &str| locked(&self.left).get(name).map(std::time::Instant::elapsed);
        let silence = |name: &str| self.silence(name).or_else(|| left(name)).unwrap_or(up);
        let silent = names.into_iter().map(|name| (silence(&name), name));
        for (silence, worker) in silent.filter(|(silence, _)| *silence > lease) {
            let kept = self.change_jobs(|document, news| {
                let ids: Vec<String> = document
                    .jobs
                    .iter()
                    .filter(|(_, job)| {
                        let within = Duration::from_millis(job.submission.checkpoint_within_milliseconds);
                        // A twentieth more, because two clocks do not go alike.
                        is_at(job, &worker) && silence > (lease + within) * 21 / 20 + MARGIN
                    })
                    .map(|(id, _)| id.clone())
                    .collect();
                let mut events = Vec::new();
                for id in ids {
                    let Some(job) = document.jobs.get_mut(&id) else { continue };
                    let why = format!("worker {worker} was silent until its lease ended");
                    let before = job.clone();
                    let settled = job.lost(&worker, &why, None);
                    events.extend(shrunk(&id, &before, job));
                    if let Some(settled) = settled {
                        events.extend(settle(document, &id, settled, news));
                    }
                }
                ((), events)
            });
            if let Err(error) = kept {
                tracing::error!("cannot store that worker {worker} is lost: {error}");
            }
        }
    }
}

/// Whether a job has a task on a worker.
fn is_at(job: &JobFacts, worker: &str) -> bool {
    let is_there = |task: &TaskFacts| task.step != TaskStep::Idle && task.worker.as_deref() == Some(worker);
    !job.state.is_over() && job.tasks.iter().any(is_there)
}

/// Events for the queue about tasks that a job continues without.
fn shrunk(id: &str, before: &JobFacts, after: &JobFacts) -> Vec<Event> {
    let both = before.tasks.iter().zip(&after.tasks);
    let lost = both.filter(|(before, after)| after.is_lost && !before.is_lost);
    let machines = lost.filter_map(|(_, task)| task.worker.clone());
    machines.map(|machine| Event::Shrunk { job: id.to_owned(), machine, tasks: 1 }).collect()
}

/// A job after a report.
struct Change {
    job: JobFacts,
    settled: Option<super::course::Settled>,
    has_checkpoint: bool,
}

/// `None`: the report changes nothing.
fn changed(id: &str, job: &JobFacts, worker: &str, session: u64, statuses: &[TaskStatus]) -> Option<Change> {
    let mut next = job.clone();
    let mut settled = None;
    let of_job = statuses.iter().filter(|status| status.job == id);
    for status in of_job {
        settled = next.heard(worker, session, status).or(settled);
    }
    // Tasks of an earlier process of the agent have ended with it.
    let is_reported = |rank: usize, incarnation: u64| {
        statuses.iter().any(|status| {
            status.job == id && status.rank as usize == rank && status.incarnation == incarnation
        })
    };
    let is_gone = next.tasks.iter().enumerate().any(|(rank, task)| {
        task.worker.as_deref() == Some(worker)
            && task.step != TaskStep::Idle
            && task.session.is_some_and(|known| known != session)
            && !is_reported(rank, task.incarnation)
    });
    if is_gone {
        let why = format!("the agent of worker {worker} was started again");
        settled = next.lost(worker, &why, Some(session)).or(settled);
    }
    let number = |job: &JobFacts| {
        job.tasks.iter().map(|task| task.checkpoint.as_ref().map_or(0, |one| one.number)).sum::<u64>()
    };
    let has_checkpoint = number(&next) > number(job);
    (next != *job).then_some(Change { job: next, settled, has_checkpoint })
}

fn changed_again(
    id: &str,
    job: &JobFacts,
    worker: &str,
    session: u64,
    statuses: &[TaskStatus],
) -> Option<Change> {
    if !is_at(job, worker) {
        return None;
    }
    changed(id, job, worker, session, statuses)
}
