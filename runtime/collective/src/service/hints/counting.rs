//! Counters of the host's traffic: those of the kernel as long as it tells them, else those of the wires of this service.
use super::wires::Wires;
use crate::hints::{Counted, Given};
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::Duration;
use tidemill_hints::collect::{Counter, Meter, Prefix, Racks, SocketError, Sockets, Source, interface_bytes};
use tidemill_hints::message::Entry;
use tidemill_link::remote::Address;

/// Looks that fail one after another until the kernel is not asked any more.
const TRIES: u32 = 5;

enum Reading {
    Kernel(Sockets),
    Given(Given),
    Wires,
}

/// The counters, and what they add up to.
pub(super) struct Counting {
    reading: Reading,
    wires: Arc<Wires>,
    /// Why the kernel is not asked.
    reason: Option<String>,
    /// Whether the service has said so.
    is_told: bool,
    failed: u32,
    interface: Option<String>,
    racks: Racks,
    meter: Meter,
}

impl Counting {
    pub(super) fn new(given: Option<Given>, wires: Arc<Wires>, interface: Option<String>) -> Self {
        let (reading, reason) = match given {
            Some(given) => (Reading::Given(given), None),
            None => match Sockets::open() {
                Ok(sockets) => (Reading::Kernel(sockets), None),
                Err(error) => (Reading::Wires, Some(error.to_string())),
            },
        };
        let racks = if reason.is_some() { Wires::racks() } else { Racks::default() };
        // Counters that are given are not of the interface.
        let interface = interface.filter(|_| matches!(reading, Reading::Kernel(_)));
        let meter = Meter::new(racks.clone());
        Self { reading, wires, reason, is_told: false, failed: 0, interface, racks, meter }
    }

    pub(super) fn interface(&self) -> Option<&str> {
        self.interface.as_deref()
    }

    pub(super) fn counted(&self) -> Counted {
        match &self.reason {
            None => Counted::Sockets { interface: self.interface.clone() },
            Some(reason) => Counted::Wires { reason: reason.clone() },
        }
    }

    /// Takes what is in the rack. Flows count from the next look on.
    pub(super) fn set_racks(&mut self, near: &[Address], others: &[Prefix]) {
        if self.reason.is_some() {
            return;
        }
        let address = |of: &Address| of.place().to_socket_addrs().ok().and_then(|mut found| found.next());
        let near = near.iter().filter_map(address).filter_map(|place| place.ip().to_string().parse().ok());
        let racks = Racks { own: near.chain(others.iter().copied()).collect(), others: Vec::new() };
        if racks != self.racks {
            self.racks = racks.clone();
            self.meter = Meter::new(racks);
        }
    }

    /// Looks at the counters. Returns why the kernel is not asked any more, once.
    pub(super) fn look(&mut self, now: Duration) -> Option<String> {
        match self.counters() {
            Ok(counters) => {
                self.failed = 0;
                self.meter.read(&counters, now);
            }
            Err(error) => {
                self.failed += 1;
                if self.failed == TRIES {
                    self.reason = Some(error.to_string());
                    (self.reading, self.interface) = (Reading::Wires, None);
                    self.racks = Wires::racks();
                    self.meter = Meter::new(Wires::racks());
                }
            }
        }
        let reason = self.reason.clone()?;
        (!std::mem::replace(&mut self.is_told, true)).then_some(reason)
    }

    fn counters(&mut self) -> Result<Vec<Counter>, SocketError> {
        match &mut self.reading {
            Reading::Kernel(sockets) => sockets.counters(),
            Reading::Given(given) => given.counters(),
            Reading::Wires => Ok(self.wires.counters()),
        }
    }

    /// Returns what the host reports as the machine of this number.
    pub(super) fn report(&mut self, machine: u64, now: Duration) -> [Entry; 2] {
        if let Some(bytes) = self.interface.as_deref().and_then(|name| interface_bytes(name).ok()) {
            self.meter.interface(bytes);
        }
        self.meter.report(machine, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn counting(
        counters: impl Fn() -> Result<Vec<Counter>, SocketError> + Send + Sync + 'static,
    ) -> Counting {
        Counting::new(Some(Given::new(counters)), Arc::default(), None)
    }

    #[test]
    fn a_kernel_that_does_not_tell_is_not_asked_for_ever() {
        let refused = || Err(SocketError::Refused(io::Error::from(io::ErrorKind::PermissionDenied)));
        let mut counting = counting(refused);
        let told: Vec<Option<String>> = (0..7).map(|ms| counting.look(Duration::from_millis(ms))).collect();
        assert!(told[4].as_ref().is_some_and(|reason| reason.contains("permission denied")), "{told:?}");
        assert_eq!(told.iter().flatten().count(), 1, "it is said once: {told:?}");
        assert!(matches!(counting.counted(), Counted::Wires { .. }));
    }

    #[test]
    fn addresses_of_the_rack_are_within_it() {
        let counter = |id, peer: [u8; 4], sent| Counter {
            id,
            local: [10, 1, 2, 1].into(),
            peer: peer.into(),
            sent,
            received: 0,
        };
        let ticks = std::sync::atomic::AtomicU64::new(0);
        let mut counting = counting(move || {
            let sent = ticks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) * 1_000;
            Ok(vec![
                counter(1, [10, 1, 2, 9], sent),
                counter(2, [10, 9, 9, 9], sent),
                counter(3, [8, 8, 8, 8], sent),
            ])
        });
        counting.set_racks(&[Address::tcp("10.1.2.9:7470")], &["10.9.0.0/16".parse().unwrap()]);
        assert_eq!(counting.look(Duration::ZERO), None);
        assert_eq!(counting.look(Duration::from_secs(1)), None);
        let [up, _] = counting.report(3, Duration::from_secs(1));
        assert_eq!((up.link, up.used, up.crossing_used), (6, 3_000.0, 1_000.0));
    }
}
