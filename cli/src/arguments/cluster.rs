//! Arguments of the verbs that make and use a cluster, and deploy to one.
mod aggregation;
mod capacity;
mod changing;
mod collective;
mod deploying;
mod deployment;
mod detection;
mod elastic;
mod hints;
mod jobs;
mod net;
mod old_spellings;
mod paths;
mod people;
mod traffic;
mod transport;
mod verb;

pub(crate) use aggregation::{
    AggChoice, AggProcessArguments, AggVerb, BenchAggArguments, ExplainAggArguments, ListAggArguments,
    MigrateArguments, NumbersChoice, RemoveAggArguments, ServeAggArguments, UpdateChoice,
};
pub(crate) use changing::{ChangeArguments, NextPlan, PlanApplyArguments};
pub(crate) use collective::{
    BenchGroupArguments, CollectiveVerb, GroupArguments, GroupServiceChoice, GroupStrategyArguments,
    NetBenchVerb,
};
pub(crate) use deploying::{DeployArguments, HealthArguments, NetworkChoice, TargetChoice};
pub(crate) use deployment::{
    DeploymentLogsArguments, DeploymentVerb, DownArguments, PsArguments, UpArguments, UpgradeArguments,
};
pub(crate) use elastic::{
    AttachArguments, ElasticRestoreArguments, ElasticShowArguments, ElasticVerb, RuleChoice,
};
pub(crate) use hints::HintsArguments;
pub(crate) use net::{
    DrainPathArguments, ListPathsArguments, NetVerb, PathsVerb, ServeNetArguments, StubArguments,
    TestPathsArguments, UpgradeNetArguments,
};
pub(crate) use old_spellings::{note_old_spelling, note_plan_apply};
pub(crate) use people::{
    AddPersonArguments, ListPeopleArguments, PeopleArguments, PeopleVerb, RemoveArguments,
    RemovePersonArguments, ResultsArguments, RevokeArguments,
};
pub(crate) use transport::{
    AttachPolicyArguments, DetachPolicyArguments, KindsArguments, ListEdgesArguments, ListPoliciesArguments,
    PolicyVerb, ServiceChoice, SetPolicyArguments, WatchEdgesArguments,
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

/// Controller that a command asks, and the access token for it.
#[derive(Debug, Clone, Args)]
pub(crate) struct ControllerChoice {
    /// Address of the controller, which it prints when it starts; default: that of the last `tidemill login`.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "TIDEMILL_CONTROLLER",
        help_heading = "Cluster options",
        global = true
    )]
    pub(crate) controller: Option<JoinAddress>,
    /// Folder of the controller, on its machine or in its container: contains its address and the token of the first admin.
    #[arg(
        long,
        value_name = "DIR",
        help_heading = "Cluster options",
        global = true,
        conflicts_with = "token_file"
    )]
    pub(crate) controller_state: Option<PathBuf>,
    /// File with an access token; default: TIDEMILL_TOKEN, then the token of the last `tidemill login`.
    #[arg(long, value_name = "FILE", help_heading = "Cluster options", global = true)]
    pub(crate) token_file: Option<PathBuf>,
}

