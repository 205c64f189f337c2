//! Starts the processes of a run on the workers of the cluster.
use super::{Shared, locked, placing};
use crate::api::HEARTBEAT_MILLISECONDS;
use crate::clock::instant;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_engine::HostLauncher;
use tidemill_engine::remote::Address;

/// Additional silence of a process after its worker counts as lost, so that the worker's report comes first.
const GRACE: Duration = Duration::from_millis(2 * HEARTBEAT_MILLISECONDS);

pub(super) struct Launcher {
    shared: Arc<Shared>,
    run: String,
    /// Version of the plan.
    version: u64,
    begun: Instant,
    launched: BTreeSet<String>,
    /// Roles without a possible worker at launch, and whether that was reported.
    waiting: BTreeMap<String, bool>,
}

impl Launcher {
    pub(super) fn new(shared: &Arc<Shared>, run: &str, version: u64) -> Self {
        let (launched, waiting) = (BTreeSet::new(), BTreeMap::new());
        Self { shared: Arc::clone(shared), run: run.to_owned(), version, begun: instant(), launched, waiting }
    }

    fn placed(&self, role: &str) -> Option<(String, u64)> {
        self.shared.facts.look(|document| {
            let of = document.runs.get(&self.run)?.roles_of(self.version)?.get(role)?;
            Some((of.worker.clone()?, of.generation))
        })
    }

    /// Time to wait for a role whose process may continue alone while unreachable.
    fn held(&self, role: &str) -> Duration {
        let held = self.shared.facts.look(|document| {
            let run = document.runs.get(&self.run)?;
            Some(run.roles_of(self.version)?.get(role)?.held())
        });
        held.unwrap_or_default()
    }

    /// The end of a role's process, if its worker reports the process.
    fn ended_with(&self, role: &str) -> Option<Option<String>> {
        let (worker, generation) = self.placed(role)?;
        let status = self.shared.host_status(&worker, &self.run, role, self.version)?;
        (status.generation == generation).then_some(status.ended)
    }

    fn want(&self, role: &str) {
        if let Some(live) = locked(&self.shared.runs).get_mut(&self.run) {
            let roles = self.shared.facts.look(|document| {
                let run = document.runs.get(&self.run);
                run.and_then(|run| run.roles_of(self.version)).map_or(0, BTreeMap::len)
            });
            let set = live.sets.entry(self.version).or_default();
            set.wanted.insert(role.to_owned(), true);
            live.is_settled |= set.wanted.len() >= roles;
        }
    }

    /// Whether the role has a worker now.
    fn find_a_place(&mut self, role: &str) -> bool {
        let is_first = !self.launched.contains(role);
        let placed = self.placed(role);
        if let Some((worker, _)) = placed.as_ref().filter(|_| is_first) {
            if self.shared.is_alive(worker) {
                // It runs there, or is about to start.
                if !matches!(self.ended_with(role), Some(Some(_))) {
                    return true;
                }
            } else if self.begun.elapsed() < self.shared.expected().max(self.held(role)) {
                return false;
            }
        }
        let was_moved = {
            let mut runs = locked(&self.shared.runs);
            let set = runs.get_mut(&self.run).and_then(|live| live.sets.get_mut(&self.version));
            set.is_some_and(|set| set.moved.remove(role))
        };
        if was_moved && placed.is_some_and(|(worker, _)| self.shared.is_alive(&worker)) {
            return true;
        }
        match placing::choose_again(&self.shared, &self.run, self.version, role) {
            Some(worker) => {
                placing::place(&self.shared, &self.run, self.version, role, &worker);
                if let Some(set) = locked(&self.shared.runs)
                    .get_mut(&self.run)
                    .and_then(|live| live.sets.get_mut(&self.version))
                {
                    set.moved.remove(role);
                }
                let text = format!("worker {worker} starts '{role}' of run {}", self.run);
                self.shared.tell("role_started", Some(&self.run), Some(&worker), &text);
                true
            }
            None => false,
        }
    }

    fn try_again(&mut self) {
        for (role, was_told) in std::mem::take(&mut self.waiting) {
            if self.find_a_place(&role) {
                self.launched.insert(role);
                continue;
            }
            // The reason may have been reported when its worker was lost.
            let is_known = locked(&self.shared.waited).contains(&self.run);
            let tells = !was_told && !is_known && self.begun.elapsed() >= self.shared.expected();
            if tells {
                self.shared.tell("run_waits", Some(&self.run), None, &waits_text(&self.run, &role));
            }
            self.waiting.insert(role, was_told || tells || is_known);
        }
    }
}

/// Describes for users that a run waits for a worker for a role.
pub(super) fn waits_text(run: &str, role: &str) -> String {
    format!(
        "run {run} waits for a worker that can run '{role}': see `tidemill workers`; a worker of this name, \
         or another one, can join"
    )
}

impl HostLauncher for Launcher {
    fn launch(&mut self, role: &str, _: &Address) -> Result<(), String> {
        self.want(role);
        match self.find_a_place(role) {
            true => drop(self.launched.insert(role.to_owned())),
            false => drop(self.waiting.insert(role.to_owned(), false)),
        }
        Ok(())
    }

    fn ended(&mut self) -> Vec<String> {
        self.try_again();
        let moved: Vec<String> = {
            let runs = locked(&self.shared.runs);
            let set = runs.get(&self.run).and_then(|live| live.sets.get(&self.version));
            set.into_iter().flat_map(|set| set.moved.iter().cloned()).collect()
        };
        let ended = self.launched.iter().filter(|role| matches!(self.ended_with(role), Some(Some(_))));
        let mut ended: Vec<String> = ended.cloned().collect();
        ended.extend(moved);
        ended
    }

    fn missing(&mut self, role: &str) {
        self.shared.role_lost(&self.run, self.version, role);
    }

    fn fate(&mut self, role: &str) -> Option<String> {
        if let Some(Some(ended)) = self.ended_with(role) {
            return Some(ended);
        }
        let (worker, _) = self.placed(role)?;
        (!self.shared.is_alive(&worker)).then(|| format!("is lost with its worker {worker}"))
    }

    fn grace(&self) -> Duration {
        self.shared.detection.time + GRACE
    }

    fn end(&mut self) {
        if let Some(live) = locked(&self.shared.runs).get_mut(&self.run) {
            live.sets.remove(&self.version);
        }
    }
}
