//! Arguments of `tidemill source`.
#[cfg(feature = "cluster")]
use super::ControllerChoice;
use super::OutputForm;
use clap::{Args, Subcommand};

/// Verbs for the live sources of running workflows.
#[derive(Debug, Subcommand)]
pub(crate) enum SourceVerb {
    /// List the feeds of live sources (cameras, microphones): state, records, drops.
    Ls(ListFeedsArguments),
    /// Add a feed to a live source of a running workflow; nothing else is restarted.
    Add(AddFeedArguments),
    /// Remove a feed.
    Remove(FeedArguments),
    /// Stop reading a feed; its connection is closed until `resume`.
    Pause(FeedArguments),
    /// Continue a feed that is paused, or try one that has failed at once.
    Resume(FeedArguments),
}

/// The run.
#[derive(Debug, Clone, Args)]
pub(crate) struct FeedsOf {
    /// A run of a cluster, asked through its controller. Default: the runs of `tidemill run` on this machine.
    #[cfg(feature = "cluster")]
    #[arg(long, value_name = "RUN", conflicts_with = "process")]
    pub(crate) run: Option<String>,
    /// The process of a run on this machine, where several have a source of that name.
    #[arg(long, value_name = "PID")]
    pub(crate) process: Option<u32>,
    #[cfg(feature = "cluster")]
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
}

/// `tidemill source ls`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill source ls                     the runs of this machine
  tidemill source ls --run city          a run of a cluster
  tidemill source ls --output json

States: connecting, live, stalled (connected, but silent), failed (not tried again soon: a rejected password, a wrong path),
paused. Received = emitted + dropped + waiting, always.")]
pub(crate) struct ListFeedsArguments {
    #[command(flatten)]
    pub(crate) choice: FeedsOf,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill source add`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill source add cameras dock rtsp://10.0.0.8/stream1
  tidemill source add cameras dock -                      read the address from standard input, where other users do not see it
  tidemill source add cameras dock rtsp://10.0.0.8/stream1 --run city

The workflow file is not changed: add the feed there too, for the next run.")]
pub(crate) struct AddFeedArguments {
    /// The source in the workflow.
    #[arg(value_name = "SOURCE")]
    pub(crate) source: String,
    /// Name of the new feed.
    #[arg(value_name = "FEED")]
    pub(crate) feed: String,
    /// Its address, as in the options of the source; `-`: the first line of standard input.
    #[arg(value_name = "ADDRESS")]
    pub(crate) address: String,
    #[command(flatten)]
    pub(crate) choice: FeedsOf,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill source remove`, `pause` and `resume`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill source pause cameras dock
  tidemill source resume cameras dock --run city")]
pub(crate) struct FeedArguments {
    /// The source in the workflow.
    #[arg(value_name = "SOURCE")]
    pub(crate) source: String,
    /// Name of the feed.
    #[arg(value_name = "FEED")]
    pub(crate) feed: String,
    #[command(flatten)]
    pub(crate) choice: FeedsOf,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}
