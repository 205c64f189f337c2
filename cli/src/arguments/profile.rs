//! The command line of `tidemill profile`.
use super::{DeviceCertificateArguments, OutputForm, parse_time};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;
use tidemill_inference::backend::registered;

/// `tidemill profile`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:
  tidemill profile workflow.yaml --infra infrastructure.yaml              writes profile/profile.yaml
  tidemill profile workflow.yaml --infra infrastructure.yaml --budget 2min --backend rten
  tidemill profile workflow.yaml --infra infrastructure.yaml --factor old-box=1.8
  tidemill profile workflow.yaml --infra infrastructure.yaml --device gpu-small=tcp://hub:7440
  tidemill profile show profile/profile.yaml
  tidemill profile diff before.yaml profile/profile.yaml
  tidemill profile merge published.yaml profile/profile.yaml --out all.yaml
  tidemill profile fit profile.yaml workflow.yaml --infra infrastructure.yaml --out here.yaml
  tidemill profile predict profile.yaml workflow.yaml --infra infrastructure.yaml --out completed.yaml

After Ctrl-C the same command continues. It does not measure again what is certain already.")]
pub(crate) struct ProfileArguments {
    /// Verb for existing profiles.
    #[command(subcommand)]
    pub(crate) verb: Option<ProfileVerb>,
    /// Workflow to measure.
    #[arg(value_name = "WORKFLOW", required = true)]
    pub(crate) workflow: Option<PathBuf>,
    /// Infrastructure with the types of workers to measure.
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) infra: Option<PathBuf>,
    /// Folder for `profile.yaml` and intermediate measurements, or the name of the profile itself. Default: `profile`
    /// beside the workflow.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Time for all measurements. Measures each operator and model a few times on each type of worker even if that
    /// takes longer, but can leave out larger batches.
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = parse_time)]
    pub(crate) budget: Duration,
    /// Number of records of each source to measure with.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) samples: u32,
    /// Backend to measure; repeat for several. Default: all backends of this machine.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(registered().map(|backend| backend.name)))]
    pub(crate) backend: Vec<String>,
    /// Slowness of a type of worker compared with this machine, such as `old-box=1.8`; repeat for several.
    #[arg(long, value_name = "TYPE=NUMBER", value_parser = parse_factor)]
    pub(crate) factor: Vec<(String, f64)>,
    /// Measure the models also on a device: its kind in the infrastructure, and where `tidemill device serve` listens,
    /// such as `gpu-small=tcp://hub:7440`; repeat for several. Without an address that of the infrastructure. The times
    /// are those of the model alone as the device reports them, without the way there and back.
    #[arg(long, value_name = "KIND[=ADDRESS]", value_parser = parse_device)]
    pub(crate) device: Vec<(String, Option<String>)>,
    #[command(flatten)]
    pub(crate) device_certificate: DeviceCertificateArguments,
    /// Delete earlier measurements first.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Format of the output on stdout and, with `json`, of the progress on stderr.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// Verbs for existing profiles.
