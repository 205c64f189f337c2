//! Work of the runs, and whether it resumes after a container was changed.
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_cluster::api::{RunState, RunView, WorkerView};

/// By run, the workers of its plan that had opened their models and files, so that records could pass through.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Doing(pub(crate) BTreeMap<String, BTreeSet<String>>);

/// State of resumed work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Again {
    /// All work has resumed.
    Done,
    /// Some has not resumed yet.
    NotYet(String),
    /// A run has ended unexpectedly.
    Ended(String),
}

/// A report of the controller.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) workers: Vec<WorkerView>,
    pub(crate) runs: Vec<RunView>,
}

impl Seen {
    pub(crate) fn is_alive(&self, worker: &str) -> bool {
        self.workers.iter().any(|one| one.name == worker && one.is_alive)
    }

    /// Whether a worker of a plan is on a live worker of the cluster and has opened its models and files.
    fn does(&self, run: &RunView, role: &str) -> bool {
        let Some(Some(worker)) = run.placement.get(role) else { return false };
        let has = |one: &&WorkerView| {
            one.name == *worker
                && one.is_alive
                && one.hosts.iter().any(|(of, as_role)| *of == run.name && as_role == role)
        };
        !run.opening.iter().any(|one| one == role) && self.workers.iter().find(has).is_some()
    }
}

impl Doing {
    /// Returns the current work of the runs.
    pub(crate) fn of(seen: &Seen) -> Self {
        let going_on = seen.runs.iter().filter(|run| !run.state.is_over());
        let doing = going_on.map(|run| {
            let roles = run.placement.keys().filter(|role| seen.does(run, role));
            (run.name.clone(), roles.cloned().collect())
        });
        Self(doing.collect())
    }

    pub(crate) fn add(&mut self, other: Self) {
        for (run, roles) in other.0 {
            self.0.entry(run).or_default().extend(roles);
        }
    }

    /// Removes runs that have failed since: they are over and not awaited.
    pub(crate) fn without_failed(mut self, seen: &Seen) -> Self {
        let has_failed =
            |name: &String| seen.runs.iter().any(|run| run.name == *name && run.state == RunState::Failed);
        self.0.retain(|name, _| !has_failed(name));
        self
    }

    /// Checks whether all work, or that of one worker of the cluster, has resumed. Cancelled, removed and complete runs are
    /// as intended.
    pub(crate) fn again(&self, worker: Option<&str>, seen: &Seen) -> Again {
        let mut missing = None;
        for (name, roles) in &self.0 {
            let Some(run) = seen.runs.iter().find(|run| run.name == *name) else { continue };
            if run.state == RunState::Failed {
                let reason = run.reason.as_deref().unwrap_or("it gives no reason");
                return Again::Ended(format!("run {name} has failed: {reason}"));
            }
            if run.state.is_over() {
                continue;
            }
            let is_asked = |role: &&String| match (worker, run.placement.get(*role)) {
                (Some(worker), Some(placed)) => placed.as_deref() == Some(worker),
                (None, Some(_)) => true,
                // The plan has changed meanwhile.
                (_, None) => false,
            };
            let lacks = roles.iter().filter(is_asked).find(|role| !seen.does(run, role));
            missing = missing.or_else(|| lacks.map(|role| format!("'{role}' of run {name} has not opened")));
        }
        missing.map_or(Again::Done, Again::NotYet)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// A run with `edge` at worker north and `hub` at worker center, some of them `opening`.
    pub(crate) fn seen(state: &str, opening: &[&str]) -> Seen {
        let worker = |name: &str, role: &str| {
            json!({"name": name, "is_alive": true, "silent_milliseconds": 1, "is_drained": false, "location": null, "tier": null,
                   "worker_type": null, "capacity": {"processors": 1.0, "memory_bytes": 1}, "labels": {}, "address": null,
                   "hosts": [["night", role]], "version": "1"})
        };
        let run = json!({"name": "night", "workflow": "night", "state": state, "reason": "no model", "submitted": "",
                         "placement": {"edge": "north", "hub": "center"}, "opening": opening, "emitted": 0, "arrived": 0,
                         "dead_letters": 0, "restarts": 0, "seconds": 1.0, "outputs": []});
        Seen {
            workers: serde_json::from_value(json!([worker("north", "edge"), worker("center", "hub")]))
                .unwrap(),
            runs: serde_json::from_value(json!([run])).unwrap(),
        }
    }

    #[test]
    fn a_process_that_is_only_there_has_not_begun() {
        let before = Doing::of(&seen("running", &[]));
        assert_eq!(before.0["night"].len(), 2);
        // Files are fetched, or models are opened: the agent lists it already.
        let not_yet = seen("running", &["edge"]);
        assert_eq!(
            before.again(Some("north"), &not_yet),
            Again::NotYet("'edge' of run night has not opened".into())
        );
        assert_eq!(before.again(Some("center"), &not_yet), Again::Done);
        // All of them after the controller's turn.
        assert!(matches!(before.again(None, &not_yet), Again::NotYet(_)));
        assert_eq!(before.again(None, &seen("running", &[])), Again::Done);
        // Work that had not started before is not awaited.
        assert_eq!(Doing::of(&not_yet).again(Some("north"), &not_yet), Again::Done);
    }

    #[test]
    fn a_run_that_fails_meanwhile_is_no_yes() {
        let before = Doing::of(&seen("running", &[]));
        let failed = seen("failed", &[]);
        for worker in [Some("north"), Some("center"), None] {
            assert_eq!(before.again(worker, &failed), Again::Ended("run night has failed: no model".into()));
        }
        for state in ["cancelled", "complete"] {
            assert_eq!(before.again(None, &seen(state, &[])), Again::Done, "{state}");
        }
        // A revert does not wait for it.
        assert_eq!(before.without_failed(&failed).again(None, &failed), Again::Done);
        assert_eq!(Doing::of(&failed).again(None, &failed), Again::Done);
    }

    #[test]
    fn a_worker_that_is_lost_or_has_not_its_part_has_not_begun() {
        let before = Doing::of(&seen("running", &[]));
        let mut lost = seen("waiting", &[]);
        lost.workers[0].is_alive = false;
        assert!(matches!(before.again(Some("north"), &lost), Again::NotYet(_)));
        let mut empty = seen("running", &[]);
        empty.workers[0].hosts.clear();
        assert!(matches!(before.again(Some("north"), &empty), Again::NotYet(_)));
        // Another worker has it now.
        empty.runs[0].placement.insert("edge".into(), Some("center".into()));
        empty.workers[1].hosts.push(("night".into(), "edge".into()));
        assert_eq!(before.again(Some("north"), &empty), Again::Done);
        assert_eq!(before.again(None, &empty), Again::Done);
    }
}
