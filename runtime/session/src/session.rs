//! One session: the paths between two processes, and the lanes that use them.
use crate::Options;
use crate::clock::now;
use crate::detector::{Detector, Hellos, LONGEST};
use crate::dialling::{self, Candidate};
use crate::header::{Asks, Preamble};
use crate::hello::{HELLO, HELLO_IN_A_PACKET, Hello};
use crate::lane::{Lane, Traffic};
use crate::place::{Place, Route, routes};
use crate::policy::{self, Policy, Seen};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidemill_link::transport::{Health, Line, PathFigures, Stream, tcp_stream};

/// Time that one try to connect takes at most.
pub(crate) const TRY: Duration = Duration::from_secs(1);
/// Pause between two tries to connect the hellos of a path.
const AGAIN: Duration = Duration::from_millis(100);
/// Paths of one session, at most.
const PATHS: usize = 16;

/// A connection that carries the hellos of a path.
struct Greets {
    stream: Box<dyn Stream>,
    begun: Duration,
    come: Vec<u8>,
    /// Hellos sent; the newest that came, when it left there and when it came; the newest of this side that arrived there.
    number: u64,
    heard: u64,
    their_time: u64,
    heard_at: Duration,
    arrived: u64,
    next_at: Duration,
    /// The least interval that the other side wants, and that this side said that it wants.
    their_wanted: Duration,
    said: Duration,
    interval: Duration,
}

/// One path of a session.
pub(crate) struct Path {
    begun: Duration,
    pub(crate) route: Route,
    pub(crate) detector: Detector,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) is_drained: bool,
    /// The other side drains it.
    is_drained_there: bool,
    addresses: Vec<SocketAddr>,
    greets: Option<Greets>,
    /// A connection for hellos that is being made, and since when.
    connecting: Option<(Arc<OwnedFd>, Duration)>,
    next_try: Duration,
    round_trip: Option<Duration>,
    hello_bytes: u64,
    /// Its last connection for hellos ended without one: the next connection shows nothing, its first hello does.
    is_hollow: bool,
    /// Lanes that left it for another path.
    pub(crate) moves: u64,
}

impl Path {
    fn new(route: Route, hellos: Hellos) -> Self {
        Self {
            begun: now(),
            route,
            detector: Detector::new(hellos),
            traffic: Arc::default(),
            is_drained: false,
            is_drained_there: false,
            addresses: Vec::new(),
            greets: None,
            connecting: None,
            next_try: Duration::ZERO,
            round_trip: None,
            hello_bytes: 0,
            is_hollow: false,
            moves: 0,
        }
    }

    /// Whether a lane may leave a path that may work for this one, which is better.
    pub(crate) fn is_worth_a_move(&self, from: &Self, now: Duration) -> bool {
        // Each path has a moment to show that it works.
        let is_known = from.detector.health() != Health::Unknown || now > from.begun + TRY;
        is_known && self.detector.is_steady(now)
    }

    fn seen(&self, now: Duration) -> Seen {
        Seen {
            health: self.detector.health(),
            is_steady: self.detector.is_steady(now),
            is_drained: self.is_drained || self.is_drained_there,
            price: self.route.price(),
        }
    }

    fn begin_greeting(&mut self, stream: Box<dyn Stream>, now: Duration, hellos: Hellos) {
        self.connecting = None;
        self.greets = Some(Greets {
            stream,
            begun: now,
            come: Vec::new(),
            number: 0,
            heard: 0,
            their_time: 0,
            heard_at: now,
            arrived: 0,
            next_at: now,
            their_wanted: hellos.every,
            said: hellos.every,
            interval: hellos.every,
        });
    }

    fn stop_greeting(&mut self, now: Duration) {
        if let Some(greets) = &self.greets {
            self.is_hollow = greets.heard == 0;
        }
        // The first try follows at once.
        let pause = if self.greets.is_some() { Duration::ZERO } else { AGAIN };
        (self.greets, self.connecting) = (None, None);
        self.next_try = now + pause;
    }

