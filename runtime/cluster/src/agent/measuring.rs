//! Measures links to other workers: the shortest round trip of a few bytes, and the rate of a longer transfer. Agents probe each other with
//! their own certificates.
//!
//! After a long probe follows a pause of at least [`PAUSES`] times its duration, so probes take at most one hundredth of the time of a
//! link. Where traffic of runs shows the rate, the controller says so, and only round trips are measured.
use crate::api::{WayFigure, WayTarget};
use crate::clock::instant;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidemill_link::remote::{ClientCertificates, Credentials};

/// Length of the pause after a probe, in durations of the probe.
const PAUSES: u32 = 100;
/// Shortest pause after a probe.
const SHORTEST_PAUSE: Duration = Duration::from_secs(20);
/// Interval of checks whether a probe is due.
const LOOK: Duration = Duration::from_millis(200);
/// Time limit for a silent peer.
const SILENCE: Duration = Duration::from_secs(3);
/// Round trips of a probe.
const ROUND_TRIPS: usize = 4;
/// Bytes that are sent first, and most.
const BYTES: (u32, u32) = (32 << 10, 4 << 20);
/// Least excess of a transfer over a round trip from which a rate follows.
const TELLING: Duration = Duration::from_millis(30);
/// Probes that are answered at once.
const MOST_PEERS: usize = 4;
/// Asks for nothing but an answer.
const PING: u8 = b'p';
/// Precedes the number of bytes that follow: four bytes, least significant first.
const BYTES_FOLLOW: u8 = b'b';

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Shared {
    targets: Mutex<Vec<WayTarget>>,
    /// Measurements that are not reported yet, by worker.
    measured: Mutex<BTreeMap<String, WayFigure>>,
    peers: AtomicUsize,
    is_over: AtomicBool,
}

/// Probes other workers, and answers theirs, until it is dropped.
pub(super) struct Meter {
    shared: Arc<Shared>,
    address: Option<SocketAddr>,
}

impl Meter {
    /// Starts measuring. A failure is logged and only means that there are no figures.
    pub(super) fn start(address: IpAddr, only_dials: bool, credentials: &Credentials) -> Self {
        let shared = Arc::new(Shared::default());
        let mut meter = Self { shared: Arc::clone(&shared), address: None };
        if !only_dials {
            match answer_at(address, &shared, credentials) {
                Ok(address) => meter.address = Some(address),
                Err(error) => tracing::warn!("probes of other workers are not answered: {error}"),
            }
        }
        let started = credentials.client_config().map_err(io::Error::other).and_then(|config| {
            let config = Arc::new(config);
            let probe = move || probe_all(&shared, &config);
            std::thread::Builder::new().name("tm-measures".into()).spawn(probe)
        });
        if let Err(error) = started {
            tracing::warn!("ways to other workers are not measured: {error}");
        }
        meter
    }

    /// Returns the address that answers probes of others.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Sets the workers whose links are measured.
    pub(super) fn follow(&self, targets: Vec<WayTarget>) {
        *locked(&self.shared.targets) = targets;
    }

    /// Takes the measurements since the last call.
    pub(super) fn take(&self) -> Vec<WayFigure> {
        std::mem::take(&mut *locked(&self.shared.measured)).into_values().collect()
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        if let Some(address) = self.address {
            let _ = TcpStream::connect_timeout(&address, SILENCE); // wakes who accepts
        }
    }
}

/// Answers probes on a thread of its own; where.
fn answer_at(address: IpAddr, shared: &Arc<Shared>, credentials: &Credentials) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((address, 0))?;
    let own = listener.local_addr()?;
    let config = credentials.server_config(ClientCertificates::Required).map_err(io::Error::other)?;
    let (config, shared) = (Arc::new(config), Arc::clone(shared));
    let accept = move || {
        for stream in listener.incoming() {
            if shared.is_over.load(Ordering::Acquire) {
                return;
            }
            let Ok(stream) = stream else { continue };
            if shared.peers.fetch_add(1, Ordering::AcqRel) >= MOST_PEERS {
                shared.peers.fetch_sub(1, Ordering::AcqRel);
                continue; // it tries again
            }
            let (config, of_peer) = (Arc::clone(&config), Arc::clone(&shared));
            let answer = move || {
                if let Err(error) = answer(stream, &config) {
                    tracing::debug!("a probe ends: {error}");
                }
                of_peer.peers.fetch_sub(1, Ordering::AcqRel);
            };
            if std::thread::Builder::new().name("tm-measured".into()).spawn(answer).is_err() {
                shared.peers.fetch_sub(1, Ordering::AcqRel);
            }
        }
    };
    std::thread::Builder::new().name("tm-measured".into()).spawn(accept)?;
    Ok(own)
}

fn answer(stream: TcpStream, config: &Arc<ServerConfig>) -> io::Result<()> {
    prepare(&stream)?;
    let tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(tls, stream);
    let mut buffer = vec![0; 16 << 10];
    loop {
        let mut word = [0];
        if stream.read(&mut word)? == 0 {
            return Ok(());
        }
        if word == [BYTES_FOLLOW] {
            let mut count = [0; 4];
            stream.read_exact(&mut count)?;
            let mut left = u32::from_le_bytes(count).min(BYTES.1) as usize;
            while left > 0 {
                let most = left.min(buffer.len());
                match stream.read(&mut buffer[..most])? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    read => left -= read,
                }
            }
        }
        stream.write_all(&word)?;
        stream.flush()?;
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))
}

