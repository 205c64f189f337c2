//! Capacity of this machine for the processes of runs: the limits of the system, or the values given at the start of the agent.
mod accelerators;

use crate::api::Capacity;
use std::path::{Path, PathBuf};
use tidemill_elastic::cgroup::Hierarchy;
use tidemill_machine::Process;

/// Capacity given at the start of an agent; values that are none are detected.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GivenCapacity {
    /// Processors, also parts of one.
    pub processors: Option<f64>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Accelerators, each by the name of its type; empty: none.
    pub accelerators: Option<Vec<String>>,
}

/// Values that stay constant while the agent runs.
pub(super) struct Capacities {
    given: GivenCapacity,
    accelerators: Vec<String>,
}

impl Capacities {
    pub(super) fn new(given: &GivenCapacity) -> Self {
        let found = || accelerators::find(Path::new("/"));
        let accelerators = given.accelerators.clone().unwrap_or_else(found);
        let all = Self { given: given.clone(), accelerators };
        let (told, there) = (all.look(), looked_up());
        if told.processors > there.processors {
            let (told, there) = (told.processors, there.processors);
            tracing::warn!("{told} processors are given, but the system lets this agent use {there}");
        }
        if told.memory_bytes > there.memory_bytes {
            let bytes = tidemill_app::figures::bytes;
            let (told, there) = (bytes(told.memory_bytes), bytes(there.memory_bytes));
            tracing::warn!("{told} of memory are given, but the system lets this agent use {there}");
        }
        all
    }

    /// As it is now: limits of control groups may be changed.
    pub(super) fn look(&self) -> Capacity {
        let there = looked_up();
        Capacity {
            processors: self.given.processors.unwrap_or(there.processors),
            memory_bytes: self.given.memory_bytes.unwrap_or(there.memory_bytes),
            accelerators: self.accelerators.clone(),
        }
    }
}

/// Returns the bytes of memory for a run without a limit: the memory given for runs, else nine tenths of the machine's. 0: unknown.
pub(super) fn memory_of(given: &GivenCapacity) -> u64 {
    given.memory_bytes.unwrap_or_else(|| {
        let all = looked_up().memory_bytes;
        all - all / 10
    })
}

/// Processors and memory as far as the control groups of this process and those above them, and its affinity, let them be used.
fn looked_up() -> Capacity {
    let process = Process::this();
    let groups = Groups::of(Path::new(Hierarchy::ROOT), &process.control_groups());
    let allowed = process.status().processors().and_then(count_of);
    let allowed = allowed.or_else(|| std::thread::available_parallelism().ok().map(usize::from));
    let allowed = allowed.map_or(1.0, |count| count as f64);
    let total = tidemill_machine::memory().map_or(0, |memory| memory.total);
    Capacity {
        processors: groups.processors().map_or(allowed, |quota| quota.min(allowed)),
        memory_bytes: groups.memory().map_or(total, |limit| if total > 0 { limit.min(total) } else { limit }),
        accelerators: Vec::new(),
    }
}

/// Counts the numbers in a list such as `0-3,8`.
fn count_of(list: &str) -> Option<usize> {
    let parts = list.split(',').map(|part| match part.split_once('-') {
        Some((first, last)) => {
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last).then(|| last - first + 1)
        }
        None => part.parse::<usize>().ok().map(|_| 1),
    });
    parts.sum()
}

/// Folders of the control groups of a process, with those above them.
struct Groups {
    /// With the limits of processor time.
    processors: Vec<PathBuf>,
    /// With those of memory.
    memory: Vec<PathBuf>,
}

