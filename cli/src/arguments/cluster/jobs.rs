//! Options of a controller for its queue of jobs.
use super::super::{parse_time, parse_wait};
use crate::arguments::job::{Knob, Thresholds, parse_knob, parse_thresholds};
use clap::Args;
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_cluster::controller::JobOptions;
use tidemill_jobs::{Settings, Time};

/// See the module.
#[derive(Debug, Args)]
pub(crate) struct JobQueueArguments {
    /// Order in which jobs get machines: `2d-las` (those that used least first), `2d-gittins` (as ended jobs suggest), `fifo`, `best-effort`.
    #[arg(long, value_name = "POLICY", default_value = "2d-las", help_heading = "Job options")]
    job_policy: String,
    /// Slot-seconds at which a job leaves each queue but the last, ascending; `none`: ranks are continuous.
    #[arg(long, value_name = "SERVICE,...", default_value = "3200", value_parser = parse_thresholds, help_heading = "Job options")]
    job_thresholds: Thresholds,
    /// Promote a job that waited this many times as long as it ran; `inf`: never.
    #[arg(long, value_name = "FACTOR", default_value = "inf", value_parser = parse_knob, help_heading = "Job options")]
    job_promote_knob: Knob,
    /// Time for which a started job is not preempted for another job.
    #[arg(long, value_name = "TIME", default_value = "1min", value_parser = parse_wait, help_heading = "Job options")]
    job_least_run: Duration,
    /// Silence of the controller after which a worker ends its tasks of jobs; after such a silence of a worker its tasks may start elsewhere.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time, help_heading = "Job options")]
    job_lease: Duration,
    /// Time within which jobs leave what a workflow needs; its processes start after it.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time, help_heading = "Job options")]
    job_give_back: Duration,
}

impl JobQueueArguments {
    /// Settings of the queue.
    pub(crate) fn options(&self) -> Result<JobOptions, Failure> {
        let usual = JobOptions::default();
        let options = JobOptions {
            queue: Settings {
                policy: self.job_policy.clone(),
                thresholds: self.job_thresholds.0.clone(),
                promote_knob: self.job_promote_knob.0,
                least_run: Time(u64::try_from(self.job_least_run.as_millis()).unwrap_or(u64::MAX)),
                ..usual.queue
            },
            lease: self.job_lease,
            give_back: self.job_give_back,
        };
        let wrong =
            |error: &dyn std::fmt::Display| Failure::new(Kind::Usage, format!("the queue of jobs: {error}"));
        options.settings().map_err(|error| wrong(&error))?;
        Ok(options)
    }
}
