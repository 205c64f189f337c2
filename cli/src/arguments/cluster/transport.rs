//! `tidemill net ls`, `net top` and `net policy`: edges that run, and policies on them.
use super::super::OutputForm;
use super::ControllerChoice;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use tidemill_net::edge_name::EdgePattern;
use tidemill_net::protocol::Side;

/// The transport services that a verb asks: that of this machine, or those of workers of a cluster.
#[derive(Debug, Args)]
pub(crate) struct ServiceChoice {
    /// Socket of the service of this machine; default: TIDEMILL_NET, else that of this user, else that of root.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Use the service of this worker, through the controller; repeat for several.
    #[arg(long = "worker", value_name = "NAME", conflicts_with = "socket")]
    pub(crate) workers: Vec<String>,
    /// Use the services of all workers, through the controller.
    #[arg(long, conflicts_with_all = ["socket", "workers"])]
    pub(crate) all_workers: bool,
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
}

/// `tidemill net ls`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill net ls                    edges of the programs on this machine
  tidemill net ls --worker edge-1    those on a worker, as its agent last reported them
  tidemill net ls --output json

An edge is carried within a thread, directly between its two ends, or through the service, where a
policy looks at it.")]
pub(crate) struct ListEdgesArguments {
    #[command(flatten)]
    pub(crate) services: ServiceChoice,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill net top`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill net top
  tidemill net top --once           once, for scripts; takes a second
  tidemill net top --output json    one object per line and second, until Ctrl-C

Keys: up and down move, q quits. Rates are those of the last three seconds.")]
pub(crate) struct WatchEdgesArguments {
    #[command(flatten)]
    pub(crate) services: ServiceChoice,
    /// Print once and exit.
    #[arg(long)]
    pub(crate) once: bool,
    /// Format of the output on stdout; `json` prints one object per line.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// A verb of `tidemill net policy`.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyVerb {
    /// List policies and what they did.
    Ls(ListPoliciesArguments),
    /// Attach a policy to edges, also while they run.
    Attach(AttachPolicyArguments),
    /// Give a policy other options. It keeps its state, such as the tokens of a rate limit.
    Set(SetPolicyArguments),
    /// Take a policy away.
    Detach(DetachPolicyArguments),
    /// List the kinds of policies, with an example of the options of each.
    Kinds(KindsArguments),
}

/// `tidemill net policy ls`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill net policy ls
  tidemill net policy ls --all-workers
  tidemill net policy ls --output json")]
pub(crate) struct ListPoliciesArguments {
    #[command(flatten)]
    pub(crate) services: ServiceChoice,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// The side of an edge between two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SideChoice {
    /// The host that sends.
    Sender,
    /// The host that receives.
    Receiver,
}

impl From<SideChoice> for Side {
    fn from(side: SideChoice) -> Self {
        match side {
            SideChoice::Sender => Self::Sender,
            SideChoice::Receiver => Self::Receiver,
        }
    }
}

/// `tidemill net policy attach`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill net policy attach 'cameras -> detect' rate_limit '{rps: 5, burst: 10}'
  tidemill net policy attach 'detect -> *' log --id look
  tidemill net policy attach '* -> shop.Prices/*' rate_limit '{rps: 100}'    calls of a service
  tidemill net policy attach '*' compress --all-workers    also on workers that join later

The edge is `FROM -> TO`: names of sources, operators and sinks, `*` for any; or a program and a method.
Options are YAML or
JSON; `tidemill net policy kinds` lists them. The channels of the edges move to the service without
loss and without a restart.")]
pub(crate) struct AttachPolicyArguments {
    #[command(flatten)]
    pub(crate) services: ServiceChoice,
    /// Edges to attach it to: `FROM -> TO`, with `*` for any, or `*` for all edges.
    #[arg(value_name = "EDGE", value_parser = EdgePattern::parse)]
    pub(crate) edge: EdgePattern,
    /// Kind of the policy.
    #[arg(value_name = "KIND")]
    pub(crate) kind: String,
    /// Options of that kind, as YAML or JSON.
    #[arg(value_name = "POLICY_OPTIONS")]
    pub(crate) options: Option<String>,
    /// Name of the policy; default: its kind and a free number.
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// Host on which it looks at the frames of an edge between two hosts.
    #[arg(long, value_name = "SIDE", default_value = "sender")]
    pub(crate) side: SideChoice,
    /// Attach it to edges of this workflow only.
    #[arg(long, value_name = "NAME")]
    pub(crate) workflow: Option<String>,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill net policy set`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill net policy set rate_limit-1 '{rps: 8, burst: 16}'
  tidemill net policy set cap '{rps: 8}' --all-workers")]
pub(crate) struct SetPolicyArguments {
    #[command(flatten)]
    pub(crate) services: ServiceChoice,
    /// The policy.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// All of its new options, as YAML or JSON.
    #[arg(value_name = "POLICY_OPTIONS")]
    pub(crate) options: String,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill net policy detach`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill net policy detach rate_limit-1
  tidemill net policy detach cap --all-workers")]
pub(crate) struct DetachPolicyArguments {
    #[command(flatten)]
    pub(crate) services: ServiceChoice,
    /// The policy.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill net policy kinds`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill net policy kinds
  tidemill net policy kinds --output json")]
pub(crate) struct KindsArguments {
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}
