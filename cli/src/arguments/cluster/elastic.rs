//! Arguments of `tidemill elastic`.
use super::{OutputForm, parse_time};
use clap::{Args, Subcommand, ValueEnum};
use std::time::Duration;

/// What to do with limits of containers.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  tidemill elastic attach app=shop --cpus 1.5 --memory 600MiB
  tidemill elastic show

Works on containers of any program, on this machine. Needs the right to write control groups: root, as a rule.")]
pub(crate) enum ElasticVerb {
    /// Have the limits of containers follow their load, under one cap, until Ctrl-C; then all is as it was.
    Attach(AttachArguments),
    /// Tell what the agents on this machine do, and what any of them left behind.
    Show(ElasticShowArguments),
    /// Put back the limits that agents found which were killed.
    Restore(ElasticRestoreArguments),
    /// Wait for the end of an agent and put back what it left, for `attach`, which starts this.
    #[command(hide = true)]
    Guard(GuardArguments),
}

/// `tidemill elastic attach`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill elastic attach app=shop --cpus 1.5 --memory 600MiB
  tidemill elastic attach com.docker.compose.project=shop      within what its containers' own limits add up to
  tidemill elastic attach app=shop --cpus 1.5 --memory 600MiB --dry-run
  tidemill elastic attach --group /system.slice/a.service --group /system.slice/b.service --cpus 1 --memory 1GiB
  tidemill elastic attach app=shop --cpus 1.5 --memory 600MiB --for 1min --output json

Ten times a second it reads what the containers used and how often they were throttled, and moves processor time and memory
from those that do not use it to those that lack it. The sum never exceeds the caps. Containers that are started later are taken in.
Ctrl-C restores the limits that were found; so does a process beside it, should it be killed.")]
pub(crate) struct AttachArguments {
    /// Containers with this label, of the Docker engine on this machine: `NAME` or `NAME=VALUE`.
    #[arg(value_name = "LABEL", required_unless_present = "group", conflicts_with = "group")]
    pub(crate) label: Option<String>,
    /// A control group instead, by its path beneath /sys/fs/cgroup (version 1: beneath each controller).
    #[arg(long, value_name = "PATH")]
    pub(crate) group: Vec<String>,
    /// Processors that all together may use; default: the sum of their limits.
    #[arg(long, value_name = "N", value_parser = super::processors)]
    pub(crate) cpus: Option<f64>,
    /// Memory that all together may use; default: the sum of their limits.
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    pub(crate) memory: Option<u64>,
    /// Where no container has the label yet, wait for some.
    #[arg(long, requires_all = ["label", "cpus", "memory"])]
    pub(crate) wait: bool,
    /// How often to look and decide, 10ms to 1s; also the length of the kernel's periods.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = period)]
    pub(crate) period: Duration,
    /// Memory that each keeps above what it uses.
    #[arg(long, value_name = "SIZE", default_value = "50MiB", value_parser = super::size)]
    pub(crate) margin: u64,
    /// Processors that each keeps, even idle.
    #[arg(long, value_name = "N", default_value = "0.1", value_parser = super::processors)]
    pub(crate) floor: f64,
    /// How processor time grows.
    #[arg(long, value_name = "RULE", default_value = "slices")]
    pub(crate) rule: RuleChoice,
    /// Write nothing; tell what it would do.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// End after so long.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    pub(crate) time: Option<Duration>,
    /// How often to tell what it does.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    pub(crate) every: Duration,
    /// Form of what it tells on stdout; `json`: a line each time.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `--rule`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RuleChoice {
    /// By slices, with the part of the periods that were throttled.
    Slices,
    /// By parts of what nobody has, as Escra's formula is printed; clipped to that.
    Printed,
}

/// `tidemill elastic show`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill elastic show
  tidemill elastic show app=shop
  tidemill elastic show --output json

Exit code 1 if an agent was killed and its limits were not put back yet.")]
pub(crate) struct ElasticShowArguments {
    /// The one that is attached to this label or these groups; exit code 1 if there is none.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill elastic restore`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill elastic restore
  tidemill elastic restore --output json

Agents that live are left alone.")]
pub(crate) struct ElasticRestoreArguments {
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill elastic guard`.
#[derive(Debug, Args)]
pub(crate) struct GuardArguments {
    /// What the agent is attached to.
    pub(crate) name: String,
}

fn period(text: &str) -> Result<Duration, String> {
    let period = parse_time(text)?;
    match (10..=1000).contains(&period.as_millis()) {
        true => Ok(period),
        false => Err("the kernel's periods have 10ms to 1s; write a time such as `100ms`".to_owned()),
    }
}
