//! `tidemill controller` and `tidemill worker`: they run until a signal ends them.
use crate::arguments::{ControllerArguments, WorkerArguments};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::terminal::Terminal;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_app::metrics::MetricsPort;
use tidemill_cluster::agent::{self, AgentError, AgentOptions};
use tidemill_cluster::controller::{
    Controller, ControllerError, ControllerOptions, Keeping, StoreAddress, StoreSettings, StoredFiles, Traced,
};
use tidemill_identity::{AccessToken, JoinAddress, StoreError};
use tidemill_spec::bucket_address::Address;

/// Interval of checks for a signal.
pub(super) const LOOK: Duration = Duration::from_millis(100);

pub(super) fn unavailable(error: &ControllerError) -> Failure {
    let kind = match error {
        ControllerError::OnItsOwn(_) => Kind::Configuration,
        _ => Kind::Unavailable,
    };
    Failure::new(kind, error.to_string())
}

/// Runs a controller.
pub(crate) fn controller(arguments: &ControllerArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let mut names = arguments.names.clone();
    if names.is_empty() {
        names.push(tidemill_app::machine::Machine::look().name);
    }
    let options = ControllerOptions {
        lifetimes: Default::default(),
        folder: arguments.state.clone(),
        listen: arguments.listen.clone(),
        listen_hosts: arguments.listen_hosts.clone(),
        names,
        metrics: metrics_port(arguments.metrics.as_deref(), terminal)?,
        traced: arguments
            .traces
            .exporter()?
            .map(|exporter| Traced { share: arguments.traces.trace_share, exporter: Arc::new(exporter) }),
        keeping: Keeping { time: arguments.keep_ended, bytes: arguments.keep_bytes },
        detection: arguments.detection.given(),
        replan_pace: arguments.replan_pace,
        files: arguments.files.as_ref().map(stored).transpose()?,
        jobs: arguments.jobs.options()?,
    };
    if let Some(store) = store(arguments)? {
        return super::leading::serve(&store, options, &arguments.state, &interrupt, terminal);
    }
    let controller = Controller::start(&options).map_err(|error| unavailable(&error))?;
    tell(&controller, &arguments.state, terminal)?;
    interrupt.is_watched();
    while !interrupt.is_wanted() {
        std::thread::sleep(LOOK);
    }
    terminal.note("the controller ends; workers continue, and the next controller takes over their runs");
    controller.end();
    Ok(Exit::Interrupted)
}

/// Returns the object store for files of workflows. The controller that uses it finds out whether it answers.
fn stored(address: &Address) -> Result<StoredFiles, Failure> {
    StoredFiles::open(address, &StoreSettings::of_environment())
        .map_err(|error| Failure::new(Kind::Configuration, format!("`{address}`: {error}")))
}

/// Returns the database that several controllers share, if one is named.
fn store(arguments: &ControllerArguments) -> Result<Option<StoreAddress>, Failure> {
    let Some(file) = &arguments.store_file else { return Ok(arguments.store.clone()) };
    let store = super::connect::read(file)?.parse::<StoreAddress>();
    store.map(Some).map_err(|error| Failure::new(Kind::Configuration, format!("{}: {error}", file.display())))
}

/// Prints the address of a controller, and the token of the first admin.
pub(super) fn tell(controller: &Controller, state: &Path, terminal: &Terminal) -> Result<(), Failure> {
    let path = state.join("admin.token");
    let kept = |token: &AccessToken| {
        let io = |source| StoreError::Io { done: "written", path: path.clone(), source };
        keep(&path, &token.reveal()).map_err(io)
    };
    let admin = controller.first_admin(kept).map_err(|error| unavailable(&error))?;
    let address = controller.address();
    tell_address(&state.join("address"), &address.to_string())?;
    terminal.note(&format!("controller at {address}"));
    terminal.note(&format!("    in a browser: https://{}/", address.host_and_port()));
    if admin.is_some() {
        let path = path.display();
        terminal.note(&format!("the access token of the first admin is in {path}; use it with"));
        terminal.note(&format!("    tidemill login {address} --token-file {path}"));
    }
    Ok(())
}

/// Opens the port for metrics, if requested.
fn metrics_port(address: Option<&str>, terminal: &Terminal) -> Result<Option<Arc<MetricsPort>>, Failure> {
    let Some(address) = address else { return Ok(None) };
    let port = MetricsPort::open(address)?;
    if let Some(address) = port.address() {
        terminal.note(&format!("metrics at http://{address}/metrics"));
    }
    Ok(Some(Arc::new(port)))
}

