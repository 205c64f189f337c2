//! Arguments of the verbs that make and use a cluster, and deploy to one.
mod capacity;
mod changing;
mod deploying;
mod deployment;
mod detection;
mod elastic;
mod old_spellings;
mod people;
mod verb;

pub(crate) use changing::{ChangeArguments, NextPlan, PlanApplyArguments};
pub(crate) use deploying::{DeployArguments, HealthArguments, NetworkChoice, TargetChoice};
pub(crate) use deployment::{
    DeploymentLogsArguments, DeploymentVerb, DownArguments, PsArguments, UpArguments, UpgradeArguments,
};
pub(crate) use elastic::{
    AttachArguments, ElasticRestoreArguments, ElasticShowArguments, ElasticVerb, RuleChoice,
};
pub(crate) use old_spellings::{note_old_spelling, note_plan_apply};
pub(crate) use people::{
    AddPersonArguments, ListPeopleArguments, PeopleArguments, PeopleVerb, RemoveArguments,
    RemovePersonArguments, ResultsArguments, RevokeArguments,
};
pub(crate) use verb::ClusterVerb;

use super::planning::{parse_level, parse_part};
use super::traces::TraceArguments;
use super::{OutputForm, explained, parse_time};
use clap::{Args, ValueEnum};
use std::net::IpAddr;
use std::path::PathBuf;
use tidemill_cluster::controller::StoreAddress;
use tidemill_identity::JoinAddress;
use tidemill_spec::bucket_address::Address;
use tidemill_spec::units::{HourlyPrice, UnitError};

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
    /// The folder of the controller, on its machine or in its container: its address and the token of the first admin are read there.
    #[arg(
        long,
        value_name = "DIR",
        help_heading = "Cluster options",
        global = true,
        conflicts_with = "token_file"
    )]
    pub(crate) controller_state: Option<PathBuf>,
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
folder; its address goes to the file `address` there. The address has the authority's fingerprint. It may die at any time: workers go
on, and the next one on the same folder takes their runs over.

  tidemill controller --state a --name a.example --store-file store
  tidemill controller --state b --name b.example --store-file store    on another machine, with a copy of a/identities/authority.pem

  AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... tidemill controller --state cluster --files s3://models/tidemill

With `--store` several controllers share a PostgreSQL database: one leads, the others stand by and say who does, and one of them takes
over when it dies. The key of the authority never goes there: copy `identities/authority.pem` from the folder of the first one into
the folder of each other one (mode 600). Workers and people are given all addresses: tidemill://a.example:7420,b.example:7420/FINGERPRINT.")]
pub(crate) struct ControllerArguments {
    /// Its folder: identities, runs, files and states; made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub(crate) state: PathBuf,
    /// A PostgreSQL database that several controllers share, `postgres://USER@HOST/DATABASE?sslmode=verify-full&sslrootcert=FILE`; one with
    /// a password is better in `--store-file`. Default: all is in its folder, and it is the only one.
    #[arg(long, value_name = "ADDRESS", env = "TIDEMILL_STORE", hide_env_values = true)]
    pub(crate) store: Option<StoreAddress>,
    /// A file with that address.
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    pub(crate) store_file: Option<PathBuf>,
    /// An S3-compatible object store in which files of workflows (models, mostly) are kept, too, `s3://BUCKET/PREFIX`: workers have them
    /// from there. Credentials are those of states (AWS_ACCESS_KEY_ID and so on), and workers need none: they get signed links.
    #[arg(long, value_name = "ADDRESS", env = "TIDEMILL_FILES")]
    pub(crate) files: Option<Address>,
    /// Where it answers people and workers (HTTPS).
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:7420")]
    pub(crate) listen: String,
    /// Where it hears the processes of runs.
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:7421")]
    pub(crate) listen_hosts: String,
    /// A name or address by which people and workers reach it; the first one is in its address. Default: the machine's name.
    #[arg(long = "name", value_name = "HOST")]
    pub(crate) names: Vec<String>,
    /// Also serve Prometheus metrics at http://ADDR/metrics, without a token: whoever reaches that address reads them.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    #[command(flatten)]
    pub(crate) traces: TraceArguments,
    /// Remove runs so long after their end, with their files; default: they stay until `tidemill remove`.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) keep_ended: Option<std::time::Duration>,
    /// Bytes of files that ended runs may have together, at the controller and on workers; the oldest go first.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) keep_bytes: Option<u64>,
    #[command(flatten)]
    pub(crate) detection: detection::DetectionArguments,
    /// How fast plans of runs are judged and changed: at 2 it is looked twice as often and waited half as long, at 0.1 ten times as long.
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = processors)]
    pub(crate) replan_pace: f64,
}

