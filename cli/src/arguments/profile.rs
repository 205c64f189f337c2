//! The command line of `tidemill profile`.
use super::{OutputForm, parse_time};
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
  tidemill profile show profile/profile.yaml
  tidemill profile diff before.yaml profile/profile.yaml
  tidemill profile merge published.yaml profile/profile.yaml --out all.yaml
  tidemill profile fit profile.yaml workflow.yaml --infra infrastructure.yaml --out here.yaml
  tidemill profile predict profile.yaml workflow.yaml --infra infrastructure.yaml --out completed.yaml

Ctrl-C ends it; the same command goes on where it was. What is certain already is not measured again.")]
pub(crate) struct ProfileArguments {
    /// What else to do.
    #[command(subcommand)]
    pub(crate) verb: Option<ProfileVerb>,
    /// The workflow.
    #[arg(value_name = "WORKFLOW", required = true)]
    pub(crate) workflow: Option<PathBuf>,
    /// The infrastructure, whose types of workers are measured.
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) infra: Option<PathBuf>,
    /// Folder for `profile.yaml` and what was measured so far, or the name of the profile itself. Default: `profile`
    /// beside the workflow.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Time for all of it. Even if that takes longer, each operator and model is measured a few times on each type of
    /// worker; larger batches may be left out.
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = parse_time)]
    pub(crate) budget: Duration,
    /// Records of each source to measure with.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) samples: u32,
    /// Only these backends; may be given several times. Default: all that are here.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(registered().map(|backend| backend.name)))]
    pub(crate) backend: Vec<String>,
    /// A type of worker is so many times slower than this machine; may be given several times.
    #[arg(long, value_name = "TYPE=NUMBER", value_parser = parse_factor)]
    pub(crate) factor: Vec<(String, f64)>,
    /// Forget what was measured so far.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Form of the answer on stdout; with `json` also the progress on stderr.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// What to do with profiles.
#[derive(Debug, Subcommand)]
pub(crate) enum ProfileVerb {
    /// Show a profile as tables.
    #[command(after_help = "Examples:
  tidemill profile show profile/
  tidemill profile show profile/profile.yaml --output json")]
    Show {
        /// The profile, or a folder with a `profile.yaml`.
        #[arg(value_name = "PATH")]
        file: PathBuf,
        /// Form of the answer.
        #[arg(long, short, value_name = "FORM", default_value = "table")]
        output: OutputForm,
    },
    /// Compare two profiles.
    #[command(after_help = "Examples:
  tidemill profile diff before.yaml after.yaml
  tidemill profile diff before.yaml after.yaml --above 10
  tidemill profile diff before/ profile/ --all

Exit code 0, also if they differ.")]
    Diff {
        /// The first, or a folder with a `profile.yaml`.
        #[arg(value_name = "BEFORE")]
        before: PathBuf,
        /// The second.
        #[arg(value_name = "AFTER")]
        after: PathBuf,
        /// Leave out figures that changed by no more than so many percent.
        #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
        above: f64,
        /// List figures that only one of them has, too, instead of counting them.
        #[arg(long)]
        all: bool,
        /// Form of the answer.
        #[arg(long, short, value_name = "FORM", default_value = "table")]
        output: OutputForm,
    },
    /// See whether a profile made elsewhere fits this machine, by measuring some of its times for some seconds; correct
    /// it where it does not.
    #[command(after_help = "Examples:
  tidemill profile fit profile.yaml workflow.yaml --infra infrastructure.yaml
  tidemill profile fit profile.yaml workflow.yaml --infra infrastructure.yaml --out here.yaml

Exit code 0 whether it fits or not; `fits` in the JSON tells.")]
    Fit(FitArguments),
    /// Predict times of models or types of workers that were not measured, from those that were, and say how far off
    /// such predictions are.
    #[command(after_help = "Examples:
  tidemill profile predict profile.yaml workflow.yaml --infra infrastructure.yaml
  tidemill profile predict profile.yaml workflow.yaml --infra infrastructure.yaml --out completed.yaml

Each model and each machine of the profile is also predicted from all others: that error is what to expect. The factor
that nine in ten of those times are within (of fewer than nine: all) stands at a prediction as `within`.")]
    Predict(PredictArguments),
    /// Put profiles of one workflow together: of two figures about the same the later counts, but a predicted one never
    /// replaces another.
    #[command(after_help = "Examples:
  tidemill profile merge edge.yaml cloud.yaml > both.yaml
  tidemill profile merge published.yaml measured.yaml --out both.yaml")]
    Merge {
        /// The profiles, the later ones stronger.
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// Write it to this file instead of stdout.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Form of the answer on stdout: `table` is YAML, or nothing with `--out`; `json` is that of `profile show`.
        #[arg(long, short, value_name = "FORM", default_value = "table")]
        output: OutputForm,
    },
}

/// `tidemill profile fit`.
#[derive(Debug, Args)]
pub(crate) struct FitArguments {
    /// The profile.
    #[arg(value_name = "PROFILE")]
    pub(crate) profile: PathBuf,
    /// The workflow that it is about.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: PathBuf,
    /// The infrastructure, whose types of workers the profile names.
    #[arg(long, value_name = "FILE")]
    pub(crate) infra: PathBuf,
    /// Write the profile for this machine to this file: as it is where it fits, else corrected.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Form of the answer on stdout; with `json` also the progress on stderr.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill profile predict`.
#[derive(Debug, Args)]
pub(crate) struct PredictArguments {
    /// The profile to learn from.
    #[arg(value_name = "PROFILE")]
    pub(crate) profile: PathBuf,
    /// The workflow that it is about.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: PathBuf,
    /// The infrastructure: types of workers that the profile has no times of are predicted.
    #[arg(long, value_name = "FILE")]
    pub(crate) infra: PathBuf,
    /// Write the profile with the predictions to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Form of the answer on stdout.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_numbers_above_0() {
        assert_eq!(parse_factor("old-box=1.8"), Ok(("old-box".to_owned(), 1.8)));
        for wrong in ["old-box", "=2", "a=0", "a=-1", "a=x", "a=inf"] {
            assert!(parse_factor(wrong).is_err(), "{wrong}");
        }
    }
}
