//! The daemon of `tidemill device serve`: accepts clients, and starts a process for each session.
//!
//! | question | module |
//! |---|---|
//! | who runs next? | [`turns`] |
//! | which limits has a tenant? | [`tenants`] |
//! | who is admitted, and who may hold how much? | `ledger` |
//! | how do processes start and end? | `processes`, `watching`; their contract: [`crate::child`] |
//! | how does a connection reach a process? | as its socket, or by `relay` |
//! | how do people look and change limits? | [`control`], [`views`] |
//!
//! A process that is killed, with its client or without, takes its session with it and nothing else. One whose daemon is killed ends at
//! once.
pub mod control;
pub(crate) mod folders;
mod ledger;
mod processes;
mod relay;
pub mod tenants;
pub mod turns;
pub mod views;
mod watching;

use crate::batching::Batching;
use crate::child::{Begin, Lines, ToChild, send, send_with};
use control::{Answer, Question};
use ledger::{Ending, Given, Ledger};
use processes::{Pool, Process};
use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use tenants::Tenants;
use tidemill_link::remote::{Address, Greeting, Incoming, Listener, Purpose, RemoteError, Security, Serving};
use views::Listing;
use watching::Watched;

/// How long a process may not take a message before it ends.
const PATIENCE: Duration = Duration::from_secs(1);
/// Processes that are given a client that has not seen any of them.
const TRIES: usize = 3;
/// How long a listing waits for the figures of processes.
const REPORTING: Duration = Duration::from_millis(300);

/// How a device is served.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its name, once on each host.
    pub device: String,
    /// Its kind for snapshots; none: that of the back end.
    pub kind: Option<String>,
    /// Where clients reach it.
    pub listen: Vec<Address>,
    /// Protection of addresses between hosts. Unix sockets have none: their files have permissions.
    pub security: Security,
    /// The command of the process of a session: see [`crate::child`].
    pub command: Vec<String>,
    /// The folder of files of models, and of sessions.
    pub cache: PathBuf,
    /// Bytes of files of models.
    pub cache_limit: u64,
    /// Bytes that all sessions may hold together; none: not limited.
    pub memory: Option<u64>,
    /// Runs at once.
    pub slots: usize,
    /// Limits of tenants.
    pub tenants: Tenants,
    /// Sessions at once.
    pub most_sessions: usize,
    /// Time of a run while others wait; after it the session ends.
    pub longest_run: Duration,
    /// Sessions of a tenant share a process, and their runs are computed together. None: each session has a process of its own.
    pub batching: Option<Batching>,
}

/// Why a device cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The name is none.
    #[error("{0}")]
    Name(String),
    /// It is served already.
    #[error("a device `{0}` is served on this host already; give this one another `--device` name")]
    Taken(String),
    /// An address cannot be used.
    #[error("cannot listen at {address}: {reason}")]
    Address {
        /// It.
        address: String,
        /// The reason.
        reason: RemoteError,
    },
    /// The program of the proxy does not work.
    #[error("the process of a session cannot start: {0}; the lines before this one say more")]
    Program(io::Error),
    /// The folder cannot be used.
    #[error("{path}: {reason}; name another folder with `--cache`", path = path.display())]
    Folder {
        /// It.
        path: PathBuf,
        /// The reason.
        reason: io::Error,
    },
    /// The system refused.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// A device that is served, until this is dropped: then no process and no socket is left.
pub struct Daemon {
    inner: Arc<Inner>,
    serving: Mutex<Vec<Serving>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Daemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Daemon").field("device", &self.inner.options.device).finish_non_exhaustive()
    }
}

struct Inner {
    options: Options,
    addresses: Mutex<Vec<Address>>,
    pool: Pool,
    begun: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    ledger: Ledger,
    /// Control sockets of processes, by session.
    controls: BTreeMap<u64, UnixStream>,
    watchers: Vec<JoinHandle<()>>,
    /// When the thread of the clock looks again.
    planned: Option<Duration>,
    is_over: bool,
}

