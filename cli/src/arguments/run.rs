//! Arguments of `tidemill run`.
use super::traces::TraceArguments;
use super::{DeviceCertificateArguments, OutputForm, explained, is_value, parse_time, state_place};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use tidemill_app::choice::Setting;
use tidemill_app::device_choice::DeviceSetting;
use tidemill_app::emulation::{EmulationOptions, RequestedDilation};
use tidemill_app::letters::LetterLimit;
use tidemill_app::levels::RateChoice;
use tidemill_app::recording::LEAST;
use tidemill_app::recording::replaying::Speed;
use tidemill_app::state::place::StatePlace;
use tidemill_spec::units::{Bytes, Rate};

/// `tidemill run`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill run workflow.yaml                        until the sources end
  tidemill run workflow.yaml --for 30s              end after 30 seconds
  tidemill run workflow.yaml --records 100 --rate max    the first 100 of each source, as fast as possible
  tidemill run workflow.yaml --set features=scene-features-small
  tidemill run workflow.yaml --device detect=tcp://hub:7440    the model of `detect` on the device there
  tidemill run workflow.yaml --device detect=tcp://hub:7440,sends=rows    which also prepares its records, such as pictures
  tidemill run workflow.yaml --plan plan.yaml       as the plan says
  tidemill run workflow.yaml --plan plan.yaml --processes    with a process for each worker of the plan
  tidemill run workflow.yaml --plan plan.yaml --emulate --infra infrastructure.yaml --profiles profile.yaml
                                                    as on the plan's machines and links
  tidemill run workflow.yaml --report report.html   write an HTML page about the run
  tidemill run workflow.yaml --require-slo --output json    for scripts: exit code 1 if an SLO is missed
  tidemill run workflow.yaml --record monday        keep what the cameras give
  tidemill run workflow.yaml --replay monday        run from that, without the cameras, with equal results
  tidemill run workflow.yaml --state state          continue where the same command ended, even after kill -9
  tidemill run workflow.yaml --max-dead-letters 1%    exit code 1 if more records than that are unusable

