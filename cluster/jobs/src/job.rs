//! Jobs and machines, as the queue gets them.
use crate::{Resources, Time};
use serde::{Deserialize, Serialize};

/// A job: a gang of equal tasks that start together or not at all.
///
/// ```
/// use tidemill_jobs::{Job, Resources, Time};
/// let job = Job::new("train-1", 4, Resources::of_slots(1), Time::of_seconds(10));
/// assert!(job.is_preemptible && job.duration.is_none());
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Unique id in the queue.
    pub id: String,
    /// The user who submitted it; empty: not known.
    #[serde(default)]
    pub user: String,
    /// Kind of work, such as `command` or `profile`; the queue only keeps it.
    #[serde(default)]
    pub kind: String,
    /// Width of the gang, at least 1.
    pub tasks: u32,
    /// Resources of each task.
    pub demand: Resources,
    /// Time of the submission.
    pub submitted: Time,
    /// Whether a policy may preempt it. Capacity that is taken back stops any job.
    pub is_preemptible: bool,
    /// Running time without interruptions, for the policies that need it (`srtf`, `srsf`); none: not known.
    #[serde(default)]
    pub duration: Option<Time>,
    /// Size of the largest tensor as a part of the model's size, 0 to 1; none: not known yet.
    #[serde(default)]
    pub skew: Option<f64>,
    /// Time that it may take to write a checkpoint and leave when it is preempted.
    pub checkpoint_within: Time,
}

impl Job {
    /// Default of [`Job::checkpoint_within`].
    pub const CHECKPOINT_WITHIN: Time = Time::of_seconds(30);

    /// Creates a preemptible job of an unknown duration.
    pub fn new(id: impl Into<String>, tasks: u32, demand: Resources, submitted: Time) -> Self {
        Self {
            id: id.into(),
            user: String::new(),
            kind: String::new(),
            tasks,
            demand,
            submitted,
            is_preemptible: true,
            duration: None,
            skew: None,
            checkpoint_within: Self::CHECKPOINT_WITHIN,
        }
    }
}

/// A machine with the resources that jobs may use: what streams have reserved is not part of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Unique name.
    pub name: String,
    /// Resources for jobs.
    pub capacity: Resources,
    /// Whether it does not report at present: its jobs stay, and none starts there.
    #[serde(default)]
    pub is_silent: bool,
}

impl Machine {
    /// Creates a machine.
    pub fn new(name: impl Into<String>, capacity: Resources) -> Self {
        Self { name: name.into(), capacity, is_silent: false }
    }
}

/// Tasks of a job on one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Name of the machine.
    pub machine: String,
    /// Number of tasks, at least 1.
    pub tasks: u32,
}
