//! Jobs of the queue, and their tasks on workers.
use super::BundleFile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use tidemill_spec::job::{JobKind, StopSignal};

/// A job to queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobSubmission {
    /// Its name; the queue appends a number.
    pub name: String,
    /// Its kind.
    pub kind: JobKind,
    /// Program and arguments of each task. `tidemill` is the program of the worker.
    pub command: Vec<String>,
    /// Number of tasks.
    pub gang: u32,
    /// Processors of each task.
    pub cores: f64,
    /// Bytes of memory of each task.
    pub memory_bytes: u64,
    /// Type of the accelerator of each task.
    #[serde(default)]
    pub device: Option<String>,
    /// Its tasks may be ended early, and started again from their checkpoints.
    pub preemptible: bool,
    /// Time between the signal to a task and its end, milliseconds.
    pub checkpoint_within_milliseconds: u64,
    /// The signal.
    #[serde(default)]
    pub signal: StopSignal,
    /// Variables of the tasks.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Files that each task finds in its folder.
    #[serde(default)]
    pub files: Vec<BundleFile>,
    /// Files and folders in the folder of a task that are kept after its end.
    #[serde(default)]
    pub results: Vec<String>,
    /// Tasks that may be lost while the others continue.
    #[serde(default)]
    pub survive: u32,
}

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It waits for machines.
    Waiting,
    /// Its machines fetch its files.
    Starting,
    /// Its tasks run.
    Running,
    /// Its tasks write their checkpoints and end.
    Stopping,
    /// All tasks have ended with success.
    Complete,
    /// A task has failed.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl JobState {
    /// All states.
    pub const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Starting,
        Self::Running,
        Self::Stopping,
        Self::Complete,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Whether it has ended for good.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Complete | Self::Failed | Self::Cancelled)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Waiting => "waiting",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Complete => "complete",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        })
    }
}

/// A job of the queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobView {
    /// Its name with its number: `train-7`.
    pub job: String,
    /// Who submitted it.
    pub user: String,
    /// Its kind.
    pub kind: JobKind,
    /// Its state.
    pub state: JobState,
    /// Reason of the state, in words.
    pub because: Option<String>,
    /// The resource that it lacks even if no other job ran, in words; none: it fits.
    #[serde(default)]
    pub obstacle: Option<String>,
    /// Time since which it is in this state.
    pub since: String,
    /// Number of its tasks.
    pub gang: u32,
    /// Service that it has attained: processors, memory or devices times seconds, as shares of a machine's unit.
    pub service_seconds: f64,
    /// Number of times that it was ended early for others.
    pub preemptions: u32,
    /// Time of the submission.
    pub submitted: String,
    /// Its tasks.
    pub tasks: Vec<TaskView>,
    /// Files that it left.
    pub results: Vec<JobResult>,
}

/// Ended jobs to remove, with their results and logs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRemoval {
    /// These.
    #[serde(default)]
    pub jobs: Vec<String>,
    /// All that have ended.
    #[serde(default)]
    pub ended: bool,
}

/// Jobs that were removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobsRemoved {
    /// Their names.
    pub jobs: Vec<String>,
}

/// A task of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskView {
    /// Its number, from 0.
    pub rank: u32,
    /// Its worker.
    pub worker: Option<String>,
    /// Number of its starts.
    pub incarnation: u64,
    /// Bytes of its last checkpoint; none: there is none.
    pub checkpoint_bytes: Option<u64>,
    /// Share of its work that is done, 0 to 1, as its checkpoint says.
    pub progress: Option<f64>,
    /// More about its work, as its checkpoint says.
    #[serde(default)]
    pub words: Option<String>,
    /// It has ended with success.
    pub is_done: bool,
    /// It is lost, and the others continue without it.
    #[serde(default)]
    pub is_lost: bool,
}

/// A file that a job left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobResult {
    /// Number of the task.
    pub rank: u32,
    /// The file.
    pub file: BundleFile,
}

