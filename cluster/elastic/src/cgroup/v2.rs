//! Version 2: one folder. Processes that reach `memory.high` are slowed down and counted; `memory.max`, where the kernel
//! kills them, is kept well above it.
//!
//! A write to `memory.max` is never refused: if more is in use than the kernel can reclaim, it kills processes until the
//! rest fits. So it is lowered in two steps. At `memory.high`, the kernel reclaims memory without killing; then the rest is
//! checked against the limit.
use super::files::{self, Watched};
use super::{Counters, Found, Group, GroupError, Limits};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const QUOTA: &str = "cpu.max";
const HIGH: &str = "memory.high";
const MOST: &str = "memory.max";
/// Bytes between the limit and the point where the kernel kills processes: more than slowed-down processes can take until
/// the next look.
pub(crate) const GUARD: u64 = 64 << 20;
const USED: &str = "memory.current";

/// Reads a memory limit; `None` for `max`.
fn limit(path: &Path) -> Result<Option<u64>, GroupError> {
    Ok(files::read(path)?.trim().parse().ok())
}

/// Lowers `memory.max` of a group if that kills no process: makes the kernel reclaim memory beyond `high`, and checks that
/// at most `fits` is left. `memory.high` is `high` afterwards; if the rest does not fit, nothing changes.
fn lower(folder: &Path, most: u64, high: u64, fits: u64) -> Result<(), GroupError> {
    let (path, slows) = (folder.join(MOST), folder.join(HIGH));
    let had = files::read(&slows)?;
    files::write(&slows, &high.to_string())?;
    let lowered = || {
        let used = folder.join(USED);
        if files::number(&used, &files::read(&used)?)? > fits {
            // The error of version 1.
            let source = io::Error::from(io::ErrorKind::ResourceBusy);
            return Err(GroupError::Refused { path: path.clone(), value: most.to_string(), source });
        }
        files::write(&path, &most.to_string())
    };
    let lowered = lowered();
    if lowered.is_err() {
        files::write(&slows, had.trim())?;
    }
    lowered
}

/// Restores `memory.max`, if `path` is that file; refused, with the limit left higher, if more is in use.
pub(super) fn put_back(path: &Path, text: &str) -> Option<Result<(), GroupError>> {
    let folder = path.parent().filter(|_| path.file_name().is_some_and(|name| name == MOST))?;
    let most = text.parse::<u64>().ok()?;
    let slows = folder.join(HIGH);
    let restored = limit(path).and_then(|now| match now.is_some_and(|now| now <= most) {
        true => files::write(path, text),
        false => {
            let had = files::read(&slows)?;
            lower(folder, most, most, most)?;
            files::write(&slows, had.trim())
        }
    });
    Some(restored)
}

/// A group of version 2.
#[derive(Debug)]
pub struct GroupV2 {
    folder: PathBuf,
    time: Watched,
    used_memory: Watched,
    events: Watched,
    /// The last written limit, unless it is a fixed one.
    limit: Option<u64>,
}

impl GroupV2 {
    /// Opens the group with this folder.
    ///
    /// # Errors
    /// It does not exist, cannot be read, or lacks the controllers `cpu` and `memory`.
    pub fn open(folder: &Path) -> Result<Self, GroupError> {
        Ok(Self {
            folder: folder.to_owned(),
            time: Watched::open(folder.join("cpu.stat"))?,
            used_memory: Watched::open(folder.join(USED))?,
            events: Watched::open(folder.join("memory.events"))?,
            limit: None,
        })
    }
}

impl Group for GroupV2 {
    fn folder(&self) -> &Path {
        &self.folder
    }

    fn counters(&mut self) -> Result<Counters, GroupError> {
        let [used, periods, throttled, throttled_time] =
            self.time.fields(["usage_usec", "nr_periods", "nr_throttled", "throttled_usec"])?;
        let [pressed, killed] = self.events.fields(["high", "oom_kill"])?;
        let memory = self.used_memory.number()?;
        Ok(Counters { used, periods, throttled, throttled_time, memory, pressed, killed })
    }

    fn working_set(&mut self) -> Result<u64, GroupError> {
        let path = self.folder.join("memory.stat");
        let idle = files::field(&path, &files::read(&path)?, "inactive_file")?;
        Ok(self.used_memory.number()?.saturating_sub(idle))
    }

