//! Sessions as a transport.
use crate::door::Door;
use crate::place::{FORM, Place};
use crate::{Options, Sessions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tidemill_link::transport::{Acceptor, Address, PathFigures, Stream, Transport, register};

/// Scheme of the addresses of sessions.
pub const SCHEME: &str = "session";

/// The sessions of the addresses that begin with [`SCHEME`].
static SESSIONS: OnceLock<Arc<Sessions>> = OnceLock::new();

/// Registers the transport; does nothing where it is.
///
/// # Errors
/// When the process has no descriptor left.
pub fn install() -> io::Result<()> {
    static ONCE: Mutex<()> = Mutex::new(());
    let _once = ONCE.lock().unwrap_or_else(PoisonError::into_inner);
    if SESSIONS.get().is_none() {
        let all = Sessions::new(Options::default())?;
        register(SessionTransport(Arc::clone(&all)));
        let _ = SESSIONS.set(all);
    }
    Ok(())
}

/// Returns the sessions of the process; none before [`install`].
pub fn sessions() -> Option<&'static Arc<Sessions>> {
    SESSIONS.get()
}

/// Makes an address of a place of one path, `HOST:PORT`.
pub fn address(place: impl Into<String>) -> Address {
    Address::new(SCHEME, place)
}

/// A transport over the sessions of one process.
#[derive(Debug)]
pub struct SessionTransport(pub Arc<Sessions>);

struct Listening(Arc<Door>);

pub(crate) fn place(text: &str) -> io::Result<Place> {
    text.parse().map_err(|()| {
        io::Error::new(ErrorKind::InvalidInput, format!("{text:?} is no place of sessions: {FORM}"))
    })
}

impl Transport for SessionTransport {
    fn scheme(&self) -> &'static str {
        SCHEME
    }

    fn form(&self) -> &'static str {
        FORM
    }

    fn is_place(&self, text: &str) -> bool {
        text.parse::<Place>().is_ok()
    }

    fn anywhere(&self) -> &'static str {
        "127.0.0.1:0"
    }

    fn listen(&self, text: &str) -> io::Result<Box<dyn Acceptor>> {
        Ok(Box::new(Listening(self.0.listen(&place(text)?)?)))
    }

    fn dial(&self, text: &str, timeout: Duration) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(self.0.dial(text, &place(text)?, timeout)?))
    }

    fn paths(&self) -> Vec<PathFigures> {
        self.0.figures()
    }
}

impl Acceptor for Listening {
    fn place(&self) -> String {
        self.0.place().to_owned()
    }

    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        self.0.accept().map(|lane| Box::new(lane) as Box<dyn Stream>)
    }

    fn readable(&self) -> BorrowedFd<'_> {
        self.0.has_lanes().as_fd()
    }
}
