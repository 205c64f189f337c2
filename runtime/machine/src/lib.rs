//! Facts about the machine and about processes: the only place that reads `/proc` and the clocks of processor time.
//! Unavailable facts are `None`.
//!
//! ```
//! let before = tidemill_machine::process_time();
//! let sum: u64 = (0..1000u64).sum();
//! assert!(sum > 0 && tidemill_machine::process_time() >= before);
//! ```
pub mod children;
pub mod places;

use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Unit of the times in `/proc/PID/stat`: Linux reports hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the processor time of this process, all its threads, user and system.
pub fn process_time() -> Duration {
    time_of(ClockId::ProcessCPUTime)
}

/// Returns the processor time of the calling thread, user and system.
pub fn thread_time() -> Duration {
    time_of(ClockId::ThreadCPUTime)
}

fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// A process, as `/proc` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    folder: PathBuf,
}

impl Process {
    /// Returns the calling process.
    pub fn this() -> Self {
        Self { folder: "/proc/self".into() }
    }

    /// Returns the process with this number.
    pub fn of(number: u32) -> Self {
        Self { folder: format!("/proc/{number}").into() }
    }

    /// Whether it exists.
    pub fn exists(&self) -> bool {
        self.folder.exists()
    }

    /// Reads its state.
    pub fn status(&self) -> Status {
        Status(self.text("status"))
    }

    /// Reads its processor time so far, user and system, in hundredths of a second; also of a process that has ended
    /// and was not waited for.
    pub fn time(&self) -> Option<Duration> {
        let stat = self.text("stat");
        // The name, in brackets, may contain anything; utime and stime are the 12th and 13th field after it.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut times = fields.split_whitespace().skip(11).map(|ticks| ticks.parse::<f64>().ok());
        Some(Duration::from_secs_f64((times.next()?? + times.next()??) / TICKS_PER_SECOND))
    }

    /// Reads its program and arguments as one line; empty where unavailable.
    pub fn command(&self) -> String {
        let words = fs::read(self.folder.join("cmdline")).unwrap_or_default();
        let words: Vec<_> = words.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        words.join(" ").trim().to_owned()
    }

    /// Counts its threads.
    pub fn threads(&self) -> usize {
        self.entries("task")
    }

    /// Counts its open files, sockets and the like.
    pub fn descriptors(&self) -> usize {
        self.entries("fd")
    }

    /// Reads its control groups, one per line: number, controllers, path.
    pub fn control_groups(&self) -> String {
        self.text("cgroup")
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap_or_default()
    }

    fn entries(&self, name: &str) -> usize {
        fs::read_dir(self.folder.join(name)).map_or(0, Iterator::count)
    }
}

/// The state of a process at one time.
#[derive(Debug, Clone, Default)]
pub struct Status(String);

impl Status {
    /// Returns the bytes in memory.
    pub fn resident(&self) -> Option<u64> {
        bytes(&self.0, "VmRSS")
    }

    /// Returns the peak of bytes in memory; none once the process has released its memory.
    pub fn peak(&self) -> Option<u64> {
        bytes(&self.0, "VmHWM")
    }

    /// Returns the allowed processors, as a list such as `0-3,8`.
    pub fn processors(&self) -> Option<&str> {
        value(&self.0, "Cpus_allowed_list")
    }

    /// Returns the ignored signals: bit `n - 1` is signal `n`.
    pub fn ignored_signals(&self) -> Option<u64> {
        u64::from_str_radix(value(&self.0, "SigIgn")?, 16).ok()
    }
}

/// Memory of the machine, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Total.
    pub total: u64,
    /// Available to programs without swapping.
    pub available: u64,
}

/// Reads the memory of the machine.
pub fn memory() -> Option<Memory> {
    let text = read("/proc/meminfo");
    Some(Memory { total: bytes(&text, "MemTotal")?, available: bytes(&text, "MemAvailable")? })
}

/// Reads the load averages over the last minute, five minutes and a quarter of an hour.
pub fn load_average() -> Option<[f64; 3]> {
    let text = read("/proc/loadavg");
    let mut values = text.split_ascii_whitespace().map(|value| value.parse().ok());
    Some([values.next()??, values.next()??, values.next()??])
}

/// Reads the name of the machine; empty where unavailable.
pub fn host_name() -> String {
    read("/proc/sys/kernel/hostname").trim().to_owned()
}

/// Reads the kernel, such as `Linux` and `6.1.0`; empty where unavailable.
pub fn kernel() -> (String, String) {
    let line = |name: &str| read(&format!("/proc/sys/kernel/{name}")).trim().to_owned();
    (line("ostype"), line("osrelease"))
}

/// Reads the name of the processor; on boards without one, that of the board.
pub fn processor() -> Option<String> {
    processor_in(&read("/proc/cpuinfo"))
}

/// Finds the process with the write lock on the file with this number (inode).
pub fn lock_holder(inode: u64) -> Option<u32> {
    lock_holder_in(&read("/proc/locks"), &inode.to_string())
}

fn processor_in(facts: &str) -> Option<String> {
    value(facts, "model name").or_else(|| value(facts, "Model")).map(str::to_owned)
}

/// Parses lines such as `3: FLOCK  ADVISORY  WRITE 4711 fe:01:1234 0 EOF`.
fn lock_holder_in(locks: &str, inode: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", process, file, ..] = words[..] else { return None };
        (file.rsplit(':').next() == Some(inode)).then(|| process.parse().ok()).flatten()
    })
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The value of the first line of the form `name: value`.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// The bytes of a line such as `VmRSS:   1234 kB`.
fn bytes(text: &str, name: &str) -> Option<u64> {
    value(text, name)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let status = Status("VmHWM:\t  34 kB\nVmRSS:\t  12 kB\nSigIgn:\t0000000000001002\n".to_owned());
        assert_eq!((status.resident(), status.peak()), (Some(12 * 1024), Some(34 * 1024)));
        assert_eq!((status.ignored_signals(), status.processors()), (Some(0x1002), None));
        let desk = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: A Processor\nmodel name\t: A Processor\n";
        assert_eq!(processor_in(desk).as_deref(), Some("A Processor"));
        let board = "processor\t: 0\nCPU part\t: 0xd08\n\nModel\t\t: A Board Rev 1.4\n";
        assert_eq!(processor_in(board).as_deref(), Some("A Board Rev 1.4"));
        assert_eq!(processor_in("processor: 0"), None);
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:01:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 fe:01:177 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 fe:01:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 14 fe:01:77 0 EOF\n";
        assert_eq!((lock_holder_in(locks, "77"), lock_holder_in(locks, "7")), (Some(14), None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_seen_in_both_ways() {
        let process = Process::this();
        assert!(process.exists() && process.threads() >= 1 && process.descriptors() >= 3);
        assert!(!process.command().is_empty() && !process.control_groups().contains('\0'));
        let begun = process_time();
        while process_time() - begun < Duration::from_millis(60) {}
        let (told, counted) = (process.time().expect("linux tells"), process_time());
        assert!(counted.abs_diff(told) <= Duration::from_millis(40), "{told:?} and {counted:?}");
        assert!(thread_time() <= process_time());
        let status = process.status();
        assert!(status.resident() <= status.peak() && status.resident().is_some_and(|bytes| bytes > 1 << 20));
        assert!(status.processors().is_some() && status.ignored_signals().is_some());
        let memory = memory().expect("linux tells");
        assert!(memory.available < memory.total && load_average().is_some());
        assert!(!kernel().1.is_empty() && !host_name().is_empty());
        assert!(!Process::of(u32::MAX).exists());
    }
}