impl Groups {
    /// From the text of `/proc/self/cgroup`. A process in a container may see a path there that is not under its `root`: then the groups
    /// above count as far as they are there.
    fn of(root: &Path, text: &str) -> Self {
        let (mut processors, mut memory) = (Vec::new(), Vec::new());
        for line in text.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let has = |controller: &str| controllers.split(',').any(|one| one == controller);
            if controllers.is_empty() {
                // Version 2: one tree, which stands in a folder of its own where there are others.
                for tree in [root.to_owned(), root.join("unified")] {
                    processors.extend(upwards(&tree, path));
                    memory.extend(upwards(&tree, path));
                }
            }
            // Version 1: trees are called by their controllers, also by several of them.
            for (controller, all) in [("cpu", &mut processors), ("memory", &mut memory)] {
                if has(controller) {
                    all.extend(upwards(&root.join(controller), path));
                    all.extend(upwards(&root.join(controllers), path));
                }
            }
        }
        Self { processors, memory }
    }

    /// Processors that all limits together leave; none: no limit.
    fn processors(&self) -> Option<f64> {
        let quotas = self.processors.iter().filter_map(|group| {
            let two = read(&group.join("cpu.max"));
            let (quota, period) = match two.as_deref().and_then(|text| text.split_once(' ')) {
                Some((quota, period)) => (quota.to_owned(), period.to_owned()),
                None => (read(&group.join("cpu.cfs_quota_us"))?, read(&group.join("cpu.cfs_period_us"))?),
            };
            let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
            // `max`, or -1: none.
            (quota > 0.0 && period > 0.0).then_some(quota / period)
        });
        quotas.min_by(f64::total_cmp)
    }

    /// Bytes of memory that all limits together leave; none: no limit.
    fn memory(&self) -> Option<u64> {
        let limits = self.memory.iter().filter_map(|group| {
            let text = read(&group.join("memory.max")).or_else(|| read(&group.join("memory.limit_in_bytes")));
            text?.parse::<u64>().ok()
        });
        limits.min()
    }
}

/// The folder of a group in a tree, and all above it that belong to the tree.
fn upwards(tree: &Path, path: &str) -> Vec<PathBuf> {
    let own = tree.join(path.trim_start_matches('/'));
    own.ancestors().take_while(|folder| folder.starts_with(tree)).map(Path::to_owned).collect()
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn there_is_something() {
        let capacity = Capacities::new(&GivenCapacity::default()).look();
        assert!(capacity.processors > 0.0 && capacity.memory_bytes > 1 << 20, "{capacity:?}");
    }

    #[test]
    fn what_is_given_counts() {
        let given = GivenCapacity {
            processors: Some(0.5),
            memory_bytes: Some(1 << 30),
            accelerators: Some(vec!["h100".into(); 2]),
        };
        let capacity = Capacities::new(&given).look();
        assert_eq!((capacity.processors, capacity.memory_bytes), (0.5, 1 << 30));
        assert_eq!(capacity.accelerators, ["h100", "h100"]);
        let none = GivenCapacity { accelerators: Some(Vec::new()), ..GivenCapacity::default() };
        assert_eq!(Capacities::new(&none).look().accelerators, Vec::<String>::new());
    }

    #[test]
    fn limits_of_the_own_group_and_of_those_above_count() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        // As a unit of systemd with MemoryMax and CPUQuota.
        file(root, "system.slice/tidemill.service/memory.max", "1073741824\n");
        file(root, "system.slice/tidemill.service/cpu.max", "max 100000\n");
        file(root, "system.slice/memory.max", "max\n");
        file(root, "system.slice/cpu.max", "150000 100000\n");
        let groups = Groups::of(root, "0::/system.slice/tidemill.service\n");
        assert_eq!((groups.processors(), groups.memory()), (Some(1.5), Some(1 << 30)));
        // A path that is not there, as in a container whose root is its own group.
        file(root, "memory.max", "536870912\n");
        let groups = Groups::of(root, "0::/../other\n");
        assert_eq!(groups.memory(), Some(512 << 20));
        assert_eq!(Groups::of(root, "").memory(), None);
    }

    #[test]
    fn version_1_is_read_too() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        file(root, "cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "50000\n");
        file(root, "cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
        file(root, "memory/docker/abc/memory.limit_in_bytes", "268435456\n");
        file(root, "memory/memory.limit_in_bytes", "9223372036854771712\n");
        let text = "12:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/docker/abc\n";
        let groups = Groups::of(root, text);
        assert_eq!((groups.processors(), groups.memory()), (Some(0.5), Some(256 << 20)));
        file(root, "cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n");
        assert_eq!(Groups::of(root, text).processors(), None);
    }

    #[test]
    fn processors_of_a_list_are_counted() {
        assert_eq!(count_of("0-3,8"), Some(5));
        assert_eq!(count_of("2"), Some(1));
        assert_eq!(count_of("3-1"), None);
        assert_eq!(count_of(""), None);
    }
}
