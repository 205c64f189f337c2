//! Arguments of `tidemill elastic`.
use super::{OutputForm, parse_time};
use clap::{Args, Subcommand, ValueEnum};
use std::time::Duration;

/// Verbs for the limits of containers.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  tidemill elastic attach app=shop --cpus 1.5 --memory 600MiB
  tidemill elastic show

Works on containers of any program, on this machine. Needs permission to write control groups, usually as root.")]
pub(crate) enum ElasticVerb {
    /// Adapt the limits of containers to their load, within one total, until Ctrl-C; then restore the old limits.
    Attach(AttachArguments),
    /// Show the agents on this machine, and limits that killed agents did not restore.
    Show(ElasticShowArguments),
    /// Restore the limits that killed agents have changed.
    Restore(ElasticRestoreArguments),
    /// Wait for the end of an agent and restore its limits, for `attach`, which starts this.
    #[command(hide = true)]
    Guard(GuardArguments),
}

/// `tidemill elastic attach`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill elastic attach app=shop --cpus 1.5 --memory 600MiB
  tidemill elastic attach com.docker.compose.project=shop      within the sum of the containers' limits
  tidemill elastic attach app=shop --cpus 1.5 --memory 600MiB --dry-run
  tidemill elastic attach --group /system.slice/a.service --group /system.slice/b.service --cpus 1 --memory 1GiB
  tidemill elastic attach app=shop --cpus 1.5 --memory 600MiB --for 1min --output json

Ten times a second it reads what the containers use and how often the kernel throttles them, and moves processor time and
memory from containers that do not use it to those that lack it. The sum never exceeds the totals. Containers that start later
are included. Ctrl-C restores the old limits; if the program is killed, a second process restores them.")]
pub(crate) struct AttachArguments {
    /// Containers with this label, of the Docker engine on this machine: `NAME` or `NAME=VALUE`.
    #[arg(value_name = "LABEL", required_unless_present = "group", conflicts_with = "group")]
    pub(crate) label: Option<String>,
    /// Control group instead of a label, by its path below /sys/fs/cgroup (version 1: below each controller); repeat for several.
    #[arg(long, value_name = "PATH")]
    pub(crate) group: Vec<String>,
    /// Processors of all containers together, such as `1.5`; default: the sum of their limits.
    #[arg(long, value_name = "N", value_parser = super::processors)]
    pub(crate) cpus: Option<f64>,
    /// Memory of all containers together, such as `600MiB`; default: the sum of their limits.
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    pub(crate) memory: Option<u64>,
    /// Wait for containers if none has the label yet.
    #[arg(long, requires_all = ["label", "cpus", "memory"])]
    pub(crate) wait: bool,
    /// Time between two decisions, 10ms to 1s; also the length of the kernel's periods.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = period)]
    pub(crate) period: Duration,
    /// Memory that each container keeps above its use.
    #[arg(long, value_name = "SIZE", default_value = "50MiB", value_parser = super::size)]
    pub(crate) margin: u64,
    /// Processors that each container keeps, even if idle.
    #[arg(long, value_name = "N", default_value = "0.1", value_parser = super::processors)]
    pub(crate) floor: f64,
    /// Rule by which processor time grows.
    #[arg(long, value_name = "RULE", default_value = "slices")]
    pub(crate) rule: RuleChoice,
    /// Change no limits; print what it would do.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// End after this time; default: run until Ctrl-C.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    pub(crate) time: Option<Duration>,
    /// Time between two reports.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    pub(crate) every: Duration,
    /// Format of the reports on stdout; `json` prints one line per report.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `--rule`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RuleChoice {
    /// By fixed slices, in proportion to the part of the periods that were throttled.
    Slices,
    /// By the formula in the Escra paper: by parts of the free processor time, and no more than that.
    Printed,
}

/// `tidemill elastic show`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill elastic show
  tidemill elastic show app=shop
  tidemill elastic show --output json

Exit code 1 if an agent was killed and its limits are not restored yet.")]
pub(crate) struct ElasticShowArguments {
    /// Show only the agent of this label or these groups; exit code 1 if there is none.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill elastic restore`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill elastic restore
  tidemill elastic restore --output json

Leaves running agents alone.")]
pub(crate) struct ElasticRestoreArguments {
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill elastic guard`.
#[derive(Debug, Args)]
pub(crate) struct GuardArguments {
    /// Label or groups of the agent.
    pub(crate) name: String,
}

fn period(text: &str) -> Result<Duration, String> {
    let period = parse_time(text)?;
    match (10..=1000).contains(&period.as_millis()) {
        true => Ok(period),
        false => Err("the periods of the kernel last 10ms to 1s; write a time such as `100ms`".to_owned()),
    }
}
