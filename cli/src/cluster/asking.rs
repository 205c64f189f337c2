//! The verbs that ask a controller.
use super::connect::{client, failure};
use super::plans;
use crate::answer;
use crate::arguments::{
    ControllerChoice, DrainArguments, EventsArguments, ListArguments, OutputForm, StatusArguments,
    TokenArguments, UndrainArguments, WorkersArguments,
};
use crate::exit::Exit;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use tidemill_app::figures::{bytes, grouped};
use tidemill_app::listener::Listener;
use tidemill_cluster::api::{
    ControllerView, Event, RunView, TokenAnswer, TokenRequest, WorkerView, covered_in_words,
};
use tidemill_cluster::client::{Client, ClientError, segment};

/// Seconds that a request for events waits. It bounds the time until a closed output is noticed.
const WAIT: u64 = 2;

pub(crate) fn ask<T>(answer: Result<T, ClientError>) -> anyhow::Result<T> {
    answer.map_err(|error| failure(&error).into())
}

pub(crate) fn json(key: &str, value: &impl Serialize) -> anyhow::Result<()> {
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
    if arguments.for_join_file {
        return Ok(writeln!(answer::out(), "{}\n{}", answer.address, answer.token).map(|()| Exit::Success)?);
    }
    writeln!(answer::out(), "{}", answer.token)?;
    terminal
        .note(&format!("TIDEMILL_JOIN_TOKEN=... tidemill worker --join {} --state worker", answer.address));
    Ok(Exit::Success)
}

/// Lists the runs.
pub(crate) fn list(arguments: &ListArguments) -> anyhow::Result<Exit> {
    let runs: Vec<RunView> = ask(client(&arguments.asked.of)?.get("/v1/runs"))?;
    if arguments.asked.output == OutputForm::Json {
        json("runs", &runs)?;
        return Ok(Exit::Success);
    }
    let columns = [
        ("run", Side::Left),
        ("workflow", Side::Left),
        ("state", Side::Left),
        ("workers", Side::Left),
        ("from sources", Side::Right),
        ("at sinks", Side::Right),
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
        true => writeln!(answer::out(), "no runs yet: `tidemill submit WORKFLOW` starts one")?,
        false => table.write(&mut answer::out())?,
    }
    Ok(Exit::Success)
}

pub(super) fn show(run: &RunView, form: OutputForm) -> anyhow::Result<()> {
    show_as(run, &format!("is {}", run.state), form)
}

/// Shows a run with other words for its state.
pub(super) fn show_as(run: &RunView, state: &str, form: OutputForm) -> anyhow::Result<()> {
    if form == OutputForm::Json {
        return json("run", run);
    }
    let mut out = answer::out();
    let reason = run.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    writeln!(out, "{} ({}) {state}{reason}", run.name, run.workflow)?;
    for what in &run.waits_for {
        writeln!(out, "  waits for {what}")?;
    }
    for loss in run.losses.iter().filter(|_| !run.state.is_over()) {
        writeln!(out, "  {}", loss.in_words())?;
    }
    if let Some(covered) = run.losses_covered.filter(|_| !run.state.is_over())
        && let Some(words) = covered_in_words(&run.losses, covered)
    {
        writeln!(out, "  {words}")?;
    }
    for fetch in &run.fetching {
        let from = fetch.from.as_deref().unwrap_or("the controller");
        let (worker, path) = (&fetch.worker, &fetch.path);
        writeln!(
            out,
            "  {worker} fetches {path} from {from}: {} of {}",
            bytes(fetch.bytes),
            bytes(fetch.size)
        )?;
    }
    let rate = if run.seconds > 0.0 { run.arrived as f64 / run.seconds } else { 0.0 };
    writeln!(
        out,
        "{} records from sources, {} at sinks in {:.1} s ({rate:.1}/s), {} dead letters, {} restarts of slots",
        grouped(run.emitted),
        grouped(run.arrived),
        run.seconds,
        grouped(run.dead_letters),
        grouped(run.restarts)
    )?;
    for level in &run.levels {
        let measured = level.measured.as_deref().unwrap_or("nothing measured yet");
        let word = match level.is_kept {
            Some(true) => "kept",
            Some(false) => "MISSED",
            None => "not known",
        };
        let gives_way = level.gives_way.as_ref().map(|less| format!("; relaxed: the plan keeps {less}"));
        let gives_way = gives_way.unwrap_or_default();
        writeln!(out, "  {} ({}) {word}: {measured}{gives_way}", level.level, level.wanted)?;
    }
    if let Some(reason) = run.proposal.as_ref().filter(|_| !run.state.is_over()) {
        writeln!(
            out,
            "  the controller proposes another plan (`tidemill change {}` shows it): {reason}",
            run.name
        )?;
    }
    for cut in run.cuts.iter().filter(|_| !run.state.is_over()) {
        writeln!(out, "  {}", cut.in_words())?;
    }
    for stand_in in run.stand_ins.iter().filter(|one| one.answers || one.answered_here > 0) {
        writeln!(out, "  {}", stand_in.in_words())?;
    }
    for (role, worker) in &run.placement {
        writeln!(out, "  {role} is on {}", worker.as_deref().unwrap_or("no worker yet"))?;
    }
    for promise in &run.promises {
        let because = if promise.because.is_empty() {
            String::new()
        } else {
            format!(": {}", promise.because.join("; "))
        };
        writeln!(out, "  {} gets rows {}{because}", promise.sink, promise.guarantee)?;
    }
    for output in &run.outputs {
        let worker = output.worker.as_deref().unwrap_or("no worker yet");
        writeln!(out, "  {} writes {} on {worker}", output.sink, output.path)?;
    }
    Ok(())
}

