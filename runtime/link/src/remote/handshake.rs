//! The handshake, by which two sides find whether they fit.
//!
//! Either side sends: eight bytes `TIDEMILL`, the version of its protocol (4 bytes, little endian, as all numbers),
//! the kind of the body (1: a greeting, 2: a refusal) and three zeros, the length of the body (4), then JSON or text.
//! The side that dials begins. Only this is the same in all versions; in this one the crc32c of everything before (4
//! bytes, which the length counts) is at the end.
use super::carrier::Carrier;
use super::ends::{Receiver, Sender};
use super::messages::{MessageReader, MessageWriter};
use super::waiting::{Waited, wait_to_read, wait_to_write};
use super::{Greeting, PROTOCOL_VERSION, RemoteError, Security, peer_name};
use crate::deadline::Deadline;
use crate::link::codec::u32_at;
use crate::link::{LinkError, LinkReceiver, LinkSender};
use crate::transport::{Address, Stream};
use arrow_schema::SchemaRef;
use rustix::net::getpeername;
use std::io::{self, ErrorKind, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Bytes that a greeting may have.
pub const GREETING_BYTES: usize = 64 << 10;
/// Time that a listening side waits for a greeting, and for its answer to be taken.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
const MAGIC: &[u8; 8] = b"TIDEMILL";
pub(super) const PREAMBLE: usize = 20;
const CHECKSUM: usize = 4;
pub(super) const GREETING: u8 = 1;
const REFUSAL: u8 = 2;
/// The first bytes of TLS: the kind of a record, and its major version.
const TLS_ALERT: u8 = 21;
const TLS_HANDSHAKE: u8 = 22;
const TLS_MAJOR: u8 = 3;
const TLS_VERSION: usize = 2;

/// Talks during the handshake, with patience.
struct Talk<'a> {
    carrier: &'a mut Carrier,
    deadline: Deadline,
    stop: Option<BorrowedFd<'a>>,
}

/// Returns a message of the handshake as bytes.
pub(super) fn words(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PREAMBLE + body.len() + CHECKSUM);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes.extend_from_slice(&[kind, 0, 0, 0]);
    bytes.extend_from_slice(&((body.len() + CHECKSUM) as u32).to_le_bytes());
    bytes.extend_from_slice(body);
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The first message of a peer.
enum FirstMessage {
    Greeting(Greeting),
    Refusal(String),
}

fn failed(error: io::Error) -> RemoteError {
    match error.kind() {
        ErrorKind::InvalidData => match error.into_inner() {
            Some(inner) => RemoteError::Tls(inner.to_string()),
            None => RemoteError::Tls("damaged".into()),
        },
        _ => RemoteError::Io(error),
    }
}

fn in_time(waited: Waited) -> Result<(), RemoteError> {
    match waited {
        Waited::Ready => Ok(()),
        Waited::TimedOut => Err(RemoteError::Timeout),
        Waited::Stopped => Err(RemoteError::Stopped),
    }
}

