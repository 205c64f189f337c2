//! `tidemill net`: the connections between machines, and the edges of programs.
use super::super::OutputForm;
use super::super::parse_time;
use super::ControllerChoice;
use super::collective::{CollectiveVerb, GroupArguments, NetBenchVerb};
use super::hints::HintsArguments;
use super::paths::PathArguments;
use super::transport::{ListEdgesArguments, PolicyVerb, WatchEdgesArguments};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// A verb of `tidemill net`.
#[derive(Debug, Subcommand)]
pub(crate) enum NetVerb {
    /// List the edges of running programs: how each is carried, records, bytes, policies.
    Ls(ListEdgesArguments),
    /// Watch the edges of running programs, with rates.
    Top(WatchEdgesArguments),
    /// List, attach, change and detach policies on edges that run.
    Policy {
        /// The verb.
        #[command(subcommand)]
        verb: PolicyVerb,
    },
    /// The paths by which machines reach each other.
    Paths {
        /// The verb.
        #[command(subcommand)]
        verb: PathsVerb,
    },
    /// Groups of programs that compute together: list, show, and change how they do.
    Collective {
        /// The verb.
        #[command(subcommand)]
        verb: CollectiveVerb,
    },
    /// Show what links carry, what is free on them, and what groups are planned from.
    Hints(HintsArguments),
    /// Measure the transport service.
    Bench {
        /// The verb.
        #[command(subcommand)]
        verb: NetBenchVerb,
    },
    /// Serve this machine until Ctrl-C: edges of its runs go through the service where policies are attached.
    Serve(ServeNetArguments),
    /// Replace the program of the running service by another version, while edges go through it.
    Upgrade(UpgradeNetArguments),
    /// Write Rust code for services from .proto files: programs call them through the service.
    Stub(StubArguments),
}

/// `tidemill net serve`.
#[derive(Debug, Args)]
#[command(
    after_help = "One service serves all programs of a machine. The agent of a cluster's worker starts its own.

Examples:
  tidemill net serve &
  tidemill run workflow.yaml &
  tidemill net policy attach 'cameras -> detect' rate_limit '{rps: 5}'
  tidemill net serve --grpc 127.0.0.1:50051
  tidemill net serve --grpc-server shop.Prices=http://10.0.0.7:50051 --proto prices.proto
  tidemill net serve --listen 10.0.0.1:7470                                   introduces the ranks of groups
  tidemill net serve --listen 10.0.0.2:7470 --groups-at 10.0.0.1:7470 --rack east
  tidemill net serve --listen 10.0.0.2:7470 --groups-at 10.0.0.1:7470 --rate 1Gbps --rack-rate up=20Mbps,down=100Mbps"
)]
pub(crate) struct ServeNetArguments {
    /// The file of its socket. Default: /run/tidemill/net.sock for root, else in the folder XDG_RUNTIME_DIR.
    #[arg(long, value_name = "FILE", env = tidemill_net::client::SOCKET_VARIABLE)]
    pub(crate) socket: Option<PathBuf>,
    /// The folder for policies that are attached, and for logs of policies. Default: that of the socket.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) state: Option<PathBuf>,
    /// Where gRPC clients call the services of this machine. Without TLS: whoever reaches the address may call.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) grpc: Option<std::net::SocketAddr>,
    /// A gRPC server whose service programs of this machine call as one of their own; may be given several times.
    #[arg(long, value_name = "SERVICE=URL", requires = "proto")]
    pub(crate) grpc_server: Vec<String>,
    /// The .proto files of those services.
    #[arg(long, value_name = "FILE", requires = "grpc_server")]
    pub(crate) proto: Vec<PathBuf>,
    /// A folder for imports of .proto files. Default: those of the files.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) include: Vec<PathBuf>,
    /// Serve Prometheus metrics of groups at http://ADDR/metrics, such as `127.0.0.1:9467`.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    #[command(flatten)]
    pub(crate) groups: GroupArguments,
}

/// `tidemill net stub`.
#[derive(Debug, Args)]
#[command(
    after_help = "Writes Rust code for the services and messages of .proto files: a client and a trait to implement for each service.
It needs the crates tidemill-rpc and tokio. In a build script, `tidemill_stub::build` does the same.

Examples:
  tidemill net stub prices.proto > src/prices.rs
  tidemill net stub prices.proto --include protos --out src/prices.rs"
)]
pub(crate) struct StubArguments {
    /// The .proto files.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) proto: Vec<PathBuf>,
    /// A folder for imports. Default: those of the files.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) include: Vec<PathBuf>,
    /// The file to write. Default: standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// `tidemill net upgrade`.
#[derive(Debug, Args)]
#[command(
    after_help = "The new version starts beside the old one, takes over all programs, and is watched for some seconds. If it
fails, the old one serves again, and nothing is lost.

Examples:
  tidemill net upgrade /usr/local/bin/tidemill-2
  tidemill net upgrade --socket /run/tidemill/net.sock"
)]
pub(crate) struct UpgradeNetArguments {
    /// The program that serves from now on. Default: this one.
    #[arg(value_name = "PROGRAM")]
    pub(crate) program: Option<PathBuf>,
    /// The file of the service's socket. Default: as with `net serve`.
    #[arg(long, value_name = "FILE", env = tidemill_net::client::SOCKET_VARIABLE)]
    pub(crate) socket: Option<PathBuf>,
}

/// A verb of `tidemill net paths`.
#[derive(Debug, Subcommand)]
pub(crate) enum PathsVerb {
    /// List the paths of running runs: state, round trip, bytes, and what they cost.
    Ls(ListPathsArguments),
    /// Move connections off a path of a worker while another one works.
    Drain(DrainPathArguments),
    /// Let connections use a drained path again.
    Undrain(DrainPathArguments),
    /// Try the paths from this machine to another one, without a run.
    Test(TestPathsArguments),
}

/// `tidemill net paths ls`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill net paths ls               all paths of all running runs
  tidemill net paths ls traffic       those of one run
  tidemill net paths ls --output json")]
pub(crate) struct ListPathsArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The run; default: all that run.
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill net paths drain` and `undrain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill net paths drain edge-1 lte       before the LTE modem is exchanged
  tidemill net paths undrain edge-1 lte")]
pub(crate) struct DrainPathArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The worker.
    #[arg(value_name = "WORKER")]
    pub(crate) worker: String,
    /// Its path.
    #[arg(value_name = "PATH")]
    pub(crate) path: String,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill net paths test`.
#[derive(Debug, Args)]
#[command(
    after_help = "The other side is the port for workers of a controller (`--listen-hosts`), or any address that `net paths ls`
shows while its run is there. Paths that answer are up; the round trip is that of their signs of life.

Examples:
  tidemill net paths test hub.example:7421 --path fibre=eth0 --path lte=wwan0
  tidemill net paths test fibre=10.0.0.2:7421,lte=10.8.0.2:7421"
)]
pub(crate) struct TestPathsArguments {
    /// Address of the other side, or one for each of its paths.
    #[arg(value_name = "ADDRESS")]
    pub(crate) address: String,
    #[command(flatten)]
    pub(crate) paths: PathArguments,
    /// Time of the test.
    #[arg(long = "for", value_name = "TIME", default_value = "3s", value_parser = parse_time)]
    pub(crate) time: Duration,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}
