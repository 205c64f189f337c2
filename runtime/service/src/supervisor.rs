//! Starts services, restarts those that fail, and stops them.
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Figure, Host, HostService};

/// How often services are looked after.
const LOOK: Duration = Duration::from_millis(500);

/// Pause before a failed service restarts; it doubles with each further failure in a row.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Time of work after which a service restarts with the shortest pause again.
const SETTLED: Duration = Duration::from_secs(120);
/// Time that services have to stop when the agent ends.
const STOPPING: Duration = Duration::from_secs(10);

/// The state of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// Its name.
    pub name: String,
    /// Why it does not work; none: it does.
    pub problem: Option<String>,
    /// How often it was restarted.
    pub restarts: u64,
}

struct Service {
    name: &'static str,
    host: Host,
    instance: Box<dyn HostService>,
    /// Since then it works; none: it is stopped.
    since: Option<Instant>,
    problem: Option<String>,
    /// Its figures at the last look; none while it does not work.
    figures: Vec<Figure>,
    restarts: u64,
    /// Failures in a row.
    failures: u32,
    /// When it is started again.
    due: Instant,
}

/// Facts about all services.
#[derive(Debug, Clone, Default)]
struct Seen {
    states: Vec<Watched>,
    figures: Vec<(&'static str, Figure)>,
}

/// Looks after the services of an agent on a thread of its own. They stop when it is dropped, the last first.
pub struct Supervisor {
    seen: Arc<Mutex<Seen>>,
    /// Its end ends the thread.
    end: Option<Sender<()>>,
    /// Disconnected once all services are stopped.
    stopped: Mutex<Receiver<()>>,
    thread: JoinHandle<()>,
}

impl Supervisor {
    /// Starts all services, each with its name. The folder of the host is that for the services' own.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(services: Vec<(&'static str, Box<dyn HostService>)>, host: &Host) -> std::io::Result<Self> {
        let mut services = Services::new(services, host, instant());
        let seen = Arc::new(Mutex::new(services.seen()));
        let (told, (end, ended), (stops, stopped)) = (Arc::clone(&seen), channel::<()>(), channel::<()>());
        let thread = std::thread::Builder::new().name("tm-services".into()).spawn(move || {
            loop {
                services.look(instant());
                *locked(&told) = services.seen();
                if ended.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            drop(services);
            drop(stops);
        })?;
        Ok(Self { seen, end: Some(end), stopped: Mutex::new(stopped), thread })
    }

    /// The states of all services.
    pub fn states(&self) -> Vec<Watched> {
        let mut states = locked(&self.seen).states.clone();
        if self.thread.is_finished() {
            states.iter_mut().for_each(|state| state.problem = Some("its supervisor has ended".to_owned()));
        }
        states
    }

    /// The figures of services that work, each with the name of its service.
    pub fn figures(&self) -> Vec<(&'static str, Figure)> {
        locked(&self.seen).figures.clone()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.end = None;
        let stopped = self.stopped.get_mut().unwrap_or_else(PoisonError::into_inner);
        if stopped.recv_timeout(STOPPING) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("a service has not stopped within {STOPPING:?}: it ends with the process");
        }
    }
}

fn locked(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "pauses are real time")]
fn instant() -> Instant {
    Instant::now()
}

/// See [`Supervisor`], without its thread.
struct Services(Vec<Service>);

impl Services {
    fn new(services: Vec<(&'static str, Box<dyn HostService>)>, host: &Host, now: Instant) -> Self {
        let service = |(name, instance): (&'static str, Box<dyn HostService>)| {
            let host = Host { folder: host.folder.join(name), ..host.clone() };
            let (since, problem) = (None, Some("it has not started yet".to_owned()));
            let figures = Vec::new();
            Service { name, host, instance, since, problem, figures, restarts: 0, failures: 0, due: now }
        };
        Self(services.into_iter().map(service).collect())
    }

    /// Looks after all services: one that does not work is stopped, and started again after a pause.
    fn look(&mut self, now: Instant) {
        self.0.iter_mut().for_each(|service| service.look(now));
    }

    fn seen(&self) -> Seen {
        let state = |service: &Service| Watched {
            name: service.name.to_owned(),
            problem: service.problem.clone(),
            restarts: service.restarts,
        };
        let figures = self.0.iter().flat_map(|of| of.figures.iter().map(move |one| (of.name, *one)));
        Seen { states: self.0.iter().map(state).collect(), figures: figures.collect() }
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.0.iter_mut().rev().for_each(Service::stop);
    }
}

impl Service {
    fn look(&mut self, now: Instant) {
        if self.since.is_none() && now < self.due {
            return;
        }
        let before = self.since;
        let outcome = contained(|| {
            match before {
                Some(_) => self.instance.health(),
                None => fs::create_dir_all(&self.host.folder)
                    .map_err(|error| format!("{}: {error}", self.host.folder.display()))
                    .and_then(|()| self.instance.start(&self.host)),
            }?;
            // From here on it has to be stopped, whatever its figures do.
            self.since.get_or_insert(now);
            Ok(self.instance.metrics())
        });
        match outcome {
            Ok(figures) => {
                self.figures = figures;
                match before {
                    Some(since) if now.saturating_duration_since(since) >= SETTLED => self.failures = 0,
                    Some(_) => {}
                    None => {
                        self.restarts += u64::from(self.failures > 0);
                        self.problem = None;
                        tracing::info!("service {} works", self.name);
                    }
                }
            }
            Err(problem) => {
                self.figures.clear();
                self.stop();
                let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(8)).min(LONGEST_PAUSE);
                self.failures = self.failures.saturating_add(1);
                self.due = now + pause;
                tracing::warn!(
                    "service {} does not work: {problem}; it is started again in {pause:?}",
                    self.name
                );
                self.problem = Some(problem);
            }
        }
    }