    /// Reads the hellos that have come.
    fn hear(&mut self, now: Duration) {
        let Some(greets) = &mut self.greets else { return };
        let mut room = [0; 4 * HELLO];
        for _ in 0..16 {
            let is_broken = match greets.stream.read(&mut room) {
                Ok(0) => true,
                Ok(count) => {
                    greets.come.extend_from_slice(&room[..count]);
                    false
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => true,
            };
            let mut is_hello = true;
            while let Some(bytes) = greets.come.first_chunk::<HELLO>().filter(|_| is_hello) {
                let Some(hello) = Hello::from_bytes(bytes) else {
                    is_hello = false;
                    continue;
                };
                greets.come.drain(..HELLO);
                self.hello_bytes += HELLO_IN_A_PACKET;
                let arrives = hello.heard > greets.arrived && hello.heard <= greets.number;
                if arrives {
                    greets.arrived = hello.heard;
                    let sent = Duration::from_nanos(hello.echo);
                    let round = now.saturating_sub(sent).saturating_sub(Duration::from_nanos(hello.held));
                    if hello.echo > 0 {
                        let smooth = self.round_trip.map_or(round, |before| (before * 7 + round) / 8);
                        self.round_trip = Some(smooth);
                        self.detector.round_trip = smooth;
                    }
                }
                (greets.heard, greets.their_time, greets.heard_at) = (hello.number, hello.sent, now);
                greets.their_wanted = hello.wanted.min(LONGEST);
                self.is_drained_there = hello.drains;
                self.detector.heard(now, hello.interval, arrives);
                if hello.number <= 2 {
                    // The other side waits to know that it is heard.
                    greets.next_at = now;
                }
                if hello.heard < greets.number {
                    self.detector.sends(now);
                }
            }
            if is_broken || !is_hello {
                self.detector.broke(now);
                self.stop_greeting(now);
                return;
            }
        }
    }

    /// Sends a hello if one is due. `wanted`: the interval that this side wants.
    fn greet(&mut self, now: Duration, wanted: Duration, route: u16) {
        let Some(greets) = &mut self.greets else { return };
        let interval = wanted.max(greets.their_wanted);
        if interval < greets.interval || wanted < greets.said {
            greets.next_at = now;
        }
        (greets.interval, greets.said) = (interval, wanted);
        if now < greets.next_at {
            return;
        }
        greets.number += 1;
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let hello = Hello {
            number: greets.number,
            heard: greets.heard,
            sent: nanoseconds(now),
            echo: greets.their_time,
            held: nanoseconds(now.saturating_sub(greets.heard_at)),
            interval,
            wanted,
            drains: self.is_drained,
        };
        greets.next_at = now + interval;
        self.detector.sends(now);
        match greets.stream.write(&[IoSlice::new(&hello.to_bytes(route))]) {
            Ok(HELLO) => self.hello_bytes += HELLO_IN_A_PACKET,
            // The buffer of the system is full of hellos: nothing has left for long.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => {
                self.detector.broke(now);
                self.stop_greeting(now);
            }
        }
    }

    /// Connects for hellos, at the side that dials.
    fn connect(&mut self, session: u128, now: Duration, hellos: Hellos) {
        if let Some((socket, since)) = &self.connecting {
            match dialling::is_connected(socket) {
                Ok(false) if now < *since + TRY => return,
                Ok(true) => {
                    let socket = Arc::clone(socket);
                    self.connecting = None;
                    let Some(Ok(mut stream)) = Arc::into_inner(socket).map(tcp_stream) else { return };
                    let path = self.route.id.clone();
                    let preamble =
                        Preamble { asks: Asks::Hello, session, lane: 0, epoch: 0, sequence: 0, path };
                    if stream.write(&[IoSlice::new(&preamble.to_bytes())]).is_ok() {
                        self.begin_greeting(stream, now, hellos);
                    }
                    return;
                }
                Ok(false) | Err(_) => {
                    self.stop_greeting(now);
                    // A name may have several addresses.
                    if !self.addresses.is_empty() {
                        self.addresses.rotate_left(1);
                    }
                }
            }
        }
        if self.greets.is_none() && self.connecting.is_none() && now >= self.next_try {
            self.next_try = now + AGAIN;
            let Some(to) = self.addresses.first() else { return };
            match dialling::begin(self.route.own.as_ref(), to) {
                Ok(socket) => self.connecting = Some((Arc::new(socket), now)),
                Err(error) => tracing::debug!(path = self.route.id, "cannot dial a path: {error}"),
            }
        }
    }
}

/// Whether a path is drained. The side that dialled may have named it by both of its ends: `fibre>lte`.
fn is_drained(path: &str, drained: &[String]) -> bool {
    path.split('>').any(|end| drained.iter().any(|name| name == end))
}

/// A lane and the next time to dial for it.
pub(crate) struct LaneEntry {
    pub(crate) lane: Arc<Lane>,
    pub(crate) next_search: Duration,
}

/// The paths between two processes, and the lanes that use them.
pub(crate) struct Session {
    pub(crate) id: u128,
    /// Where it was dialled; none at the side that accepted.
    pub(crate) place: Option<String>,
    pub(crate) paths: Vec<Path>,
    pub(crate) lanes: BTreeMap<u32, LaneEntry>,
    pub(crate) next_lane: u32,
    /// Threads that are dialling a new lane.
    pub(crate) dialling: usize,
    pub(crate) empty_since: Duration,
    hellos: Hellos,
    policy: Policy,
    drained: Vec<String>,
}

