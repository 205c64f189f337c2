//! Connection to the controller of a running deployment.
use crate::cause::{Cause, OperateError};
use crate::clock;
use crate::control::Control;
use crate::engine::Engine;
use crate::machine::ALIVE;
use crate::process::Owned;
use crate::site::Site;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;
use tidemill_cluster::client::Client;
use tidemill_identity::{AccessToken, JoinAddress};

/// Timeout of a direct connection, before ssh is tried.
const DIRECT: Duration = Duration::from_secs(3);
/// Timeout of opening a tunnel through ssh.
const TUNNEL: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(100);

/// A client of the controller, as its first admin.
pub struct Connection {
    /// The client.
    pub client: Client,
    /// Its address for this machine.
    pub address: JoinAddress,
    /// Its address for workers.
    pub for_workers: JoinAddress,
    /// The access token of the first admin.
    pub token: String,
    /// The ssh tunnel, if there is no direct route.
    _tunnel: Option<Owned>,
}

fn broken(machine: &str, text: impl Into<String>) -> OperateError {
    Cause::Other { machine: machine.to_owned(), what: "finding the controller".to_owned(), text: text.into() }
        .into()
}

/// Connects to the controller of a deployment.
///
/// # Errors
/// [`OperateError::NotUp`]: it does not run, or has not written its address yet.
pub fn connect(site: &Site, control: Control<'_>) -> Result<Connection, OperateError> {
    let (place, controller) = (site.controller(), &site.deployment().controller);
    let engine = Engine::of(&place.machine, control);
    let container = engine.container(&place.location.project, &controller.service)?;
    let Some(container) = container.filter(|one| one.runs()) else {
        return Err(OperateError::NotUp);
    };
    let file = |name: &str| {
        let bytes = engine.file(&container.id, &format!("{}/{name}", controller.folder))?;
        let text = bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
        text.filter(|text| !text.is_empty()).ok_or(OperateError::NotUp)
    };
    let machine = place.machine.name();
    let for_workers: JoinAddress =
        file("address")?.parse().map_err(|error| broken(&machine, format!("its address: {error}")))?;
    let token = file("admin.token")?;
    let access: AccessToken =
        token.parse().map_err(|error| broken(&machine, format!("its access token: {error}")))?;
    let port = site.port().ok_or_else(|| broken(&machine, "no port is published"))?;
    let (host, port, tunnel) = match place.machine.is_here() {
        true => ("127.0.0.1".to_owned(), port, None),
        false if is_reached(for_workers.host(), for_workers.port()) => {
            (for_workers.host().to_owned(), for_workers.port(), None)
        }
        false => {
            let (own, tunnel) = tunnel(place.location.host.as_deref().unwrap_or_default(), port, control)?;
            ("127.0.0.1".to_owned(), own, Some(tunnel))
        }
    };
    let address = JoinAddress::new(&host, port, for_workers.fingerprint())
        .map_err(|error| broken(&machine, format!("its address: {error}")))?;
    let client = Client::new(&address, Some(access))?;
    Ok(Connection { client, address, for_workers, token, _tunnel: tunnel })
}

fn is_reached(host: &str, port: u16) -> bool {
    let addresses = (host.trim_matches(['[', ']']), port).to_socket_addrs();
    addresses.is_ok_and(|mut found| found.any(|one| TcpStream::connect_timeout(&one, DIRECT).is_ok()))
}

/// Opens a tunnel from a port of this machine to one of another machine.
fn tunnel(uri: &str, port: u16, control: Control<'_>) -> Result<(u16, Owned), OperateError> {
    let machine = uri.trim_start_matches("ssh://").to_owned();
    let unreached = |text: String| OperateError::from(Cause::NotReached { machine: machine.clone(), text });
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let own = free.map_err(|error| unreached(error.to_string()))?.port();
    let way = format!("127.0.0.1:{own}:127.0.0.1:{port}");
    let mut command = Command::new("ssh");
    command.args(["-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes"]).args(ALIVE);
    // The remote command ends with its input, and ssh with it, even if this process is killed.
    command.args(["-T", "-L", &way, uri, "cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut child = Owned(command.spawn().map_err(|error| unreached(format!("ssh: {error}")))?);
    let until = clock::now() + TUNNEL;
    while TcpStream::connect(("127.0.0.1", own)).is_err() {
        if child.0.try_wait().is_ok_and(|status| status.is_some()) || clock::now() >= until {
            return Err(unreached(format!("ssh cannot forward its port {port}")));
        }
        control.pause(LOOK)?;
    }
    Ok((own, child))
}
