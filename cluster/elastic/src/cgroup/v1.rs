//! Version 1: a folder per controller. When memory runs out, its processes can be made to wait.
use super::files::{self, Watched};
use super::{Counters, Found, Group, GroupError, Limits, NO_MEMORY_LIMIT};
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

const QUOTA: &str = "cpu.cfs_quota_us";
const PERIOD: &str = "cpu.cfs_period_us";
const MEMORY: &str = "memory.limit_in_bytes";
/// Memory and swap together; exists only if the kernel counts swap.
const WITH_SWAP: &str = "memory.memsw.limit_in_bytes";
const OUT_OF_MEMORY: &str = "memory.oom_control";

/// A group of version 1.
#[derive(Debug)]
pub struct GroupV1 {
    cpu: PathBuf,
    memory: PathBuf,
    time: Watched,
    periods: Watched,
    used_memory: Watched,
    kills: Watched,
    /// Swap beyond the memory; `None`: not counted or unlimited.
    swap: Option<u64>,
    /// The last written period, to avoid writing it repeatedly.
    period: u64,
}

impl GroupV1 {
    /// Opens the group with these folders of the controllers `cpu`, `cpuacct` and `memory`.
    ///
    /// # Errors
    /// One of them does not exist, or cannot be read.
    pub fn open(cpu: &Path, accounting: &Path, memory: &Path) -> Result<Self, GroupError> {
        let with_swap = files::read(&memory.join(WITH_SWAP)).ok();
        let limit = files::number(&memory.join(MEMORY), &files::read(&memory.join(MEMORY))?)?;
        let with_swap = with_swap.and_then(|text| text.trim().parse::<u64>().ok());
        let period = files::number(&cpu.join(PERIOD), &files::read(&cpu.join(PERIOD))?)?;
        Ok(Self {
            cpu: cpu.to_owned(),
            memory: memory.to_owned(),
            time: Watched::open(accounting.join("cpuacct.usage"))?,
            periods: Watched::open(cpu.join("cpu.stat"))?,
            used_memory: Watched::open(memory.join("memory.usage_in_bytes"))?,
            kills: Watched::open(memory.join(OUT_OF_MEMORY))?,
            swap: with_swap.filter(|both| *both < NO_MEMORY_LIMIT).map(|both| both.saturating_sub(limit)),
            period,
        })
    }
}

impl Group for GroupV1 {
    fn folder(&self) -> &Path {
        &self.memory
    }

    fn counters(&mut self) -> Result<Counters, GroupError> {
        let [periods, throttled, throttled_nanoseconds] =
            self.periods.fields(["nr_periods", "nr_throttled", "throttled_time"])?;
        // Kernels before 4.13 lack this counter.
        let killed = files::field(&PathBuf::new(), self.kills.text()?, "oom_kill").unwrap_or(0);
        Ok(Counters {
            used: self.time.number()? / 1_000,
            periods,
            throttled,
            throttled_time: throttled_nanoseconds / 1_000,
            memory: self.used_memory.number()?,
            pressed: 0,
            killed,
        })
    }

    fn working_set(&mut self) -> Result<u64, GroupError> {
        let path = self.memory.join("memory.stat");
        let idle = files::field(&path, &files::read(&path)?, "total_inactive_file")?;
        Ok(self.used_memory.number()?.saturating_sub(idle))
    }

    fn limits(&self) -> Result<Limits, GroupError> {
        let read = |path: PathBuf| Ok((files::read(&path)?, path));
        let (quota, _) = read(self.cpu.join(QUOTA))?; // -1: none
        let (period, path) = read(self.cpu.join(PERIOD))?;
        let period = files::number(&path, &period)?;
        let (memory, path) = read(self.memory.join(MEMORY))?;
        let memory = files::number(&path, &memory)?;
        Ok(Limits {
            quota: quota.trim().parse().ok(),
            period,
            memory: Some(memory).filter(|bytes| *bytes < NO_MEMORY_LIMIT),
        })
    }

    fn found(&self) -> Result<Found, GroupError> {
        let mut found = Found::default();
        let mut keep = |path: PathBuf| -> Result<(), GroupError> {
            let text = files::read(&path)?.trim().to_owned();
            found.files.push((path, text));
            Ok(())
        };
        keep(self.cpu.join(PERIOD))?;
        keep(self.cpu.join(QUOTA))?;
        if self.memory.join(WITH_SWAP).exists() {
            keep(self.memory.join(WITH_SWAP))?;
        }
        keep(self.memory.join(MEMORY))?;
        let path = self.memory.join(OUT_OF_MEMORY);
        let waits = files::field(&path, &files::read(&path)?, "oom_kill_disable")?;
        found.files.push((path, waits.to_string()));
        Ok(found)
    }

