//! Arguments of the verbs about people, results and removal.
use super::{ControllerChoice, OutputForm};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use tidemill_identity::Role;

/// `tidemill people`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill people                                   who has an access token
  tidemill people add Ada --role operator --days 90
  tidemill people remove Ada

Viewers see everything; operators also submit, cancel and drain; admins also add and remove people and workers.")]
pub(crate) struct PeopleArguments {
    /// The verb.
    #[command(subcommand)]
    pub(crate) verb: Option<PeopleVerb>,
    #[command(flatten)]
    pub(crate) list: ListPeopleArguments,
}

/// `tidemill people ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum PeopleVerb {
    /// List the people and their access tokens.
    List(ListPeopleArguments),
    /// Create an access token for a person.
    Add(AddPersonArguments),
    /// Revoke all access tokens of a person.
    Remove(RemovePersonArguments),
}

/// `tidemill people list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill people list
  tidemill people list --output json")]
pub(crate) struct ListPeopleArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// List expired and revoked tokens too.
    #[arg(long)]
    pub(crate) all: bool,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill people add`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill people add Ada --role viewer
  tidemill people add Ada --role operator --days 90 --write-token ada.token

Shows the access token only once: on stdout, or in a file that only you can read.")]
pub(crate) struct AddPersonArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// Name of the person.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Role of the person: viewer, operator, admin.
    #[arg(long, value_name = "ROLE")]
    pub(crate) role: Role,
    /// Days until the token expires; default: never.
    #[arg(long, value_name = "N")]
    pub(crate) days: Option<u32>,
    /// Write the token to this new file instead of stdout.
    #[arg(long, value_name = "FILE")]
    pub(crate) write_token: Option<PathBuf>,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill people remove`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill people remove Ada")]
pub(crate) struct RemovePersonArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// Name of the person.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill revoke`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill revoke edge-1

Its certificates become invalid, and its work continues on other workers. The machine can join again with a new join token and
a new folder.")]
pub(crate) struct RevokeArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The worker.
    #[arg(value_name = "WORKER")]
    pub(crate) worker: String,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill remove`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill remove night-shift

Removes an ended run and its output: fetch the output first with `tidemill results RUN --out DIR`. Removes its files on workers
too; on workers that are away, when they return. Then the name is free.")]
pub(crate) struct RemoveArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill results`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill results night-shift                       list the files and their places
  tidemill results night-shift --sink answers > answers.jsonl
  tidemill results night-shift --sink answers --follow
  tidemill results night-shift --out results         copy all files into a folder

Fetches the rows up to the last checkpoint of the run, which are final; all rows when the run is complete.")]
pub(crate) struct ResultsArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Fetch only the output of this sink; to stdout without `--out`.
    #[arg(long, value_name = "NAME")]
    pub(crate) sink: Option<String>,
    /// Write the files into this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print committed rows until the run ends (for `jsonl` and `csv`).
    #[arg(long, short, requires = "sink", conflicts_with = "out")]
    pub(crate) follow: bool,
    /// Format of the list on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}