impl Session {
    pub(crate) fn dialled(id: u128, text: &str, place: &Place, options: &Options, now: Duration) -> Self {
        let paths = routes(&options.paths, place);
        let paths = paths.into_iter().take(PATHS).map(|route| {
            let is_drained = is_drained(&route.id, &options.drained);
            Path { is_drained, ..Path::new(route, options.hellos) }
        });
        Self { paths: paths.collect(), ..Self::new(id, Some(text.to_owned()), options, now) }
    }

    pub(crate) fn accepted(id: u128, options: &Options, now: Duration) -> Self {
        Self::new(id, None, options, now)
    }

    fn new(id: u128, place: Option<String>, options: &Options, now: Duration) -> Self {
        Self {
            id,
            place,
            paths: Vec::new(),
            lanes: BTreeMap::new(),
            next_lane: 1,
            dialling: 0,
            empty_since: now,
            hellos: options.hellos,
            policy: options.policy,
            drained: options.drained.clone(),
        }
    }

    pub(crate) fn is_dialled(&self) -> bool {
        self.place.is_some()
    }

    /// Returns the paths for a lane, the best first, without addresses.
    pub(crate) fn order(&self, lane: u32, now: Duration) -> Vec<usize> {
        let seen: Vec<Seen> = self.paths.iter().map(|path| path.seen(now)).collect();
        policy::order(self.policy, &seen, lane)
    }

    /// Returns the paths that a lane should dial, the best first.
    pub(crate) fn candidates(&self, lane: u32, now: Duration) -> Vec<Candidate> {
        let candidate = |index: usize| {
            let path = &self.paths[index];
            Candidate { path: index, own: path.route.own.clone(), to: path.addresses.clone() }
        };
        self.order(lane, now).into_iter().map(candidate).collect()
    }

    /// Notes the addresses that the names of the place have now.
    pub(crate) fn resolved(&mut self, addresses: &BTreeMap<String, Vec<SocketAddr>>) {
        for path in &mut self.paths {
            if let Some(addresses) = addresses.get(&path.route.to) {
                path.addresses.clone_from(addresses);
            }
        }
    }

    /// Index of the path that the other side calls so; none: there are too many.
    pub(crate) fn path_named(&mut self, name: &str) -> Option<usize> {
        if let Some(index) = self.paths.iter().position(|path| path.route.id == name) {
            return Some(index);
        }
        if self.paths.len() >= PATHS {
            return None;
        }
        let route = Route { id: name.to_owned(), own: None, to: String::new() };
        let is_drained = is_drained(name, &self.drained);
        self.paths.push(Path { is_drained, ..Path::new(route, self.hellos) });
        Some(self.paths.len() - 1)
    }

    /// Takes a connection over which the other side will send hellos.
    pub(crate) fn greeted(&mut self, path: usize, stream: Box<dyn Stream>, now: Duration) {
        let hellos = self.hellos;
        self.paths[path].begin_greeting(stream, now, hellos);
    }

    /// What the paths have to do now.
    pub(crate) fn keep_paths(&mut self, now: Duration, late: Duration) {
        let lanes_of = self.lanes_by_path();
        let (id, hellos, is_dialled) = (self.id, self.hellos, self.is_dialled());
        let place = self.place.clone().unwrap_or_else(|| "a side that dialled".into());
        for (index, path) in self.paths.iter_mut().enumerate() {
            let before = path.detector.health();
            path.detector.excuse(late);
            path.hear(now);
            let wanted = if lanes_of[index] > 0 { hellos.every } else { hellos.idle };
            if is_dialled {
                path.connect(id, now, hellos);
            }
            path.greet(now, wanted, index as u16);
            let is_dead = path.detector.health() != Health::Up
                && path.greets.as_ref().is_some_and(|greets| now > greets.begun + TRY);
            if path.detector.look(now) || is_dead {
                path.stop_greeting(now);
            }
            let (name, now) = (&path.route.id, path.detector.health());
            match (before, now) {
                (Health::Up, Health::Silent) => tracing::info!("path '{name}' to {place} is silent"),
                (Health::Silent, Health::Up) => tracing::info!("path '{name}' to {place} is back"),
                _ => {}
            }
        }
    }

    fn lanes_by_path(&self) -> Vec<usize> {
        let mut lanes = vec![0; self.paths.len()];
        for entry in self.lanes.values() {
            if let Some(path) = entry.lane.look().path {
                lanes[path] += 1;
            }
        }
        lanes
    }