/// Prints the status of a run.
pub(crate) fn status(arguments: &StatusArguments) -> anyhow::Result<Exit> {
    let client = client(&arguments.of)?;
    let Some(run) = &arguments.run else { return status_of_cluster(&client, arguments.output) };
    let run: RunView = ask(client.get(&format!("/v1/runs/{}", segment(run))))?;
    show(&run, arguments.output)?;
    Ok(Exit::Success)
}

/// Shows who leads and stands by, and how much there is.
fn status_of_cluster(client: &Client, output: OutputForm) -> anyhow::Result<Exit> {
    let controller: ControllerView = ask(client.get("/v1/controller"))?;
    let workers: Vec<WorkerView> = ask(client.get("/v1/workers"))?;
    let runs: Vec<RunView> = ask(client.get("/v1/runs"))?;
    let alive = workers.iter().filter(|worker| worker.is_alive).count();
    let open = runs.iter().filter(|run| !run.state.is_over()).count();
    if output == OutputForm::Json {
        let counts = serde_json::json!({
            "controller": controller, "workers": workers.len(), "workers_alive": alive, "runs": runs.len(), "runs_open": open,
        });
        json("cluster", &counts)?;
        return Ok(Exit::Success);
    }
    let mut out = answer::out();
    match &controller.shared {
        None => writeln!(out, "controller {}, on its own", controller.address)?,
        Some(shared) => {
            writeln!(
                out,
                "controller {} leads, in term {}: {}",
                controller.address, shared.term, shared.store
            )?;
            for other in &shared.stand_by {
                writeln!(out, "  {} stands by", other.place)?;
            }
            if shared.stand_by.is_empty() {
                writeln!(out, "  no standby controller")?;
            }
        }
    }
    writeln!(out, "{alive} of {} workers are alive, {open} of {} runs are open", workers.len(), runs.len())?;
    Ok(Exit::Success)
}

/// `2`, `0.5`: no more digits than say something.
fn number(count: f64) -> String {
    ((count * 100.0).round() / 100.0).to_string()
}

/// `h100 x 2, npu` of a worker that is there.
fn accelerators(worker: &WorkerView) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in worker.capacity.accelerators.iter().filter(|_| worker.is_alive) {
        *counts.entry(name).or_default() += 1;
    }
    let text = |(name, count): (&str, usize)| match count {
        1 => name.to_owned(),
        _ => format!("{name} x {count}"),
    };
    counts.into_iter().map(text).collect::<Vec<_>>().join(", ")
}

/// On which backends models can run on a worker that is there.
fn backends(worker: &WorkerView) -> String {
    worker.backends.iter().flatten().filter(|_| worker.is_alive).cloned().collect::<Vec<_>>().join(", ")
}

