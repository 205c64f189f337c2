//! What this machine and this process are and use.
use std::fs;
use tidemill_inference::processor;

/// Facts that do not change while a run goes on; empty where the system does not tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Its name.
    pub(crate) name: String,
    /// Processor model.
    pub(crate) processor: String,
    /// Cores that this process may use.
    pub(crate) cores: usize,
    /// Bytes of memory.
    pub(crate) memory: Option<u64>,
    /// Operating system and kernel.
    pub(crate) system: String,
}

impl Machine {
    /// Looks.
    pub(crate) fn look() -> Self {
        let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let pretty = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let kernel = [line("/proc/sys/kernel/ostype"), line("/proc/sys/kernel/osrelease")].join(" ");
        let system = [pretty.unwrap_or_default().trim_matches('"'), kernel.trim()];
        Self {
            name: line("/proc/sys/kernel/hostname"),
            processor: processor::name().unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory: kilobytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemTotal"),
            system: system.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", "),
        }
    }
}

/// What this process has used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Usage {
    /// Seconds of processor time of all its threads.
    pub(crate) processor_seconds: f64,
    /// Bytes in memory now.
    pub(crate) resident: Option<u64>,
    /// Most bytes in memory so far.
    pub(crate) peak: Option<u64>,
}

impl Usage {
    /// Looks.
    pub(crate) fn look() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            processor_seconds: time.tv_sec as f64 + time.tv_nsec as f64 / 1e9,
            resident: kilobytes(&status, "VmRSS"),
            peak: kilobytes(&status, "VmHWM"),
        }
    }
}

/// The bytes that a line such as `VmRSS:   1234 kB` of a file in /proc tells.
pub(crate) fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The date and time now, such as `2026-11-21 15:04:05 UTC`.
#[expect(clippy::disallowed_methods, reason = "a report says when it was made; no record goes by this time")]
pub(crate) fn now() -> String {
    date(std::time::SystemTime::now())
}

fn date(time: std::time::SystemTime) -> String {
    chrono::DateTime::<chrono::Utc>::from(time).format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // date -u -d @951782400
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(951_782_400);
        assert_eq!(date(time), "2000-02-29 00:00:00 UTC");
    }

    #[test]
    fn usage_grows() {
        let before = Usage::look();
        let mut sum = 0u64;
        while Usage::look().processor_seconds - before.processor_seconds < 0.001 {
            sum = sum.wrapping_mul(31).wrapping_add(7);
        }
        assert!(std::hint::black_box(sum) > 0 || sum == 0);
        assert_eq!(kilobytes("VmRSS:\t  12 kB\n", "VmRSS"), Some(12 * 1024));
        assert_eq!(kilobytes("VmRSS:\t  12 kB\n", "VmHWM"), None);
    }
}
