//! The verbs that ask a controller.
use super::connect::{client, failure};
use crate::answer;
use crate::arguments::{
    DrainArguments, EventsArguments, ListArguments, LogsArguments, OutputForm, RunChoice, SubmitArguments,
    TokenArguments,
};
use crate::exit::Exit;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use serde::Serialize;
use std::io::Write;
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::{bytes, grouped};
use tidemill_app::listener::Listener;
use tidemill_app::preparation::load;
use tidemill_cluster::api::{
    Event, LogLine, RunState, RunView, Submission, TokenAnswer, TokenRequest, WorkerView,
};
use tidemill_cluster::bundle::{self, Gathered};
use tidemill_cluster::client::{Client, ClientError};
use tidemill_spec::plan::PlanFile;

/// How often lines of a log are looked for.
const LOOK: Duration = Duration::from_millis(500);
/// Seconds that a question for events waits.
const WAIT: u64 = 20;

fn ask<T>(answer: Result<T, ClientError>) -> anyhow::Result<T> {
    answer.map_err(|error| failure(&error).into())
}

fn json(key: &str, value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = answer::out();
    serde_json::to_writer_pretty(&mut out, &serde_json::json!({"version": 1, "ok": true, key: value}))?;
    Ok(writeln!(out)?)
}

/// Makes a join token.
pub(crate) fn token(arguments: &TokenArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let request = TokenRequest {
        uses: Some(arguments.uses),
        seconds: Some(arguments.expires.as_secs()),
        name: arguments.name.clone(),
        replaces: arguments.replaces,
    };
    let answer: TokenAnswer = ask(client(&arguments.of)?.post("/v1/join-tokens", &request))?;
    if arguments.output == OutputForm::Json {
        json("token", &answer)?;
        return Ok(Exit::Success);
    }
    writeln!(answer::out(), "{}", answer.token)?;
    terminal
        .note(&format!("TIDEMILL_JOIN_TOKEN=... tidemill worker --join {} --state worker", answer.address));
    Ok(Exit::Success)
}

/// Sends a workflow and begins a run.
pub(crate) fn submit(arguments: &SubmitArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let workflow = load(&arguments.workflow, terminal)?;
    let client = client(&arguments.of)?;
    let plan = arguments.plan.as_ref().map(PlanFile::load).transpose()?.map(|file| file.plan);
    let gathered = bundle::gather(&arguments.workflow)
        .map_err(|error| Failure::new(Kind::Configuration, error.to_string()))?;
    send(&client, &gathered, terminal)?;
    let name = arguments.name.clone().unwrap_or_else(|| run_name(&workflow.name.value));
    let submission =
        Submission { name: name.clone(), bundle: gathered.bundle, plan, records: arguments.records };
    let run: RunView = ask(client.post("/v1/runs", &submission))?;
    if arguments.follow {
        return follow(&client, &name, arguments.output, terminal);
    }
    show(&run, arguments.output)?;
    Ok(Exit::Success)
}

/// A name for a run of a workflow.
fn run_name(workflow: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c.to_ascii_lowercase() } else { '-' };
    workflow.chars().map(plain).take(63).collect()
}

fn send(client: &Client, gathered: &Gathered, terminal: &Terminal) -> anyhow::Result<()> {
    let digests: Vec<&String> = gathered.files.keys().collect();
    let missing: Vec<String> = ask(client.post("/v1/blobs/missing", &digests))?;
    let mut sent = 0;
    for digest in &missing {
        let Some(path) = gathered.files.get(digest) else { continue };
        let content = std::fs::read(path)
            .map_err(|error| Failure::new(Kind::Configuration, format!("{}: {error}", path.display())))?;
        sent += content.len() as u64;
        ask(client.put(&format!("/v1/blobs/{digest}"), &content))?;
    }
    if !missing.is_empty() {
        terminal.note(&format!("{} of {} files sent, {}", missing.len(), gathered.files.len(), bytes(sent)));
    }
    Ok(())
}

