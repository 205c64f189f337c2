//! Cancels runs, and removes ended ones.
use super::asking::{ask, json, show_as};
use super::connect::client;
use crate::arguments::{OutputForm, RemoveArguments, RunChoice};
use crate::exit::Exit;
use crate::terminal::Terminal;
use tidemill_app::figures::bytes;
use tidemill_app::listener::Listener;
use tidemill_cluster::api::{RemovedView, RunView};
use tidemill_cluster::client::segment;

/// Cancels a run, and reports the data that stays.
pub(crate) fn cancel(arguments: &RunChoice, terminal: &Terminal) -> anyhow::Result<Exit> {
    let run: RunView =
        ask(client(&arguments.asked.of)?.delete(&format!("/v1/runs/{}", segment(&arguments.run))))?;
    // It ends when its processes have: the answer does not wait for them.
    let state =
        if run.state.is_over() { format!("is {}", run.state) } else { "is being cancelled".to_owned() };
    show_as(&run, &state, arguments.asked.output)?;
    if arguments.asked.output == OutputForm::Table {
        let name = &run.name;
        let what = match run.outputs.is_empty() {
            true => "its last checkpoint stays".to_owned(),
            false => format!(
                "its last checkpoint and the output of its sinks stay: fetch the output with `tidemill results {name} --out DIR`"
            ),
        };
        terminal.note(&format!("{what}; `tidemill remove {name}` removes all"));
    }
    Ok(Exit::Success)
}

/// Removes an ended run.
pub(crate) fn remove(arguments: &RemoveArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let path = format!("/v1/runs/{}/remove", segment(&arguments.run));
    let removed: RemovedView = ask(client(&arguments.of)?.post(&path, &()))?;
    if arguments.output == OutputForm::Json {
        json("removed", &removed)?;
        return Ok(Exit::Success);
    }
    let workers = match removed.workers.is_empty() {
        true => "no reachable worker has files of it".to_owned(),
        false => format!("{} remove their files", removed.workers.join(", ")),
    };
    terminal.note(&format!(
        "run {} is removed, with {} at the controller; {workers}",
        removed.run,
        bytes(removed.bytes)
    ));
    Ok(Exit::Success)
}
