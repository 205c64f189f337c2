//! Locations of control groups on this machine, and the group of a process.
use super::{Group, GroupError, GroupV1, GroupV2};
use std::path::{Path, PathBuf};
use tidemill_machine::Process;

/// Version of the control groups that have the processors and the memory of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A tree per controller; also if only some controllers are of version 2.
    One,
    /// One tree.
    Two,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::One => "version 1",
            Self::Two => "version 2",
        })
    }
}

/// Most groups above a container's own.
const DEEPEST: u32 = 8;

/// The trees of control groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    root: PathBuf,
    version: Version,
}

/// Error of finding control groups.
#[derive(Debug, thiserror::Error)]
pub enum HierarchyError {
    /// There are no control groups.
    #[error(
        "{} has no control groups with the controllers `cpu` and `memory`: mount them, or give the container \
         `-v /sys/fs/cgroup:/sys/fs/cgroup`",
        root.display()
    )]
    None {
        /// The folder searched.
        root: PathBuf,
    },
    /// A process is in no group.
    #[error("process {process} is in no control group with `{controller}`, or has ended")]
    NoProcess {
        /// Its number.
        process: u32,
        /// The missing controller.
        controller: &'static str,
    },
    /// A group cannot be opened.
    #[error(transparent)]
    Group(#[from] GroupError),
}

impl Hierarchy {
    /// Usual location of control groups.
    pub const ROOT: &str = "/sys/fs/cgroup";

    /// Finds the trees under a folder.
    ///
    /// # Errors
    /// There are none with processors and memory.
    pub fn find(root: &Path) -> Result<Self, HierarchyError> {
        let has = |folder: &str| root.join(folder).join("cgroup.procs").exists();
        let controllers = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let of_two = |name: &str| controllers.split_whitespace().any(|one| one == name);
        let version = match () {
            () if of_two("cpu") && of_two("memory") => Version::Two,
            () if has("cpu") && has("memory") => Version::One,
            () => return Err(HierarchyError::None { root: root.to_owned() }),
        };
        Ok(Self { root: root.to_owned(), version })
    }

    /// The version in use.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the folder of a controller for a group with this path; version 2 has one for all.
    pub fn folder(&self, controller: &str, path: &str) -> PathBuf {
        let tree = match self.version {
            Version::One => self.root.join(controller),
            Version::Two => self.root.clone(),
        };
        tree.join(path.trim_start_matches('/'))
    }

    /// Opens the group with these paths of the controllers `cpu`, `cpuacct` and `memory`.
    ///
    /// # Errors
    /// It does not exist, or cannot be read.
    pub fn open(&self, [cpu, accounting, memory]: [&str; 3]) -> Result<Box<dyn Group>, GroupError> {
        Ok(match self.version {
            Version::One => Box::new(GroupV1::open(
                &self.folder("cpu", cpu),
                &self.folder("cpuacct", accounting),
                &self.folder("memory", memory),
            )?),
            Version::Two => Box::new(GroupV2::open(&self.folder("memory", memory))?),
        })
    }

    /// Opens the group with this path in all trees.
    ///
    /// # Errors
    /// It does not exist, or cannot be read.
    pub fn open_named(&self, path: &str) -> Result<Box<dyn Group>, GroupError> {
        self.open([path; 3])
    }

    /// Returns the paths of a process's group, of the controllers `cpu`, `cpuacct` and `memory`.
    ///
    /// # Errors
    /// It has ended, or is in no group.
    pub fn paths_of(&self, process: u32) -> Result<[String; 3], HierarchyError> {
        let [cpu, accounting, memory] = self.paths_in(&Process::of(process).control_groups(), process)?;
        Ok([
            self.whole_path("cpu", cpu, process)?,
            self.whole_path("cpuacct", accounting, process)?,
            self.whole_path("memory", memory, process)?,
        ])
    }