#[derive(Debug, Subcommand)]
pub(crate) enum ProfileVerb {
    /// Show a profile as tables.
    #[command(after_help = "Examples:
  tidemill profile show profile/
  tidemill profile show profile/profile.yaml --output json")]
    Show {
        /// Profile, or folder with a `profile.yaml`.
        #[arg(value_name = "PATH")]
        file: PathBuf,
        /// Format of the output.
        #[arg(long, short, value_name = "FORM", default_value = "table")]
        output: OutputForm,
    },
    /// Compare two profiles.
    #[command(after_help = "Examples:
  tidemill profile diff before.yaml after.yaml
  tidemill profile diff before.yaml after.yaml --above 10
  tidemill profile diff before/ profile/ --all

Exit code 0 even if they differ.")]
    Diff {
        /// First profile, or folder with a `profile.yaml`.
        #[arg(value_name = "BEFORE")]
        before: PathBuf,
        /// Second profile, or folder with a `profile.yaml`.
        #[arg(value_name = "AFTER")]
        after: PathBuf,
        /// Leave out figures that changed by this percentage or less.
        #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
        above: f64,
        /// List also the figures that only one profile has, instead of counting them.
        #[arg(long)]
        all: bool,
        /// Format of the output.
        #[arg(long, short, value_name = "FORM", default_value = "table")]
        output: OutputForm,
    },
    /// Check in some seconds whether a profile from another machine fits this one, and correct it if not.
    #[command(after_help = "Examples:
  tidemill profile fit profile.yaml workflow.yaml --infra infrastructure.yaml
  tidemill profile fit profile.yaml workflow.yaml --infra infrastructure.yaml --out here.yaml

Exit code 0 whether it fits or not; see `fits` in the JSON.")]
    Fit(FitArguments),
    /// Predict the times of unmeasured models and types of workers from measured ones, with the error of such
    /// predictions.
    #[command(after_help = "Examples:
  tidemill profile predict profile.yaml workflow.yaml --infra infrastructure.yaml
  tidemill profile predict profile.yaml workflow.yaml --infra infrastructure.yaml --out completed.yaml

Also predicts each model and each machine of the profile from all others: expect errors of that size. The field `within` of
a prediction is the factor that contains nine in ten of those times (all, if there are fewer than nine).")]
    Predict(PredictArguments),
    /// Merge profiles of one workflow: later figures override earlier ones, but predicted figures never override
    /// measured ones.
    #[command(after_help = "Examples:
  tidemill profile merge edge.yaml cloud.yaml > both.yaml
  tidemill profile merge published.yaml measured.yaml --out both.yaml")]
    Merge {
        /// Profiles to merge; a later profile overrides earlier ones.
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// Write the merged profile to this file instead of stdout.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Format of the output on stdout: `table` is YAML, or nothing with `--out`; `json` is that of `profile show`.
        #[arg(long, short, value_name = "FORM", default_value = "table")]
        output: OutputForm,
    },
}

/// `tidemill profile fit`.
#[derive(Debug, Args)]
pub(crate) struct FitArguments {
    /// Profile from another machine.
    #[arg(value_name = "PROFILE")]
    pub(crate) profile: PathBuf,
    /// Workflow of the profile.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: PathBuf,
    /// Infrastructure with the types of workers of the profile.
    #[arg(long, value_name = "FILE")]
    pub(crate) infra: PathBuf,
    /// Write the profile for this machine to this file: unchanged if it fits, else corrected.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Format of the output on stdout and, with `json`, of the progress on stderr.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill profile predict`.
#[derive(Debug, Args)]
pub(crate) struct PredictArguments {
    /// Profile to predict from.
    #[arg(value_name = "PROFILE")]
    pub(crate) profile: PathBuf,
    /// Workflow of the profile.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: PathBuf,
    /// Infrastructure with the types of workers to predict.
    #[arg(long, value_name = "FILE")]
    pub(crate) infra: PathBuf,
    /// Write the profile with the predictions to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

fn parse_factor(text: &str) -> Result<(String, f64), String> {
    let help = "write `type=number`, such as `old-box=1.8`";
    let (name, number) = text.split_once('=').ok_or(help)?;
    match number.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() && !name.is_empty() => Ok((name.to_owned(), number)),
        _ => Err(help.to_owned()),
    }
}

fn parse_device(text: &str) -> Result<(String, Option<String>), String> {
    let (kind, address) = text.split_once('=').map_or((text, None), |(kind, address)| (kind, Some(address)));
    if kind.is_empty() || address.is_some_and(str::is_empty) {
        return Err("write `kind=address`, such as `gpu-small=tcp://hub:7440`, or the kind alone".to_owned());
    }
    Ok((kind.to_owned(), address.map(str::to_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_kinds_with_or_without_addresses() {
        let of = |kind: &str, address: Option<&str>| Ok((kind.to_owned(), address.map(str::to_owned)));
        assert_eq!(parse_device("card=unix:///a=b"), of("card", Some("unix:///a=b")));
        assert_eq!(parse_device("card"), of("card", None));
        for wrong in ["", "card=", "=tcp://hub:1"] {
            assert!(parse_device(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn factors_are_numbers_above_0() {
        assert_eq!(parse_factor("old-box=1.8"), Ok(("old-box".to_owned(), 1.8)));
        for wrong in ["old-box", "=2", "a=0", "a=-1", "a=x", "a=inf"] {
            assert!(parse_factor(wrong).is_err(), "{wrong}");
        }
    }
}
