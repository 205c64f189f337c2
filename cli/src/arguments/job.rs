//! `tidemill job`: work that ends, in the queue of a cluster.
#[cfg(feature = "cluster")]
mod queue;
mod simulation;

#[cfg(feature = "cluster")]
pub(crate) use queue::{
    FetchJobArguments, JobChoice, JobLogsArguments, QueueArguments, RemoveJobsArguments, SubmitJobArguments,
};
pub(crate) use simulation::SimulateJobsArguments;
#[cfg(feature = "cluster")]
pub(crate) use simulation::{Knob, Thresholds, parse_knob, parse_thresholds};

use clap::Subcommand;

/// A verb of `tidemill job`.
#[derive(Debug, Subcommand)]
pub(crate) enum JobVerb {
    /// Queue a job: a file, or a command.
    #[cfg(feature = "cluster")]
    Submit(Box<SubmitJobArguments>),
    /// List the jobs of the queue.
    #[cfg(feature = "cluster")]
    #[command(alias = "ls")]
    Queue(QueueArguments),
    /// Show a job: its tasks, checkpoints and results.
    #[cfg(feature = "cluster")]
    Status(JobChoice),
    /// Print the output of the tasks of a job.
    #[cfg(feature = "cluster")]
    Logs(JobLogsArguments),
    /// End a job for good.
    #[cfg(feature = "cluster")]
    Cancel(JobChoice),
    /// Delete jobs that have ended, with their results and logs.
    #[cfg(feature = "cluster")]
    #[command(visible_alias = "rm")]
    Remove(RemoveJobsArguments),
    /// Explain why a job waits, runs or was preempted.
    #[cfg(feature = "cluster")]
    Explain(JobChoice),
    /// Fetch the files that a job left.
    #[cfg(feature = "cluster")]
    Fetch(FetchJobArguments),
    /// Simulate policies of the queue with a trace of jobs.
    Simulate(Box<SimulateJobsArguments>),
}
