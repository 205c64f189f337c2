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
use std::os::unix::fs::MetadataExt;
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
    let (theirs, ours) = (peer.uid.as_raw(), rustix::process::geteuid().as_raw());
    let pid = peer.pid.as_raw_nonzero().get();
    if is_same_user(theirs, ours, nobody(), || all_users_are_known() || shares_users(pid)) {
        return Ok(());
    }
    Err(RemoteError::OtherUser { theirs, ours })
}

/// Whether two numbers are of one user. The system shows all users that have no number in the own user namespace as `nobody`: where
/// this process has that number, it says nothing of the peer, unless `is_told` otherwise.
fn is_same_user(theirs: u32, ours: u32, nobody: u32, is_told: impl FnOnce() -> bool) -> bool {
    theirs == ours && (ours != nobody || is_told())
}

/// The number of users that have none.
fn nobody() -> u32 {
    let number = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    number.ok().and_then(|number| number.trim().parse().ok()).unwrap_or(65534)
}

/// Whether all users have a number in the own user namespace, as outside of containers.
fn all_users_are_known() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_all(&map))
}

fn maps_all(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Whether a process is in the own user namespace. Of one that is not, or that is another user's, the system does not tell.
fn shares_users(process: i32) -> bool {
    let namespace = |process: &str| {
        let file = std::fs::metadata(format!("/proc/{process}/ns/user")).ok()?;
        Some((file.dev(), file.ino()))
    };
    namespace(&process.to_string()).is_some_and(|theirs| namespace("self") == Some(theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_many_have_is_nobody_in_particular() {
        let never = || -> bool { panic!("nothing is to be asked") };
        assert!(is_same_user(1000, 1000, 65534, never));
        assert!(!is_same_user(0, 1000, 65534, never));
        assert!(!is_same_user(65534, 1000, 65534, never));
        assert!(!is_same_user(65534, 65534, 65534, || false));
        assert!(is_same_user(65534, 65534, 65534, || true));
    }

    #[test]
    fn a_namespace_without_all_users_is_known_by_its_map() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(!maps_all(""), "none has a number");
        assert!(!maps_all("         0     100000      65536\n"));
        assert!(!maps_all("         0          0 4294967295\n 0 0 1\n"));
        assert!(shares_users(std::process::id() as i32));
        assert!(!shares_users(0));
    }
}
