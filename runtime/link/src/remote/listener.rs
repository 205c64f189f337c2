//! The side that waits for others.
use super::carrier::{Carrier, Deadline, Waited, configure_tcp, wait};
use super::local::{check_user, listen_at_file, listen_at_name};
use super::{Address, Incoming, RemoteError, Security};
use crate::wake::Waker;
use rustix::event::PollFlags;
use rustix::net::{Shutdown, shutdown};
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Peers that may be greeting at once. One more takes the place of the one that has been silent for longest; where all have greeted
/// and wait for their answer, it is closed at once, and may dial again.
pub const MAX_HANDSHAKES: usize = 64;
/// The stack of a thread that hears a greeting; `on_incoming` runs on it.
const STACK: usize = 512 << 10;
/// Pause when the process has no descriptors for a peer.
const PAUSE: Duration = Duration::from_millis(100);

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Socket {
    fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Tcp(listener) => Ok(listener.accept()?.0.into()),
            Self::Unix(listener) => Ok(listener.accept()?.0.into()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

/// An address at which peers are heard once it serves. Removes its socket file when it is dropped.
pub struct Listener {
    socket: Socket,
    address: Address,
    security: Security,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            // Somebody may have removed it already.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Listener {
    /// Listens at the address. A socket file that nobody listens at is replaced.
    ///
    /// # Errors
    /// When the address is taken or not of this host.
    pub fn bind(address: &Address, security: &Security) -> Result<Self, RemoteError> {
        let (socket, address) = match address {
            Address::Tcp(host) => {
                let listener = TcpListener::bind(host.as_str())?;
                listener.set_nonblocking(true)?;
                let port = listener.local_addr()?.port();
                // The name stays as it was given: others may know the host by it.
                let name = host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name);
                let address = Address::Tcp(format!("{name}:{port}"));
                (Socket::Tcp(listener), address)
            }
            Address::Unix(path) => {
                let listener = listen_at_file(path)?;
                listener.set_nonblocking(true)?;
                (Socket::Unix(listener), address.clone())
            }
            Address::Abstract(name) => {
                let (listener, name) = listen_at_name(name)?;
                listener.set_nonblocking(true)?;
                (Socket::Unix(listener), Address::Abstract(name))
            }
        };
        Ok(Self { socket, address, security: security.clone() })
    }

    /// Where it listens: with the real port where 0 was asked for.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Hears peers, each on a thread of its own until its greeting has come and `on_incoming` is done with it.
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
        while wait(self.socket.as_fd(), PollFlags::IN, None, Some(stop.as_fd())) != Waited::Stopped {
            let socket = match self.socket.accept() {
                Ok(socket) => socket,
                Err(error) => {
                    let gone = [ErrorKind::WouldBlock, ErrorKind::ConnectionAborted, ErrorKind::Interrupted];
                    if !gone.contains(&error.kind()) {
                        // Out of descriptors or memory.
                        wait(stop.as_fd(), PollFlags::IN, Some(Deadline::after(PAUSE)), None);
                    }
                    continue;
                }
            };
            let carrier = match self.carrier(socket) {
                Ok(carrier) => carrier,
                Err(error) => {
                    tracing::warn!("a peer is turned away: {error}");
                    continue;
                }
            };
            handshakes.retain(|handshake| !handshake.thread.is_finished());
            if handshakes.len() >= MAX_HANDSHAKES {
                let Some(oldest) = handshakes.iter().position(Handshake::end_if_silent) else { continue };
                // It is woken, and ends.
                let _ = handshakes.remove(oldest).thread.join();
            }
            let silent = Silent(Arc::new(Mutex::new(Some(Arc::downgrade(carrier.socket())))));
            let (stop, on_incoming, heard) = (Arc::clone(stop), Arc::clone(on_incoming), silent.clone());
            let hear = move || match Incoming::hear(carrier, stop.as_fd()) {
                Ok(incoming) => {
                    heard.lock().take();
                    on_incoming(incoming);
                }
                Err(RemoteError::Stopped) => {}
                // The peer has been told, as far as it listens.
                Err(error) => tracing::warn!("a peer is turned away: {error}"),
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

    /// The connection of a peer that says who it is next.
    fn carrier(&self, socket: OwnedFd) -> Result<Carrier, RemoteError> {
        if matches!(self.address, Address::Abstract(_)) {
            check_user(&socket)?;
        }
        let tls = self.security.server()?;
        match self.socket {
            Socket::Tcp(_) => {
                configure_tcp(&socket)?;
                Ok(Carrier::new(socket, tls)?)
            }
            Socket::Unix(_) => Ok(Carrier::new(socket, tls)?.local()),
        }
    }
}

/// The socket of a peer until its greeting has come.
#[derive(Clone)]
struct Silent(Arc<Mutex<Option<Weak<OwnedFd>>>>);

impl Silent {
    fn lock(&self) -> MutexGuard<'_, Option<Weak<OwnedFd>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A peer that is heard on a thread of its own.
struct Handshake {
    thread: JoinHandle<()>,
    silent: Silent,
}

impl Handshake {
    /// Ends it if the peer has not greeted; whether that was so.
    fn end_if_silent(&self) -> bool {
        // Locked meanwhile: a greeting that comes now comes before or after.
        let silent = self.silent.lock();
        let Some(socket) = silent.as_ref().and_then(Weak::upgrade) else { return false };
        // It may be closed already.
        let _ = shutdown(&socket, Shutdown::Both);
        true
    }
}

type OnIncoming = Arc<dyn Fn(Incoming) + Send + Sync>;

/// A listener at work. Dropping it stops accepting, waits for the greetings under way and removes the socket file; not to be
/// done in `on_incoming`, which it would wait for. Connections that were made stay.
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
    /// Where it listens.
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
