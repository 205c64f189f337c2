//! Control groups for child processes: one per run, and in it one for each of its processes, below the group of this
//! process.
//!
//! Runs have equal weights: one that wants more processor time than available takes none from the others, whatever the
//! number of its threads. Limits are optional.
use crate::cgroup::{Group, GroupError, Hierarchy, HierarchyError, Version};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Group to which a process of version 2 moves, so that its own can have child groups.
const OWN_LEAF: &str = "tidemill-agent";
/// Prefix of the groups of all agents.
pub const PREFIX: &str = "tidemill-";
/// Length of the periods of fixed limits, microseconds.
const PERIOD: u64 = 100_000;
/// Ended groups that are remembered because the system killed one of their processes for its memory.
const MOST_KILLED: usize = 256;

/// Error of confining processes.
#[derive(Debug, thiserror::Error)]
pub enum ConfinementError {
    /// There are no control groups, or this process is in none.
    #[error(transparent)]
    Hierarchy(#[from] HierarchyError),
    /// A group cannot be read or written.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// No group can be created.
    #[error("{}: {source}: this process may not create control groups in its own; start it as root, or by systemd with `Delegate=yes`", folder.display())]
    NoRights {
        /// The folder to create or write.
        folder: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Version 2 allows child groups only in a group without processes.
    #[error("{}: other processes are in the control group of this one: start it by systemd with `Delegate=yes`, or in its own container", folder.display())]
    Shared {
        /// The group.
        folder: PathBuf,
    },
}

/// Limits of a run's processes together on this machine; `None`: unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RunLimits {
    /// Processors.
    pub processors: Option<f64>,
    /// Bytes of memory.
    pub memory: Option<u64>,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Confinement {
    hierarchy: Hierarchy,
    /// Path of the group of all runs, by controller `cpu`, `cpuacct` and `memory`.
    base: [String; 3],
    /// Names of released groups that ran out of memory, the newest last.
    killed: Arc<Mutex<VecDeque<String>>>,
}

const CONTROLLERS: [&str; 3] = ["cpu", "cpuacct", "memory"];

impl Confinement {
    /// Creates a group below that of this process; its name starts with [`PREFIX`]. Removes idle groups of earlier agents.
    ///
    /// # Errors
    /// There are no control groups, or no rights.
    pub fn open(root: &Path, name: &str) -> Result<Self, ConfinementError> {
        let hierarchy = Hierarchy::find(root)?;
        let own = hierarchy.paths_of(std::process::id())?;
        Self::beneath(hierarchy, own, name)
    }

    fn beneath(hierarchy: Hierarchy, own: [String; 3], name: &str) -> Result<Self, ConfinementError> {
        let own = own.map(|path| {
            path.trim_end_matches('/').trim_end_matches(OWN_LEAF).trim_end_matches('/').to_owned()
        });
        if hierarchy.version() == Version::Two {
            make_room(&hierarchy.folder("memory", &own[2]))?;
        }
        let base = own.map(|path| format!("{path}/{}", plain(name)));
        let confinement = Self { hierarchy, base, killed: Arc::default() };
        confinement.make("")?;
        confinement.sweep();
        Ok(confinement)
    }

    /// Version of the machine's control groups.
    pub fn version(&self) -> Version {
        self.hierarchy.version()
    }

    fn folders(&self, group: &str) -> Vec<PathBuf> {
        let folder = |(controller, base): (&&str, &String)| {
            let folder = self.hierarchy.folder(controller, base);
            if group.is_empty() { folder } else { folder.join(group) }
        };
        let mut folders: Vec<PathBuf> = CONTROLLERS.iter().zip(&self.base).map(folder).collect();
        folders.dedup();
        folders
    }

    /// Creates a group; in version 2 it can have child groups.
    fn make(&self, group: &str) -> Result<(), ConfinementError> {
        for folder in self.folders(group) {
            match fs::create_dir(&folder) {
                Err(source) if source.kind() == io::ErrorKind::NotFound => {
                    return Err(GroupError::Gone { path: folder }.into());
                }
                Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(ConfinementError::NoRights { folder, source });
                }
                Ok(()) if group.is_empty() => self.weigh(&folder),
                _ => {}
            }
            if self.version() == Version::Two && !group.contains('/') {
                delegate(&folder)?;
            }
        }
        Ok(())
    }

    /// Gives all runs together the weight of sixteen processes of the machine: by default they would count as one.
    fn weigh(&self, folder: &Path) {
        let (name, weight) = match self.version() {
            Version::One => ("cpu.shares", "16384"),
            Version::Two => ("cpu.weight", "1600"),
        };
        let _ = fs::write(folder.join(name), weight); // the folders of other controllers have no weight
    }

    /// Puts a process into its own group within that of a run, and writes the limits of both. The process should not have
    /// started its work: its present memory stays counted in the old group.
    ///
    /// # Errors
    /// The system refuses.
    pub fn admit(
        &self,
        run: &str,
        name: &str,
        process: u32,
        (of_run, own): (RunLimits, RunLimits),
    ) -> Result<Box<dyn Group>, ConfinementError> {
        // Another process may remove a group before the process is in it.
        let mut tries = 0;
        loop {
            match self.try_to_admit(run, name, process, of_run, own) {
                Err(ConfinementError::Group(GroupError::Gone { .. })) if tries < 3 => tries += 1,
                done => return done,
            }
        }
    }

    fn try_to_admit(
        &self,
        run: &str,
        name: &str,
        process: u32,
        of_run: RunLimits,
        own: RunLimits,
    ) -> Result<Box<dyn Group>, ConfinementError> {
        let run = plain(run);
        self.make("")?;
        self.make(&run)?;
        self.limit(&run, of_run)?;
        let group = format!("{run}/{}", plain(name));
        self.make(&group)?;
        self.limit(&group, own)?;
        for folder in self.folders(&group) {
            let path = folder.join("cgroup.procs");
            fs::write(&path, process.to_string()).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => GroupError::Gone { path },
                _ => GroupError::System { path, source },
            })?;
        }
        Ok(self.open_group(&group)?)
    }

    /// Gives the group of a run this percentage of the weight of others in processor time.
    ///
    /// # Errors
    /// The system refuses.
    pub fn weigh_less(&self, run: &str, percent: u32) -> Result<(), ConfinementError> {
        let (name, whole) = match self.version() {
            Version::One => ("cpu.shares", 1024),
            Version::Two => ("cpu.weight", 100),
        };
        let weight = (whole * percent / 100).max(2).to_string();
        // The first folder is that of the processor time.
        let path = self.folders(&plain(run)).swap_remove(0).join(name);
        fs::write(&path, weight).map_err(|source| GroupError::System { path, source }.into())
    }

    /// Ends all processes in the group of a process. Returns those that were there.
    pub fn end(&self, run: &str, name: &str) -> Vec<Pid> {
        let group = format!("{}/{}", plain(run), plain(name));
        self.folders(&group).iter().flat_map(|folder| end_in(folder)).collect()
    }

    /// Ends all processes in the groups of runs whose names begin like this. Returns those that were there.
    pub fn end_beneath(&self, prefix: &str) -> Vec<Pid> {
        let prefix = plain(prefix);
        let is_of_it = |run: &fs::DirEntry| run.file_name().to_string_lossy().starts_with(&prefix);
        let folders = |of: PathBuf| fs::read_dir(of).into_iter().flatten().flatten();
        let runs = self.folders("").into_iter().flat_map(folders).filter(is_of_it);
        let groups = runs.flat_map(|run| folders(run.path()));
        groups.flat_map(|group| end_in(&group.path())).collect()
    }

    fn open_group(&self, group: &str) -> Result<Box<dyn Group>, GroupError> {
        let paths = self.base.each_ref().map(|base| format!("{base}/{group}"));
        self.hierarchy.open([&paths[0], &paths[1], &paths[2]])
    }

    fn limit(&self, group: &str, limits: RunLimits) -> Result<(), GroupError> {
        if limits == RunLimits::default() {
            return Ok(());
        }
        limit(self.open_group(group)?.as_mut(), limits)
    }

    /// Removes the group of an ended process, and that of its run with the last of them. Groups with processes stay until
    /// the next time.
    pub fn release(&self, run: &str, name: &str) {
        let run = plain(run);
        let group = format!("{run}/{}", plain(name));
        let counters = self.open_group(&group).and_then(|mut group| group.counters());
        if counters.is_ok_and(|counters| counters.killed > 0) {
            let mut killed = self.killed.lock().unwrap_or_else(PoisonError::into_inner);
            killed.push_back(group);
            while killed.len() > MOST_KILLED {
                killed.pop_front();
            }
        }
        for group in [format!("{run}/{}", plain(name)), run] {
            for folder in self.folders(&group) {
                let _ = fs::remove_dir(folder); // one with others in it stays
            }
        }
    }

    /// Whether the system killed a process of a group for its memory, once the group is released.
    pub fn ran_out_of_memory(&self, run: &str, name: &str) -> bool {
        let killed = self.killed.lock().unwrap_or_else(PoisonError::into_inner);
        killed.contains(&format!("{}/{}", plain(run), plain(name)))
    }

    /// Removes all idle groups of runs, and idle groups of killed agents beside this one.
    pub fn sweep(&self) {
        for folder in self.folders("") {
            remove_beneath(&folder, 2);
            let beside = folder.parent().and_then(|beside| fs::read_dir(beside).ok());
            for entry in beside.into_iter().flatten().flatten() {
                if is_of_agent(&entry.file_name().to_string_lossy()) && entry.path() != folder {
                    remove_beneath(&entry.path(), 2);
                    let _ = fs::remove_dir(entry.path()); // one in which something runs stays
                }
            }
        }
    }

    /// Removes all idle groups; returns whether nothing is left.
    pub fn remove(&self) -> bool {
        self.sweep();
        for folder in self.folders("") {
            let _ = fs::remove_dir(folder); // as above
        }
        self.folders("").iter().all(|folder| !folder.exists())
    }
}

