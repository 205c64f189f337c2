//! Sockets of a process and of all that it has started.
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Time for which the list of processes is used.
const KEPT: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Owned {
    root: u32,
    processes: BTreeSet<u32>,
    sockets: HashSet<u64>,
    listed: Option<Duration>,
    /// A socket has come that may be one of a process that is not listed yet.
    is_open: bool,
}

impl Owned {
    pub(super) fn of(root: u32) -> Self {
        Self { root, processes: BTreeSet::new(), sockets: HashSet::new(), listed: None, is_open: false }
    }

    /// Whether the list of processes is old.
    fn is_due(&self, now: Duration) -> bool {
        self.listed.is_none_or(|at| now.saturating_sub(at) >= KEPT)
    }

    /// Looks at the sockets of the processes if new ones have come, and once more when the list of processes may have changed since.
    pub(super) fn look(&mut self, has_new: bool, now: Duration) {
        self.is_open |= has_new;
        let is_due = self.is_due(now);
        let is_wanted = has_new || self.is_open && is_due;
        if !is_wanted {
            return;
        }
        if is_due {
            self.processes = descendants(self.root, &parents());
            (self.listed, self.is_open) = (Some(now), false);
        }
        self.sockets = self.processes.iter().flat_map(|process| sockets(*process)).collect();
    }

    /// Whether a socket, by its inode, is one of them.
    pub(super) fn has(&self, inode: u64) -> bool {
        self.sockets.contains(&inode)
    }
}

/// The parent of each process of this system. Processes that end meanwhile are left out.
fn parents() -> HashMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let process: u32 = entry.file_name().to_str()?.parse().ok()?;
        let text = fs::read_to_string(entry.path().join("stat")).ok()?;
        Some((process, parent(&text)?))
    });
    found.collect()
}

/// Reads the parent from `/proc/PID/stat`. The name of the process, in brackets, may have anything in it.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn descendants(root: u32, parents: &HashMap<u32, u32>) -> BTreeSet<u32> {
    let mut found = BTreeSet::from([root]);
    loop {
        let more = parents.iter().filter(|(process, of)| found.contains(of) && !found.contains(process));
        let more: Vec<u32> = more.map(|(process, _)| *process).collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Inodes of the sockets of a process; nothing where they may not be seen.
fn sockets(process: u32) -> Vec<u64> {
    let folder = Path::new("/proc").join(process.to_string()).join("fd");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let inode = |path: &Path| {
        fs::read_link(path).ok()?.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    entries.filter_map(|entry| inode(&entry.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn children_of_children_belong_to_a_process() {
        let parents = HashMap::from([(1, 0), (10, 1), (11, 10), (12, 11), (20, 1)]);
        assert_eq!(descendants(10, &parents), [10, 11, 12].into());
        assert_eq!(parent("12 (a) b) (c) S 11 12 12 0 -1"), Some(11));
        assert_eq!(parent("12"), None);
    }

    #[test]
    fn a_process_has_its_sockets() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = rustix::fs::fstat(listener.as_fd()).unwrap().st_ino;
        let mut owned = Owned::of(std::process::id());
        assert!(!owned.has(inode) && owned.is_due(Duration::ZERO));
        owned.look(false, Duration::ZERO);
        assert!(!owned.has(inode), "nothing is new");
        owned.look(true, Duration::ZERO);
        assert!(owned.has(inode) && !owned.is_due(Duration::ZERO));
        drop(listener);
        owned.look(true, Duration::ZERO);
        assert!(!owned.has(inode));
        // The next socket is looked for again in the processes of that time.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = rustix::fs::fstat(listener.as_fd()).unwrap().st_ino;
        owned.look(false, KEPT / 2);
        assert!(!owned.has(inode));
        owned.look(false, KEPT);
        assert!(owned.has(inode));
    }
}
