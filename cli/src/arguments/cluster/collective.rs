//! `tidemill net collective` and `net bench`: groups of programs that compute together.
use super::super::{OutputForm, explained, is_value, parse_time};
use super::hints::HintArguments;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;
use tidemill_collective::topology::Path;
use tidemill_spec::units::{Bandwidth, Bytes, UnitError};

/// How the service takes part in groups of several hosts.
#[derive(Debug, Args)]
pub(crate) struct GroupArguments {
    /// Where services of other hosts reach this one, for groups. Default: groups are of this machine only.
    #[arg(long, value_name = "HOST:PORT", help_heading = "Groups")]
    pub(crate) listen: Option<String>,
    /// Name of this machine among the others. Default: its host name.
    #[arg(long, value_name = "NAME", help_heading = "Groups")]
    pub(crate) host: Option<String>,
    /// Its rack, or site: strategies stay within racks where they can.
    #[arg(long, value_name = "NAME", help_heading = "Groups")]
    pub(crate) rack: Option<String>,
    /// Its pod: racks with short ways between them.
    #[arg(long, value_name = "NAME", help_heading = "Groups")]
    pub(crate) pod: Option<String>,
    /// The service that introduces ranks and chooses strategies. Default: this one.
    #[arg(long, value_name = "HOST:PORT", help_heading = "Groups")]
    pub(crate) groups_at: Option<String>,
    /// A path to hosts of other racks: its source ports or its interface, and its rate; may be given several times, the
    /// preferred one first.
    #[arg(long, value_name = "NAME=PORTS|INTERFACE,RATE", value_parser = group_path, help_heading = "Groups")]
    pub(crate) group_path: Vec<Path>,
    /// Congestion control of the connections between ranks, such as `cubic`. Default: that of the system or of the route.
    #[arg(long, value_name = "NAME", help_heading = "Groups")]
    pub(crate) group_congestion: Option<String>,
    /// Certificate of this machine as PEM, with its chain: TLS between the services of groups.
    #[arg(long, value_name = "FILE", requires_all = ["key", "authority"], help_heading = "Groups")]
    pub(crate) certificate: Option<PathBuf>,
    /// Key of the certificate as PEM.
    #[arg(long, value_name = "FILE", requires = "certificate", help_heading = "Groups")]
    pub(crate) key: Option<PathBuf>,
    /// Certificate of the authority that certifies the other services, as PEM.
    #[arg(long, value_name = "FILE", requires = "certificate", help_heading = "Groups")]
    pub(crate) authority: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) hints: HintArguments,
}

fn group_path(text: &str) -> Result<Path, String> {
    is_value(text)?;
    let form = || format!("`{text}` is no path: write spine0=20000-20999,1Gbps or fibre=eth0,1Gbps");
    let (name, rest) = text.split_once('=').ok_or_else(form)?;
    let (way, rate) = rest.rsplit_once(',').ok_or_else(form)?;
    if name.is_empty() || way.is_empty() {
        return Err(form());
    }
    let rate: Bandwidth = rate.parse().map_err(|error: UnitError| explained(&error))?;
    let ports = way
        .split_once('-')
        .and_then(|(first, last)| Some((first.parse::<u16>().ok()?, last.parse::<u16>().ok()?)));
    if ports.is_some_and(|(first, last)| first == 0 || last < first) {
        return Err(format!("{way} are no ports: write them as in 20000-20999"));
    }
    let interface = ports.is_none().then(|| way.to_owned());
    Ok(Path { name: name.to_owned(), ports, interface, rate: rate.0 as f64 / 8.0 })
}

fn size(text: &str) -> Result<u64, String> {
    is_value(text)?;
    text.parse::<Bytes>().map(|bytes| bytes.0).map_err(|error| explained(&error))
}

