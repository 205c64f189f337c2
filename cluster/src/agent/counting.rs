//! Counts the traffic of this machine that is not of runs, for the controller to know what is left of links.
//!
//! | question | module |
//! |---|---|
//! | which connections are those of this worker and its processes? | `owned` |
//! | which machines are reached without a router, and by which interface are others? | `routes` |
mod owned;
mod routes;

use crate::api::{FlowRate, PeerTraffic, TrafficReport};
use crate::clock::instant;
use owned::Owned;
use routes::Routes;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidemill_hints::collect::{Counter, Meter, OwnedCounter, Prefix, Racks, Sockets, interface_bytes};

/// Settings of the counting of traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficOptions {
    /// Time between two looks at the counters; none: they are not looked at.
    pub period: Option<Duration>,
    /// Addresses at the site of this machine besides those that it reaches without a router.
    pub site: Vec<Prefix>,
}

impl Default for TrafficOptions {
    fn default() -> Self {
        Self { period: Some(PERIOD), site: Vec::new() }
    }
}

/// The usual time between two looks.
pub const PERIOD: Duration = Duration::from_millis(100);
/// The least time between two looks.
pub const LEAST_PERIOD: Duration = tidemill_hints::leader::LEAST;

/// Machines that are counted one by one.
const MOST_PEERS: usize = 64;
/// Time for which the routes of the kernel are used.
const ROUTES: Duration = Duration::from_secs(5);
/// The part of the bytes of TCP that headers and acknowledgements add on an interface, at most.
const HEADERS: f64 = 0.1;
/// The part of the bytes in one direction that their acknowledgements are in the other one, at most.
const ACKNOWLEDGEMENTS: f64 = 0.05;
/// Fewer flows count as none.
const LEAST_FLOWS: f64 = 0.01;

/// Whom traffic is with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Peer(IpAddr),
    Near,
    Far,
}

/// Adds up counters between two reports.
#[derive(Debug)]
struct Tally {
    groups: BTreeMap<Group, Meter>,
    /// The group of each socket while it lives; none: it is one of this worker's processes. A socket that is closed belongs to no
    /// process any more, and one that changed from group to group would count from its beginning.
    sockets: HashMap<u64, Option<Group>>,
    /// All TCP traffic, and that of the interface.
    whole: Meter,
    reported: Duration,
    has_begun: bool,
}

fn meter() -> Meter {
    Meter::new(Racks::default())
}

impl Tally {
    fn new() -> Self {
        let (groups, sockets) = (BTreeMap::new(), HashMap::new());
        Self { groups, sockets, whole: meter(), reported: Duration::ZERO, has_begun: false }
    }

    /// Whether there are sockets that were not there at the last look.
    fn has_new(&self, sockets: &[OwnedCounter]) -> bool {
        sockets.iter().any(|socket| !self.sockets.contains_key(&socket.counter.id))
    }

    /// Takes the counters of this moment. `is_own` says of a socket whether it is one of this worker's processes.
    fn look(
        &mut self,
        sockets: &[OwnedCounter],
        is_own: impl Fn(&OwnedCounter) -> bool,
        is_near: impl Fn(IpAddr) -> bool,
        interface: Option<[u64; 2]>,
        now: Duration,
    ) {
        let all: Vec<Counter> = sockets.iter().map(|socket| socket.counter).collect();
        self.whole.read(&all, now);
        if let Some(totals) = interface {
            self.whole.interface(totals);
        }
        let before = std::mem::take(&mut self.sockets);
        let mut counters: BTreeMap<Group, Vec<Counter>> =
            self.groups.keys().map(|group| (*group, Vec::new())).collect();
        for socket in sockets {
            let Counter { id, local, peer, .. } = socket.counter;
            let group = match before.get(&id) {
                // A process that has just started is found a little later than its sockets.
                Some(Some(_)) if is_own(socket) => None,
                Some(known) => *known,
                None if is_own(socket) || local == peer || peer.is_loopback() => None,
                None => Some(match Group::Peer(peer) {
                    one if counters.contains_key(&one) || counters.len() < MOST_PEERS => one,
                    _ if is_near(peer) => Group::Near,
                    _ => Group::Far,
                }),
            };
            self.sockets.insert(id, group);
            if let Some(group) = group {
                counters.entry(group).or_default().push(socket.counter);
            }
        }
        let (has_begun, reported) = (std::mem::replace(&mut self.has_begun, true), self.reported);
        for (group, counters) in counters {
            let meter = self.groups.entry(group).or_insert_with(|| {
                let mut new = meter();
                if has_begun {
                    // The first look of a meter is where it begins. What its sockets have carried since the last report counts.
                    new.read(&[], reported);
                }
                new
            });
            meter.read(&counters, now);
        }
    }

