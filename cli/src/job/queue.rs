//! The verbs that ask for jobs of the queue.
use crate::answer;
use crate::arguments::{JobChoice, JobLogsArguments, OutputForm, QueueArguments};
use crate::cluster::{ask, client, json};
use crate::exit::Exit;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;
use tidemill_app::figures::bytes;
use tidemill_app::listener::Listener;
use tidemill_cluster::api::{JobExplanation, JobState, JobView, LogLine};
use tidemill_cluster::client::{Client, segment};

/// Polling interval.
const LOOK: Duration = Duration::from_millis(500);

/// Lists the jobs.
pub(crate) fn list(arguments: &QueueArguments) -> anyhow::Result<Exit> {
    let mut jobs: Vec<JobView> = ask(client(&arguments.of)?.get("/v1/jobs"))?;
    jobs.retain(|job| !arguments.open || !job.state.is_over());
    if arguments.output == OutputForm::Json {
        json("jobs", &jobs)?;
        return Ok(Exit::Success);
    }
    let columns = [
        ("job", Side::Left),
        ("user", Side::Left),
        ("kind", Side::Left),
        ("state", Side::Left),
        ("gang", Side::Right),
        ("service used", Side::Right),
        ("since", Side::Left),
        ("machines", Side::Left),
        ("because", Side::Left),
    ];
    let mut table = Table::new(&columns);
    for job in &jobs {
        table.row([
            job.job.clone(),
            job.user.clone(),
            job.kind.to_string(),
            job.state.to_string(),
            job.gang.to_string(),
            service(job),
            job.since.clone(),
            machines(job).join(", "),
            job.because.clone().unwrap_or_default(),
        ]);
    }
    match jobs.is_empty() {
        true => writeln!(answer::out(), "no jobs: `tidemill job submit -- COMMAND` queues one")?,
        false => table.write(&mut answer::out())?,
    }
    Ok(Exit::Success)
}

fn service(job: &JobView) -> String {
    format!("{:.0} slot-s", job.service_seconds)
}

fn machines(job: &JobView) -> Vec<String> {
    let workers: BTreeSet<String> = job.tasks.iter().filter_map(|task| task.worker.clone()).collect();
    workers.into_iter().collect()
}

fn one(client: &Client, job: &str) -> anyhow::Result<JobView> {
    ask(client.get(&format!("/v1/jobs/{}", segment(job))))
}

fn show(job: &JobView, form: OutputForm) -> anyhow::Result<()> {
    if form == OutputForm::Json {
        return json("job", job);
    }
    let mut out = answer::out();
    let because = job.because.as_ref().map_or_else(String::new, |because| format!(": {because}"));
    writeln!(
        out,
        "{} ({}, by {}) is {} since {}{because}",
        job.job, job.kind, job.user, job.state, job.since
    )?;
    writeln!(
        out,
        "{} tasks, {} of service, {} preemptions, submitted {}",
        job.gang,
        service(job),
        job.preemptions,
        job.submitted
    )?;
    for task in &job.tasks {
        let place = match (&task.worker, task.is_done) {
            (Some(worker), true) => format!("is done, on {worker}"),
            (None, true) => "is done".to_owned(),
            (Some(worker), false) => format!("is on {worker}, start {}", task.incarnation),
            (None, false) => "is on no worker".to_owned(),
        };
        let checkpoint = task.checkpoint_bytes.map(|size| format!("; its checkpoint has {}", bytes(size)));
        let progress = task.progress.map(|part| format!(", {:.0} % done", 100.0 * part));
        writeln!(
            out,
            "  task {} {place}{}{}",
            task.rank,
            checkpoint.unwrap_or_default(),
            progress.unwrap_or_default()
        )?;
    }
    for result in &job.results {
        writeln!(out, "  task {} left {} ({})", result.rank, result.file.path, bytes(result.file.bytes))?;
    }
    Ok(())
}

/// Shows a job.
pub(crate) fn status(arguments: &JobChoice) -> anyhow::Result<Exit> {
    show(&one(&client(&arguments.of)?, &arguments.job)?, arguments.output)?;
    Ok(Exit::Success)
}

/// Cancels a job.
pub(crate) fn cancel(arguments: &JobChoice, terminal: &Terminal) -> anyhow::Result<Exit> {
    let job: JobView = ask(client(&arguments.of)?.delete(&format!("/v1/jobs/{}", segment(&arguments.job))))?;
    match (arguments.output, job.state) {
        (OutputForm::Json, _) => json("job", &job)?,
        (OutputForm::Table, JobState::Stopping) => {
            terminal.note(&format!("job {} is cancelled, its tasks are ending", job.job));
        }
        (OutputForm::Table, state) => terminal.note(&format!("job {} is {state}", job.job)),
    }
    Ok(Exit::Success)
}

/// Explains the state of a job.
pub(crate) fn explain(arguments: &JobChoice) -> anyhow::Result<Exit> {
    let path = format!("/v1/jobs/{}/explanation", segment(&arguments.job));
    let explanation: JobExplanation = ask(client(&arguments.of)?.get(&path))?;
    if arguments.output == OutputForm::Json {
        json("explanation", &explanation)?;
        return Ok(Exit::Success);
    }
    let mut out = answer::out();
    writeln!(out, "{}", explanation.now)?;
    writeln!(out, "decisions so far:")?;
    for reason in &explanation.history {
        writeln!(out, "  {}  {}", reason.time, reason.text)?;
    }
    Ok(Exit::Success)
}

/// Prints the output of a job.
pub(crate) fn logs(arguments: &JobLogsArguments) -> anyhow::Result<Exit> {
    let client = client(&arguments.of)?;
    if arguments.follow {
        follow(&client, &arguments.job, arguments.output)?;
    } else {
        print(&client, &arguments.job, 0, arguments.output)?;
    }
    Ok(Exit::Success)
}

/// Prints the output of a job until it ends; whether it is complete.
pub(super) fn follow(client: &Client, job: &str, form: OutputForm) -> anyhow::Result<Exit> {
    let (mut after, mut state) = (0, one(client, job)?.state);
    loop {
        // Lines of the end come before the state says so.
        let is_last = state.is_over();
        after = print(client, job, after, form)?;
        if is_last || !answer::is_read() {
            return Ok(if state == JobState::Complete { Exit::Success } else { Exit::No });
        }
        std::thread::sleep(LOOK);
        state = one(client, job)?.state;
    }
}

/// Prints lines after a number; the number of the last one.
fn print(client: &Client, job: &str, after: u64, form: OutputForm) -> anyhow::Result<u64> {
    let lines: Vec<LogLine> = ask(client.get(&format!("/v1/jobs/{}/logs?after={after}", segment(job))))?;
    let mut out = answer::out();
    for line in &lines {
        match form {
            OutputForm::Json => {
                serde_json::to_writer(&mut out, line)?;
                writeln!(out)?;
            }
            OutputForm::Table => writeln!(out, "{}", text(line))?,
        }
    }
    out.flush()?;
    Ok(lines.last().map_or(after, |line| line.number))
}

/// `2026-11-23 20:15:00 UTC task 0 on hub INFO …`.
fn text(line: &LogLine) -> String {
    let who = match (&line.role, &line.worker) {
        (Some(rank), Some(worker)) => format!("task {rank} on {worker}"),
        (Some(rank), None) => format!("task {rank}"),
        (None, _) => "controller".to_owned(),
    };
    let parts = [line.time.as_deref(), Some(who.as_str()), line.level.as_deref(), Some(line.line.as_str())];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}
