//! The processes of runs on this machine.
use super::{AgentError, AgentOptions};
use crate::api::{Assignment, HostStatus, LogLine};
use crate::blobs::Blobs;
use crate::client::Client;
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidemill_app::processes::{CertificateTexts, ClusterPart, WorkerTask, in_words};
use tidemill_engine::remote::Address;
use tidemill_link::remote::Certificates;

/// Lines of logs that wait for a heartbeat.
const MOST_LINES: usize = 500;
/// How long a process of a run looks for its coordinator before it ends.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long a process that is told to end may take.
const ENDING: Duration = Duration::from_secs(5);

type Key = (String, String);
type Logs = Arc<Mutex<VecDeque<LogLine>>>;

/// A process, or what is done before and after it.
enum State {
    /// Its files are being fetched.
    Preparing,
    Running {
        child: Child,
        input: ChildStdin,
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
    client: Arc<Client>,
    blobs: Arc<Blobs>,
    certificates: Certificates,
    all: BTreeMap<Key, Host>,
    wanted: BTreeMap<Key, Assignment>,
    logs: Logs,
    ready: (Sender<Ready>, Receiver<Ready>),
}

#[expect(clippy::disallowed_methods, reason = "patience is real time")]
fn instant() -> Instant {
    Instant::now()
}

impl Hosts {
    pub(super) fn new(
        options: &AgentOptions,
        address: IpAddr,
        client: &Arc<Client>,
        blobs: &Arc<Blobs>,
        certificates: Certificates,
    ) -> Result<Self, AgentError> {
        Ok(Self {
            options: options.clone(),
            address,
            client: Arc::clone(client),
            blobs: Arc::clone(blobs),
            certificates,
            all: BTreeMap::new(),
            wanted: BTreeMap::new(),
            logs: Logs::default(),
            ready: channel(),
        })
    }

