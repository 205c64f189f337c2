//! Removes runs that have ended, by hand or by a rule: the state in the controller, and the files on workers as soon as these report.
use super::{Shared, locked, sharing};
use crate::agent::folders::bytes_in;
use crate::api::{RemovedView, RunFolder};
use crate::facts::{FactsError, Removed};
use crate::run_id::run_id;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tidemill_identity::Timestamp;

/// Files that were sent for a submission that did not come yet.
const SUBMISSION: Duration = Duration::from_secs(3600);
/// Interval of the rule.
const LOOK: Duration = Duration::from_secs(5);
/// Begins the name of a folder that is being removed.
const GOING: &str = ".removed-";
/// Number of removed runs for which the workers with files are noted. A worker that stays away for longer keeps the files of the oldest:
/// the list is written with every change.
const MOST_NOTED: usize = 1000;

/// Retention of runs that have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keeping {
    /// Time of retention; none: until they are removed.
    pub time: Option<Duration>,
    /// Bytes of all of them together, at the controller and on workers; none: any number.
    pub bytes: Option<u64>,
}

/// The reason why a run is not removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemovalError {
    #[error("there is no run `{0}`")]
    NoSuch(String),
    #[error("run `{0}` has not ended: cancel it first")]
    Running(String),
    #[error(transparent)]
    Facts(#[from] FactsError),
    #[error("cannot remove the files of run `{0}`: {1}")]
    System(String, std::io::Error),
}

/// A run that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ended {
    name: String,
    at: Timestamp,
    bytes: u64,
}

/// A name, which no run has, for the folder of a submission that is judged while a run that is over still has its own. It begins as those
/// of removed runs do: what a process leaves of it when it dies goes with them.
pub(super) fn trial_of(name: &str) -> String {
    format!("{GOING}again-{name}")
}

/// Which runs go by the rule, and why.
fn going(mut ended: Vec<Ended>, keeping: Keeping, now: Timestamp) -> Vec<(String, String)> {
    ended.sort_by(|a, b| (a.at, &a.name).cmp(&(b.at, &b.name)));
    let mut all: u64 = ended.iter().map(|run| run.bytes).sum();
    let mut going = Vec::new();
    for run in ended {
        let is_old = keeping.time.is_some_and(|time| now.since(run.at) >= time);
        let is_much = keeping.bytes.is_some_and(|bytes| all > bytes);
        let why = match (is_old, is_much) {
            (false, false) => continue,
            (true, _) => format!("it ended at {}, and ended runs stay only for a limited time", run.at),
            (_, true) => format!("ended runs have {all} bytes together, more than the limit"),
        };
        all -= run.bytes;
        going.push((run.name, why));
    }
    going
}

