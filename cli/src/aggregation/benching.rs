//! `tidemill agg bench`: a job without data.
use super::{asking::refused, socket_of};
use crate::answer;
use crate::arguments::{BenchAggArguments, NumbersChoice, OutputForm, UpdateChoice};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::status_line::StatusLine;
use crate::terminal::Terminal;
use std::cell::RefCell;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_aggregation_service::bench::{BenchOptions, BenchReport, SHAPES, run, specs_of};
use tidemill_aggregation_service::client::ClientError;
use tidemill_aggregation_service::number::Numbers;
use tidemill_aggregation_service::rule::Rule;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::{bytes, milliseconds};

/// Runs it, and compares its parameters.
pub(super) fn bench(arguments: &BenchAggArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let shape = SHAPES.iter().find(|(name, _)| *name == arguments.shape);
    let (_, shape) = shape.ok_or_else(|| Failure::new(Kind::Usage, "no such model".to_owned()))?;
    let numbers = match arguments.numbers {
        NumbersChoice::Fixed => Numbers::Fixed,
        NumbersChoice::F32 => Numbers::F32,
        NumbersChoice::F16 => Numbers::F16,
    };
    let rule = match arguments.rule {
        UpdateChoice::Sgd => Rule::Momentum { rate: 0.01, momentum: 0.0 },
        UpdateChoice::Momentum => Rule::Momentum { rate: 0.01, momentum: 0.9 },
        UpdateChoice::Adam => Rule::adam(0.001),
    };
    let options = BenchOptions {
        socket: socket_of(&arguments.asked.choice)?,
        at: arguments.at.clone(),
        job: arguments.job.clone(),
        specs: specs_of(shape, arguments.scale, numbers, rule),
        workers: arguments.workers,
        steps: arguments.steps,
        spread: arguments.spread,
        compute: arguments.compute,
        straggler: arguments.straggler,
        migrate_every: arguments.migrate_every,
        pause_every: arguments.pause_every,
        check: !arguments.no_check,
        patience: arguments.patience,
    };
    interrupt.is_watched();
    let steps = arguments.steps;
    let done = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&done);
    let line = RefCell::new(StatusLine::new(*terminal));
    let look = || {
        let step = done.load(Ordering::Acquire);
        line.borrow_mut().show(|_| format!("step {step} of {steps}"));
        interrupt.is_wanted()
    };
    let report = run(&options, move |step| counter.store(step, Ordering::Release), look);
    line.borrow().finish();
    let report = match report {
        Err(ClientError::Refused(_)) if interrupt.is_wanted() => return Ok(Exit::Interrupted),
        Err(ClientError::Refused(status)) => return Err(refused(&status).into()),
        report => report.map_err(|error| Failure::new(Kind::Unavailable, error.to_string()))?,
    };
    let is_right = report.expected_digest.as_ref().is_none_or(|expected| *expected == report.digest);
    let mut out = answer::out();
    if arguments.asked.output == OutputForm::Json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        write(&report, &mut out)?;
    }
    if is_right {
        return Ok(Exit::Success);
    }
    let expected = report.expected_digest.unwrap_or_default();
    Err(Failure::new(Kind::No, format!("the parameters are {}, and {expected} was expected", report.digest))
        .into())
}

fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = ((sorted.len() as f64 * part).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(place).copied().unwrap_or(f64::NAN)
}

fn write(report: &BenchReport, out: &mut dyn Write) -> std::io::Result<()> {
    let tensors = format!("{} tensors, {} of gradients", report.tensors, bytes(report.gradient_bytes as u64));
    writeln!(out, "job {}: {tensors}", report.job)?;
    let mut line = |name: &str, values: &[f64]| {
        if values.is_empty() {
            return Ok(());
        }
        let (median, late) = (percentile(values, 0.5), percentile(values, 0.99));
        let count = values.len();
        writeln!(out, "{name:<24} p50 {}, p99 {} ({count} samples)", milliseconds(median), milliseconds(late))
    };
    let of = |is_wanted: fn(usize) -> bool| -> Vec<f64> {
        let pairs = report.exchanges_ms.iter().zip(&report.moved);
        pairs.filter(|(_, moved)| is_wanted(**moved)).map(|(time, _)| *time).collect()
    };
    line("iteration", &report.iterations_ms)?;
    line("exchange", &of(|moved| moved == 0))?;
    line("exchange with moves", &of(|moved| moved > 0))?;
    line("pause with checkpoint", &report.pauses_ms)?;
    let moved: usize = report.moved.iter().sum();
    writeln!(out, "tensors moved            {moved}")?;
    let check = match &report.expected_digest {
        Some(expected) if *expected == report.digest => ", as by one process",
        Some(_) => ", which is wrong",
        None => "",
    };
    writeln!(out, "digest of the parameters {}{check}", report.digest)
}