/// `tidemill worker`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill worker --state worker --token-file join.token --join tidemill://hub.example:7420/0a4a64580d70e55492277f32af59ed7794cc0278f5ab9dc5f0f3f4fd502227b1
  tidemill worker --state worker --join-file join    in a container: address and token in one file

The controller tells its address when it starts. A join token comes from `tidemill token` (a file, or TIDEMILL_JOIN_TOKEN) and is needed once: afterwards the worker has a certificate in its folder, which it
renews by itself.")]
pub(crate) struct WorkerArguments {
    /// The controller's address, as it tells it when it starts; where there are several, `tidemill://HOST:PORT,HOST:PORT/FINGERPRINT`.
    #[arg(long, value_name = "ADDRESS", required_unless_present = "join_file")]
    pub(crate) join: Option<JoinAddress>,
    /// A file with the controller's address and a join token, a line each, in place of `--join` and `--token-file`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["join", "token_file"])]
    pub(crate) join_file: Option<PathBuf>,
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
    /// Its price, `'0.02 $/h'`: what plans count for it.
    #[arg(long, value_name = "PRICE", value_parser = price)]
    pub(crate) price: Option<HourlyPrice>,
    #[command(flatten)]
    pub(crate) capacity: capacity::CapacityArguments,
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
    /// A folder in which sinks write by absolute paths: `tidemill results` gives what is there, and nothing from other places.
    #[arg(long, value_name = "DIR")]
    pub(crate) results: Vec<PathBuf>,
    /// Serve Prometheus metrics of this agent at http://ADDR/metrics, such as `127.0.0.1:9465`.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    /// The port on which other workers fetch files from it; default: one that the system chooses.
    #[arg(long, value_name = "PORT", default_value = "0", hide_default_value = true)]
    pub(crate) files_port: u16,
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

fn price(text: &str) -> Result<HourlyPrice, String> {
    text.parse().map_err(|error: UnitError| explained(&error))
}

pub(super) fn size(text: &str) -> Result<u64, String> {
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
  tidemill token --name edge-1 --controller-state /var/lib/tidemill --for-join-file > join

Prints the token alone on stdout: it is told this once. With `--for-join-file` the controller's address stands on the line before it,
as `tidemill worker --join-file` reads it.")]
pub(crate) struct TokenArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// How many workers can come in by it.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) uses: u32,
    /// How long it can be used.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_time)]
    pub(crate) expires: std::time::Duration,
    /// The only name that its worker can have.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The worker takes the place of the one that has this name, whose certificates are revoked.
    #[arg(long, requires = "name")]
    pub(crate) replaces: bool,
    /// Print the controller's address before it, for `tidemill worker --join-file`.
    #[arg(long, conflicts_with = "output")]
    pub(crate) for_join_file: bool,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill submit`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill submit workflow.yaml --profiles profile.yaml
  tidemill submit workflow.yaml --profiles profile.yaml --slo rate=20/s --replan auto
  tidemill submit workflow.yaml --profiles profile.yaml --replan auto --degrade accuracy=70,rate=10/s
  tidemill submit workflow.yaml --profiles profile.yaml --infra infrastructure.yaml
  tidemill submit workflow.yaml --plan plan.yaml
  tidemill submit workflow.yaml --plan plan.yaml --profiles profile.yaml --replan auto
  tidemill submit workflow.yaml --one-worker --as night-shift --follow
  tidemill submit workflow.yaml --plan plan.yaml --again   of that name one has ended: in its place

Sends the workflow with the files that it names beneath it (an absolute path means a file of the worker), and begins a run. The
same submission again is the same run, and begins nothing; one that was cancelled or has failed is begun anew with `--again`. With `--profiles` the controller plans it for the workers that have joined, with what
other runs leave of them, as `tidemill plan` would; with `--plan` it runs as it says, and with both it begins as it says. A worker of the plan goes to the worker of
the cluster with its name, else to another.")]
pub(crate) struct SubmitArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The workflow.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: PathBuf,
    /// Run this plan; with `--profiles` another one may follow it (`--replan`).
    #[arg(long, value_name = "FILE", conflicts_with = "one_worker")]
    pub(crate) plan: Option<PathBuf>,
    /// Run all of it on one worker, without a plan.
    // What conflicts with `profiles` needs none, whatever requires them: so the others are named, too.
    #[arg(long, conflicts_with_all = ["profiles", "infrastructure", "slo", "degrade", "max_utilization", "keep_idle", "time_limit"])]
    pub(crate) one_worker: bool,
    /// What the run is called; default: the workflow's name.
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Sources end after so many records.
    #[arg(long, value_name = "N")]
    pub(crate) records: Option<u64>,
    /// Remove the run of this name that has ended, with what its sinks wrote, and begin this one in its place; one that is refused removes
    /// nothing.
    #[arg(long)]
    pub(crate) again: bool,
    /// Stay until the run is over, and tell what happens.
    #[arg(long)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) planning: SubmittedPlanning,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// What the controller plans with.
#[derive(Debug, Args)]
pub(crate) struct SubmittedPlanning {
    /// Plan with these profiles, or folders with a `profile.yaml`; of two figures of the same thing the later counts.
    #[arg(long, value_name = "PATH", num_args = 1.., help_heading = "Planning options")]
    pub(crate) profiles: Vec<PathBuf>,
    /// Machines, prices and links; the workers of their names run them. Default: the workers that have joined, as they tell.
    #[arg(long = "infra", value_name = "FILE", requires = "profiles", help_heading = "Planning options")]
    pub(crate) infrastructure: Option<PathBuf>,
    /// A service level instead of the workflow's: `rate=40/s`, `accuracy=56.0`, `latency=p99:800ms`; `=none` drops it.
    #[arg(long, value_name = "LEVEL=VALUE", value_parser = level, requires = "profiles", help_heading = "Planning options")]
    pub(crate) slo: Vec<String>,
    /// Levels that may give way while it runs, each down to what, where no plan keeps all of them; the first one first:
    /// `accuracy=70,latency=p99:2s,rate=20/s`. Others never give way.
    #[arg(long, value_name = "LEVEL=VALUE,...", value_delimiter = ',', value_parser = level, requires = "profiles", help_heading = "Planning options")]
    pub(crate) degrade: Vec<String>,
    /// Largest part of its time that a worker may be busy, with what other runs take.
    #[arg(long, value_name = "PART", default_value_t = 0.85, value_parser = parse_part, requires = "profiles", help_heading = "Planning options")]
    pub(crate) max_utilization: f64,
    /// Leave idle time of workers to bursts, instead of more accurate models at the same cost.
    #[arg(long, requires = "profiles", help_heading = "Planning options")]
    pub(crate) keep_idle: bool,
    /// Stop searching after so much time.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time, requires = "profiles", help_heading = "Planning options")]
    pub(crate) time_limit: std::time::Duration,
    /// Processors that the plan may take, over all workers.
    #[arg(long, value_name = "N", value_parser = processors, requires = "profiles", help_heading = "Planning options")]
    pub(crate) processors: Option<f64>,
    /// Memory that its models may take, over all workers.
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "profiles", help_heading = "Planning options")]
    pub(crate) memory: Option<u64>,
    /// Action on a better plan during the run: change to it, propose it (see `tidemill change`), or look for none.
    #[arg(long, value_name = "WHAT", default_value = "ask", requires_ifs = [("auto", "profiles"), ("ask", "profiles")], help_heading = "Planning options")]
    pub(crate) replan: ReplanChoice,
}

/// `--replan`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReplanChoice {
    /// The run changes to it.
    Auto,
    /// It is proposed.
    Ask,
    /// Nobody looks for one.
    Off,
}

impl std::fmt::Display for ReplanChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Ask => "ask",
            Self::Off => "off",
        })
    }
}

/// A level is sent as it was written, if it is one.
fn level(text: &str) -> Result<String, String> {
    parse_level(text).map(|_| text.to_owned())
}

pub(super) fn processors(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("write a number above 0".to_owned()),
    }
}

/// `tidemill replan`, the old spelling of `tidemill change`.
#[derive(Debug, Args)]
pub(crate) struct ReplanArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// This plan instead of the best one.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Machines, prices, links and places of sources from now on, for this and all later plans of the run.
    #[arg(long = "infra", value_name = "FILE")]
    pub(crate) infrastructure: Option<PathBuf>,
    /// Print what is proposed and look for nothing.
    #[arg(long, conflicts_with_all = ["plan", "apply", "infrastructure"])]
    pub(crate) show: bool,
    /// Have the run change to it.
    #[arg(long)]
    pub(crate) apply: bool,
    /// Ask nothing before.
    #[arg(long, short, requires = "apply")]
    pub(crate) yes: bool,
    /// Write the plan that is proposed to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill workers`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill workers
  tidemill workers --links                  delay and rate between them, as measured
  tidemill workers --infra > workers.yaml   as an infrastructure, for `tidemill plan` and `tidemill submit --infra`")]
pub(crate) struct WorkersArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// Print them as an infrastructure, with what the runs of now leave of them.
    #[arg(long = "infra", conflicts_with_all = ["links", "output"])]
    pub(crate) infrastructure: bool,
    /// List the ways between them.
    #[arg(long)]
    pub(crate) links: bool,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill list`.
#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill status`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill status night-shift
  tidemill status                 the controller that leads, those that stand by, and how many workers and runs there are")]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The run; default: the cluster itself.
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill cancel`.
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
#[command(after_help = "Examples:
  tidemill logs night-shift
  tidemill logs night-shift --follow              until the run is over
  tidemill logs night-shift --stage speech
  tidemill logs night-shift --worker edge-1 -o json

Each line has its time, the worker of the plan, the worker that it ran on where that is another one, the stages, and its importance;
`EVENT` is told by the controller. `tidemill worker --log-level debug` says more. The newest 2000 lines of a run, 1 MiB at most, are
kept until the run is removed.")]
pub(crate) struct LogsArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Stay until the run is over, and print what comes.
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only lines of this worker, of the cluster or of the plan.
    #[arg(long, value_name = "WORKER")]
    pub(crate) worker: Option<String>,
    /// Only lines about this stage, or about any stage of this operator, or of a process that has one of them.
    #[arg(long, value_name = "STAGE")]
    pub(crate) stage: Option<String>,
    /// Form of the answer on stdout; `json`: a line each.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
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
  tidemill drain edge-1             its work continues on other workers; nothing new is started there
  tidemill undrain edge-1           it takes work again")]
pub(crate) struct DrainArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The worker.
    #[arg(value_name = "WORKER")]
    pub(crate) worker: String,
    /// The old spelling of `tidemill undrain`.
    #[arg(long, hide = true)]
    pub(crate) end: bool,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill undrain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill undrain edge-1")]
pub(crate) struct UndrainArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The worker.
    #[arg(value_name = "WORKER")]
    pub(crate) worker: String,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill top`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill top                                   the runs of a cluster; with one, that
  tidemill top night-shift
  tidemill top night-shift --once                once, for scripts
  tidemill top --metrics http://127.0.0.1:9464   a `tidemill run --metrics 127.0.0.1:9464` on this machine

Keys: s sorts by the next column and S by the one before, r turns the order around, p shows the 99th percentile or the median of
times, up and down move, Enter opens a run, Esc goes back to all runs, q ends.")]
pub(crate) struct TopArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The run; default: the only one that goes on, or a list.
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Read the metrics at this address instead of asking a controller.
    #[arg(long, value_name = "URL")]
    pub(crate) metrics: Option<String>,
    /// Print once and end.
    #[arg(long)]
    pub(crate) once: bool,
    /// How often to look.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    pub(crate) every: std::time::Duration,
    /// Column to sort stages by; default: the order of the plan.
    #[arg(long, value_name = "COLUMN", default_value = "plan")]
    pub(crate) sort: SortColumn,
    /// Form of the answer on stdout; `json`: once.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// What stages are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SortColumn {
    /// The order of the plan.
    Plan,
    /// Name of the stage.
    Stage,
    /// Records in per second.
    In,
    /// Records out per second.
    Out,
    /// Waiting before the computation.
    Queue,
    /// The computation.
    Compute,
    /// The way to the stage.
    Transfer,
    /// Part of its time that it computes.
    Busy,
    /// Records that wait.
    Waiting,
    /// Records lost and dead letters.
    Lost,
}
