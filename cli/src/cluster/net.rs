//! `tidemill net paths`: the paths between machines.
use super::asking::{ask, json};
use super::connect::client;
use crate::answer;
use crate::arguments::{
    DrainPathArguments, ListPathsArguments, NetVerb, OutputForm, PathsVerb, TestPathsArguments,
};
use crate::exit::Exit;
use crate::net;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::bytes;
use tidemill_app::listener::Listener;
use tidemill_app::run_figures::{PathState, RunFigures};
use tidemill_cluster::api::{RunView, WorkerView};
use tidemill_cluster::client::segment;
use tidemill_session::{Health, Options, PathFigures, Sessions};

/// Runs a verb of `tidemill net`.
pub(crate) fn net(verb: &NetVerb, terminal: &Terminal) -> anyhow::Result<Exit> {
    match verb {
        NetVerb::Ls(arguments) => net::edges(arguments, terminal),
        NetVerb::Top(arguments) => net::top(arguments, terminal),
        NetVerb::Policy { verb } => net::policy(verb, terminal),
        NetVerb::Collective { verb } => net::collective(verb, terminal),
        NetVerb::Hints(arguments) => net::hints(arguments, terminal),
        NetVerb::Bench { verb } => net::bench(verb, terminal),
        NetVerb::Serve(arguments) => super::net_serve::serve(arguments, terminal),
        NetVerb::Upgrade(arguments) => super::net_serve::upgrade(arguments, terminal),
        NetVerb::Stub(arguments) => super::net_stub::stub(arguments),
        NetVerb::Paths { verb: PathsVerb::Ls(arguments) } => list(arguments, terminal),
        NetVerb::Paths { verb: PathsVerb::Drain(arguments) } => drain(arguments, "drain", terminal),
        NetVerb::Paths { verb: PathsVerb::Undrain(arguments) } => drain(arguments, "resume", terminal),
        NetVerb::Paths { verb: PathsVerb::Test(arguments) } => test(arguments, terminal),
    }
}

fn list(arguments: &ListPathsArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let client = client(&arguments.of)?;
    let names = match &arguments.run {
        Some(run) => vec![run.clone()],
        None => {
            let runs: Vec<RunView> = ask(client.get("/v1/runs"))?;
            runs.into_iter().filter(|run| !run.state.is_over()).map(|run| run.name).collect()
        }
    };
    let mut all: Vec<RunFigures> = Vec::new();
    for name in names {
        all.push(ask(client.get(&format!("/v1/runs/{}/figures", segment(&name))))?);
    }
    if arguments.output == OutputForm::Json {
        let of_run = |run: &RunFigures| serde_json::json!({"run": run.run, "paths": run.paths});
        json("runs", &all.iter().map(of_run).collect::<Vec<_>>())?;
        return Ok(Exit::Success);
    }
    if all.iter().all(|run| run.paths.is_empty()) {
        terminal.note("no run has processes on several machines now");
        return Ok(Exit::Success);
    }
    let mut table = Table::new(&[
        ("run", Side::Left),
        ("from", Side::Left),
        ("to", Side::Left),
        ("path", Side::Left),
        ("state", Side::Left),
        ("round trip", Side::Right),
        ("connections", Side::Right),
        ("sent and received", Side::Right),
        ("signs of life", Side::Right),
        ("cost", Side::Right),
        ("silences", Side::Right),
    ]);
    for run in &all {
        for path in &run.paths {
            table.row(vec![
                run.run.clone(),
                path.worker.clone(),
                path.peer.clone(),
                path.path.clone(),
                state(path),
                path.round_trip_ms.map_or_else(String::new, |time| format!("{time:.1} ms")),
                path.connections.to_string(),
                bytes(path.bytes),
                bytes(path.hello_bytes),
                if path.price > 0.0 { format!("{:.4} $", path.cost) } else { String::new() },
                path.silences.to_string(),
            ]);
        }
    }
    table.write(&mut answer::out())?;
    Ok(Exit::Success)
}

fn state(path: &PathState) -> String {
    if path.is_drained { format!("{}, drained", path.state) } else { path.state.clone() }
}

fn drain(arguments: &DrainPathArguments, does: &str, terminal: &Terminal) -> anyhow::Result<Exit> {
    let (worker, path) = (segment(&arguments.worker), segment(&arguments.path));
    let place = format!("/v1/workers/{worker}/paths/{path}/{does}");
    let worker: WorkerView = ask(client(&arguments.of)?.post(&place, &()))?;
    if arguments.output == OutputForm::Json {
        json("worker", &worker)?;
        return Ok(Exit::Success);
    }
    let name = &arguments.path;
    terminal.note(&match worker.drained_paths.contains(name) {
        true if worker.paths.iter().all(|path| worker.drained_paths.contains(path)) => {
            format!(
                "path {name} of worker {} is drained; no other path is left, so it stays in use",
                worker.name
            )
        }
        true => {
            format!("path {name} of worker {} is drained: connections leave it within seconds", worker.name)
        }
        false => format!("path {name} of worker {} is used again", worker.name),
    });
    Ok(Exit::Success)
}

/// Greets the other side over each path for a while.
fn test(arguments: &TestPathsArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let options = arguments.paths.options();
    let mut hellos = options.hellos;
    hellos.idle = hellos.every;
    let sessions = Sessions::new(Options { hellos, ..options })?;
    sessions
        .watch(&arguments.address)
        .map_err(|error| Failure::new(Kind::Unavailable, format!("{}: {error}", arguments.address)))?;
    terminal.note(&format!(
        "tries the paths to {} for {:.0} s",
        arguments.address,
        arguments.time.as_secs_f64()
    ));
    std::thread::sleep(arguments.time.max(Duration::from_millis(200)));
    let paths = sessions.figures();
    let is_up = |path: &PathFigures| path.health == Health::Up;
    if arguments.output == OutputForm::Json {
        json("paths", &paths)?;
    } else {
        let mut table = Table::new(&[
            ("path", Side::Left),
            ("from", Side::Left),
            ("to", Side::Left),
            ("state", Side::Left),
            ("round trip", Side::Right),
            ("silences", Side::Right),
        ]);
        for path in &paths {
            table.row(vec![
                path.path.clone(),
                path.from.clone().unwrap_or_else(|| "any".into()),
                path.to.clone(),
                if is_up(path) { "up".into() } else { "no answer".into() },
                path.round_trip_us.map_or_else(String::new, |time| format!("{:.1} ms", time as f64 / 1e3)),
                path.silences.to_string(),
            ]);
        }
        table.write(&mut answer::out())?;
    }
    let silent: Vec<&str> = paths.iter().filter(|path| !is_up(path)).map(|path| path.path.as_str()).collect();
    if silent.is_empty() {
        return Ok(Exit::Success);
    }
    terminal.note(&format!("no answer over {}", silent.join(", ")));
    Ok(Exit::No)
}
