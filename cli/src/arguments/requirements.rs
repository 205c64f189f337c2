//! `tidemill requirements`.
use super::OutputForm;
use super::planning::parse_span;
use clap::Args;
use std::path::PathBuf;
use tidemill_app::requirements::Asked;
use tidemill_replay::frontier::Bound;
use tidemill_spec::units::{Bandwidth, TimeSpan, UnitError};

/// `tidemill requirements`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill requirements workflow.yaml --profiles profile.yaml --budget 5%
  tidemill requirements workflow.yaml --profiles profile.yaml --infra infrastructure.yaml     a verdict on each link
  tidemill requirements workflow.yaml --profiles profile.yaml --rtt 20ms --bandwidth 100Mbps  on this link
  tidemill requirements workflow.yaml --profiles profile.yaml --rtt 20ms     the least bandwidth
  tidemill requirements workflow.yaml --profiles profile.yaml --bandwidth 100Mbps     the longest round trip
  tidemill requirements workflow.yaml --profiles p.yaml --plan plan.yaml       as the plan runs them
  tidemill requirements workflow.yaml --profiles p.yaml --batch 8 --window 4
  tidemill requirements workflow.yaml --profiles p.yaml --device gpu-small --output json

The budget is the part of its time that a run may take longer if its device is at the end of a link, compared with the same kind of
device in this machine. A run is what a model computes at once: a batch of the plan, or `--batch` records. With `--window` above 1 the budget
holds for the time between the ends of two runs, not for each run: round trips overlap, but results are as late as before.

Links of the infrastructure are those to a higher tier, with what that tier offers as `devices`, else its machines. Exit
code 1 if links were judged and an operator has no model that fits any of them; 78 if a file is wrong, or the profile lacks
the times of an operator.")]
pub(crate) struct RequirementsArguments {
    /// Workflow with the models.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: PathBuf,
    /// Profiles with the times of the models, or folders with a `profile.yaml`; a later profile overrides earlier ones.
    #[arg(long, alias = "profile", value_name = "PATH", num_args = 1..)]
    pub(crate) profiles: Vec<PathBuf>,
    /// Part of a run's time that remoting may add.
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_budget)]
    pub(crate) budget: f64,
    /// Infrastructure: judge its links to higher tiers.
    #[arg(long = "infra", alias = "infrastructure", value_name = "FILE")]
    pub(crate) infrastructure: Option<PathBuf>,
    /// Judge only the variants of this plan, with its batches, the form of its records (tensors or rows) and its devices: their times,
    /// and the round trip and bandwidth that it expects. Default: all variants, as tensors.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Kind of device, as the profile names it; repeat for several. Default: that of the plan's device, else those that links
    /// lead to, else all.
    #[arg(long, value_name = "KIND")]
    pub(crate) device: Vec<String>,
    /// Round trip of a link.
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    pub(crate) rtt: Option<TimeSpan>,
    /// Bandwidth of a link, in each direction.
    #[arg(long, value_name = "BANDWIDTH", value_parser = parse_bandwidth)]
    pub(crate) bandwidth: Option<Bandwidth>,
    /// Records in a run; the profile needs its time. Default: those of the plan, else 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch: Option<u32>,
    /// Runs that are outstanding at one time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) window: u32,
    /// Processor time of the messages of a run, both ends together. Default: 60us and 0.3ms for each MiB.
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    pub(crate) software: Option<TimeSpan>,
    /// Time that a run waits because others use the device.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_span)]
    pub(crate) queue: TimeSpan,
    /// Size of dimensions that manifests leave open (`any`), such as samples of a sound.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) any: Option<u32>,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

fn parse_budget(text: &str) -> Result<f64, String> {
    let wrong = || format!("`{text}` is no budget; write a percentage such as `5%`");
    let number = text.strip_suffix('%').ok_or_else(wrong)?.trim();
    let percent: f64 = number.parse().map_err(|_| wrong())?;
    match percent > 0.0 && percent.is_finite() {
        true => Ok(percent / 100.0),
        false => Err("a budget must be above 0%".to_owned()),
    }
}

fn parse_bandwidth(text: &str) -> Result<Bandwidth, String> {
    let bandwidth: Bandwidth = text.parse().map_err(|error: UnitError| super::explained(&error))?;
    match bandwidth.0 {
        0 => Err("a bandwidth must be above 0".to_owned()),
        _ => Ok(bandwidth),
    }
}

impl RequirementsArguments {
    /// Returns what is asked.
    pub(crate) fn asked(&self) -> Asked {
        let seconds = |span: TimeSpan| span.0 as f64 / 1e9;
        Asked {
            infrastructure: self.infrastructure.clone(),
            profiles: self.profiles.clone(),
            plan: self.plan.clone(),
            devices: self.device.clone(),
            bound: Bound { budget: self.budget, window: self.window },
            batch: self.batch,
            round_trip: self.rtt.map(seconds),
            bandwidth: self.bandwidth.map(|bandwidth| bandwidth.0 as f64),
            software: self.software.map(seconds),
            queue: seconds(self.queue),
            any: self.any,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_percentages_above_0() {
        assert_eq!(parse_budget("5%"), Ok(0.05));
        assert_eq!(parse_budget("250 %"), Ok(2.5));
        for wrong in ["5", "0%", "-1%", "inf%", "x%", ""] {
            assert!(parse_budget(wrong).is_err(), "{wrong}");
        }
        assert!(parse_bandwidth("0Mbps").is_err() && parse_bandwidth("100Mbps").is_ok());
    }
}
