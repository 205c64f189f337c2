//! Arguments of `tidemill device`, and of processes of devices.
use super::{OutputForm, is_value, parse_time, parse_wait};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;
use tidemill_engine::remote::Address;
use tidemill_inference::backend::registered;
use tidemill_spec::units::{Bytes, Percent};

/// A device and its limits: share, and bytes of memory.
pub(crate) type TenantChoice = (String, f64, Option<u64>);

/// Arguments of the proxy that an executor starts.
#[derive(Debug, Args)]
pub(crate) struct DeviceProxyArguments {
    /// The only back end; default: all that are here.
    #[arg(long)]
    pub(crate) backend: Option<String>,
    /// From where libraries of back ends are looked for.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) libraries: PathBuf,
}

/// The certificate of this machine for devices with TLS.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct DeviceCertificateArguments {
    /// Certificate of this machine as PEM, with its chain, for devices at `tls://HOST:PORT`.
    #[arg(long, value_name = "FILE", requires_all = ["device_key", "device_authority"], help_heading = "Devices")]
    pub(crate) device_certificate: Option<PathBuf>,
    /// Key of that certificate as PEM.
    #[arg(long, value_name = "FILE", requires = "device_certificate", help_heading = "Devices")]
    pub(crate) device_key: Option<PathBuf>,
    /// Certificate of the authority that certifies the devices, as PEM.
    #[arg(long, value_name = "FILE", requires = "device_certificate", help_heading = "Devices")]
    pub(crate) device_authority: Option<PathBuf>,
}

/// Verbs of devices.
#[derive(Debug, Subcommand)]
pub(crate) enum DeviceVerb {
    /// Serve this machine's accelerator or processors as a device, on which stages elsewhere compute their models.
    Serve(Box<ServeDeviceArguments>),
    /// List the devices of this machine: tenants, sessions, memory, runs.
    Ls(ListDevicesArguments),
    /// Watch the devices of this machine.
    Top(WatchDevicesArguments),
    /// Change the share and the memory of a tenant, at once.
    Limits(DeviceLimitsArguments),
    /// End a session, or all of them and the device, each at its next run: its models move to another device.
    Drain(DrainDeviceArguments),
}

/// All back ends of this build that are usable here.
pub(crate) const AUTO: &str = "auto";
/// No computation: outputs that follow from the inputs, times from a profile.
pub(crate) const EMULATED: &str = "emulated";

fn names_of_back_ends() -> impl Iterator<Item = &'static str> {
    std::iter::once(AUTO).chain(registered().map(|backend| backend.name)).chain([EMULATED])
}

/// The back end of a device.
#[derive(Debug, Args)]
pub(crate) struct DeviceProcessArguments {
    /// Back end that computes, `ort:cuda` for instance. `auto`: all that are usable here. `emulated`: none; outputs follow from
    /// the inputs, times are those of a profile.
    #[arg(long, value_name = "NAME", default_value = AUTO, value_parser = PossibleValuesParser::new(names_of_back_ends()))]
    pub(crate) backend: String,
    /// Times and memory of models on an emulated device, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Folder from where libraries of back ends are looked for. Default: the current one.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) libraries: Option<PathBuf>,
}

/// `tidemill device serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill device serve --listen tcp://0.0.0.0:7440
  tidemill device serve --listen unix:///run/user/1000/gpu.sock --backend ort:cuda
  tidemill device serve --listen tcp://127.0.0.1:7440 --device gpu0 --kind t4 --tenant vision=50%,8GiB --tenant speech=30%
  tidemill device serve --listen tcp://127.0.0.1:7440 --backend emulated --profile t4.json
  tidemill device serve --listen tcp://127.0.0.1:7440 --batch 8 --batch-wait 2ms
  tidemill device serve --listen tcp://0.0.0.0:7440 --certificate hub.pem --key hub.key --authority authority.pem
  tidemill device serve --listen tcp://0.0.0.0:7440 --join-file join --state device    with the certificate of a cluster

