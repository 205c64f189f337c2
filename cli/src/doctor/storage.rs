//! Free space on disks and in shared memory.
use super::Finding;
use rustix::fs::{MemfdFlags, StatVfs, memfd_create, statvfs};
use std::path::{Path, PathBuf};
use tidemill_app::figures::bytes;
use tidemill_inference::backend::library::{cache_folder, unheeded_cache_folder};

/// Free space below which a disk is soon full.
const LITTLE_ROOM: u64 = 1 << 30;
/// Free space below which a disk is full.
const NO_ROOM: u64 = 64 << 20;

pub(super) fn look() -> Vec<Finding> {
    vec![this_folder(Path::new(".")), cache(cache_folder()), links(), shared_memory(Path::new("/dev/shm"))]
}

fn room(folder: &Path) -> Option<u64> {
    let StatVfs { f_bavail, f_frsize, .. } = statvfs(folder).ok()?;
    f_bavail.checked_mul(f_frsize)
}

/// Most workflows write beside themselves.
fn this_folder(folder: &Path) -> Finding {
    let name = "this folder";
    let place = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let place = place.display();
    let fix = "free some space, or write results to another disk";
    match room(folder) {
        None => Finding::problem(name, format!("cannot read {place}")).fix("change to another folder"),
        Some(free) if free < NO_ROOM => {
            Finding::problem(name, format!("{place}: {} free", bytes(free))).fix(fix)
        }
        Some(free) if !is_writable(folder) => {
            Finding::note(name, format!("{place}: {} free, but you may not write there", bytes(free)))
                .fix("write results elsewhere: absolute paths in the workflow's sinks")
        }
        Some(free) if free < LITTLE_ROOM => {
            Finding::note(name, format!("{place}: {} free", bytes(free))).fix(fix)
        }
        Some(free) => Finding::ok(name, format!("{place}: {} free, writable", bytes(free))),
    }
}

fn is_writable(folder: &Path) -> bool {
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).is_ok()
}

/// Measurements of backends and fetched models are kept there.
fn cache(folder: Option<PathBuf>) -> Finding {
    let name = "cache";
    let purpose = "every run measures backends again, and models cannot be fetched";
    let Some(folder) = folder else {
        return Finding::note(name, format!("neither HOME nor XDG_CACHE_HOME is set: {purpose}"))
            .fix("export XDG_CACHE_HOME=/path/to/a/folder");
    };
    // It is created at its first use: the lowest existing folder counts.
    let there = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
    let place = folder.display();
    if let Some(path) = unheeded_cache_folder() {
        let detail =
            format!("{place}; ignoring TIDEMILL_CACHE={}, which is not an absolute path", path.display());
        return Finding::note(name, detail).fix("export TIDEMILL_CACHE=/path/to/a/folder");
    }
    match room(there) {
        Some(free) if is_writable(there) && free >= LITTLE_ROOM => {
            Finding::ok(name, format!("{place}: {} free", bytes(free)))
        }
        Some(free) if is_writable(there) => {
            Finding::note(name, format!("{place}: only {} free", bytes(free)))
                .fix("export XDG_CACHE_HOME=/path/on/a/larger/disk")
        }
        _ => Finding::note(name, format!("cannot write to {place}: {purpose}"))
            .fix("export XDG_CACHE_HOME=/path/to/a/folder"),
    }
}

/// Slots of one process pass records through memory files.
fn links() -> Finding {
    let name = "memory files";
    match memfd_create("tidemill-doctor", MemfdFlags::CLOEXEC) {
        Ok(_) => Finding::ok(name, "links between slots can use them"),
        Err(error) => Finding::problem(
            name,
            format!("memfd_create fails ({error}): plans with several slots cannot run"),
        )
        .fix("allow the system call memfd_create in the container's seccomp profile"),
    }
}

fn shared_memory(folder: &Path) -> Finding {
    let name = "/dev/shm";
    let purpose = "this version does not need it; links between processes will";
    match room(folder) {
        Some(free) if free >= NO_ROOM => Finding::ok(name, format!("{} free", bytes(free))),
        Some(free) => Finding::note(name, format!("{} free; {purpose}", bytes(free)))
            .fix("give the container more, such as `docker run --shm-size 1g`"),
        None => Finding::note(name, format!("not there; {purpose}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn folders_that_are_not_there_or_not_set() {
        assert_eq!(this_folder(Path::new("/no/such/folder")).state, State::Problem);
        assert_eq!(cache(None).state, State::Note);
        assert_eq!(shared_memory(Path::new("/no/such/folder")).state, State::Note);
        let folder = tempfile::tempdir().unwrap();
        let found = cache(Some(folder.path().join("not/made/yet")));
        assert_ne!(found.state, State::Problem);
        assert!(found.detail.contains("not/made/yet"), "{}", found.detail);
    }
}
