//! What the controller must not forget: one document, of which the parts that change are kept, in its folder or where several controllers
//! share them.
mod folder;
mod in_database;
mod keeper;
mod keyed;

use crate::api::{
    Bundle, Event, ModelView, PlanChange, Planning, PromiseView, Proposal, Quota, Replan, RunState,
};
use crate::replanning::Use;
pub(crate) use folder::{has_change, line_of};
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

/// Events that are kept.
const MOST_EVENTS: usize = 2_000;
/// The oldest go together, when there are so many more.
const EVENTS_AT_ONCE: usize = 200;

/// Why the facts cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// The system refuses.
    #[error("{path}: {source}")]
    System {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not what this program writes.
    #[error("{path} is damaged: {reason}; put back a copy of it, or move it away to begin with no runs")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Another version wrote it.
    #[error("{path} has version {found}, and this program writes {known}: use the program that wrote it")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// That of this program.
        known: u32,
    },
    /// Where several controllers share them: it is not reached, or another controller leads.
    #[error(transparent)]
    Shared(#[from] PostgresError),
    /// They are no JSON.
    #[error("what the controller must keep cannot be written: {0}")]
    Unwritable(serde_json::Error),
    /// A row there is not what this program writes.
    #[error("{place}: the row `{name}` of kind `{kind}` is damaged: {reason}")]
    Row {
        /// Where.
        place: String,
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

/// A run as it was submitted, and what became of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RunFacts {
    pub(crate) workflow: String,
    pub(crate) bundle: Bundle,
    pub(crate) plan: Plan,
    pub(crate) records: Option<u64>,
    /// Digest of the submission: the same again is no other run.
    pub(crate) digest: String,
    /// Secret number, hexadecimal.
    pub(crate) secret: String,
    pub(crate) submitted: String,
    pub(crate) submitted_by: String,
    pub(crate) state: RunState,
    pub(crate) reason: Option<String>,
    /// By worker of the plan.
    pub(crate) roles: BTreeMap<String, Role>,
    /// Records that arrived, dead letters and seconds, once it is over.
    pub(crate) last: Option<LastFigures>,
    /// What it is planned with and what became of that.
    #[serde(default)]
    pub(crate) planned: PlannedFacts,
    /// Counts its plans.
    #[serde(default = "first_plan")]
    pub(crate) plan_version: u64,
    /// Changes of its plan, the oldest first.
    #[serde(default)]
    pub(crate) changes: Vec<PlanChange>,
    /// A plan that is being made ready.
    #[serde(default)]
    pub(crate) next: Option<NextPlan>,
    /// The plan before: the state may still be that of it.
    #[serde(default)]
    pub(crate) former: Option<FormerPlan>,
    /// Records per second of each source since its plan was changed: they stay what they were.
    #[serde(default)]
    pub(crate) rates: Option<BTreeMap<String, Option<f64>>>,
    /// What was counted under the plans before.
    #[serde(default)]
    pub(crate) before: LastFigures,
    /// Files that its sinks write.
    #[serde(default)]
    pub(crate) outputs: Vec<Output>,
    /// Sources whose journals are on the workers that read them.
    #[serde(default)]
    pub(crate) streams: BTreeSet<String>,
    /// What is promised of the rows of its sinks.
    #[serde(default)]
    pub(crate) promises: Vec<PromiseView>,
    /// Where the files of the submission lay.
    #[serde(default)]
    pub(crate) sent_from: Option<String>,
    /// Service levels of which it was told that they are missed.
    #[serde(default)]
    pub(crate) missed: BTreeSet<String>,
    /// When it ended: seconds since the beginning of 1970.
    #[serde(default)]
    pub(crate) ended: Option<u64>,
    /// Somebody wants it to end, whichever controller drives it.
    #[serde(default)]
    pub(crate) is_cancelled: bool,
}

/// What a run is planned with, and what became of that.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PlannedFacts {
    /// None: its plan was submitted.
    pub(crate) planning: Option<Planning>,
    pub(crate) replan: Replan,
    pub(crate) quota: Quota,
    pub(crate) explanation: Vec<String>,
    pub(crate) proposal: Option<Proposal>,
    /// What plans take of each worker of theirs, by what distinguishes the plan: the present one, and some others.
    pub(crate) uses: Vec<(String, BTreeMap<String, Use>)>,
    /// The candidate models, as the profile has them.
    #[serde(default)]
    pub(crate) models: Vec<ModelView>,
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

/// A run that was removed, of which workers may still have files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Removed {
    pub(crate) run: String,
    pub(crate) id: String,
    /// Those that did not say yet that they have nothing of it.
    pub(crate) workers: BTreeSet<String>,
}

