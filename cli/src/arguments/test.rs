//! Arguments of `tidemill test`.
use super::OutputForm;
use clap::Args;
use std::path::PathBuf;

/// `tidemill test`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill test                            all *.test.yaml in this folder and below
  tidemill test workflow.test.yaml
  tidemill test --only late                tests whose name contains `late`
  tidemill test --update                   take the found rows as the expected ones
  tidemill test --output json

A test gives a workflow other inputs and compares the rows that come out. It writes no results. Exit code 1 if a test
fails, 78 if a file is wrong.")]
pub(crate) struct TestArguments {
    /// Files with tests, and folders that are searched for *.test.yaml.
    #[arg(default_value = ".", value_name = "FILE|DIR")]
    pub(crate) places: Vec<PathBuf>,
    /// Run only tests whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    /// Write the rows that were found into the files as the expected ones.
    #[arg(long)]
    pub(crate) update: bool,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}