/// Lists the workers.
pub(crate) fn workers(arguments: &WorkersArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let client = client(&arguments.of)?;
    if arguments.infrastructure {
        return plans::infrastructure(&client, terminal);
    }
    if arguments.links {
        return plans::links(&client, arguments.output);
    }
    let workers: Vec<WorkerView> = ask(client.get("/v1/workers"))?;
    if arguments.output == OutputForm::Json {
        json("workers", &workers)?;
        return Ok(Exit::Success);
    }
    let has_labels = workers.iter().any(|worker| !worker.labels.is_empty());
    let mut columns = vec![
        ("worker", Side::Left),
        ("state", Side::Left),
        ("tier", Side::Left),
        ("location", Side::Left),
        ("type", Side::Left),
        ("price", Side::Right),
        ("processors", Side::Right),
        ("memory", Side::Right),
        ("accelerators", Side::Left),
        ("backends", Side::Left),
        ("limits", Side::Left),
        ("address", Side::Left),
        ("runs", Side::Left),
    ];
    if has_labels {
        columns.insert(4, ("labels", Side::Left));
    }
    let mut table = Table::new(&columns);
    for worker in &workers {
        let state = match (worker.is_alive, worker.is_drained) {
            (false, _) => "lost",
            (true, true) => "drained",
            (true, false) => "alive",
        };
        let hosts = worker.hosts.iter().map(|(run, role)| format!("{run}/{role}")).collect::<Vec<_>>();
        let mut row = vec![
            worker.name.clone(),
            state.to_owned(),
            worker.tier.clone().unwrap_or_default(),
            worker.location.clone().unwrap_or_default(),
            worker.worker_type.clone().unwrap_or_default(),
            worker.price.map_or_else(String::new, |price| format!("{price} $/h")),
            if worker.is_alive { number(worker.capacity.processors) } else { String::new() },
            if worker.is_alive { bytes(worker.capacity.memory_bytes) } else { String::new() },
            accelerators(worker),
            backends(worker),
            enforces(worker),
            worker.address.clone().unwrap_or_default(),
            hosts.join(", "),
        ];
        if has_labels {
            let labels = worker.labels.iter().map(|(name, value)| format!("{name}={value}"));
            row.insert(4, labels.collect::<Vec<_>>().join(", "));
        }
        table.row(row);
    }
    match workers.is_empty() {
        true => writeln!(
            answer::out(),
            "no workers yet: `tidemill token` creates a token with which one can join"
        )?,
        false => table.write(&mut answer::out())?,
    }
    Ok(Exit::Success)
}

/// Whether a worker holds runs to what they may take.
fn enforces(worker: &WorkerView) -> String {
    let health = worker.health.as_ref().filter(|_| worker.is_alive);
    let word = health.map(|health| if health.told.no_control_groups.is_none() { "enforced" } else { "none" });
    word.unwrap_or_default().to_owned()
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
                OutputForm::Table => writeln!(out, "{:>5}  {}  {}", event.number, event.time, event.text)?,
            }
        }
        out.flush()?;
        if !arguments.follow || !answer::is_read() {
            return Ok(Exit::Success);
        }
        wait = WAIT;
    }
}

/// Moves the work of a worker to others.
pub(crate) fn drain(arguments: &DrainArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let does = if arguments.end { "resume" } else { "drain" };
    set_drained(&arguments.of, &arguments.worker, does, arguments.output, terminal)
}

/// Lets a drained worker take work again.
pub(crate) fn undrain(arguments: &UndrainArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    set_drained(&arguments.of, &arguments.worker, "resume", arguments.output, terminal)
}

fn set_drained(
    of: &ControllerChoice,
    worker: &str,
    verb: &str,
    output: OutputForm,
    terminal: &Terminal,
) -> anyhow::Result<Exit> {
    let worker: WorkerView = ask(client(of)?.post(&format!("/v1/workers/{}/{verb}", segment(worker)), &()))?;
    if output == OutputForm::Json {
        json("worker", &worker)?;
    } else {
        let does = if worker.is_drained { "accepts no new work" } else { "accepts work again" };
        terminal.note(&format!("worker {} {does}", worker.name));
    }
    Ok(Exit::Success)
}