A run uses it by `--device OPERATOR=tcp://HOST:7440`, or `tls://HOST:7440` if it has a certificate, a plan by
`device: device:tcp://HOST:7440` at a stage. Each session computes in a process of its own, or with `--batch` in that of its tenant.
Shares hold while several tenants want the device; a tenant alone has all of it. A session that would hold more memory than its tenant
may gets an error, and others notice nothing. Profile of an emulated device:
  {\"kind\": \"gpu\", \"memory\": 17179869184, \"models\": {\"detect\": {\"run_ms\": 2, \"row_ms\": 0.5}}, \"others\": {\"run_ms\": 5}}
With \"has_rows\": true at a model, its runs can be computed together.")]
pub(crate) struct ServeDeviceArguments {
    /// Where clients reach the device: tcp://HOST:PORT, unix:///PATH, session://PLACES; may be given several times.
    #[arg(long, value_name = "ADDRESS", required = true, value_parser = listen)]
    pub(crate) listen: Vec<Address>,
    /// Name of the device, once on each machine.
    #[arg(long, value_name = "NAME", default_value = "device")]
    pub(crate) device: String,
    /// Kind of the device, as in infrastructure files and profiles. Default: that of the back end.
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<String>,
    #[command(flatten)]
    pub(crate) process: DeviceProcessArguments,
    /// A program that serves the sessions by another back end.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["backend", "profile", "libraries"])]
    pub(crate) proxy_program: Option<PathBuf>,
    /// Runs that the device computes at once.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) slots: u32,
    /// Memory for models and tensors of all sessions together. Default: no limit, or that of the profile.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// A tenant with its share of the device's time and the memory of its sessions; may be given several times. A run is the
    /// tenant with the name of its workflow. All others are
    /// the tenant `default`, whose share is what is left: shares add to at most 100 %.
    #[arg(long, value_name = "NAME=SHARE[,MEMORY]", value_parser = tenant)]
    pub(crate) tenant: Vec<TenantChoice>,
    /// Refuse clients of other tenants.
    #[arg(long, requires = "tenant")]
    pub(crate) only_tenants: bool,
    /// Sessions at once.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) sessions: u32,
    /// End a session whose run takes longer, so that its client computes elsewhere. Loading a model may take ten times as long.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
    pub(crate) longest_run: Duration,
    /// Serve all sessions of a tenant by one process, which loads a model once and computes runs of several sessions together, up
    /// to this number of rows. A crash of the process loses all sessions of the tenant. Default: a process for each session.
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch: Option<u32>,
    /// How long a run waits for those of other sessions. 0s: a batch has the runs that wait when the device is free.
    #[arg(long, value_name = "TIME", default_value = "0s", requires = "batch", value_parser = parse_wait)]
    pub(crate) batch_wait: Duration,
    /// Folder for the files of models, which clients upload once. Default: `device` in the cache folder of Tidemill.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache: Option<PathBuf>,
    /// Size of the files of models; those that were not used for longest are removed.
    #[arg(long, value_name = "SIZE", default_value = "8GiB", value_parser = size)]
    pub(crate) cache_limit: u64,
    /// Certificate of this machine as PEM, with its chain: TLS on all addresses but Unix sockets.
    #[arg(long, value_name = "FILE", requires_all = ["key", "authority"])]
    pub(crate) certificate: Option<PathBuf>,
    /// Key of the certificate as PEM.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) key: Option<PathBuf>,
    /// Certificate of the authority that certifies clients, as PEM.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) authority: Option<PathBuf>,
    /// Join a cluster under the name of the device, and use its certificate, which is renewed: workers of the cluster may
    /// compute here. A file with the address of the controller and a join token (`tidemill token --for-join-file`).
    #[cfg(feature = "cluster")]
    #[arg(long, value_name = "FILE", requires = "state", conflicts_with = "certificate")]
    pub(crate) join_file: Option<PathBuf>,
    /// Folder for the certificate of the cluster; created if it does not exist.
    #[cfg(feature = "cluster")]
    #[arg(long, value_name = "DIR", requires = "join_file")]
    pub(crate) state: Option<PathBuf>,
    /// Serve Prometheus metrics at http://ADDR/metrics, such as `127.0.0.1:9466`.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
}

/// A device of this machine.
#[derive(Debug, Clone, Args)]
pub(crate) struct DeviceChoice {
    /// Name of the device, where this machine has several.
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
}

/// `tidemill device ls`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill device ls
  tidemill device ls --device gpu0 --output json