    /// Returns the traffic since the last report.
    fn report(&mut self, is_near: impl Fn(IpAddr) -> bool, now: Duration) -> TrafficReport {
        let milliseconds = now.saturating_sub(std::mem::replace(&mut self.reported, now)).as_millis();
        let mut peers = Vec::new();
        self.groups.retain(|group, meter| {
            let [sent, received] = meter.report(0, now).map(|entry| FlowRate {
                flows: (entry.sharers * 100.0).round() / 100.0,
                bytes_per_second: entry.used.round() as u64,
            });
            let is_used =
                [sent, received].iter().any(|one| one.bytes_per_second > 0 || one.flows >= LEAST_FLOWS);
            if is_used {
                let (peer, is_near) = match *group {
                    Group::Peer(address) => (Some(address), is_near(address)),
                    Group::Near => (None, true),
                    Group::Far => (None, false),
                };
                peers.push(PeerTraffic { peer, is_near, sent, received });
            }
            is_used || self.sockets.values().any(|of| *of == Some(*group))
        });
        peers.sort_by_key(|of| std::cmp::Reverse(of.sent.bytes_per_second.max(of.received.bytes_per_second)));
        let whole = self.whole.report(0, now);
        let other = [0, 1].map(|side| {
            let explained = whole[side].crossing_used * (1.0 + HEADERS)
                + whole[1 - side].crossing_used * ACKNOWLEDGEMENTS;
            (whole[side].used - explained).max(0.0).round() as u64
        });
        let milliseconds = u64::try_from(milliseconds).unwrap_or(u64::MAX);
        TrafficReport { milliseconds, peers, other, problem: None }
    }
}

/// Counts of the thread.
struct Counted {
    tally: Tally,
    near: Routes,
    now: Duration,
    problem: Option<String>,
    /// Nothing was counted since the last report.
    is_old: bool,
}

/// Part of the heartbeats from the thread that counts, which ends after this is dropped.
pub(super) struct Counting {
    counted: Option<Arc<Mutex<Counted>>>,
    _ends: Sender<()>,
}

impl Counting {
    /// Starts to count, unless the settings say not to.
    pub(super) fn start(options: &TrafficOptions) -> Self {
        let (ends, ended) = channel();
        let counted = options.period.map(|period| {
            let counted = Counted {
                tally: Tally::new(),
                near: Routes::default(),
                now: Duration::ZERO,
                problem: None,
                is_old: true,
            };
            let counted = Arc::new(Mutex::new(counted));
            let (of, site) = (Arc::clone(&counted), options.site.clone());
            let work = move || count(&of, period.max(LEAST_PERIOD), &site, &ended);
            if let Err(error) = std::thread::Builder::new().name("tm-counts".into()).spawn(work) {
                locked(&counted).problem = Some(format!("the thread that counts cannot start: {error}"));
            }
            counted
        });
        Self { counted, _ends: ends }
    }

