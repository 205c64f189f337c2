//! Unix sockets, between processes of one host: with a file, or with a name that has none.
use super::socket::{Socket, again};
use super::{Acceptor, Descriptors, Line, Stream, Transport};
use crate::deadline::Deadline;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg,
    socket_with,
};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Pause while a listener has no place for one more.
const PAUSE: Duration = Duration::from_millis(5);
/// Names that are tried.
const TRIES: usize = 8;

pub(super) struct Unix;

/// A socket that listens, and the file that is removed with it, or the name that needs no file.
struct Listening {
    listener: UnixListener,
    at: At,
}

enum At {
    File(PathBuf),
    Name(String),
}

impl At {
    fn of(place: &str) -> Self {
        match place.strip_prefix('@') {
            Some(name) => Self::Name(name.to_owned()),
            None => Self::File(place.into()),
        }
    }
}

impl Transport for Unix {
    fn scheme(&self) -> &'static str {
        "unix"
    }

    fn form(&self) -> &'static str {
        "PATH or unix://@NAME"
    }

    fn is_place(&self, place: &str) -> bool {
        !place.is_empty()
    }

    fn anywhere(&self) -> &'static str {
        "@"
    }

    fn listen(&self, place: &str) -> io::Result<Box<dyn Acceptor>> {
        let (listener, at) = match At::of(place) {
            At::File(path) => (listen_at_file(&path)?, At::File(path)),
            At::Name(name) => {
                let (listener, name) = listen_at_name(&name)?;
                (listener, At::Name(name))
            }
        };
        listener.set_nonblocking(true)?;
        Ok(Box::new(Listening { listener, at }))
    }

    fn dial(&self, place: &str, timeout: Duration) -> io::Result<Box<dyn Stream>> {
        let (deadline, at) = (Deadline::after(timeout), At::of(place));
        let address = match &at {
            At::File(path) => SocketAddrUnix::new(path.as_path())?,
            At::Name(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        };
        // Not one that waits: a listener whose process stands still would have this one stand still, too.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        loop {
            match connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if deadline.left().is_zero() => return Err(ErrorKind::TimedOut.into()),
                Err(Errno::AGAIN) => std::thread::sleep(PAUSE.min(deadline.left())),
                Err(error) => return Err(error.into()),
            }
        }
        connected(socket, &at)
    }
}

fn connected(socket: OwnedFd, at: &At) -> io::Result<Box<dyn Stream>> {
    if matches!(at, At::Name(_)) {
        check_user(&socket)?;
    }
    Ok(Box::new(LocalSocket::new(socket)?))
}

impl Acceptor for Listening {
    fn place(&self) -> String {
        match &self.at {
            At::File(path) => path.display().to_string(),
            At::Name(name) => format!("@{name}"),
        }
    }

    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        connected(self.listener.accept()?.0.into(), &self.at)
    }

    fn readable(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let At::File(path) = &self.at {
            // It may have been removed already.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A socket over which descriptors may go.
pub(crate) struct LocalSocket {
    socket: Socket,
    /// Whether a descriptor may come, and the one that came.
    expecting: bool,
    descriptor: Option<OwnedFd>,
}

impl LocalSocket {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: Socket::new(socket)?, expecting: false, descriptor: None })
    }
}

impl Stream for LocalSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !self.expecting {
            return self.socket.read(into);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(into)];
        let read = again(|| recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC))?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                // At most one is used; the others are closed here.
                self.descriptor = descriptors.last();
            }
        }
        Ok(read.bytes)
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.write(parts)
    }

    fn line(&self) -> Arc<dyn Line> {
        self.socket.line()
    }

    fn peer_user(&self) -> Option<u32> {
        let peer = socket_peercred(&self.socket).ok()?.uid.as_raw();
        // All users without a number here look the same.
        is_same_user(peer, peer, nobody(), all_users_are_known).then_some(peer)
    }

    fn descriptors(&mut self) -> Option<&mut dyn Descriptors> {
        // Who shares memory trusts the other side: a socket file may let other users in.
        check_user(&self.socket).is_ok().then_some(self as &mut dyn Descriptors)
    }
}

impl Descriptors for LocalSocket {
    fn pass(&mut self, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let descriptors = [descriptor];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let parts = [IoSlice::new(bytes)];
        again(|| sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL))
    }

    fn expect(&mut self) {
        self.expecting = true;
    }

    fn take(&mut self) -> Option<OwnedFd> {
        self.expecting = false;
        self.descriptor.take()
    }
}

/// Listens at a socket file; one where nothing listens is replaced.
fn listen_at_file(path: &Path) -> io::Result<UnixListener> {
    let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
    if UnixStream::connect(path).is_err_and(refused) {
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}

/// Listens at a name without a file, which is chosen here where it is empty; the name that it is.
fn listen_at_name(name: &str) -> io::Result<(UnixListener, String)> {
    let listen = |name: &str| UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?);
    if !name.is_empty() {
        return Ok((listen(name)?, name.to_owned()));
    }
    let mut last = io::Error::from(ErrorKind::AddrInUse);
    for _ in 0..TRIES {
        // All users can read it in a table of the system, so it keeps no secret; it only must be the name of no other.
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

/// Refuses a peer that is a process of another user: one that connected, or, on the side that dialled, one that listens.
fn check_user(socket: impl AsFd) -> io::Result<()> {
    let peer = socket_peercred(socket)?;
    let (theirs, ours) = (peer.uid.as_raw(), rustix::process::geteuid().as_raw());
    let pid = peer.pid.as_raw_nonzero().get();
    if is_same_user(theirs, ours, nobody(), || all_users_are_known() || shares_users(pid)) {
        return Ok(());
    }
    let text = format!("the peer is a process of user {theirs}, this one is of user {ours}");
    Err(io::Error::new(ErrorKind::PermissionDenied, text))
}

/// Returns whether two numbers are of one user. The system shows all users that have no number in the own user
/// namespace as `nobody`: where this process has that number, it proves nothing about the peer, unless `is_told`
/// returns true.
fn is_same_user(theirs: u32, ours: u32, nobody: u32, is_told: impl FnOnce() -> bool) -> bool {
    theirs == ours && (ours != nobody || is_told())
}

/// The number of users that have none.
fn nobody() -> u32 {
    let number = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    number.ok().and_then(|number| number.trim().parse().ok()).unwrap_or(65534)
}

/// Returns whether all users have a number in the own user namespace, as outside of containers.
fn all_users_are_known() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_all(&map))
}

fn maps_all(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Returns whether a process is in the own user namespace. The system does not show that of a process that is not, or
/// that is another user's.
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
