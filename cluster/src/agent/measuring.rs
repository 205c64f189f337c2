//! Measures links to other workers: the shortest round trip of a few bytes, and the rate of a longer transfer. Agents probe each other with
//! their own certificates.
//!
//! After a long probe follows a pause of at least [`PAUSES`] times its duration, so probes take at most one hundredth of the time of a
//! link. Where traffic of runs shows the rate, the controller says so, and only round trips are measured.
use crate::api::{LinkMeasurement, LinkTarget};
use crate::clock::instant;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidemill_link::remote::{ClientCertificates, Credentials};
use tidemill_service::{Host, HostService};

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
    targets: Mutex<Vec<LinkTarget>>,
    /// Measurements that are not reported yet, by worker.
    measured: Mutex<BTreeMap<String, LinkMeasurement>>,
    /// Where probes of others are answered.
    address: Mutex<Option<SocketAddr>>,
    peers: AtomicUsize,
}

/// Part of the heartbeats from the service that probes other workers.
#[derive(Clone, Default)]
pub(super) struct Meter(Arc<Shared>);

impl Meter {
    /// The service, which is not started yet.
    pub(super) fn service(&self) -> Box<dyn HostService> {
        Box::new(Measuring { shared: Arc::clone(&self.0), running: None })
    }

    /// Returns the address that answers probes of others.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        *locked(&self.0.address)
    }

    /// Sets the workers whose links are measured.
    pub(super) fn follow(&self, targets: Vec<LinkTarget>) {
        *locked(&self.0.targets) = targets;
    }

    /// Takes the measurements since the last call.
    pub(super) fn take(&self) -> Vec<LinkMeasurement> {
        std::mem::take(&mut *locked(&self.0.measured)).into_values().collect()
    }
}

/// Probes other workers, and answers theirs.
struct Measuring {
    shared: Arc<Shared>,
    running: Option<Running>,
}

#[derive(Default)]
struct Running {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl HostService for Measuring {
    fn start(&mut self, host: &Host) -> Result<(), String> {
        let running = self.running.insert(Running::default());
        let started = (|| -> io::Result<()> {
            if !host.only_dials {
                match answer_at(host.address, &self.shared, &running.is_over, &host.credentials) {
                    Ok((address, thread)) => {
                        *locked(&self.shared.address) = Some(address);
                        running.threads.push(thread);
                    }
                    // The address may be that of a router in front of this machine. Links to others can be measured all the same.
                    Err(error) => {
                        tracing::warn!("cannot answer probes of other workers at {}: {error}", host.address);
                    }
                }
            }
            let config = Arc::new(host.credentials.client_config().map_err(io::Error::other)?);
            let (shared, is_over) = (Arc::clone(&self.shared), Arc::clone(&running.is_over));
            let probe = move || probe_all(&shared, &is_over, &config);
            running.threads.push(thread("tm-measures", probe)?);
            Ok(())
        })();
        started.map_err(|error| {
            self.stop();
            format!("cannot measure links to other workers: {error}")
        })
    }

    fn stop(&mut self) {
        let Some(running) = self.running.take() else { return };
        running.is_over.store(true, Ordering::Release);
        if let Some(address) = locked(&self.shared.address).take() {
            let _ = TcpStream::connect_timeout(&address, SILENCE); // wakes who accepts
        }
    }