States: greeting (its client has not said who it is), idle, waiting (for its turn), running (it has a turn; alone, it keeps it).
Computed is the time of the device, waited that in which runs waited for their turns.")]
pub(crate) struct ListDevicesArguments {
    #[command(flatten)]
    pub(crate) choice: DeviceChoice,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill device top`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill device top
  tidemill device top --once
  tidemill device top --output json       one line each second")]
pub(crate) struct WatchDevicesArguments {
    #[command(flatten)]
    pub(crate) choice: DeviceChoice,
    /// Print once and end.
    #[arg(long)]
    pub(crate) once: bool,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill device limits`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill device limits vision --share 30%
  tidemill device limits vision --memory 4GiB
  tidemill device limits vision --memory 0B        no limit
  tidemill device limits night --new --share 10%

They hold at once, and until the device ends. A session that holds more than it now may keeps what it holds, and gets no more. Shares add
to at most 100 %: the tenant `default` has what the others leave. Sessions that began before their tenant was new stay with `default`.")]
pub(crate) struct DeviceLimitsArguments {
    /// The tenant.
    #[arg(value_name = "TENANT")]
    pub(crate) tenant: String,
    /// Its part of the device's time while others want it.
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    pub(crate) share: Option<f64>,
    /// Memory of its sessions together; 0B: no limit.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// List a tenant that the device does not have.
    #[arg(long, requires = "share")]
    pub(crate) new: bool,
    #[command(flatten)]
    pub(crate) choice: DeviceChoice,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill device drain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill device drain                  all sessions; then the device ends
  tidemill device drain 3 --device gpu0  one session, as `tidemill device ls` numbers them

The device admits nobody any more. A session ends before its next run, and every call before that run has its reply: the stage
computes the run elsewhere, and no record is lost or doubled. Waits until the last session is gone.")]
pub(crate) struct DrainDeviceArguments {
    /// The session. Default: all.
    #[arg(value_name = "SESSION")]
    pub(crate) session: Option<u64>,
    #[command(flatten)]
    pub(crate) choice: DeviceChoice,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// An address to listen at. The transport of sessions has to be there before such an address is read.
fn listen(text: &str) -> Result<Address, String> {
    is_value(text)?;
    #[cfg(feature = "cluster")]
    tidemill_session::install().map_err(|error| error.to_string())?;
    let help = match text.rsplit_once(':') {
        Some((host, port)) if !text.contains("://") && !host.is_empty() && port.parse::<u16>().is_ok() => {
            format!("write the address with its scheme: `tcp://{text}`")
        }
        _ => "write `tcp://HOST:PORT`, such as `tcp://0.0.0.0:7440`, `unix:///PATH` or `session://PLACES`"
            .to_owned(),
    };
    text.parse().map_err(|_| help)
}

fn size(text: &str) -> Result<u64, String> {
    is_value(text)?;
    text.parse::<Bytes>().map(|bytes| bytes.0).map_err(|error| error.to_string())
}

fn share(text: &str) -> Result<f64, String> {
    is_value(text)?;
    let percent: Percent =
        text.parse().map_err(|error: tidemill_spec::units::UnitError| error.to_string())?;
    match percent.0 {
        part if part > 0.0 => Ok(part / 100.0),
        _ => Err("a share is above 0 %".to_owned()),
    }
}

fn tenant(text: &str) -> Result<TenantChoice, String> {
    // The name of a workflow may have the sign in it.
    let (name, limits) = text.rsplit_once('=').ok_or("write NAME=SHARE, as in `vision=50%,8GiB`")?;
    let (part, memory) = match limits.split_once(',') {
        Some((part, memory)) => (part, Some(size(memory)?)),
        None => (limits, None),
    };
    Ok((name.to_owned(), share(part)?, memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_listens_at_every_form_of_an_address() {
        let told = |text: &str| listen(text).map(|address| address.to_string());
        for address in ["tcp://0.0.0.0:7440", "unix:///run/gpu.sock"] {
            assert_eq!(told(address).as_deref(), Ok(address));
        }
        #[cfg(feature = "cluster")]
        assert_eq!(told("session://0.0.0.0:7440").as_deref(), Ok("session://0.0.0.0:7440"));
        assert_eq!(told("hub:7440"), Err("write the address with its scheme: `tcp://hub:7440`".to_owned()));
        for wrong in ["", "hub", "tcp://hub", "http://hub:80"] {
            assert!(
                told(wrong).is_err_and(|help| wrong.is_empty() || help.contains("session://PLACES")),
                "{wrong}"
            );
        }
    }

    #[test]
    fn tenants_have_a_share_and_perhaps_memory() {
        assert_eq!(tenant("vision=50%,8GiB"), Ok(("vision".to_owned(), 0.5, Some(8 << 30))));
        assert_eq!(tenant("vision=100%"), Ok(("vision".to_owned(), 1.0, None)));
        assert_eq!(tenant("a=b, c=100%"), Ok(("a=b, c".to_owned(), 1.0, None)));
        for wrong in ["vision", "vision=", "vision=0%", "vision=50%,much", "vision=150%"] {
            assert!(tenant(wrong).is_err(), "{wrong}");
        }
    }
}
