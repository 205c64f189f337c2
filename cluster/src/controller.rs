//! The controller: accepts workflows, assigns the workers of a plan to workers of the cluster, and coordinates the runs.
//!
//! It may die at any time: the workers continue, and the next process on the same folder takes over their runs.
mod admission;
mod answering;
mod backends;
mod change_events;
mod changing;
mod cuts;
mod detection;
mod drive;
mod figures;
mod groups;
mod health;
mod jobs;
mod launcher;
mod link_hints;
mod logs;
mod losses;
mod measured_links;
mod metrics;
mod net;
mod object_store;
mod openapi;
mod page;
mod parts;
mod people;
mod placing;
mod planning;
mod racks;
mod receiving;
mod removal;
mod renewal;
mod replanning;
mod results;
mod runs;
mod samples;
mod server;
mod sharing;
mod sources;
mod stand_by;
mod waiting;
mod workers;

use crate::api::{Event, LogLine};
use crate::blobs::{Beyond, BlobError, Blobs};
use crate::facts::{Document, Facts, FactsError};
use rustix::fs::{FlockOperation, flock};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_app::metrics::MetricsPort;
use tidemill_app::otlp::Exporter;
use tidemill_app::state::place::StatePlace;
use tidemill_engine::remote::{Address, Security};
use tidemill_engine::{Exchange, RunError};
use tidemill_identity::{
    AccessToken, Authority, IdentityError, JoinAddress, Lifetimes, StoreError, Timestamp,
};
use tidemill_link::remote::{Credentials, RemoteError};
use tokio::sync::Semaphore;

pub use detection::Detection;
pub use jobs::{JobOptions, JobOptionsError};
pub use openapi::document as openapi_document;
pub use removal::Keeping;
pub(crate) use results::Which;
pub(crate) use runs::LiveRun;
pub(crate) use server::Behind;
pub use stand_by::StandBy;
pub use tidemill_postgres::{
    Address as StoreAddress, AddressError as StoreAddressError, Announcement, Candidate, Lead, Leader,
    PostgresError, Standing,
};
pub(crate) use workers::LiveWorker;

/// Requests that wait for events at once: each holds a thread.
const MOST_WAITERS: usize = 128;

/// Settings of a controller.
#[derive(Debug, Clone)]
pub struct ControllerOptions {
    /// Its folder: identities, runs, files, states.
    pub folder: PathBuf,
    /// Address for people and workers: `0.0.0.0:7420`.
    pub listen: String,
    /// Address on which it accepts the processes of runs: `0.0.0.0:7421`.
    pub listen_hosts: String,
    /// Names and addresses by which others reach it; it announces the first one.
    pub names: Vec<String>,
    /// Port for metrics without TLS and without authentication.
    pub metrics: Option<Arc<MetricsPort>>,
    /// Retention of runs that have ended.
    pub keeping: Keeping,
    /// Which silence means that a worker is lost.
    pub detection: Detection,
    /// Pace at which plans are judged and changed, normally 1: at 2 looks are twice as frequent, and waits half as long.
    pub replan_pace: f64,
    /// Some records of every run are traced.
    pub traced: Option<Traced>,
    /// Lifetimes of the certificates that it issues, also to itself.
    pub lifetimes: Lifetimes,
    /// An object store that files of workflows are kept in, too, and that workers have them from.
    pub files: Option<StoredFiles>,
    /// The queue of jobs.
    pub jobs: JobOptions,
}

#[cfg(test)]
impl ControllerOptions {
    /// Settings of a controller of a test, with its folder in this one, at any free ports of this machine.
    pub(crate) fn of_test(folder: &Path) -> Self {
        Self {
            folder: folder.join("controller"),
            listen: "127.0.0.1:0".into(),
            listen_hosts: "127.0.0.1:0".into(),
            names: vec!["localhost".into()],
            metrics: None,
            keeping: Keeping::default(),
            detection: Detection::default(),
            replan_pace: 1.0,
            traced: None,
            lifetimes: Lifetimes::default(),
            files: None,
            jobs: JobOptions::default(),
        }
    }
}

/// Settings and credentials of an object store.
pub use tidemill_bucket::Settings as StoreSettings;

/// See [`ControllerOptions::files`].
#[derive(Clone)]
pub struct StoredFiles(Arc<tidemill_bucket::Files>);