/// Ends the processes of a group; those that were there.
fn end_in(folder: &Path) -> Vec<Pid> {
    let processes = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    let pids: Vec<Pid> =
        processes.lines().filter_map(|pid| pid.parse().ok().and_then(Pid::from_raw)).collect();
    if pids.is_empty() {
        return pids;
    }
    // All at once, with those that are being forked, where the kernel can.
    let kill = fs::OpenOptions::new().write(true).open(folder.join("cgroup.kill"));
    if kill.and_then(|mut file| file.write_all(b"1")).is_err() {
        for pid in &pids {
            let _ = kill_process(*pid, Signal::KILL); // it may just have ended
        }
    }
    pids
}

/// These limits are never raised.
fn limit(group: &mut dyn Group, limits: RunLimits) -> Result<(), GroupError> {
    if let Some(processors) = limits.processors {
        group.set_quota(((processors * PERIOD as f64) as u64).max(crate::cgroup::LEAST_QUOTA), PERIOD)?;
    }
    if let Some(bytes) = limits.memory {
        group.set_fixed_memory(bytes)?;
    }
    Ok(())
}

/// Whether a group belongs to an agent of a cluster: the prefix, and twelve hexadecimal digits of the digest of its folder.
fn is_of_agent(name: &str) -> bool {
    let mark = name.strip_prefix(PREFIX).unwrap_or_default();
    mark.len() == 12 && mark.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn remove_beneath(folder: &Path, depth: usize) {
    if depth == 0 {
        return;
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_beneath(&entry.path(), depth - 1);
            let _ = fs::remove_dir(entry.path()); // one in which something runs stays
        }
    }
}

