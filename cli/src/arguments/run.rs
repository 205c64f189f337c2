//! Arguments of `tidemill run`.
use super::traces::TraceArguments;
use super::{OutputForm, explained, is_value, parse_time, state_place};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use tidemill_app::choice::Setting;
use tidemill_app::emulation::{EmulationOptions, Wanted};
use tidemill_app::letters::LetterLimit;
use tidemill_app::levels::RateChoice;
use tidemill_app::state::place::StatePlace;
use tidemill_spec::units::Rate;

/// `tidemill run`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill run workflow.yaml                        until the sources end
  tidemill run workflow.yaml --for 30s              at most so long
  tidemill run workflow.yaml --records 100 --rate max    the first 100 of each source, as fast as possible
  tidemill run workflow.yaml --set features=scene-features-small
  tidemill run workflow.yaml --plan plan.yaml       as the plan says
  tidemill run workflow.yaml --plan plan.yaml --processes    with a process for each worker of the plan
  tidemill run workflow.yaml --plan plan.yaml --emulate --infra infrastructure.yaml --profiles profile.yaml
                                                    as on the plan's machines and links
  tidemill run workflow.yaml --report report.html   and a page to look at
  tidemill run workflow.yaml --require-slo --output json    for scripts: exit code 1 if an SLO is missed
  tidemill run workflow.yaml --state state          go on where the same command ended before, also after kill -9
  tidemill run workflow.yaml --max-dead-letters 1%    exit code 1 if more of the records cannot be used

