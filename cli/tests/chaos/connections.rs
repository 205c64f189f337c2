//! Connections between the processes of a run, and the cutting of one: a test copies the descriptor out of the process
//! (`pidfd_getfd`, which a parent may do without further rights) and closes the connection there. Both ends learn of it
//! only from the system, as when a cable is pulled and the socket gives up, or a router sends a reset.
//!
//! Both kinds are supported: TCP, and abstract Unix sockets. Of the latter the system lists only the accepted end with its
//! name, and the process of the other end; an action on one end affects both.
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvFlags, Shutdown, connect_unspec, recv, shutdown};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

/// Code of an established TCP connection.
const ESTABLISHED: &str = "01";
/// Code of a listening TCP socket.
const LISTENING: &str = "0A";
/// Code of a connected Unix socket.
const CONNECTED: &str = "03";
/// Prefix of the names of a run's sockets.
const NAMES: &str = "@tidemill-";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tcp,
    Local,
}

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    process: u32,
    descriptor: i32,
    pub(super) inode: u64,
    kind: Kind,
}

/// A connection between two processes of a run.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    /// The reachable ends: one or two.
    pub(super) ends: Vec<End>,
    processes: [u32; 2],
}

impl Connection {
    pub(super) fn touches(&self, process: u32) -> bool {
        self.processes.contains(&process)
    }
}

/// Kind of cut.
#[derive(Debug, Clone, Copy)]
pub(super) enum CutKind {
    /// Both ends see the end; data in transit may be lost.
    Closed,
    /// Data in transit is dropped, and the other end gets a reset.
    Reset,
}

/// A line of the system's table of TCP: inode, ends, state.
struct Line {
    inode: u64,
    local: SocketAddrV4,
    remote: SocketAddrV4,
    state: String,
}

fn table() -> Vec<Line> {
    let address = |text: &str| {
        let (host, port) = text.split_once(':')?;
        let host = u32::from_str_radix(host, 16).ok()?.to_ne_bytes();
        Some(SocketAddrV4::new(Ipv4Addr::from(host), u16::from_str_radix(port, 16).ok()?))
    };
    let line = |line: &str| {
        let parts: Vec<&str> = line.split_whitespace().collect();
        let (local, remote) = (address(parts.get(1)?)?, address(parts.get(2)?)?);
        Some(Line { inode: parts.get(9)?.parse().ok()?, local, remote, state: (*parts.get(3)?).to_owned() })
    };
    std::fs::read_to_string("/proc/net/tcp").unwrap().lines().skip(1).filter_map(line).collect()
}

/// All Unix sockets of this machine: inode, state, and the name if there is one.
fn local_table() -> Vec<(u64, String, String)> {
    let line = |line: &str| {
        let parts: Vec<&str> = line.split_whitespace().collect();
        let name = parts.get(7).copied().unwrap_or_default();
        Some((parts.get(6)?.parse().ok()?, (*parts.get(5)?).to_owned(), name.to_owned()))
    };
    std::fs::read_to_string("/proc/net/unix").unwrap().lines().skip(1).filter_map(line).collect()
}

/// Inodes and descriptors of a process's sockets; none when it is gone.
fn sockets(process: u32) -> Vec<(u64, i32)> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return Vec::new() };
    let socket = |entry: std::fs::DirEntry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
        Some((inode, entry.file_name().to_str()?.parse().ok()?))
    };
    entries.flatten().filter_map(socket).collect()
}

/// Established connections among these processes.
pub(super) fn connections(processes: &[u32]) -> Vec<Connection> {
    let of = |process: u32| sockets(process).into_iter().map(move |(inode, fd)| (inode, (process, fd)));
    let owners: BTreeMap<u64, (u32, i32)> = processes.iter().flat_map(|process| of(*process)).collect();
    let end = |inode: u64, kind| {
        let (process, descriptor) = *owners.get(&inode)?;
        Some(End { process, descriptor, inode, kind })
    };
    let mut found = Vec::new();
    let established: Vec<(Line, End)> = table()
        .into_iter()
        .filter(|line| line.state == ESTABLISHED)
        .filter_map(|line| end(line.inode, Kind::Tcp).map(|end| (line, end)))
        .collect();
    for (line, one) in &established {
        let is_other = |(other, _): &&(Line, End)| (other.local, other.remote) == (line.remote, line.local);
        if let Some((_, other)) =
            established.iter().find(is_other).filter(|(_, other)| one.inode < other.inode)
        {
            found.push(Connection { ends: vec![*one, *other], processes: [one.process, other.process] });
        }
    }
    for (inode, state, name) in local_table() {
        let accepted =
            (state == CONNECTED && name.starts_with(NAMES)).then(|| end(inode, Kind::Local)).flatten();
        let Some(accepted) = accepted else { continue };
        let peer = taken(&accepted).and_then(|copy| socket_peercred(&copy).ok());
        let peer = peer.map(|peer| peer.pid.as_raw_nonzero().get().cast_unsigned());
        if let Some(peer) = peer.filter(|peer| processes.contains(peer)) {
            found.push(Connection { ends: vec![accepted], processes: [accepted.process, peer] });
        }
    }
    found
}

