//! Workers of a plan as processes of their own on this machine: their start, and the work of each.
//!
//! The process that runs the workflow coordinates and judges; each worker's process reads the same files, opens its part of the plan and
//! follows orders. It ends on request, and by itself when its parent process is gone for any reason.
mod children;

pub use children::in_words;

use crate::emulation::{WarmUps, warm_up};
use crate::failure::{Failure, Kind};
use crate::listener::Silent;
use crate::preparation::{Judge, PlanFrom, Prepared, Scope, load, prepare};
use crate::worker_journals::WorkerJournals;
use children::Processes;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidemill_engine::remote::{Address, Certificates, Credentials, Security};
use tidemill_engine::{CoordinatorAddress, HostOptions, Hosts, Listen, RunError, decline_host, serve_host};
use tidemill_session::Options as SessionOptions;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::plan::Plan;
use tidemill_spec::variables;

/// Time limit for the end of the processes of a run before.
const WAITING: Duration = Duration::from_secs(30);
/// Interval of looks at a process that should end.
const LOOK: Duration = Duration::from_millis(5);

/// Characters of the reason why a worker cannot take part, at most.
const MOST_TOLD: usize = 2000;
/// Bytes of a task, at most.
const MOST_BYTES: u64 = 1 << 30;

/// The variable with a person's access token: no process of a run is given it, because code of operators runs there.
pub const TOKEN_VARIABLE: &str = "TIDEMILL_TOKEN";

/// Input of a worker's process, as one line of JSON on its standard input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerTask {
    /// The workflow's file.
    pub workflow: PathBuf,
    /// The plan as it is run: with a backend for each model.
    pub plan: Plan,
    /// Records per second of each source; none: as fast as they are taken.
    pub rates: BTreeMap<String, Option<f64>>,
    /// The worker of the plan.
    pub worker: String,
    /// Address of the coordinator: `tcp://127.0.0.1:4100`, `unix://@tidemill-4711`.
    pub coordinator: Address,
    /// Secret number of the run, as hexadecimal digits.
    pub run: String,
    /// Counts the plans of the run; default: 0, where it has only one.
    #[serde(default)]
    pub plan_version: u64,
    /// The process that started it: without that one it ends at once.
    pub parent: u32,
    /// Locked during its life, where the run keeps a state: no other process continues the run before.
    pub lock: Option<PathBuf>,
    /// Inputs that warm up its models, where the run is emulated.
    #[serde(default)]
    pub warm_ups: WarmUps,
    /// The socket of the machine's transport service, if it has one.
    #[serde(default)]
    pub served_by: Option<PathBuf>,
    /// Settings for workers on different machines.
    #[serde(default)]
    pub cluster: Option<ClusterPart>,
}

/// Additional input of the process of a worker in a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterPart {
    /// Its certificates and its trusted authorities. New ones may follow on its standard input, a line each, and so may [`Moved`] and
    /// [`NotBelieved`].
    pub certificates: CertificateTexts,
    /// Serial numbers of certificates that are not believed any more, as hexadecimal digits.
    #[serde(default)]
    pub revoked: Vec<String>,
    /// Required name in the certificate of its coordinator: `tidemill:controller`. None: any trusted one.
    #[serde(default)]
    pub coordinator: Option<String>,
    /// Address on which it listens for other workers; none: it dials.
    pub listen: Option<Address>,
    /// The paths of its machine.
    #[serde(default)]
    pub paths: SessionOptions,
    /// Time that it continues without its coordinator.
    pub patience_seconds: u64,
    /// The folder of what is kept of the run on this machine from one process to the next: journals of streams. Default: that of its
    /// process.
    #[serde(default)]
    pub kept: PathBuf,
    /// It is started beside a process of another plan of the run: its models compute before it stands ready.
    #[serde(default)]
    pub warms: bool,
    /// Variables of the workflow from its submitter; variables of its own machine are not filled in.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
}

/// The coordinator has started again elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moved {
    /// Its new address.
    pub coordinator: Address,
}

/// Certificates that are revoked, besides earlier ones: they are rejected, and connections with them end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotBelieved {
    /// Their serial numbers, as hexadecimal digits.
    pub revoked: Vec<String>,
}

/// Paths of the machine that connections leave while another one works, instead of earlier ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainedPaths {
    /// Their names.
    pub drained_paths: Vec<String>,
}

/// Certificates as PEM.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct CertificateTexts {
    /// The certificate of the worker, and its chain.
    pub chain: String,
    /// Its key.
    pub key: String,
    /// The certificates of trusted authorities.
    pub authority: String,
}