impl Daemon {
    /// Serves.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub fn start(options: Options) -> Result<Self, DaemonError> {
        control::check_name(&options.device).map_err(DaemonError::Name)?;
        let asked = control::listen(&options.device).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => DaemonError::Taken(options.device.clone()),
            _ => DaemonError::System(error),
        })?;
        let folder = |reason| DaemonError::Folder { path: options.cache.clone(), reason };
        folders::prepare(&options.cache).map_err(folder)?;
        let given = Given {
            slots: options.slots,
            memory: options.memory,
            longest_run: options.longest_run,
            most_sessions: options.most_sessions,
        };
        let ledger = Ledger::new(given, options.tenants.clone());
        let inner = Arc::new(Inner {
            pool: Pool::new(options.command.clone()),
            begun: now(),
            addresses: Mutex::default(),
            state: Mutex::new(State {
                ledger,
                controls: BTreeMap::new(),
                watchers: Vec::new(),
                planned: None,
                is_over: false,
            }),
            changed: Condvar::new(),
            options,
        });
        // Dropped on the way: whatever has started ends.
        let daemon = Self { inner: Arc::clone(&inner), serving: Mutex::default(), threads: Mutex::default() };
        inner.pool.fill().and_then(|()| inner.pool.check()).map_err(DaemonError::Program)?;
        let clock = Arc::clone(&inner);
        daemon.keep(Builder::new().name("tm-device-clock".into()).spawn(move || clock.keep_time())?);
        for address in &inner.options.listen {
            let failed = |reason| DaemonError::Address { address: address.to_string(), reason };
            let is_local = address.scheme() == "unix";
            let security = if is_local { Security::none() } else { inner.options.security.clone() };
            let listener = Listener::bind(address, &security).map_err(failed)?;
            let serves = Arc::clone(&inner);
            let serving = listener.serve(move |incoming| serves.receive(incoming)).map_err(failed)?;
            inner.addresses.lock().unwrap_or_else(PoisonError::into_inner).push(serving.address().clone());
            daemon.serving.lock().unwrap_or_else(PoisonError::into_inner).push(serving);
        }
        let control = Arc::clone(&inner);
        let answers = Builder::new().name("tm-device-answers".into());
        daemon.keep(answers.spawn(move || control.answer_all(&asked))?);
        Ok(daemon)
    }

    fn keep(&self, thread: JoinHandle<()>) {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    /// Where clients reach it, with the real ports.
    pub fn addresses(&self) -> Vec<Address> {
        self.inner.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until it was drained and the last session is gone, at most for some time; whether that is so.
    pub fn wait_until_over(&self, limit: Duration) -> bool {
        let state = self.inner.state();
        let is_going = |state: &mut State| !state.ledger.is_over();
        let waited = self.inner.changed.wait_timeout_while(state, limit, is_going);
        waited.unwrap_or_else(PoisonError::into_inner).0.ledger.is_over()
    }

    /// Ends all sessions and frees all addresses. Dropping it does the same.
    pub fn stop(&self) {
        // No further clients, then no sessions.
        let serving = std::mem::take(&mut *self.serving.lock().unwrap_or_else(PoisonError::into_inner));
        drop(serving);
        self.inner.pool.close();
        let watchers = {
            let mut state = self.inner.state();
            state.is_over = true;
            // Each process ends by the end of its control socket.
            state.controls.values().for_each(|control| drop(control.shutdown(Shutdown::Both)));
            std::mem::take(&mut state.watchers)
        };
        self.inner.changed.notify_all();
        // Wakes the thread that answers.
        drop(control::connect(&self.inner.options.device));
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in watchers.into_iter().chain(threads) {
            // It panics nowhere.
            let _ = thread.join();
        }
    }

    /// Sessions and tenants now.
    pub fn listing(&self) -> Listing {
        self.inner.listing()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Serves a client whose greeting has come.
    fn receive(self: &Arc<Self>, incoming: Incoming) {
        let Purpose::Device { client, tenant } = &incoming.greeting.purpose else {
            return incoming.refuse("a device serves sessions of devices only");
        };
        let peer = match (incoming.peer_name(), incoming.peer_user()) {
            (Some(name), _) => name,
            (None, Some(user)) => format!("user {user} of this host"),
            (None, None) => String::new(),
        };
        if let Some(reason) = self.state().ledger.refuses() {
            return incoming.refuse(&reason);
        }
        tracing::info!("a session for {client} {peer}");
        let tenant = tenant.clone();
        let own = Greeting {
            purpose: Purpose::Device { client: self.options.device.clone(), tenant: None },
            ..incoming.greeting.clone()
        };
        let connection = incoming.accept(&own);
        if connection.is_err() {
            self.state().ledger.placed();
        }
        let socket = match connection {
            Ok(connection) => relay::socket_of(connection.into_bytes()),
            Err(error) => return tracing::warn!("a client is turned away: {error}"),
        };
        let begun = socket.and_then(|socket| {
            let of_socket = || TcpStream::from(socket.try_clone().ok()?).peer_addr().ok();
            let peer = if peer.is_empty() { of_socket().map(|at| at.to_string()) } else { Some(peer) };
            let peer = peer.unwrap_or_else(|| "not known".to_owned());
            match (self.options.batching, tenant) {
                (Some(batching), Some(tenant)) => self.begin_in_group(&socket, &peer, &tenant, batching),
                _ => self.begin(&socket, &peer),
            }
        });
        self.state().ledger.placed();
        // The end of its connection tells the client.
        match begun {
            Ok(()) => {}
            Err(error) => tracing::error!("no process serves a session: {error}"),
        }
        // For the next one.
        if let Err(error) = self.pool.fill() {
            tracing::error!("the process of the next session cannot start: {error}");
        }
    }

    /// Gives a client to a process of its own.
    fn begin(self: &Arc<Self>, client: &impl AsFd, peer: &str) -> io::Result<()> {
        let mut failed = io::Error::other("the device ends");
        for _ in 0..TRIES {
            let process = self.pool.take()?;
            let mut state = self.state();
            if state.is_over {
                return process.end().map(drop);
            }
            let session = state.ledger.begin(process.child.id(), peer.to_owned(), self.now());
            let Process { child, control, lines, is_ready } = process;
            if is_ready {
                state.ledger.is_ready(session, self.now());
            }
            match self.give(&mut state, session, client, control, lines, Some(child)) {
                Ok(()) => return Ok(()),
                // It has died meanwhile. The client has seen nothing of it.
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Gives a client to the process of its tenant, which is started for the first one.
    fn begin_in_group(
        self: &Arc<Self>,
        client: &impl AsFd,
        peer: &str,
        tenant: &str,
        batching: Batching,
    ) -> io::Result<()> {
        let mut failed = io::Error::other("the device ends");
        for _ in 0..TRIES {
            let (control, theirs) = UnixStream::pair()?;
            let mut lines = Lines::new(control.try_clone()?);
            let (group, session) = match self.join(theirs, peer, tenant, batching) {
                Ok(Some(joined)) => joined,
                // It is refused there.
                Ok(None) => return self.begin(client, peer),
                // The process that was ready has died meanwhile: the next try starts one.
                Err(error) => {
                    failed = error;
                    continue;
                }
            };
            let is_ready = processes::is_ready(&control, &mut lines).unwrap_or(false);
            let mut state = self.state();
            if is_ready && !state.is_over {
                state.ledger.is_ready(session, self.now());
                return self.give(&mut state, session, client, control, lines, None);
            }
            // The process has died, or is about to. The client has seen nothing of it.
            state.ledger.is_lost(group);
            state.ledger.gone(session, self.now());
            self.after(&mut state);
            failed = io::Error::other("its process ended before it was ready");
        }
        Err(failed)
    }

    /// Adds a session to the process of its tenant, with its control socket. Returns the group and the session; none: the tenant is none.
    fn join(
        self: &Arc<Self>,
        socket: UnixStream,
        peer: &str,
        tenant: &str,
        batching: Batching,
    ) -> io::Result<Option<(u64, u64)>> {
        let mut state = self.state();
        if state.is_over {
            return Err(io::Error::other("the device ends"));
        }
        let group = match state.ledger.group_of(tenant) {
            Some(group) => group,
            None => {
                let process = self.pool.take()?;
                let now = self.now();
                let Some(group) = state.ledger.begin_group(process.child.id(), tenant, now) else {
                    process.end()?;
                    return Ok(None);
                };
                if let Err(error) = self.begin_group(&mut state, group, process, batching) {
                    state.ledger.is_lost(group);
                    self.after(&mut state);
                    return Err(error);
                }
                group
            }
        };
        let session = state.ledger.begin_in(group, peer.to_owned(), self.now());
        if let Some(control) = state.controls.get(&group) {
            // One that has died takes nobody: the end of the socket says so.
            let _ = send_with(control, &ToChild::Join, socket.as_fd());
        }
        self.after(&mut state);
        Ok(Some((group, session)))
    }

    /// Begins a process for several sessions.
    fn begin_group(
        self: &Arc<Self>,
        state: &mut State,
        group: u64,
        process: Process,
        batching: Batching,
    ) -> io::Result<()> {
        let Process { child, control, lines, is_ready } = process;
        if is_ready {
            state.ledger.is_ready(group, self.now());
        }
        let begun = control.set_write_timeout(Some(PATIENCE));
        let begun = begun.and_then(|()| send(&control, &ToChild::Share(batching)));
        state.controls.insert(group, control);
        self.follow(state, Watched { session: group, lines, child: Some(child), folder: None })?;
        begun
    }

    /// Gives a client to the process that serves its session, by the control socket of the session.
    fn give(
        self: &Arc<Self>,
        state: &mut State,
        session: u64,
        client: &impl AsFd,
        control: UnixStream,
        lines: Lines,
        child: Option<Child>,
    ) -> io::Result<()> {
        let begun = control.set_write_timeout(Some(PATIENCE));
        let begin = Begin {
            session,
            folder: folders::of_session(&self.options.cache, session),
            cache: folders::of_models(&self.options.cache),
            cache_limit: self.options.cache_limit,
            name: self.options.device.clone(),
            kind: self.options.kind.clone(),
        };
        let begun = begun.and_then(|()| send_with(&control, &ToChild::Begin(begin.clone()), client.as_fd()));
        state.controls.insert(session, control);
        self.follow(state, Watched { session, lines, child, folder: Some(begin.folder) })?;
        self.after(state);
        begun
    }

    /// Sends what a change of the ledger led to.
    fn after(&self, state: &mut State) {
        for (session, why) in state.ledger.ending() {
            let how = match why {
                Ending::Because(reason) => {
                    tracing::warn!("{} is ended: {reason}", state.ledger.name_of(session));
                    Shutdown::Both
                }
                // Its last figures come.
                Ending::Unused => Shutdown::Write,
            };
            if let Some(control) = state.controls.get(&session) {
                let _ = control.shutdown(how);
            }
        }
        for (session, message) in state.ledger.outgoing() {
            let Some(control) = state.controls.get(&session) else { continue };
            if send(control, &message).is_err() {
                // It ended, or stands still: its watcher frees what it has.
                let _ = control.shutdown(Shutdown::Both);
            }
        }
        let wakes = state.ledger.wakes_at(self.now());
        let is_sooner = wakes.is_some_and(|wakes| state.planned.is_none_or(|planned| wakes < planned));
        if is_sooner || state.ledger.is_waited_for() {
            self.changed.notify_all();
        }
    }

    fn keep_time(&self) {
        let mut state = self.state();
        while !state.is_over {
            state.ledger.tick(self.now());
            self.after(&mut state);
            state.planned = state.ledger.wakes_at(self.now());
            state = match state.planned {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(planned) => {
                    let left = planned.saturating_sub(self.now());
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn answer_all(&self, asked: &UnixListener) {
        loop {
            let accepted = asked.accept();
            if self.state().is_over {
                return;
            }
            let Ok((socket, _)) = accepted else {
                // All descriptors are in use, for example: the next look is a bit later.
                let state = self.state();
                drop(self.changed.wait_timeout_while(state, PATIENCE, |state| !state.is_over));
                continue;
            };
            if let Err(error) = self.answer(&socket) {
                tracing::debug!("a question was not answered: {error}");
            }
        }
    }

    fn answer(&self, socket: &UnixStream) -> io::Result<()> {
        if !control::is_trusted(socket)? {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it came from another user"));
        }
        control::limited(socket)?;
        let Some(question) = crate::child::Lines::new(socket.try_clone()?).receive()? else { return Ok(()) };
        let done = {
            let mut state = self.state();
            let done = match question {
                Question::List => Ok(()),
                Question::Limits { tenant, share, memory, new } => {
                    let memory = memory.map(|bytes| Some(bytes).filter(|bytes| *bytes > 0));
                    state.ledger.limit(&tenant, share, memory, new)
                }
                Question::Drain { session: Some(session) } => state.ledger.drain_one(session, self.now()),
                Question::Drain { session: None } => {
                    state.ledger.drain(self.now());
                    Ok(())
                }
            };
            self.after(&mut state);
            done
        };
        let answer: Answer = done.map(|()| self.listing());
        send(socket, &answer)
    }

    fn listing(&self) -> Listing {
        let mut state = self.state();
        let asked = state.ledger.ask_all();
        self.after(&mut state);
        let is_missing = |state: &mut State| !state.is_over && !state.ledger.have_reported(&asked);
        let state = self.changed.wait_timeout_while(state, REPORTING, is_missing);
        let mut state = state.unwrap_or_else(PoisonError::into_inner).0;
        state.ledger.has_answered();
        let listing = state.ledger.listing(self.now());
        drop(state);
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        Listing {
            device: self.options.device.clone(),
            kind: self.options.kind.clone(),
            process: std::process::id(),
            addresses: addresses.iter().map(ToString::to_string).collect(),
            ..listing
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "times of a device are real time; no record depends on them")]
fn now() -> Instant {
    Instant::now()
}
