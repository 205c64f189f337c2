//! Folders of tasks, and the files that they begin with.
use super::super::fetching::Fetcher;
use super::ending::{StillThere, end_earlier};
use crate::api::{Bundle, TaskAssignment};
use crate::blobs::Blobs;
use crate::task_process::ProcessEnd;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use tidemill_elastic::confinement::Confinement;
use tidemill_spec::job::JobKind;

/// Name of the file that is locked while anything of a task runs.
const LOCK: &str = "lock";
/// Time that the processes of an earlier agent have to end after they were killed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Folders and files of one start of a task.
#[derive(Debug, Clone)]
pub(super) struct Folders {
    /// The folder that all others are in.
    pub(super) all: PathBuf,
    /// The folder that it starts in.
    pub(super) work: PathBuf,
    /// The folder that it writes its checkpoints into.
    pub(super) checkpoint: PathBuf,
    pub(super) lock: PathBuf,
    pub(super) end: PathBuf,
}

impl Folders {
    pub(super) fn of(root: &Path, job: &str, rank: u32, incarnation: u64, kind: JobKind) -> Self {
        let all = root.join(format!("{job}-{rank}-{incarnation}"));
        let checkpoint = all.join("checkpoint");
        // Programs of ours continue from the files that they have written.
        let work = if kind.keeps_folder() { checkpoint.clone() } else { all.join("work") };
        Self { work, checkpoint, lock: all.join(LOCK), end: all.join("end.json"), all }
    }
}

/// A task that can start.
pub(super) struct Prepared {
    /// Holds a port for the first task until the start.
    pub(super) listener: TcpListener,
}

/// Fetches the files of a task, and lays them out.
pub(super) fn prepare(
    fetcher: &Fetcher,
    blobs: &Blobs,
    assignment: &TaskAssignment,
    folders: &Folders,
) -> Result<Prepared, String> {
    let submission = &assignment.submission;
    let of = |files: &[crate::api::BundleFile]| Bundle { files: files.to_vec(), ..Bundle::default() };
    let (files, checkpoint) =
        (of(&submission.files), of(assignment.from.as_ref().map_or(&[], |from| &from.files)));
    fetcher.fetch(&files)?;
    fetcher.fetch(&checkpoint)?;
    let system = |error: std::io::Error| format!("{}: {error}", folders.all.display());
    for folder in [&folders.work, &folders.checkpoint] {
        fs::create_dir_all(folder).map_err(system)?;
    }
    blobs.lay_out(&files, &folders.work).map_err(|error| error.to_string())?;
    blobs.lay_out(&checkpoint, &folders.checkpoint).map_err(|error| error.to_string())?;
    for path in assignment.from.iter().flat_map(|from| &from.folders) {
        if !Path::new(path).components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(format!("`{path}` is not a folder of a checkpoint"));
        }
        fs::create_dir_all(folders.checkpoint.join(path)).map_err(system)?;
    }
    // Files travel without their permissions.
    let program = submission.command.first().filter(|program| program.contains('/'));
    if let Some(program) = program.map(|program| folders.work.join(program)).filter(|path| path.is_file()) {
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).map_err(system)?;
    }
    ProcessEnd::reserve(&folders.end).map_err(system)?;
    let listener = TcpListener::bind("0.0.0.0:0").map_err(|error| format!("no free port: {error}"))?;
    Ok(Prepared { listener })
}

/// Removes a folder on a thread of its own.
pub(super) fn remove(folder: PathBuf) {
    let work = move || remove_now(&folder);
    if let Err(error) = std::thread::Builder::new().name("tm-remove".into()).spawn(work) {
        tracing::error!("cannot start the thread that removes files: {error}");
    }
}

/// Removes a folder.
pub(super) fn remove_now(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!("cannot remove {}: {error}", folder.display());
    }
}

/// Ends what an earlier process of the agent left, and removes the folders of its tasks.
pub(super) fn clear(root: &Path, confinement: Option<&Confinement>) -> Result<(), StillThere> {
    let folders: Vec<PathBuf> =
        fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    for folder in &folders {
        if let Ok(lock) = File::open(folder.join(LOCK)) {
            // The process of the task ends by itself because the earlier process of the agent is gone.
            let _ = flock(&lock, FlockOperation::LockExclusive);
        }
    }
    // It may have been killed, too.
    end_earlier(confinement, &folders, PATIENCE)?;
    folders.iter().for_each(|folder| remove_now(folder));
    Ok(())
}
