//! What this machine gives to the processes of runs.
use crate::api::Capacity;

/// Processors as far as control groups and affinity let them be used, and memory as far as control groups do.
pub(super) fn look() -> Capacity {
    let total = tidemill_machine::memory().map_or(0, |memory| memory.total);
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|text| text.trim().parse::<u64>().ok());
    Capacity {
        processors: std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64),
        memory_bytes: limit.map_or(total, |limit| limit.min(total)),
        accelerators: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn there_is_something() {
        let capacity = super::look();
        assert!(capacity.processors >= 1.0 && capacity.memory_bytes > 1 << 20, "{capacity:?}");
    }
}
