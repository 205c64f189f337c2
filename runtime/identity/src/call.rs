//! One request to the controller and its answer, over HTTP/1.1 and TLS, on the calling thread.
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, ClientConnection, StreamOwned};
use zeroize::Zeroizing;

use crate::controller::{ControllerError, TLS_NAME};
use crate::token::AccessToken;

/// Bytes that the lines before the body of an answer may have.
pub const ANSWER_HEAD_BYTES: usize = 16 << 10;
/// Bytes that the body of an answer may have.
pub const ANSWER_BODY_BYTES: usize = 4 << 20;

/// A request to the controller.
#[derive(Debug)]
pub struct Call<'a> {
    /// `GET`, `POST`, `DELETE`.
    pub method: &'a str,
    /// Beginning with `/`.
    pub path: &'a str,
    /// Token of a person; workers show certificates.
    pub token: Option<&'a AccessToken>,
    /// JSON; empty if there is none.
    pub body: &'a [u8],
}

/// The controller's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The number of HTTP: 200 is good.
    pub status: u16,
    /// The rest.
    pub body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The address is not reached.
    #[error("{place} cannot be reached: {source}")]
    Unreachable {
        /// Host and port.
        place: String,
        /// The error.
        source: io::Error,
    },
    /// Another peer answers.
    #[error("{place}: {reason}")]
    Stranger {
        /// Host and port.
        place: String,
        /// Why it is not the controller.
        reason: ControllerError,
    },
    /// TLS failed otherwise.
    #[error("{place}: TLS: {reason}")]
    Tls {
        /// Host and port.
        place: String,
        /// The error.
        reason: rustls::Error,
    },
    /// The connection broke, or took too long.
    #[error("{place} did not answer: {source}")]
    Broken {
        /// Host and port.
        place: String,
        /// The error.
        source: io::Error,
    },
    /// The bytes are no answer.
    #[error("{place} answered with something that is no HTTP that is understood here: {why}")]
    Malformed {
        /// Host and port.
        place: String,
        /// The error.
        why: &'static str,
    },
    /// The method or the path would break the request.
    #[error("{0:?} cannot stand in the first line of a request")]
    Request(String),
}

/// Reads and writes until a deadline.
pub(crate) struct Timed {
    pub(crate) stream: TcpStream,
    pub(crate) deadline: Instant,
}

/// A connection to the controller.
pub(crate) type Line = StreamOwned<ClientConnection, Timed>;

/// A call that failed, and whether not a byte of an answer had come.
pub(crate) struct Failed {
    pub(crate) error: CallError,
    pub(crate) is_unanswered: bool,
}

#[expect(
    clippy::disallowed_methods,
    reason = "patience with a peer is real time, whatever the clock of the cluster is"
)]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

impl Timed {
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(instant());
        if left.is_zero() { Err(timed_out()) } else { Ok(left) }
    }
}