    /// Returns the traffic since the last call; none: it is not counted, or nothing new was.
    pub(super) fn report(&self) -> Option<TrafficReport> {
        let mut counted = locked(self.counted.as_ref()?);
        if let Some(problem) = &counted.problem {
            return Some(TrafficReport { problem: Some(problem.clone()), ..TrafficReport::default() });
        }
        if std::mem::replace(&mut counted.is_old, true) {
            return None;
        }
        let Counted { tally, near, now, .. } = &mut *counted;
        Some(tally.report(|peer| near.is_near(peer), *now))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at the counters each period, until the other end of the channel is dropped.
fn count(counted: &Mutex<Counted>, period: Duration, site: &[Prefix], ended: &Receiver<()>) {
    let begun = instant();
    let (mut source, mut owned, mut routed) = (None, Owned::of(std::process::id()), None::<Duration>);
    loop {
        let now = begun.elapsed();
        let found = look(&mut source);
        let mut state = locked(counted);
        if routed.is_none_or(|at| now.saturating_sub(at) >= ROUTES) {
            (state.near, routed) = (Routes::read(site), Some(now));
        }
        match found {
            Ok(sockets) => {
                let Counted { tally, near, .. } = &mut *state;
                owned.look(tally.has_new(&sockets), now);
                let interface = near.interface().and_then(|name| interface_bytes(name).ok());
                let is_own = |socket: &OwnedCounter| owned.has(socket.inode);
                tally.look(&sockets, is_own, |peer| near.is_near(peer), interface, now);
                (state.problem, state.now, state.is_old) = (None, now, false);
            }
            Err(error) => {
                if state.problem.is_none() {
                    tracing::info!("the traffic of this machine is not counted: {error}");
                }
                state.problem = Some(error);
                source = None;
            }
        }
        drop(state);
        if ended.recv_timeout(period) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn look(source: &mut Option<Sockets>) -> Result<Vec<OwnedCounter>, String> {
    let sockets = match source {
        Some(sockets) => sockets,
        None => source.insert(Sockets::open().map_err(|error| error.to_string())?),
    };
    sockets.owned().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    fn socket(id: u64, peer: [u8; 4], sent: u64, received: u64) -> OwnedCounter {
        let counter = Counter { id, local: [10, 0, 0, 1].into(), peer: peer.into(), sent, received };
        OwnedCounter { counter, inode: id }
    }

    /// The socket with the number 7 is that of a run; addresses with 10.0.0. are near.
    fn look(tally: &mut Tally, sockets: &[OwnedCounter], interface: Option<[u64; 2]>, now: Duration) {
        tally.look(sockets, |socket| socket.inode == 7, is_near, interface, now);
    }

    fn is_near(peer: IpAddr) -> bool {
        matches!(peer, IpAddr::V4(peer) if peer.octets().starts_with(&[10, 0, 0]))
    }

    #[test]
    fn own_streams_are_no_load_of_others() {
        let mut tally = Tally::new();
        let (hub, far) = ([10, 9, 0, 1], [8, 8, 8, 8]);
        look(&mut tally, &[], None, ms(0));
        for tick in 1..=20 {
            let bytes = tick * 1_000;
            let all =
                [socket(7, hub, 9 * bytes, bytes), socket(1, far, bytes, 0), socket(2, hub, 0, 2 * bytes)];
            look(&mut tally, &all, None, ms(100 * tick));
        }
        let report = tally.report(is_near, ms(2_000));
        assert_eq!(report.milliseconds, 2_000);
        let of = |peer: [u8; 4]| report.peers.iter().find(|of| of.peer == Some(peer.into())).unwrap();
        assert_eq!(of(hub).sent, FlowRate::default(), "only the run sends there");
        assert_eq!(of(hub).received.bytes_per_second, 20_000);
        assert_eq!(of(far).sent.bytes_per_second, 10_000);
        assert!((of(far).sent.flows - 1.0).abs() < 0.1, "{report:?}");
        assert_eq!(report.other, [0, 0]);
        // A process is found to be one of the worker's: its socket does not count any more.
        let all = [socket(1, far, 90_000, 0)];
        tally.look(&all, |socket| socket.inode == 1, is_near, None, ms(2_100));
        assert_eq!(
            tally.report(is_near, ms(2_100)).peers.iter().map(|of| of.sent.bytes_per_second).sum::<u64>(),
            0
        );
    }

    #[test]
    fn what_is_not_tcp_is_the_rest_of_the_interface() {
        let mut tally = Tally::new();
        let far = [8, 8, 8, 8];
        look(&mut tally, &[], Some([0, 0]), ms(0));
        // Headers are no traffic of others.
        look(&mut tally, &[socket(7, far, 100_000, 0)], Some([105_000, 4_000]), ms(1_000));
        assert_eq!(tally.report(is_near, ms(1_000)).other, [0, 0]);
        look(&mut tally, &[socket(7, far, 200_000, 0)], Some([305_000, 8_000]), ms(2_000));
        assert_eq!(tally.report(is_near, ms(2_000)).other, [90_000, 0]);
    }

    #[test]
    fn many_peers_are_added_up_and_silent_ones_forgotten() {
        let mut tally = Tally::new();
        look(&mut tally, &[], None, ms(0));
        let all: Vec<OwnedCounter> = (0..100_u8)
            .map(|n| {
                socket(u64::from(n) + 100, if n % 2 == 0 { [10, 0, 0, n] } else { [9, 9, 9, n] }, 1_000, 0)
            })
            .collect();
        look(&mut tally, &all, None, ms(1_000));
        let report = tally.report(is_near, ms(1_000));
        assert!(report.peers.len() <= MOST_PEERS + 2, "{}", report.peers.len());
        let sum: u64 = report.peers.iter().map(|of| of.sent.bytes_per_second).sum();
        assert_eq!(sum, 100_000, "nothing is lost");
        let rest = report.peers.iter().filter(|of| of.peer.is_none()).map(|of| of.is_near);
        assert_eq!(rest.collect::<std::collections::BTreeSet<_>>(), [false, true].into());
        (0..100).for_each(|tick| look(&mut tally, &[], None, ms(1_100 + tick)));
        tally.report(is_near, ms(2_000));
        assert!(tally.report(is_near, ms(2_100)).peers.is_empty());
        let bytes = |report: &TrafficReport| serde_json::to_vec(report).unwrap().len();
        let none = TrafficReport { milliseconds: 500, ..TrafficReport::default() };
        assert!(bytes(&none) < 60, "a machine without traffic of others reports {} bytes", bytes(&none));
        let each = (bytes(&report) - bytes(&none)) / report.peers.len();
        assert!(each < 130, "{each} bytes for a peer");
    }

    #[test]
    fn a_machine_counts_its_own_sockets() {
        let counting = Counting::start(&TrafficOptions { period: Some(LEAST_PERIOD), ..Default::default() });
        let report = (0..1_000).find_map(|_| {
            std::thread::sleep(ms(10));
            counting.report()
        });
        let report = report.expect("something is counted, or the reason is told");
        assert!(report.problem.is_none() || report.peers.is_empty(), "{report:?}");
        let none = Counting::start(&TrafficOptions { period: None, ..Default::default() });
        assert_eq!(none.report(), None);
    }
}
