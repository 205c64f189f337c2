//! The processes of runs on this machine.
use super::capacity::memory_of;
use super::fetching::Fetcher;
use super::folders::Folders;
use super::limits::{Limiter, Started};
use super::relay::Relay;
use super::transport::Transport;
use super::{AgentError, AgentOptions};
use crate::api::{Assignment, HostStatus, LogLine};
use crate::blobs::{Blobs, workflow_in};
use crate::clock::instant;
use crate::run_id::run_id;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use tidemill_app::processes::{
    CertificateTexts, ClusterPart, DrainedPaths, Moved, NotBelieved, WorkerTask, in_words,
};
use tidemill_engine::remote::Address;
use tidemill_identity::PeerIdentity;
use tidemill_link::remote::Certificates;
use tidemill_session::Options as SessionOptions;

/// Time that a process of a run looks for its coordinator before it ends.
const PATIENCE: Duration = Duration::from_secs(600);
/// Folder of files that a run keeps from one process to the next; no role has such a name.
const KEPT: &str = ".kept";
/// Time that a process has to end after the request.
const ENDING: Duration = Duration::from_secs(5);

/// Run, worker of the plan, version of the plan.
type Key = (String, String, u64);

/// A process, or what is done before and after it.
enum State {
    /// Its files are being fetched.
    Preparing,
    Running {
        child: Child,
        input: ChildStdin,
        /// Address of the coordinator that the process received.
        coordinator: Address,
    },
    Ended(String),
}

struct Host {
    generation: u64,
    state: State,
}

/// Files are there, or why not.
struct Ready {
    key: Key,
    generation: u64,
    folder: Result<PathBuf, String>,
}

pub(super) struct Hosts {
    options: AgentOptions,
    address: IpAddr,
    /// The host of the controller that leads, as this machine knows it.
    led_from: String,
    fetcher: Arc<Fetcher>,
    blobs: Arc<Blobs>,
    folders: Arc<Folders>,
    certificates: Certificates,
    /// Serial numbers of certificates that processes do not believe any more.
    revoked: BTreeSet<String>,
    all: BTreeMap<Key, Host>,
    wanted: BTreeMap<Key, Assignment>,
    relay: Relay,
    ready: (Sender<Ready>, Receiver<Ready>),
    limiter: Limiter,
    /// Paths that connections leave while another one works.
    drained_paths: Vec<String>,
    transport: Transport,
}

fn key_of(assignment: &Assignment) -> Key {
    (assignment.run.clone(), assignment.role.clone(), assignment.plan_version)
}

/// Returns where a process listens: on each path of this machine that has an address now.
pub(super) fn place_of(options: &AgentOptions, own: IpAddr) -> String {
    let mut doors = Vec::new();
    for path in &options.paths.paths {
        let address = match (path.address, &path.interface) {
            (Some(address), _) => Ok(address),
            (None, Some(interface)) => tidemill_session::address_of(interface),
            (None, None) => Ok(own),
        };
        match address {
            Ok(address) => doors.push(format!("{}={}", path.id, SocketAddr::new(address, 0))),
            Err(error) => tracing::warn!("path '{}' is not used for now: {error}", path.id),
        }
    }
    if doors.is_empty() { SocketAddr::new(own, 0).to_string() } else { doors.join(",") }
}

impl Hosts {
    pub(super) fn new(
        options: &AgentOptions,
        address: IpAddr,
        fetcher: &Arc<Fetcher>,
        blobs: &Arc<Blobs>,
        folders: &Arc<Folders>,
        (certificates, transport): (Certificates, Transport),
    ) -> Result<Self, AgentError> {
        Ok(Self {
            options: options.clone(),
            address,
            led_from: options.controller.host().to_owned(),
            fetcher: Arc::clone(fetcher),
            blobs: Arc::clone(blobs),
            folders: Arc::clone(folders),
            certificates,
            revoked: BTreeSet::new(),
            all: BTreeMap::new(),
            wanted: BTreeMap::new(),
            relay: Relay::default(),
            ready: channel(),
            drained_paths: Vec::new(),
            transport,
            limiter: Limiter::open(&options.folder, memory_of(&options.capacity)),
        })
    }

    /// Returns the reason why runs are not limited here; none: they are.
    pub(super) fn no_control_groups(&self) -> Option<String> {
        self.limiter.no_control_groups()
    }

