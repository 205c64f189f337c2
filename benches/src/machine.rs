//! Facts of the machine that a result was measured on.
use serde::Serialize;

/// What a reader needs to compare two results.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    memory_gib: f64,
    kernel: String,
    governor: String,
    load_average: String,
    profile: &'static str,
    version: &'static str,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn field(text: &str, name: &str) -> String {
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split(':').nth(1))
        .map_or_else(|| "unknown".into(), |value| value.trim().to_owned())
}

pub(crate) fn machine() -> Machine {
    let kib = field(&read("/proc/meminfo"), "MemTotal");
    let kib: f64 = kib.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0.0);
    let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    Machine {
        cpu: tidemill_inference::processor::name().unwrap_or_else(|| "unknown".into()),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory_gib: (kib / (1 << 20) as f64 * 10.0).round() / 10.0,
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        governor: if governor.is_empty() { "not told".into() } else { governor.trim().to_owned() },
        load_average: read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" "),
        profile: if cfg!(debug_assertions) { "dev" } else { "release" },
        version: env!("CARGO_PKG_VERSION"),
    }
}