    /// Returns since when no path works; none: one does, or none has ever.
    pub(crate) fn cut_since(&self) -> Option<Duration> {
        let mut since = None;
        for path in &self.paths {
            match path.detector.health() {
                Health::Up => return None,
                // A connection was made after the silence: its hellos follow. Something on the path may accept connections and
                // pass nothing on, so this is believed once.
                _ if path.greets.is_some() && !path.is_hollow => return None,
                Health::Unknown => {}
                Health::Silent => since = since.max(Some(path.detector.silent_since())),
            }
        }
        // A fresh connection may still answer, on a long way after a while.
        let longest = self.paths.iter().filter_map(|path| path.round_trip).max().unwrap_or_default();
        since.map(|since| since + (self.hellos.every * self.hellos.misses).max(longest * 2))
    }

    /// Whether the other side ended all connections at once: its process is gone, rather than the paths to it.
    pub(crate) fn is_gone(&self) -> bool {
        let silent = || self.paths.iter().filter(|path| path.detector.health() == Health::Silent);
        silent().count() > 0 && silent().all(|path| path.detector.is_broken()) && !self.has_greetings()
    }

    /// The next time at which something is due.
    pub(crate) fn next_look(&self, now: Duration) -> Duration {
        let mut next = now + Duration::from_secs(1);
        for path in &self.paths {
            if let Some(greets) = &path.greets {
                next = next.min(greets.next_at).min((greets.begun + TRY).max(now + AGAIN));
            } else if self.is_dialled() {
                next = next.min(path.next_try.max(now + Duration::from_millis(5)));
            }
            if let Some((_, since)) = &path.connecting {
                next = next.min(*since + TRY);
            }
            next = next.min(path.detector.next_look().unwrap_or(next) + Duration::from_millis(1));
        }
        match self.cut_since() {
            Some(since) if since > now => next.min(since + Duration::from_millis(1)),
            _ => next,
        }
    }

    /// What its paths wait for.
    pub(crate) fn lines(&self) -> (Vec<Arc<dyn Line>>, Vec<Arc<OwnedFd>>) {
        let greets = self.paths.iter().filter_map(|path| path.greets.as_ref());
        let connecting = self.paths.iter().filter_map(|path| path.connecting.as_ref());
        (
            greets.map(|greets| greets.stream.line()).collect(),
            connecting.map(|(socket, _)| Arc::clone(socket)).collect(),
        )
    }

    /// Whether the hellos of a path are connected.
    pub(crate) fn has_greetings(&self) -> bool {
        self.paths.iter().any(|path| path.greets.is_some())
    }

    pub(crate) fn drain(&mut self, drained: &[String]) {
        self.drained = drained.to_vec();
        for path in &mut self.paths {
            let is_drained = is_drained(&path.route.id, drained);
            if std::mem::replace(&mut path.is_drained, is_drained) != is_drained
                && let Some(greets) = &mut path.greets
            {
                // The other side learns it at once.
                greets.next_at = Duration::ZERO;
            }
        }
    }

    /// Figures of its paths.
    pub(crate) fn figures(&self) -> Vec<PathFigures> {
        let lanes_of = self.lanes_by_path();
        let loaded = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let figures = self.paths.iter().zip(lanes_of).map(|(path, lanes)| PathFigures {
            peer: self.place.clone(),
            path: path.route.id.clone(),
            from: path.route.own.as_ref().and_then(|own| {
                own.interface.clone().or_else(|| own.address.map(|address| address.to_string()))
            }),
            to: path.route.to.clone(),
            health: path.detector.health(),
            is_drained: path.is_drained || path.is_drained_there,
            price: path.route.price(),
            round_trip_us: path.round_trip.map(|time| time.as_micros() as u64),
            lanes,
            sent_bytes: loaded(&path.traffic.sent),
            received_bytes: loaded(&path.traffic.received),
            hello_bytes: path.hello_bytes,
            silences: path.detector.silences,
            moves: path.moves,
        });
        figures.collect()
    }
}

/// Sends the first bytes of a carrier that was just connected.
pub(crate) fn introduce(socket: OwnedFd, preamble: &Preamble) -> io::Result<Box<dyn Stream>> {
    let mut stream = tcp_stream(socket)?;
    let bytes = preamble.to_bytes();
    // A new socket has room for these.
    match stream.write(&[IoSlice::new(&bytes)])? {
        count if count == bytes.len() => Ok(stream),
        _ => Err(ErrorKind::ConnectionAborted.into()),
    }
}