    /// Returns the control groups, for tasks of jobs.
    pub(super) fn confinement(&self) -> Option<tidemill_elastic::confinement::Confinement> {
        self.limiter.confinement()
    }

    /// The group of a process that has ended goes.
    fn release(&mut self, (run, role, plan_version): &Key, generation: u64) {
        let runs = |(key, host): (&Key, &Host)| key.0 == *run && matches!(host.state, State::Running { .. });
        let is_last = !self.all.iter().any(runs);
        self.limiter.release(run, role, *plan_version, generation, is_last);
    }

    /// Has just these processes, and those that it has of runs that are not settled.
    pub(super) fn follow(&mut self, assignments: Vec<Assignment>, unsettled: &[String]) {
        let wanted = assignments.into_iter().map(|one| (key_of(&one), one));
        self.wanted = wanted.collect();
        let of_runs = self.wanted.values().map(|one| (one.run.clone(), run_id(&one.secret)));
        self.folders.follow(of_runs.collect(), unsettled);
        let unwanted: Vec<Key> = {
            let keys = self.all.iter().filter(|(key, host)| {
                let is_left = unsettled.contains(&key.0) && !self.wanted.contains_key(*key);
                !is_left && self.wanted.get(*key).is_none_or(|wanted| wanted.generation != host.generation)
            });
            keys.map(|(key, _)| key.clone()).collect()
        };
        for key in unwanted {
            if let Some(host) = self.all.remove(&key) {
                end_now(host.state);
                self.release(&key, host.generation);
            }
        }
        let missing: Vec<Assignment> = {
            let missing = self.wanted.iter().filter(|(key, _)| !self.all.contains_key(*key));
            missing.map(|(_, wanted)| wanted.clone()).collect()
        };
        for assignment in missing {
            self.prepare(assignment);
        }
    }

    /// Fetches the files of a run on a thread of its own.
    fn prepare(&mut self, assignment: Assignment) {
        let key = key_of(&assignment);
        let generation = assignment.generation;
        self.all.insert(key.clone(), Host { generation, state: State::Preparing });
        let (fetcher, blobs) = (Arc::clone(&self.fetcher), Arc::clone(&self.blobs));
        let folders = Arc::clone(&self.folders);
        let ready = self.ready.0.clone();
        let work = move || {
            let folder = lay_out(&fetcher, &blobs, &folders, &assignment);
            let _ = ready.send(Ready { key, generation, folder });
        };
        if let Err(error) = std::thread::Builder::new().name("tm-fetch".into()).spawn(work) {
            tracing::error!("cannot start the thread that fetches files: {error}");
        }
    }

    /// Returns the address of a process's coordinator: a port of the controller that leads.
    fn coordinator_of(&self, assignment: &Assignment) -> Address {
        let host = &self.led_from;
        let is_bare = host.contains(':') && !host.starts_with('[');
        let host = if is_bare { format!("[{host}]") } else { host.clone() };
        tidemill_session::address(format!("{host}:{}", assignment.coordinator_port))
    }

    /// The controller on this host leads: sends its address to processes with another coordinator.
    pub(super) fn are_led_from(&mut self, host: &str) {
        self.led_from = host.to_owned();
        let mut moved: Vec<(Key, Address)> = Vec::new();
        for (key, of) in &self.all {
            let wanted = self.wanted.get(key).filter(|wanted| wanted.generation == of.generation);
            if let (State::Running { coordinator, .. }, Some(wanted)) = (&of.state, wanted) {
                let now = self.coordinator_of(wanted);
                if now != *coordinator {
                    moved.push((key.clone(), now));
                }
            }
        }
        for (key, now) in moved {
            let Some(State::Running { input, coordinator, .. }) =
                self.all.get_mut(&key).map(|of| &mut of.state)
            else {
                continue;
            };
            let told = serde_json::to_string(&Moved { coordinator: now.clone() }).map(|line| line + "\n");
            if let Ok(line) = told {
                let _ = input.write_all(line.as_bytes()); // one that ends needs none
            }
            *coordinator = now;
        }
    }

