//! Removes jobs that have ended, with their logs; their files go when no other job or run needs them.
use super::JobError;
use crate::agent::tasks::log_of;
use crate::api::{JobRemoval, JobsRemoved};
use crate::controller::Shared;
use crate::facts::Document;

/// Removes the oldest ended jobs beyond a number; their names.
pub(super) fn forget_old(document: &mut Document, most: usize) -> Vec<String> {
    let mut ended: Vec<(u64, String)> = document
        .jobs
        .iter()
        .filter(|(_, job)| job.state.is_over())
        .map(|(id, job)| (job.number, id.clone()))
        .collect();
    ended.sort();
    let surplus = ended.len().saturating_sub(most);
    let old: Vec<String> = ended.into_iter().take(surplus).map(|(_, id)| id).collect();
    for id in &old {
        document.jobs.remove(id);
    }
    old
}

impl Shared {
    /// Removes these jobs, or all that have ended. None is removed if one of them cannot be.
    pub(crate) fn remove_jobs(&self, wanted: &JobRemoval, by: &str) -> Result<JobsRemoved, JobError> {
        let removed = self.facts.change(|document| {
            for id in &wanted.jobs {
                match document.jobs.get(id) {
                    None => return Err(JobError::NoSuch(id.clone())),
                    Some(job) if !job.state.is_over() => {
                        return Err(JobError::Wrong(format!(
                            "job {id} is {}: end it first with `tidemill job cancel {id}`",
                            job.state
                        )));
                    }
                    Some(_) => {}
                }
            }
            let mut removed = if wanted.ended { forget_old(document, 0) } else { Vec::new() };
            for id in &wanted.jobs {
                if document.jobs.remove(id) {
                    removed.push(id.clone());
                }
            }
            Ok(removed)
        })??;
        self.forget_logs(&removed);
        for id in &removed {
            self.tell("job_removed", None, None, &format!("{by} removes job {id}"));
        }
        Ok(JobsRemoved { jobs: removed })
    }

    /// Removes the logs of jobs that are not kept any more.
    pub(super) fn forget_logs(&self, jobs: &[String]) {
        for job in jobs {
            self.logs.forget(&log_of(job));
            let _ = std::fs::remove_dir_all(self.run_folder(&log_of(job))); // it may have none
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{JobState, JobSubmission};
    use crate::facts::JobFacts;
    use tidemill_spec::job::{JobKind, StopSignal};

    #[test]
    fn the_oldest_that_ended_go_first() {
        let mut document = Document::default();
        for number in 1..=5 {
            let submission = JobSubmission {
                name: "a".into(),
                kind: JobKind::Command,
                command: vec!["true".into()],
                gang: 1,
                cores: 1.0,
                memory_bytes: 1 << 26,
                device: None,
                preemptible: true,
                checkpoint_within_milliseconds: 0,
                signal: StopSignal::default(),
                environment: std::collections::BTreeMap::new(),
                files: Vec::new(),
                results: Vec::new(),
                survive: 0,
            };
            let mut job = JobFacts::new(number, "ann", submission);
            if number != 2 {
                job.state = JobState::Complete;
            }
            document.jobs.insert(job.id(), job);
        }
        assert_eq!(forget_old(&mut document, 2), ["a-1", "a-3"]);
        assert_eq!(forget_old(&mut document, 0), ["a-4", "a-5"]);
        let left: Vec<&String> = document.jobs.keys().collect();
        assert_eq!(left, ["a-2"], "a job that runs stays");
    }
}
