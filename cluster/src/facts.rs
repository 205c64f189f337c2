//! Durable state of the controller: one document. Its changed parts are stored in the controller's folder, or where several controllers
//! share them.
mod folder;
mod in_database;
mod jobs;
mod keeper;
mod keyed;

use crate::api::{
    Bundle, Event, LossView, ModelView, NetPolicy, PlanChange, Planning, PromiseView, Proposal, Quota,
    Replan, RunState,
};
use crate::replanning::Use;
pub(crate) use folder::{has_change, line_of};
pub(crate) use jobs::{JobFacts, QueueFacts, TaskFacts, TaskStep, Verdict};
use keeper::Keeper;
pub(crate) use keyed::Keyed;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_postgres::{Lead, PostgresError};
use tidemill_spec::plan::Plan;

/// Number of events that are kept.
const MOST_EVENTS: usize = 2_000;
/// Excess events are dropped in batches of this size.
const EVENTS_AT_ONCE: usize = 200;

/// Failure to read or store the facts.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// An error of the operating system.
    #[error("{path}: {source}")]
    System {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The content is not valid.
    #[error("{path} is damaged: {reason}; restore a copy of it, or move it away to start without runs")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// Another version wrote it.
    #[error("{path} has version {found}, but this program writes {known}: use the program that wrote it")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version of this program.
        known: u32,
    },
    /// The shared store is unreachable, or another controller leads.
    #[error(transparent)]
    Shared(#[from] PostgresError),
    /// The facts cannot be written as JSON.
    #[error("cannot write the data of the controller: {0}")]
    Unwritable(serde_json::Error),
    /// A row in the shared store is not valid.
    #[error("{place}: the row `{name}` of kind `{kind}` is damaged: {reason}")]
    Row {
        /// The place.
        place: String,
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// The fault.
        reason: String,
    },
}

/// A run as submitted, and its course.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RunFacts {
    pub(crate) workflow: String,
    pub(crate) bundle: Bundle,
    pub(crate) plan: Plan,
    pub(crate) records: Option<u64>,
    /// Digest of the submission: an identical one is no other run.
    pub(crate) digest: String,
    /// Secret number, hexadecimal.
    pub(crate) secret: String,
    pub(crate) submitted: String,
    pub(crate) submitted_by: String,
    pub(crate) state: RunState,
    pub(crate) reason: Option<String>,
    /// Roles by worker of the plan.
    pub(crate) roles: BTreeMap<String, Role>,
    /// Records that arrived, dead letters and seconds, once it is over.
    pub(crate) last: Option<LastFigures>,
    /// Planning inputs and results.
    #[serde(default)]
    pub(crate) planned: PlannedFacts,
    /// Version of its plan.
    #[serde(default = "first_plan")]
    pub(crate) plan_version: u64,
    /// Changes of its plan, oldest first.
    #[serde(default)]
    pub(crate) changes: Vec<PlanChange>,
    /// A plan that is being prepared.
    #[serde(default)]
    pub(crate) next: Option<NextPlan>,
    /// The previous plan; the state may still belong to it.
    #[serde(default)]
    pub(crate) former: Option<FormerPlan>,
    /// Records per second of each source since the plan changed, which keeps them as they are.
    #[serde(default)]
    pub(crate) rates: Option<BTreeMap<String, Option<f64>>>,
    /// Counts under earlier plans.
    #[serde(default)]
    pub(crate) before: LastFigures,
    /// Files that its sinks write.
    #[serde(default)]
    pub(crate) outputs: Vec<Output>,
    /// Sources whose journals are on the workers that read them.
    #[serde(default)]
    pub(crate) streams: BTreeSet<String>,
    /// Delivery guarantees of its sinks.
    #[serde(default)]
    pub(crate) promises: Vec<PromiseView>,
    /// Path of the submitted files.
    #[serde(default)]
    pub(crate) sent_from: Option<String>,
    /// Service levels reported as missed.
    #[serde(default)]
    pub(crate) missed: BTreeSet<String>,
    /// Time of its end in Unix seconds.
    #[serde(default)]
    pub(crate) ended: Option<u64>,
    /// Losses that it has survived; none: its plan is whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) survived: Option<Box<Survived>>,
    /// Cancellation is requested, whichever controller drives the run.
    #[serde(default)]
    pub(crate) is_cancelled: bool,
}