impl Shared {
    /// Removes a run that has ended.
    pub(crate) fn remove_run(&self, name: &str, by: &str, why: &str) -> Result<RemovedView, RemovalError> {
        // One at a time: what is found must still be what is removed.
        let _alone = locked(&self.removing);
        let found = self
            .facts
            .look(|document| document.runs.get(name).map(|run| (run.state.is_over(), run_id(&run.secret))));
        let (is_over, id) = found.ok_or_else(|| RemovalError::NoSuch(name.to_owned()))?;
        // Its thread ends a moment after its state says so.
        let is_driven = || {
            let runs = locked(&self.runs);
            runs.get(name).and_then(|live| live.thread.as_ref()).is_some_and(|thread| !thread.is_finished())
        };
        for _ in 0..100 {
            if !is_over || !is_driven() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if !is_over || is_driven() {
            return Err(RemovalError::Running(name.to_owned()));
        }
        // The next run of this name must find nothing of this one, whenever this process dies.
        let (folder, aside) = (self.run_folder(name), self.run_folder(&format!("{GOING}{id}")));
        match fs::rename(&folder, &aside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(RemovalError::System(name.to_owned(), error));
            }
            _ => {}
        }
        if let Some(lead) = &self.lead {
            sharing::clear_run(lead, name).map_err(FactsError::from)?;
        }
        let holders = self.holders(name, &id);
        self.facts.change(|document| {
            document.runs.remove(name);
            // Others may have had a part of it and be away now.
            let workers: BTreeSet<String> = document.workers.keys().cloned().collect();
            if !workers.is_empty() {
                document.removed.push(Removed { run: name.to_owned(), id: id.clone(), workers });
                let too_many = document.removed.len().saturating_sub(MOST_NOTED);
                document.removed.drain(..too_many);
            }
        })?;
        locked(&self.runs).remove(name);
        self.logs.forget(name);
        self.forget_figures(name);
        let bytes = bytes_in(&aside);
        if let Err(error) = fs::remove_dir_all(&aside)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!("cannot remove {}: {error}", aside.display());
        }
        self.sweep_files();
        self.tell("run_removed", Some(name), None, &format!("{by} removes run {name}{why}"));
        Ok(RemovedView { run: name.to_owned(), bytes, workers: holders })
    }

    /// Workers that say that they have files of a run.
    fn holders(&self, name: &str, id: &str) -> Vec<String> {
        let workers = locked(&self.workers);
        let has = |folders: &[RunFolder]| folders.iter().any(|one| one.run == name && one.id == id);
        let holders = workers.iter().filter(|(_, live)| has(&live.heartbeat.folders));
        holders.map(|(worker, _)| worker.clone()).collect()
    }

    /// Removes files that no run needs.
    fn sweep_files(&self) {
        let wanted: BTreeSet<String> = self.facts.look(|document| {
            let files = document.runs.values().flat_map(|run| {
                let planning = run.planned.planning.iter();
                run.bundle
                    .files
                    .iter()
                    .chain(planning.flat_map(|one| one.profiles.iter().chain(&one.infrastructure)))
            });
            let of_jobs = Self::files_of_jobs(document);
            files.map(|file| file.digest.clone()).chain(of_jobs).collect()
        });
        self.blobs.sweep(&wanted, SUBMISSION);
    }

    /// Returns the files of removed runs on a worker; one without files of a run is not asked again.
    pub(super) fn folders_to_remove(&self, worker: &str, folders: &[RunFolder]) -> Vec<RunFolder> {
        let has = |one: &Removed| folders.iter().any(|folder| folder.run == one.run && folder.id == one.id);
        let (going, is_done) = self.facts.look(|document| {
            let of_worker = document.removed.iter().filter(|one| one.workers.contains(worker));
            let (going, done): (Vec<_>, Vec<_>) = of_worker.partition(|one| has(one));
            let going: Vec<RunFolder> = going
                .into_iter()
                .map(|one| RunFolder { run: one.run.clone(), id: one.id.clone(), bytes: 0 })
                .collect();
            // A folder under the name of another run that the controller knows is of a run that is no more.
            let others = folders.iter().filter(|folder| {
                let known = document.runs.get(&folder.run);
                known.is_some_and(|run| run_id(&run.secret) != folder.id)
            });
            let going: BTreeSet<RunFolder> = going.into_iter().chain(others.cloned()).collect();
            (going, !done.is_empty())
        });
        if is_done {
            let kept = self.facts.change(|document| {
                for one in document.removed.iter_mut().filter(|one| !has(one)) {
                    one.workers.remove(worker);
                }
                document.removed.retain(|one| !one.workers.is_empty());
            });
            if let Err(error) = kept {
                tracing::error!("{error}");
            }
        }
        going.into_iter().collect()
    }

    /// Removes what a process before left half removed.
    pub(super) fn finish_removals(&self) {
        for entry in fs::read_dir(self.folder.join("runs")).into_iter().flatten().flatten() {
            let is_going = entry.file_name().to_string_lossy().starts_with(GOING);
            if is_going && let Err(error) = fs::remove_dir_all(entry.path()) {
                tracing::warn!("cannot remove {}: {error}", entry.path().display());
            }
        }
    }

    /// Removes what the rule says.
    pub(super) fn keep_the_rule(&self, sizes: &mut BTreeMap<String, u64>) {
        if self.keeping == Keeping::default() {
            return;
        }
        let now = Timestamp::now();
        let over: Vec<(String, String, Option<u64>)> = self.facts.look(|document| {
            let over = document.runs.iter().filter(|(_, run)| run.state.is_over());
            over.map(|(name, run)| (name.clone(), run_id(&run.secret), run.ended)).collect()
        });
        if over.iter().any(|(.., ended)| ended.is_none()) {
            // They ended while no request looked.
            let kept = self.facts.change(|document| {
                for run in document.runs.values_mut().filter(|run| run.state.is_over()) {
                    run.ended.get_or_insert(now.as_unix());
                }
            });
            if let Err(error) = kept {
                tracing::error!("{error}");
            }
        }
        sizes.retain(|id, _| over.iter().any(|(_, other, _)| other == id));
        let ended = over.into_iter().map(|(name, id, ended)| {
            let here = *sizes.entry(id.clone()).or_insert_with(|| bytes_in(&self.run_folder(&name)));
            let there: u64 = {
                let workers = locked(&self.workers);
                let folders = workers.values().flat_map(|live| &live.heartbeat.folders);
                folders.filter(|one| one.run == name && one.id == id).map(|one| one.bytes).sum()
            };
            let at = ended.map_or(now, Timestamp::from_unix);
            Ended { name, at, bytes: here + there }
        });
        for (name, why) in going(ended.collect(), self.keeping, now) {
            if let Err(error) = self.remove_run(&name, "the controller", &format!(": {why}")) {
                tracing::warn!("{error}");
            }
        }
    }
}