    fn stop(&mut self) {
        if self.since.take().is_some()
            && let Err(problem) = contained(|| {
                self.instance.stop();
                Ok(())
            })
        {
            tracing::warn!("service {} did not stop: {problem}", self.name);
        }
    }
}

/// Calls a service. A panic is a failure of that service alone.
fn contained<T>(call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err("it panicked".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::Authority;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use tidemill_link::remote::Credentials;

    static IS_ILL: AtomicBool = AtomicBool::new(false);
    static STOPS: AtomicU64 = AtomicU64::new(0);

    struct Fragile;

    impl HostService for Fragile {
        fn start(&mut self, host: &Host) -> Result<(), String> {
            assert!(host.folder.ends_with("services/fragile") && host.folder.is_dir());
            self.health()
        }

        fn stop(&mut self) {
            STOPS.fetch_add(1, Ordering::Relaxed);
        }

        fn health(&mut self) -> Result<(), String> {
            if IS_ILL.load(Ordering::Relaxed) { Err("it is ill".to_owned()) } else { Ok(()) }
        }

        fn metrics(&self) -> Vec<Figure> {
            vec![Figure { name: "tidemill_fragile_things", help: "Things", value: 7.0 }]
        }
    }

    fn host(folder: &std::path::Path) -> Host {
        let certificates = Authority::named("tests").certify("tidemill", |_| {});
        Host {
            folder: folder.join("services"),
            worker: "edge".into(),
            address: [127, 0, 0, 1].into(),
            only_dials: false,
            credentials: Credentials::new(&certificates).unwrap(),
        }
    }

    #[test]
    fn a_service_that_fails_is_started_again_after_longer_and_longer_pauses() {
        let folder = std::env::temp_dir().join(format!("tidemill-service-{}", std::process::id()));
        let start = instant();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut all = Services::new(vec![("fragile", Box::new(Fragile))], &host(&folder), at(0));
        all.look(at(0));
        let state = |all: &Services| all.seen().states.remove(0);
        assert_eq!((state(&all).problem, state(&all).restarts, all.seen().figures.len()), (None, 0, 1));
        IS_ILL.store(true, Ordering::Relaxed);
        all.look(at(1));
        assert_eq!((state(&all).problem.as_deref(), all.seen().figures.len()), (Some("it is ill"), 0));
        assert_eq!(STOPS.load(Ordering::Relaxed), 1);
        // A second, then two: one that was not started is not stopped.
        all.look(at(2));
        IS_ILL.store(false, Ordering::Relaxed);
        all.look(at(3));
        assert!(state(&all).problem.is_some(), "it waits");
        all.look(at(4));
        assert_eq!((state(&all).problem, state(&all).restarts), (None, 1));
        drop(all);
        assert_eq!(STOPS.load(Ordering::Relaxed), 2);
        std::fs::remove_dir_all(folder).unwrap();
    }

    struct Panics {
        when: &'static str,
    }

    impl HostService for Panics {
        fn start(&mut self, _: &Host) -> Result<(), String> {
            Ok(())
        }

        fn stop(&mut self) {
            assert_ne!(self.when, "stop");
        }

        fn health(&mut self) -> Result<(), String> {
            if self.when == "stop" { Err("it is ill".to_owned()) } else { Ok(()) }
        }

        fn metrics(&self) -> Vec<Figure> {
            assert_ne!(self.when, "metrics");
            Vec::new()
        }
    }

    #[test]
    fn a_panic_is_a_failure_of_one_service() {
        let folder = tempfile::tempdir().unwrap();
        let start = instant();
        let all: Vec<(&'static str, Box<dyn HostService>)> = vec![
            ("figures", Box::new(Panics { when: "metrics" })),
            ("ends", Box::new(Panics { when: "stop" })),
            ("works", Box::new(Panics { when: "never" })),
        ];
        let mut all = Services::new(all, &host(folder.path()), start);
        all.look(start);
        all.look(start + LOOK);
        let problems: Vec<_> = all.seen().states.into_iter().map(|state| state.problem).collect();
        assert_eq!(problems, [Some("it panicked".to_owned()), Some("it is ill".to_owned()), None]);
    }

    #[test]
    fn services_stop_with_their_supervisor() {
        let folder = tempfile::tempdir().unwrap();
        struct Says(Sender<&'static str>);
        impl HostService for Says {
            fn start(&mut self, _: &Host) -> Result<(), String> {
                self.0.send("start").map_err(|error| error.to_string())
            }

            fn stop(&mut self) {
                self.0.send("stop").unwrap();
            }
        }
        let (says, said) = channel();
        let supervisor =
            Supervisor::start(vec![("says", Box::new(Says(says)))], &host(folder.path())).unwrap();
        assert_eq!(said.recv(), Ok("start"));
        drop(supervisor);
        assert_eq!(said.iter().collect::<Vec<_>>(), ["stop"]);
    }
}