impl Talk<'_> {
    fn wait_to_read(&self) -> Result<(), RemoteError> {
        in_time(wait_to_read(&*self.carrier.line(), Some(self.deadline), self.stop))
    }

    fn wait_to_write(&self) -> Result<(), RemoteError> {
        in_time(wait_to_write(&*self.carrier.line(), Some(self.deadline), self.stop))
    }

    fn flush(&mut self) -> Result<(), RemoteError> {
        loop {
            match self.carrier.flush() {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait_to_write()?,
                Err(error) => return Err(failed(error)),
            }
        }
    }

    fn read(&mut self, into: &mut [u8]) -> Result<(), RemoteError> {
        let mut done = 0;
        while done < into.len() {
            match self.carrier.read(&mut into[done..]) {
                Ok(0) => {
                    let text = "the peer closed the connection without an answer";
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, text).into());
                }
                Ok(n) => done += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.flush()?;
                    self.wait_to_read()?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), RemoteError> {
        let mut done = 0;
        while done < bytes.len() {
            match self.carrier.write(&[IoSlice::new(&bytes[done..])]) {
                // TLS that has not shaken hands takes no more: what it waits for has to be read.
                Ok(0) => self.flush()?,
                Ok(n) => done += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait_to_write()?,
                Err(error) => return Err(failed(error)),
            }
        }
        self.flush()
    }

    fn say(&mut self, kind: u8, body: &[u8]) -> Result<(), RemoteError> {
        self.write(&words(kind, body))
    }

    /// Verifies both sides, before anything confidential is sent.
    fn shake_hands(&mut self) -> Result<(), RemoteError> {
        while self.carrier.is_shaking_hands() {
            self.flush()?;
            match self.carrier.shake_hands() {
                Ok(0) => {
                    let text = "the peer closed the connection before it said who it is";
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, text).into());
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait_to_read()?,
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    fn greet(&mut self, greeting: &Greeting) -> Result<(), RemoteError> {
        let body = serde_json::to_vec(greeting).map_err(|error| RemoteError::Malformed(error.to_string()))?;
        let bytes = body.len() + CHECKSUM;
        if bytes > GREETING_BYTES {
            return Err(RemoteError::Malformed(format!("{bytes} bytes, {GREETING_BYTES} are the most")));
        }
        self.say(GREETING, &body)
    }

    fn listen(&mut self) -> Result<FirstMessage, RemoteError> {
        let mut preamble = [0; PREAMBLE];
        let (first, rest) = preamble.split_at_mut(TLS_VERSION);
        self.read(first)?;
        // An alert may be shorter than a preamble.
        if !self.carrier.is_secured() && matches!(*first, [TLS_ALERT | TLS_HANDSHAKE, TLS_MAJOR]) {
            return Err(RemoteError::NoCertificates);
        }
        self.read(rest)?;
        if !preamble.starts_with(MAGIC) {
            return Err(RemoteError::Malformed("this is not how tidemill begins".into()));
        }
        let theirs = u32_at(&preamble, 8);
        let length = u32_at(&preamble, 16) as usize;
        if length > GREETING_BYTES {
            return Err(RemoteError::Malformed(format!("{length} bytes, {GREETING_BYTES} are the most")));
        }
        let mut body = vec![0; length];
        self.read(&mut body)?;
        if theirs != PROTOCOL_VERSION {
            return Err(RemoteError::Version { ours: PROTOCOL_VERSION, theirs });
        }
        let Some((body, checksum)) = body.split_last_chunk::<CHECKSUM>() else {
            return Err(RemoteError::Malformed("it has no checksum".into()));
        };
        if u32::from_le_bytes(*checksum) != crc32c::crc32c_append(crc32c::crc32c(&preamble), body) {
            return Err(RemoteError::Malformed("its checksum differs".into()));
        }
        match preamble[12] {
            GREETING => serde_json::from_slice(body)
                .map(FirstMessage::Greeting)
                .map_err(|error| RemoteError::Malformed(error.to_string())),
            REFUSAL => Ok(FirstMessage::Refusal(String::from_utf8_lossy(body).into_owned())),
            other => Err(RemoteError::Malformed(format!("unknown kind {other}"))),
        }
    }

    fn refuse(&mut self, reason: &str) -> Result<(), RemoteError> {
        let mut end = reason.len().min(GREETING_BYTES - CHECKSUM);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        self.say(REFUSAL, &reason.as_bytes()[..end])
    }
}

/// Connects to a side that listens, and greets it. Waits for its answer, at most `timeout` for all of it; looking up
/// the name of a host is up to the system and not counted.
///
/// # Errors
/// [`RemoteError::Refused`] with the peer's reason; anything else that may come between.
pub fn dial(
    address: &Address,
    security: &Security,
    greeting: &Greeting,
    timeout: Duration,
) -> Result<Connection, RemoteError> {
    dial_to(address, security, greeting, timeout, None)
}

/// As [`dial`], to a peer whose certificate must have the identity `wanted` ([`peer_name`]): no other peer is
/// greeted, so it learns nothing of the run.
///
/// # Errors
/// As [`dial`]; [`RemoteError::Stranger`] where another peer answers.
pub fn dial_to(
    address: &Address,
    security: &Security,
    greeting: &Greeting,
    timeout: Duration,
    wanted: Option<&str>,
) -> Result<Connection, RemoteError> {
    let deadline = Deadline::after(timeout);
    let stream = address.transport()?.dial(address.place(), timeout).map_err(|error| match error.kind() {
        ErrorKind::TimedOut => RemoteError::Timeout,
        _ => RemoteError::Io(error),
    })?;
    greet_over(stream, security, greeting, deadline, wanted)
}

/// As [`dial`], over a connection that the caller made: bound to an interface or a port, for example.
///
/// # Errors
/// As [`dial`].
pub fn dial_over(
    stream: Box<dyn Stream>,
    security: &Security,
    greeting: &Greeting,
    timeout: Duration,
) -> Result<Connection, RemoteError> {
    greet_over(stream, security, greeting, Deadline::after(timeout), None)
}

fn greet_over(
    stream: Box<dyn Stream>,
    security: &Security,
    greeting: &Greeting,
    deadline: Deadline,
    wanted: Option<&str>,
) -> Result<Connection, RemoteError> {
    let mut carrier = Carrier::new(stream, security.client()?);
    let mut talk = Talk { carrier: &mut carrier, deadline, stop: None };
    if let Some(wanted) = wanted {
        talk.shake_hands()?;
        let found = talk.carrier.peer_certificate().and_then(peer_name);
        if found.as_deref() != Some(wanted) {
            talk.carrier.close();
            let found =
                found.unwrap_or_else(|| "somebody whose certificate does not say who it is of".into());
            return Err(RemoteError::Stranger { wanted: wanted.to_owned(), found });
        }
    }
    talk.greet(greeting)?;
    match talk.listen()? {
        FirstMessage::Refusal(reason) => Err(RemoteError::Refused(reason)),
        FirstMessage::Greeting(peer) => match greeting.mismatch(&peer) {
            Some(reason) => Err(RemoteError::Mismatch(reason)),
            None => Ok(Connection { carrier, peer }),
        },
    }
}

/// A peer that has greeted and waits for an answer. Dropping it closes the connection without one.
pub struct Incoming {
    /// The peer's greeting.
    pub greeting: Greeting,
    carrier: Carrier,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").field("greeting", &self.greeting).finish_non_exhaustive()
    }
}

