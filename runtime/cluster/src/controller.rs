//! The controller: takes workflows, says which worker of the cluster has which worker of a plan, and coordinates the runs.
//!
//! It can die at any time: the workers go on, and the next process on the same folder takes their runs over.
mod drive;
mod launcher;
mod placing;
mod runs;
mod server;
mod tls;
mod workers;

use crate::api::{Event, LogLine};
use crate::blobs::{BlobError, Blobs};
use crate::facts::{Facts, FactsError};
use rustix::fs::{FlockOperation, flock};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_engine::remote::{Address, Security};
use tidemill_engine::{Exchange, RunError};
use tidemill_identity::{AccessToken, Authority, IdentityError, JoinAddress, Lifetimes, Timestamp};
use tidemill_link::remote::{Credentials, RemoteError};

pub(crate) use runs::LiveRun;
pub(crate) use workers::LiveWorker;

/// Lines of logs that are kept of each run.
const MOST_LINES: usize = 2_000;

/// Where a controller is.
#[derive(Debug, Clone)]
pub struct ControllerOptions {
    /// Its folder: identities, runs, files, states.
    pub folder: PathBuf,
    /// Where it answers people and workers: `0.0.0.0:7420`.
    pub listen: String,
    /// Where it hears the processes of runs: `0.0.0.0:7421`.
    pub listen_hosts: String,
    /// Names and addresses by which others reach it; the first one is in the address that it tells.
    pub names: Vec<String>,
}

/// Why a controller cannot begin or go on.
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
    #[error("another controller has `{0}`: end it first")]
    Taken(PathBuf),
    /// Identities.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// What must not be forgotten.
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
        /// Why not.
        source: std::io::Error,
    },
    /// A name of the controller.
    #[error("{0}")]
    Name(String),
}

/// What the threads of a controller share.
pub(crate) struct Shared {
    pub(crate) folder: PathBuf,
    pub(crate) authority: Authority,
    pub(crate) credentials: Credentials,
    pub(crate) address: JoinAddress,
    pub(crate) facts: Facts,
    pub(crate) blobs: Blobs,
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) exchange_port: u16,
    pub(crate) workers: Mutex<BTreeMap<String, LiveWorker>>,
    pub(crate) runs: Mutex<BTreeMap<String, LiveRun>>,
    logs: Mutex<BTreeMap<String, VecDeque<LogLine>>>,
    /// Wakes who waits for events.
    happened: Condvar,
    happenings: Mutex<u64>,
    pub(crate) is_ending: AtomicBool,
    _lock: File,
}

/// A controller at work.
pub struct Controller {
    shared: Arc<Shared>,
    server: server::Server,
    watcher: Option<std::thread::JoinHandle<()>>,
}

fn folder_error(path: &Path) -> impl Fn(std::io::Error) -> ControllerError {
    move |error| ControllerError::Folder { path: path.to_owned(), reason: error.to_string() }
}

