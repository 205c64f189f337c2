//! Sockets between processes of one host.
use super::carrier::Deadline;
use super::{Address, RemoteError};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// Pause while a listener has no place for one more.
const PAUSE: Duration = Duration::from_millis(5);
/// Names that are tried.
const TRIES: usize = 8;

/// Listens at a socket file; one that nobody listens at is replaced.
pub(super) fn listen_at_file(path: &Path) -> io::Result<UnixListener> {
    let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
    if UnixStream::connect(path).is_err_and(refused) {
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}

/// Listens at a name without a file, which is chosen here where it is empty; the name that it is.
pub(super) fn listen_at_name(name: &str) -> io::Result<(UnixListener, String)> {
    let listen = |name: &str| UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?);
    if !name.is_empty() {
        return Ok((listen(name)?, name.to_owned()));
    }
    let mut last = io::Error::from(ErrorKind::AddrInUse);
    for _ in 0..TRIES {
        // Everybody can read it in a table of the system, so it keeps no secret; it only must be nobody else's.
        let random = RandomState::new().build_hasher().finish();
        let name = format!("tidemill-{}-{random:016x}", std::process::id());
        match listen(&name) {
            Ok(listener) => return Ok((listener, name)),
            Err(error) if error.kind() == ErrorKind::AddrInUse => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// Connects to where a process of this host listens.
pub(super) fn connect_to(address: &Address, deadline: Deadline) -> Result<OwnedFd, RemoteError> {
    let io = |error: Errno| RemoteError::Io(error.into());
    let (address, must_be_own) = match address {
        Address::Unix(path) => (SocketAddrUnix::new(path.as_path()), false),
        Address::Abstract(name) => (SocketAddrUnix::new_abstract_name(name.as_bytes()), true),
        Address::Tcp(_) => (Err(Errno::AFNOSUPPORT), false),
    };
    let address = address.map_err(io)?;
    // Not one that waits: a listener whose process stands still would have this one stand still, too.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(io)?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if deadline.left().is_zero() => return Err(RemoteError::Timeout),
            Err(Errno::AGAIN) => std::thread::sleep(PAUSE.min(deadline.left())),
            Err(error) => return Err(io(error)),
        }
    }
    if must_be_own {
        check_user(&socket)?;
    }
    Ok(socket)
}

/// Refuses a peer that is a process of another user: one that connected, or, on the side that dialled, one that listens.
pub(super) fn check_user(socket: impl AsFd) -> Result<(), RemoteError> {
    let peer = socket_peercred(socket).map_err(|error| RemoteError::Io(error.into()))?;
    let own = rustix::process::geteuid();
    if peer.uid == own {
        return Ok(());
    }
    Err(RemoteError::OtherUser { theirs: peer.uid.as_raw(), ours: own.as_raw() })
}