/// Tells what happens until the run is over.
fn follow(client: &Client, name: &str, form: OutputForm, terminal: &Terminal) -> anyhow::Result<Exit> {
    let (mut after, mut is_first) = (0, true);
    loop {
        let wait = if is_first { 0 } else { 2 };
        let events: Vec<Event> = ask(client.get(&format!("/v1/events?after={after}&wait={wait}")))?;
        is_first = false;
        for event in events {
            after = after.max(event.number);
            if event.run.as_deref() == Some(name) {
                terminal.note(&event.text);
            }
        }
        let run: RunView = ask(client.get(&format!("/v1/runs/{name}")))?;
        if run.state.is_over() {
            show(&run, form)?;
            return Ok(match run.state {
                RunState::Failed | RunState::Cancelled => Exit::No,
                _ => Exit::Success,
            });
        }
    }
}

/// Lists the runs.
pub(crate) fn list(arguments: &ListArguments) -> anyhow::Result<Exit> {
    let runs: Vec<RunView> = ask(client(&arguments.of)?.get("/v1/runs"))?;
    if arguments.output == OutputForm::Json {
        json("runs", &runs)?;
        return Ok(Exit::Success);
    }
    let columns = [
        ("run", Side::Left),
        ("workflow", Side::Left),
        ("state", Side::Left),
        ("workers", Side::Left),
        ("emitted", Side::Right),
        ("arrived", Side::Right),
        ("dead letters", Side::Right),
        ("submitted", Side::Left),
    ];
    let mut table = Table::new(&columns);
    for run in &runs {
        let workers = run.placement.values().flatten().cloned().collect::<std::collections::BTreeSet<_>>();
        table.row([
            run.name.clone(),
            run.workflow.clone(),
            run.state.to_string(),
            workers.into_iter().collect::<Vec<_>>().join(", "),
            grouped(run.emitted),
            grouped(run.arrived),
            grouped(run.dead_letters),
            run.submitted.clone(),
        ]);
    }
    match runs.is_empty() {
        true => writeln!(answer::out(), "no runs yet: `tidemill submit WORKFLOW` begins one")?,
        false => table.write(&mut answer::out())?,
    }
    Ok(Exit::Success)
}

fn show(run: &RunView, form: OutputForm) -> anyhow::Result<()> {
    if form == OutputForm::Json {
        return json("run", run);
    }
    let mut out = answer::out();
    let reason = run.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    writeln!(out, "{} ({}) is {}{reason}", run.name, run.workflow, run.state)?;
    let rate = if run.seconds > 0.0 { run.arrived as f64 / run.seconds } else { 0.0 };
    writeln!(
        out,
        "{} records emitted, {} arrived in {:.1} s ({rate:.1}/s), {} dead letters, {} restarts of slots",
        grouped(run.emitted),
        grouped(run.arrived),
        run.seconds,
        grouped(run.dead_letters),
        grouped(run.restarts)
    )?;
    for (role, worker) in &run.placement {
        writeln!(out, "  {role} is on {}", worker.as_deref().unwrap_or("no worker yet"))?;
    }
    for output in &run.outputs {
        let worker = output.worker.as_deref().unwrap_or("no worker yet");
        writeln!(out, "  {} writes {} on {worker}", output.sink, output.path)?;
    }
    Ok(())
}

/// Tells how a run is.
pub(crate) fn status(arguments: &RunChoice) -> anyhow::Result<Exit> {
    let run: RunView = ask(client(&arguments.of)?.get(&format!("/v1/runs/{}", arguments.run)))?;
    show(&run, arguments.output)?;
    Ok(Exit::Success)
}

/// Ends a run.
pub(crate) fn cancel(arguments: &RunChoice) -> anyhow::Result<Exit> {
    let run: RunView = ask(client(&arguments.of)?.delete(&format!("/v1/runs/{}", arguments.run)))?;
    show(&run, arguments.output)?;
    Ok(Exit::Success)
}

