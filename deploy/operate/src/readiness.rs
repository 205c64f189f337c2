//! Waits until a container is ready, or reports why it is not.
use crate::cause::{Cause, OperateError};
use crate::clock;
use crate::engine::Container;
use crate::equipment::Equipment;
use crate::site::Place;
use std::time::{Duration, Instant};

/// Polling interval.
const LOOK: Duration = Duration::from_millis(300);
/// Polling interval through ssh: servers refuse too frequent connections.
const LOOK_FAR: Duration = Duration::from_secs(1);
/// Log lines in a failure.
const LINES: u32 = 8;
/// Restarts after which a container counts as failed.
const RESTARTS: u64 = 5;
/// Time for which a failing health check is tolerated.
const GRACE: Duration = Duration::from_secs(12);

/// Timeouts.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Until a container is healthy.
    pub container: Duration,
    /// Until a worker has joined.
    pub worker: Duration,
    /// Until the processes of a run are up.
    pub run: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            container: Duration::from_secs(90),
            worker: Duration::from_secs(90),
            run: Duration::from_secs(180),
        }
    }
}

/// The awaited state.
pub(crate) struct Wanted<'a> {
    pub(crate) place: &'a Place,
    pub(crate) service: &'a str,
    /// Description for the failure.
    pub(crate) what: &'a str,
    pub(crate) patience: Duration,
    /// Whether its health check must have succeeded; else the awaited state suffices, which comes earlier.
    pub(crate) is_healthy: bool,
}

impl<'a> Wanted<'a> {
    pub(crate) fn of(place: &'a Place, service: &'a str, what: &'a str, patience: Duration) -> Self {
        Self { place, service, what, patience, is_healthy: false }
    }
}

/// Waits until a service runs, is healthy if it has a health check, and reaches the awaited state.
///
/// # Errors
/// The reason why it does not.
pub(crate) fn wait<'a>(
    equipment: &Equipment<'a>,
    wanted: &Wanted<'a>,
    mut is_so: impl FnMut(&Container) -> Result<bool, OperateError>,
) -> Result<Container, OperateError> {
    let engine = equipment.engine(wanted.place);
    let begin = clock::now();
    let mut unhealthy_since: Option<Instant> = None;
    let mut first_restarts = None;
    loop {
        // A machine that is unreachable now may answer soon: it is polled until the timeout.
        let (found, mut unreached) = match engine.container(&wanted.place.location.project, wanted.service) {
            Ok(found) => (found, None),
            Err(error) if error.is_unreached() => (None, Some(error)),
            Err(error) => return Err(error),
        };
        if let Some(container) = &found {
            let before = *first_restarts.get_or_insert(container.restarts);
            if let Some(cause) = broken(container, before, wanted, || engine.tail(&container.id, LINES)) {
                return Err(cause.into());
            }
            unhealthy_since = match container.health.as_deref() {
                Some("unhealthy") => Some(unhealthy_since.unwrap_or_else(clock::now)),
                _ => None,
            };
            let is_healthy = container.health.as_deref().is_none_or(|health| health == "healthy");
            let is_up = container.runs() && (is_healthy || !wanted.is_healthy);
            if is_up {
                match is_so(container) {
                    Ok(true) => return Ok(container.clone()),
                    Ok(false) => {}
                    Err(error) if error.is_unreached() => unreached = Some(error),
                    Err(error) => return Err(error),
                }
            }
            if unhealthy_since.is_some_and(|since| since.elapsed() >= GRACE) {
                let log = format!("{}\n{}", container.health_log, engine.tail(&container.id, LINES));
                let (service, location) = (wanted.service.to_owned(), wanted.place.location.name.clone());
                return Err(Cause::Unhealthy { service, location, log: log.trim().to_owned() }.into());
            }
        }
        if begin.elapsed() >= wanted.patience {
            if let Some(error) = unreached {
                return Err(error);
            }
            let log = found.map_or_else(String::new, |container| engine.tail(&container.id, LINES));
            return Err(Cause::TooLate {
                service: wanted.service.to_owned(),
                location: wanted.place.location.name.clone(),
                what: wanted.what.to_owned(),
                seconds: wanted.patience.as_secs(),
                log,
            }
            .into());
        }
        equipment.control.pause(if wanted.place.machine.is_here() { LOOK } else { LOOK_FAR })?;
    }
}