/// Writes the controller's address for scripts that set up workers; on a full disk the old file suffices.
pub(super) fn tell_address(path: &Path, address: &str) -> Result<(), Failure> {
    let line = format!("{address}\n");
    if std::fs::read_to_string(path).is_ok_and(|told| told == line) {
        return Ok(());
    }
    std::fs::write(path, line).map_err(|error| {
        let text = format!("cannot write the controller's address to {}: {error}", path.display());
        Failure::new(Kind::Unavailable, text)
    })
}

fn keep(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    writeln!(file, "{text}")?;
    file.sync_all()
}

/// Runs the agent of this machine.
pub(crate) fn worker(arguments: &WorkerArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let own = std::env::current_exe().map_err(|error| {
        Failure::new(Kind::Unavailable, format!("cannot find the path of this program: {error}"))
    })?;
    let (address, token) = joins_with(arguments)?;
    let mut command = vec![own.display().to_string(), "worker-process".to_owned()];
    let of_log = crate::run::processes::own_log_options();
    // Their logs go to the controller (`tidemill logs`), not to the terminal of the agent: more detail is better.
    let is_said = of_log.iter().any(|option| option.starts_with("--log-level"));
    if !is_said && std::env::var_os("TIDEMILL_LOG_LEVEL").is_none() {
        command.extend(["--log-level".to_owned(), "info".to_owned()]);
    }
    command.extend(of_log);
    let net_command = crate::cluster::net_serve::child(&own);
    let folder = std::path::absolute(&arguments.state).map_err(|error| {
        Failure::new(Kind::Unavailable, format!("{}: {error}", arguments.state.display()))
    })?;
    let options = AgentOptions {
        folder,
        controller: address.clone(),
        token,
        name: arguments.name.clone(),
        location: arguments.location.clone(),
        tier: arguments.tier.clone(),
        worker_type: arguments.worker_type.clone(),
        price: arguments.price.map(|price| price.0),
        capacity: arguments.capacity.given(),
        labels: arguments.labels.iter().cloned().collect(),
        address: arguments.address,
        only_dials: arguments.only_dials,
        paths: arguments.paths.options(),
        traffic: arguments.traffic.options(),
        cache_bytes: arguments.cache,
        files_port: arguments.files_port,
        results: arguments.results.clone(),
        command,
        net_command,
        task_command: vec![own.display().to_string(), "task-process".to_owned()],
        metrics: metrics_port(arguments.metrics.as_deref(), terminal)?,
    };
    interrupt.is_watched();
    let end = Arc::new(AtomicBool::new(false));
    let wanted = Arc::clone(&end);
    std::thread::Builder::new().name("tm-end".into()).spawn(move || {
        while !interrupt.is_wanted() {
            std::thread::sleep(LOOK);
        }
        wanted.store(true, Ordering::Release);
    })?;
    let joined = |name: &str| terminal.note(&format!("worker {name} of the cluster at {address}"));
    match agent::serve(&options, &end, joined) {
        Ok(()) => Ok(Exit::Interrupted),
        Err(error) => Err(refused(&error).into()),
    }
}

/// Runs a task of a job, for an agent.
pub(crate) fn task() -> anyhow::Result<Exit> {
    let input = std::io::BufReader::new(std::io::stdin());
    tidemill_cluster::task_process::serve(input)
        .map_err(|error| Failure::new(Kind::Unavailable, format!("the process of a task: {error}")))?;
    Ok(Exit::Success)
}

/// Returns the controller's address, and the token if there is one.
fn joins_with(arguments: &WorkerArguments) -> Result<(JoinAddress, Option<String>), Failure> {
    if let Some(file) = &arguments.join_file {
        return super::join_file::read(file);
    }
    let Some(address) = arguments.join.clone() else {
        return Err(Failure::new(Kind::Usage, "no controller is given: add `--join`"));
    };
    let token = match &arguments.token_file {
        Some(file) => Some(super::connect::read(file)?),
        None => std::env::var("TIDEMILL_JOIN_TOKEN").ok(),
    };
    Ok((address, token))
}

fn refused(error: &AgentError) -> Failure {
    let kind = match error {
        AgentError::NoToken => Kind::Configuration,
        AgentError::Client(error) if error.is_refusal() => Kind::Configuration,
        _ => Kind::Unavailable,
    };
    Failure::new(kind, error.to_string())
}
