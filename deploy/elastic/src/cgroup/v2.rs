//! Version 2: one folder. Processes that reach `memory.high` are slowed down and counted; `memory.max`, where the kernel ends
//! them, is kept well above it.
use super::files::{self, Watched};
use super::{Counters, Found, Group, GroupError, Limits};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const QUOTA: &str = "cpu.max";
const HIGH: &str = "memory.high";
const MOST: &str = "memory.max";
/// Bytes from the limit to where the kernel ends processes: more than they can take while they are slowed down, until the next
/// look.
pub(crate) const GUARD: u64 = 64 << 20;

/// A group of version 2.
#[derive(Debug)]
pub struct GroupV2 {
    folder: PathBuf,
    time: Watched,
    used_memory: Watched,
    events: Watched,
    /// The limit that was written last.
    limit: Option<u64>,
}

impl GroupV2 {
    /// The group with this folder.
    ///
    /// # Errors
    /// It is not there, cannot be read, or has not the controllers `cpu` and `memory`.
    pub fn open(folder: &Path) -> Result<Self, GroupError> {
        Ok(Self {
            folder: folder.to_owned(),
            time: Watched::open(folder.join("cpu.stat"))?,
            used_memory: Watched::open(folder.join("memory.current"))?,
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
        let limit = |name: &str| Ok(files::read(&self.folder.join(name))?.trim().parse::<u64>().ok());
        let (high, most) = (limit(HIGH)?, limit(MOST)?);
        let memory = high.into_iter().chain(most).min(); // `max` is no number: no limit
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
        let guard = bytes.saturating_add(GUARD).to_string();
        // The two never come near each other, on the way neither.
        if self.limit.is_none_or(|limit| limit < bytes) {
            files::write(&most, &guard)?;
            files::write(&high, &bytes.to_string())?;
        } else {
            files::write(&high, &bytes.to_string())?;
            files::write(&most, &guard)?;
        }
        self.limit = Some(bytes);
        Ok(())
    }

    fn set_fixed_memory(&mut self, bytes: u64) -> Result<(), GroupError> {
        // At `memory.high` a process is put to sleep for as long as it is above: without somebody who raises it, for ever.
        files::write(&self.folder.join(HIGH), "max")?;
        files::write(&self.folder.join(MOST), &bytes.to_string())?;
        self.limit = None;
        Ok(())
    }

    fn trap(&mut self) -> Result<Option<OwnedFd>, GroupError> {
        Ok(None)
    }

    fn is_stuck(&self) -> Result<bool, GroupError> {
        let Some(limit) = self.limit else { return Ok(false) };
        let path = self.folder.join("memory.current");
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

    /// Files as the kernel makes them.
    pub(crate) fn group(folder: &Path) -> GroupV2 {
        for (name, text) in [
            (
                "cpu.stat",
                "usage_usec 2500\nuser_usec 2000\nnr_periods 10\nnr_throttled 4\nthrottled_usec 3000\n",
            ),
            (QUOTA, "max 100000\n"),
            (HIGH, "max\n"),
            (MOST, "max\n"),
            ("memory.current", "1000\n"),
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
        fs::write(folder.path().join("memory.current"), (51u64 << 20).to_string()).unwrap();
        assert!(group.is_stuck().unwrap());
        group.let_kill(true).unwrap();
        assert_eq!(number(MOST), number(HIGH));
        group.set_quota(20_000, 100_000).unwrap();
        assert_eq!(read(QUOTA), "20000 100000");
        found.restore().unwrap();
        assert_eq!((read(QUOTA), read(HIGH), read(MOST)), ("max 100000".into(), "max".into(), "max".into()));
    }
}
