//! `tidemill run --processes`: one process per worker of the plan.
use crate::arguments::{DeviceCertificateArguments, RunArguments};
use crate::device::certificate;
use crate::exit::Exit;
use crate::terminal::Terminal;
use std::path::PathBuf;
use std::sync::Arc;
use tidemill_app::emulation::WarmUps;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::preparation::Prepared;
use tidemill_app::processes::{self, LineListener, Sockets};
use tidemill_app::streams;
use tidemill_engine::Hosts;

/// Refuses sources that processes of workers cannot read, before any file is made.
///
/// # Errors
/// A source reads standard input, or a stream on several workers.
pub(super) fn check(arguments: &RunArguments, prepared: &Prepared) -> Result<(), Failure> {
    if !arguments.processes {
        return Ok(());
    }
    let mut sources = prepared.program.sources.values();
    if let Some(source) = sources.find(|source| source.stream.as_deref() == Some("standard input")) {
        let text =
            format!("source `{}` reads standard input, which processes of workers do not have", source.id);
        return Err(Failure::new(Kind::Configuration, text)
            .with_help("use a named pipe (`mkfifo`), or run without `--processes`"));
    }
    // They would open one pipe and one journal, as if each were the only one.
    streams::check_workers(&prepared.program).map_err(|text| Failure::new(Kind::Configuration, text))
}

/// Starts this program for each worker; prints their output with their names.
pub(super) fn hosts(
    arguments: &RunArguments,
    prepared: &Prepared,
    warm_ups: WarmUps,
    (lock, served_by): (Option<PathBuf>, Option<PathBuf>),
    terminal: &Terminal,
) -> Result<Hosts, Failure> {
    let own = std::env::current_exe().map_err(|error| {
        Failure::new(Kind::Unavailable, format!("cannot find the path of this program: {error}"))
    })?;
    let mut command = vec![own.display().to_string(), "worker-process".to_owned()];
    command.extend(own_log_options());
    command.extend(certificate::options(&arguments.device_certificate));
    let terminal = *terminal;
    let tell: LineListener = Arc::new(move |worker, line| terminal.relay(worker, line));
    let sockets = if arguments.emulate { Sockets::Tcp } else { Sockets::Local };
    processes::hosts(&arguments.workflow, prepared, (sockets, warm_ups), (lock, served_by), command, tell)
}

/// Returns the log options of this process's command line for those of workers. Paths need not be text.
pub(crate) fn own_log_options() -> Vec<String> {
    log_options(std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()))
}

fn log_options(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let mut options = Vec::new();
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        let is_option = |name: &str| argument == name || argument.starts_with(&format!("{name}="));
        if is_option("--log-level") || is_option("--log-format") {
            let value = if argument.contains('=') { None } else { arguments.next() };
            options.push(argument);
            options.extend(value);
        }
    }
    options
}

/// The process of a worker.
pub(crate) fn worker(arguments: &DeviceCertificateArguments) -> anyhow::Result<Exit> {
    certificate::hold(arguments)?;
    processes::serve(std::io::BufReader::new(std::io::stdin()), tidemill_remote::certificate::set)?;
    Ok(Exit::Success)
}

/// The process of a transport service.
pub(crate) fn net() -> anyhow::Result<Exit> {
    tidemill_app::net_process::serve(std::io::BufReader::new(std::io::stdin()))?;
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_log_as_the_run_does() {
        let line = "tidemill --log-level debug run w.yaml --log-format=json --processes";
        let found = log_options(line.split(' ').map(str::to_owned));
        assert_eq!(found, ["--log-level", "debug", "--log-format=json"]);
    }
}