/// Follows the rule until the controller ends.
pub(super) fn watch(shared: &Arc<Shared>) {
    let mut sizes = BTreeMap::new();
    while !shared.is_ending() {
        shared.keep_the_rule(&mut sizes);
        std::thread::park_timeout(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_until_the_rule_holds() {
        let run = |name: &str, at: u64, bytes: u64| Ended {
            name: name.to_owned(),
            at: Timestamp::from_unix(at),
            bytes,
        };
        let runs = || vec![run("new", 300, 5), run("old", 100, 7), run("middle", 200, 6)];
        let names = |time: Option<u64>, bytes: Option<u64>, now: u64| -> Vec<String> {
            let keeping = Keeping { time: time.map(Duration::from_secs), bytes };
            let going = going(runs(), keeping, Timestamp::from_unix(now));
            going.into_iter().map(|(name, _)| name).collect()
        };
        assert!(names(None, None, 10_000).is_empty());
        assert_eq!(names(Some(100), None, 299), ["old"]);
        assert_eq!(names(Some(100), None, 300), ["old", "middle"]);
        assert!(names(None, Some(18), 1_000).is_empty());
        assert_eq!(names(None, Some(17), 1_000), ["old"]);
        assert_eq!(names(None, Some(11), 1_000), ["old"]);
        assert_eq!(names(None, Some(10), 1_000), ["old", "middle"]);
        assert_eq!(names(None, Some(0), 1_000), ["old", "middle", "new"]);
        // A clock that was set back removes nothing.
        assert!(names(Some(100), None, 50).is_empty());
    }

    /// A controller that runs for months removes many runs: none of them stays in its memory.
    #[test]
    fn nothing_of_a_run_that_was_removed_is_kept() {
        use crate::api::{LogLine, RunState};
        use crate::controller::{Controller, ControllerOptions};
        use crate::facts::RunFacts;
        use tidemill_spec::plan::{Plan, PlanWorkflow};
        let folder = tempfile::tempdir().unwrap();
        let options = ControllerOptions::of_test(folder.path());
        let controller = Controller::start(&options).unwrap();
        let shared = &controller.shared;
        for number in 0..20 {
            let name = format!("night-{number}");
            let plan = Plan::new(PlanWorkflow { name: "flow".into(), digest: None });
            let run = RunFacts::test(plan, RunState::Complete);
            shared.facts.change(|document| document.runs.insert(name.clone(), run)).unwrap();
            fs::create_dir_all(shared.run_folder(&name)).unwrap();
            shared.log(Some("edge"), vec![LogLine { run: name.clone(), ..LogLine::saying("one") }]);
            shared.keep_figures(&name);
            assert_eq!((shared.logs(&name, 0).len(), shared.kept_figures()), (1, 1));
            shared.remove_run(&name, "somebody", "").unwrap();
            // A late line belongs to no run.
            shared.log(Some("edge"), vec![LogLine { run: name.clone(), ..LogLine::saying("late") }]);
            assert_eq!((shared.logs(&name, 0).len(), shared.kept_figures()), (0, 0));
            assert!(!shared.run_folder(&name).exists());
        }
        controller.end();
    }
}