/// Lists the workers.
pub(crate) fn workers(arguments: &ListArguments) -> anyhow::Result<Exit> {
    let workers: Vec<WorkerView> = ask(client(&arguments.of)?.get("/v1/workers"))?;
    if arguments.output == OutputForm::Json {
        json("workers", &workers)?;
        return Ok(Exit::Success);
    }
    let columns = [
        ("worker", Side::Left),
        ("state", Side::Left),
        ("tier", Side::Left),
        ("location", Side::Left),
        ("type", Side::Left),
        ("processors", Side::Right),
        ("memory", Side::Right),
        ("address", Side::Left),
        ("runs", Side::Left),
    ];
    let mut table = Table::new(&columns);
    for worker in &workers {
        let state = match (worker.is_alive, worker.is_drained) {
            (false, _) => "lost",
            (true, true) => "drained",
            (true, false) => "alive",
        };
        let hosts = worker.hosts.iter().map(|(run, role)| format!("{run}/{role}")).collect::<Vec<_>>();
        table.row([
            worker.name.clone(),
            state.to_owned(),
            worker.tier.clone().unwrap_or_default(),
            worker.location.clone().unwrap_or_default(),
            worker.worker_type.clone().unwrap_or_default(),
            if worker.is_alive { format!("{:.0}", worker.capacity.processors) } else { String::new() },
            if worker.is_alive { bytes(worker.capacity.memory_bytes) } else { String::new() },
            worker.address.clone().unwrap_or_default(),
            hosts.join(", "),
        ]);
    }
    match workers.is_empty() {
        true => writeln!(answer::out(), "no workers yet: `tidemill token` makes a token for one to join")?,
        false => table.write(&mut answer::out())?,
    }
    Ok(Exit::Success)
}

/// Prints what a run's processes write to their logs.
pub(crate) fn logs(arguments: &LogsArguments) -> anyhow::Result<Exit> {
    let client = client(&arguments.of)?;
    let mut after = 0;
    loop {
        let lines: Vec<LogLine> = ask(client.get(&format!("/v1/runs/{}/logs?after={after}", arguments.run)))?;
        let mut out = answer::out();
        for line in lines {
            after = after.max(line.number);
            let role = line.role.as_deref().unwrap_or("coordinator");
            let worker = line.worker.as_ref().map_or_else(String::new, |worker| format!(" on {worker}"));
            writeln!(out, "{role}{worker}: {}", line.line)?;
        }
        out.flush()?;
        if !arguments.follow {
            return Ok(Exit::Success);
        }
        std::thread::sleep(LOOK);
    }
}

/// Prints what happened in the cluster.
pub(crate) fn events(arguments: &EventsArguments) -> anyhow::Result<Exit> {
    let client = client(&arguments.of)?;
    let (mut after, mut wait) = (0, 0);
    loop {
        let events: Vec<Event> = ask(client.get(&format!("/v1/events?after={after}&wait={wait}")))?;
        let mut out = answer::out();
        for event in events {
            after = after.max(event.number);
            match arguments.output {
                OutputForm::Json => {
                    serde_json::to_writer(&mut out, &event)?;
                    writeln!(out)?;
                }
                OutputForm::Table => writeln!(out, "{}  {}", event.time, event.text)?,
            }
        }
        out.flush()?;
        if !arguments.follow {
            return Ok(Exit::Success);
        }
        wait = WAIT;
    }
}

/// Takes the work from a worker, or gives it work again.
pub(crate) fn drain(arguments: &DrainArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let what = if arguments.end { "resume" } else { "drain" };
    let path = format!("/v1/workers/{}/{what}", arguments.worker);
    let worker: WorkerView = ask(client(&arguments.of)?.post(&path, &()))?;
    if arguments.output == OutputForm::Json {
        json("worker", &worker)?;
    } else {
        let does = if worker.is_drained { "takes no work any more" } else { "takes work again" };
        terminal.note(&format!("worker {} {does}", worker.name));
    }
    Ok(Exit::Success)
}
