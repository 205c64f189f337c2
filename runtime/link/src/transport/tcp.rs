//! TCP, between hosts.
use super::socket::Socket;
use super::{Acceptor, Stream, Transport};
use crate::deadline::Deadline;
use rustix::net::sockopt;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Time without a sign of life of its host after which a TCP peer is lost.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(9);
/// Time to the first probe on a silent connection, and between probes.
const PROBE_EVERY: Duration = Duration::from_secs(3);
/// Size of the kernel's send buffer: the credit window of a channel.
const SEND_BUFFER: usize = 4 << 20;

pub(super) struct Tcp;

struct Listening {
    listener: TcpListener,
    place: String,
}

impl Transport for Tcp {
    fn scheme(&self) -> &'static str {
        "tcp"
    }

    fn form(&self) -> &'static str {
        "HOST:PORT"
    }

    fn is_place(&self, place: &str) -> bool {
        place.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    }

    fn anywhere(&self) -> &'static str {
        "127.0.0.1:0"
    }

    fn listen(&self, place: &str) -> io::Result<Box<dyn Acceptor>> {
        let listener = TcpListener::bind(place)?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        // The name stays as it was given: others may know the host by it.
        let name = place.rsplit_once(':').map_or(place, |(name, _)| name);
        Ok(Box::new(Listening { place: format!("{name}:{port}"), listener }))
    }

    fn dial(&self, place: &str, timeout: Duration) -> io::Result<Box<dyn Stream>> {
        // To look up the name of a host is up to the system.
        let addresses = place.to_socket_addrs()?;
        let deadline = Deadline::after(timeout);
        let mut last = io::Error::new(ErrorKind::NotFound, format!("{place} has no address"));
        for address in addresses {
            let left = deadline.left();
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => return connected(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn connected(stream: TcpStream) -> io::Result<Box<dyn Stream>> {
    tcp_stream(stream.into())
}

/// Makes a stream of a connected TCP socket, with the options that all of them have.
///
/// # Errors
/// When the system refuses an option.
pub fn tcp_stream(socket: OwnedFd) -> io::Result<Box<dyn Stream>> {
    configure(&socket)?;
    Ok(Box::new(Socket::new(socket)?))
}

/// Sets what all TCP connections have.
pub(crate) fn configure(socket: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, PROBE_EVERY)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, 2)?;
    sockopt::set_tcp_user_timeout(socket, PEER_TIMEOUT.as_millis() as u32)?;
    // A size that is set ends the kernel's own sizing, so one that it would cut down is worse than none.
    let limit = std::fs::read_to_string("/proc/sys/net/core/wmem_max").ok();
    if limit.and_then(|limit| limit.trim().parse::<usize>().ok()).is_some_and(|limit| limit >= SEND_BUFFER) {
        sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER)?;
    }
    Ok(())
}

impl Acceptor for Listening {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        connected(self.listener.accept()?.0)
    }

    fn readable(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