Ctrl-C ends the run; what was committed stays. A second Ctrl-C leaves at once.")]
pub(crate) struct RunArguments {
    /// The workflow.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: PathBuf,
    /// Run this plan; without one everything runs on one worker with the most accurate models, or smaller ones as accurate. Where those do
    /// not keep the workflow's rate on this machine, by the `profile.yaml` beside the workflow, the most accurate combination that does.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Model of an operator, by the manifest's id or path; may be given several times.
    #[arg(long, value_name = "OPERATOR=VARIANT", value_parser = parse_setting, conflicts_with = "plan")]
    pub(crate) set: Vec<Setting>,
    /// End the sources after so much time, such as `10s`.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true)]
    pub(crate) duration: Option<Duration>,
    /// End each source after so many records.
    #[arg(long, value_name = "N", value_parser = parse_count, allow_hyphen_values = true)]
    pub(crate) records: Option<u64>,
    /// Rate of every source, such as `40/s`, or `max`. Default: its own; with `--plan` the rate that the plan was made
    /// for.
    #[arg(long, value_name = "RATE", value_parser = parse_rate, allow_hyphen_values = true)]
    pub(crate) rate: Option<RateChoice>,
    /// Copies of one model that may run at once. A further one starts during the run when a model holds up the others
    /// and processors are idle; it takes the model's memory once more. Default: as many as there are processors, with
    /// `--plan` 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "More options")]
    pub(crate) model_copies: Option<u16>,
    /// Run every worker of the plan as a process of its own on this machine, connected by sockets without files and shared memory. With
    /// `--state` the run survives the death of any of them: the others go on, and it is started again from the last checkpoint. With
    /// `--emulate` each process has the speed of its worker, and the links are between processes, by TCP.
    #[arg(long, requires = "plan")]
    pub(crate) processes: bool,
    /// Run every worker of the plan here at its own speed, behind links with their bandwidth and delay, and show what was
    /// predicted beside what was measured.
    #[arg(long, requires = "plan", conflicts_with = "model_copies", help_heading = "Emulation")]
    pub(crate) emulate: bool,
    /// Machines, links and prices that the plan was made for.
    #[arg(long = "infra", value_name = "FILE", requires = "emulate", help_heading = "Emulation")]
    pub(crate) infrastructure: Option<PathBuf>,
    /// Profiles, or folders with a `profile.yaml`: how much slower or faster the plan's workers are than this machine. Of
    /// two figures of the same thing the later counts.
    #[arg(long, value_name = "PATH", num_args = 1.., requires = "emulate", help_heading = "Emulation")]
    pub(crate) profiles: Vec<PathBuf>,
    /// Stretch the run, so that a machine that is too slow for real time keeps up: with 2 it takes twice as long, and all
    /// times that are reported are still those of the plan. `auto` takes what the plan needs here. Default: auto.
    #[arg(long, value_name = "FACTOR", requires = "emulate", help_heading = "Emulation")]
    pub(crate) dilation: Option<Wanted>,
    /// Serve Prometheus metrics at http://ADDR/metrics, such as `127.0.0.1:9464`.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    #[command(flatten)]
    pub(crate) traces: TraceArguments,
    /// Exit with 1 if a service level of the workflow is missed.
    #[arg(long, help_heading = "More options")]
    pub(crate) require_slo: bool,
    /// Exit with 1 if there are more dead letters: a number, which ends the run as soon as it is passed, or a share of
    /// the records read, such as `0.5%`, which is looked at in the end.
    #[arg(long, value_name = "N|P%", help_heading = "More options")]
    pub(crate) max_dead_letters: Option<LetterLimit>,
    /// Also write a report to look at to this file: one HTML page with the workflow drawn, curves, service levels,
    /// sample records and dead letters. It is also written when the run fails or is interrupted.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Also write the report to this file, as JSON.
    #[arg(long, value_name = "FILE", help_heading = "More options")]
    pub(crate) report_json: Option<PathBuf>,
    /// Write which record came in which epoch to this file, while the run goes on, for `--replay`.
    #[arg(long, value_name = "FILE", help_heading = "More options")]
    pub(crate) epoch_log: Option<PathBuf>,
    /// Repeat the epochs of such a file. If that run was interrupted or failed, this one stops after the last record
    /// that it had read.
    #[arg(long, value_name = "FILE", help_heading = "More options")]
    pub(crate) replay: Option<PathBuf>,
    /// Keep the state of the run in this folder, or in a bucket (`s3://BUCKET/PREFIX`, with the usual variables AWS_*), so that
    /// the same command goes on where this one ended, however it did: Ctrl-C, a failure, kill -9, a power cut. What is in the
    /// outputs is then neither lost nor doubled. Default: what the workflow says (`checkpoint: {state: ...}`).
    #[arg(long, value_name = "STATE", value_parser = state_place(), conflicts_with_all = ["emulate", "replay", "epoch_log"])]
    pub(crate) state: Option<StatePlace>,
    /// Go on from a state whose workflow, models or plan have changed since: from its last checkpoint on records are treated as it says
    /// now, and operators whose own definition is another one begin anew. `tidemill state diff` shows what becomes of each part, and so
    /// does the run before it touches anything. What cannot be right is refused all the same.
    #[arg(long, help_heading = "More options")]
    pub(crate) accept_changes: bool,
    /// Least time between two checkpoints of the state: what a process that dies has done since its last one is done again.
    /// Default: what the workflow says (`checkpoint: {interval: ...}`), else 1s.
    #[arg(long, value_name = "TIME", value_parser = parse_time, help_heading = "More options")]
    pub(crate) checkpoint_interval: Option<Duration>,
    /// Form of the report. It is on stdout, but on stderr if a sink of the workflow writes to stdout (`--quiet`
    /// silences it there).
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

impl RunArguments {
    /// How the plan is emulated.
    pub(crate) fn emulation(&self) -> EmulationOptions {
        EmulationOptions {
            infrastructure: self.infrastructure.clone(),
            profiles: self.profiles.clone(),
            dilation: self.dilation.unwrap_or_default(),
            by_processes: self.processes,
        }
    }
}

pub(super) fn parse_setting(text: &str) -> Result<Setting, String> {
    match text.split_once('=') {
        Some((operator, variant)) if !operator.is_empty() && !variant.is_empty() => {
            Ok(Setting { operator: operator.to_owned(), variant: variant.to_owned() })
        }
        _ => Err("write `operator=variant`, such as `features=scene-features-small`".to_owned()),
    }
}

fn parse_count(text: &str) -> Result<u64, String> {
    is_value(text)?;
    let number = text.replace('_', "");
    number.parse().map_err(|_| match number.parse::<f64>() {
        Ok(value) if value >= 0.0 && value.fract() == 0.0 && value < 1e18 => {
            format!("write all digits of a whole number, `{value}`")
        }
        _ => "write a whole number of 0 or more, such as `1000`".to_owned(),
    })
}

pub(super) fn parse_rate(text: &str) -> Result<RateChoice, String> {
    if text == "max" {
        return Ok(RateChoice::Max);
    }
    is_value(text)?;
    let rate: Rate = text.parse().map_err(|error: tidemill_spec::units::UnitError| explained(&error))?;
    if rate.0 > 0.0 { Ok(RateChoice::PerSecond(rate.0)) } else { Err("a rate is above 0".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_units() {
        assert_eq!(parse_rate("40/s"), Ok(RateChoice::PerSecond(40.0)));
        assert_eq!(parse_rate("max"), Ok(RateChoice::Max));
        assert!(parse_rate("40").is_err_and(|text| text.contains("write `40/s`")));
        assert_eq!(parse_time("1.5s"), Ok(Duration::from_millis(1500)));
        assert!(parse_time("0s").is_err());
        assert!(parse_setting("features").is_err());
        assert_eq!(parse_count("1000"), Ok(1000));
        assert!(parse_count("1e3").is_err_and(|text| text.contains("`1000`")));
        for wrong in ["1k", "-5", "1.5", ""] {
            assert!(
                parse_count(wrong).is_err_and(|text| text.contains("whole number of 0 or more")),
                "{wrong}"
            );
        }
    }
}