fn probe_all(shared: &Shared, config: &Arc<ClientConfig>) {
    let mut due: BTreeMap<String, Instant> = BTreeMap::new();
    while !shared.is_over.load(Ordering::Acquire) {
        let targets = locked(&shared.targets).clone();
        due.retain(|worker, _| targets.iter().any(|target| target.worker == *worker));
        let now = instant();
        let next = targets.into_iter().find(|target| due.get(&target.worker).is_none_or(|due| *due <= now));
        let Some(target) = next else {
            std::thread::sleep(LOOK);
            continue;
        };
        let found = probe(&target, config);
        let took = now.elapsed();
        let pause = (took * PAUSES).max(SHORTEST_PAUSE);
        match found {
            Ok(figure) => {
                let probing = took.as_secs_f64() / (took + pause).as_secs_f64();
                locked(&shared.measured).insert(target.worker.clone(), WayFigure { probing, ..figure });
            }
            Err(error) => tracing::debug!(worker = target.worker, "the way is not measured: {error}"),
        }
        due.insert(target.worker, instant() + pause);
    }
}

/// Measures the link to one worker.
fn probe(target: &WayTarget, config: &Arc<ClientConfig>) -> io::Result<WayFigure> {
    let address: SocketAddr =
        target.address.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let stream = TcpStream::connect_timeout(&address, SILENCE)?;
    prepare(&stream)?;
    let name = ServerName::try_from("tidemill").map_err(io::Error::other)?;
    let tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(tls, stream);
    let mut shortest = Duration::MAX;
    for _ in 0..=ROUND_TRIPS {
        // The first one has the handshake in it, and is longer.
        shortest = shortest.min(exchange(&mut stream, &[PING])?);
    }
    let (mut bytes, mut rate) = (BYTES.0, None);
    while bytes <= BYTES.1 && !target.only_delay {
        let mut message = vec![0; 5 + bytes as usize];
        message[0] = BYTES_FOLLOW;
        message[1..5].copy_from_slice(&bytes.to_le_bytes());
        let took = exchange(&mut stream, &message)?;
        let longer = took.saturating_sub(shortest);
        if longer > Duration::ZERO {
            rate = Some(f64::from(bytes) * 8.0 / longer.as_secs_f64());
        }
        if longer >= TELLING {
            break;
        }
        bytes *= 4;
    }
    // A transfer hardly longer than a round trip only gives a lower bound of the rate.
    Ok(WayFigure {
        to: target.worker.clone(),
        round_trip_seconds: shortest.as_secs_f64(),
        bits_per_second: rate,
        only_delay: target.only_delay,
        probing: 0.0,
    })
}

/// Sends, and waits for the answer, which repeats the first byte.
fn exchange(stream: &mut (impl Read + Write), message: &[u8]) -> io::Result<Duration> {
    let begun = instant();
    stream.write_all(message)?;
    stream.flush()?;
    let mut word = [0];
    stream.read_exact(&mut word)?;
    match message.first() == Some(&word[0]) {
        true => Ok(begun.elapsed()),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_identity::{Authority, Lifetimes, Timestamp};

    fn authority(folder: &std::path::Path) -> Credentials {
        let now = Timestamp::now();
        let authority = Authority::open_or_create(folder, Lifetimes::default(), now).unwrap();
        Credentials::new(&authority.issue_controller(&["localhost"], now).unwrap()).unwrap()
    }

    fn until<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
        (0..200).find_map(|_| {
            std::thread::sleep(Duration::from_millis(50));
            look()
        })
    }

    #[test]
    fn the_way_to_another_worker_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = authority(folder.path());
        let here = IpAddr::from([127, 0, 0, 1]);
        let (one, other) = (Meter::start(here, false, &credentials), Meter::start(here, true, &credentials));
        assert_eq!(other.address(), None, "it only dials");
        let address = one.address().unwrap().to_string();
        other.follow(vec![WayTarget { worker: "one".into(), address, only_delay: false }]);
        let found = until(|| other.take().pop()).expect("it is measured");
        assert!(!found.only_delay);
        assert_eq!(found.to, "one");
        assert!(found.round_trip_seconds > 0.0 && found.round_trip_seconds < 1.0, "{found:?}");
        assert!(found.bits_per_second.is_some_and(|rate| rate > 1e6), "{found:?}");
        assert!(found.probing > 0.0 && found.probing < 0.0101, "{found:?}");
        assert!(other.take().is_empty(), "told once");
    }

    #[test]
    fn strangers_are_not_answered() {
        let (folder, another) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let here = IpAddr::from([127, 0, 0, 1]);
        let one = Meter::start(here, false, &authority(folder.path()));
        let config = Arc::new(authority(another.path()).client_config().unwrap());
        let address = one.address().unwrap().to_string();
        let target = WayTarget { worker: "one".into(), address, only_delay: false };
        assert!(probe(&target, &config).is_err());
    }

    #[test]
    fn no_bytes_are_sent_where_traffic_shows_the_rate() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = authority(folder.path());
        let one = Meter::start(IpAddr::from([127, 0, 0, 1]), false, &credentials);
        let config = Arc::new(credentials.client_config().unwrap());
        let address = one.address().unwrap().to_string();
        let target = WayTarget { worker: "one".into(), address, only_delay: true };
        let found = probe(&target, &config).unwrap();
        assert!(found.only_delay && found.bits_per_second.is_none(), "{found:?}");
        assert!(found.round_trip_seconds > 0.0);
    }
}
