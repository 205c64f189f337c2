//! Limits of the process, the port of the metrics, the clock.
use super::Finding;
use rustix::process::{Resource, getrlimit};
use std::io::ErrorKind;
use std::net::TcpListener;
use tidemill_app::figures::bytes;

/// Open files needed by a run with two slots: the example `vqa` fails with 24 and works with 32.
const FILES_NEEDED: u64 = 32;
/// A comfortable number of open files.
const FILES_WANTED: u64 = 256;
/// The port that the documentation uses for `--metrics`.
const METRICS_PORT: u16 = 9464;

pub(super) fn look() -> Vec<Finding> {
    let limit = |resource| getrlimit(resource).current;
    vec![
        open_files(limit(Resource::Nofile)),
        locked_memory(limit(Resource::Memlock)),
        metrics_port(METRICS_PORT),
        clock_source(&std::fs::read_to_string(CLOCK_SOURCE).unwrap_or_default()),
        wall_clock(),
    ]
}

fn open_files(limit: Option<u64>) -> Finding {
    let name = "open files";
    match limit {
        Some(limit) if limit < FILES_NEEDED => Finding::problem(
            name,
            format!("at most {limit}: a run with two slots needs about {FILES_NEEDED}"),
        ),
        Some(limit) if limit < FILES_WANTED => {
            Finding::note(name, format!("at most {limit}: plans with many slots need more"))
        }
        Some(limit) => return Finding::ok(name, format!("at most {limit}")),
        None => return Finding::ok(name, "unlimited"),
    }
    .fix("ulimit -n 1024")
}

fn locked_memory(limit: Option<u64>) -> Finding {
    let text = limit.map_or_else(|| "unlimited".to_owned(), |limit| format!("at most {}", bytes(limit)));
    Finding::ok("locked memory", format!("{text}; no part of this version locks any"))
}

fn metrics_port(port: u16) -> Finding {
    let name = "metrics port";
    let address = format!("127.0.0.1:{port}");
    match TcpListener::bind(("127.0.0.1", port)) {
        Ok(_) => Finding::ok(name, format!("{address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            Finding::note(name, format!("{address} is in use; only `--metrics` needs a port"))
                .fix(format!("use another port: tidemill run workflow.yaml --metrics 127.0.0.1:{}", port + 1))
        }
        Err(error) => Finding::note(name, format!("{address}: {error}; only `--metrics` needs a port")),
    }
}

const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

fn clock_source(text: &str) -> Finding {
    let name = "clock source";
    match text.trim() {
        "" => Finding::ok(name, "the system does not name its clock source"),
        // Reading these takes a microsecond or more, and every batch reads the clock.
        slow @ ("hpet" | "acpi_pm" | "jiffies") => Finding::note(
            name,
            format!("{slow} is slow to read: measurements of short latencies are too long"),
        )
        .fix(
            "list the available ones: cat /sys/devices/system/clocksource/clocksource0/available_clocksource",
        ),
        other => Finding::ok(name, other),
    }
}

/// No run depends on the time of day, but TLS and package downloads do.
fn wall_clock() -> Finding {
    let name = "time of day";
    #[allow(clippy::disallowed_methods, reason = "the question here is what the system's clock says")]
    let now = std::time::SystemTime::now();
    let year =
        now.duration_since(std::time::UNIX_EPOCH).map_or(1970, |since| 1970 + since.as_secs() / 31_556_952);
    match year {
        2025.. => Finding::ok(name, format!("the clock says {year}")),
        _ => Finding::note(name, format!("the clock says {year}: downloads fail with a wrong clock"))
            .fix("sudo timedatectl set-ntp true"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn limits_and_clocks() {
        assert_eq!(open_files(Some(16)).state, State::Problem);
        assert_eq!(open_files(Some(100)).state, State::Note);
        assert_eq!(open_files(None).state, State::Ok);
        assert_eq!(clock_source("hpet\n").state, State::Note);
        assert_eq!(clock_source("tsc\n").state, State::Ok);
    }

    #[test]
    fn a_port_in_use_is_a_note() {
        let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let found = metrics_port(taken.local_addr().unwrap().port());
        assert_eq!(found.state, State::Note);
        assert!(found.fix.unwrap().contains("--metrics"));
    }
}