    fn set_quota(&mut self, quota: u64, period: u64) -> Result<(), GroupError> {
        if period == self.period {
            return files::write(&self.cpu.join(QUOTA), &quota.to_string());
        }
        let had = files::read(&self.cpu.join(QUOTA))?;
        // A parent group allows a share of the time: the old quota with the new period could exceed it.
        files::write(&self.cpu.join(QUOTA), "-1")?;
        let written = files::write(&self.cpu.join(PERIOD), &period.to_string())
            .and_then(|()| files::write(&self.cpu.join(QUOTA), &quota.to_string()));
        match &written {
            Ok(()) => self.period = period,
            // The old limit stays, so the group is never unlimited. The next call reports the refusal.
            Err(_) => {
                let _ = files::write(&self.cpu.join(PERIOD), &self.period.to_string());
                let _ = files::write(&self.cpu.join(QUOTA), had.trim());
            }
        }
        written
    }

    fn set_memory(&mut self, bytes: u64) -> Result<(), GroupError> {
        let limit = self.memory.join(MEMORY);
        let Some(swap) = self.swap else { return files::write(&limit, &bytes.to_string()) };
        // The limit with swap must never be below the other one, not even in between.
        let (both, with_swap) = (self.memory.join(WITH_SWAP), bytes.saturating_add(swap).to_string());
        let grows = files::write(&both, &with_swap).is_ok();
        files::write(&limit, &bytes.to_string())?;
        if grows { Ok(()) } else { files::write(&both, &with_swap) }
    }

    fn trap(&mut self) -> Result<Option<OwnedFd>, GroupError> {
        let control = self.memory.join("cgroup.event_control");
        let system = |path: &Path| {
            let path = path.to_owned();
            move |source: std::io::Error| GroupError::System { path, source }
        };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| system(&control)(error.into()))?;
        let watched = self.memory.join(OUT_OF_MEMORY);
        let file = File::open(&watched).map_err(system(&watched))?;
        files::write(&control, &format!("{} {}", event.as_raw_fd(), file.as_raw_fd()))?;
        self.let_kill(false)?;
        Ok(Some(event))
    }

    fn is_stuck(&self) -> Result<bool, GroupError> {
        let path = self.memory.join(OUT_OF_MEMORY);
        Ok(files::field(&path, &files::read(&path)?, "under_oom")? == 1)
    }

    fn let_kill(&mut self, yes: bool) -> Result<(), GroupError> {
        files::write(&self.memory.join(OUT_OF_MEMORY), if yes { "0" } else { "1" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const UNLIMITED: &str = "9223372036854771712";

    fn group(folder: &Path) -> GroupV1 {
        for (name, text) in [
            ("cpuacct.usage", "2500000\n"),
            ("cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_time 3000000\nnr_bursts 0\n"),
            (QUOTA, "-1\n"),
            (PERIOD, "50000\n"),
            (MEMORY, UNLIMITED),
            (WITH_SWAP, UNLIMITED),
            ("memory.usage_in_bytes", "1000\n"),
            ("memory.stat", "cache 300\ntotal_inactive_file 300\n"),
            (OUT_OF_MEMORY, "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ] {
            fs::write(folder.join(name), text).unwrap();
        }
        GroupV1::open(folder, folder, folder).unwrap()
    }

    #[test]
    fn what_the_kernel_writes_is_understood() {
        let folder = tempfile::tempdir().unwrap();
        let mut group = group(folder.path());
        let found = group.counters().unwrap();
        assert_eq!((found.used, found.periods, found.throttled, found.throttled_time), (2_500, 10, 4, 3_000));
        assert_eq!((found.memory, found.killed, group.working_set().unwrap()), (1_000, 2, 700));
        assert_eq!(group.limits().unwrap(), Limits { quota: None, period: 50_000, memory: None });
        fs::write(folder.path().join("cpu.stat"), "nr_periods 11\n").unwrap();
        let message = group.counters().unwrap_err().to_string();
        assert!(message.contains("cpu.stat: nr_throttled is missing in `nr_periods 11`"), "{message}");
        fs::remove_dir_all(folder.path()).unwrap();
        assert!(group.limits().unwrap_err().is_gone());
    }

    #[test]
    fn what_is_changed_can_be_put_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut group = group(folder.path());
        let (found, read) =
            (group.found().unwrap(), |name: &str| fs::read_to_string(folder.path().join(name)).unwrap());
        group.set_quota(30_000, 100_000).unwrap();
        group.set_memory(64 << 20).unwrap();
        group.let_kill(false).unwrap();
        assert_eq!(
            (read(QUOTA), read(PERIOD), read(MEMORY)),
            ("30000".into(), "100000".into(), "67108864".into())
        );
        assert_eq!((read(WITH_SWAP).as_str(), read(OUT_OF_MEMORY).as_str()), (UNLIMITED, "1"));
        found.restore().unwrap();
        assert_eq!(
            (read(QUOTA), read(PERIOD), read(MEMORY)),
            ("-1".into(), "50000".into(), UNLIMITED.into())
        );
        assert_eq!(read(OUT_OF_MEMORY), "0");
    }

    #[test]
    fn swap_stays_what_it_was_beyond_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        drop(group(folder.path()));
        fs::write(folder.path().join(MEMORY), "1000").unwrap();
        fs::write(folder.path().join(WITH_SWAP), "1500").unwrap();
        let mut group = GroupV1::open(folder.path(), folder.path(), folder.path()).unwrap();
        group.set_memory(4_096).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join(WITH_SWAP)).unwrap(), "4596");
    }
}
