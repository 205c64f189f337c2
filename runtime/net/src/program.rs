//! The side of a process whose channels a service serves: it registers them, and follows which go through the service.
use crate::client::{Client, ClientError};
use crate::edge_name::EdgeName;
use crate::protocol::{Answer, EdgeCounts, Peer, Program, Request, Routes};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;
use tidemill_link::remote::{Address, MessageReader, MessageWriter, Role};
use tidemill_link::wake::Waker;

/// Interval of the figures of edges.
const COUNTS: Duration = Duration::from_secs(1);
/// Time for the last figures.
const EXCHANGING: Duration = Duration::from_secs(1);
/// Pauses between tries to reach the service again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Time for which a program waits for a service that its policies need.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes the routes of a program's channels, on any thread.
pub type OnRoutes = Box<dyn Fn(Routes) + Send>;
/// Returns the figures of a program's edges.
pub type Counts = Box<dyn Fn() -> Vec<EdgeCounts> + Send + Sync>;
/// Takes the rows that policies took out of edges since it was called last, on any thread.
pub type OnRejected = Box<dyn Fn(&EdgeName, u64) + Send + Sync>;

/// Facts that a program gives to its registration.
pub struct Callbacks {
    /// Takes the routes of its channels.
    pub routes: OnRoutes,
    /// Returns the figures of its edges.
    pub counts: Counts,
    /// Takes the rows that policies took out.
    pub rejected: OnRejected,
}

/// A program that is registered, as long as this lives.
pub struct Registration {
    shared: Arc<Shared>,
    address: Address,
}

struct Shared {
    socket: PathBuf,
    run: u128,
    program: Program,
    /// Other ends, which a service that was started again has to know.
    peers: Mutex<BTreeMap<(u64, Role), Peer>>,
    writer: Mutex<Option<MessageWriter>>,
    counts: Counts,
    rejected: OnRejected,
    /// Rows that the present service has taken out, and how often it has said so.
    heard: Mutex<(BTreeMap<EdgeName, u64>, u64)>,
    has_heard: Condvar,
    ended: AtomicBool,
    /// Ends pauses.
    waker: Waker,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a program at the service of this host. Returns its first routes; later ones go to `on_routes`. A program whose plan
/// has policies waits for a service that does not answer yet; any other continues without one, and looks for it.
///
/// # Errors
/// The service refuses the program, for example because of a policy of its plan; or there is none, and its plan has policies.
pub fn register(
    socket: &Path,
    run: u128,
    program: Program,
    callbacks: Callbacks,
) -> Result<(Registration, Routes), ClientError> {
    let Callbacks { routes: on_routes, counts, rejected } = callbacks;
    let shared = Arc::new(Shared {
        socket: socket.into(),
        run,
        program,
        peers: Mutex::default(),
        writer: Mutex::default(),
        counts,
        rejected,
        heard: Mutex::default(),
        has_heard: Condvar::new(),
        ended: AtomicBool::new(false),
        waker: Waker::new().map_err(|error| ClientError::Broken(error.to_string()))?,
    });
    let mut first = shared.connect();
    if !shared.program.policies.is_empty() {
        let tries = PATIENCE.as_millis() / PAUSES.1.as_millis();
        for _ in 0..tries {
            if !matches!(first, Err(ClientError::Unreachable { .. } | ClientError::Broken(_))) {
                break;
            }
            shared.waker.wait(Some(PAUSES.1));
            first = shared.connect();
        }
    }
    let (reader, routes) = match first {
        Ok((reader, routes)) => (Some(reader), routes),
        Err(ClientError::Unreachable { .. } | ClientError::Broken(_))
            if shared.program.policies.is_empty() =>
        {
            (None, Routes::default())
        }
        Err(error) => return Err(error),
    };
    let system = |error: std::io::Error| ClientError::Broken(format!("gets no thread: {error}"));
    let following = Arc::clone(&shared);
    let follow = move || following.follow(reader, &on_routes);
    Builder::new().name("tm-routes".into()).spawn(follow).map_err(system)?;
    let counting = Arc::clone(&shared);
    let count = move || {
        while !counting.ended.load(Ordering::Acquire) {
            counting.count();
            std::thread::park_timeout(COUNTS);
        }
    };
    Builder::new().name("tm-counts".into()).spawn(count).map_err(system)?;
    let address = Address::new("unix", socket.display().to_string());
    Ok((Registration { shared, address }, routes))
}

impl Shared {
    /// Connects and registers. Returns the first routes.
    fn connect(&self) -> Result<(MessageReader, Routes), ClientError> {
        let mut client = Client::connect(&self.socket, self.run)?;
        let answer = client.ask(&Request::Register(Box::new(self.program.clone())))?;
        let Answer::Routes(routes) = answer else {
            return Err(ClientError::Broken("answers something else".into()));
        };
        let peers: Vec<Peer> = locked(&self.peers).values().cloned().collect();
        client.send(&Request::Peers(peers))?;
        let (writer, reader) = client.split();
        // It counts from its own beginning.
        locked(&self.heard).0.clear();
        *locked(&self.writer) = Some(writer);
        Ok((reader, routes))
    }

