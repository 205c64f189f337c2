//! Options of a controller for its queue of jobs.
use super::super::parse_time;
use clap::Args;
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_cluster::controller::JobOptions;

/// See the module.
#[derive(Debug, Args)]
pub(crate) struct JobQueueArguments {
    /// Order in which jobs get machines: `2d-las` (those that used least first), `fifo`, `best-effort`.
    #[arg(long, value_name = "POLICY", default_value = "2d-las", help_heading = "Job options")]
    job_policy: String,
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
        let options = JobOptions {
            policy: self.job_policy.clone(),
            lease: self.job_lease,
            give_back: self.job_give_back,
        };
        let wrong =
            |error: &dyn std::fmt::Display| Failure::new(Kind::Usage, format!("`--job-policy`: {error}"));
        options.settings().map_err(|error| wrong(&error))?;
        Ok(options)
    }
}
