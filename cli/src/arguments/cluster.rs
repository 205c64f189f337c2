//! Arguments of the verbs that make and use a cluster.
use super::OutputForm;
use clap::Args;
use std::net::IpAddr;
use std::path::PathBuf;
use tidemill_identity::JoinAddress;

/// Which controller is asked, and by whom.
#[derive(Debug, Clone, Args)]
pub(crate) struct ControllerChoice {
    /// The controller, as it tells its address when it starts; default: that of the last `tidemill login`.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "TIDEMILL_CONTROLLER",
        help_heading = "Cluster options",
        global = true
    )]
    pub(crate) controller: Option<JoinAddress>,
    /// A file with an access token; default: TIDEMILL_TOKEN, then the one of the last `tidemill login`.
    #[arg(long, value_name = "FILE", help_heading = "Cluster options", global = true)]
    pub(crate) token_file: Option<PathBuf>,
}

/// `tidemill controller`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill controller --state cluster --name hub.example
  tidemill controller --state cluster --listen 127.0.0.1:7420 --listen-hosts 127.0.0.1:7421 --name localhost

The first time it makes its own certificate authority, and writes the access token of the first admin to admin.token in its
folder. Its address has the authority's fingerprint. It may die at any time: workers go on, and the next one on the same folder
takes their runs over.")]
pub(crate) struct ControllerArguments {
    /// Its folder: identities, runs, files and states; made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub(crate) state: PathBuf,
    /// Where it answers people and workers (HTTPS).
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:7420")]
    pub(crate) listen: String,
    /// Where it hears the processes of runs.
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:7421")]
    pub(crate) listen_hosts: String,
    /// A name or address by which people and workers reach it; the first one is in its address. Default: the machine's name.
    #[arg(long = "name", value_name = "HOST")]
    pub(crate) names: Vec<String>,
}

/// `tidemill worker`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill worker --state worker --token-file join.token --join tidemill://hub.example:7420/0a4a64580d70e55492277f32af59ed7794cc0278f5ab9dc5f0f3f4fd502227b1

The controller tells its address when it starts. A join token comes from `tidemill token` (a file, or TIDEMILL_JOIN_TOKEN) and is needed once: afterwards the worker has a certificate in its folder, which it
renews by itself.")]
pub(crate) struct WorkerArguments {
    /// The controller's address, as it tells it when it starts.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) join: JoinAddress,
    /// Its folder: identity, files, processes of runs; made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub(crate) state: PathBuf,
    /// A file with the join token; default: TIDEMILL_JOIN_TOKEN.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// What it is called; default: the machine's name.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Where it is, as in infrastructures.
    #[arg(long, value_name = "NAME")]
    pub(crate) location: Option<String>,
    /// Its tier: edge, hub, cloud.
    #[arg(long, value_name = "NAME")]
    pub(crate) tier: Option<String>,
    /// Its type, as in profiles and infrastructures.
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) worker_type: Option<String>,
    /// A label: `camera=north`.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Where other workers reach it; default: the address that it has towards the controller.
    #[arg(long, value_name = "IP")]
    pub(crate) address: Option<IpAddr>,
    /// Other workers cannot reach it (it is behind a router): it dials them.
    #[arg(long, conflicts_with = "address")]
    pub(crate) only_dials: bool,
    /// Bytes of files to keep for later runs.
    #[arg(long, value_name = "SIZE", default_value = "10GiB", value_parser = size)]
    pub(crate) cache: u64,
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

fn size(text: &str) -> Result<u64, String> {
    text.parse::<tidemill_spec::units::Bytes>().map(|bytes| bytes.0).map_err(|error| error.to_string())
}

/// `tidemill login`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill login --token-file admin.token tidemill://hub.example:7420/0a4a64580d70e55492277f32af59ed7794cc0278f5ab9dc5f0f3f4fd502227b1

Keeps both in a file that nobody else can read, in your configuration folder.")]
pub(crate) struct LoginArguments {
    /// The controller's address.
    #[arg(value_name = "ADDRESS")]
    pub(crate) address: JoinAddress,
    /// A file with the access token; default: TIDEMILL_TOKEN.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// `tidemill token`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill token                             for one worker, within an hour
  tidemill token --uses 20 --expires 1d
  tidemill token --name edge-1 --replaces    a machine that was set up anew

Prints the token alone on stdout: it is told this once.")]
pub(crate) struct TokenArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// How many workers can come in by it.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) uses: u32,
    /// How long it can be used.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = super::parse_time)]
    pub(crate) expires: std::time::Duration,
    /// The only name that its worker can have.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The worker takes the place of the one that has this name, whose certificates are revoked.
    #[arg(long, requires = "name")]
    pub(crate) replaces: bool,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill submit`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill submit workflow.yaml --plan plan.yaml
  tidemill submit workflow.yaml --as night-shift --follow

Sends the workflow with the files that it names beneath it (an absolute path means a file of the worker), and begins a run. The
same submission again is the same run. A worker of the plan goes to the worker of the cluster with its name, else to another.")]
pub(crate) struct SubmitArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The workflow.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: PathBuf,
    /// The plan; default: all of it on one worker.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// What the run is called; default: the workflow's name.
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Sources end after so many records.
    #[arg(long, value_name = "N")]
    pub(crate) records: Option<u64>,
    /// Stay until the run is over, and tell what happens.
    #[arg(long)]
    pub(crate) follow: bool,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill list`, `tidemill workers`.
#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill status`, `tidemill cancel`.
#[derive(Debug, Args)]
pub(crate) struct RunChoice {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Stay, and print what comes.
    #[arg(long, short)]
    pub(crate) follow: bool,
}

/// `tidemill events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// Stay, and print what comes.
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Form of the answer on stdout; `json`: a line each.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill drain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill drain edge-1             what runs there goes on elsewhere, nothing new is started there
  tidemill drain edge-1 --end       it takes work again")]
pub(crate) struct DrainArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The worker.
    #[arg(value_name = "WORKER")]
    pub(crate) worker: String,
    /// Give it work again.
    #[arg(long)]
    pub(crate) end: bool,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}