/// Controller that a command asks, and the form of the answer.
#[derive(Debug, Clone, Args)]
pub(crate) struct Asked {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill controller`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill controller --state cluster --name hub.example
  tidemill controller --state cluster --listen 127.0.0.1:7420 --listen-hosts 127.0.0.1:7421 --name localhost

The first start creates a certificate authority, and writes the access token of the first admin to `admin.token` and the
address, which contains the fingerprint of the authority, to `address` in the folder. If a controller dies, the workers
continue, and the next controller on the same folder takes over their runs.

  tidemill controller --state a --name a.example --store-file store
  tidemill controller --state b --name b.example --store-file store    on another machine, with a copy of a/identities/authority.pem

  AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... tidemill controller --state cluster --files s3://models/tidemill

With `--store` several controllers share a PostgreSQL database: one leads, the others stand by, and one of them takes over
when the leader dies. The database does not contain the key of the authority: copy `identities/authority.pem` from the folder
of the first controller into the folder of each other controller (mode 600). Give workers and people all addresses:
tidemill://a.example:7420,b.example:7420/FINGERPRINT.")]
pub(crate) struct ControllerArguments {
    /// Folder for identities, runs, files and states; created if it does not exist.
    #[arg(long, value_name = "DIR")]
    pub(crate) state: PathBuf,
    /// PostgreSQL database that several controllers share,
    /// `postgres://USER@HOST/DATABASE?sslmode=verify-full&sslrootcert=FILE`; write an address with a password in a file
    /// instead (`--store-file`). Default: none; the folder contains everything, and this is the only controller.
    #[arg(long, value_name = "ADDRESS", env = "TIDEMILL_STORE", hide_env_values = true)]
    pub(crate) store: Option<StoreAddress>,
    /// File with the address of the database.
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    pub(crate) store_file: Option<PathBuf>,
    /// S3-compatible object store for files of workflows, such as models, `s3://BUCKET/PREFIX`: workers fetch them
    /// there. Reads credentials from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; workers need none, because they get
    /// signed links.
    #[arg(long, value_name = "ADDRESS", env = "TIDEMILL_FILES")]
    pub(crate) files: Option<Address>,
    /// Address that accepts people and workers (HTTPS).
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:7420")]
    pub(crate) listen: String,
    /// Address that accepts the processes of runs.
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:7421")]
    pub(crate) listen_hosts: String,
    /// Name or IP address by which people and workers reach the controller; its address contains the first one. Default: the name of the machine.
    #[arg(long = "name", value_name = "HOST")]
    pub(crate) names: Vec<String>,
    /// Serve Prometheus metrics at http://ADDR/metrics, such as `127.0.0.1:9464`; readers need no token.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    #[command(flatten)]
    pub(crate) traces: TraceArguments,
    /// Remove runs and their files this long after their end, such as `7d`; default: keep them until `tidemill remove`.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) keep_ended: Option<std::time::Duration>,
    /// Limit on the files of all ended runs together, at the controller and on workers, such as `50GiB`; removes the oldest runs first. Default: no limit.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) keep_bytes: Option<u64>,
    #[command(flatten)]
    pub(crate) detection: detection::DetectionArguments,
    #[command(flatten)]
    pub(crate) jobs: jobs::JobQueueArguments,
    /// Speed of automatic plan changes: 2 checks plans twice as often and waits half as long before a change, 0.1 waits ten times as long.
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = processors)]
    pub(crate) replan_pace: f64,
}

/// `tidemill worker`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill worker --state worker --token-file join.token --join tidemill://hub.example:7420/0a4a64580d70e55492277f32af59ed7794cc0278f5ab9dc5f0f3f4fd502227b1
  tidemill worker --state worker --join-file join    in a container: address and token in one file

