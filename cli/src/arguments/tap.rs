//! Arguments of `tidemill tap`.
use super::OutputForm;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `tidemill tap`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill tap detections
  tidemill tap cam1 --limit 5                    end after five records
  tidemill tap cam1 --columns camera,image       only these columns
  tidemill tap detections --where 'score > 0.9'  only these records
  tidemill tap cam1 --save pictures --limit 100  also write pictures and sounds as files
  tidemill tap detections --output json | jq .score

Shows records from now on until the run ends, or Ctrl-C, which ends only the tap. The workflow never waits for a tap: what
it cannot take is counted, and the number is shown. Reaches the runs of `tidemill run` on this machine, of the same user.")]
pub(crate) struct TapArguments {
    /// A source or an operator of a running workflow.
    #[arg(value_name = "EDGE")]
    pub(crate) edge: String,
    /// End after this number of records.
    #[arg(long, short = 'n', value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Show only these columns.
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',')]
    pub(crate) columns: Vec<String>,
    /// Show only records for which this is true: an expression over all columns, as in `filter`.
    #[arg(long = "where", value_name = "EXPRESSION")]
    pub(crate) condition: Option<String>,
    /// Write pictures and sounds into this folder, in the format that they have; uncompressed frames become PNG.
    #[arg(long, value_name = "DIR")]
    pub(crate) save: Option<PathBuf>,
    /// Form of pictures on a terminal. Anywhere else they are words.
    #[arg(long, value_name = "FORM", default_value = "auto")]
    pub(crate) pictures: PictureForm,
    /// The process of the run, where several have a source or operator of that name.
    #[arg(long, value_name = "PID")]
    pub(crate) process: Option<u32>,
    /// Format of the output on stdout; `json`: a line for each record.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// Form of pictures on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PictureForm {
    /// What the terminal can show, by its environment variables.
    Auto,
    /// The graphics protocol of Kitty; also Ghostty and Konsole.
    Kitty,
    /// The inline images of iTerm2; also `WezTerm` and mintty.
    Iterm,
    /// Coloured characters, two pixels each.
    Blocks,
    /// Only the size, in words.
    Words,
}
