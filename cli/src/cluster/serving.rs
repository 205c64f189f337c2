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
use tidemill_cluster::agent::{self, AgentError, AgentOptions};
use tidemill_cluster::controller::{Controller, ControllerError, ControllerOptions};

/// How often a signal is looked for.
const LOOK: Duration = Duration::from_millis(100);

fn unavailable(error: &ControllerError) -> Failure {
    Failure::new(Kind::Unavailable, error.to_string())
}

/// Runs a controller.
pub(crate) fn controller(arguments: &ControllerArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let mut names = arguments.names.clone();
    if names.is_empty() {
        names.push(tidemill_app::machine::Machine::look().name);
    }
    let options = ControllerOptions {
        folder: arguments.state.clone(),
        listen: arguments.listen.clone(),
        listen_hosts: arguments.listen_hosts.clone(),
        names,
    };
    let controller = Controller::start(&options).map_err(|error| unavailable(&error))?;
    let admin = controller.first_admin().map_err(|error| unavailable(&error))?;
    let path = arguments.state.join("admin.token");
    if let Some(token) = &admin {
        keep(&path, &token.reveal()).map_err(|error| {
            let text = format!("the first access token cannot be kept in {}: {error}", path.display());
            Failure::new(Kind::Unavailable, text)
        })?;
    }
    let address = controller.address();
    terminal.note(&format!("controller at {address}"));
    if admin.is_some() {
        let path = path.display();
        terminal.note(&format!("the access token of the first admin is in {path}; use it with"));
        terminal.note(&format!("    tidemill login {address} --token-file {path}"));
    }
    interrupt.is_watched();
    while !interrupt.is_wanted() {
        std::thread::sleep(LOOK);
    }
    terminal.note("the controller ends; workers go on, and the next controller takes their runs over");
    controller.end();
    Ok(Exit::Interrupted)
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
        Failure::new(Kind::Unavailable, format!("this program does not find itself: {error}"))
    })?;
    let token = match &arguments.token_file {
        Some(file) => Some(super::connect::read(file)?),
        None => std::env::var("TIDEMILL_JOIN_TOKEN").ok(),
    };
    let mut command = vec![own.display().to_string(), "worker-process".to_owned()];
    command.extend(crate::run::processes::log_options(std::env::args()));
    let folder = std::path::absolute(&arguments.state).map_err(|error| {
        Failure::new(Kind::Unavailable, format!("{}: {error}", arguments.state.display()))
    })?;
    let options = AgentOptions {
        folder,
        controller: arguments.join.clone(),
        token,
        name: arguments.name.clone(),
        location: arguments.location.clone(),
        tier: arguments.tier.clone(),
        worker_type: arguments.worker_type.clone(),
        labels: arguments.labels.iter().cloned().collect(),
        address: arguments.address,
        only_dials: arguments.only_dials,
        cache_bytes: arguments.cache,
        command,
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
    let joined = |name: &str| terminal.note(&format!("worker {name} of the cluster at {}", arguments.join));
    match agent::serve(&options, &end, joined) {
        Ok(()) => Ok(Exit::Interrupted),
        Err(error) => Err(refused(&error).into()),
    }
}

fn refused(error: &AgentError) -> Failure {
    let kind = match error {
        AgentError::NoToken => Kind::Configuration,
        AgentError::Client(error) if error.is_refusal() => Kind::Configuration,
        _ => Kind::Unavailable,
    };
    Failure::new(kind, error.to_string())
}
