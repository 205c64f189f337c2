//! Folders of a device: files of models by content, and one folder for each session, which its process locks.
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a folder is made again that another process takes for one that was left.
const TRIES: u32 = 100;

/// Files of models.
pub(crate) fn of_models(cache: &Path) -> PathBuf {
    cache.join("models")
}

fn of_sessions(cache: &Path) -> PathBuf {
    cache.join("sessions")
}

/// Files of the models of a session. Daemons may share a cache.
pub(crate) fn of_session(cache: &Path, session: u64) -> PathBuf {
    of_sessions(cache).join(format!("{}-{session}", std::process::id()))
}

/// Makes the folders, and removes those of sessions whose processes were killed together with their daemon.
pub(crate) fn prepare(cache: &Path) -> io::Result<()> {
    fs::create_dir_all(of_models(cache))?;
    fs::create_dir_all(of_sessions(cache))?;
    for entry in fs::read_dir(of_sessions(cache))?.flatten() {
        let Ok(folder) = open(entry.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) else {
            continue;
        };
        if flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Another daemon may do the same.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    for entry in fs::read_dir(of_models(cache))?.flatten() {
        let name = entry.file_name();
        let writer = name.to_str().and_then(|name| name.strip_prefix('.')?.rsplit_once('.')?.1.parse().ok());
        if writer.is_some_and(|writer: u32| !Path::new("/proc").join(writer.to_string()).exists()) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Makes a folder, and locks it for the life of this process: a locked folder is no left-over.
pub(crate) fn locked(folder: &Path) -> io::Result<OwnedFd> {
    let mut tries = 0;
    loop {
        fs::create_dir_all(folder)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let locked = open(folder, flags, Mode::empty()).and_then(|opened| {
            flock(&opened, FlockOperation::NonBlockingLockExclusive)?;
            Ok(opened)
        });
        match locked {
            // [`prepare`] of another process may have removed it before the lock.
            Ok(opened) if folder.exists() => return Ok(opened),
            Err(error) if tries == TRIES => return Err(error.into()),
            Ok(_) | Err(_) => {}
        }
        tries += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Removes what a session and a process that have ended left behind.
pub(super) fn clean(folder: Option<&Path>, models: &Path, process: Option<u32>) {
    // It has removed the folder itself, unless it was killed.
    let _ = folder.map(fs::remove_dir_all);
    let Some(process) = process else { return };
    let Ok(entries) = fs::read_dir(models) else { return };
    let end = format!(".{process}");
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with('.') && name.ends_with(&end)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_behind_is_removed_and_what_is_used_stays() {
        let cache = tempfile::tempdir().unwrap();
        prepare(cache.path()).unwrap();
        let (used, left) = (of_session(cache.path(), 1), of_session(cache.path(), 2));
        fs::create_dir_all(&used).unwrap();
        fs::create_dir_all(left.join("1")).unwrap();
        let locked = open(&used, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        flock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
        let models = of_models(cache.path());
        let of_gone = models.join(format!(".abc.{}", u32::MAX));
        let of_this = models.join(format!(".abc.{}", std::process::id()));
        [&of_gone, &of_this].iter().for_each(|path| fs::write(path, "x").unwrap());
        prepare(cache.path()).unwrap();
        assert!(used.exists() && !left.exists());
        assert!(!of_gone.exists() && of_this.exists());
        clean(Some(&used), &models, Some(std::process::id()));
        assert!(!used.exists() && !of_this.exists());
    }
}
