//! The side that waits for others.
use super::carrier::Carrier;
use super::turned_away::TurnedAway;
use super::waiting::{Waited, wait};
use super::{Incoming, RemoteError, Security};
use crate::deadline::Deadline;
use crate::transport::{Acceptor, Address, Line};
use crate::wake::Waker;
use rustix::event::PollFlags;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Largest number of peers that greet at once. One more takes the place of the one that has been silent for longest;
/// where all have greeted and wait for their answer, it is closed at once, and may dial again.
pub const MAX_HANDSHAKES: usize = 64;
/// The stack of a thread that reads a greeting; `on_incoming` runs on it.
const STACK: usize = 512 << 10;
/// Pause when the process has no descriptors for a peer.
const PAUSE: Duration = Duration::from_millis(100);

/// An address at which peers are accepted once it serves. Frees its place when it is dropped.
pub struct Listener {
    acceptor: Box<dyn Acceptor>,
    address: Address,
    security: Security,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Listener {
    /// Listens at the address. A socket file where nothing listens is replaced.
    ///
    /// # Errors
    /// When the address is taken or not of this host.
    pub fn bind(address: &Address, security: &Security) -> Result<Self, RemoteError> {
        let acceptor = address.transport()?.listen(address.place())?;
        let address = Address::new(address.scheme(), acceptor.place());
        Ok(Self { acceptor, address, security: security.clone() })
    }

    /// Returns its address, with the real port if 0 was given.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Accepts peers, each on a thread of its own until its greeting has come and `on_incoming` is done with it.
    ///
    /// # Errors
    /// When the system has no thread or descriptor left.
    pub fn serve(
        self,
        on_incoming: impl Fn(Incoming) + Send + Sync + 'static,
    ) -> Result<Serving, RemoteError> {
        let stop = Arc::new(Waker::new()?);
        let address = self.address.clone();
        let stopped = Arc::clone(&stop);
        let accept = move || self.accept_all(&stopped, &(Arc::new(on_incoming) as OnIncoming));
        let thread = Builder::new().name("tidemill-accept".into()).spawn(accept)?;
        Ok(Serving { address, stop, thread: Some(thread) })
    }

    fn accept_all(self, stop: &Arc<Waker>, on_incoming: &OnIncoming) {
        let mut handshakes: Vec<Handshake> = Vec::new();
        let turned_away = Arc::new(TurnedAway::default());
        let has_peer = || wait(self.acceptor.readable(), PollFlags::IN, None, Some(stop.as_fd()));
        while has_peer() != Waited::Stopped {
            let stream = match self.acceptor.accept() {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    turned_away.report(&RemoteError::from(error));
                    continue;
                }
                Err(error) => {
                    let gone = [ErrorKind::WouldBlock, ErrorKind::ConnectionAborted, ErrorKind::Interrupted];
                    if !gone.contains(&error.kind()) {
                        // Out of descriptors or memory.
                        wait(stop.as_fd(), PollFlags::IN, Some(Deadline::after(PAUSE)), None);
                    }
                    continue;
                }
            };
            let carrier = match self.security.server() {
                Ok(tls) => Carrier::new(stream, tls),
                Err(error) => {
                    turned_away.report(&error);
                    continue;
                }
            };
            handshakes.retain(|handshake| !handshake.thread.is_finished());
            if handshakes.len() >= MAX_HANDSHAKES {
                let Some(oldest) = handshakes.iter().position(Handshake::end_if_silent) else { continue };
                // It is woken, and ends.
                let _ = handshakes.remove(oldest).thread.join();
            }
            let silent = Silent(Arc::new(Mutex::new(Some(Arc::downgrade(&carrier.line())))));
            let (stop, on_incoming, heard) = (Arc::clone(stop), Arc::clone(on_incoming), silent.clone());
            let turned_away = Arc::clone(&turned_away);
            let hear = move || match Incoming::hear(carrier, stop.as_fd()) {
                Ok(incoming) => {
                    heard.lock().take();
                    on_incoming(incoming);
                }
                Err(RemoteError::Stopped) => {}
                // The peer has the reason, if it reads.
                Err(error) => turned_away.report(&error),
            };
            let thread = Builder::new().name("tidemill-greet".into()).stack_size(STACK).spawn(hear);
            // Without a thread the peer is closed.
            handshakes.extend(thread.ok().map(|thread| Handshake { thread, silent }));
        }
        for handshake in handshakes {
            // A panic of `on_incoming` concerned its peer alone.
            let _ = handshake.thread.join();
        }
    }
}

/// The connection of a peer until its greeting has come.
#[derive(Clone)]
struct Silent(Arc<Mutex<Option<Weak<dyn Line>>>>);

impl Silent {
    fn lock(&self) -> MutexGuard<'_, Option<Weak<dyn Line>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A peer whose greeting is read on a thread of its own.
struct Handshake {
    thread: JoinHandle<()>,
    silent: Silent,
}

impl Handshake {
    /// Ends it if the peer has not greeted; whether that was so.
    fn end_if_silent(&self) -> bool {
        // Locked meanwhile: a greeting that comes now comes before or after.
        let silent = self.silent.lock();
        let Some(line) = silent.as_ref().and_then(Weak::upgrade) else { return false };
        line.hang_up();
        true
    }
}

type OnIncoming = Arc<dyn Fn(Incoming) + Send + Sync>;

/// A listener at work. Dropping it stops accepting, waits for unfinished greetings and frees the place; do not drop
/// it in `on_incoming`, which it would wait for. Connections that were made stay.
pub struct Serving {
    address: Address,
    stop: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serving").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Serving {
    /// Returns its address.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.wake();
        if let Some(thread) = self.thread.take() {
            // It panics nowhere.
            let _ = thread.join();
        }
    }
}
