//! `tidemill agg serve`, and the process of an aggregator.
use super::{failure, socket_of};
use crate::arguments::{AggProcessArguments, ServeAggArguments};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::terminal::Terminal;
use tidemill_aggregation_service::master::{AggregatorOptions, MasterOptions, run, run_aggregator};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;

/// Serves until it is interrupted.
pub(super) fn serve(arguments: &ServeAggArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let socket = socket_of(&arguments.choice)?;
    let folder =
        std::path::absolute(arguments.state.clone().unwrap_or_else(|| socket.with_extension("agg")))?;
    let own = std::env::current_exe().map_err(|error| {
        Failure::new(Kind::Unavailable, format!("cannot find the path of this program: {error}"))
    })?;
    let mut command = vec![own.display().to_string()];
    command.extend(crate::run::processes::own_log_options());
    command.extend(["agg".to_owned(), "process".to_owned()]);
    let options = MasterOptions {
        socket: socket.clone(),
        folder: folder.clone(),
        command,
        fixed: arguments.aggregators,
        most: arguments.most_aggregators.max(arguments.aggregators.unwrap_or(0)),
        job_memory: arguments.job_memory,
        loss_limit: arguments.loss_limit,
        profiled: arguments.profile_iterations,
        monitored: arguments.monitor_iterations,
    };
    interrupt.is_watched();
    let ready = |count: usize| {
        let folder = folder.display();
        terminal.note(&format!("aggregation is served at {}; the map is in {folder}", socket.display()));
        if count > 0 {
            terminal.note(&format!("{count} aggregators"));
        }
    };
    run(options, || interrupt.is_wanted(), ready).map_err(|error| failure(&error))?;
    Ok(Exit::Interrupted)
}

/// Is an aggregator.
pub(super) fn process(arguments: &AggProcessArguments) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let options = AggregatorOptions {
        name: arguments.name.clone(),
        socket: arguments.socket.clone(),
        folder: arguments.state.clone(),
        orphaned: arguments.orphaned,
    };
    interrupt.is_watched();
    run_aggregator(&options, || interrupt.is_wanted()).map_err(|error| failure(&error))?;
    Ok(Exit::Success)
}