/// Returns the reason why a container has certainly failed.
fn broken(
    container: &Container,
    restarts_before: u64,
    wanted: &Wanted<'_>,
    tail: impl FnOnce() -> String,
) -> Option<Cause> {
    let (service, location) = (wanted.service.to_owned(), wanted.place.location.name.clone());
    let is_over = matches!(container.status.as_str(), "exited" | "dead");
    let is_restarting = container.restarts >= restarts_before + RESTARTS;
    if !is_over && !is_restarting {
        return None;
    }
    Some(match container.was_out_of_memory {
        true => Cause::OutOfMemory { service, location },
        false => {
            let log = tail();
            let known = ["exec format error", "address already in use"];
            let told = log.lines().rev().find(|line| {
                let line = line.to_lowercase();
                known.iter().any(|words| line.contains(words))
            });
            if let Some(line) = told {
                return Some(crate::diagnosis::diagnose(&wanted.place.machine.name(), "start", line));
            }
            Cause::Ended { service, location, code: container.exit_code, log }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::{Site, tests::written};

    fn container(status: &str, restarts: u64, was_out_of_memory: bool) -> Container {
        Container {
            id: "a".into(),
            service: "controller".into(),
            image: "i".into(),
            image_id: "sha256:1".into(),
            status: status.into(),
            health: None,
            health_log: String::new(),
            exit_code: 69,
            was_out_of_memory,
            restarts,
            started: String::new(),
            pid: 0,
        }
    }

    /// The first two calls fail; the container runs all the time.
    #[test]
    fn a_machine_that_is_not_reached_for_a_moment_is_asked_again() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), None);
        let info = r#"{"ServerVersion": "28", "Architecture": "x86_64", "DockerRootDir": "/"}"#;
        let shown = r#"[{"Id": "abc", "Config": {"Labels": {"com.docker.compose.service": "controller"}}, "State": {"Status": "running"}}]"#;
        let script = format!(
            "case \"$1\" in\n info) echo '{info}' ;;\n compose) echo 2.26.1 ;;\n ps) [ -e calls ] && [ $(wc -l <calls) -ge 2 ] && echo abc && exit; \
             echo x >>calls; exit 255 ;;\n *) echo '{shown}' ;;\nesac"
        );
        let machine = crate::machine::tests::scripted(folder.path(), &[("docker", &script)]);
        let site = Site::load(folder.path()).unwrap().on("hub", &machine).on("edge", &machine);
        let equipment = Equipment::find(&site, crate::machine::tests::NOBODY).unwrap();
        let wanted =
            |patience| Wanted::of(site.controller(), "controller", "x", Duration::from_secs(patience));
        // Without a timeout left it is reported.
        let told = wait(&equipment, &wanted(0), |_| Ok(true)).unwrap_err();
        assert!(told.is_unreached(), "{told}");
        let found = wait(&equipment, &wanted(50), |_| Ok(true)).unwrap();
        assert_eq!(found.id, "abc");
        assert_eq!(std::fs::read_to_string(folder.path().join("calls")).unwrap().lines().count(), 2);
    }

    #[test]
    fn what_will_not_come_is_told_with_its_last_words() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), None);
        let site = Site::load(folder.path()).unwrap();
        let wanted = Wanted::of(site.controller(), "controller", "x", Duration::from_secs(1));
        let code = |status: &str, restarts, before, out| {
            broken(&container(status, restarts, out), before, &wanted, || "words".to_owned())
                .map(|cause| cause.code())
        };
        assert_eq!(code("running", 0, 0, false), None);
        assert_eq!(code("restarting", 4, 0, false), None);
        assert_eq!(code("restarting", 7, 2, false), Some("ended"));
        assert_eq!(code("exited", 0, 0, false), Some("ended"));
        assert_eq!(code("exited", 0, 0, true), Some("out_of_memory"));
        let wrong =
            broken(&container("exited", 0, false), 0, &wanted, || "exec format error".to_owned()).unwrap();
        assert_eq!(wrong.code(), "architecture_differs");
        // Ports of another machine were not checked before.
        let log =
            "17:02:11 begins\nerror: metrics at 127.0.0.1:9466: Address already in use (os error 98)\nends";
        let wrong = broken(&container("restarting", 7, false), 0, &wanted, || log.to_owned()).unwrap();
        assert!(matches!(wrong, Cause::PortTaken { port: 9466, .. }), "{wrong}");
    }
}