/// Planning inputs and results of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PlannedFacts {
    /// `None`: its plan was submitted.
    pub(crate) planning: Option<Planning>,
    pub(crate) replan: Replan,
    pub(crate) quota: Quota,
    pub(crate) explanation: Vec<String>,
    pub(crate) proposal: Option<Proposal>,
    /// Usage of workers by plan mark: the present plan and some others.
    pub(crate) uses: Vec<(String, BTreeMap<String, Use>)>,
    /// Candidate models of the profile.
    #[serde(default)]
    pub(crate) models: Vec<ModelView>,
}

/// Workers that were lost to a run and whose stages other stages replace.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Survived {
    /// The plan before the first loss.
    pub(crate) plan: Plan,
    /// The losses, the oldest first.
    pub(crate) losses: Vec<LossView>,
}

/// A file that a sink writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Output {
    pub(crate) sink: String,
    /// The worker of the plan.
    pub(crate) role: String,
    /// As the workflow names it.
    pub(crate) path: String,
}

/// A removed run whose files workers may still have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Removed {
    pub(crate) run: String,
    pub(crate) id: String,
    /// Workers that have not confirmed the removal.
    pub(crate) workers: BTreeSet<String>,
}

fn first_plan() -> u64 {
    1
}

/// The next plan, with the places of its workers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NextPlan {
    pub(crate) plan: Plan,
    pub(crate) version: u64,
    pub(crate) roles: BTreeMap<String, Role>,
    /// The losses that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) survived: Option<Box<Survived>>,
}

/// A replaced plan, and the first version after it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FormerPlan {
    pub(crate) plan: Plan,
    pub(crate) roles: BTreeMap<String, Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) survived: Option<Box<Survived>>,
    /// Records have reached sinks under the next plan: it can no longer be restored.
    pub(crate) is_past: bool,
}

impl RunFacts {
    /// Roles of one of its plans; `None` if it has no such plan now.
    pub(crate) fn roles_of(&self, version: u64) -> Option<&BTreeMap<String, Role>> {
        if version == self.plan_version {
            return Some(&self.roles);
        }
        self.next.as_ref().filter(|next| next.version == version).map(|next| &next.roles)
    }

    /// Mutable form of [`RunFacts::roles_of`].
    pub(crate) fn roles_of_mut(&mut self, version: u64) -> Option<&mut BTreeMap<String, Role>> {
        if version == self.plan_version {
            return Some(&mut self.roles);
        }
        self.next.as_mut().filter(|next| next.version == version).map(|next| &mut next.roles)
    }
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct LastFigures {
    pub(crate) emitted: u64,
    pub(crate) arrived: u64,
    pub(crate) dead_letters: u64,
    pub(crate) restarts: u64,
    pub(crate) seconds: f64,
}

impl LastFigures {
    /// The larger of each figure.
    pub(crate) fn or_more(self, other: Self) -> Self {
        Self {
            emitted: self.emitted.max(other.emitted),
            arrived: self.arrived.max(other.arrived),
            dead_letters: self.dead_letters.max(other.dead_letters),
            restarts: self.restarts.max(other.restarts),
            seconds: self.seconds.max(other.seconds),
        }
    }

    /// Adds earlier counts.
    pub(crate) fn and(self, before: Self) -> Self {
        Self {
            emitted: self.emitted + before.emitted,
            arrived: self.arrived + before.arrived,
            dead_letters: self.dead_letters + before.dead_letters,
            restarts: self.restarts + before.restarts,
            seconds: self.seconds + before.seconds,
        }
    }
}

/// Place of a worker of a plan.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Role {
    /// The worker of the cluster.
    pub(crate) worker: Option<String>,
    /// Number of its processes so far.
    pub(crate) generation: u64,
    /// Its files exist nowhere else, so it stays in place.
    pub(crate) is_bound: bool,
    /// Silence of its worker before it may move: its process continues alone until shortly before (`when_cut`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) held_milliseconds: Option<u64>,
    /// Backends that its stages name, each with an operator that needs it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) backends: BTreeMap<String, String>,
}

