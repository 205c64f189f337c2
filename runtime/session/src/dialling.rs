//! Dials over several paths at once: the first that answers is taken.
use crate::clock::now;
use crate::place::OwnPath;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Time that a path has before the next one is dialled beside it.
pub(crate) const STAGGER: Duration = Duration::from_millis(100);

/// One path to dial.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    /// Index of the path in its session.
    pub(crate) path: usize,
    pub(crate) own: Option<OwnPath>,
    pub(crate) to: Vec<SocketAddr>,
}

/// Looks up the name of a host; as long as the system takes.
pub(crate) fn resolve(place: &str) -> io::Result<Vec<SocketAddr>> {
    let addresses: Vec<SocketAddr> = place.to_socket_addrs()?.collect();
    if addresses.is_empty() {
        return Err(io::Error::new(ErrorKind::NotFound, format!("{place} has no address")));
    }
    Ok(addresses)
}

/// Returns the address that connections by way of an interface leave from.
///
/// # Errors
/// When the machine has no such interface, or nothing leaves by it now.
pub fn address_of(interface: &str) -> io::Result<IpAddr> {
    // Nothing is sent: the system only chooses an address. Any address that is not of this network will do.
    const ELSEWHERE: [(&str, &str); 2] = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    let of = |(any, elsewhere): (&str, &str)| {
        let socket = std::net::UdpSocket::bind(any)?;
        socket2::SockRef::from(&socket).bind_device(Some(interface.as_bytes()))?;
        socket.connect(elsewhere).and_then(|()| socket.local_addr()).map(|own| own.ip())
    };
    let named = |error: io::Error| io::Error::new(error.kind(), format!("interface {interface}: {error}"));
    of(ELSEWHERE[0]).or_else(|error| of(ELSEWHERE[1]).map_err(|_| named(error)))
}

/// Begins to connect by way of an interface or address of this host; never waits.
pub(crate) fn begin(own: Option<&OwnPath>, to: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    if let Some(interface) = own.and_then(|own| own.interface.as_deref()) {
        let bound = socket2::SockRef::from(&socket).bind_device(Some(interface.as_bytes()));
        bound.map_err(|error| io::Error::new(error.kind(), format!("interface {interface}: {error}")))?;
    }
    if let Some(address) = own.and_then(|own| own.address).filter(|address| is_of_one_family(address, to)) {
        rustix::net::bind(&socket, &SocketAddr::new(address, 0))?;
    }
    match connect(&socket, to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

fn is_of_one_family(address: &IpAddr, to: &SocketAddr) -> bool {
    address.is_ipv4() == to.is_ipv4()
}

/// Returns whether a socket is connected; an error if it cannot be.
pub(crate) fn is_connected(socket: &OwnedFd) -> io::Result<bool> {
    let mut fd = [PollFd::new(socket, PollFlags::OUT)];
    if poll(&mut fd, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0 {
        return Ok(false);
    }
    sockopt::socket_error(socket)?.map(|()| true).map_err(io::Error::from)
}

/// Connects over the first of the paths that answers. The next one is dialled when one fails, or is silent for [`STAGGER`].
///
/// # Errors
/// [`ErrorKind::ConnectionRefused`] when all refuse; [`ErrorKind::TimedOut`] when none answers; what the system reports
/// otherwise.
pub(crate) fn first(candidates: &[Candidate], timeout: Duration) -> io::Result<(usize, OwnedFd)> {
    let tries =
        candidates.iter().flat_map(|one| one.to.iter().map(move |to| (one.path, one.own.as_ref(), to)));
    let mut tries = tries.collect::<Vec<_>>().into_iter();
    let begun = now();
    let mut running: Vec<(usize, OwnedFd)> = Vec::new();
    let mut next_at = begun;
    let (mut refusals, mut failure) = (0, None);
    let count = tries.len();
    loop {
        let time = now();
        if time >= next_at || running.is_empty() {
            match tries.next() {
                Some((path, own, to)) => {
                    match begin(own, to) {
                        Ok(socket) => running.push((path, socket)),
                        Err(error) => failure = Some(error),
                    }
                    next_at = time + STAGGER;
                    if running.is_empty() {
                        continue;
                    }
                }
                None if running.is_empty() => break,
                None => next_at = begun + timeout,
            }
        }
        let left = (begun + timeout).saturating_sub(time);
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        let wait = left.min(next_at.saturating_sub(time)).max(Duration::from_micros(100));
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        let mut fds: Vec<PollFd<'_>> = running
            .iter()
            .map(|(_, socket)| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT))
            .collect();
        match poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut still = Vec::new();
        for (path, socket) in running {
            match is_connected(&socket) {
                Ok(true) => return Ok((path, socket)),
                Ok(false) => still.push((path, socket)),
                Err(error) => {
                    refusals += usize::from(error.kind() == ErrorKind::ConnectionRefused);
                    failure = Some(error);
                    // The next one need not wait.
                    next_at = now();
                }
            }
        }
        running = still;
    }
    if refusals == count && count > 0 {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    let failure = failure.filter(|error| error.kind() != ErrorKind::ConnectionRefused);
    Err(failure.unwrap_or_else(|| ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn candidate(path: usize, to: SocketAddr) -> Candidate {
        Candidate { path, own: None, to: vec![to] }
    }

    /// An address without a listener.
    fn nobody() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    #[test]
    fn a_path_that_refuses_is_followed_by_the_next_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let both = [candidate(0, nobody()), candidate(1, listener.local_addr().unwrap())];
        assert_eq!(first(&both, Duration::from_secs(60)).unwrap().0, 1);
    }

    #[test]
    fn a_silent_path_does_not_hold_up_the_next_one() {
        // A full backlog: the system answers nothing more.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&silent, 0).unwrap();
        let to = silent.local_addr().unwrap();
        let mut filled = Vec::new();
        let is_full = |filled: &mut Vec<OwnedFd>| {
            let result = first(&[candidate(0, to)], Duration::from_millis(200));
            let is_full = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::TimedOut);
            filled.extend(result.ok().map(|(_, socket)| socket));
            is_full
        };
        assert!((0..16).any(|_| is_full(&mut filled)), "the backlog is never full");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let both = [candidate(0, to), candidate(1, listener.local_addr().unwrap())];
        assert_eq!(first(&both, Duration::from_secs(60)).unwrap().0, 1);
    }

    #[test]
    fn refusals_of_all_are_a_refusal() {
        let both = [candidate(0, nobody()), candidate(1, nobody())];
        let error = first(&both, Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(first(&[], Duration::from_secs(60)).unwrap_err().kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn an_interface_that_there_is_not_is_named() {
        let own = OwnPath { interface: Some("wwan77".into()), ..OwnPath::default() };
        let error = begin(Some(&own), &nobody()).unwrap_err().to_string();
        assert!(error.contains("wwan77"), "{error}");
        let error = address_of("wwan77").unwrap_err().to_string();
        assert!(error.contains("wwan77"), "{error}");
    }
}
