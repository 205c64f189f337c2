//! Bytes of the connections between ranks, counted by the service itself. They are all that it knows where the kernel does not tell it
//! the sockets of its host.
use super::super::locked;
use crate::wire::Wire;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use tidemill_hints::collect::{Counter, Racks};

/// Stand for the other end of a connection: whether it is in the rack is known by its host, and not by its address.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 0));
const INSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const OUTSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

#[derive(Debug)]
struct Flow {
    id: u64,
    peer: IpAddr,
    sent: AtomicU64,
    received: AtomicU64,
}

/// The connections between ranks that the service has.
#[derive(Debug, Default)]
pub(in crate::service) struct Wires(Mutex<(u64, Vec<Weak<Flow>>)>);

impl Wires {
    /// Counts the bytes of a wire from now on.
    pub(in crate::service) fn count(&self, wire: Box<dyn Wire>, leaves_rack: bool) -> Box<dyn Wire> {
        let peer = if leaves_rack { OUTSIDE } else { INSIDE };
        let mut known = locked(&self.0);
        known.0 += 1;
        let flow = Flow { id: known.0, peer, sent: AtomicU64::new(0), received: AtomicU64::new(0) };
        let flow = Arc::new(flow);
        known.1.retain(|flow| flow.strong_count() > 0);
        known.1.push(Arc::downgrade(&flow));
        Box::new(Counting { wire, flow })
    }

    pub(super) fn counters(&self) -> Vec<Counter> {
        let counter = |flow: Arc<Flow>| Counter {
            id: flow.id,
            local: HERE,
            peer: flow.peer,
            sent: flow.sent.load(Ordering::Relaxed),
            received: flow.received.load(Ordering::Relaxed),
        };
        locked(&self.0).1.iter().filter_map(Weak::upgrade).map(counter).collect()
    }

    /// The racks by which the counters are told apart.
    pub(super) fn racks() -> Racks {
        Racks { own: INSIDE.to_string().parse().into_iter().collect(), others: Vec::new() }
    }
}

struct Counting {
    wire: Box<dyn Wire>,
    flow: Arc<Flow>,
}

impl Wire for Counting {
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.wire.send(bytes)?;
        self.flow.sent.fetch_add(sent as u64, Ordering::Relaxed);
        Ok(sent)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.wire.flush()
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let received = self.wire.receive(into)?;
        self.flow.received.fetch_add(received as u64, Ordering::Relaxed);
        Ok(received)
    }

    fn readable(&self) -> BorrowedFd<'_> {
        self.wire.readable()
    }

    fn writable(&self) -> Option<BorrowedFd<'_>> {
        self.wire.writable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Socket;
    use std::os::unix::net::UnixStream;
    use tidemill_hints::collect::Meter;

    #[test]
    fn wires_are_counted_by_rack_until_they_are_closed() {
        let wires = Wires::default();
        let pair = || UnixStream::pair().unwrap();
        let ((near, far), (there, elsewhere)) = (pair(), pair());
        let mut near = wires.count(Box::new(Socket::new(near)), false);
        let mut there = wires.count(Box::new(Socket::new(there)), true);
        let (mut far, mut elsewhere) = (Socket::new(far), Socket::new(elsewhere));
        let mut meter = Meter::new(Wires::racks());
        let second = std::time::Duration::from_secs(1);
        meter.read(&wires.counters(), std::time::Duration::ZERO);
        assert_eq!(near.send(&[0; 100]).unwrap(), 100);
        assert_eq!(there.send(&[0; 30]).unwrap(), 30);
        elsewhere.send(&[0; 7]).unwrap();
        assert_eq!(there.receive(&mut [0; 100]).unwrap(), 7);
        assert_eq!(far.receive(&mut [0; 200]).unwrap(), 100);
        meter.read(&wires.counters(), second);
        let [up, down] = meter.report(0, second);
        assert_eq!((up.used, up.crossing_used), (130.0, 30.0));
        assert_eq!((down.used, down.crossing_used), (7.0, 7.0));
        drop(near);
        assert_eq!(wires.counters().len(), 1);
    }
}