impl Incoming {
    /// Reads a greeting. A peer that begins otherwise receives the reason of the refusal.
    pub(super) fn hear(mut carrier: Carrier, stop: BorrowedFd<'_>) -> Result<Self, RemoteError> {
        let deadline = Deadline::after(HANDSHAKE_TIMEOUT);
        let mut talk = Talk { carrier: &mut carrier, deadline, stop: Some(stop) };
        let error = match talk.listen() {
            Ok(FirstMessage::Greeting(greeting)) => return Ok(Self { greeting, carrier }),
            Ok(FirstMessage::Refusal(reason)) => RemoteError::Refused(reason),
            Err(error) => error,
        };
        if matches!(
            error,
            RemoteError::Malformed(_) | RemoteError::NoCertificates | RemoteError::Version { .. }
        ) {
            // For the peer, ours and theirs are swapped: it sees the version itself.
            let _ = talk.refuse(&error.to_string());
        }
        carrier.close();
        Err(error)
    }

    /// Returns the certificate of the peer as DER, which TLS has verified; none without TLS. It proves the peer's
    /// identity; the greeting does not.
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        self.carrier.peer_certificate()
    }

    /// Returns the number of the user whose process the peer is, where the system knows it: over Unix sockets.
    pub fn peer_user(&self) -> Option<u32> {
        self.carrier.peer_user()
    }

    /// Returns the address of the peer's host, or of what stands between. None: the connection is not one socket of IP, as over Unix
    /// sockets and in sessions.
    pub fn peer_address(&self) -> Option<IpAddr> {
        let line = self.carrier.line();
        let address = getpeername(line.socket()?).ok().flatten()?;
        SocketAddr::try_from(address).ok().map(|address| address.ip())
    }

    /// Returns the identity in the certificate of the peer, if it has one: see [`peer_name`].
    pub fn peer_name(&self) -> Option<String> {
        self.peer_certificate().and_then(peer_name)
    }

    /// Answers with the own greeting.
    ///
    /// # Errors
    /// [`RemoteError::Mismatch`] when the greetings do not fit, for example of different runs: the peer is refused with the same
    /// reason. Others when it cannot be answered.
    pub fn accept(mut self, own: &Greeting) -> Result<Connection, RemoteError> {
        if let Some(reason) = own.mismatch(&self.greeting) {
            self.refuse(&reason);
            return Err(RemoteError::Mismatch(reason));
        }
        let deadline = Deadline::after(HANDSHAKE_TIMEOUT);
        Talk { carrier: &mut self.carrier, deadline, stop: None }.greet(own)?;
        Ok(Connection { carrier: self.carrier, peer: self.greeting })
    }

    /// Sends the peer the reason of the refusal, and closes the connection.
    pub fn refuse(mut self, reason: &str) {
        let deadline = Deadline::after(HANDSHAKE_TIMEOUT);
        // A peer that does not read it has gone already.
        let _ = Talk { carrier: &mut self.carrier, deadline, stop: None }.refuse(reason);
        self.carrier.close();
    }
}

/// A connection whose sides know each other.
pub struct Connection {
    pub(super) carrier: Carrier,
    peer: Greeting,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Connection {
    /// Returns the peer's greeting.
    pub fn peer(&self) -> &Greeting {
        &self.peer
    }

    /// The certificate of the peer, as [`Incoming::peer_certificate`].
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        self.carrier.peer_certificate()
    }

    /// Returns the identity in the certificate of the peer, as [`Incoming::peer_name`].
    pub fn peer_name(&self) -> Option<String> {
        self.peer_certificate().and_then(peer_name)
    }

    /// Becomes the end of a channel that sends records of this schema.
    ///
    /// # Errors
    /// When Arrow cannot encode the schema.
    pub fn into_sender(self, schema: SchemaRef) -> Result<Box<dyn LinkSender>, LinkError> {
        Ok(Box::new(Sender::new(self.carrier, &schema)?))
    }

    /// Becomes the end of a channel that receives records of this schema; others are [`LinkError::Damaged`].
    ///
    /// # Errors
    /// When the system refuses what the link needs.
    pub fn into_receiver(self, schema: SchemaRef) -> Result<Box<dyn LinkReceiver>, LinkError> {
        Ok(Box::new(Receiver::new(self.carrier, schema)))
    }

    /// Turns the connection into two directions of messages.
    ///
    /// # Errors
    /// When the system refuses what it needs.
    pub fn into_messages(self) -> Result<(MessageWriter, MessageReader), LinkError> {
        Ok(super::messages::over(self.carrier))
    }

    /// Becomes a stream of bytes, for a protocol of the caller.
    pub fn into_bytes(self) -> super::ByteStream {
        super::ByteStream::new(self.carrier)
    }
}