    fn health(&mut self) -> Result<(), String> {
        let threads = self.running.iter().flat_map(|running| &running.threads);
        match threads.into_iter().any(JoinHandle::is_finished) {
            true => Err("a thread that measures has ended".to_owned()),
            false => Ok(()),
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(work)
}

/// Answers probes on a thread of its own; where.
fn answer_at(
    address: IpAddr,
    shared: &Arc<Shared>,
    is_over: &Arc<AtomicBool>,
    credentials: &Credentials,
) -> io::Result<(SocketAddr, JoinHandle<()>)> {
    let listener = TcpListener::bind((address, 0))?;
    let own = listener.local_addr()?;
    let config = credentials.server_config(ClientCertificates::Required).map_err(io::Error::other)?;
    let (config, shared, is_over) = (Arc::new(config), Arc::clone(shared), Arc::clone(is_over));
    let accept = move || {
        for stream in listener.incoming() {
            if is_over.load(Ordering::Acquire) {
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
            if thread("tm-measured", answer).is_err() {
                shared.peers.fetch_sub(1, Ordering::AcqRel);
            }
        }
    };
    Ok((own, thread("tm-measured", accept)?))
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

fn probe_all(shared: &Shared, is_over: &AtomicBool, config: &Arc<ClientConfig>) {
    let mut due: BTreeMap<String, Instant> = BTreeMap::new();
    while !is_over.load(Ordering::Acquire) {
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
                locked(&shared.measured).insert(target.worker.clone(), LinkMeasurement { probing, ..figure });
            }
            Err(error) => tracing::debug!(worker = target.worker, "cannot measure the link: {error}"),
        }
        due.insert(target.worker, instant() + pause);
    }
}

/// Measures the link to one worker.
fn probe(target: &LinkTarget, config: &Arc<ClientConfig>) -> io::Result<LinkMeasurement> {
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
    Ok(LinkMeasurement {
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

    /// A meter whose service runs until it is dropped.
    struct Metered(Meter, Box<dyn HostService>);

    impl Metered {
        fn start(only_dials: bool, credentials: &Credentials) -> Self {
            Self::at([127, 0, 0, 1].into(), only_dials, credentials)
        }

        fn at(address: IpAddr, only_dials: bool, credentials: &Credentials) -> Self {
            let meter = Meter::default();
            let (folder, worker, credentials) = (Default::default(), "one".to_owned(), credentials.clone());
            let mut service = meter.service();
            service.start(&Host { folder, worker, address, only_dials, credentials }).unwrap();
            Self(meter, service)
        }
    }

    impl Drop for Metered {
        fn drop(&mut self) {
            self.1.stop();
        }
    }

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
        let (one, mut other) = (Metered::start(false, &credentials), Metered::start(true, &credentials));
        assert_eq!(other.1.health(), Ok(()));
        assert_eq!(other.0.address(), None, "it only dials");
        let address = one.0.address().unwrap().to_string();
        other.0.follow(vec![LinkTarget { worker: "one".into(), address, only_delay: false }]);
        let found = until(|| other.0.take().pop()).expect("it is measured");
        assert!(!found.only_delay);
        assert_eq!(found.to, "one");
        assert!(found.round_trip_seconds > 0.0 && found.round_trip_seconds < 1.0, "{found:?}");
        assert!(found.bits_per_second.is_some_and(|rate| rate > 1e6), "{found:?}");
        assert!(found.probing > 0.0 && found.probing < 0.0101, "{found:?}");
        assert!(other.0.take().is_empty(), "told once");
    }

    /// The address may be that of a router in front of the machine.
    #[test]
    fn a_worker_that_cannot_answer_measures_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = authority(folder.path());
        let one = Metered::start(false, &credentials);
        let address = IpAddr::from([192, 0, 2, 1]); // for documentation: no machine has it
        let mut behind = Metered::at(address, false, &credentials);
        assert_eq!((behind.1.health(), behind.0.address()), (Ok(()), None));
        let address = one.0.address().unwrap().to_string();
        behind.0.follow(vec![LinkTarget { worker: "one".into(), address, only_delay: true }]);
        assert_eq!(until(|| behind.0.take().pop()).expect("it is measured").to, "one");
    }

    #[test]
    fn strangers_are_not_answered() {
        let (folder, another) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let one = Metered::start(false, &authority(folder.path()));
        let config = Arc::new(authority(another.path()).client_config().unwrap());
        let address = one.0.address().unwrap().to_string();
        let target = LinkTarget { worker: "one".into(), address, only_delay: false };
        assert!(probe(&target, &config).is_err());
    }

    #[test]
    fn no_bytes_are_sent_where_traffic_shows_the_rate() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = authority(folder.path());
        let one = Metered::start(false, &credentials);
        let config = Arc::new(credentials.client_config().unwrap());
        let address = one.0.address().unwrap().to_string();
        let target = LinkTarget { worker: "one".into(), address, only_delay: true };
        let found = probe(&target, &config).unwrap();
        assert!(found.only_delay && found.bits_per_second.is_none(), "{found:?}");
        assert!(found.round_trip_seconds > 0.0);
    }
}
