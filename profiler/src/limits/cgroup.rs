//! A control group with a quota of processor time, version 2 or 1, removed when it is dropped. Groups of killed processes
//! are removed by the next one ([`remove_left_behind`]).
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tidemill_machine::Process;

/// Length of a period, microseconds.
const PERIOD: u64 = 10_000;
/// Least quota that the kernel accepts, microseconds.
const LEAST_QUOTA: u64 = 1_000;
/// Prefix of our groups' names; the process id follows.
const PREFIX: &str = "tidemill-profile-";

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A control group of this process.
#[derive(Debug)]
pub struct Group {
    folder: PathBuf,
}

impl Group {
    /// Creates a group whose processes together may use `cpus` processors.
    ///
    /// # Errors
    /// When there is no writable control group with a processor controller.
    pub fn new(cpus: f64) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "there are no control groups");
        for parent in parents(Path::new("/sys/fs/cgroup"), &Process::this().control_groups()) {
            match Self::in_folder(&parent, cpus) {
                Ok(group) => return Ok(group),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn in_folder(parent: &Path, cpus: f64) -> io::Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&folder)?;
        let group = Self { folder }; // from here on it is removed
        let quota = ((cpus * PERIOD as f64).round() as u64).max(LEAST_QUOTA);
        let file = |name: &str| group.folder.join(name);
        if file("cpu.max").exists() {
            fs::write(file("cpu.max"), format!("{quota} {PERIOD}"))?;
        } else if file("cpu.cfs_quota_us").exists() {
            fs::write(file("cpu.cfs_period_us"), PERIOD.to_string())?;
            fs::write(file("cpu.cfs_quota_us"), quota.to_string())?;
        } else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the group has no processor controller"));
        }
        Ok(group)
    }

    /// Puts a process into the group.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn add(&self, process: u32) -> io::Result<()> {
        fs::write(self.folder.join("cgroup.procs"), process.to_string())
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel needs a moment after the last process was reaped.
        for _ in 0..200 {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => return,
            }
        }
        tracing::warn!(folder = %self.folder.display(), "the control group could not be removed");
    }
}

/// Removes the groups of ended processes.
pub fn remove_left_behind() {
    for parent in parents(Path::new("/sys/fs/cgroup"), &Process::this().control_groups()) {
        let Ok(entries) = fs::read_dir(parent) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if is_left_behind(&name.to_string_lossy(), |process| {
                process.parse().is_ok_and(|number| Process::of(number).exists())
            }) {
                let _ = fs::remove_dir(entry.path()); // not ours, or somebody was quicker
            }
        }
    }
}

fn is_left_behind(name: &str, lives: impl Fn(&str) -> bool) -> bool {
    let Some((process, _)) = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    !process.is_empty() && process.bytes().all(|b| b.is_ascii_digit()) && !lives(process)
}

/// Candidate folders for a group: our own group, then the root, of the hierarchy with processor time.
fn parents(root: &Path, own: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let top = match controllers {
            "" if root.join("cgroup.controllers").exists() => root.to_owned(),
            "" => continue,
            names if names.split(',').any(|name| name == "cpu") => root.join(names),
            _ => continue,
        };
        folders.push(top.join(path.trim_start_matches('/')));
        folders.push(top);
    }
    folders.dedup();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_with_processor_time_is_found() {
        let root = tempfile::tempdir().unwrap();
        let own = "9:name=systemd:/\n2:cpu,cpuacct:/a/b\n1:memory:/\n0::/\n";
        let top = root.path().join("cpu,cpuacct");
        assert_eq!(parents(root.path(), own), [top.join("a/b"), top]);
        fs::write(root.path().join("cgroup.controllers"), "cpu memory").unwrap();
        let found = parents(root.path(), "0::/user.slice\n");
        assert_eq!(found, [root.path().join("user.slice"), root.path().to_owned()]);
    }

    #[test]
    fn a_quota_is_written_for_both_versions() {
        let root = tempfile::tempdir().unwrap();
        // A plain folder is no control group: it lacks the files, so the group is refused and removed.
        assert!(Group::in_folder(root.path(), 0.5).is_err());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_groups_of_dead_processes_are_left_behind() {
        let lives = |process: &str| process == "7";
        assert!(is_left_behind("tidemill-profile-8-0", lives));
        for name in ["tidemill-profile-7-0", "tidemill-profile-", "tidemill-profile-x-1", "other-8-0"] {
            assert!(!is_left_behind(name, lives), "{name}");
        }
    }

    /// If this machine has writable control groups, a process can be put into one and nothing stays.
    #[test]
    fn groups_are_removed() {
        let Ok(group) = Group::new(0.5) else { return };
        let mut process = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        group.add(process.id()).unwrap();
        let folder = group.folder().to_owned();
        process.kill().unwrap();
        process.wait().unwrap();
        drop(group);
        assert!(!folder.exists());
    }
}
