//! Log lines of a run's processes, and events of the controller.
use super::asking::ask;
use super::connect::client;
use crate::answer;
use crate::arguments::{LogsArguments, OutputForm};
use crate::exit::Exit;
use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_cluster::api::{LogLine, PlanView, RunView, WorkerView};
use tidemill_cluster::client::{Client, segment};
use tidemill_spec::plan::Stage;

/// Polling interval.
const LOOK: Duration = Duration::from_millis(500);

/// Prints lines of a run.
pub(crate) fn logs(arguments: &LogsArguments) -> anyhow::Result<Exit> {
    let folder = std::path::Path::new(&arguments.run);
    if folder.join("deployment.json").is_file() {
        let text = format!("`{}` is the folder of a deployment, not a run", arguments.run);
        return Err(Failure::new(Kind::Usage, text)
            .with_help(format!(
                "`tidemill deployment logs {}` prints the logs of its containers, `tidemill list` lists runs",
                arguments.run
            ))
            .into());
    }
    let client = client(&arguments.of)?;
    let run = segment(&arguments.run);
    let mut view: RunView = ask(client.get(&format!("/v1/runs/{run}")))?;
    check_worker(&client, arguments, &view)?;
    let mut names = stage_names(&client, arguments)?;
    let (mut after, mut is_last) = (0, false);
    loop {
        let lines: Vec<LogLine> = ask(client.get(&format!("/v1/runs/{run}/logs?after={after}")))?;
        after = lines.last().map_or(after, |line| line.number);
        let mut out = answer::out();
        for line in lines.iter().filter(|line| is_wanted(line, arguments, &names)) {
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
        // Events of the end come a moment after the run is over.
        is_last = view.state.is_over();
        let plan_version = view.plan_version;
        view = ask(client.get(&format!("/v1/runs/{run}")))?;
        if view.plan_version != plan_version && arguments.stage.is_some() {
            // The next plan may have the operator in other stages, or lack a stage of that name.
            names.extend(stage_names(&client, arguments).unwrap_or_default());
        }
    }
}

/// An unknown worker or stage would never have lines: that is reported at once.
fn refused(run: &str, what: &str, name: &str, known: &[String]) -> Failure {
    Failure::new(Kind::Configuration, format!("run {run} has no {what} `{name}`"))
        .with_help(format!("{what}s: {}", known.join(", ")))
}

fn check_worker(client: &Client, arguments: &LogsArguments, run: &RunView) -> anyhow::Result<()> {
    if let Some(worker) = &arguments.worker {
        let workers: Vec<WorkerView> = ask(client.get("/v1/workers"))?;
        let known = run.placement.keys().cloned().chain(workers.into_iter().map(|view| view.name));
        let known: BTreeSet<String> = known.collect();
        if !known.contains(worker) {
            let known: Vec<String> = known.into_iter().collect();
            return Err(refused(&arguments.run, "worker", worker, &known).into());
        }
    }
    Ok(())
}

/// Returns the names in lines about the requested stage; empty if none is requested.
fn stage_names(client: &Client, arguments: &LogsArguments) -> anyhow::Result<BTreeSet<String>> {
    let Some(asked) = &arguments.stage else { return Ok(BTreeSet::new()) };
    let plan: PlanView = ask(client.get(&format!("/v1/runs/{}/plan", segment(&arguments.run))))?;
    Ok(names(&plan.plan.stages, asked).map_err(|known| refused(&arguments.run, "stage", asked, &known))?)
}

/// Returns the stage of that id, the stages of the operator of that id, and the operator itself; else the existing stages.
fn names(stages: &[Stage], asked: &str) -> Result<BTreeSet<String>, Vec<String>> {
    let of_it = stages.iter().filter(|one| one.id == asked || one.operator == asked);
    let mut names: BTreeSet<String> = of_it.map(|one| one.id.clone()).collect();
    if names.is_empty() {
        return Err(stages.iter().map(|one| one.id.clone()).collect());
    }
    names.insert(asked.to_owned());
    Ok(names)
}

/// Whether a line is of the requested worker and stage, by these names.
fn is_wanted(line: &LogLine, arguments: &LogsArguments, names: &BTreeSet<String>) -> bool {
    let of_worker = arguments
        .worker
        .as_ref()
        .is_none_or(|worker| line.worker.as_ref() == Some(worker) || line.role.as_ref() == Some(worker));
    let of_stage = arguments.stage.is_none() || line.stages.iter().any(|stage| names.contains(stage));
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
    fn an_operator_means_all_of_its_stages_and_itself() {
        let stages = [("left", "speech"), ("right", "speech"), ("pair", "pair")].map(|(id, operator)| {
            let stage = serde_json::json!({"id": id, "operator": operator, "worker": "hub"});
            serde_json::from_value::<Stage>(stage).unwrap()
        });
        let named = |asked: &str| names(&stages, asked).unwrap().into_iter().collect::<Vec<_>>();
        assert_eq!(named("speech"), ["left", "right", "speech"]);
        assert_eq!(named("left"), ["left"]);
        assert_eq!(named("pair"), ["pair"]);
        assert_eq!(names(&stages, "pears").unwrap_err(), ["left", "right", "pair"]);
    }

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