/// Enables limits of processor time and memory in the child groups.
fn delegate(folder: &Path) -> Result<(), ConfinementError> {
    let path = folder.join("cgroup.subtree_control");
    fs::write(&path, "+cpu +memory").map_err(|source| {
        match source.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) {
            true => ConfinementError::Shared { folder: folder.to_owned() },
            false => ConfinementError::NoRights { folder: path, source },
        }
    })
}

/// Version 2: moves this process into a child group, so that others can be beside it.
fn make_room(own: &Path) -> Result<(), ConfinementError> {
    if delegate(own).is_ok() {
        return Ok(()); // the root, or it was done before
    }
    let leaf = own.join(OWN_LEAF);
    let no_rights = |folder: &Path| {
        let folder = folder.to_owned();
        move |source| ConfinementError::NoRights { folder, source }
    };
    match fs::create_dir(&leaf) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => return Err(no_rights(&leaf)(source)),
        _ => {}
    }
    let move_to = |folder: &Path| fs::write(folder.join("cgroup.procs"), std::process::id().to_string());
    move_to(&leaf).map_err(no_rights(&leaf))?;
    delegate(own).inspect_err(|_| {
        let _ = move_to(own); // it came from there
        let _ = fs::remove_dir(&leaf);
    })
}

/// Converts to the name of one folder.
fn plain(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '-' };
    let name: String = name.chars().map(plain).take(120).collect();
    if name.is_empty() { "-".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_one_folder() {
        assert_eq!(plain("night/../shift 1"), "night----shift-1");
        assert_eq!(plain(""), "-");
    }

    #[test]
    fn groups_of_agents_are_told_from_others() {
        assert!(is_of_agent("tidemill-0123456789ab"));
        assert!(
            !is_of_agent("tidemill-agent") && !is_of_agent("tidemill-test-0123") && !is_of_agent("docker")
        );
    }

    #[test]
    fn limits_of_runs_end_what_wants_more() {
        let folder = tempfile::tempdir().unwrap();
        let mut group = crate::cgroup::v2_files(folder.path());
        limit(&mut group, RunLimits { processors: Some(0.5), memory: Some(100 << 20) }).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read("cpu.max"), "50000 100000");
        assert_eq!(
            (read("memory.high"), read("memory.max")),
            ("max".to_owned(), (100_u64 << 20).to_string())
        );
    }

    #[test]
    fn a_group_that_ran_out_of_memory_is_remembered() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "cpu memory").unwrap();
        fs::write(root.path().join("cgroup.procs"), "").unwrap();
        fs::create_dir(root.path().join("own")).unwrap();
        let hierarchy = Hierarchy::find(root.path()).unwrap();
        let own = ["/own"; 3].map(str::to_owned);
        let confinement = Confinement::beneath(hierarchy, own, "tidemill-test").unwrap();
        let folder = |name: &str| root.path().join("own/tidemill-test/job-train").join(name);
        for name in ["0-1", "1-1"] {
            fs::create_dir_all(folder(name)).unwrap();
            crate::cgroup::v2_files(&folder(name));
        }
        fs::write(folder("1-1").join("memory.events"), "high 0\noom_kill 0\n").unwrap();
        assert!(!confinement.ran_out_of_memory("job:train", "0-1"), "it is not released yet");
        for name in ["0-1", "1-1"] {
            confinement.release("job:train", name);
        }
        assert!(confinement.clone().ran_out_of_memory("job:train", "0-1"));
        assert!(!confinement.ran_out_of_memory("job:train", "1-1"));
    }

    #[test]
    fn a_machine_without_control_groups_is_told() {
        let root = tempfile::tempdir().unwrap();
        let message = Confinement::open(root.path(), "tidemill").unwrap_err().to_string();
        assert!(message.contains("no control groups"), "{message}");
    }
}
