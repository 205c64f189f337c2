//! Jobs and the queue, as the controller keeps them.
use crate::api::{Checkpoint, JobReason, JobResult, JobState, JobSubmission};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use tidemill_jobs::{Queue, Settings};

/// Decisions about a job that are kept.
const MOST_REASONS: usize = 100;

/// The queue, and the number of the last job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct QueueFacts {
    /// `None`: there was no job yet.
    pub(crate) queue: Option<Queue>,
    pub(crate) last_number: u64,
    /// Jobs that were ended early for others.
    #[serde(default)]
    pub(crate) preemptions: u64,
}

impl QueueFacts {
    /// The queue, with these settings if it begins now.
    pub(crate) fn queue_mut(&mut self, settings: &Settings) -> Option<&mut Queue> {
        if self.queue.is_none() {
            self.queue = Queue::new(settings.clone(), []).ok();
        }
        self.queue.as_mut()
    }
}

/// A job as submitted, and its course.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobFacts {
    pub(crate) number: u64,
    pub(crate) user: String,
    pub(crate) submission: JobSubmission,
    pub(crate) submitted: String,
    pub(crate) state: JobState,
    pub(crate) because: Option<String>,
    /// Time since which it is in its state.
    pub(crate) since: String,
    pub(crate) tasks: Vec<TaskFacts>,
    /// Its next state when its tasks have ended.
    pub(crate) verdict: Option<Verdict>,
    /// Time that its tasks have to end.
    pub(crate) stop_within_milliseconds: u64,
    pub(crate) preemptions: u32,
    /// Starts that have failed one after another.
    pub(crate) failed_starts: u32,
    /// Ends of tasks by themselves since the last checkpoint that differs from the one before.
    #[serde(default)]
    pub(crate) idle_ends: u32,
    /// Service in slot-seconds, once it is over.
    pub(crate) service_seconds: f64,
    pub(crate) results: Vec<JobResult>,
    pub(crate) history: VecDeque<JobReason>,
}

/// A task: its present start, and what it left.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TaskFacts {
    /// The worker of its last start.
    pub(crate) worker: Option<String>,
    /// Number of its starts.
    pub(crate) incarnation: u64,
    pub(crate) step: TaskStep,
    /// Process of the agent that has it; none: no agent has reported it.
    pub(crate) session: Option<u64>,
    /// A port on its worker.
    pub(crate) port: u16,
    pub(crate) checkpoint: Option<Checkpoint>,
    /// It has ended with success.
    pub(crate) is_done: bool,
    /// It is lost, and the others continue without it.
    #[serde(default)]
    pub(crate) is_lost: bool,
}

/// Step of a task on its worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TaskStep {
    /// It is on no worker.
    #[default]
    Idle,
    Preparing,
    Ready,
    Running,
    Stopping,
    /// Its processes have ended.
    Saving,
}

/// Next state of a job when its tasks have ended, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// It waits, and starts again.
    Again(String),
    Failed(String),
    Cancelled(String),
}

impl Verdict {
    /// The reason.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Again(why) | Self::Failed(why) | Self::Cancelled(why) => why,
        }
    }
}

impl JobFacts {
    pub(crate) fn new(number: u64, user: &str, submission: JobSubmission) -> Self {
        let now = tidemill_app::machine::now();
        let tasks = (0..submission.gang).map(|_| TaskFacts::default()).collect();
        Self {
            number,
            user: user.to_owned(),
            submission,
            submitted: now.clone(),
            state: JobState::Waiting,
            because: None,
            since: now,
            tasks,
            verdict: None,
            stop_within_milliseconds: u64::MAX,
            preemptions: 0,
            failed_starts: 0,
            idle_ends: 0,
            service_seconds: 0.0,
            results: Vec::new(),
            history: VecDeque::new(),
        }
    }

    /// Its name in the queue.
    pub(crate) fn id(&self) -> String {
        format!("{}-{}", self.submission.name, self.number)
    }

    /// Keeps a decision and its reason.
    pub(crate) fn note(&mut self, text: String) {
        self.history.push_back(JobReason { time: tidemill_app::machine::now(), text });
        while self.history.len() > MOST_REASONS {
            self.history.pop_front();
        }
    }
}
