//! Counters of a host's own traffic: bytes and flows in each direction, and those of them that leave the rack.
//!
//! Counters come from a [`Source`]: the TCP sockets of the kernel ([`Sockets`]), or those that a service keeps itself. The
//! counters of an interface ([`interface_bytes`]) add what is not TCP.
//!
//! ```
//! use std::time::Duration;
//! use tidemill_hints::collect::{Counter, Meter, Racks};
//! let racks = Racks { own: vec!["10.1.2.0/24".parse()?], others: vec!["10.1.0.0/16".parse()?] };
//! let mut meter = Meter::new(racks);
//! let counter = |sent| Counter {
//!     id: 1, local: [10, 1, 2, 3].into(), peer: [10, 1, 9, 9].into(), sent, received: 0,
//! };
//! for tick in 0..=100_u32 {
//!     meter.read(&[counter(u64::from(tick) * 1_000)], tick * Duration::from_millis(10));
//! }
//! let [up, down] = meter.report(0, Duration::from_secs(1));
//! assert_eq!((up.used.round(), up.crossing_used.round()), (100_000.0, 100_000.0)); // bytes per second
//! assert_eq!((up.sharers.round(), down.sharers), (1.0, 0.0));
//! # Ok::<(), tidemill_hints::collect::PrefixError>(())
//! ```
mod interface;
mod prefix;
mod sockets;

pub use interface::{InterfaceError, interface_bytes};
pub use prefix::{Place, Prefix, PrefixError, Racks};
pub use sockets::{OwnedCounter, SocketError, Sockets};

use crate::message::Entry;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// Time between two looks at the counters.
pub const LOOK: Duration = Duration::from_millis(10);
/// Weight of a new count of flows in their moving average.
const NEW: f64 = 1.0 / 8.0;

/// Bytes of one flow since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    /// A number that no other flow of the source ever has.
    pub id: u64,
    /// The address here.
    pub local: IpAddr,
    /// The address of the other end.
    pub peer: IpAddr,
    /// Bytes that arrived there.
    pub sent: u64,
    /// Bytes that arrived here.
    pub received: u64,
}

/// A source of counters of flows.
pub trait Source {
    /// A reason why there are none.
    type Error;
    /// Returns those of the flows of this moment.
    fn counters(&mut self) -> Result<Vec<Counter>, Self::Error>;
}

/// Counts of one direction.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// Bytes since the last report.
    bytes: u64,
    crossing_bytes: u64,
    /// Averages of flows.
    flows: f64,
    crossing_flows: f64,
    /// Bytes of the interface since the last report, if known.
    interface: Option<u64>,
}

/// Adds up counters, and turns them into what a host reports.
#[derive(Debug)]
pub struct Meter {
    racks: Racks,
    /// Bytes of each flow at the last look; none before the first one.
    last: Option<HashMap<u64, [u64; 2]>>,
    interface: Option<[u64; 2]>,
    counts: [Counts; 2],
    reported: Duration,
}

impl Meter {
    /// Creates a meter. Traffic counts from the first look on.
    pub fn new(racks: Racks) -> Self {
        let counts = [Counts::default(); 2];
        Self { racks, last: None, interface: None, counts, reported: Duration::ZERO }
    }

    /// Takes the counters of this moment, each [`LOOK`]. A flow that was not there the last time counts whole. Of one that is
    /// not there any more, the bytes since the last time are lost.
    pub fn read(&mut self, counters: &[Counter], now: Duration) {
        let mut flows = [[0_u32; 2]; 2];
        let mut current = HashMap::with_capacity(counters.len());
        for counter in counters {
            let totals = [counter.sent, counter.received];
            current.insert(counter.id, totals);
            let (Some(last), Some(place)) = (&self.last, self.racks.place(counter.local, counter.peer))
            else {
                continue;
            };
            let before = last.get(&counter.id).copied().unwrap_or_default();
            let crosses = place == Place::Outside;
            for side in 0..2 {
                let bytes = totals[side].saturating_sub(before[side]);
                self.counts[side].bytes += bytes;
                flows[side][0] += u32::from(bytes > 0);
                if crosses {
                    self.counts[side].crossing_bytes += bytes;
                    flows[side][1] += u32::from(bytes > 0);
                }
            }
        }
        if self.last.replace(current).is_none() {
            self.reported = now;
            return;
        }
        for (counts, [all, crossing]) in self.counts.iter_mut().zip(flows) {
            counts.flows += (f64::from(all) - counts.flows) * NEW;
            counts.crossing_flows += (f64::from(crossing) - counts.crossing_flows) * NEW;
        }
    }

