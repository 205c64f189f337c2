//! Memory of one process: the transport that needs nothing of the system, for tests and for sides that share a process.
//!
//! ```
//! use std::io::IoSlice;
//! use std::time::Duration;
//! use tidemill_link::transport::Address;
//!
//! let address: Address = "memory://".parse()?;
//! let transport = address.transport()?;
//! let listening = transport.listen(address.place())?;
//! let mut dialled = transport.dial(&listening.place(), Duration::ZERO)?;
//! let mut accepted = listening.accept()?;
//! dialled.write(&[IoSlice::new(b"hello")])?;
//! let mut read = [0; 8];
//! assert_eq!(accepted.read(&mut read)?, 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
use super::{Acceptor, Line, Stream, Transport};
use crate::wake::Event;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Largest number of unread bytes in one direction.
const CAPACITY: usize = 1 << 20;
/// Connections that wait to be accepted, at most.
const BACKLOG: usize = 1024;

pub(super) struct Memory;

static DOORS: Mutex<BTreeMap<String, Arc<Door>>> = Mutex::new(BTreeMap::new());

/// Place of new connections.
struct Door {
    /// Dialled and not accepted.
    waiting: Mutex<Vec<End>>,
    readable: Event,
}

struct Listening {
    name: String,
    door: Arc<Door>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Transport for Memory {
    fn scheme(&self) -> &'static str {
        "memory"
    }

    fn form(&self) -> &'static str {
        "NAME"
    }

    fn is_place(&self, _place: &str) -> bool {
        true
    }

    fn anywhere(&self) -> &'static str {
        ""
    }

    fn listen(&self, place: &str) -> io::Result<Box<dyn Acceptor>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = match place {
            "" => format!("#{}", NEXT.fetch_add(1, Ordering::Relaxed)),
            name => name.to_owned(),
        };
        let mut doors = locked(&DOORS);
        if doors.contains_key(&name) {
            return Err(ErrorKind::AddrInUse.into());
        }
        let door = Arc::new(Door { waiting: Mutex::default(), readable: Event::new()? });
        doors.insert(name.clone(), Arc::clone(&door));
        Ok(Box::new(Listening { name, door }))
    }

    fn dial(&self, place: &str, _timeout: Duration) -> io::Result<Box<dyn Stream>> {
        // Held until the connection waits there: a door that is gone has none that nothing drops.
        let doors = locked(&DOORS);
        let door = doors.get(place).ok_or(ErrorKind::ConnectionRefused)?;
        let mut waiting = locked(&door.waiting);
        if waiting.len() == BACKLOG {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let (ours, theirs) = pair()?;
        waiting.push(theirs);
        door.readable.raise();
        Ok(Box::new(ours))
    }
}

impl Acceptor for Listening {
    fn place(&self) -> String {
        self.name.clone()
    }

    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        let mut waiting = locked(&self.door.waiting);
        if waiting.is_empty() {
            self.door.readable.lower();
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(waiting.remove(0)))
    }

    fn readable(&self) -> BorrowedFd<'_> {
        self.door.readable.as_fd()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // A side that waits to be accepted finds the connection ended.
        locked(&DOORS).remove(&self.name);
        locked(&self.door.waiting).clear();
    }
}

/// Unread bytes for one side.
#[derive(Default)]
struct Flow {
    bytes: VecDeque<u8>,
    /// A writer found it full.
    was_full: bool,
}

#[derive(Default)]
struct State {
    /// To either side.
    to: [Flow; 2],
    is_over: bool,
}

/// The events of one side.
struct Events {
    readable: Event,
    writable: Event,
}

struct Pair {
    state: Mutex<State>,
    events: [Events; 2],
}

/// One side of a connection.
struct End(Arc<Half>);

struct Half {
    pair: Arc<Pair>,
    side: usize,
}

fn pair() -> io::Result<(End, End)> {
    let events = || {
        let events = Events { readable: Event::new()?, writable: Event::new()? };
        events.writable.raise();
        Ok::<_, io::Error>(events)
    };
    let pair = Arc::new(Pair { state: Mutex::default(), events: [events()?, events()?] });
    let end = |side| End(Arc::new(Half { pair: Arc::clone(&pair), side }));
    Ok((end(0), end(1)))
}

impl Half {
    fn own(&self) -> &Events {
        &self.pair.events[self.side]
    }

    fn others(&self) -> &Events {
        &self.pair.events[1 - self.side]
    }

    fn end(&self, is_gone: bool) {
        let mut state = locked(&self.pair.state);
        state.is_over = true;
        if is_gone {
            state.to[self.side] = Flow::default();
        }
        for events in &self.pair.events {
            events.readable.raise();
            events.writable.raise();
        }
    }
}

impl Stream for End {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut state = locked(&self.0.pair.state);
        let is_over = state.is_over;
        let flow = &mut state.to[self.0.side];
        if flow.bytes.is_empty() {
            if is_over {
                return Ok(0);
            }
            self.0.own().readable.lower();
            return Err(ErrorKind::WouldBlock.into());
        }
        let read = io::Read::read(&mut flow.bytes, into)?;
        // The second part where the memory of the queue begins again.
        let read = read + io::Read::read(&mut flow.bytes, &mut into[read..])?;
        if std::mem::take(&mut flow.was_full) {
            self.0.others().writable.raise();
            self.0.others().readable.raise();
        }
        Ok(read)
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = locked(&self.0.pair.state);
        if state.is_over {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let flow = &mut state.to[1 - self.0.side];
        let (before, mut written) = (flow.bytes.len(), 0);
        for part in parts {
            let part = &part[..part.len().min(CAPACITY - flow.bytes.len())];
            flow.bytes.extend(part);
            written += part.len();
        }
        if written == 0 && parts.iter().any(|part| !part.is_empty()) {
            flow.was_full = true;
            self.0.own().writable.lower();
            return Err(ErrorKind::WouldBlock.into());
        }
        if before == 0 && written > 0 {
            self.0.others().readable.raise();
        }
        Ok(written)
    }

    fn line(&self) -> Arc<dyn Line> {
        Arc::<Half>::clone(&self.0)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.0.end(true);
    }
}

impl Line for Half {
    fn readable(&self) -> BorrowedFd<'_> {
        self.own().readable.as_fd()
    }

    fn writable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.own().writable.as_fd())
    }

    fn hang_up(&self) {
        self.end(false);
    }
}