    /// Passes routes on, and looks for the service when it is gone. What goes through it keeps waiting for it meanwhile.
    fn follow(&self, mut reader: Option<MessageReader>, on_routes: &OnRoutes) {
        let mut pause = PAUSES.0;
        let mut is_told = false;
        while !self.ended.load(Ordering::Acquire) {
            if let Some(reader) = &mut reader {
                while let Some(routes) = self.next(reader) {
                    on_routes(routes);
                }
                locked(&self.writer).take();
            }
            if self.ended.load(Ordering::Acquire) {
                return;
            }
            match self.connect() {
                Ok((new, routes)) => {
                    (reader, pause, is_told) = (Some(new), PAUSES.0, false);
                    on_routes(routes);
                    continue;
                }
                Err(ClientError::Refused(reason)) if !is_told => {
                    is_told = true;
                    tracing::error!("the transport service refuses this process: {reason}");
                }
                Err(error) => tracing::debug!("{error}"),
            }
            reader = None;
            self.waker.wait(Some(pause));
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// The next routes; none when the service is gone.
    fn next(&self, reader: &mut MessageReader) -> Option<Routes> {
        loop {
            let bytes = reader.receive().ok()?;
            match serde_json::from_slice(&bytes).ok()? {
                Answer::Routes(routes) => return Some(routes),
                Answer::Rejected(all) => {
                    let mut heard = locked(&self.heard);
                    for (edge, rows) in all {
                        let before = heard.0.insert(edge.clone(), rows).unwrap_or(0);
                        (self.rejected)(&edge, rows.saturating_sub(before));
                    }
                    heard.1 += 1;
                    self.has_heard.notify_all();
                }
                Answer::Refused(reason) => tracing::warn!("the transport service: {reason}"),
                Answer::Done | Answer::Listing(_) => {}
            }
        }
    }

    fn count(&self) {
        self.send(&Request::Counts((self.counts)()));
    }

    fn send(&self, request: &Request) {
        let writer = locked(&self.writer).clone();
        if let (Some(writer), Ok(bytes)) = (writer, serde_json::to_vec(request)) {
            // One that is gone learns it when it registers again.
            let _ = writer.send(&bytes);
        }
    }
}

impl Registration {
    /// Where the ends of channels dial the service.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Exchanges figures now, so that those of the service are complete. Waits for it shortly.
    pub fn exchange(&self) {
        let heard = locked(&self.shared.heard);
        let before = heard.1;
        self.shared.count();
        if locked(&self.shared.writer).is_some() {
            let is_missing = |heard: &mut (BTreeMap<EdgeName, u64>, u64)| heard.1 == before;
            drop(self.shared.has_heard.wait_timeout_while(heard, EXCHANGING, is_missing));
        }
    }

    /// Says where the other end of a channel is, before the own end dials.
    pub fn peer(&self, peer: Peer) {
        let before = locked(&self.shared.peers).insert((peer.channel, peer.role), peer.clone());
        if before.as_ref() != Some(&peer) {
            self.shared.send(&Request::Peers(vec![peer]));
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.shared.waker.wake();
        if let Some(writer) = locked(&self.shared.writer).take() {
            writer.close();
        }
    }
}
