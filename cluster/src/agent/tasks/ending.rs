//! Ends what is left of a task whose process between agent and task has ended: nothing, unless that was killed, too.
//!
//! The rest is found by the control group of the task, where there is one. Otherwise by what each process inherits: the variable with the
//! folder for checkpoints, and the folder that it is in. A file that is locked and inherited would not do: many programs close what they
//! inherit.
use super::environment::CHECKPOINT;
use super::{Key, group_of, log_of, preparing};
use crate::clock::instant;
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_elastic::confinement::Confinement;

/// Pause between two looks for processes that end.
const PAUSE: Duration = Duration::from_millis(20);
/// Looks without a process: one that is forked during a look may be missed by it.
const LOOKS: u32 = 2;

/// Processes and a control group that one start of a task may have left.
#[derive(Clone)]
pub(super) struct Left {
    confinement: Option<Confinement>,
    /// Names of the control groups of its job and of itself.
    group: (String, String),
    folder: PathBuf,
}

/// Processes that do not end, although they were killed.
#[derive(Debug, thiserror::Error)]
#[error("processes {} of a task do not end, although they were killed: the system may wait for a device", in_words(.0))]
pub(super) struct StillThere(BTreeSet<i32>);

fn in_words(pids: &BTreeSet<i32>) -> String {
    pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Left {
    /// Of the start of a task with this folder.
    pub(super) fn of(
        confinement: Option<&Confinement>,
        (job, rank): &Key,
        incarnation: u64,
        folder: &Path,
    ) -> Self {
        let group = (log_of(job), group_of(*rank, incarnation));
        Self { confinement: confinement.cloned(), group, folder: folder.to_owned() }
    }

    /// Ends all processes, waits until they are gone, and removes the control group. `everywhere`: also processes outside of the group.
    pub(super) fn end(&self, everywhere: bool, patience: Duration) -> Result<(), StillThere> {
        let (run, name) = (&self.group.0, &self.group.1);
        end_all(patience, || {
            let mut found: BTreeSet<i32> = BTreeSet::new();
            if let Some(confinement) = &self.confinement {
                found.extend(confinement.end(run, name).iter().map(|pid| pid.as_raw_nonzero().get()));
            }
            if everywhere {
                found.extend(end_of_folder(&self.folder));
            }
            found
        })?;
        if let Some(confinement) = &self.confinement {
            confinement.release(run, name);
        }
        Ok(())
    }
}

/// Ends what earlier processes of the agent left: all processes in the control groups of jobs, and those of the tasks with these folders.
pub(super) fn end_earlier(
    confinement: Option<&Confinement>,
    folders: &[PathBuf],
    patience: Duration,
) -> Result<(), StillThere> {
    let prefix = log_of("");
    end_all(patience, || {
        let in_groups = confinement.map(|confinement| confinement.end_beneath(&prefix)).unwrap_or_default();
        let mut found: BTreeSet<i32> = in_groups.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
        found.extend(folders.iter().flat_map(|folder| end_of_folder(folder)));
        found
    })?;
    if let Some(confinement) = confinement {
        confinement.sweep();
    }
    Ok(())
}

/// Kills what `kill` finds, until nothing is found any more.
fn end_all(patience: Duration, mut kill: impl FnMut() -> BTreeSet<i32>) -> Result<(), StillThere> {
    let until = instant() + patience;
    let mut empty = 0;
    while empty < LOOKS {
        let found = kill();
        if found.is_empty() {
            empty += 1;
            continue;
        }
        empty = 0;
        if instant() > until {
            return Err(StillThere(found));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Kills the processes of the task with this folder; those that were there.
fn end_of_folder(folder: &Path) -> BTreeSet<i32> {
    let mut variable = format!("{CHECKPOINT}=").into_bytes();
    variable.extend(folder.as_os_str().as_bytes());
    variable.push(b'/');
    let real = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let belongs = |process: &Path| {
        let is_there = fs::read_link(process.join("cwd")).is_ok_and(|at| at.starts_with(&real));
        // A process that has ended and is not reaped has neither.
        is_there
            || fs::read(process.join("environ"))
                .is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one.starts_with(&variable)))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = processes.filter_map(|process| {
        let pid = Pid::from_raw(process.file_name().to_str()?.parse().ok()?)?;
        (pid != getpid()).then_some((pid, process.path()))
    });
    let its = numbered.filter(|(_, process)| belongs(process));
    its.map(|(pid, _)| {
        let _ = kill_process(pid, Signal::KILL); // it may just have ended
        pid.as_raw_nonzero().get()
    })
    .collect()
}

/// A task that is not wanted any more, until nothing of it is left.
pub(super) struct Ending {
    pub(super) key: Key,
    left: Left,
    /// The process between agent and task; none: it has ended.
    child: Option<Child>,
    /// Ends and removes the rest, once the process of the task has ended.
    rest: Option<JoinHandle<()>>,
}

/// Time after which a rest that does not end is reported again.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

impl Ending {
    pub(super) fn new(key: Key, left: Left, child: Option<Child>) -> Self {
        Self { key, left, child, rest: None }
    }

    /// Does the next step; whether nothing is left.
    pub(super) fn is_over(&mut self) -> bool {
        if let Some(rest) = &self.rest {
            return rest.is_finished();
        }
        let has_failed = match self.child.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => return false,
            Some(Ok(Some(status))) => !status.success(),
            Some(Err(_)) | None => true,
        };
        let left = self.left.clone();
        let work = move || remove(&left, has_failed);
        match std::thread::Builder::new().name("tm-task-end".into()).spawn(work) {
            Ok(rest) => self.rest = Some(rest),
            Err(error) => tracing::error!("cannot start the thread that removes a task: {error}"),
        }
        false
    }

    /// Waits until nothing is left.
    pub(super) fn wait(mut self) {
        match self.rest.take() {
            Some(rest) => drop(rest.join()), // a panic of it was reported
            None => {
                // It ends by itself, its input is closed.
                let status = self.child.as_mut().and_then(|child| child.wait().ok());
                remove(&self.left, !status.is_some_and(|status| status.success()));
            }
        }
    }
}

fn remove(left: &Left, everywhere: bool) {
    while let Err(error) = left.end(everywhere, PATIENCE) {
        tracing::warn!("{error}");
    }
    preparing::remove_now(&left.folder);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn start(command: &mut Command) -> Child {
        command.stdin(Stdio::null()).spawn().unwrap()
    }

    /// Whether a process of ours has ended.
    fn has_ended(child: &mut Child) -> bool {
        (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            child.try_wait().unwrap().is_some()
        })
    }

    #[test]
    fn processes_are_found_by_what_they_inherit_and_no_others_are() {
        let root = tempfile::tempdir().unwrap();
        let (own, other) = (root.path().join("train-7-0-1"), root.path().join("train-7-0-10"));
        for folder in [&own, &other] {
            fs::create_dir_all(folder.join("work")).unwrap();
        }
        let sleep = |folder: &Path| {
            let mut command = Command::new("sleep");
            command.arg("1000").current_dir("/").env(CHECKPOINT, folder.join("checkpoint"));
            command
        };
        let mut by_variable = start(&mut sleep(&own));
        let mut by_folder = start(Command::new("sleep").arg("1000").current_dir(own.join("work")));
        let mut of_other = start(&mut sleep(&other));
        let left = Left::of(None, &("train-7".to_owned(), 0), 1, &own);
        // The test is their parent: they are there, ended and not reaped, until `has_ended`.
        left.end(true, Duration::from_secs(20)).unwrap();
        assert!(has_ended(&mut by_variable) && has_ended(&mut by_folder));
        assert!(of_other.try_wait().unwrap().is_none(), "it belongs to another start");
        end_earlier(None, &[own, other], Duration::from_secs(20)).unwrap();
        assert!(has_ended(&mut of_other));
    }

    #[test]
    fn what_does_not_end_is_an_error_with_its_number() {
        let error = end_all(Duration::ZERO, || BTreeSet::from([42])).unwrap_err();
        assert!(error.to_string().contains("processes 42 of a task"), "{error}");
    }
}
