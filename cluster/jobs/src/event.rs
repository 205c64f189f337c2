//! Events that the queue gets, decisions that it makes, and reasons that people can read.
use crate::{Job, Resources, Share, Time};
use serde::{Deserialize, Serialize};
use std::fmt;

/// An observation of the caller: a controller, or the simulator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// A job was submitted.
    Submitted {
        /// The job.
        job: Job,
    },
    /// All tasks of a job that was to start compute now: its service begins to count.
    Started {
        /// Id of the job.
        job: String,
    },
    /// A job wrote a checkpoint: it falls back to here if it is lost.
    Checkpointed {
        /// Id of the job.
        job: String,
    },
    /// A job reported its progress; it refines the remaining time where a duration is known.
    Progressed {
        /// Id of the job.
        job: String,
        /// Part of the work that is done, 0 to 1.
        share: f64,
    },
    /// The skew of a job's tensors was measured.
    Measured {
        /// Id of the job.
        job: String,
        /// Size of the largest tensor as a part of the model's size, 0 to 1.
        skew: f64,
    },
    /// A job is complete, and its machines are free. It leaves the queue.
    Ended {
        /// Id of the job.
        job: String,
    },
    /// A job failed for good, and its machines are free. It leaves the queue.
    Failed {
        /// Id of the job.
        job: String,
    },
    /// A job was cancelled, and its machines are free. It leaves the queue.
    Cancelled {
        /// Id of the job.
        job: String,
    },
    /// A preempted job has left its machines. It waits again.
    Released {
        /// Id of the job.
        job: String,
        /// Whether it wrote a checkpoint; otherwise it falls back to the last one.
        is_kept: bool,
    },
    /// A start failed, or a task or machine died, and nothing of the job is left on its machines. It waits again, from its last
    /// checkpoint.
    Lost {
        /// Id of the job.
        job: String,
    },
    /// Tasks of a job that continues without them have died, and what they had of a machine is free.
    Shrunk {
        /// Id of the job.
        job: String,
        /// Name of the machine.
        machine: String,
        /// Number of tasks.
        tasks: u32,
    },
    /// A machine does not report. Its jobs stay until they are [`Event::Lost`], and no job starts there until the next
    /// [`Event::Capacity`].
    Silent {
        /// Name of the machine.
        machine: String,
    },
    /// A machine has other resources for jobs than before: it joined, left (nothing), or streams took or returned some.
    Capacity {
        /// Name of the machine.
        machine: String,
        /// Resources for jobs from now on.
        capacity: Resources,
        /// Time within which jobs above that must have left. Preempted jobs get the lesser of this and their own
        /// [`Job::checkpoint_within`].
        within: Time,
        /// Cause, if it is less.
        #[serde(default)]
        cause: Cause,
    },
    /// Time passed: [`Queue::next_wake`](crate::Queue::next_wake) is reached.
    Tick,
}

/// Cause of less resources for jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Streams need them.
    #[default]
    Streams,
    /// The machine is drained: it shall take no work.
    Drained,
    /// The machine offers less.
    Smaller,
}

/// A decision about one job. The caller carries it out and reports the result as an [`Event`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Id of the job.
    pub job: String,
    /// Action to carry out.
    pub action: Action,
    /// Reason for people.
    pub reason: Reason,
}

/// An action on a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Start all tasks. The resources are free now. Answered by [`Event::Started`] or [`Event::Lost`].
    Start {
        /// Tasks by machine, in the order of the machines' names.
        shares: Vec<Share>,
        /// Whether it ran before and should continue from its checkpoint.
        is_resumed: bool,
    },
    /// Stop all tasks: let them write a checkpoint, kill what is left at the deadline. Answered by [`Event::Released`].
    Preempt {
        /// Point of time at which no task may be left.
        deadline: Time,
    },
}