    /// Returns a path from the root. In a container with a namespace of control groups, other groups appear as `/../NAME`,
    /// without the names above: then it searches the group of this name that has the process.
    fn whole_path(
        &self,
        controller: &'static str,
        path: String,
        process: u32,
    ) -> Result<String, HierarchyError> {
        let Some((_, end)) = path.rsplit_once("../") else { return Ok(path) };
        let number = process.to_string();
        let tree = self.folder(controller, "");
        let mut waiting = vec![(tree.clone(), 0)];
        while let Some((folder, depth)) = waiting.pop() {
            let found = folder.join(end);
            let processes = std::fs::read_to_string(found.join("cgroup.procs")).unwrap_or_default();
            if processes.lines().any(|line| line == number)
                && let Ok(within) = found.strip_prefix(&tree)
            {
                return Ok(format!("/{}", within.display()));
            }
            if depth < DEEPEST {
                let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
                let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
                waiting.extend(folders.map(|entry| (entry.path(), depth + 1)));
            }
        }
        Err(HierarchyError::NoProcess { process, controller })
    }

    /// Parses the text of `/proc/PID/cgroup`.
    fn paths_in(&self, text: &str, process: u32) -> Result<[String; 3], HierarchyError> {
        let path = |controller: &'static str| {
            let found = text.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':');
                let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
                let is_it = match self.version {
                    Version::One => controllers.split(',').any(|one| one == controller),
                    Version::Two => controllers.is_empty(),
                };
                is_it.then(|| path.to_owned())
            });
            found.ok_or(HierarchyError::NoProcess { process, controller })
        };
        Ok([path("cpu")?, path("cpuacct")?, path("memory")?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// As in a container with its own namespace: `/` is its own group.
    #[test]
    fn a_group_beside_that_of_a_container_is_found_by_its_process() {
        let root = tempfile::tempdir().unwrap();
        let group = |path: &str, processes: &str| {
            let folder = root.path().join(path);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cgroup.procs"), processes).unwrap();
        };
        fs::write(root.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        group("system.slice/docker-aa.scope", "7\n71\n");
        group("other.slice/docker-aa.scope", "8\n");
        let hierarchy = Hierarchy::find(root.path()).unwrap();
        let whole_path = |path: &str, process| hierarchy.whole_path("memory", path.to_owned(), process);
        assert_eq!(whole_path("/../docker-aa.scope", 71).unwrap(), "/system.slice/docker-aa.scope");
        assert_eq!(
            whole_path("/../../other.slice/docker-aa.scope", 8).unwrap(),
            "/other.slice/docker-aa.scope"
        );
        assert_eq!(whole_path("/a/b", 9).unwrap(), "/a/b");
        assert!(whole_path("/../docker-aa.scope", 9).is_err());
    }

    #[test]
    fn both_versions_are_told_apart() {
        let root = tempfile::tempdir().unwrap();
        let message = Hierarchy::find(root.path()).unwrap_err().to_string();
        assert!(message.contains("has no control groups"), "{message}");
        for controller in ["cpu", "memory"] {
            fs::create_dir(root.path().join(controller)).unwrap();
            fs::write(root.path().join(controller).join("cgroup.procs"), "").unwrap();
        }
        // The unified tree of such systems lacks the controllers of the others.
        fs::write(root.path().join("cgroup.controllers"), "hugetlb\n").unwrap();
        let one = Hierarchy::find(root.path()).unwrap();
        assert_eq!(one.version(), Version::One);
        assert_eq!(one.folder("cpu", "/docker/1"), root.path().join("cpu/docker/1"));
        let text = "4:memory:/docker/1\n2:cpuacct,cpu:/docker/2\n0::/\n";
        assert_eq!(one.paths_in(text, 7).unwrap(), ["/docker/2", "/docker/2", "/docker/1"]);
        let message = one.paths_in("0::/\n", 7).unwrap_err().to_string();
        assert!(message.contains("process 7 is in no control group with `cpu`"), "{message}");
        fs::write(root.path().join("cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
        let two = Hierarchy::find(root.path()).unwrap();
        assert_eq!(two.paths_in("0::/system.slice/a\n", 7).unwrap()[2], "/system.slice/a");
        assert_eq!(two.folder("cpu", "/docker/1"), root.path().join("docker/1"));
    }
}
