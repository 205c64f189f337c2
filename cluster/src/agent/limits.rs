//! Limits of the processes of runs on this machine, by control groups where this process may make them.
//!
//! Each run has a group, and each of its processes one in it. Runs have equal weight in processor time; limits come from `resources` of the
//! workflow and from the quota of the submission. A run without a limit of memory gets the memory given to the worker, else nine tenths of
//! the machine's: a process that exceeds it ends, and the agent and other runs continue. In mode `elastic` the limits of the processes
//! follow their load.
use crate::api::{Assignment, Bundle, Quota};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_elastic::agent::{Agent, Options};
use tidemill_elastic::cgroup::{Group, Hierarchy};
use tidemill_elastic::confinement::{Confinement, PREFIX, RunLimits};
use tidemill_spec::workflow::{ResourceMode, Resources, Workflow};

/// Bytes that a process may have besides the models that a quota counts: the program, batches, what waits in queues.
const BESIDES_MODELS: u64 = 512 << 20;

/// Processes that are to be attached, by name.
type Inbox = Arc<Mutex<Vec<(String, Box<dyn Group>)>>>;

/// The limits of a run that follow the load, on a thread of their own.
struct Elastic {
    inbox: Inbox,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Elastic {
    fn start(run: &str, options: Options) -> std::io::Result<Self> {
        let (inbox, end) = (Inbox::default(), Arc::new(AtomicBool::new(false)));
        let (theirs, told, run) = (Arc::clone(&inbox), Arc::clone(&end), run.to_owned());
        let work = move || {
            let mut agent = Agent::new(options);
            agent.run(
                || told.load(Ordering::Acquire),
                |agent| {
                    let new = std::mem::take(&mut *theirs.lock().unwrap_or_else(PoisonError::into_inner));
                    if new.is_empty() {
                        return;
                    }
                    let names: Vec<String> = new.iter().map(|(name, _)| name.clone()).collect();
                    // The run's own limit holds all the same.
                    if let Err(error) = agent.attach(new, &mut |_| {}) {
                        tracing::warn!(
                            "limits of {} of run {run} do not follow the load: {error}",
                            names.join(", ")
                        );
                    }
                },
            );
        };
        let thread = std::thread::Builder::new().name("tm-elastic".into()).spawn(work)?;
        Ok(Self { inbox, end, thread: Some(thread) })
    }
}

impl Drop for Elastic {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic of it has been told
        }
    }
}

/// A process that was started.
pub(super) struct Started<'a> {
    pub(super) assignment: &'a Assignment,
    /// Folder of its files.
    pub(super) folder: &'a Path,
    /// Its number.
    pub(super) process: u32,
}

/// See the module.
pub(super) struct Limiter {
    confinement: Result<Confinement, String>,
    /// Bytes of memory for a run without a limit.
    most: Option<u64>,
    elastic: BTreeMap<String, Elastic>,
}

impl Limiter {
    /// Opens the groups for the agent with this folder; `memory` is the bytes for a run without a limit (0: unknown).
    pub(super) fn open(folder: &Path, memory: u64) -> Self {
        let mark = crate::blobs::digest(folder.as_os_str().as_encoded_bytes());
        let name = format!("{PREFIX}{}", mark.chars().take(12).collect::<String>());
        let confinement = Confinement::open(Path::new(Hierarchy::ROOT), &name);
        let most = Some(memory).filter(|most| *most > 0);
        Self { confinement: confinement.map_err(|error| error.to_string()), most, elastic: BTreeMap::new() }
    }

    /// Returns the reason why nothing is limited; none: it is.
    pub(super) fn no_control_groups(&self) -> Option<String> {
        self.confinement.as_ref().err().cloned()
    }

    /// Returns the groups, for tasks of jobs; none: there are none.
    pub(super) fn confinement(&self) -> Option<Confinement> {
        self.confinement.as_ref().ok().cloned()
    }

    /// Limits a process before it gets its task. What is to be said of it, if anything.
    pub(super) fn admit(&mut self, started: &Started<'_>) -> Option<String> {
        let Started { assignment, folder, process } = *started;
        let Bundle { workflow, variables, .. } = &assignment.bundle;
        let workflow = Workflow::load_with(folder.join(workflow), &|name| variables.get(name).cloned()).ok();
        let resources = workflow.and_then(|workflow| workflow.resources);
        let is_wanted = resources.is_some() || assignment.quota != Quota::default();
        let confinement = match &self.confinement {
            Ok(confinement) => confinement,
            Err(why) => {
                return is_wanted
                    .then(|| format!("this worker does not enforce the limits of the run: {why}"));
            }
        };
        let is_elastic = resources.as_ref().is_some_and(|of| of.mode.value == ResourceMode::Elastic);
        let of_run = of_resources(resources.as_ref());
        let of_run = RunLimits { memory: of_run.memory.or(self.most), ..of_run };
        let own = if is_elastic { RunLimits::default() } else { of_quota(assignment.quota) };
        let name = name_of(&assignment.role, assignment.plan_version, assignment.generation);
        let group = match confinement.admit(&assignment.run, &name, process, (of_run, own)) {
            Ok(group) => group,
            Err(error) => {
                return Some(format!("this worker does not enforce the limits of this process: {error}"));
            }
        };
        let resources = resources.filter(|_| is_elastic)?;
        match self.follow(&assignment.run, &resources) {
            Ok(inbox) => {
                inbox.lock().unwrap_or_else(PoisonError::into_inner).push((name, group));
                None
            }
            Err(error) => Some(format!("the limits of this process do not follow the load: {error}")),
        }
    }

    fn follow(&mut self, run: &str, resources: &Resources) -> std::io::Result<Inbox> {
        if let Some(elastic) = self.elastic.get(run) {
            return Ok(Arc::clone(&elastic.inbox));
        }
        let caps = of_resources(Some(resources));
        let period = Duration::from_nanos(resources.period().0);
        let options = Options::new(caps.processors.unwrap_or_default(), caps.memory.unwrap_or_default());
        let elastic = Elastic::start(run, Options { period, ..options })?;
        let inbox = Arc::clone(&elastic.inbox);
        self.elastic.insert(run.to_owned(), elastic);
        Ok(inbox)
    }

    /// A process has ended; `is_last` of its run on this machine.
    pub(super) fn release(
        &mut self,
        run: &str,
        role: &str,
        plan_version: u64,
        generation: u64,
        is_last: bool,
    ) {
        if is_last {
            self.elastic.remove(run);
        }
        if let Ok(confinement) = &self.confinement {
            confinement.release(run, &name_of(role, plan_version, generation));
        }
    }
}

impl Drop for Limiter {
    fn drop(&mut self) {
        self.elastic.clear();
        if let Ok(confinement) = &self.confinement {
            confinement.remove();
        }
    }
}

fn name_of(role: &str, plan_version: u64, generation: u64) -> String {
    format!("{role}-{plan_version}-{generation}")
}

fn of_resources(resources: Option<&Resources>) -> RunLimits {
    RunLimits {
        processors: resources.and_then(|of| of.processors.as_ref()).map(|count| count.value),
        memory: resources.and_then(|of| of.memory.as_ref()).map(|bytes| bytes.value.0),
    }
}

fn of_quota(quota: Quota) -> RunLimits {
    RunLimits {
        processors: quota.processors,
        memory: quota.memory_bytes.map(|bytes| bytes.saturating_add(BESIDES_MODELS)),
    }
}