fn first_plan() -> u64 {
    1
}

/// A plan that is to follow, with the places of its workers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NextPlan {
    pub(crate) plan: Plan,
    pub(crate) version: u64,
    pub(crate) roles: BTreeMap<String, Role>,
}

/// A plan that was followed by another one, and the version that followed first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FormerPlan {
    pub(crate) plan: Plan,
    pub(crate) roles: BTreeMap<String, Role>,
    /// Records have come to sinks under the plan that followed: there is no way back.
    pub(crate) is_past: bool,
}

impl RunFacts {
    /// Where the workers of one of its plans are; none: it has no such plan now.
    pub(crate) fn roles_of(&self, version: u64) -> Option<&BTreeMap<String, Role>> {
        if version == self.plan_version {
            return Some(&self.roles);
        }
        self.next.as_ref().filter(|next| next.version == version).map(|next| &next.roles)
    }

    /// The same, to be changed.
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
    /// The larger of each.
    pub(crate) fn or_more(self, other: Self) -> Self {
        Self {
            emitted: self.emitted.max(other.emitted),
            arrived: self.arrived.max(other.arrived),
            dead_letters: self.dead_letters.max(other.dead_letters),
            restarts: self.restarts.max(other.restarts),
            seconds: self.seconds.max(other.seconds),
        }
    }

    /// And what was counted before.
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

/// A worker of a plan: where its process is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Role {
    /// The worker of the cluster.
    pub(crate) worker: Option<String>,
    /// Counts its processes.
    pub(crate) generation: u64,
    /// It has files that are nowhere else, so it stays where it is.
    pub(crate) is_bound: bool,
    /// Nobody else may have it until its worker was silent for so long: its process goes on by itself until shortly before
    /// (`when_cut`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) held_milliseconds: Option<u64>,
    /// Backends that its stages name, each with an operator that is to run on it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) backends: BTreeMap<String, String>,
}

impl Role {
    /// How long nobody else may have it while its worker is silent.
    pub(crate) fn held(&self) -> Duration {
        Duration::from_millis(self.held_milliseconds.unwrap_or(0))
    }
}

/// A worker of the cluster.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct WorkerFacts {
    pub(crate) is_drained: bool,
    /// It was told that it is lost.
    #[serde(default)]
    pub(crate) is_lost: bool,
    pub(crate) location: Option<String>,
    pub(crate) tier: Option<String>,
}

/// See the module.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Document {
    /// Of the file, where it is in one.
    version: u32,
    /// The last change that is in the file, where it is in one.
    #[serde(default)]
    change: u64,
    pub(crate) runs: Keyed<RunFacts>,
    pub(crate) workers: Keyed<WorkerFacts>,
    #[serde(default)]
    pub(crate) removed: Vec<Removed>,
    pub(crate) events: VecDeque<Arc<Event>>,
    /// Of the last event.
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
    /// Those in the folder of one controller.
    pub(crate) fn open(folder: &Path) -> Result<Self, FactsError> {
        let (keeper, document) = folder::InFolder::open(folder)?;
        Ok(Self { held: Mutex::new(Held { document, keeper: Box::new(keeper) }) })
    }

    /// Those that several controllers share, for the one that leads.
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

    /// Changes the document; it is durable when this returns, or nothing is changed.
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
            plan_version: 1,
            changes: Vec::new(),
            next: None,
            former: None,
            rates: None,
            before: LastFigures::default(),
        }
    }
}