    fn limits(&self) -> Result<Limits, GroupError> {
        let path = self.folder.join(QUOTA);
        let text = files::read(&path)?;
        let format =
            || GroupError::Format { path: path.clone(), what: "a quota and a period", text: text.clone() };
        let (quota, period) = text.trim().split_once(' ').ok_or_else(format)?;
        let period = period.parse().map_err(|_| format())?;
        let (high, most) = (limit(&self.folder.join(HIGH))?, limit(&self.folder.join(MOST))?);
        let memory = high.into_iter().chain(most).min();
        Ok(Limits { quota: quota.parse().ok(), period, memory })
    }

    fn found(&self) -> Result<Found, GroupError> {
        let mut found = Found::default();
        for name in [QUOTA, MOST, HIGH] {
            let path = self.folder.join(name);
            let text = files::read(&path)?.trim().to_owned();
            found.files.push((path, text));
        }
        Ok(found)
    }

    fn set_quota(&mut self, quota: u64, period: u64) -> Result<(), GroupError> {
        files::write(&self.folder.join(QUOTA), &format!("{quota} {period}"))
    }

    fn set_memory(&mut self, bytes: u64) -> Result<(), GroupError> {
        let (high, most) = (self.folder.join(HIGH), self.folder.join(MOST));
        let guard = bytes.saturating_add(GUARD);
        // The two must stay apart, also in between.
        if limit(&most)?.is_some_and(|now| now <= guard) {
            files::write(&most, &guard.to_string())?;
            files::write(&high, &bytes.to_string())?;
        } else {
            // Half of the distance is for memory that its processes take until the next look.
            lower(&self.folder, guard, bytes, bytes.saturating_add(GUARD / 2))?;
        }
        self.limit = Some(bytes);
        Ok(())
    }

    fn set_fixed_memory(&mut self, bytes: u64) -> Result<(), GroupError> {
        let most = self.folder.join(MOST);
        match limit(&most)?.is_some_and(|now| now <= bytes) {
            true => files::write(&most, &bytes.to_string())?,
            false => lower(&self.folder, bytes, bytes, bytes)?,
        }
        // A process above it sleeps until it is raised, which a fixed limit never is.
        files::write(&self.folder.join(HIGH), "max")?;
        self.limit = None;
        Ok(())
    }

    fn trap(&mut self) -> Result<Option<OwnedFd>, GroupError> {
        Ok(None)
    }

    fn is_stuck(&self) -> Result<bool, GroupError> {
        let Some(limit) = self.limit else { return Ok(false) };
        let path = self.folder.join(USED);
        Ok(files::number(&path, &files::read(&path)?)? >= limit)
    }

