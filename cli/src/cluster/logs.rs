//! What the processes of a run say, and what the controller tells of it.
use super::asking::ask;
use super::connect::client;
use crate::answer;
use crate::arguments::{LogsArguments, OutputForm};
use crate::exit::Exit;
use std::io::Write;
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_cluster::api::{LogLine, PlanView, RunView, WorkerView};
use tidemill_cluster::client::{Client, segment};

/// How often lines are looked for.
const LOOK: Duration = Duration::from_millis(500);

/// Prints lines of a run.
pub(crate) fn logs(arguments: &LogsArguments) -> anyhow::Result<Exit> {
    let folder = std::path::Path::new(&arguments.run);
    if folder.join("deployment.json").is_file() {
        let text = format!("`{}` is the folder of a deployment, not a run", arguments.run);
        return Err(Failure::new(Kind::Usage, text)
            .with_help(format!(
                "`tidemill deployment logs {}` prints what its containers write, `tidemill runs` lists runs",
                arguments.run
            ))
            .into());
    }
    let client = client(&arguments.of)?;
    let run = segment(&arguments.run);
    let mut view: RunView = ask(client.get(&format!("/v1/runs/{run}")))?;
    check(&client, arguments, &view)?;
    let (mut after, mut is_last) = (0, false);
    loop {
        let lines: Vec<LogLine> = ask(client.get(&format!("/v1/runs/{run}/logs?after={after}")))?;
        after = lines.last().map_or(after, |line| line.number);
        let mut out = answer::out();
        for line in lines.iter().filter(|line| is_wanted(line, arguments)) {
            match arguments.output {
                OutputForm::Json => {
                    serde_json::to_writer(&mut out, line)?;
                    writeln!(out)?;
                }
                OutputForm::Table => writeln!(out, "{}", text(line))?,
            }
        }
        out.flush()?;
        if !arguments.follow || is_last || !answer::is_read() {
            return Ok(Exit::Success);
        }
        drop(out);
        std::thread::sleep(LOOK);
        // What is told of the end comes a moment after the run is over.
        is_last = view.state.is_over();
        view = ask(client.get(&format!("/v1/runs/{run}")))?;
    }
}

/// A worker or a stage that is nowhere gives no lines for ever: that is told at once.
fn check(client: &Client, arguments: &LogsArguments, run: &RunView) -> anyhow::Result<()> {
    let refused = |what: &str, name: &str, known: Vec<String>| {
        let text = format!("run {} has no {what} `{name}`", arguments.run);
        Failure::new(Kind::Configuration, text).with_help(format!("{what}s: {}", known.join(", ")))
    };
    if let Some(worker) = &arguments.worker {
        let workers: Vec<WorkerView> = ask(client.get("/v1/workers"))?;
        let known = run.placement.keys().cloned().chain(workers.into_iter().map(|view| view.name));
        let known: std::collections::BTreeSet<String> = known.collect();
        if !known.contains(worker) {
            return Err(refused("worker", worker, known.into_iter().collect()).into());
        }
    }
    if let Some(stage) = &arguments.stage {
        let plan: PlanView = ask(client.get(&format!("/v1/runs/{}/plan", segment(&arguments.run))))?;
        let stages = plan.plan.stages;
        if !stages.iter().any(|one| one.id == *stage || one.operator == *stage) {
            return Err(refused("stage", stage, stages.into_iter().map(|one| one.id).collect()).into());
        }
    }
    Ok(())
}

/// Whether a line is of the worker and the stage that are asked for.
fn is_wanted(line: &LogLine, arguments: &LogsArguments) -> bool {
    let of_worker = arguments
        .worker
        .as_ref()
        .is_none_or(|worker| line.worker.as_ref() == Some(worker) || line.role.as_ref() == Some(worker));
    let of_stage = arguments.stage.as_ref().is_none_or(|stage| line.stages.contains(stage));
    of_worker && of_stage
}

/// `2026-11-23T20:15:00Z hub on spare (pair, pairs) WARN …`.
fn text(line: &LogLine) -> String {
    let mut text = line.time.clone().unwrap_or_default();
    let mut add = |part: &str| {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(part);
    };
    match (&line.role, &line.worker) {
        (Some(role), Some(worker)) if role != worker => add(&format!("{role} on {worker}")),
        (Some(role), _) => add(role),
        (None, _) => add("controller"),
    }
    if !line.stages.is_empty() {
        add(&format!("({})", line.stages.join(", ")));
    }
    line.level.as_deref().into_iter().for_each(&mut add);
    add(&line.line);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_whose_it_is() {
        let line: LogLine = serde_json::from_value(serde_json::json!({
            "run": "night", "role": "hub", "worker": "spare", "stages": ["pair", "pairs"], "level": "WARN", "time": "now",
            "line": "it is slow"
        }))
        .unwrap();
        assert_eq!(text(&line), "now hub on spare (pair, pairs) WARN it is slow");
        let event: LogLine =
            serde_json::from_value(serde_json::json!({"run": "night", "line": "run night is running"}))
                .unwrap();
        assert_eq!(text(&event), "controller run night is running");
    }
}