    /// Waits, and starts what has become ready meanwhile. A process must be started on this thread: it ends with it.
    pub(super) fn look(&mut self, pause: Duration) {
        let until = instant() + pause;
        loop {
            let left = until.saturating_duration_since(instant());
            match self.ready.1.recv_timeout(left) {
                Ok(ready) => self.start(ready),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn start(&mut self, Ready { key, generation, folder }: Ready) {
        let is_current = self
            .all
            .get(&key)
            .is_some_and(|host| host.generation == generation && matches!(host.state, State::Preparing));
        let Some(assignment) = self.wanted.get(&key).filter(|_| is_current).cloned() else { return };
        let state = folder.and_then(|folder| self.spawn(&assignment, &folder));
        let state = state.unwrap_or_else(|text| {
            self.say(&key, &text);
            State::Ended(format!("cannot be started: {text}"))
        });
        self.all.insert(key, Host { generation, state });
    }

    /// Whether a process of another plan of the run is still running here.
    fn has_another_plan_of(&self, assignment: &Assignment) -> bool {
        self.all.iter().any(|((run, _, version), host)| {
            *run == assignment.run
                && *version != assignment.plan_version
                && matches!(host.state, State::Running { .. })
        })
    }

    fn spawn(&mut self, assignment: &Assignment, folder: &Path) -> Result<State, String> {
        let coordinator = self.coordinator_of(assignment);
        let own = place_of(&self.options, self.address);
        let task = WorkerTask {
            workflow: folder.join(&assignment.bundle.workflow),
            plan: assignment.plan.clone(),
            rates: assignment.rates.clone(),
            worker: assignment.role.clone(),
            coordinator: coordinator.clone(),
            run: assignment.secret.clone(),
            plan_version: assignment.plan_version,
            parent: std::process::id(),
            lock: None,
            warm_ups: Default::default(),
            served_by: self.transport.socket(),
            cluster: Some(ClusterPart {
                certificates: texts(&self.certificates),
                revoked: self.revoked.iter().cloned().collect(),
                coordinator: Some(PeerIdentity::Controller.to_string()),
                listen: (!self.options.only_dials).then_some(tidemill_session::address(own)),
                paths: SessionOptions { drained: self.drained_paths.clone(), ..self.options.paths.clone() },
                patience_seconds: PATIENCE.as_secs(),
                // Beside the folders of the run's roles: whichever of them reads a source here finds its journal.
                kept: folder.parent().unwrap_or(folder).join(KEPT),
                warms: self.has_another_plan_of(assignment),
                variables: assignment.bundle.variables.clone(),
            }),
        };
        let [program, arguments @ ..] = self.options.command.as_slice() else {
            return Err("no command is given".to_owned());
        };
        let mut child = Command::new(program)
            // Otherwise its library writes a file about the session even with telemetry off.
            .env("ORT_DISABLE_TELEMETRY", "1")
            .args(arguments)
            .env_remove(tidemill_app::processes::TOKEN_VARIABLE)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{program}: {error}"))?;
        let errors = child.stderr.take().map(|errors| Box::new(errors) as Box<dyn Read + Send>);
        let output = child.stdout.take().map(|output| Box::new(output) as Box<dyn Read + Send>);
        for from in errors.into_iter().chain(output) {
            let (relay, run, role) = (self.relay.clone(), assignment.run.clone(), assignment.role.clone());
            let all = move || relay.all(from, &run, &role);
            let thread = std::thread::Builder::new().name("tm-relay".into()).spawn(all);
            thread.map_err(|error| format!("cannot start the thread for its output: {error}"))?;
        }
        // Before it has anything to do.
        let started = Started { assignment, folder, process: child.id() };
        if let Some(text) = self.limiter.admit(&started) {
            self.say(&key_of(assignment), &text);
        }
        let Some(mut input) = child.stdin.take() else { return Err("it has no standard input".to_owned()) };
        let line = serde_json::to_string(&task).map_err(|error| error.to_string())? + "\n";
        // It says itself why it ended before it has read its task.
        let _ = input.write_all(line.as_bytes());
        Ok(State::Running { child, input, coordinator })
    }

    fn say(&self, (run, role, _): &Key, text: &str) {
        self.relay.say(run, role, text);
    }

    /// All processes, and how those ended that did.
    pub(super) fn statuses(&mut self) -> Vec<HostStatus> {
        let mut ended = Vec::new();
        for (key, host) in &mut self.all {
            if let State::Running { child, .. } = &mut host.state
                && let Ok(Some(status)) = child.try_wait()
            {
                let how = in_words(status);
                self.relay.say(&key.0, &key.1, &format!("its process has ended: {how}"));
                host.state = State::Ended(how);
                ended.push((key.clone(), host.generation));
            }
        }
        for (key, generation) in ended {
            self.release(&key, generation);
        }
        let status = |((run, role, plan_version), host): (&Key, &Host)| {
            let ended = match &host.state {
                State::Ended(how) => Some(how.clone()),
                State::Preparing | State::Running { .. } => None,
            };
            let (run, role, generation) = (run.clone(), role.clone(), host.generation);
            HostStatus { run, role, generation, plan_version: *plan_version, ended }
        };
        self.all.iter().map(status).collect()
    }

    /// Runs that have a process here, or will have one.
    pub(super) fn runs(&self) -> BTreeSet<String> {
        self.all.keys().chain(self.wanted.keys()).map(|(run, ..)| run.clone()).collect()
    }

    pub(super) fn take_logs(&self) -> Vec<LogLine> {
        self.relay.take()
    }

    /// Lines that the controller did not take.
    pub(super) fn log_again(&self, lines: Vec<LogLine>) {
        self.relay.again(lines);
    }

    /// Shows new certificates from the next connection on.
    pub(super) fn renew(&mut self, certificates: &Certificates) {
        self.certificates = certificates.clone();
        let Ok(line) = serde_json::to_string(&texts(certificates)) else { return };
        self.transport.renew(certificates, &line);
        for host in self.all.values_mut() {
            if let State::Running { input, .. } = &mut host.state {
                let _ = input.write_all((line.clone() + "\n").as_bytes()); // one that ends needs none
            }
        }
    }

    /// Revokes certificates by serial number. Processes get only the new numbers; lines wait in a pipe until a process has started.
    pub(super) fn refuse(&mut self, revoked: &[String]) {
        let new: Vec<String> = revoked.iter().filter(|one| !self.revoked.contains(*one)).cloned().collect();
        if new.is_empty() && revoked.len() == self.revoked.len() {
            return;
        }
        self.revoked = revoked.iter().cloned().collect();
        let news = NotBelieved { revoked: new };
        let Some(line) = serde_json::to_string(&news).ok().filter(|_| !news.revoked.is_empty()) else {
            return;
        };
        self.transport.refuse(revoked.to_vec(), &line);
        self.tell_all(&line);
    }

    /// Moves connections off these paths, and back to all others.
    pub(super) fn drain_paths(&mut self, drained: Vec<String>) {
        if drained == self.drained_paths {
            return;
        }
        let news = DrainedPaths { drained_paths: drained };
        if let Ok(line) = serde_json::to_string(&news) {
            self.transport.drain(&news.drained_paths, &line);
            self.tell_all(&line);
        }
        self.drained_paths = news.drained_paths;
    }

    /// Sends a line to each process.
    fn tell_all(&mut self, line: &str) {
        for host in self.all.values_mut() {
            if let State::Running { input, .. } = &mut host.state {
                let _ = input.write_all((line.to_owned() + "\n").as_bytes()); // one that ends needs none
            }
        }
    }

    /// Ends all processes.
    pub(super) fn end(&mut self) {
        for (key, host) in std::mem::take(&mut self.all) {
            end_now(host.state);
            self.release(&key, host.generation);
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.end();
    }
}

pub(super) fn texts(certificates: &Certificates) -> CertificateTexts {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    CertificateTexts {
        chain: text(&certificates.chain_pem),
        key: text(&certificates.key_pem),
        authority: text(&certificates.authority_pem),
    }
}

/// Its state is with its coordinator: nothing is lost.
fn end_now(state: State) {
    let State::Running { mut child, input, .. } = state else { return };
    drop(input);
    let _ = child.kill();
    let until = instant() + ENDING;
    while instant() < until {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Fetches what is not here and lays the files out; the folder.
fn lay_out(
    fetcher: &Fetcher,
    blobs: &Blobs,
    folders: &Folders,
    assignment: &Assignment,
) -> Result<PathBuf, String> {
    fetcher.fetch(&assignment.bundle)?;
    let folder = folders.prepare(&assignment.run, &run_id(&assignment.secret), &assignment.role)?;
    blobs.lay_out(&assignment.bundle, &folder).map_err(|error| error.to_string())?;
    workflow_in(&folder, &assignment.bundle).map_err(|error| error.to_string())?;
    Ok(folder)
}