The controller prints its address when it starts. `tidemill token` creates a join token (a file, or TIDEMILL_JOIN_TOKEN), which
the worker needs once: then it has a certificate in its folder, which it renews itself.")]
pub(crate) struct WorkerArguments {
    /// Address of the controller, which it prints when it starts; of several controllers: `tidemill://HOST:PORT,HOST:PORT/FINGERPRINT`.
    #[arg(long, value_name = "ADDRESS", required_unless_present = "join_file")]
    pub(crate) join: Option<JoinAddress>,
    /// File with the address of the controller and a join token, one per line, instead of `--join` and `--token-file`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["join", "token_file"])]
    pub(crate) join_file: Option<PathBuf>,
    /// Folder for its identity, files and the processes of runs; created if it does not exist.
    #[arg(long, value_name = "DIR")]
    pub(crate) state: PathBuf,
    /// File with the join token; default: TIDEMILL_JOIN_TOKEN.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Name of the worker; default: the name of the machine.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Location of the worker, as in infrastructures, such as `factory`.
    #[arg(long, value_name = "NAME")]
    pub(crate) location: Option<String>,
    /// Tier of the worker: edge, hub, cloud.
    #[arg(long, value_name = "NAME")]
    pub(crate) tier: Option<String>,
    /// Type of the worker, as in profiles and infrastructures.
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) worker_type: Option<String>,
    /// Price of the worker in plans, such as `'0.02 $/h'`.
    #[arg(long, value_name = "PRICE", value_parser = price)]
    pub(crate) price: Option<HourlyPrice>,
    #[command(flatten)]
    pub(crate) capacity: capacity::CapacityArguments,
    /// Label of the worker, such as `camera=north`; repeat for several.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// IP address at which other workers reach this one; default: the one from which it reaches the controller.
    #[arg(long, value_name = "IP")]
    pub(crate) address: Option<IpAddr>,
    /// Other workers cannot reach this one (it is behind a router); it connects to them.
    #[arg(long, conflicts_with = "address")]
    pub(crate) only_dials: bool,
    #[command(flatten)]
    pub(crate) paths: paths::PathArguments,
    #[command(flatten)]
    pub(crate) traffic: traffic::TrafficArguments,
    /// Limit on the files to keep for later runs.
    #[arg(long, value_name = "SIZE", default_value = "10GiB", value_parser = size)]
    pub(crate) cache: u64,
    /// Folder in which sinks write by absolute paths: `tidemill results` fetches files from there, and from no other absolute path.
    #[arg(long, value_name = "DIR")]
    pub(crate) results: Vec<PathBuf>,
    /// Serve Prometheus metrics of this worker at http://ADDR/metrics, such as `127.0.0.1:9465`.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    /// Port on which other workers fetch files from this one; default: a free port.
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

