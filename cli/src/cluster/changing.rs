//! `tidemill change`: gives an active run another plan.
use super::connect::{client, failure};
use super::plans::replan;
use crate::answer;
use crate::arguments::{ChangeArguments, NextPlan, OutputForm};
use crate::exit::Exit;
use crate::plan::diff::{self, Change};
use crate::terminal::Terminal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_cluster::api::{ChangeOutcome, ChangeRequest, PlanChange, PlanView};
use tidemill_cluster::client::{Client, ClientError, segment};
use tidemill_spec::plan::{Plan, PlanFile};

/// Interval of looks at the change.
const LOOK: Duration = Duration::from_millis(100);

fn ask<T>(answer: Result<T, ClientError>) -> anyhow::Result<T> {
    answer.map_err(|error| failure(&error).into())
}

/// Changes the plan of a run: to one that is given, or to the best that the controller finds.
pub(crate) fn change(arguments: &ChangeArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let file = match arguments.next() {
        NextPlan::Given(file) => file,
        NextPlan::Planned(arguments) => return replan(&arguments, terminal),
    };
    let plan = PlanFile::load(file)?.plan;
    let client = client(&arguments.of)?;
    let path = format!("/v1/runs/{}/plan", segment(&arguments.run));
    let view: PlanView = ask(client.get(&path))?;
    let changes = diff::changes(&view.plan, &plan);
    let is_json = arguments.output == OutputForm::Json;
    // Routes have no line of their own.
    let is_same = changes.is_empty() && plan.classes == view.plan.classes;
    if !is_json {
        show(&view, &changes, is_same)?;
    }
    if is_same {
        answer_with(arguments, &view, &changes, None)?;
        return Ok(Exit::Success);
    }
    if !arguments.yes && !is_wanted(arguments, terminal)? {
        answer_with(arguments, &view, &changes, None)?;
        return Ok(Exit::No);
    }
    let request = ChangeRequest { plan, reason: arguments.reason.clone().unwrap_or_default() };
    let begun: PlanView = ask(client.post(&path, &request))?;
    let Some(version) = begun.next.or(begun.changes.last().map(|change| change.version)) else {
        return Err(Failure::new(Kind::Defect, "the controller has started no change").into());
    };
    if !is_json {
        terminal.note(&format!(
            "preparing plan {version} of {}; plan {} continues meanwhile",
            arguments.run, view.version
        ));
    }
    let (view, change) = wait(&client, &path, version)?;
    answer_with(arguments, &view, &changes, Some(&change))?;
    match &change.outcome {
        Some(ChangeOutcome::Failed { why }) => {
            let text = format!("{} did not change to plan {version}: {why}", arguments.run);
            terminal.error(&text, Some("the run continues under its present plan"));
            Ok(Exit::No)
        }
        _ => Ok(Exit::Success),
    }
}

fn show(view: &PlanView, changes: &[Change], is_same: bool) -> anyhow::Result<()> {
    let mut out = answer::out();
    if is_same {
        writeln!(out, "the plans are equivalent: nothing to change")?;
        return Ok(out.flush()?);
    }
    diff::write(&mut out, changes)?;
    for (sink, worker) in &view.bound {
        writeln!(out, "  {sink} stays on {worker}, where its files are")?;
    }
    Ok(out.flush()?)
}

/// Asks who is at the terminal.
fn is_wanted(arguments: &ChangeArguments, terminal: &Terminal) -> anyhow::Result<bool> {
    if arguments.output == OutputForm::Json || !std::io::stdin().is_terminal() {
        terminal.note("nothing changed: add `--yes` to change the plan");
        return Ok(false);
    }
    terminal.note(&format!("change the plan of {} now? [y/N]", arguments.run));
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

/// Waits until it is known what has come of a change.
fn wait(client: &Client, path: &str, version: u64) -> anyhow::Result<(PlanView, PlanChange)> {
    loop {
        let view: PlanView = ask(client.get(path))?;
        let change = view.changes.iter().rev().find(|change| change.version == version);
        match change {
            Some(change) if change.outcome.is_some() => {
                let change = change.clone();
                return Ok((view, change));
            }
            Some(_) => std::thread::sleep(LOOK),
            None => {
                let text = format!("the controller no longer knows plan {version}");
                return Err(Failure::new(Kind::Unavailable, text).into());
            }
        }
    }
}

/// Workers of the stages of a plan, by stage.
fn workers(plan: &Plan) -> BTreeMap<&str, &str> {
    plan.stages.iter().map(|stage| (stage.id.as_str(), stage.worker.as_str())).collect()
}

fn answer_with(
    arguments: &ChangeArguments,
    view: &PlanView,
    changes: &[Change],
    change: Option<&PlanChange>,
) -> anyhow::Result<()> {
    let outcome = change.and_then(|change| change.outcome.as_ref());
    let is_ok = !matches!(outcome, Some(ChangeOutcome::Failed { .. }));
    let mut out = answer::out();
    if arguments.output == OutputForm::Json {
        let differences: Vec<Value> = diff::document(changes);
        let document = json!({
            "version": 1,
            "ok": is_ok,
            "plan_version": view.version,
            "differences": differences,
            "bound": view.bound,
            "workers": workers(&view.plan),
            "change": change,
        });
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
    } else if let Some(ChangeOutcome::Changed { pause_ms, gap_ms, prepared_ms, .. }) = outcome {
        let told = |time: &Option<f64>| {
            time.map_or_else(|| "an unknown time".to_owned(), |ms| format!("{ms:.0} ms"))
        };
        let at_most = pause_ms.map_or("", |_| " at most");
        // A source that waits for its next record may continue with it at once.
        let than = if gap_ms.is_some_and(|gap| gap < 0.0) { "earlier" } else { "later" };
        writeln!(
            out,
            "{} has plan {}: sinks paused for {}{at_most}, sources are {} {than}, after {} of preparation",
            arguments.run,
            view.version,
            told(pause_ms),
            told(&gap_ms.map(f64::abs)),
            told(prepared_ms)
        )?;
    }
    Ok(out.flush()?)
}