impl std::fmt::Debug for CertificateTexts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateTexts").finish_non_exhaustive() // not the key
    }
}

impl CertificateTexts {
    pub(crate) fn certificates(&self) -> Certificates {
        Certificates {
            chain_pem: self.chain.clone().into_bytes(),
            key_pem: self.key.clone().into_bytes(),
            authority_pem: self.authority.clone().into_bytes(),
        }
    }
}

/// Says what a worker's process wrote to its standard error, line by line.
pub type LineListener = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// Over what the processes of a run speak with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sockets {
    /// Connections on one machine, without files, with large payloads in shared memory.
    Local,
    /// TCP over the machine's own address: what is emulated is a network, and is to go through one.
    Tcp,
}

impl Sockets {
    fn address(self) -> Address {
        match self {
            Self::Local => Address::unix("@"),
            Self::Tcp => Address::tcp("127.0.0.1:0"),
        }
    }
}

/// Starts a process for each worker with this command, which must call [`serve`].
///
/// # Errors
/// The workflow's folder or random numbers cannot be had.
pub fn hosts(
    workflow: &Path,
    prepared: &Prepared,
    (sockets, warm_ups): (Sockets, WarmUps),
    (lock, served_by): (Option<PathBuf>, Option<PathBuf>),
    command: Vec<String>,
    tell: LineListener,
) -> Result<Hosts, Failure> {
    let unavailable =
        |what: &str, error: std::io::Error| Failure::new(Kind::Unavailable, format!("{what}: {error}"));
    let path = workflow.display().to_string();
    let workflow = std::path::absolute(workflow).map_err(|error| unavailable(&path, error))?;
    let lock = lock.map(std::path::absolute).transpose().map_err(|error| unavailable("the state", error))?;
    if let Some(lock) = &lock {
        wait_for_workers(lock)?;
    }
    let run = secret_number().map_err(|error| unavailable("/dev/urandom", error))?;
    let sources = &prepared.program.sources;
    let task = WorkerTask {
        workflow,
        plan: prepared.program.plan.clone(),
        rates: sources.iter().map(|(id, source)| (id.clone(), source.rate_per_second)).collect(),
        worker: String::new(),
        coordinator: sockets.address(),
        run: format!("{run:032x}"),
        plan_version: 0,
        parent: std::process::id(),
        lock,
        served_by,
        cluster: None,
        warm_ups,
    };
    let launcher = Processes::new(task, command, tell);
    Ok(Hosts {
        launcher: Box::new(launcher),
        run,
        plan_version: 0,
        listen: Listen::At(sockets.address(), Security::none()),
    })
}

/// Returns an unguessable number: a process that knows the number of a run may take part in it.
///
/// # Errors
/// The system gives no random bytes.
pub fn secret_number() -> std::io::Result<u128> {
    let mut secret = [0u8; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut secret)?;
    Ok(u128::from_le_bytes(secret))
}

/// Waits until no process of a run before has its workers' lock: the run may have been killed just now, and they end after it.
pub(crate) fn wait_for_workers(lock: &Path) -> Result<(), Failure> {
    let unavailable =
        |error: std::io::Error| Failure::new(Kind::Unavailable, format!("{}: {error}", lock.display()));
    let file = std::fs::File::create(lock).map_err(unavailable)?;
    for _ in 0..WAITING.as_millis() / LOOK.as_millis() {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOOK),
            Err(error) => return Err(unavailable(error.into())),
        }
    }
    let text = format!("workers of an earlier run still use `{}`", lock.display());
    Err(Failure::new(Kind::Unavailable, text)
        .with_help("end the processes `tidemill worker-process`, then try again"))
}

/// Ends with the process that started this one, whatever becomes of it; keeps the lock of the workers while it lives.
fn belong_to(task: &WorkerTask) -> Result<Option<std::fs::File>, Failure> {
    let unavailable = |error: Errno| {
        Failure::new(Kind::Unavailable, format!("the process of worker `{}`: {error}", task.worker))
    };
    let gone = || unavailable(Errno::SRCH);
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(unavailable)?;
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get().cast_unsigned() != task.parent) {
        return Err(gone());
    }
    let Some(lock) = &task.lock else { return Ok(None) };
    let file = std::fs::File::open(lock).map_err(|_| gone())?;
    // Held by a process that waits for it: then the parent of this process is gone.
    flock(&file, FlockOperation::NonBlockingLockShared).map_err(|_| gone())?;
    Ok(Some(file))
}