Saves both in your configuration folder, in a file that only you can read.")]
pub(crate) struct LoginArguments {
    /// Address of the controller, which it prints when it starts.
    #[arg(value_name = "ADDRESS")]
    pub(crate) address: JoinAddress,
    /// File with the access token; default: TIDEMILL_TOKEN.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// `tidemill token`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill token                             for one worker, within an hour
  tidemill token --uses 20 --expires 1d
  tidemill token --name edge-1 --replaces    a machine that was installed again
  tidemill token --name edge-1 --controller-state /var/lib/tidemill --for-join-file > join

Prints only the token on stdout; it cannot be shown again. With `--for-join-file` the line before it is the address of the
controller, as `tidemill worker --join-file` reads it.")]
pub(crate) struct TokenArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// Number of workers that can join with the token.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) uses: u32,
    /// Time until the token expires.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_time)]
    pub(crate) expires: std::time::Duration,
    /// Name that the worker must have; default: any name.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Replace the worker of this name, and revoke its certificates.
    #[arg(long, requires = "name")]
    pub(crate) replaces: bool,
    /// Print the address of the controller before the token, for `tidemill worker --join-file`.
    #[arg(long, conflicts_with = "output")]
    pub(crate) for_join_file: bool,
    /// Format of the output on stdout.
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
  tidemill submit workflow.yaml --plan plan.yaml --again   replace an ended run of that name

Sends the workflow and the files that it names by relative paths (an absolute path means a file of the worker), and starts a
run. The same submission again starts nothing: it is the same run. `--again` starts a cancelled or failed run again. With
`--profiles` the controller plans the run for the workers that have joined and the capacity that other runs leave, as
`tidemill plan` does; with `--plan` the run follows that plan; with both it starts with that plan. Each worker of the plan is
the worker of the cluster with the same name, else another one.")]
pub(crate) struct SubmitArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// Workflow to run.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: PathBuf,
    /// Run this plan; with `--profiles` the run can change to another plan later (`--replan`).
    #[arg(long, value_name = "FILE", conflicts_with = "one_worker")]
    pub(crate) plan: Option<PathBuf>,
    /// Run the whole workflow on one worker, without a plan.
    // clap drops the requirement of `profiles` where it conflicts, so the options that require it are named too.
    #[arg(long, conflicts_with_all = ["profiles", "infrastructure", "slo", "degrade", "max_utilization", "keep_idle", "time_limit"])]
    pub(crate) one_worker: bool,
    /// Name of the run; default: the name of the workflow.
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// End each source after this number of records.
    #[arg(long, value_name = "N")]
    pub(crate) records: Option<u64>,
    /// Replace the ended run of this name: remove it and the output of its sinks, then start this one. A rejected
    /// submission removes nothing.
    #[arg(long)]
    pub(crate) again: bool,
    /// Wait until the run ends, and print its events.
    #[arg(long)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) planning: SubmittedPlanning,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// Files and limits for the planner of the controller.
#[derive(Debug, Args)]
pub(crate) struct SubmittedPlanning {
    /// Profiles to plan with, or folders with a `profile.yaml`; a later profile overrides earlier ones.
    #[arg(long, value_name = "PATH", num_args = 1.., help_heading = "Planning options")]
    pub(crate) profiles: Vec<PathBuf>,
    /// Machines, prices and links to plan with; each machine is the worker of its name. Default: the workers that have joined, as they report themselves.
    #[arg(long = "infra", value_name = "FILE", requires = "profiles", help_heading = "Planning options")]
    pub(crate) infrastructure: Option<PathBuf>,
    /// Replace a service level of the workflow: `rate=40/s`, `accuracy=56.0`, `latency=p99:800ms`; `=none` drops it.
    #[arg(long, value_name = "LEVEL=VALUE", value_parser = level, requires = "profiles", help_heading = "Planning options")]
    pub(crate) slo: Vec<String>,
    /// Service levels to relax during the run if no plan keeps all of them, each with its limit, in this order:
    /// `accuracy=70,latency=p99:2s,rate=20/s`. Default: none.
    #[arg(long, value_name = "LEVEL=VALUE,...", value_delimiter = ',', value_parser = level, requires = "profiles", help_heading = "Planning options")]
    pub(crate) degrade: Vec<String>,
    /// Limit on the part of its time that a worker is busy, from 0 to 1, including other runs.
    #[arg(long, value_name = "PART", default_value_t = 0.85, value_parser = parse_part, requires = "profiles", help_heading = "Planning options")]
    pub(crate) max_utilization: f64,
    /// Keep idle time of workers for bursts, instead of choosing more accurate models at the same cost.
    #[arg(long, requires = "profiles", help_heading = "Planning options")]
    pub(crate) keep_idle: bool,
    /// Stop the search for a plan after this time.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time, requires = "profiles", help_heading = "Planning options")]
    pub(crate) time_limit: std::time::Duration,
    /// Limit on the processors of the plan, over all workers; default: no limit.
    #[arg(long, value_name = "N", value_parser = processors, requires = "profiles", help_heading = "Planning options")]
    pub(crate) processors: Option<f64>,
    /// Limit on the memory of the models, over all workers, such as `8GiB`; default: no limit.
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "profiles", help_heading = "Planning options")]
    pub(crate) memory: Option<u64>,
    /// Action on a better plan during the run: change to it, propose it (see `tidemill change`), or look for none.
    #[arg(long, value_name = "WHAT", default_value = "ask", requires_ifs = [("auto", "profiles"), ("ask", "profiles")], help_heading = "Planning options")]
    pub(crate) replan: ReplanChoice,
}

/// `--replan`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReplanChoice {
    /// Change to the better plan.
    Auto,
    /// Propose the better plan; `tidemill change` accepts it.
    Ask,
    /// Look for no better plan.
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

/// Checks a service level, which is sent as the user wrote it.
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
    /// Change to this plan instead of the best one.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Machines, prices, links and places of sources, for this and all later plans of the run.
    #[arg(long = "infra", value_name = "FILE")]
    pub(crate) infrastructure: Option<PathBuf>,
    /// Print the last proposed plan, instead of planning.
    #[arg(long, conflicts_with_all = ["plan", "apply", "infrastructure"])]
    pub(crate) show: bool,
    /// Change the run to the plan.
    #[arg(long)]
    pub(crate) apply: bool,
    /// Change without asking.
    #[arg(long, short, requires = "apply")]
    pub(crate) yes: bool,
    /// Write the proposed plan to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill workers`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill workers
  tidemill workers --links                  delay and rates between them, and which rate plans use
  tidemill workers --infra > workers.yaml   as an infrastructure, for `tidemill plan` and `tidemill submit --infra`")]