impl StoredFiles {
    /// Opens the object store at this address, without a request to it.
    ///
    /// # Errors
    /// The settings do not fit.
    pub fn open(
        address: &tidemill_spec::bucket_address::Address,
        settings: &StoreSettings,
    ) -> std::io::Result<Self> {
        Ok(Self(Arc::new(tidemill_bucket::Files::open(address, settings)?)))
    }
}

impl std::fmt::Debug for StoredFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StoredFiles").field(&self.0.place()).finish()
    }
}

/// Settings for traces of the records of runs.
#[derive(Clone)]
pub struct Traced {
    /// Share of the records of each source, 0 to 1.
    pub share: f64,
    /// Sends what happened to them.
    pub exporter: Arc<Exporter>,
}

impl std::fmt::Debug for Traced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Traced").field("share", &self.share).finish_non_exhaustive()
    }
}

/// The reason why a controller cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The folder.
    #[error("{path}: {reason}")]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Another process has the folder.
    #[error("another controller uses `{0}`: end it first")]
    Taken(PathBuf),
    /// The folder is that of a controller on its own.
    #[error(
        "`{0}` contains its own cluster (`cluster.json`), which cannot move into PostgreSQL: name another folder"
    )]
    OnItsOwn(PathBuf),
    /// The database that several controllers share.
    #[error(transparent)]
    Shared(#[from] PostgresError),
    /// Identities.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The durable state.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// Files.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// TLS.
    #[error(transparent)]
    Link(#[from] RemoteError),
    /// The address of the processes of runs.
    #[error(transparent)]
    Engine(#[from] RunError),
    /// The address for people and workers.
    #[error("{address}: {source}")]
    Listen {
        /// Which.
        address: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A name of the controller.
    #[error("{0}")]
    Name(String),
    /// The queue of jobs.
    #[error("jobs: {0}")]
    Jobs(#[from] jobs::JobOptionsError),
    /// The object store for files.
    #[error("files of workflows: {0}")]
    ObjectStore(std::io::Error),
}

/// State shared by the threads of a controller.
pub(crate) struct Shared {
    pub(crate) folder: PathBuf,
    pub(crate) authority: Authority,
    pub(crate) credentials: Credentials,
    /// Names and addresses in its certificate.
    pub(crate) names: Vec<String>,
    pub(crate) address: JoinAddress,
    pub(crate) facts: Facts,
    /// The leadership, where there are several controllers.
    pub(crate) lead: Option<Arc<Lead>>,
    pub(crate) blobs: Blobs,
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) exchange_port: u16,
    /// The time when this process started to accept its workers.
    pub(crate) begun: std::time::Instant,
    pub(crate) workers: Mutex<BTreeMap<String, LiveWorker>>,
    /// Counts workers that came, went or moved.
    pub(crate) worker_changes: AtomicU64,
    /// Processors of each worker, as it last reported.
    pub(crate) processors: Mutex<BTreeMap<String, f64>>,
    pub(crate) runs: Mutex<BTreeMap<String, LiveRun>>,
    /// Which silence means that a worker is lost.
    pub(crate) detection: Detection,
    /// Held while a workflow is planned.
    pub(crate) planning: Mutex<()>,
    /// Times as fast as plans are judged and changed.
    pub(crate) replan_pace: f64,
    pub(crate) replanners: Mutex<replanning::Replanners>,
    pub(crate) watching: Mutex<figures::Watching>,
    /// Traffic of runs between workers.
    pub(crate) traffic: Mutex<Arc<measured_links::Traffic>>,
    pub(crate) hints: Mutex<link_hints::LinkHints>,
    /// Counters of this process.
    pub(crate) counts: metrics::Counts,
    pub(crate) job_options: JobOptions,
    /// When workers left the cluster: their leases may last longer.
    pub(crate) left: Mutex<BTreeMap<String, std::time::Instant>>,
    /// Settings of a queue that begins.
    pub(crate) job_settings: tidemill_jobs::Settings,
    pub(crate) keeping: Keeping,
    pub(crate) traced: Option<Traced>,
    pub(crate) removing: Mutex<()>,
    pub(crate) roll_outs: Mutex<sources::RollOuts>,
    pub(crate) parts: parts::Parts,
    pub(crate) probes: Mutex<health::Probes>,
    /// Bytes of files of workflows that were sent.
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) logs: logs::Logs,
    /// Runs reported as waiting.
    pub(crate) waited: Mutex<BTreeSet<String>>,
    /// Places for requests that wait for events.
    pub(crate) waiters: Arc<Semaphore>,
    /// Wakes requests that wait for events.
    happened: Condvar,
    happenings: Mutex<u64>,
    pub(crate) is_ending: AtomicBool,
    lock: File,
}

/// An event to report: its kind, run and worker.
pub(crate) struct Happened<'a> {
    pub(crate) kind: &'a str,
    pub(crate) run: Option<&'a str>,
    pub(crate) worker: Option<&'a str>,
    pub(crate) text: String,
}

/// A controller at work.
pub struct Controller {
    shared: Arc<Shared>,
    server: server::Server,
    watchers: Vec<std::thread::JoinHandle<()>>,
}

fn folder_error(path: &Path) -> impl Fn(std::io::Error) -> ControllerError {
    move |error| ControllerError::Folder { path: path.to_owned(), reason: error.to_string() }
}

impl Controller {
    /// Opens or makes the folder, listens, and takes over the runs that continue.
    ///
    /// # Errors
    /// The folder is taken or damaged, or an address cannot be listened on.
    pub fn start(options: &ControllerOptions) -> Result<Self, ControllerError> {
        Self::begin(options, None)
    }

    /// Starts the leader of several controllers with shared durable state. Its folder is then only a cache, besides the key of the
    /// authority. End it when [`Controller::lead_ended`] says so.
    ///
    /// # Errors
    /// As [`Controller::start`]; the shared state cannot be reached.
    pub fn lead(options: &ControllerOptions, lead: Lead) -> Result<Self, ControllerError> {
        Self::begin(options, Some(Arc::new(lead)))
    }

    fn begin(options: &ControllerOptions, lead: Option<Arc<Lead>>) -> Result<Self, ControllerError> {
        let folder = options.folder.clone();
        if lead.is_some() && folder.join("cluster.json").exists() {
            return Err(ControllerError::OnItsOwn(folder));
        }
        let lock = take(&folder)?;
        let now = Timestamp::now();
        let (identities, lifetimes) = (folder.join("identities"), options.lifetimes);
        let authority = match &lead {
            Some(lead) => {
                let register = Box::new(sharing::SharedRegister(Arc::clone(lead)));
                Authority::open_or_create_shared(&identities, register, lifetimes, now)?
            }
            None => Authority::open_or_create(&identities, lifetimes, now)?,
        };
        let names: Vec<&str> = options.names.iter().map(String::as_str).collect();
        let first = names.first().copied().unwrap_or("localhost");
        let credentials = Credentials::with(
            &authority.issue_controller(&names, now)?,
            authority.revoked().clone(),
            Arc::new(rustls::time_provider::DefaultTimeProvider),
        )?;
        let security = Security::with(&credentials)?;
        tidemill_session::install().map_err(RemoteError::from)?;
        let exchange =
            Exchange::listen(&tidemill_session::address(options.listen_hosts.clone()), None, &security)?;
        let exchange_port = port_of(exchange.address());
        let listener = std::net::TcpListener::bind(&options.listen)
            .map_err(|source| ControllerError::Listen { address: options.listen.clone(), source })?;
        let port = listener.local_addr().map_or(0, |address| address.port());
        let address =
            authority.join_address(first, port).map_err(|error| ControllerError::Name(error.to_string()))?;
        let runs_folder = folder.join("runs");
        let blobs = Blobs::open(&folder.join("blobs"))?;
        let facts = match &lead {
            Some(lead) => {
                // Left from an earlier leadership.
                remove(&runs_folder)?;
                Facts::shared(lead)?
            }
            None => Facts::open(&folder)?,
        };
        let fingerprint = address.fingerprint().to_string();
        let blobs = match (&options.files, &lead) {
            (Some(StoredFiles(files)), _) => {
                let shared = match &lead {
                    Some(lead) => Some(Box::new(sharing::SharedFiles::open(lead)?) as Box<dyn Beyond>),
                    None => None,
                };
                let store = object_store::ObjectStore::open(files, &fingerprint, shared);
                let store = store.map_err(ControllerError::ObjectStore)?;
                blobs.beyond(Box::new(store))
            }
            (None, Some(lead)) => blobs.beyond(Box::new(sharing::SharedFiles::open(lead)?)),
            (None, None) => blobs,
        };
        let logs = logs::Logs::new(&runs_folder, lead.as_ref());
        let shared = Arc::new(Shared {
            facts,
            lead,
            blobs,
            folder,
            authority,
            credentials,
            names: options.names.clone(),
            address,
            exchange: Arc::new(exchange),
            exchange_port,
            begun: crate::clock::instant(),
            workers: Mutex::default(),
            worker_changes: AtomicU64::new(0),
            processors: Mutex::default(),
            runs: Mutex::default(),
            detection: options.detection,
            planning: Mutex::default(),
            replan_pace: options.replan_pace,
            replanners: Mutex::new(replanning::Replanners::new()),
            watching: Mutex::new(figures::Watching::new()),
            traffic: Mutex::default(),
            hints: Mutex::new(link_hints::LinkHints::new()),
            counts: metrics::Counts::default(),
            job_options: options.jobs.clone(),
            left: Mutex::default(),
            job_settings: options.jobs.settings()?,
            keeping: options.keeping,
            traced: options.traced.clone(),
            removing: Mutex::default(),
            roll_outs: Mutex::default(),
            parts: parts::Parts::default(),
            probes: Mutex::default(),
            sent_bytes: AtomicU64::new(0),
            logs,
            waited: Mutex::default(),
            waiters: Arc::new(Semaphore::new(MOST_WAITERS)),
            happened: Condvar::new(),
            happenings: Mutex::new(0),
            is_ending: AtomicBool::new(false),
            lock,
        });
        let asked = Arc::downgrade(&shared);
        shared.exchange.admit_only(move |greeting, identity| match asked.upgrade() {
            Some(shared) => admission::may_be(&shared, greeting, identity),
            None => Err("this controller ends".to_owned()),
        });
        shared.finish_removals();
        let server = server::Server::start(&shared, listener)
            .map_err(|source| ControllerError::Listen { address: options.listen.clone(), source })?;
        let watching = |name: &str, watch: fn(&Arc<Shared>)| {
            let watched = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || watch(&watched));
            thread.map_err(folder_error(&shared.folder))
        };
        let watchers = vec![
            watching("tm-workers", workers::watch)?,
            watching("tm-keep", removal::watch)?,
            watching("tm-renewal", renewal::watch)?,
            watching("tm-notices", change_events::watch)?,
            watching("tm-replanning", replanning::watch)?,
            watching("tm-figures", figures::watch)?,
            watching("tm-jobs", jobs::watch)?,
        ];
        if let Some(port) = &options.metrics {
            let (of_text, of_figures) = (Arc::downgrade(&shared), Arc::downgrade(&shared));
            let text = move || of_text.upgrade().map_or(Ok(String::new()), |shared| metrics::text(&shared));
            let figures = move || of_figures.upgrade().map_or_else(Vec::new, |shared| shared.live_figures());
            port.serve(text, figures).map_err(folder_error(&shared.folder))?;
        }
        runs::resume(&shared);
        Ok(Self { shared, server, watchers })
    }

    /// Returns the address for workers and people.
    pub fn address(&self) -> &JoinAddress {
        &self.shared.address
    }

    /// Returns the reason why it leads no more; none: it does, or it is the only one.
    pub fn lead_ended(&self) -> Option<String> {
        self.shared.lead.as_ref()?.ended()
    }

    /// Returns the access token of the first admin, once ever. `keep` stores it before it becomes valid.
    ///
    /// # Errors
    /// It cannot be kept.
    pub fn first_admin(
        &self,
        keep: impl FnOnce(&AccessToken) -> Result<(), StoreError>,
    ) -> Result<Option<AccessToken>, ControllerError> {
        Ok(self.shared.authority.first_admin(Timestamp::now(), keep)?)
    }

    /// Ends only this controller: runs continue, and the next controller takes them over.
    pub fn end(mut self) {
        self.shared.is_ending.store(true, Ordering::Release);
        self.shared.wake();
        runs::step_down(&self.shared);
        self.server.end();
        for watcher in self.watchers.drain(..) {
            watcher.thread().unpark();
            let _ = watcher.join(); // what it panicked of was told
        }
        if let Some(lead) = &self.shared.lead {
            lead.give_up();
            // This process may lead again, and a pending request may still hold the state.
            let _ = flock(&self.shared.lock, FlockOperation::Unlock);
        }
    }
}

