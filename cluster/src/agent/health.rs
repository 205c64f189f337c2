//! Health of this machine, besides the capacity that it gives to runs.
use crate::api::{Health, ServiceHealth};
use rustix::fs::statvfs;
use rustix::process::{Resource, getrlimit};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tidemill_service::Watched;

/// Milliseconds since the beginning of 1970, by the clock of this machine.
#[expect(clippy::disallowed_methods, reason = "the clocks of machines are compared")]
pub(crate) fn civil_milliseconds() -> u64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the bytes that an unprivileged user may write.
pub(crate) fn free_bytes(folder: &Path) -> u64 {
    statvfs(folder).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize))
}

/// Reads constant values once.
pub(super) fn first(files_at: Option<String>, no_control_groups: Option<String>) -> Health {
    Health {
        no_control_groups,
        open_files: getrlimit(Resource::Nofile).current,
        files_at,
        ..Health::default()
    }
}

/// As it is now.
pub(super) fn now(first: &Health, folder: &Path, services: Vec<Watched>) -> Health {
    let services = services.into_iter().map(|Watched { name, problem, restarts }| ServiceHealth {
        name,
        problem,
        restarts,
    });
    Health {
        time_milliseconds: civil_milliseconds(),
        disk_free_bytes: free_bytes(folder),
        services: services.collect(),
        ..first.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_says_how_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let first = first(Some("10.0.0.5:1".into()), Some("no rights".into()));
        let service = Watched { name: "links".into(), problem: None, restarts: 2 };
        let health = now(&first, folder.path(), vec![service]);
        assert_eq!((health.services[0].name.as_str(), health.services[0].restarts), ("links", 2));
        assert!(health.disk_free_bytes > 0 && health.time_milliseconds > 1_700_000_000_000, "{health:?}");
        assert_eq!(health.files_at.as_deref(), Some("10.0.0.5:1"));
        assert_eq!(health.no_control_groups.as_deref(), Some("no rights"));
    }
}