    /// Takes the counters of the interface, bytes sent and received. They replace the sum of flows as the use of the link of the
    /// machine, because they include what is not TCP.
    pub fn interface(&mut self, totals: [u64; 2]) {
        if let Some(before) = self.interface.replace(totals) {
            for side in 0..2 {
                let bytes = totals[side].saturating_sub(before[side]);
                *self.counts[side].interface.get_or_insert_default() += bytes;
            }
        }
    }

    /// Returns what the host reports of the link of its machine, by its number in the rack: up, then down. Rates are in bytes per
    /// second since the last report.
    pub fn report(&mut self, machine: u64, now: Duration) -> [Entry; 2] {
        let seconds = now.saturating_sub(self.reported).as_secs_f64();
        self.reported = now;
        [0, 1].map(|side| {
            let counts = &mut self.counts[side];
            let rate = |bytes: u64| if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 };
            let entry = Entry {
                link: 2 * machine + side as u64,
                sharers: counts.flows,
                used: rate(counts.interface.unwrap_or_default().max(counts.bytes)),
                crossing_sharers: counts.crossing_flows,
                crossing_used: rate(counts.crossing_bytes),
            };
            let (flows, crossing_flows) = (counts.flows, counts.crossing_flows);
            *counts = Counts { flows, crossing_flows, ..Counts::default() };
            entry
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    fn meter() -> Meter {
        let prefix = |text: &str| text.parse().expect("it is a prefix");
        Meter::new(Racks { own: vec![prefix("10.1.2.0/24")], others: vec![prefix("10.1.0.0/16")] })
    }

    fn flow(id: u64, peer: [u8; 4], sent: u64, received: u64) -> Counter {
        Counter { id, local: [10, 1, 2, 1].into(), peer: peer.into(), sent, received }
    }

    #[test]
    fn traffic_within_and_out_of_the_rack_is_split() {
        let mut meter = meter();
        let (near, far, elsewhere) = ([10, 1, 2, 9], [10, 1, 3, 1], [8, 8, 8, 8]);
        meter.read(&[flow(1, near, 5_000, 70)], ms(0));
        meter.read(&[flow(1, near, 6_000, 70), flow(2, far, 300, 0), flow(3, elsewhere, 9, 9)], ms(10));
        meter.read(&[flow(2, far, 500, 40)], ms(500));
        let [up, down] = meter.report(4, ms(500));
        assert_eq!((up.link, down.link), (8, 9));
        assert_eq!((up.used, up.crossing_used), (3_000.0, 1_000.0), "1,500 and 500 bytes in half a second");
        assert_eq!((down.used, down.crossing_used), (80.0, 80.0));
        let again = meter.report(4, ms(1_000));
        assert_eq!((again[0].used, again[1].used), (0.0, 0.0));
    }

    #[test]
    fn the_number_of_flows_follows() {
        let mut meter = meter();
        let mut sent = 0;
        let mut run = |meter: &mut Meter, flows: u64, looks: u64| {
            for _ in 0..looks {
                sent += 1;
                let counters: Vec<Counter> = (0..flows).map(|id| flow(id, [10, 1, 3, 1], sent, 5)).collect();
                meter.read(&counters, ms(10 * sent));
            }
            meter.report(0, ms(10 * sent))[0].sharers
        };
        assert!((run(&mut meter, 1, 61) - 1.0).abs() < 0.01);
        // 7 - 6 (7/8)^k
        assert!((run(&mut meter, 7, 10) - (7.0 - 6.0 * (7.0_f64 / 8.0).powi(10))).abs() < 0.01);
        assert!((run(&mut meter, 7, 50) - 7.0).abs() < 0.01);
        assert!((run(&mut meter, 3, 60) - 3.0).abs() < 0.01);
        assert!(run(&mut meter, 0, 60) < 0.01);
    }

    #[test]
    fn the_interface_adds_what_is_not_tcp() {
        let mut meter = meter();
        meter.read(&[flow(1, [10, 1, 3, 1], 0, 0)], ms(0));
        meter.interface([1_000, 1_000]);
        meter.read(&[flow(1, [10, 1, 3, 1], 400, 400)], ms(1_000));
        meter.interface([1_900, 1_000]);
        let [up, down] = meter.report(0, ms(1_000));
        assert_eq!((up.used, up.crossing_used), (900.0, 400.0));
        assert_eq!(down.used, 400.0, "an interface that does not count is no reason to forget flows");
    }
}