impl Controller {
    /// Opens the folder, or makes it, listens, and takes over the runs that are to go on.
    ///
    /// # Errors
    /// The folder is taken or damaged, or an address cannot be listened on.
    pub fn start(options: &ControllerOptions) -> Result<Self, ControllerError> {
        let folder = options.folder.clone();
        std::fs::create_dir_all(&folder).map_err(folder_error(&folder))?;
        let lock = File::create(folder.join("lock")).map_err(folder_error(&folder))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| ControllerError::Taken(folder.clone()))?;
        let now = Timestamp::now();
        let authority = Authority::open_or_create(&folder.join("identities"), Lifetimes::default(), now)?;
        let names: Vec<&str> = options.names.iter().map(String::as_str).collect();
        let first = names.first().copied().unwrap_or("localhost");
        let credentials = Credentials::with(
            &authority.issue_controller(&names, now)?,
            authority.revoked().clone(),
            Arc::new(rustls::time_provider::DefaultTimeProvider),
        )?;
        let security = Security::with(&credentials)?;
        let exchange = Exchange::listen(&Address::Tcp(options.listen_hosts.clone()), None, &security)?;
        let exchange_port = port_of(exchange.address());
        let listener = std::net::TcpListener::bind(&options.listen)
            .map_err(|source| ControllerError::Listen { address: options.listen.clone(), source })?;
        let port = listener.local_addr().map_or(0, |address| address.port());
        let address =
            authority.join_address(first, port).map_err(|error| ControllerError::Name(error.to_string()))?;
        let shared = Arc::new(Shared {
            facts: Facts::open(&folder)?,
            blobs: Blobs::open(&folder.join("blobs"))?,
            folder,
            authority,
            credentials,
            address,
            exchange: Arc::new(exchange),
            exchange_port,
            workers: Mutex::default(),
            runs: Mutex::default(),
            logs: Mutex::default(),
            happened: Condvar::new(),
            happenings: Mutex::new(0),
            is_ending: AtomicBool::new(false),
            _lock: lock,
        });
        let server = server::Server::start(&shared, listener)
            .map_err(|source| ControllerError::Listen { address: options.listen.clone(), source })?;
        let watched = Arc::clone(&shared);
        let watcher = std::thread::Builder::new()
            .name("tm-workers".into())
            .spawn(move || workers::watch(&watched))
            .map_err(folder_error(&shared.folder))?;
        runs::resume(&shared);
        Ok(Self { shared, server, watcher: Some(watcher) })
    }

    /// Where workers join and people ask.
    pub fn address(&self) -> &JoinAddress {
        &self.shared.address
    }

    /// The access token of the first admin: told once, ever.
    ///
    /// # Errors
    /// It cannot be kept.
    pub fn first_admin(&self) -> Result<Option<AccessToken>, ControllerError> {
        Ok(self.shared.authority.first_admin(Timestamp::now())?)
    }

    /// Ends this controller and nothing else: runs go on, and the next controller takes them over.
    pub fn end(mut self) {
        self.shared.is_ending.store(true, Ordering::Release);
        self.shared.wake();
        runs::step_down(&self.shared);
        self.server.end();
        if let Some(watcher) = self.watcher.take() {
            watcher.thread().unpark();
            let _ = watcher.join();
        }
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
    }

    /// Says what happened: kept, logged, and told to who waits.
    pub(crate) fn tell(&self, kind: &str, run: Option<&str>, worker: Option<&str>, text: &str) {
        tracing::info!(kind, run, worker, "{text}");
        let kept = self.facts.change(|document| {
            document.event_number += 1;
            let event = Event {
                number: document.event_number,
                time: tidemill_app::machine::now(),
                kind: kind.to_owned(),
                run: run.map(str::to_owned),
                worker: worker.map(str::to_owned),
                text: text.to_owned(),
            };
            document.events.push(event);
        });
        if let Err(error) = kept {
            tracing::error!("an event cannot be kept: {error}");
        }
        self.wake();
    }

    fn wake(&self) {
        *locked(&self.happenings) += 1;
        self.happened.notify_all();
    }

    /// Events behind a number; waits for one where there is none.
    pub(crate) fn events(&self, after: u64, wait: Duration) -> Vec<Event> {
        let behind = || -> Vec<Event> {
            self.facts.look(|document| {
                let events = document.events.iter().filter(|event| event.number > after);
                events.cloned().collect()
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

    /// Keeps lines of the logs of a run.
    pub(crate) fn log(&self, worker: Option<&str>, lines: Vec<LogLine>) {
        let mut logs = locked(&self.logs);
        for line in lines {
            let of_run = logs.entry(line.run.clone()).or_default();
            let number = of_run.back().map_or(1, |last: &LogLine| last.number + 1);
            of_run.push_back(LogLine { number, worker: worker.map(str::to_owned), ..line });
            if of_run.len() > MOST_LINES {
                of_run.pop_front();
            }
        }
    }

    /// Lines of the logs of a run behind a number.
    pub(crate) fn logs(&self, run: &str, after: u64) -> Vec<LogLine> {
        let logs = locked(&self.logs);
        let lines = logs.get(run).into_iter().flatten().filter(|line| line.number > after);
        lines.cloned().collect()
    }
}