    /// Has just these processes.
    pub(super) fn follow(&mut self, assignments: Vec<Assignment>) {
        let wanted = assignments.into_iter().map(|one| ((one.run.clone(), one.role.clone()), one));
        self.wanted = wanted.collect();
        let unwanted: Vec<Key> = {
            let keys = self.all.iter().filter(|(key, host)| {
                self.wanted.get(*key).is_none_or(|wanted| wanted.generation != host.generation)
            });
            keys.map(|(key, _)| key.clone()).collect()
        };
        for key in unwanted {
            if let Some(host) = self.all.remove(&key) {
                end_now(host.state);
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
        let key = (assignment.run.clone(), assignment.role.clone());
        let generation = assignment.generation;
        self.all.insert(key.clone(), Host { generation, state: State::Preparing });
        let (client, blobs) = (Arc::clone(&self.client), Arc::clone(&self.blobs));
        let folder = self.options.folder.join("runs").join(&assignment.run).join(&assignment.role);
        let ready = self.ready.0.clone();
        let work = move || {
            let folder = fetch(&client, &blobs, &assignment, &folder).map(|()| folder);
            let _ = ready.send(Ready { key, generation, folder });
        };
        if let Err(error) = std::thread::Builder::new().name("tm-fetch".into()).spawn(work) {
            tracing::error!("no thread to fetch files: {error}");
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
        let Some(assignment) = self.wanted.get(&key).filter(|_| is_current) else { return };
        let state = folder.and_then(|folder| self.spawn(assignment, &folder));
        let state = state.unwrap_or_else(|text| {
            self.say(&key, &text);
            State::Ended(format!("cannot be started: {text}"))
        });
        self.all.insert(key, Host { generation, state });
    }

    fn spawn(&self, assignment: &Assignment, folder: &Path) -> Result<State, String> {
        let host = self.options.controller.host().to_owned();
        let bracketed = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
        let own = match self.address {
            IpAddr::V4(address) => format!("{address}:0"),
            IpAddr::V6(address) => format!("[{address}]:0"),
        };
        let task = WorkerTask {
            workflow: folder.join(&assignment.bundle.workflow),
            plan: assignment.plan.clone(),
            rates: assignment.rates.clone(),
            worker: assignment.role.clone(),
            coordinator: Address::Tcp(format!("{bracketed}:{}", assignment.coordinator_port)),
            run: assignment.secret.clone(),
            parent: std::process::id(),
            lock: None,
            warm_ups: Default::default(),
            cluster: Some(ClusterPart {
                certificates: texts(&self.certificates),
                listen: (!self.options.only_dials).then_some(Address::Tcp(own)),
                patience_seconds: PATIENCE.as_secs(),
            }),
        };
        let [program, arguments @ ..] = self.options.command.as_slice() else {
            return Err("no command is given".to_owned());
        };
        let mut child = Command::new(program)
            .args(arguments)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{program}: {error}"))?;
        if let Some(errors) = child.stderr.take() {
            let (logs, key) = (Arc::clone(&self.logs), (assignment.run.clone(), assignment.role.clone()));
            let relay = move || {
                for line in BufReader::new(errors).lines().map_while(Result::ok) {
                    push(&logs, &key, line);
                }
            };
            let thread = std::thread::Builder::new().name("tm-relay".into()).spawn(relay);
            thread.map_err(|error| format!("no thread for what it says: {error}"))?;
        }
        let Some(mut input) = child.stdin.take() else { return Err("it has no standard input".to_owned()) };
        let line = serde_json::to_string(&task).map_err(|error| error.to_string())? + "\n";
        // It says itself why it ended before it has read its task.
        let _ = input.write_all(line.as_bytes());
        Ok(State::Running { child, input })
    }

    fn say(&self, key: &Key, text: &str) {
        push(&self.logs, key, text.to_owned());
    }

    /// All processes, and how those ended that did.
    pub(super) fn statuses(&mut self) -> Vec<HostStatus> {
        let mut statuses = Vec::new();
        for ((run, role), host) in &mut self.all {
            if let State::Running { child, .. } = &mut host.state
                && let Ok(Some(status)) = child.try_wait()
            {
                host.state = State::Ended(in_words(status));
            }
            let ended = match &host.state {
                State::Ended(how) => Some(how.clone()),
                State::Preparing | State::Running { .. } => None,
            };
            let (run, role) = (run.clone(), role.clone());
            statuses.push(HostStatus { run, role, generation: host.generation, ended });
        }
        statuses
    }

    pub(super) fn take_logs(&self) -> Vec<LogLine> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }

    /// Shows new certificates from the next connection on.
    pub(super) fn renew(&mut self, certificates: &Certificates) {
        self.certificates = certificates.clone();
        let Ok(line) = serde_json::to_string(&texts(certificates)) else { return };
        for host in self.all.values_mut() {
            if let State::Running { input, .. } = &mut host.state {
                let _ = input.write_all((line.clone() + "\n").as_bytes()); // one that ends needs none
            }
        }
    }

    /// Ends all processes.
    pub(super) fn end(&mut self) {
        for (_, host) in std::mem::take(&mut self.all) {
            end_now(host.state);
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.end();
    }
}

fn texts(certificates: &Certificates) -> CertificateTexts {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    CertificateTexts {
        chain: text(&certificates.chain_pem),
        key: text(&certificates.key_pem),
        authority: text(&certificates.authority_pem),
    }
}

fn push(logs: &Logs, (run, role): &Key, line: String) {
    let mut logs = logs.lock().unwrap_or_else(PoisonError::into_inner);
    logs.push_back(LogLine { number: 0, run: run.clone(), role: Some(role.clone()), worker: None, line });
    if logs.len() > MOST_LINES {
        logs.pop_front();
    }
}

/// Its state is with its coordinator: nothing is lost.
fn end_now(state: State) {
    let State::Running { mut child, input } = state else { return };
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

/// Fetches what is not here and lays the files out.
fn fetch(client: &Client, blobs: &Blobs, assignment: &Assignment, folder: &Path) -> Result<(), String> {
    for file in assignment.bundle.files.iter().filter(|file| !blobs.has(&file.digest)) {
        let bytes = client.blob(&file.digest, file.bytes);
        let bytes = bytes.map_err(|error| format!("`{}` cannot be fetched: {error}", file.path))?;
        blobs.put(&file.digest, &bytes[..]).map_err(|error| format!("`{}`: {error}", file.path))?;
    }
    blobs.lay_out(&assignment.bundle, folder).map_err(|error| error.to_string())
}