fn timed_out() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "it took too long")
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        let result = self.stream.read(into);
        result.map_err(|error| if error.kind() == ErrorKind::WouldBlock { timed_out() } else { error })
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        let result = self.stream.write(bytes);
        result.map_err(|error| if error.kind() == ErrorKind::WouldBlock { timed_out() } else { error })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn connect(place: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for address in place.to_socket_addrs()? {
        let left = deadline.saturating_duration_since(instant());
        if left.is_zero() {
            return Err(timed_out());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Call<'_> {
    /// Sends the request to `HOST:PORT` and waits for the answer, at most `timeout` for all of it; looking up the
    /// name of a host is up to the system and not counted. The configuration decides which peers are trusted: see
    /// [`fingerprint_config`](crate::fingerprint_config) and [`worker_config`](crate::worker_config).
    ///
    /// # Errors
    /// See [`CallError`]. An answer that says no is an answer.
    pub fn send(
        &self,
        place: &str,
        config: &Arc<ClientConfig>,
        timeout: Duration,
    ) -> Result<Answer, CallError> {
        let deadline = instant() + timeout;
        self.check(place)?;
        let mut line = dial(place, config, deadline)?;
        self.over(&mut line, place, false).map(|(answer, _)| answer).map_err(|failed| failed.error)
    }

    /// Whether it can stand in a request.
    pub(crate) fn check(&self, place: &str) -> Result<(), CallError> {
        let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        match [self.method, self.path, place].into_iter().find(|text| !is_plain(text)) {
            Some(text) => Err(CallError::Request(text.chars().take(100).collect())),
            None => Ok(()),
        }
    }

    /// Sends the request over a connection and waits for the answer; whether the connection can carry another one.
    pub(crate) fn over(&self, stream: &mut Line, place: &str, keeps: bool) -> Result<(Answer, bool), Failed> {
        self.over_with(stream, place, keeps, (&mut &*self.body, self.body.len() as u64))
    }

    /// As [`Self::over`], with a body that is read as it is sent, and its length.
    pub(crate) fn over_with(
        &self,
        stream: &mut Line,
        place: &str,
        keeps: bool,
        body: (&mut dyn Read, u64),
    ) -> Result<(Answer, bool), Failed> {
        let mut bytes = Vec::new();
        let result = self.exchange(stream, place, keeps, body, &mut bytes);
        result.map_err(|error| Failed { error, is_unanswered: bytes.is_empty() })
    }

    fn exchange(
        &self,
        stream: &mut Line,
        place: &str,
        keeps: bool,
        (body, length): (&mut dyn Read, u64),
        bytes: &mut Vec<u8>,
    ) -> Result<(Answer, bool), CallError> {
        let sent = stream.write_all(self.head(place, keeps, length).as_bytes());
        let sent = sent.and_then(|()| io::copy(&mut body.take(length), stream)).and_then(|sent| {
            let is_whole = sent == length;
            if is_whole { stream.flush() } else { Err(ErrorKind::UnexpectedEof.into()) }
        });
        if let Err(error) = sent {
            // The other side may have sent the reason before it ended the connection.
            let is_gone = matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
            return Err(match is_gone.then(|| last_words(stream)).flatten() {
                Some(reason) => CallError::Tls { place: place.to_owned(), reason },
                None => broken(place, error),
            });
        }
        let malformed = |why| CallError::Malformed { place: place.to_owned(), why };
        let head = loop {
            if let Some(head) = Head::read(bytes).map_err(malformed)? {
                break head;
            }
            if bytes.len() > ANSWER_HEAD_BYTES {
                return Err(malformed("the lines before its body are too long"));
            }
            if take(stream, bytes).map_err(|error| broken(place, error))? == 0 {
                return Err(malformed("it ends before its body"));
            }
        };
        let mut body = bytes.split_off(head.end);
        let is_whole = |body: &[u8]| head.length.is_some_and(|length| body.len() >= length);
        let mut has_ended = false;
        while !is_whole(&body) {
            if body.len() > ANSWER_BODY_BYTES {
                return Err(malformed("its body is too long"));
            }
            if take(stream, &mut body).map_err(|error| broken(place, error))? == 0 {
                has_ended = true;
                break;
            }
        }
        match head.length {
            Some(length) if body.len() != length => {
                Err(malformed("its body has another length than it says"))
            }
            length => {
                let stays = keeps && length.is_some() && !has_ended && !head.closes;
                Ok((Answer { status: head.status, body }, stays))
            }
        }
    }

    fn head(&self, place: &str, keeps: bool, length: u64) -> Zeroizing<String> {
        let Self { method, path, token, .. } = self;
        let token = token.map_or_else(Zeroizing::default, |token| {
            Zeroizing::new(format!("Authorization: Bearer {}\r\n", *token.reveal()))
        });
        let connection = if keeps { "keep-alive" } else { "close" };
        Zeroizing::new(format!(
            "{method} {path} HTTP/1.1\r\nHost: {place}\r\nConnection: {connection}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{}\r\n",
            *token
        ))
    }
}

/// Connects to a trusted peer at a place.
pub(crate) fn dial(place: &str, config: &Arc<ClientConfig>, deadline: Instant) -> Result<Line, CallError> {
    let stream = connect(place, deadline);
    let stream = stream.map_err(|source| CallError::Unreachable { place: place.to_owned(), source })?;
    let tls = ServerName::try_from(TLS_NAME)
        .map_err(|error| rustls::Error::General(error.to_string()))
        .and_then(|name| ClientConnection::new(Arc::clone(config), name))
        .map_err(|reason| CallError::Tls { place: place.to_owned(), reason })?;
    Ok(StreamOwned::new(tls, Timed { stream, deadline }))
}

/// Returns why the other side ended the connection, if it sent a reason.
fn last_words(stream: &mut Line) -> Option<rustls::Error> {
    loop {
        match stream.conn.read_tls(&mut stream.sock) {
            Ok(0) | Err(_) => return None,
            Ok(_) => {
                if let Err(reason) = stream.conn.process_new_packets() {
                    return Some(reason);
                }
            }
        }
    }
}

fn take(stream: &mut impl Read, into: &mut Vec<u8>) -> io::Result<usize> {
    let mut buffer = [0; 8 << 10];
    loop {
        match stream.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(count) => {
                into.extend_from_slice(&buffer[..count]);
                return Ok(count);
            }
        }
    }
}

/// Returns the error of an exchange: an error of TLS is more precise than that of the socket.
pub(crate) fn broken(place: &str, error: io::Error) -> CallError {
    let place = place.to_owned();
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(other))) => {
            match other.0.downcast_ref::<ControllerError>() {
                Some(reason) => CallError::Stranger { place, reason: reason.clone() },
                None => CallError::Broken { place, source: error },
            }
        }
        Some(reason) => CallError::Tls { place, reason: reason.clone() },
        None => CallError::Broken { place, source: error },
    }
}