impl Role {
    /// Silence of its worker before it may move.
    pub(crate) fn held(&self) -> Duration {
        Duration::from_millis(self.held_milliseconds.unwrap_or(0))
    }
}

/// A worker of the cluster.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct WorkerFacts {
    pub(crate) is_drained: bool,
    /// Its loss has been reported.
    #[serde(default)]
    pub(crate) is_lost: bool,
    pub(crate) location: Option<String>,
    pub(crate) tier: Option<String>,
    /// Paths that connections leave while another one works.
    #[serde(default)]
    pub(crate) drained_paths: Vec<String>,
    /// Its transport service introduces the ranks of groups.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) introduces_ranks: bool,
}

/// The document; see the module.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Document {
    /// Version of the file, if stored in one.
    version: u32,
    /// Last change in the file, if stored in one.
    #[serde(default)]
    change: u64,
    pub(crate) runs: Keyed<RunFacts>,
    pub(crate) workers: Keyed<WorkerFacts>,
    #[serde(default)]
    pub(crate) removed: Vec<Removed>,
    /// Policies on edges of workers, in the order in which they were attached.
    #[serde(default)]
    pub(crate) net_policies: Vec<NetPolicy>,
    /// Jobs, by name with number.
    #[serde(default)]
    pub(crate) jobs: Keyed<JobFacts>,
    /// The queue of jobs.
    #[serde(default)]
    pub(crate) queue: Arc<QueueFacts>,
    pub(crate) events: VecDeque<Arc<Event>>,
    /// Number of the last event.
    pub(crate) event_number: u64,
}

pub(crate) struct Facts {
    held: Mutex<Held>,
}

struct Held {
    document: Document,
    keeper: Box<dyn Keeper>,
}

impl Facts {
    /// Opens the facts in the folder of a single controller.
    pub(crate) fn open(folder: &Path) -> Result<Self, FactsError> {
        let (keeper, document) = folder::InFolder::open(folder)?;
        Ok(Self { held: Mutex::new(Held { document, keeper: Box::new(keeper) }) })
    }

    /// Opens the facts that several controllers share, for the leader.
    pub(crate) fn shared(lead: &Arc<Lead>) -> Result<Self, FactsError> {
        let (keeper, document) = in_database::Shared::open(lead)?;
        Ok(Self { held: Mutex::new(Held { document, keeper: Box::new(keeper) }) })
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&Document) -> T) -> T {
        look(&self.lock().document)
    }

    /// Changes the document. The change is durable on return; on an error nothing changes.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Document) -> T) -> Result<T, FactsError> {
        let mut held = self.lock();
        let mut next = held.document.clone();
        let result = change(&mut next);
        if next.events.len() >= MOST_EVENTS + EVENTS_AT_ONCE {
            let surplus = next.events.len() - MOST_EVENTS;
            next.events.drain(..surplus);
        }
        let changes = keeper::changes(&held.document, &next).map_err(FactsError::Unwritable)?;
        if !changes.is_empty() {
            held.keeper.keep(&changes, &next)?;
            held.document = next;
        }
        Ok(result)
    }
}

#[cfg(test)]
impl RunFacts {
    /// A run of a plan, with nothing else.
    pub(crate) fn test(plan: Plan, state: RunState) -> Self {
        Self {
            workflow: plan.workflow.name.clone(),
            bundle: Bundle::default(),
            plan,
            records: None,
            digest: String::new(),
            secret: String::new(),
            submitted: String::new(),
            submitted_by: String::new(),
            state,
            reason: None,
            roles: BTreeMap::new(),
            last: None,
            planned: PlannedFacts::default(),
            outputs: Vec::new(),
            streams: BTreeSet::new(),
            promises: Vec::new(),
            sent_from: None,
            missed: BTreeSet::new(),
            ended: None,
            is_cancelled: false,
            survived: None,
            plan_version: 1,
            changes: Vec::new(),
            next: None,
            former: None,
            rates: None,
            before: LastFigures::default(),
        }
    }
}
