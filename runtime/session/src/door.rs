//! Where a process listens for sessions: one listener for each of its paths.
use crate::clock::now;
use crate::header::{PREAMBLE, Preamble};
use crate::lane::LaneStream;
use crate::place::{self, OwnPath, Place};
use crate::sessions::{Wait, accepted};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_link::transport::Stream;
use tidemill_link::wake::{Event, Waker};

/// Connections whose first bytes have not come, at most; one more takes the place of the oldest.
const PENDING: usize = 256;
/// Time that a connection has for its first bytes.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause when the process has no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);
/// Lanes that wait to be accepted, at most.
const WAITING: usize = 1024;

struct Pending {
    stream: Box<dyn Stream>,
    bytes: [u8; PREAMBLE],
    come: usize,
    since: Duration,
}

/// A carrier whose first bytes have come.
pub(crate) struct Arrival {
    pub(crate) preamble: Preamble,
    pub(crate) stream: Box<dyn Stream>,
}

/// A place where a process listens.
pub(crate) struct Door {
    listeners: Vec<Arc<TcpListener>>,
    place: String,
    pending: Mutex<Vec<Pending>>,
    lanes: Mutex<VecDeque<LaneStream>>,
    has_lanes: Event,
    /// Nothing is accepted before: the process had no descriptor left.
    paused: Mutex<Duration>,
    waker: Arc<Waker>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Door {
    pub(crate) fn open(place: &Place, own: &[OwnPath], waker: Arc<Waker>) -> io::Result<Self> {
        let (mut listeners, mut doors) = (Vec::new(), Vec::new());
        for door in &place.0 {
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", door.at));
            let listener = TcpListener::bind(&door.at).map_err(named)?;
            listener.set_nonblocking(true)?;
            let interface = own.iter().find(|path| Some(&path.id) == door.path.as_ref());
            if let Some(interface) = interface.and_then(|path| path.interface.as_deref()) {
                // Answers leave by it, too, whatever the routes of the system are.
                let bound = socket2::SockRef::from(&listener).bind_device(Some(interface.as_bytes()));
                bound.map_err(|error| {
                    io::Error::new(error.kind(), format!("interface {interface}: {error}"))
                })?;
            }
            let port = listener.local_addr()?.port();
            // The name stays as it was given: others may know the host by it.
            let name = door.at.rsplit_once(':').map_or(door.at.as_str(), |(name, _)| name);
            doors.push(place::Door { path: door.path.clone(), at: format!("{name}:{port}") });
            listeners.push(Arc::new(listener));
        }
        Ok(Self {
            listeners,
            place: Place(doors).to_string(),
            pending: Mutex::default(),
            lanes: Mutex::default(),
            has_lanes: Event::new()?,
            paused: Mutex::default(),
            waker,
        })
    }

    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    pub(crate) fn has_lanes(&self) -> &Event {
        &self.has_lanes
    }

    /// Everything that may become an arrival.
    pub(crate) fn waits(&self) -> Vec<Wait> {
        let listeners = if self.pauses(now()).is_some() { &[] } else { self.listeners.as_slice() };
        let listeners = listeners.iter().map(|listener| Wait::Listener(Arc::clone(listener)));
        let pending = locked(&self.pending);
        listeners.chain(pending.iter().map(|one| Wait::Line(one.stream.line()))).collect()
    }

    /// Returns until when nothing is accepted; none: it is.
    pub(crate) fn pauses(&self, time: Duration) -> Option<Duration> {
        Some(*locked(&self.paused)).filter(|until| *until > time)
    }

    /// Accepts, and returns the connections whose first bytes have come.
    pub(crate) fn arrivals(&self, time: Duration) -> Vec<Arrival> {
        let mut pending = locked(&self.pending);
        for listener in &self.listeners {
            loop {
                let socket = match listener.accept() {
                    Ok((socket, _)) => socket,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                    Err(error) => {
                        if self.pauses(time).is_none() {
                            tracing::warn!("cannot accept a connection for now: {error}");
                            *locked(&self.paused) = time + PAUSE;
                        }
                        break;
                    }
                };
                if pending.len() >= PENDING {
                    pending.remove(0);
                }
                if let Ok(stream) = accepted(socket) {
                    pending.push(Pending { stream, bytes: [0; PREAMBLE], come: 0, since: time });
                }
            }
        }
        let mut arrivals = Vec::new();
        let mut waiting = Vec::new();
        for mut one in pending.drain(..) {
            match one.read() {
                Ok(true) => match Preamble::from_bytes(&one.bytes) {
                    Ok(preamble) => arrivals.push(Arrival { preamble, stream: one.stream }),
                    Err(error) => tracing::warn!("a peer is turned away: {error}"),
                },
                Ok(false) if time < one.since + PATIENCE => waiting.push(one),
                Ok(false) | Err(_) => {}
            }
        }
        *pending = waiting;
        arrivals
    }

    /// Queues a new lane for [`Door::accept`]. It ends if the queue is full.
    pub(crate) fn deliver(&self, lane: LaneStream) {
        let mut lanes = locked(&self.lanes);
        if lanes.len() < WAITING {
            lanes.push_back(lane);
            self.has_lanes.raise();
        }
    }

    pub(crate) fn accept(&self) -> io::Result<LaneStream> {
        let mut lanes = locked(&self.lanes);
        let lane = lanes.pop_front();
        if lanes.is_empty() {
            self.has_lanes.lower();
        }
        lane.ok_or_else(|| ErrorKind::WouldBlock.into())
    }
}

impl Pending {
    fn read(&mut self) -> io::Result<bool> {
        while self.come < PREAMBLE {
            match self.stream.read(&mut self.bytes[self.come..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.come += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        for listener in &self.listeners {
            // The session thread may hold the listener a moment longer: refuse connections at once.
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
        self.waker.wake();
    }
}
