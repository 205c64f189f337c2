//! Connections to services of other hosts, by a path where one was chosen.
use crate::topology::Path;
use socket2::{Domain, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::Duration;
use tidemill_link::remote::{self, Address, Connection, Greeting, RemoteError, Security};

/// Time of one try to reach another host.
pub(super) const DIALING: Duration = Duration::from_secs(3);

/// Connects to the service at the address, and greets it. With a path, the connection comes from one of its ports, or by its interface.
///
/// # Errors
/// As [`remote::dial`].
pub(super) fn dial(
    address: &Address,
    security: &Security,
    greeting: &Greeting,
    path: Option<&Path>,
) -> Result<Connection, RemoteError> {
    match path.filter(|path| address.scheme() == "tcp" && (path.ports.is_some() || path.interface.is_some()))
    {
        None => remote::dial(address, security, greeting, DIALING),
        Some(path) => {
            let socket = bound(address.place(), path)?;
            let stream = tidemill_link::transport::tcp_stream(socket)?;
            remote::dial_over(stream, security, greeting, DIALING)
        }
    }
}

/// Connects by a path.
fn bound(place: &str, path: &Path) -> io::Result<OwnedFd> {
    let to = place.to_socket_addrs()?.next();
    let to = to.ok_or_else(|| io::Error::new(ErrorKind::NotFound, format!("{place} has no address")))?;
    let (first, last) = path.ports.unwrap_or((0, 0));
    let mut error =
        io::Error::new(ErrorKind::AddrInUse, format!("all ports of path {} are in use", path.name));
    for port in first..=last.max(first) {
        match try_port(to, path.interface.as_deref(), port) {
            Ok(socket) => return Ok(socket),
            // Another connection to the same place has the port.
            Err(busy) if matches!(busy.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) => {}
            Err(other) => {
                error = other;
                break;
            }
        }
    }
    Err(io::Error::new(error.kind(), format!("by path {}: {error}", path.name)))
}

fn try_port(to: SocketAddr, interface: Option<&str>, port: u16) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    // A port is free again at once, and can serve connections to several places.
    socket.set_reuse_address(true)?;
    let any =
        if to.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let from = match interface.map(|name| (name, name.parse::<IpAddr>())) {
        Some((_, Ok(address))) => address,
        Some((name, Err(_))) => {
            socket
                .bind_device(Some(name.as_bytes()))
                .map_err(|error| io::Error::new(error.kind(), format!("interface {name}: {error}")))?;
            any
        }
        None => any,
    };
    socket.bind(&SocketAddr::new(from, port).into())?;
    socket.connect_timeout(&to.into(), DIALING)?;
    Ok(socket.into())
}
