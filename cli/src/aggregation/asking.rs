//! Questions to the master.
use super::socket_of;
use crate::answer;
use crate::arguments::{AggChoice, ListAggArguments, MigrateArguments, OutputForm, RemoveAggArguments};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use serde_json::json;
use std::io::Write;
use std::time::{Duration, Instant};
use tidemill_aggregation_service::master::report::{Job, Report};
use tidemill_aggregation_service::master::{Question, ask};
use tidemill_aggregation_service::{Code, Status};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::{bytes, grouped, milliseconds};
use tidemill_app::listener::Listener;

/// Interval of looks at a move.
const LOOK: Duration = Duration::from_millis(100);

/// The failure of a question.
pub(super) fn refused(status: &Status) -> Failure {
    let message = status.message.clone();
    match status.code {
        Code::NotFound => Failure::new(Kind::Missing, message),
        Code::Unavailable => Failure::new(Kind::Unavailable, message)
            .with_help("start aggregators by `tidemill agg serve`, or name the socket by `--socket`"),
        _ => Failure::new(Kind::Unavailable, message),
    }
}

fn question(choice: &AggChoice, question: Question) -> Result<Report, Failure> {
    let socket = socket_of(choice).map_err(|error| Failure::new(Kind::Unavailable, error.to_string()))?;
    ask(&socket, question).map_err(|status| refused(&status))
}

fn write_json(value: &impl serde::Serialize) -> std::io::Result<()> {
    let mut out = answer::out();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)
}

fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

/// Lists the jobs.
pub(super) fn jobs(arguments: &ListAggArguments) -> anyhow::Result<Exit> {
    let report = question(&arguments.asked.choice, Question::Report { job: arguments.job.clone() })?;
    if arguments.asked.output == OutputForm::Json {
        write_json(&json!({"version": 1, "jobs": report.jobs}))?;
        return Ok(Exit::Success);
    }
    if report.jobs.is_empty() {
        writeln!(answer::out(), "no jobs")?;
        return Ok(Exit::Success);
    }
    let mut table = Table::new(&[
        ("job", Side::Left),
        ("workers", Side::Right),
        ("tensors", Side::Right),
        ("memory", Side::Right),
        ("steps", Side::Right),
        ("iteration", Side::Right),
        ("alone", Side::Right),
        ("expected loss", Side::Right),
        ("stage", Side::Left),
        ("aggregators", Side::Left),
    ]);
    for job in &report.jobs {
        let mut at: Vec<&str> = job.tensors.iter().map(|tensor| tensor.aggregator.as_str()).collect();
        at.sort_unstable();
        at.dedup();
        let stage = match &job.reason {
            Some(reason) => format!("{}: {reason}", job.stage),
            None => job.stage.clone(),
        };
        table.row([
            job.name.clone(),
            job.workers.to_string(),
            job.tensors.len().to_string(),
            bytes(job.tensors.iter().map(|tensor| tensor.bytes).sum()),
            grouped(job.steps),
            job.iteration_ms.map(milliseconds).unwrap_or_default(),
            job.alone_ms.map(milliseconds).unwrap_or_default(),
            job.expected_loss.map(percent).unwrap_or_default(),
            stage,
            at.join(" "),
        ]);
    }
    table.write(&mut answer::out())?;
    Ok(Exit::Success)
}

/// Lists aggregators and tensors.
pub(super) fn map(arguments: &ListAggArguments) -> anyhow::Result<Exit> {
    let report = question(&arguments.asked.choice, Question::Report { job: arguments.job.clone() })?;
    if arguments.asked.output == OutputForm::Json {
        write_json(&report)?;
        return Ok(Exit::Success);
    }
    let mut out = answer::out();
    let mut table = Table::new(&[
        ("aggregator", Side::Left),
        ("tensors", Side::Right),
        ("memory", Side::Right),
        ("cycle", Side::Right),
        ("used", Side::Right),
        ("state", Side::Left),
    ]);
    for aggregator in &report.aggregators {
        table.row([
            aggregator.name.clone(),
            aggregator.tensors.to_string(),
            bytes(aggregator.bytes),
            aggregator.cycle_ms.map(milliseconds).unwrap_or_default(),
            aggregator.utilisation.map(percent).unwrap_or_default(),
            if aggregator.answers { "serves" } else { "does not answer" }.to_owned(),
        ]);
    }
    if report.aggregators.is_empty() {
        writeln!(out, "no aggregators: they start with the first job")?;
        return Ok(Exit::Success);
    }
    table.write(&mut out)?;
    for job in &report.jobs {
        writeln!(out)?;
        tensors(job, &mut out)?;
    }
    Ok(Exit::Success)
}