Ctrl-C ends the run; committed rows stay. A second Ctrl-C exits at once.")]
pub(crate) struct RunArguments {
    /// Workflow to run.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: PathBuf,
    /// Plan to run. Default: one worker with the most accurate models, or smaller models of the same accuracy; if the
    /// `profile.yaml` beside the workflow shows that they do not keep the rate on this machine, the most accurate
    /// combination that does.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Model of an operator, by the id or path of its manifest; repeat for several.
    #[arg(long, value_name = "OPERATOR=VARIANT", value_parser = parse_setting, conflicts_with = "plan")]
    pub(crate) set: Vec<Setting>,
    /// Device that computes the models of an operator: `tcp://HOST:PORT`, `unix:///PATH` or `session://PLACES` where `tidemill
    /// device serve` listens, `oip:http://HOST:PORT` (a server of models), `proxy` or `proxy:BACKEND` (a process of its own),
    /// or `cpu`; repeat for several. Overrides the plan, and the report says so. `,sends=rows` after it sends the records as they
    /// are, such as pictures, to be prepared there, `,sends=tensors` the prepared inputs of the model. Default: what the plan has;
    /// else the form with fewer bytes by the plan or the `profile.yaml` beside the workflow, if they have them; else tensors.
    #[arg(long, value_name = "OPERATOR=DEVICE[,sends=FORM]", conflicts_with = "emulate")]
    pub(crate) device: Vec<DeviceSetting>,
    /// End the sources after this time, such as `10s`.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true)]
    pub(crate) duration: Option<Duration>,
    /// End each source after this number of records.
    #[arg(long, value_name = "N", value_parser = parse_count, allow_hyphen_values = true)]
    pub(crate) records: Option<u64>,
    /// Rate of every source, such as `40/s`, or `max`. Default: the source's own; with `--plan`, the rate of the plan.
    #[arg(long, value_name = "RATE", value_parser = parse_rate, allow_hyphen_values = true)]
    pub(crate) rate: Option<RateChoice>,
    /// Largest number of copies of one model. Another copy starts during the run if a model limits the rate and
    /// processors are idle; each copy needs the memory of the model. Default: the number of processors; 1 with
    /// `--plan`. A model on a device of the plan begins with as many as the plan expects to be on their way there.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "More options")]
    pub(crate) model_copies: Option<u16>,
    /// Run each worker of the plan as a process on this machine, connected by sockets, without shared files and memory.
    /// With `--state` the run survives the death of a process: the others continue, and it restarts from the last
    /// checkpoint. With `--emulate` each process has the speed of its worker, and the links are TCP connections between
    /// processes.
    #[arg(long, requires = "plan")]
    pub(crate) processes: bool,
    /// Emulate the plan on this machine, with the speed of its workers and devices and the bandwidth and delay of its links,
    /// and show predicted and measured figures side by side.
    #[arg(long, requires = "plan", help_heading = "Emulation")]
    pub(crate) emulate: bool,
    /// Infrastructure of the plan: machines, links and prices.
    #[arg(long = "infra", value_name = "FILE", requires = "emulate", help_heading = "Emulation")]
    pub(crate) infrastructure: Option<PathBuf>,
    /// Profiles, or folders with a `profile.yaml`, to compare the speed of the plan's workers with this machine; a
    /// later profile overrides earlier ones.
    #[arg(long, value_name = "PATH", num_args = 1.., requires = "emulate", help_heading = "Emulation")]
    pub(crate) profiles: Vec<PathBuf>,
    /// Slow the run down for a machine that is too slow for real time: with 2 it takes twice as long, but all reported
    /// times are those of the plan. `auto` chooses the factor that the plan needs here. Default: auto.
    #[arg(long, value_name = "FACTOR", requires = "emulate", help_heading = "Emulation")]
    pub(crate) dilation: Option<RequestedDilation>,
    /// Serve Prometheus metrics at http://ADDR/metrics, such as `127.0.0.1:9464`.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    #[command(flatten)]
    pub(crate) traces: TraceArguments,
    #[command(flatten)]
    pub(crate) device_certificate: DeviceCertificateArguments,
    /// Exit with code 1 if the run misses a service level of the workflow.
    #[arg(long, help_heading = "More options")]
    pub(crate) require_slo: bool,
    /// Exit with code 1 if there are more dead letters than this: a number, such as `100`, which also ends the run at
    /// once, or a share of the records read, such as `0.5%`, checked at the end.
    #[arg(long, value_name = "N|P%", help_heading = "More options")]
    pub(crate) max_dead_letters: Option<LetterLimit>,
    /// Write a report to this file: one HTML page with a drawing of the workflow, curves, service levels, sample
    /// records and dead letters. A failed or interrupted run writes it too.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Write the report to this file as JSON.
    #[arg(long, value_name = "FILE", help_heading = "More options")]
    pub(crate) report_json: Option<PathBuf>,
    /// Write the epoch of each record to this file during the run, for `--replay`.
    #[arg(long, value_name = "FILE", help_heading = "More options")]
    pub(crate) epoch_log: Option<PathBuf>,
    /// Keep in this new folder what the sources give that cannot be read again (cameras, microphones, connections,
    /// brokers, standard input), and the epoch of each record, for `--replay`. The run then processes each record that it
    /// reads: cameras may drop frames, edges do not.
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["state", "emulate", "processes", "replay", "epoch_log"],
        help_heading = "More options"
    )]
    pub(crate) record: Option<PathBuf>,
    /// Largest size of the recording: the run ends there. Default: 10GiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_record_size, requires = "record", help_heading = "More options")]
    pub(crate) record_size: Option<Bytes>,
    /// Run from a folder that `--record` made, without cameras and connections; or repeat the epochs of a file that
    /// `--epoch-log` wrote. If that run failed or was interrupted, this one stops after its last record.
    #[arg(long, value_name = "DIR|FILE", help_heading = "More options")]
    pub(crate) replay: Option<PathBuf>,
    /// Pace of the replay of a recording: `1` as recorded, `4` four times as fast, or `max`. Default: max.
    #[arg(long, value_name = "FACTOR", requires = "replay", help_heading = "More options")]
    pub(crate) speed: Option<Speed>,
    /// Keep the state of the run in this folder, or in a bucket (`s3://BUCKET/PREFIX`, with credentials in
    /// AWS_ACCESS_KEY_ID and so on): the same command then continues where this one ended, after Ctrl-C, a failure,
    /// kill -9 or a power cut. No row of the outputs is lost or doubled. Default: the setting of the workflow
    /// (`checkpoint: {state: ...}`).
    #[arg(long, value_name = "STATE", value_parser = state_place(), conflicts_with_all = ["emulate", "replay", "epoch_log"])]
    pub(crate) state: Option<StatePlace>,
    /// Continue from a state even if the workflow, models or plan have changed: later records follow the new
    /// definition, and operators whose own definition has changed start empty. `tidemill state diff` and the run itself
    /// show the effect on each part before any change. Impossible changes are still rejected.
    #[arg(long, help_heading = "More options")]
    pub(crate) accept_changes: bool,
    /// Shortest time between two checkpoints of the state: after a crash, the run repeats the work since the last one.
    /// Default: the setting of the workflow (`checkpoint: {interval: ...}`), else 1s.
    #[arg(long, value_name = "TIME", value_parser = parse_time, help_heading = "More options")]
    pub(crate) checkpoint_interval: Option<Duration>,
    /// Format of the report on stdout; on stderr if a sink of the workflow writes to stdout (`--quiet` silences it
    /// there).
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
    /// Sources that the program feeds which starts this one, and sinks whose rows it takes: for the package in Python.
    #[arg(long, value_name = "JSON", hide = true, conflicts_with_all = ["state", "processes", "replay", "epoch_log", "record"])]
    pub(crate) caller: Option<String>,
}

impl RunArguments {
    /// Returns the options of the emulation.
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
    if rate.0 > 0.0 { Ok(RateChoice::PerSecond(rate.0)) } else { Err("a rate must be above 0".to_owned()) }
}

fn parse_record_size(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|error: tidemill_spec::units::UnitError| explained(&error))?;
    if size >= LEAST { Ok(size) } else { Err(format!("a recording needs room for {LEAST} or more")) }
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
