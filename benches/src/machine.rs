//! Facts of the machine that a result was measured on.
use serde::Serialize;

/// Facts needed to compare two results.
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

impl Machine {
    /// The facts as rows of a table in Markdown.
    pub(crate) fn table(&self) -> String {
        let Self { cpu, cores, memory_gib, kernel, load_average, profile, version, governor: _ } = self;
        format!(
            "| processor | {cpu}, {cores} cores |\n| memory | {memory_gib} GiB |\n| system | Linux {kernel} |\n\
             | load | {load_average} (1, 5, 15 minutes) at the end |\n| Tidemill | {version}, {profile} build |\n"
        )
    }
}

/// Processor time of all processors since the start of the machine, in the system's ticks: used, and total. None:
/// unknown on this system.
pub(crate) fn processor_time() -> Option<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let first = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = first.split_whitespace().take(8).map_while(|part| part.parse().ok()).collect();
    // User, nice, system, idle, waiting for disks, interrupts (two kinds), stolen by other guests of the host.
    let [user, nice, system, idle, waiting, hard, soft, stolen] = ticks.try_into().ok()?;
    let used = user + nice + system + hard + soft + stolen;
    Some((used, used + idle + waiting))
}

pub(crate) fn machine() -> Machine {
    let bytes = tidemill_machine::memory().map_or(0, |memory| memory.total) as f64;
    let governor = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    let governor = std::fs::read_to_string(governor).unwrap_or_default();
    let load =
        tidemill_machine::load_average().map(|averages| averages.map(|load| format!("{load:.2}")).join(" "));
    Machine {
        cpu: tidemill_machine::processor().unwrap_or_else(|| "unknown".into()),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory_gib: (bytes / (1 << 30) as f64 * 10.0).round() / 10.0,
        kernel: tidemill_machine::kernel().1,
        governor: if governor.is_empty() { "not told".into() } else { governor.trim().to_owned() },
        load_average: load.unwrap_or_default(),
        profile: if cfg!(debug_assertions) { "dev" } else { "release" },
        version: env!("CARGO_PKG_VERSION"),
    }
}
