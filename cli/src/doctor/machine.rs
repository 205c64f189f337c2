//! Processor and memory, and their limits in a container.
use super::Finding;
use std::path::{Path, PathBuf};
use tidemill_app::figures::bytes;

/// Memory below which models and the records in transit hardly fit.
const LITTLE_MEMORY: u64 = 512 << 20;

pub(super) fn look() -> Vec<Finding> {
    let groups = control_groups();
    vec![cores(&groups), instructions(), memory(&groups)]
}

fn cores(groups: &[PathBuf]) -> Finding {
    let name = "cores";
    let Ok(cores) = std::thread::available_parallelism() else {
        return Finding::note(name, "the system does not report their number");
    };
    match processor_quota(groups) {
        Some(quota) if quota < cores.get() as f64 => Finding::note(
            name,
            format!("{cores}, but the container may use only {quota:.1} of them: rates fall above that"),
        )
        .fix("give the container more, such as `docker run --cpus N`"),
        _ => Finding::ok(name, format!("{cores}, {}", std::env::consts::ARCH)),
    }
}

/// Instruction sets used by the models' arithmetic.
fn instructions() -> Finding {
    let name = "instructions";
    #[cfg(target_arch = "x86_64")]
    {
        let found = [
            ("avx2", std::arch::is_x86_feature_detected!("avx2")),
            ("fma", std::arch::is_x86_feature_detected!("fma")),
            ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
            ("avx512vnni", std::arch::is_x86_feature_detected!("avx512vnni")),
        ];
        let has = |wanted: &str| found.iter().any(|(name, there)| *name == wanted && *there);
        let list: Vec<&str> = found.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect();
        if has("avx2") && has("fma") {
            return Finding::ok(name, list.join(", "));
        }
        Finding::note(name, "no avx2 with fma: models run several times more slowly than on other machines")
    }
    #[cfg(target_arch = "aarch64")]
    {
        Finding::ok(name, "neon")
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        Finding::note(name, "models run without vector instructions, which is slow")
    }
}

fn memory(groups: &[PathBuf]) -> Finding {
    let name = "memory";
    let Some(tidemill_machine::Memory { total, available: free }) = tidemill_machine::memory() else {
        return Finding::note(name, "the system does not report its size");
    };
    let limit = memory_limit(groups).filter(|limit| *limit < total);
    let detail = match limit {
        Some(limit) => format!(
            "{} of {}, by the container's limit; {} available",
            bytes(limit),
            bytes(total),
            bytes(free)
        ),
        None => format!("{}, {} available", bytes(total), bytes(free)),
    };
    if limit.unwrap_or(u64::MAX).min(free) < LITTLE_MEMORY {
        return Finding::problem(name, detail).fix("end other programs, or give the container more memory");
    }
    Finding::ok(name, detail)
}

/// The folders of this process's control group and those above it (version 2), innermost first.
fn control_groups() -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let text = tidemill_machine::Process::this().control_groups();
    let own = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let own = root.join(own);
    own.ancestors().take_while(|folder| folder.starts_with(root)).map(Path::to_owned).collect()
}

/// Cores left by all limits together.
fn processor_quota(groups: &[PathBuf]) -> Option<f64> {
    let quotas =
        groups.iter().filter_map(|group| quota(&std::fs::read_to_string(group.join("cpu.max")).ok()?));
    quotas.min_by(f64::total_cmp)
}

/// Parses `cpu.max`: time allowed and period, in microseconds; `max` is none.
fn quota(text: &str) -> Option<f64> {
    let (allowed, period) = text.trim().split_once(' ')?;
    let (allowed, period) = (allowed.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (period > 0.0).then_some(allowed / period)
}

fn memory_limit(groups: &[PathBuf]) -> Option<u64> {
    let limits = groups.iter().filter_map(|group| {
        std::fs::read_to_string(group.join("memory.max")).ok()?.trim().parse::<u64>().ok()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_files_are_understood() {
        assert_eq!(quota("150000 100000\n"), Some(1.5));
        assert_eq!(quota("max 100000\n"), None);
    }

    #[test]
    fn the_tightest_limit_of_all_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("cpu.max"), "max 100000\n").unwrap();
        std::fs::write(root.path().join("cpu.max"), "50000 100000\n").unwrap();
        std::fs::write(inner.join("memory.max"), "1048576\n").unwrap();
        std::fs::write(root.path().join("memory.max"), "max\n").unwrap();
        let groups = [inner, root.path().to_owned()];
        assert_eq!(processor_quota(&groups), Some(0.5));
        assert_eq!(memory_limit(&groups), Some(1 << 20));
        assert!(matches!(cores(&groups).state, super::super::State::Note));
        assert!(matches!(memory(&groups).state, super::super::State::Problem));
    }
}