    fn let_kill(&mut self, yes: bool) -> Result<(), GroupError> {
        let Some(limit) = self.limit else { return Ok(()) };
        let most = if yes { limit } else { limit.saturating_add(GUARD) };
        files::write(&self.folder.join(MOST), &most.to_string())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;

    /// Files as the kernel creates them.
    pub(crate) fn group(folder: &Path) -> GroupV2 {
        for (name, text) in [
            (
                "cpu.stat",
                "usage_usec 2500\nuser_usec 2000\nnr_periods 10\nnr_throttled 4\nthrottled_usec 3000\n",
            ),
            (QUOTA, "max 100000\n"),
            (HIGH, "max\n"),
            (MOST, "max\n"),
            (USED, "1000\n"),
            ("memory.stat", "anon 700\ninactive_file 300\n"),
            ("memory.events", "low 0\nhigh 7\nmax 0\noom 0\noom_kill 2\n"),
        ] {
            fs::write(folder.join(name), text).unwrap();
        }
        GroupV2::open(folder).unwrap()
    }

    #[test]
    fn what_the_kernel_writes_is_understood() {
        let folder = tempfile::tempdir().unwrap();
        let mut group = group(folder.path());
        let found = group.counters().unwrap();
        assert_eq!((found.used, found.periods, found.throttled, found.throttled_time), (2_500, 10, 4, 3_000));
        assert_eq!((found.memory, found.pressed, found.killed), (1_000, 7, 2));
        assert_eq!(group.working_set().unwrap(), 700);
        assert_eq!(group.limits().unwrap(), Limits { quota: None, period: 100_000, memory: None });
        fs::write(folder.path().join(QUOTA), "max\n").unwrap();
        assert!(group.limits().unwrap_err().to_string().contains("a quota and a period is missing in `max`"));
    }

    #[test]
    fn a_fixed_limit_ends_and_does_not_slow_down() {
        let folder = tempfile::tempdir().unwrap();
        let mut group = group(folder.path());
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        group.set_memory(80 << 20).unwrap();
        group.set_fixed_memory(50 << 20).unwrap();
        assert_eq!((read(HIGH), read(MOST)), ("max".to_owned(), (50_u64 << 20).to_string()));
        assert_eq!(group.limits().unwrap().memory, Some(50 << 20));
        assert!(!group.is_stuck().unwrap());
    }

    #[test]
    fn the_limit_and_the_end_keep_their_distance() {
        let folder = tempfile::tempdir().unwrap();
        let mut group = group(folder.path());
        let found = group.found().unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let number = |name: &str| read(name).parse::<u64>().unwrap();
        for bytes in [80 << 20, 200 << 20, 50 << 20] {
            group.set_memory(bytes).unwrap();
            assert_eq!((number(HIGH), number(MOST)), (bytes, bytes + GUARD));
        }
        assert_eq!(group.limits().unwrap().memory, Some(50 << 20));
        assert!(group.trap().unwrap().is_none());
        assert!(!group.is_stuck().unwrap());
        fs::write(folder.path().join(USED), (51u64 << 20).to_string()).unwrap();
        assert!(group.is_stuck().unwrap());
        group.let_kill(true).unwrap();
        assert_eq!(number(MOST), number(HIGH));
        group.set_quota(20_000, 100_000).unwrap();
        assert_eq!(read(QUOTA), "20000 100000");
        found.restore().unwrap();
        assert_eq!((read(QUOTA), read(HIGH), read(MOST)), ("max 100000".into(), "max".into(), "max".into()));
    }

    #[test]
    fn a_limit_is_not_lowered_below_what_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let mut group = group(folder.path());
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let uses = |mebibytes: u64| {
            fs::write(folder.path().join(USED), format!("{}\n", mebibytes << 20)).unwrap();
        };
        let is_busy = |error: GroupError| {
            let is_busy = matches!(&error, GroupError::Refused { source, .. } if source.kind() == io::ErrorKind::ResourceBusy);
            assert!(is_busy, "{error}");
        };
        // Not even at first: it is unlimited.
        uses(300);
        is_busy(group.set_memory(100 << 20).unwrap_err());
        is_busy(group.set_fixed_memory(100 << 20).unwrap_err());
        assert_eq!((read(HIGH).as_str(), read(MOST).as_str()), ("max", "max\n"));
        group.set_memory(400 << 20).unwrap();
        is_busy(group.set_memory(200 << 20).unwrap_err());
        assert_eq!(group.limits().unwrap().memory, Some(400 << 20), "it has what it had");
        assert_eq!(read(MOST), ((400_u64 << 20) + GUARD).to_string());
        // It is slowed down slightly above the limit.
        uses(220);
        group.set_memory(200 << 20).unwrap();
        assert_eq!(read(MOST), ((200_u64 << 20) + GUARD).to_string());
    }

    #[test]
    fn what_was_found_and_is_exceeded_now_is_put_back_later() {
        let folder = tempfile::tempdir().unwrap();
        let mut group = group(folder.path());
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(MOST), (100_u64 << 20).to_string()).unwrap();
        let found = group.found().unwrap();
        group.set_memory(200 << 20).unwrap();
        fs::write(folder.path().join(USED), (150_u64 << 20).to_string()).unwrap();
        let message = found.restore().unwrap_err();
        assert!(
            message.len() == 1 && message[0].to_string().contains("memory.max does not accept"),
            "{message:?}"
        );
        assert_eq!((read(HIGH).as_str(), read(MOST)), ("max", ((200_u64 << 20) + GUARD).to_string()));
        fs::write(folder.path().join(USED), (90_u64 << 20).to_string()).unwrap();
        found.restore().unwrap();
        assert_eq!((read(HIGH).as_str(), read(MOST)), ("max", (100_u64 << 20).to_string()));
        // Higher than now.
        fs::write(folder.path().join(MOST), "1000").unwrap();
        found.restore().unwrap();
        assert_eq!(read(MOST), (100_u64 << 20).to_string());
    }
}