/// The service that is asked.
#[derive(Debug, Clone, Args)]
pub(crate) struct GroupServiceChoice {
    /// Socket of the service of this machine. Default: TIDEMILL_NET, else that of this user, else that of root.
    #[arg(long, value_name = "FILE")]
    pub(crate) socket: Option<PathBuf>,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// A verb of `tidemill net collective`.
#[derive(Debug, Subcommand)]
pub(crate) enum CollectiveVerb {
    /// List groups: ranks, state, operations and strategy.
    Ls(ListGroupsArguments),
    /// Show a group: the host of each rank, rings, paths, and why it waits or is broken.
    Show(ShowGroupArguments),
    /// Give a group another strategy while it computes.
    Strategy(GroupStrategyArguments),
}

/// `tidemill net collective ls`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill net collective ls
  tidemill net collective ls --output json

Users see their own groups; root and the user of the service see all groups, and the hosts.")]
pub(crate) struct ListGroupsArguments {
    #[command(flatten)]
    pub(crate) service: GroupServiceChoice,
}

/// `tidemill net collective show`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill net collective show training
  tidemill net collective show 1000/training    that of user 1000")]
pub(crate) struct ShowGroupArguments {
    /// The group.
    #[arg(value_name = "GROUP")]
    pub(crate) group: String,
    #[command(flatten)]
    pub(crate) service: GroupServiceChoice,
}

/// `tidemill net collective strategy`.
#[derive(Debug, Args)]
#[command(
    after_help = "Operations that were called before are carried out by the strategy of before; none is lost. Programs do
not notice. Strategies: ffa (the default), locality, locality:reversed, pfa[:PATH,...], ts[:PATH,...], hints, rank-order, ring:RANK,...,
tree:RANK-RANK,...

Examples:
  tidemill net collective strategy training rank-order
  tidemill net collective strategy training locality
  tidemill net collective strategy training hints
  tidemill net collective strategy training ring:0,2,1,3
  tidemill net collective strategy training tree:0-1,0-2,1-3"
)]
pub(crate) struct GroupStrategyArguments {
    /// The group.
    #[arg(value_name = "GROUP")]
    pub(crate) group: String,
    /// The name of a strategy, or a ring or tree of all ranks.
    #[arg(value_name = "STRATEGY")]
    pub(crate) strategy: String,
    #[command(flatten)]
    pub(crate) service: GroupServiceChoice,
}

/// A verb of `tidemill net bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum NetBenchVerb {
    /// Measure all-reduce between ranks in the services.
    Allreduce(BenchGroupArguments),
}

/// `tidemill net bench allreduce`.
#[derive(Debug, Args)]
#[command(
    after_help = "Ranks are threads of the services, spread over the hosts that are registered. Algorithm bandwidth is bytes of
the buffer divided by the median time (p50); bus bandwidth is that times 2·(ranks-1)/ranks, which a link must carry for a ring.

Examples:
  tidemill net bench allreduce --ranks 4 --bytes 1MiB
  tidemill net bench allreduce --ranks 8 --bytes 4KiB --bytes 1MiB --bytes 64MiB --seconds 5s
  tidemill net bench allreduce --ranks 4 --bytes 64MiB --strategy locality --output json"
)]
pub(crate) struct BenchGroupArguments {
    /// Ranks.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) ranks: u32,
    /// Size of the buffer of each rank; may be given several times.
    #[arg(long, value_name = "SIZE", value_parser = size, default_values = ["4KiB", "1MiB", "64MiB"])]
    pub(crate) bytes: Vec<u64>,
    /// Time of each size.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_time)]
    pub(crate) seconds: Duration,
    /// The strategy. Default: as for other groups.
    #[arg(long, value_name = "STRATEGY")]
    pub(crate) strategy: Option<String>,
    #[command(flatten)]
    pub(crate) service: GroupServiceChoice,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_ports_or_an_interface_with_a_rate() {
        let path = group_path("spine0=20000-20999,1Gbps").unwrap();
        assert_eq!((path.ports, path.interface, path.rate), (Some((20_000, 20_999)), None, 125e6));
        let path = group_path("fibre=eth-1,100Mbps").unwrap();
        assert_eq!(
            (path.name.as_str(), path.ports, path.interface.as_deref()),
            ("fibre", None, Some("eth-1"))
        );
        for wrong in ["spine0", "spine0=20000-20999", "=eth0,1Gbps", "x=,1Gbps", "x=9-8,1Gbps", "x=eth0,fast"]
        {
            assert!(group_path(wrong).is_err(), "{wrong}");
        }
    }
    proptest::proptest! {
        #[test]
        fn any_text_is_a_path_or_refused_with_a_reason(
            text in "[a-z]{0,4}=?([0-9]{0,6}-[0-9]{0,6}|[a-z0-9.-]{0,8}|\\PC{0,8})(,[0-9.]{0,24}[GMk]?bps)?",
        ) {
            match group_path(&text) {
                Ok(path) => {
                    proptest::prop_assert!(!path.name.is_empty() && path.rate.is_finite() && path.rate >= 0.0);
                    proptest::prop_assert!(path.ports.is_none_or(|(first, last)| 0 < first && first <= last));
                    proptest::prop_assert!(path.ports.is_some() != path.interface.is_some());
                }
                Err(reason) => proptest::prop_assert!(!reason.is_empty()),
            }
        }
    }
}
