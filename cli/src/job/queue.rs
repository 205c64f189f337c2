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
/// Jobs that have ended in a list without `--all`.
const MOST_ENDED: usize = 10;

/// Lists the jobs.
pub(crate) fn list(arguments: &QueueArguments) -> anyhow::Result<Exit> {
    let mut jobs: Vec<JobView> = ask(client(&arguments.asked.of)?.get("/v1/jobs"))?;
    let ended = jobs.iter().filter(|job| job.state.is_over()).count();
    let most = match (arguments.open, arguments.all) {
        (true, _) => 0,
        (_, true) => usize::MAX,
        _ => MOST_ENDED,
    };
    keep_last(&mut jobs, most);
    if arguments.asked.output == OutputForm::Json {
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
    let mut out = answer::out();
    match (jobs.is_empty(), ended) {
        (true, 0) => writeln!(out, "no jobs: `tidemill job submit -- COMMAND` queues one")?,
        (true, _) => writeln!(out, "no job waits or runs")?,
        (false, _) => table.write(&mut out)?,
    }
    if !arguments.open && ended > most {
        writeln!(out, "{} more have ended: `tidemill job queue --all` lists them", ended - most)?;
    }
    Ok(Exit::Success)
}

/// Keeps the jobs that are open, and the last ones that ended.
fn keep_last(jobs: &mut Vec<JobView>, most: usize) {
    let mut ended: Vec<(String, String)> = jobs
        .iter()
        .filter(|job| job.state.is_over())
        .map(|job| (job.since.clone(), job.job.clone()))
        .collect();
    ended.sort();
    let old: BTreeSet<String> = ended.into_iter().rev().skip(most).map(|(_, job)| job).collect();
    jobs.retain(|job| !old.contains(&job.job));
}

/// `1 task`, `2 tasks`.
fn counted(count: u64, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
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
        "{}, {} of service, {}, submitted {}",
        counted(u64::from(job.gang), "task"),
        service(job),
        counted(u64::from(job.preemptions), "preemption"),
        job.submitted
    )?;
    for task in &job.tasks {
        let place = match (&task.worker, task.is_done) {
            (Some(worker), true) => format!("is done, on {worker}"),
            (None, true) => "is done".to_owned(),
            (worker, false) if job.state.is_over() => {
                let place = worker.as_ref().map(|worker| format!(", on {worker}"));
                format!("has ended{}", place.unwrap_or_default())
            }
            _ if task.is_lost => "is lost; the others continue without it".to_owned(),
            (Some(worker), false) => format!("is on {worker}, start {}", task.incarnation),
            (None, false) => "is on no worker".to_owned(),
        };
        // A task that is done has done all, whatever its last checkpoint says.
        let is_shown = !task.is_done;
        let checkpoint = task
            .checkpoint_bytes
            .filter(|_| is_shown)
            .map(|size| format!("; its checkpoint has {}", bytes(size)));
        let progress = task.progress.filter(|_| is_shown).map(|part| format!(", {:.0} % done", 100.0 * part));
        writeln!(
            out,
            "  task {} {place}{}{}",
            task.rank,
            checkpoint.unwrap_or_default(),
            progress.unwrap_or_default()
        )?;
        if let Some(words) = task.words.as_ref().filter(|_| is_shown) {
            writeln!(out, "    {words}")?;
        }
    }
    for result in &job.results {
        writeln!(out, "  task {} left {} ({})", result.rank, result.file.path, bytes(result.file.bytes))?;
    }
    Ok(())
}

/// Shows a job.
pub(crate) fn status(arguments: &JobChoice) -> anyhow::Result<Exit> {
    show(&one(&client(&arguments.asked.of)?, &arguments.job)?, arguments.asked.output)?;
    Ok(Exit::Success)
}

/// Cancels a job.
pub(crate) fn cancel(arguments: &JobChoice, terminal: &Terminal) -> anyhow::Result<Exit> {
    let job: JobView =
        ask(client(&arguments.asked.of)?.delete(&format!("/v1/jobs/{}", segment(&arguments.job))))?;
    match (arguments.asked.output, job.state) {
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
    let explanation: JobExplanation = ask(client(&arguments.asked.of)?.get(&path))?;
    if arguments.asked.output == OutputForm::Json {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u32, state: JobState, since: &str) -> JobView {
        serde_json::from_value(serde_json::json!({
            "job": format!("a-{number}"), "user": "ann", "kind": "command", "state": state, "because": null,
            "since": since, "gang": 1, "service_seconds": 0.0, "preemptions": 0, "submitted": since,
            "tasks": [], "results": [],
        }))
        .unwrap()
    }

    #[test]
    fn open_jobs_and_the_last_that_ended_are_listed() {
        let all = [
            job(1, JobState::Complete, "2026-11-23 20:15:09 UTC"),
            job(2, JobState::Failed, "2026-11-23 20:15:01 UTC"),
            job(3, JobState::Running, "2026-11-23 20:15:00 UTC"),
            job(4, JobState::Cancelled, "2026-11-23 20:15:05 UTC"),
        ];
        let kept = |most| {
            let mut jobs = all.to_vec();
            keep_last(&mut jobs, most);
            jobs.into_iter().map(|job| job.job).collect::<Vec<_>>()
        };
        assert_eq!(kept(0), ["a-3"]);
        assert_eq!(kept(2), ["a-1", "a-3", "a-4"]);
        assert_eq!(kept(usize::MAX).len(), 4);
        assert_eq!((counted(1, "task"), counted(0, "preemption")), ("1 task".into(), "0 preemptions".into()));
    }
}