fn tensors(job: &Job, out: &mut dyn Write) -> std::io::Result<()> {
    let mut table = Table::new(&[
        ("job", Side::Left),
        ("tensor", Side::Right),
        ("name", Side::Left),
        ("numbers", Side::Right),
        ("aggregator", Side::Left),
        ("moves to", Side::Left),
        ("steps", Side::Right),
        ("waits for", Side::Right),
        ("time of a step", Side::Right),
    ]);
    for tensor in &job.tensors {
        table.row([
            job.name.clone(),
            tensor.tensor.to_string(),
            tensor.name.clone(),
            grouped(tensor.count as u64),
            tensor.aggregator.clone(),
            tensor.moves_to.clone().unwrap_or_default(),
            tensor.steps.map_or_else(|| "no state".to_owned(), grouped),
            tensor.missing.map(|missing| missing.to_string()).unwrap_or_default(),
            tensor.work_us.map(|work| milliseconds(work / 1e3)).unwrap_or_default(),
        ]);
    }
    table.write(out)
}

/// Moves tensors, and waits for them.
pub(super) fn migrate(arguments: &MigrateArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let usage = |text: &str| {
        Failure::new(Kind::Usage, text.to_owned())
            .with_help("write `tidemill agg migrate JOB TENSOR TO`, or `tidemill agg migrate JOB --all TO`")
    };
    let (tensor, to) = match (arguments.all, arguments.places.as_slice()) {
        (true, [to]) => (None, to),
        (false, [tensor, to]) => {
            let number =
                tensor.parse::<u32>().map_err(|_| usage(&format!("`{tensor}` is no number of a tensor")))?;
            (Some(number), to)
        }
        (true, _) => return Err(usage("with `--all` only the aggregator follows").into()),
        (false, _) => return Err(usage("the tensor or the aggregator is missing").into()),
    };
    let interrupt = Interrupt::listen()?;
    let job = arguments.job.clone();
    let wish = Question::Move { job: job.clone(), tensor, to: to.clone() };
    let mut report = question(&arguments.asked.choice, wish)?;
    interrupt.is_watched();
    #[allow(clippy::disallowed_methods, reason = "how long this command waits")]
    let began = Instant::now();
    let moving = |report: &Report| {
        let tensors = report.jobs.iter().flat_map(|job| &job.tensors);
        tensors.filter(|of| of.moves_to.as_ref() == Some(to)).count()
    };
    while moving(&report) > 0 {
        if interrupt.is_wanted() {
            terminal.note("the move continues");
            return Ok(Exit::Interrupted);
        }
        if began.elapsed() > arguments.within {
            let text = format!(
                "{} tensors have not moved within {:?}: a tensor moves when its job makes steps",
                moving(&report),
                arguments.within
            );
            return Err(Failure::new(Kind::Unavailable, text)
                .with_help(format!("the move continues; `tidemill agg map {job}` shows it"))
                .into());
        }
        std::thread::sleep(LOOK);
        report = question(&arguments.asked.choice, Question::Report { job: Some(job.clone()) })?;
    }
    let there = report.jobs.iter().flat_map(|of| &of.tensors);
    let there =
        there.filter(|of| of.aggregator == *to && tensor.is_none_or(|tensor| of.tensor == tensor)).count();
    if arguments.asked.output == OutputForm::Json {
        write_json(&json!({"version": 1, "ok": there > 0, "job": job, "to": to, "tensors": there}))?;
    } else {
        writeln!(answer::out(), "{there} tensors of {job} are on {to}")?;
    }
    if there == 0 {
        let text = format!("no tensor has moved to {to}: it was lost meanwhile");
        return Err(Failure::new(Kind::Unavailable, text).into());
    }
    Ok(Exit::Success)
}

/// Removes a job.
pub(super) fn remove(arguments: &RemoveAggArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    question(&arguments.choice, Question::Remove { job: arguments.job.clone() })?;
    terminal.note(&format!("job {} is removed", arguments.job));
    Ok(Exit::Success)
}
