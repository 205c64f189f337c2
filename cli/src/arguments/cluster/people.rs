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

A viewer looks, an operator submits, cancels and drains, an admin says who belongs to the cluster.")]
pub(crate) struct PeopleArguments {
    /// What to do.
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
    /// Make an access token for a person.
    Add(AddPersonArguments),
    /// End all access tokens of a person.
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
    /// Tokens that count no more, too.
    #[arg(long)]
    pub(crate) all: bool,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill people add`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill people add Ada --role viewer
  tidemill people add Ada --role operator --days 90 --write-token ada.token

The access token is told this once: on stdout, or in a file that nobody else can read.")]
pub(crate) struct AddPersonArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// What the person is called.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// What the person may do: viewer, operator, admin.
    #[arg(long, value_name = "ROLE")]
    pub(crate) role: Role,
    /// Days that the token counts; default: until the person is removed.
    #[arg(long, value_name = "N")]
    pub(crate) days: Option<u32>,
    /// Write the token into this file, which must not be there yet, instead of telling it.
    #[arg(long, value_name = "FILE")]
    pub(crate) write_token: Option<PathBuf>,
    /// Form of the answer on stdout.
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
    /// What the person is called.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill revoke`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill revoke edge-1

Its certificates count no more, and what ran there goes on elsewhere. It can come back with a new join token, in a new folder.")]
pub(crate) struct RevokeArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The worker.
    #[arg(value_name = "WORKER")]
    pub(crate) worker: String,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill remove`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill remove night-shift

What it wrote goes with it: `tidemill results RUN --out DIR` fetches it before.

Only a run that has ended: its files on workers go, too, on those that are away as soon as they are back. The name is free then.")]
pub(crate) struct RemoveArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill results`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill results night-shift                       which files there are, and where
  tidemill results night-shift --sink answers > answers.jsonl
  tidemill results night-shift --sink answers --follow
  tidemill results night-shift --out results         all files, into a folder

Gives what the last checkpoint of the run has, which nothing takes back; all of it once the run is complete.")]
pub(crate) struct ResultsArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Only what this sink wrote; without `--out` to stdout.
    #[arg(long, value_name = "NAME")]
    pub(crate) sink: Option<String>,
    /// Write the files into this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Stay until the run is over, and write rows as they are committed (`jsonl`, `csv`).
    #[arg(long, short, requires = "sink", conflicts_with = "out")]
    pub(crate) follow: bool,
    /// Form of the list on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}