/// Runs a worker's process: reads its task from `input`, joins and serves until it may leave. `certified` takes the certificate
/// of a worker of a cluster, before anything is opened.
///
/// # Errors
/// Its task, files or models are wrong; the coordinator is gone.
pub fn serve(
    mut input: impl BufRead + Send + 'static,
    certified: impl FnOnce(Security),
) -> anyhow::Result<()> {
    tidemill_session::install()?;
    let mut line = String::new();
    (&mut input).take(MOST_BYTES).read_line(&mut line)?;
    let task: WorkerTask = serde_json::from_str(&line).map_err(|error| {
        Failure::new(Kind::Configuration, format!("the task of a worker's process: {error}"))
    })?;
    let _lock = belong_to(&task)?;
    let run = u128::from_str_radix(&task.run, 16)
        .map_err(|error| Failure::new(Kind::Configuration, format!("the number of the run: {error}")))?;
    let mut options = HostOptions::local(&task.worker, run, task.coordinator);
    options.plan_version = task.plan_version;
    let credentials = task.cluster.as_ref().map(|cluster| join_as(cluster, &mut options)).transpose()?;
    if credentials.is_some() {
        certified(options.security.clone());
    }
    let judge = if task.cluster.is_some() { Judge::Elsewhere } else { Judge::OfThisMachine };
    let lookup = |name: &str| match &task.cluster {
        Some(cluster) => cluster.variables.get(name).cloned(),
        None => variables::environment(name),
    };
    let workflow = load(&task.workflow, &lookup, Scope::Manifests, &Silent)?;
    let scope = Scope::Worker(&task.worker, judge);
    let prepared = prepare(workflow.clone(), PlanFrom::Given(&task.plan), scope, &Silent);
    let mut prepared = prepared.map_err(|error| {
        let checked = prepare(workflow, PlanFrom::Given(&task.plan), Scope::Manifests, &Silent);
        report(error, checked.ok(), &options)
    })?;
    for (id, source) in &mut prepared.program.sources {
        if let Some(rate) = task.rates.get(id) {
            source.rate_per_second = *rate;
        }
    }
    let plan = prepared.program.plan.clone();
    let is_here = |source: &str| {
        let mut stages = plan.stages.iter().filter(|stage| stage.operator == source);
        stages.any(|stage| stage.worker == task.worker)
    };
    if let Some(state) = task.lock.as_deref().and_then(Path::parent) {
        crate::journals::read_through(state, &mut prepared, is_here)?;
    }
    warm_up::apply(&mut prepared.program, &task.worker, &task.warm_ups);
    crate::open_files::reserve(&prepared.program, &Silent)?;
    if let Some((cluster, credentials)) = task.cluster.zip(credentials) {
        options.journals = WorkerJournals::read_through(&cluster.kept, &mut prepared, is_here)?;
        crate::warm_start::apply(&mut prepared.program, &task.worker, &cluster.kept, cluster.warms);
        listen(input, credentials, options.coordinator.clone())?;
    }
    options.served_by = task
        .served_by
        .as_deref()
        .map(|socket| crate::served_by::served_by(socket, &prepared.program, &prepared.workflow));
    let plan = &prepared.program.plan;
    let stages: Vec<&str> = plan
        .stages
        .iter()
        .filter(|stage| stage.worker == task.worker)
        .map(|stage| stage.id.as_str())
        .collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        process = std::process::id(),
        plan = plan.plan_version,
        "starts with the stages {} of workflow {}",
        stages.join(", "),
        prepared.workflow.name.value
    );
    serve_host(&prepared.program, options)
        .inspect(|_| tracing::info!("ends: its part of the run is complete"))
        .map_err(|error| crate::engine_failure::failed(&error, &prepared.workflow).into())
}

/// Sets the address and the credentials with which the process of a worker of a cluster joins.
fn join_as(cluster: &ClusterPart, options: &mut HostOptions) -> Result<Credentials, Failure> {
    let certificates = |error: tidemill_engine::remote::RemoteError| {
        Failure::new(Kind::Configuration, format!("the certificates of this worker: {error}"))
    };
    let credentials = Credentials::new(&cluster.certificates.certificates()).map_err(certificates)?;
    refuse(&credentials, &cluster.revoked);
    options.security = Security::with(&credentials).map_err(certificates)?;
    options.coordinator_identity.clone_from(&cluster.coordinator);
    options.listen.clone_from(&cluster.listen);
    if let Some(sessions) = tidemill_session::sessions() {
        sessions.configure(cluster.paths.clone());
    }
    options.patience = Duration::from_secs(cluster.patience_seconds);
    // Its agent has started it in the folder of its run.
    options.keep_in = PathBuf::from(".");
    Ok(credentials)
}