/// Inodes of all sockets of these processes.
pub(super) fn inodes(processes: &[u32]) -> Vec<u64> {
    processes.iter().flat_map(|process| sockets(*process)).map(|(inode, _)| inode).collect()
}

/// The sockets among these that still listen or are connected.
pub(super) fn alive(inodes: &[u64]) -> Vec<u64> {
    let lives = |line: &Line| [ESTABLISHED, LISTENING].contains(&line.state.as_str());
    let tcp = table().into_iter().filter(lives).map(|line| line.inode);
    let local = local_table().into_iter().map(|(inode, ..)| inode);
    tcp.chain(local).filter(|inode| inodes.contains(inode)).collect()
}

/// Whether the system allows copying descriptors: old ones do not, and containers may forbid it.
pub(super) fn can_be_cut() -> bool {
    let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    let copy = own.and_then(|own| pidfd_getfd(&own, 0, PidfdGetfdFlags::empty()));
    !matches!(copy, Err(Errno::PERM | Errno::NOSYS))
}

/// A copy of the descriptor, if it still refers to this end.
fn taken(end: &End) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(end.process).ok()?)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let copy = pidfd_getfd(&process, end.descriptor, PidfdGetfdFlags::empty()).ok()?;
    let is_it = rustix::fs::fstat(&copy).is_ok_and(|stat| stat.st_ino == end.inode);
    is_it.then_some(copy)
}

/// Cuts a connection at one of its ends; false when it was gone before.
pub(super) fn cut(end: &End, way: CutKind) -> bool {
    let Some(copy) = taken(end) else { return false };
    let is_hung_up = || {
        let mut descriptors = [PollFd::new(&copy, PollFlags::empty())];
        let asked = poll(&mut descriptors, Some(&Timespec::default()));
        asked.is_ok() && descriptors[0].revents().contains(PollFlags::HUP)
    };
    match end.kind {
        Kind::Tcp => {
            let done = match way {
                CutKind::Closed => shutdown(&copy, Shutdown::Both),
                CutKind::Reset => connect_unspec(&copy),
            };
            if done.is_err() {
                return false;
            }
            let stays = |line: &Line| (line.inode, line.state.as_str()) == (end.inode, ESTABLISHED);
            assert!(!table().iter().any(stays), "the connection {end:?} is cut");
        }
        Kind::Local => {
            if is_hung_up() || shutdown(&copy, Shutdown::Both).is_err() {
                return false;
            }
            // Data that its process has not read yet.
            let mut bytes = vec![0; 64 << 10];
            while matches!(way, CutKind::Reset)
                && recv(&copy, &mut bytes[..], RecvFlags::DONTWAIT).is_ok_and(|(_, read)| read > 0)
            {
            }
            assert!(is_hung_up(), "the connection {end:?} is cut");
        }
    }
    true
}

#[test]
fn a_connection_that_is_cut_ends_for_both() {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    trait Stream: Read + Write + AsRawFd {}
    impl<S: Read + Write + AsRawFd> Stream for S {}
    type Ends = [Box<dyn Stream>; 2];
    let tcp = || -> Ends {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [Box::new(one), Box::new(listener.accept().unwrap().0)]
    };
    let local = || -> Ends {
        let name = format!("tidemill-{}-cut", std::process::id());
        let name = SocketAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&name).unwrap();
        let one = UnixStream::connect_addr(&name).unwrap();
        [Box::new(one), Box::new(listener.accept().unwrap().0)]
    };
    for (make, is_tcp) in [(&tcp as &dyn Fn() -> Ends, true), (&local, false)] {
        for way in [CutKind::Closed, CutKind::Reset] {
            let [mut one, mut other] = make();
            one.write_all(b"on its way").unwrap();
            let own = std::process::id();
            let ours = |connection: &Connection| {
                connection.ends.iter().any(|end| end.descriptor == other.as_raw_fd())
            };
            // Lines of the system's tables are missed or doubled when others come and go while they are read.
            let mut looks = (0..100).map(|_| connections(&[own]).into_iter().filter(ours).collect());
            let found: Vec<Connection> = looks.find(|found: &Vec<_>| found.len() == 1).unwrap();
            let end = found[0].ends.iter().find(|end| end.descriptor == other.as_raw_fd()).unwrap();
            assert!(found[0].touches(own));
            assert!((0..100).any(|_| alive(&[end.inode]) == [end.inode]), "{end:?} is not alive");
            assert!(cut(end, way));
            let rest = |stream: &mut dyn Stream| {
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).map(|_| bytes)
            };
            let (at_one, at_other) = (rest(&mut *one), rest(&mut *other));
            match way {
                CutKind::Closed => assert!(at_one.unwrap().is_empty() && at_other.is_ok()),
                // One end is not connected any more, the other was reset.
                CutKind::Reset if is_tcp => assert!(at_one.is_err() || at_other.is_err()),
                CutKind::Reset => {
                    assert_eq!((at_one.unwrap(), at_other.unwrap()), (vec![], vec![]), "it is lost")
                }
            }
        }
    }
}
