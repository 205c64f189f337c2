//! `tidemill device serve`.
use super::certificate;
use crate::arguments::ServeDeviceArguments;
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::terminal::Terminal;
use std::sync::Arc;
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_app::metrics::MetricsPort;
use tidemill_device::batching::Batching;
use tidemill_device::daemon::tenants::{Tenant, Tenants};
use tidemill_device::daemon::{Daemon, DaemonError, Options};
use tidemill_engine::remote::Security;
use tidemill_inference::backend::library;

/// Interval of looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// Renewal of a certificate of a cluster, as long as it lives.
#[cfg(feature = "cluster")]
type Membership = Option<tidemill_cluster::member::Member>;
#[cfg(not(feature = "cluster"))]
type Membership = Option<()>;

/// Serves a device until it is drained or interrupted.
pub(super) fn serve(arguments: &ServeDeviceArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    #[cfg(feature = "cluster")]
    tidemill_session::install().map_err(|error| Failure::new(Kind::Unavailable, error.to_string()))?;
    if arguments.batch.is_some() && arguments.batch_wait >= arguments.longest_run {
        let message = "`--batch-wait` is not shorter than `--longest-run`: runs that wait would be ended; write a shorter one";
        return Err(Failure::new(Kind::Usage, message.to_owned()).into());
    }
    let interrupt = Interrupt::listen()?;
    // A wrong one is found here, with a better message than in the process.
    let profile = super::process::profile(arguments.process.profile.as_deref())?;
    let metrics = arguments.metrics.as_deref().map(MetricsPort::open).transpose()?;
    let (security, _member) = security(arguments)?;
    let has_tls = security.is_some();
    let options = Options {
        device: arguments.device.clone(),
        kind: arguments.kind.clone(),
        listen: arguments.listen.clone(),
        security: security.unwrap_or_else(Security::none),
        command: command(arguments)?,
        cache: std::path::absolute(match &arguments.cache {
            Some(cache) => cache.clone(),
            None => library::cache_folder().unwrap_or_else(std::env::temp_dir).join("device"),
        })?,
        cache_limit: arguments.cache_limit,
        // An emulated device may know its own.
        memory: arguments.memory.or(profile.memory),
        slots: arguments.slots as usize,
        tenants: tenants(arguments)?,
        most_sessions: arguments.sessions as usize,
        longest_run: arguments.longest_run,
        batching: arguments.batch.map(|rows| Batching { rows: rows as usize, wait: arguments.batch_wait }),
    };
    let daemon = Arc::new(Daemon::start(options).map_err(failure)?);
    for address in daemon.addresses() {
        // As clients write it.
        let scheme = if has_tls && address.scheme() == "tcp" { "tls" } else { address.scheme() };
        terminal.note(&format!("the device `{}` serves at {scheme}://{}", arguments.device, address.place()));
        if address.scheme() != "unix" && !has_tls {
            terminal.note("without TLS: whoever reaches that address may compute here");
        }
    }
    if let Some(port) = &metrics {
        super::metrics::serve(port, &daemon)?;
        if let Some(address) = port.address() {
            terminal.note(&format!("metrics at http://{address}/metrics"));
        }
    }
    interrupt.is_watched();
    while !interrupt.is_wanted() {
        if daemon.wait_until_over(LOOK) {
            terminal.note("the device is drained");
            daemon.stop();
            return Ok(Exit::Success);
        }
    }
    daemon.stop();
    Ok(Exit::Interrupted)
}

fn failure(error: DaemonError) -> Failure {
    let kind = match &error {
        DaemonError::Name(_) => Kind::Usage,
        _ => Kind::Unavailable,
    };
    Failure::new(kind, error.to_string())
}

/// The command of the process of a session.
fn command(arguments: &ServeDeviceArguments) -> Result<Vec<String>, Failure> {
    if let Some(program) = &arguments.proxy_program {
        return Ok(vec![program.display().to_string()]);
    }
    let own = std::env::current_exe().map_err(|error| {
        Failure::new(Kind::Unavailable, format!("cannot find the path of this program: {error}"))
    })?;
    let process = &arguments.process;
    let mut command = vec![own.display().to_string(), "device-process".to_owned()];
    command.extend(["--backend".to_owned(), process.backend.clone()]);
    for (option, path) in [("--profile", &process.profile), ("--libraries", &process.libraries)] {
        command.extend(path.iter().flat_map(|path| [option.to_owned(), path.display().to_string()]));
    }
    command.extend(crate::run::processes::own_log_options());
    Ok(command)
}

fn tenants(arguments: &ServeDeviceArguments) -> Result<Tenants, Failure> {
    let listed = arguments.tenant.iter();
    let listed =
        listed.map(|(name, share, memory)| (name.clone(), Tenant { share: *share, memory: *memory }));
    Tenants::new(listed, arguments.only_tenants).map_err(|text| {
        Failure::new(Kind::Usage, text)
            .with_help("write `--tenant NAME=SHARE`, as in `--tenant vision=50%,4GiB`")
    })
}

/// Protection of the addresses, if the device has a certificate, and what keeps that of a cluster valid.
fn security(arguments: &ServeDeviceArguments) -> Result<(Option<Security>, Membership), Failure> {
    #[cfg(feature = "cluster")]
    if let (Some(join_file), Some(state)) = (&arguments.join_file, &arguments.state) {
        let (security, member) = super::member::join(join_file, state, &arguments.device)?;
        return Ok((Some(security), Some(member)));
    }
    match (&arguments.certificate, &arguments.key, &arguments.authority) {
        (Some(chain), Some(key), Some(authority)) => {
            Ok((Some(certificate::read(chain, key, authority)?), None))
        }
        _ => Ok((None, None)),
    }
}