/// Decision about a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobReason {
    /// Time of the decision.
    pub time: String,
    /// The decision and its reason, for people.
    pub text: String,
}

/// Reasons for the state of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobExplanation {
    /// The job.
    pub job: JobView,
    /// The reason why it waits or runs now.
    pub now: String,
    /// Decisions so far, the oldest first.
    pub history: Vec<JobReason>,
}

/// A checkpoint of a task: the files of its folder for checkpoints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Counts the checkpoints of the task.
    pub number: u64,
    /// Its files.
    pub files: Vec<BundleFile>,
    /// Folders without files in them.
    #[serde(default)]
    pub folders: Vec<String>,
    /// Share of the work that is done, 0 to 1, if the task says so.
    #[serde(default)]
    pub progress: Option<f64>,
    /// More about the work, for people, if the task says it.
    #[serde(default)]
    pub words: Option<String>,
}

impl Checkpoint {
    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// Tasks that a worker must have, and until when.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobDuties {
    /// Time after the heartbeat from which on its tasks end unless another heartbeat is answered, milliseconds.
    pub lease_milliseconds: u64,
    /// Its tasks; it ends all others.
    pub tasks: Vec<TaskDuty>,
}

/// A task that a worker must have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskDuty {
    /// The job.
    pub job: String,
    /// Number of the task, from 0.
    pub rank: u32,
    /// Number of its start: a worker ends an older one first.
    pub incarnation: u64,
    /// Order for the worker.
    pub order: TaskOrder,
    /// Number of its last checkpoint that the controller knows.
    pub checkpoint: u64,
    /// Its task; none: the worker has reported that it knows it.
    #[serde(default)]
    pub task: Option<Box<TaskAssignment>>,
}

/// Order for a task on a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum TaskOrder {
    /// Fetches its files, and waits.
    Prepare,
    /// Runs it.
    Run {
        /// `HOST:PORT` for the first task of the gang, which others connect to.
        first: String,
    },
    /// Asks it for a checkpoint and its end, and ends it after a time.
    Stop {
        /// The time in milliseconds.
        within_milliseconds: u64,
        /// The reason, for people.
        why: String,
    },
}

/// A task, for the worker that runs it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskAssignment {
    /// Who submitted the job.
    pub user: String,
    /// Number of tasks of the gang.
    pub world: u32,
    /// The job.
    pub submission: JobSubmission,
    /// The checkpoint that it continues from.
    #[serde(default)]
    pub from: Option<Checkpoint>,
}

/// State of a task on a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskStatus {
    /// The job.
    pub job: String,
    /// Number of the task.
    pub rank: u32,
    /// Number of its start.
    pub incarnation: u64,
    /// Its stage.
    pub stage: TaskStage,
    /// A checkpoint that the controller does not know yet and has all files of.
    #[serde(default)]
    pub checkpoint: Option<Checkpoint>,
}

/// Stage of a task on a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum TaskStage {
    /// Its files are being fetched.
    Preparing,
    /// It can start.
    Ready {
        /// A free port of the worker.
        port: u16,
    },
    /// It runs.
    Running,
    /// Its processes have ended; its checkpoint or its results are being sent.
    Saving,
    /// It has ended.
    Ended {
        /// How.
        end: TaskEnd,
    },
}

/// End of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum TaskEnd {
    /// With success.
    Done {
        /// Files that it left; the controller has them.
        results: Vec<BundleFile>,
    },
    /// Before its work was done: it can continue.
    Released {
        /// The reason, for people.
        why: String,
        /// It was not asked to stop: it left `RESUME` by itself.
        #[serde(default)]
        is_unasked: bool,
    },
    /// With a failure.
    Failed {
        /// The reason, for people.
        why: String,
    },
    /// Before it ran.
    NotStarted {
        /// The reason, for people.
        why: String,
    },
}
