//! Arguments of `tidemill job simulate`.
use crate::arguments::OutputForm;
use crate::arguments::planning::parse_span;
use clap::Args;
use std::path::PathBuf;
use tidemill_jobs::workload::PUBLISHED_JOBS;
use tidemill_jobs::{PackLimit, Service};
use tidemill_spec::units::TimeSpan;

/// `tidemill job simulate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill job simulate                                   480 random jobs on 15 machines of 4 slots
  tidemill job simulate --jobs 100 --seed 7 --write-trace trace.csv
  tidemill job simulate --trace trace.csv --cluster 8x4 --policy fifo,2d-las
  tidemill job simulate --trace trace.csv --cluster infrastructure.yaml --policy 2d-las --thresholds 3600,7200
  tidemill job simulate --policy 2d-las --promote-knob 1   no job waits for ever
  tidemill job simulate --checkpoint 0s --resume 0s --least-run 0s    preemptions without cost
  tidemill job simulate --output json

Policies: fifo, best-effort, 2d-las, 2d-gittins, srtf, srsf. The last two know how long jobs take. 2d-gittins knows the services of
past jobs (--history), by default those of the trace itself. A trace is a table `job,tasks,submitted,duration`, or one published
with Tiresias; a cluster is `COUNTxSLOTS`, a table `machine,slots`, or an infrastructure. The book describes both (docs/jobs.md).
Exit codes: 0 simulated; 78 a file is wrong; 130 interrupted.")]
pub(crate) struct SimulateJobsArguments {
    /// Jobs to simulate; default: random ones, with the shares published of a GPU cluster.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Number of random jobs.
    #[arg(long, value_name = "N", default_value_t = PUBLISHED_JOBS, value_parser = parse_count, conflicts_with = "trace")]
    pub(crate) jobs: usize,
    /// Seed of the random jobs.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "trace")]
    pub(crate) seed: u64,
    /// Machines: `COUNTxSLOTS`, a table, or an infrastructure.
    #[arg(long, value_name = "MACHINES", default_value = "15x4")]
    pub(crate) cluster: String,
    /// Policies to compare.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "fifo,best-effort,2d-las,2d-gittins,srtf,srsf"
    )]
    pub(crate) policy: Vec<String>,
    /// Slot-seconds at which a job leaves each queue but the last, ascending; `none`: ranks are continuous.
    #[arg(long, value_name = "SERVICE,...", default_value = "3200", value_parser = parse_thresholds)]
    pub(crate) thresholds: Thresholds,
    /// Time between two looks at ranks that are continuous.
    #[arg(long, value_name = "TIME", default_value = "1min", value_parser = parse_span)]
    pub(crate) interval: TimeSpan,
    /// Promote a job that waited this many times as long as it ran; `inf`: never.
    #[arg(long, value_name = "FACTOR", default_value = "inf", value_parser = parse_knob)]
    pub(crate) promote_knob: Knob,
    /// Time for which a started job is not preempted for another.
    #[arg(long, value_name = "TIME", default_value = "1min", value_parser = parse_span)]
    pub(crate) least_run: TimeSpan,
    /// Largest tensor, as a part of the model, above which a gang is packed onto the fewest machines; or `auto`.
    #[arg(long, value_name = "PART", default_value = "auto")]
    pub(crate) pack_limit: PackLimit,
    /// Time to write a checkpoint, for jobs whose trace gives none.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = parse_span)]
    pub(crate) checkpoint: TimeSpan,
    /// Time to load a checkpoint, for jobs whose trace gives none.
    #[arg(long, value_name = "TIME", default_value = "40s", value_parser = parse_span)]
    pub(crate) resume: TimeSpan,
    /// Slot-seconds of past jobs, for `2d-gittins`: a table with a column `service`. Default: those of the trace.
    #[arg(long, value_name = "FILE")]
    pub(crate) history: Option<PathBuf>,
    /// Write the simulated jobs into this file, as a trace.
    #[arg(long, value_name = "FILE")]
    pub(crate) write_trace: Option<PathBuf>,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// Limits of the queues; none: continuous.
#[derive(Debug, Clone)]
pub(crate) struct Thresholds(pub(crate) Vec<Service>);

/// Factor of the promotion; none: never.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Knob(pub(crate) Option<f64>);

fn parse_count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=1_000_000).contains(count));
    count.ok_or_else(|| "write a whole number from 1 to 1000000".to_owned())
}

pub(crate) fn parse_thresholds(text: &str) -> Result<Thresholds, String> {
    if text == "none" {
        return Ok(Thresholds(Vec::new()));
    }
    let one = |part: &str| {
        let amount = part.trim().parse::<f64>().ok().filter(|amount| *amount > 0.0 && *amount <= 1e12);
        amount.map(Service::of_slot_seconds).ok_or_else(|| {
            format!("`{part}` is no service; write slot-seconds such as `3200` or `3600,7200`, or `none`")
        })
    };
    text.split(',').map(one).collect::<Result<_, _>>().map(Thresholds)
}

pub(crate) fn parse_knob(text: &str) -> Result<Knob, String> {
    match text.parse::<f64>() {
        Ok(f64::INFINITY) => Ok(Knob(None)),
        Ok(factor) if factor > 0.0 => Ok(Knob(Some(factor))),
        _ => Err(format!("`{text}` is no factor above 0; write `1`, `4` or `inf`")),
    }
}