/// The lines before the body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    status: u16,
    /// None if the body ends with the connection.
    length: Option<usize>,
    end: usize,
    /// Nothing else comes over this connection.
    closes: bool,
}

impl Head {
    /// None as long as it is not whole.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Self>, &'static str> {
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
        let text = std::str::from_utf8(&bytes[..end]).map_err(|_| "its first lines are no text")?;
        let mut lines = text.split("\r\n");
        let mut closes = text.starts_with("HTTP/1.0");
        let mut first = lines.next().unwrap_or_default().splitn(3, ' ');
        let is_http = first.next().is_some_and(|version| version == "HTTP/1.1" || version == "HTTP/1.0");
        let status = first.next().filter(|status| status.len() == 3).and_then(|status| status.parse().ok());
        let status = status.filter(|_| is_http).ok_or("it does not begin with a number of HTTP/1.1")?;
        let mut length = None;
        for line in lines {
            let (name, value) = line.split_once(':').ok_or("one of its lines has no colon")?;
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                let number: usize = value.parse().map_err(|_| "the length of its body is no number")?;
                if number > ANSWER_BODY_BYTES {
                    return Err("its body is too long");
                }
                if length.replace(number).is_some_and(|other| other != number) {
                    return Err("its body has two lengths");
                }
            } else if name.eq_ignore_ascii_case("connection") {
                closes |= value.split(',').any(|one| one.trim().eq_ignore_ascii_case("close"));
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                return Err("it comes in chunks");
            }
        }
        Ok(Some(Self { status, length, end: end + 4, closes }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn answers_have_a_head() {
        let read = |text: &str| Head::read(text.as_bytes());
        let text = "HTTP/1.1 409 Conflict\r\ncontent-length: 12\r\nX: y\r\n\r\nbody";
        assert_eq!(
            read(text),
            Ok(Some(Head { status: 409, length: Some(12), end: text.len() - 4, closes: false }))
        );
        assert_eq!(read("HTTP/1.1 200 OK\r\n\r"), Ok(None));
        assert_eq!(
            read("HTTP/1.0 200\r\n\r\n"),
            Ok(Some(Head { status: 200, length: None, end: 16, closes: true }))
        );
        let closes = |text: &str| read(text).map(|head| head.is_some_and(|head| head.closes));
        assert_eq!(closes("HTTP/1.1 200 OK\r\nConnection: Close\r\n\r\n"), Ok(true));
        assert_eq!(closes("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\n"), Ok(false));
        let wrong = [
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 2000 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nhello\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ];
        for text in wrong {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn requests_have_one_first_line() {
        let token = AccessToken::draw().unwrap();
        let call = Call { method: "POST", path: "/join", token: Some(&token), body: b"{}" };
        let head = call.head("hub:1", false, 2);
        assert!(head.starts_with("POST /join HTTP/1.1\r\nHost: hub:1\r\n"), "{}", *head);
        assert!(
            head.ends_with(&format!(
                "Content-Length: 2\r\nAuthorization: Bearer {}\r\n\r\n",
                *token.reveal()
            ))
        );
        assert!(!format!("{call:?}").contains(&**token.reveal()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_head_or_an_error(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            text in "(HTTP/1.1 [0-9]{3} \r\n)?[a-zA-Z: 0-9\r\n-]{0,80}\r\n\r\n",
        ) {
            let _ = Head::read(&bytes);
            if let Ok(Some(head)) = Head::read(text.as_bytes()) {
                prop_assert!(head.end <= text.len());
            }
        }
    }
}