/// Locks the folder until the returned file is dropped.
fn take(folder: &Path) -> Result<File, ControllerError> {
    // Private contents: tokens, numbers of runs, logs, files of workflows.
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(folder_error(folder))?;
    let lock = File::create(folder.join("lock")).map_err(folder_error(folder))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| ControllerError::Taken(folder.to_owned()))?;
    Ok(lock)
}

fn remove(folder: &Path) -> Result<(), ControllerError> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(folder_error(folder)(error)),
        _ => Ok(()),
    }
}

fn port_of(address: &Address) -> u16 {
    let text = address.to_string();
    text.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0)
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
            || self.lead.as_ref().is_some_and(|lead| lead.ended().is_some())
    }

    /// Counts the controllers that led; 0: there is one.
    pub(crate) fn term(&self) -> i64 {
        self.lead.as_ref().map_or(0, |lead| lead.term())
    }

    /// Returns the place of a run's state.
    pub(crate) fn state_place(&self, run: &str) -> StatePlace {
        match &self.lead {
            Some(lead) => sharing::SharedState::place(lead, run),
            None => StatePlace::Folder(self.run_folder(run).join("state")),
        }
    }

    /// Returns the time to wait for a worker that was there before this process: it has to find this controller first, where there are
    /// several.
    pub(crate) fn expected(&self) -> Duration {
        let times = if self.lead.is_some() { 4 } else { 2 };
        times * self.detection.time
    }

    /// Stores an event, logs it, and passes it to waiting requests.
    pub(crate) fn tell(&self, kind: &str, run: Option<&str>, worker: Option<&str>, text: &str) {
        let happened = Happened { kind, run, worker, text: text.to_owned() };
        self.tell_all(vec![happened], |_| {});
    }

    /// Reports several events of one change, with one write to the disk.
    pub(crate) fn tell_all(&self, happened: Vec<Happened<'_>>, change: impl FnOnce(&mut Document)) {
        let time = tidemill_app::machine::now();
        let kept = self.facts.change(|document| {
            change(document);
            for Happened { kind, run, worker, text } in &happened {
                document.event_number += 1;
                let event = Event {
                    number: document.event_number,
                    time: time.clone(),
                    kind: (*kind).to_owned(),
                    run: run.map(str::to_owned),
                    worker: worker.map(str::to_owned),
                    text: text.clone(),
                };
                document.events.push_back(Arc::new(event));
            }
        });
        if let Err(error) = kept {
            tracing::error!("cannot store events: {error}");
        }
        for Happened { kind, run, worker, text } in happened {
            self.told(kind, run, worker, &text, &time);
        }
        self.wake();
    }

    fn told(&self, kind: &str, run: Option<&str>, worker: Option<&str>, text: &str, time: &str) {
        tracing::info!(kind, run, worker, "{text}");
        self.counts.event(kind);
        if let Some(run) = run {
            if kind == "run_waits" {
                locked(&self.waited).insert(run.to_owned());
            }
            let (level, worker) = (Some("EVENT".to_owned()), worker.map(str::to_owned));
            let time = Some(time.to_owned());
            let line = LogLine { run: run.to_owned(), worker, level, time, ..LogLine::saying(text) };
            self.log(None, vec![line]);
        }
    }

    fn wake(&self) {
        *locked(&self.happenings) += 1;
        self.happened.notify_all();
    }

    /// Returns the events after a number; waits for one where there is none.
    pub(crate) fn events(&self, after: u64, wait: Duration) -> Vec<Event> {
        let behind = || -> Vec<Event> {
            self.facts.look(|document| {
                let events = document.events.iter().filter(|event| event.number > after);
                events.map(|event| Event::clone(event)).collect()
            })
        };
        let held = locked(&self.happenings);
        let found = behind();
        if !found.is_empty() || wait.is_zero() || self.is_ending() {
            return found;
        }
        let before = *held;
        let waited = self.happened.wait_timeout_while(held, wait, |now| *now == before);
        drop(waited);
        behind()
    }
}
