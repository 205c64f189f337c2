//! Connections between the processes of a run, and how a test cuts one: it takes a copy of the descriptor out of the process
//! (`pidfd_getfd`, which a parent may do without further rights) and ends the connection there. Neither end is told
//! by anybody but the system, as when a cable is pulled and the socket gives up, or a router sends a reset.
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketAddrAny, connect_unspec, getpeername, getsockname, shutdown};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

/// What the system calls an established connection.
const ESTABLISHED: &str = "01";
/// What it calls a socket that somebody may connect to.
const LISTENING: &str = "0A";

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub(super) process: u32,
    descriptor: i32,
    pub(super) inode: u64,
    local: SocketAddrV4,
    remote: SocketAddrV4,
}

/// A connection between two processes of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connection(pub(super) [End; 2]);

impl Connection {
    pub(super) fn touches(&self, process: u32) -> bool {
        self.0.iter().any(|end| end.process == process)
    }
}

/// How a connection is ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way {
    /// Both ends hear that nothing more comes; what was on its way may be lost.
    Closed,
    /// What was on its way is thrown away, and the other end gets a reset.
    Reset,
}

/// A line of the system's table: inode, ends, state.
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

/// Inodes and descriptors of the sockets of a process; none when it is gone.
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
    let established = table().into_iter().filter(|line| line.state == ESTABLISHED);
    let ends: Vec<End> = established
        .filter_map(|Line { inode, local, remote, .. }| {
            let (process, descriptor) = *owners.get(&inode)?;
            Some(End { process, descriptor, inode, local, remote })
        })
        .collect();
    let pair = |one: &End| {
        let other = ends.iter().find(|other| (other.local, other.remote) == (one.remote, one.local))?;
        (one.inode < other.inode).then_some(Connection([*one, *other]))
    };
    ends.iter().filter_map(pair).collect()
}

/// Inodes of all sockets of these processes that are listened at or connected.
pub(super) fn inodes(processes: &[u32]) -> Vec<u64> {
    processes.iter().flat_map(|process| sockets(*process)).map(|(inode, _)| inode).collect()
}

/// Those of these sockets that still listen or are connected.
pub(super) fn alive(inodes: &[u64]) -> Vec<u64> {
    let lives = |line: &Line| [ESTABLISHED, LISTENING].contains(&line.state.as_str());
    table().iter().filter(|line| lives(line) && inodes.contains(&line.inode)).map(|line| line.inode).collect()
}

fn v4(address: Option<SocketAddrAny>) -> Option<SocketAddrV4> {
    SocketAddrV4::try_from(address?).ok()
}

/// Whether the system gives out descriptors at all: old ones do not, and containers may forbid it.
pub(super) fn can_be_cut() -> bool {
    let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    let copy = own.and_then(|own| pidfd_getfd(&own, 0, PidfdGetfdFlags::empty()));
    !matches!(copy, Err(Errno::PERM | Errno::NOSYS))
}

/// A copy of the descriptor, if it still is this end.
fn taken(end: &End) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(end.process).ok()?)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let copy = pidfd_getfd(&process, end.descriptor, PidfdGetfdFlags::empty()).ok()?;
    let ends = (v4(getsockname(&copy).ok()), v4(getpeername(&copy).ok().flatten()));
    (ends == (Some(end.local), Some(end.remote))).then_some(copy)
}

/// Cuts a connection at one of its ends; false when it was gone before.
pub(super) fn cut(end: &End, way: Way) -> bool {
    let Some(copy) = taken(end) else { return false };
    let done = match way {
        Way::Closed => shutdown(&copy, Shutdown::Both),
        Way::Reset => connect_unspec(&copy),
    };
    if done.is_err() {
        return false;
    }
    let stays = |line: &Line| (line.inode, line.state.as_str()) == (end.inode, ESTABLISHED);
    assert!(!table().iter().any(stays), "the connection {end:?} is cut");
    true
}

#[test]
fn a_connection_that_is_cut_ends_for_both() {
    use std::io::Read;
    for way in [Way::Closed, Way::Reset] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut other = listener.accept().unwrap().0;
        let own = std::process::id();
        let address = one.local_addr().unwrap();
        let ours = |connection: &Connection| {
            connection.0.iter().any(|end| std::net::SocketAddr::V4(end.local) == address)
        };
        let found: Vec<Connection> = connections(&[own]).into_iter().filter(ours).collect();
        assert_eq!(found.len(), 1);
        assert!(found[0].touches(own) && alive(&[found[0].0[0].inode]).len() == 1);
        assert!(cut(&found[0].0[0], way));
        let ended = |stream: &mut std::net::TcpStream| stream.read(&mut [0; 1]).is_ok_and(|read| read == 0);
        match way {
            Way::Closed => assert!(ended(&mut one) && ended(&mut other)),
            // One end is not connected any more, the other was reset.
            Way::Reset => assert!(one.read(&mut [0; 1]).is_err() || other.read(&mut [0; 1]).is_err()),
        }
    }
}
