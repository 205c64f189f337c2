//! Facts about this machine and this process.
use std::fs;
use std::path::Path;
use tidemill_inference::backend;
use tidemill_machine::Process;

/// Constant facts; empty if the system does not report them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Processor model.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Operating system and kernel.
    pub system: String,
}

impl Machine {
    /// Looks.
    pub fn look() -> Self {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let pretty = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let (kernel, version) = tidemill_machine::kernel();
        let kernel = format!("{kernel} {version}");
        let system = [pretty.unwrap_or_default().trim_matches('"'), kernel.trim()];
        Self {
            name: tidemill_machine::host_name(),
            processor: tidemill_machine::processor().unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory: tidemill_machine::memory().map(|memory| memory.total),
            system: system.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", "),
        }
    }
}

/// Resources used by this process so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Seconds of processor time of all its threads.
    pub processor_seconds: f64,
    /// Bytes in memory now.
    pub resident: Option<u64>,
    /// Most bytes in memory so far.
    pub peak: Option<u64>,
}

impl Usage {
    /// Looks.
    pub fn look() -> Self {
        let status = Process::this().status();
        Self {
            processor_seconds: tidemill_machine::process_time().as_secs_f64(),
            resident: status.resident(),
            peak: status.peak(),
        }
    }
}

/// The inference backends of this program, in the order of preference, each with whether it is usable here. The search for
/// libraries starts at the folder.
pub fn backends(directory: &Path) -> Vec<(&'static str, bool)> {
    backend::usable(directory)
}

/// The date and time now, such as `2026-11-21 15:04:05 UTC`.
#[expect(clippy::disallowed_methods, reason = "a report says when it was made; no record goes by this time")]
pub fn now() -> String {
    date(std::time::SystemTime::now())
}

/// Microseconds from 1970 to 1990.
const YEAR_1990: i64 = 631_152_000_000_000;

/// Formats an event time in microseconds since 1970 as a date, as [`now`] does.
pub fn event_date(microseconds: i64) -> String {
    match chrono::DateTime::from_timestamp_micros(microseconds) {
        Some(time) => time.format("%Y-%m-%d %H:%M:%S UTC").to_string(),
        None => format!("{microseconds} us"),
    }
}

/// Formats an event time as a moment of the day, with its date; times before 1990 are numbers from 0 on, in seconds.
pub fn event_moment(microseconds: i64) -> String {
    match chrono::DateTime::from_timestamp_micros(microseconds).filter(|_| microseconds >= YEAR_1990) {
        Some(time) => time.format("%Y-%m-%d %H:%M:%S%.3f").to_string(),
        None => format!("{:.3} s", microseconds as f64 / 1e6),
    }
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
        assert_eq!(event_moment(951_782_400_120_000), "2000-02-29 00:00:00.120");
        assert_eq!(event_moment(1_500_000), "1.500 s");
    }

    #[test]
    fn usage_grows() {
        let before = Usage::look();
        let mut sum = 0u64;
        while Usage::look().processor_seconds - before.processor_seconds < 0.001 {
            sum = sum.wrapping_mul(31).wrapping_add(7);
        }
        assert!(std::hint::black_box(sum) > 0 || sum == 0);
    }
}