/// Believes certificates with these serial numbers no more.
pub(crate) fn refuse(credentials: &Credentials, revoked: &[String]) {
    for text in revoked {
        match u128::from_str_radix(text, 16) {
            Ok(serial) => credentials.revoked().add(&serial.to_be_bytes()),
            Err(error) => tracing::error!("{text:?} is not a serial number of a certificate: {error}"),
        }
    }
}

/// Reports to the coordinator why this worker cannot open what is its own, so that the run ends with that reason. Whatever becomes
/// of that, the process ends with it too. `checked`: the same, checked and not opened. None: not even that is right.
fn report(error: anyhow::Error, checked: Option<Prepared>, options: &HostOptions) -> anyhow::Error {
    let Some(checked) = checked else { return error };
    let why = RunError::NotOpened { worker: options.name.clone(), text: in_a_line(&error) };
    if let Err(lost) = decline_host(&checked.program, options, &why) {
        tracing::debug!("cannot report that this worker cannot open its stages: {lost}");
    }
    error
}

/// Returns the error and the advice, without the lines of the files.
fn in_a_line(error: &anyhow::Error) -> String {
    let text = match error.downcast_ref::<Diagnostics>() {
        Some(findings) => {
            let message = findings.iter().map(|finding| match &finding.help {
                Some(help) => format!("{}: {help}", finding.message),
                None => finding.message.clone(),
            });
            message.collect::<Vec<_>>().join("; ")
        }
        None => format!("{error:#}"),
    };
    text.chars().take(MOST_TOLD).collect()
}

/// A line on the standard input of a worker's process.
#[derive(Deserialize)]
#[serde(untagged)]
enum News {
    Certificates(CertificateTexts),
    Moved(Moved),
    NotBelieved(NotBelieved),
    Drained(DrainedPaths),
}

/// Follows a line of the agent; `moved` takes the new address of the coordinator.
///
/// # Errors
/// It is no such line, or its certificates cannot be used.
pub(crate) fn follow_agent(
    line: &str,
    credentials: &Credentials,
    moved: impl FnOnce(Address),
) -> Result<(), String> {
    match serde_json::from_str::<News>(line).map_err(|error| error.to_string())? {
        News::Certificates(new) => {
            credentials.replace(&new.certificates()).map_err(|error| error.to_string())?;
        }
        News::Moved(Moved { coordinator: to }) => moved(to),
        News::NotBelieved(NotBelieved { revoked }) => refuse(credentials, &revoked),
        News::Drained(DrainedPaths { drained_paths }) => {
            if let Some(sessions) = tidemill_session::sessions() {
                sessions.drain(drained_paths);
            }
        }
    }
    Ok(())
}

/// Reads lines until the end: replaces certificates, revokes others, and moves to another coordinator.
fn listen(
    mut input: impl BufRead + Send + 'static,
    credentials: Credentials,
    coordinator: CoordinatorAddress,
) -> Result<(), Failure> {
    let listen = move || {
        let mut line = String::new();
        while matches!((&mut input).take(1 << 20).read_line(&mut line), Ok(read) if read > 0) {
            let moved = |to| {
                tracing::info!("the coordinator of the run is now at {to}");
                coordinator.moved(to);
            };
            if let Err(error) = follow_agent(&line, &credentials, moved) {
                tracing::error!("cannot follow the message of the agent: {error}");
            }
            line.clear();
        }
    };
    let thread = std::thread::Builder::new().name("tm-renewal".into()).spawn(listen);
    thread.map_err(|error| {
        Failure::new(Kind::Unavailable, format!("cannot start the thread for certificates: {error}"))
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_says_is_told_apart() {
        let read = |value: serde_json::Value| serde_json::from_value::<News>(value).unwrap();
        let certificates = CertificateTexts { chain: "a".into(), key: "b".into(), authority: "c".into() };
        let news = read(serde_json::to_value(certificates).unwrap());
        assert!(matches!(news, News::Certificates(CertificateTexts { chain, .. }) if chain == "a"));
        let moved = Moved { coordinator: Address::tcp("127.0.0.1:4100") };
        assert!(
            matches!(read(serde_json::to_value(&moved).unwrap()), News::Moved(message) if message == moved)
        );
        let revoked = NotBelieved { revoked: vec!["4f".repeat(16)] };
        let news = read(serde_json::to_value(&revoked).unwrap());
        assert!(matches!(news, News::NotBelieved(message) if message == revoked));
    }
}