/// Reason for a decision, or for a job's wait. `Display` gives a sentence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum Reason {
    /// It was submitted and not judged yet.
    New,
    /// Its turn came, and all its tasks fit.
    Fits {
        /// Its rank in words.
        rank: String,
        /// Machines in words.
        placement: String,
    },
    /// Another job with a better rank needs its machines.
    Overtaken {
        /// The other job.
        by: String,
        /// The other job's rank in words.
        rank: String,
        /// Its own rank in words.
        own_rank: String,
    },
    /// The machine has less for jobs.
    CapacityTaken {
        /// The machine.
        machine: String,
        /// Cause.
        #[serde(default)]
        cause: Cause,
    },
    /// More than all machines together have for jobs.
    TooWide {
        /// Tasks that would fit at once if there were no other job.
        most: u64,
        /// Tasks that it needs.
        tasks: u32,
        /// The resource that is scarce, in words; none: of an earlier version.
        #[serde(default)]
        obstacle: Option<String>,
    },
    /// Jobs with a better rank, or that cannot be preempted, leave too little.
    Behind {
        /// Tasks that fit now.
        fit: u64,
        /// Tasks that it needs.
        tasks: u32,
        /// The jobs that hold or will get the rest, at most three.
        ahead: Vec<String>,
    },
    /// Its machines are reserved, and it starts when preempted jobs have left them.
    Release {
        /// The jobs that are leaving.
        of: Vec<String>,
    },
    /// The jobs that it may preempt have only just started.
    Protected {
        /// Earliest end of their protection.
        until: Time,
    },
    /// The policy starts no job before those that were submitted earlier.
    Blocked {
        /// The job that does not fit.
        by: String,
    },
    /// No job starts until a job that has waited for too long fits.
    Held {
        /// The job that has waited for too long.
        by: String,
    },
    /// Its start failed, or a task or machine died.
    Lost,
}

impl Reason {
    /// Returns the same reason for a wider gang of the same demand.
    pub(crate) fn for_gang(&self, tasks: u32) -> Self {
        match self.clone() {
            Self::Behind { fit, ahead, .. } => Self::Behind { fit, tasks, ahead },
            other => other,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New => f.write_str("submitted"),
            Self::Fits { rank, placement } => write!(f, "its turn ({rank}), and all tasks fit: {placement}"),
            Self::Overtaken { by, rank, own_rank } => {
                write!(f, "{by} ({rank}) ranks before it ({own_rank}) and needs its machines")
            }
            Self::CapacityTaken { machine, cause } => match cause {
                Cause::Streams => write!(f, "{machine} has less for jobs now: streams need it"),
                Cause::Drained => write!(f, "{machine} is drained"),
                Cause::Smaller => write!(f, "{machine} has less for jobs now: its agent offers less"),
            },
            Self::TooWide { obstacle: Some(obstacle), .. } => f.write_str(obstacle),
            Self::TooWide { most, tasks, .. } => {
                write!(f, "needs {tasks} tasks at once; without other jobs {most} would fit")
            }
            Self::Behind { fit, tasks, ahead } if ahead.is_empty() => {
                write!(f, "{fit} of {tasks} tasks fit, after those of jobs before it")
            }
            Self::Behind { fit, tasks, ahead } => {
                write!(f, "{fit} of {tasks} tasks fit; machines are held by {}", ahead.join(", "))
            }
            Self::Release { of } => write!(f, "starts when {} left the machines", has_left(of)),
            Self::Protected { until } => {
                write!(f, "the jobs after it have only just started; they may be preempted from {until} on")
            }
            Self::Blocked { by } => write!(f, "{by} was submitted earlier and does not fit"),
            Self::Held { by } => write!(f, "{by} has waited for too long: no job starts until it fits"),
            Self::Lost => f.write_str("its start failed, or a task or machine died"),
        }
    }
}

fn has_left(jobs: &[String]) -> String {
    format!("{} {}", jobs.join(", "), if jobs.len() == 1 { "has" } else { "have" })
}
