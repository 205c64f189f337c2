//! Resources for jobs: those of the workers without those of streams. Streams go first: a process of a run waits until jobs have given back
//! what it needs.
use super::super::planning::{part_of_quota, taken};
use super::{demand, devices, milliseconds};
use crate::api::Capacity;
use crate::controller::{Shared, locked};
use crate::facts::{Document, TaskStep};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_jobs::{Cause, Event, Machine, Resources, Time};

/// Tasks that a worker takes at once, for each of its processors and in all: each has processes, threads and folders, however little
/// processor time it asks for.
const TASKS_PER_PROCESSOR: f64 = 4.0;
const MORE_TASKS: u64 = 4;

/// Resources of a machine.
pub(super) fn resources(capacity: &Capacity) -> Resources {
    let mut devices: BTreeMap<String, u64> = BTreeMap::new();
    capacity.accelerators.iter().for_each(|kind| *devices.entry(kind.clone()).or_default() += 1);
    Resources {
        millicores: (capacity.processors * 1e3).floor() as u64,
        memory: capacity.memory_bytes,
        places: (capacity.processors * TASKS_PER_PROCESSOR).floor() as u64 + MORE_TASKS,
        devices,
        ..Resources::default()
    }
}

/// Resources that streams have of each worker: as their plans say, else as their quotas limit them. `processors` by worker.
pub(super) fn reserved(
    document: &Document,
    processors: &BTreeMap<String, f64>,
) -> BTreeMap<String, Resources> {
    let mut all: BTreeMap<String, Resources> = BTreeMap::new();
    let count = |worker: &str| processors.get(worker).copied().unwrap_or(1.0);
    let mut planned: BTreeSet<String> = BTreeSet::new();
    for (worker, of) in taken(document, &BTreeMap::new(), None) {
        planned.extend(of.by.iter().map(|(run, ..)| run.clone()));
        let reserved = all.entry(worker.clone()).or_default();
        reserved.millicores += (of.time * count(&worker) * 1e3).ceil() as u64;
        reserved.memory += of.memory_bytes;
    }
    for (name, run) in document.runs.iter().filter(|(_, run)| !run.state.is_over()) {
        if planned.contains(name) {
            continue;
        }
        for (role, of) in &run.roles {
            let worker = of.worker.as_deref().unwrap_or(role);
            let quota = part_of_quota(run, &run.plan, role, |role| count(role));
            let reserved = all.entry(worker.to_owned()).or_default();
            reserved.millicores += (quota.processors.unwrap_or(0.0) * 1e3).ceil() as u64;
            reserved.memory += quota.memory_bytes.unwrap_or(0);
        }
    }
    all
}

/// The rest of a machine.
fn less(mut whole: Resources, reserved: Option<&Resources>) -> Resources {
    if let Some(reserved) = reserved {
        whole.take(reserved, 1);
    }
    whole
}

/// Resources of the tasks on a worker, without those whose processes have ended.
fn used(document: &Document, worker: &str) -> Resources {
    let mut used = Resources::default();
    for job in document.jobs.values().filter(|job| !job.state.is_over()) {
        let there = job.tasks.iter().filter(|task| task.worker.as_deref() == Some(worker));
        let runs = there.filter(|task| !matches!(task.step, TaskStep::Idle | TaskStep::Saving));
        used.give(&demand(&job.submission), runs.count() as u64);
    }
    used
}

impl Shared {
    fn processors(&self) -> BTreeMap<String, f64> {
        locked(&self.processors).clone()
    }

    /// Events for machines that have more or less for jobs than the queue knows.
    pub(super) fn changed_capacities(&self) -> Vec<Event> {
        let (alive, heard): (BTreeMap<String, Capacity>, BTreeSet<String>) = {
            let workers = locked(&self.workers);
            let alive = workers.iter().filter(|(_, live)| live.is_alive);
            let alive = alive.map(|(name, live)| (name.clone(), live.heartbeat.capacity.clone())).collect();
            (alive, workers.keys().cloned().collect())
        };
        let processors = self.processors();
        // A worker that was there before this process may still come.
        let is_settling = self.begun.elapsed() < self.expected();
        let within = Time(milliseconds(self.job_options.give_back));
        self.facts.look(|document| {
            let reserved = reserved(document, &processors);
            let is_open = |name: &str| document.workers.get(name).is_some_and(|facts| !facts.is_drained);
            let queue = document.queue.queue.as_ref();
            let known: BTreeMap<&str, &Machine> = queue
                .into_iter()
                .flat_map(|queue| queue.machines())
                .map(|one| (one.name.as_str(), one))
                .collect();
            let mut events = Vec::new();
            for (name, whole) in &alive {
                let mut of_streams = reserved.get(name).cloned().unwrap_or_default();
                of_streams.give(&devices::reserved(document, name, whole), 1);
                let (left, cause) = match (is_open(name), of_streams == Resources::default()) {
                    (false, _) => (Resources::default(), Cause::Drained),
                    (true, true) => (resources(whole), Cause::Smaller),
                    (true, false) => (less(resources(whole), Some(&of_streams)), Cause::Streams),
                };
                let is_known = match known.get(name.as_str()) {
                    Some(machine) => machine.capacity == left && !machine.is_silent,
                    None => left == Resources::default(),
                };
                if !is_known {
                    events.push(Event::Capacity { machine: name.clone(), capacity: left, within, cause });
                }
            }
            // A silent worker keeps its jobs until its lease has ended, but gets none.
            let is_silent =
                |name: &String| !alive.contains_key(name) && (heard.contains(name) || !is_settling);
            let silent = known.values().filter(|machine| is_silent(&machine.name));
            for machine in silent {
                let is_used = queue.is_some_and(|queue| queue.is_used(&machine.name));
                if !machine.is_silent || !is_used {
                    events.push(Event::Silent { machine: machine.name.clone() });
                }
            }
            events
        })
    }

    /// Whether jobs on a worker have more than streams leave: new processes of runs wait there, until the time of the jobs is over.
    pub(crate) fn is_given_back(&self, document: &Document, worker: &str, whole: &Capacity) -> bool {
        let mut used = used(document, worker);
        if used == Resources::default() {
            return true;
        }
        let processors = BTreeMap::from([(worker.to_owned(), whole.processors)]);
        if let Some(reserved) = reserved(document, &processors).get(worker) {
            used.give(reserved, 1);
        }
        used.give(&devices::reserved(document, worker, whole), 1);
        resources(whole).covers(&used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_have_what_streams_leave() {
        let whole = Capacity { processors: 4.0, memory_bytes: 1000, accelerators: vec!["npu".into(); 2] };
        let whole = resources(&whole);
        assert_eq!((whole.millicores, whole.device("npu"), whole.places), (4000, 2, 20));
        let stream = Resources { millicores: 2500, memory: 1200, ..Resources::default() };
        let left = less(whole.clone(), Some(&stream));
        assert_eq!((left.millicores, left.memory, left.device("npu")), (1500, 0, 2));
        assert_eq!(less(whole.clone(), None), whole);
    }
}