pub(crate) struct WorkersArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// Print the workers as an infrastructure, with the capacity that the present runs leave.
    #[arg(long = "infra", conflicts_with_all = ["links", "output"])]
    pub(crate) infrastructure: bool,
    /// List the links between the workers.
    #[arg(long)]
    pub(crate) links: bool,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill list`.
#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    pub(crate) asked: Asked,
}

/// `tidemill status`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill status night-shift
  tidemill status                 the leading controller, the standby controllers, and the numbers of workers and runs")]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// Run to show; default: the cluster itself.
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill cancel`.
#[derive(Debug, Args)]
pub(crate) struct RunChoice {
    /// The run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) asked: Asked,
}

/// `tidemill logs`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill logs night-shift
  tidemill logs night-shift --follow              until the run ends
  tidemill logs night-shift --stage speech
  tidemill logs night-shift --worker edge-1 -o json

Each line has the time, the worker of the plan, the worker of the cluster if it is another one, the stages, and the level;
`EVENT` marks lines of the controller. `tidemill worker --log-level debug` logs more. The controller keeps the newest 2000
lines of a run, at most 1 MiB, until you remove the run.")]
pub(crate) struct LogsArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Print new lines until the run ends.
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Print only lines of this worker of the cluster or of the plan.
    #[arg(long, value_name = "WORKER")]
    pub(crate) worker: Option<String>,
    /// Print only lines about this stage, about the stages of this operator, or of a process that runs one of them.
    #[arg(long, value_name = "STAGE")]
    pub(crate) stage: Option<String>,
    /// Format of the output on stdout; `json` prints one object per line.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// Print new events until Ctrl-C.
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Format of the output on stdout; `json` prints one object per line.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill drain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill drain edge-1             its work continues on other workers; it accepts no new work
  tidemill undrain edge-1           it accepts work again")]
pub(crate) struct DrainArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The worker.
    #[arg(value_name = "WORKER")]
    pub(crate) worker: String,
    /// The old spelling of `tidemill undrain`.
    #[arg(long, hide = true)]
    pub(crate) end: bool,
    /// Format of the output on stdout.
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
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill top`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill top                                   the runs of a cluster, or its only run
  tidemill top night-shift
  tidemill top night-shift --once                once, for scripts
  tidemill top --metrics http://127.0.0.1:9464   a run of `tidemill run --metrics 127.0.0.1:9464` on this machine

Keys: s sorts by the next column, S by the previous one, r reverses the order, p switches between the 99th percentile and the
median of times, up and down move, Enter opens a run, Esc returns to all runs, q quits.")]
pub(crate) struct TopArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// Run to watch; default: the only active run, or a list of all.
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Read the metrics at this address instead of asking a controller.
    #[arg(long, value_name = "URL")]
    pub(crate) metrics: Option<String>,
    /// Print once and exit.
    #[arg(long)]
    pub(crate) once: bool,
    /// Time between two updates.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    pub(crate) every: std::time::Duration,
    /// Column to sort stages by.
    #[arg(long, value_name = "COLUMN", default_value = "plan")]
    pub(crate) sort: SortColumn,
    /// Format of the output on stdout; `json` prints once and ends.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// Column to sort stages by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SortColumn {
    /// Order of the plan.
    Plan,
    /// Name of the stage.
    Stage,
    /// Records in per second.
    In,
    /// Records out per second.
    Out,
    /// Time in the queue.
    Queue,
    /// Time of the computation.
    Compute,
    /// Time of the transfer to the stage.
    Transfer,
    /// Part of the time that the stage computes.
    Busy,
    /// Records in the queue.
    Waiting,
    /// Records lost and dead letters.
    Lost,
}
