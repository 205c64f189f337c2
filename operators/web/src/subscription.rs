//! A websocket as a stream of lines: one thread keeps the connection and writes messages into a pipe.
use crate::endpoint::Endpoint;
use crate::hidden::{Headers, redacted};
use crate::websocket::LINE_LIMIT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::pki_types::ServerName;
use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind, PipeWriter, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidemill_operators::api::Unread;
use tidemill_operators::feeds::{FeedOrder, FeedState, FeedStatus, Feeds};
use tidemill_operators::sources::received::LineStream;
use tungstenite::client::IntoClientRequest;
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Bytes, HandshakeError, Message, WebSocket};

/// Interval at which a thread that waits looks whether it is still needed.
const LOOK: Duration = Duration::from_millis(200);
/// Timeout of connecting and of the handshake.
const DIALLING: Duration = Duration::from_secs(10);
/// Silence after which the server is asked whether it is there; after twice as long the connection is given up.
const SILENCE: Duration = Duration::from_secs(15);
/// Shortest and longest pause between attempts to connect.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

#[allow(clippy::disallowed_methods, reason = "servers follow no simulated time")]
fn monotonic() -> Instant {
    Instant::now()
}

/// Settings of a subscription.
pub(crate) struct Settings {
    /// The source.
    pub(crate) source: String,
    /// None: checked, and not opened.
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) headers: Headers,
    /// Texts to send first.
    pub(crate) send: Vec<String>,
    /// Longest line; a longer one is cut just beyond it, so that the reader notices.
    pub(crate) limit: usize,
}

/// See the module.
pub(crate) struct Subscription {
    settings: Settings,
    shared: Mutex<Shared>,
    resumed: Condvar,
}

#[derive(Default)]
struct Shared {
    state: Option<(FeedState, Instant)>,
    detail: String,
    connects: u64,
    received: u64,
    /// Somebody wants another attempt.
    is_resumed: bool,
}

/// Why a connection ended.
enum Ended {
    /// Nobody reads its messages any more.
    Unread,
    /// Another attempt can help.
    Passing(String),
    /// It cannot.
    Lasting(String),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Passing(error.to_string())
    }
}

trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

type Socket = WebSocket<Box<dyn Stream>>;

impl Subscription {
    pub(crate) fn of(settings: Settings) -> Arc<Handle> {
        Arc::new(Handle(Arc::new(Self { settings, shared: Mutex::default(), resumed: Condvar::new() })))
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self) -> &str {
        self.settings.endpoint.as_ref().map_or("a hidden address", |endpoint| &endpoint.shown)
    }

    fn tell(&self, state: FeedState, detail: &str) {
        let mut shared = self.lock();
        let since =
            shared.state.filter(|(known, _)| *known == state).map_or_else(monotonic, |(_, since)| since);
        shared.state = Some((state, since));
        detail.clone_into(&mut shared.detail);
    }

    /// Keeps a connection until the reader has gone.
    fn keep(&self, endpoint: &Endpoint, mut pipe: PipeWriter) {
        let (mut pause, mut is_told) = (PAUSES[0], false);
        while is_read(&pipe) {
            let before = self.lock().received;
            let Err(ended) = self.connect(endpoint).and_then(|socket| self.take(socket, &mut pipe)) else {
                return;
            };
            if self.lock().received > before {
                (pause, is_told) = (PAUSES[0], false);
            }
            match ended {
                Ended::Unread => return,
                Ended::Passing(cause) => {
                    self.tell(FeedState::Connecting, &cause);
                    if !is_told {
                        tracing::warn!(
                            "source `{}`: no connection to {}; trying again: {cause}",
                            self.settings.source,
                            endpoint.shown
                        );
                        is_told = true;
                    }
                    std::thread::sleep(spread(pause));
                    pause = (2 * pause).min(PAUSES[1]);
                }
                Ended::Lasting(cause) => {
                    tracing::warn!(
                        "source `{}`: {cause}; `tidemill source resume` tries again",
                        self.settings.source
                    );
                    self.tell(FeedState::Failed, &cause);
                    if !self.is_resumed(&pipe) {
                        return;
                    }
                    self.tell(FeedState::Connecting, "");
                }
            }
        }
    }

    /// Waits until somebody wants another attempt; false: the reader has gone.
    fn is_resumed(&self, pipe: &PipeWriter) -> bool {
        let mut shared = self.lock();
        while !std::mem::take(&mut shared.is_resumed) {
            if !is_read(pipe) {
                return false;
            }
            shared = self.resumed.wait_timeout(shared, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn connect(&self, endpoint: &Endpoint) -> Result<Socket, Ended> {
        let stream = dial(&endpoint.address())?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(DIALLING))?;
        stream.set_write_timeout(Some(DIALLING))?;
        let control = stream.try_clone()?;
        let stream: Box<dyn Stream> = match &endpoint.tls {
            None => Box::new(stream),
            Some(config) => {
                let passing = |error: &dyn std::fmt::Display| Ended::Passing(format!("TLS: {error}"));
                let name = ServerName::try_from(endpoint.name()).map_err(|error| passing(&error))?;
                let session = rustls::ClientConnection::new(Arc::clone(config), name)
                    .map_err(|error| passing(&error))?;
                Box::new(rustls::StreamOwned::new(session, stream))
            }
        };
        let malformed =
            |error: tungstenite::Error| Ended::Lasting(format!("no request can be made: {error}"));
        let mut request = endpoint.url.as_str().into_client_request().map_err(malformed)?;
        for (name, value) in &self.settings.headers.all {
            request.headers_mut().insert(name.clone(), value.clone());
        }
        let config = WebSocketConfig::default()
            .max_message_size(Some(LINE_LIMIT as usize + 1024))
            .max_frame_size(Some(LINE_LIMIT as usize + 1024));
        let shaken = tungstenite::client::client_with_config(request, stream, Some(config));
        let (mut socket, _) = shaken.map_err(|error| match error {
            HandshakeError::Interrupted(_) => Ended::Passing("the handshake took too long".into()),
            HandshakeError::Failure(tungstenite::Error::Http(answer)) => {
                let status = answer.status();
                match status.as_u16() {
                    401 | 403 | 404 | 410 => Ended::Lasting(format!("the server answers {status}")),
                    _ => Ended::Passing(format!("the server answers {status}")),
                }
            }
            HandshakeError::Failure(error) => Ended::Passing(self.cause(&error)),
        })?;
        for text in &self.settings.send {
            socket.send(Message::text(text.as_str())).map_err(|error| Ended::Passing(self.cause(&error)))?;
        }
        control.set_read_timeout(Some(LOOK))?;
        self.lock().connects += 1;
        self.tell(FeedState::Live, "");
        tracing::info!("source `{}`: connected to {}", self.settings.source, endpoint.shown);
        Ok(socket)
    }

    /// Writes the messages of a connection into the pipe, to its end.
    fn take(&self, mut socket: Socket, pipe: &mut PipeWriter) -> Result<(), Ended> {
        let (mut line, mut heard, mut is_asked) = (Vec::new(), monotonic(), false);
        loop {
            let message = match socket.read() {
                Ok(message) => message,
                Err(tungstenite::Error::Io(error))
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    if !is_read(pipe) {
                        // The server is told; whether it hears it does not matter.
                        let _ = socket.close(None).and_then(|()| socket.flush());
                        return Err(Ended::Unread);
                    }
                    let silence = heard.elapsed();
                    if silence > 2 * SILENCE {
                        return Err(Ended::Passing(format!("nothing came for {} s", silence.as_secs())));
                    }
                    if silence > SILENCE && !is_asked {
                        let asked = socket.send(Message::Ping(Bytes::new()));
                        asked.map_err(|error| Ended::Passing(self.cause(&error)))?;
                        is_asked = true;
                    }
                    continue;
                }
                Err(error) => return Err(Ended::Passing(self.cause(&error))),
            };
            (heard, is_asked) = (monotonic(), false);
            let payload = match &message {
                Message::Text(text) => text.as_bytes(),
                Message::Binary(bytes) => &bytes[..],
                _ => continue,
            };
            write_line(payload, self.settings.limit, &mut line);
            match pipe.write_all(&line) {
                Ok(()) => self.lock().received += 1,
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Err(Ended::Unread),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// An error in words, without secrets.
    fn cause(&self, error: &tungstenite::Error) -> String {
        let text = match error {
            tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed => {
                "the server has closed the connection".to_owned()
            }
            tungstenite::Error::Protocol(error) => error.to_string(),
            tungstenite::Error::Io(error) => error.to_string(),
            other => other.to_string(),
        };
        let of_address = self.settings.endpoint.iter().flat_map(|endpoint| &endpoint.secrets);
        let secrets: Vec<String> = self.settings.headers.secrets.iter().chain(of_address).cloned().collect();
        redacted(text, &secrets)
    }
}

/// Makes a line of a message. Line breaks become carriage returns: within JSON both are blanks between values and are invalid
/// within texts.
fn write_line(payload: &[u8], limit: usize, line: &mut Vec<u8>) {
    line.clear();
    match payload.trim_ascii() {
        // Something else than an object, which the reader refuses. An empty line would be none.
        [] => line.extend(b"\"\""),
        payload => line.extend(&payload[..payload.len().min(limit + 1)]),
    }
    line.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b'\r');
    line.push(b'\n');
}

fn dial(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, DIALLING) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Whether the other end of a pipe is open.
fn is_read(pipe: &PipeWriter) -> bool {
    // The write end of a pipe signals an error when the read end is closed, whatever is polled for.
    let mut looked = [PollFd::new(pipe, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    !(poll(&mut looked, Some(&now)).is_ok() && looked[0].revents().intersects(PollFlags::ERR))
}

/// Half of a pause to all of it: clients that lost the same server do not return at once.
fn spread(pause: Duration) -> Duration {
    let random = std::hash::RandomState::new().build_hasher().finish();
    pause.mul_f64(0.5 + (random >> 11) as f64 / (1u64 << 54) as f64)
}

/// A subscription that its thread shares.
pub(crate) struct Handle(Arc<Subscription>);

impl LineStream for Handle {
    fn in_words(&self) -> String {
        format!("messages of `{}` for `{}`", self.0.shown(), self.0.settings.source)
    }

    fn open(&self, _is_journalled: bool) -> io::Result<File> {
        let endpoint = self.0.settings.endpoint.clone();
        let endpoint = endpoint.ok_or_else(|| io::Error::other("it was checked, but not opened here"))?;
        let (reader, writer) = io::pipe()?;
        self.0.tell(FeedState::Connecting, "");
        let subscription = Arc::clone(&self.0);
        std::thread::Builder::new()
            .name("tm-websocket".into())
            .spawn(move || subscription.keep(&endpoint, writer))?;
        Ok(File::from(OwnedFd::from(reader)))
    }

    fn unread(&self) -> Unread {
        Unread::IsLost
    }
}

impl Feeds for Handle {
    fn status(&self) -> Vec<FeedStatus> {
        let shared = self.0.lock();
        let (state, seconds) = match shared.state {
            Some((state, since)) => (state, since.elapsed().as_secs_f64()),
            None => (FeedState::Connecting, 0.0),
        };
        vec![FeedStatus {
            feed: self.0.settings.source.clone(),
            state,
            seconds,
            detail: shared.detail.clone(),
            connects: shared.connects,
            received: shared.received,
            emitted: shared.received,
            drops: BTreeMap::new(),
            waiting: 0,
        }]
    }

    fn order(&self, order: &FeedOrder) -> Result<(), String> {
        let own = &self.0.settings.source;
        match order {
            FeedOrder::Resume { feed } if feed == own => {
                let mut shared = self.0.lock();
                if shared.state.is_some_and(|(state, _)| state == FeedState::Failed) {
                    shared.is_resumed = true;
                    self.0.resumed.notify_all();
                }
                Ok(())
            }
            FeedOrder::Resume { feed } => Err(format!("there is no feed `{feed}`: the only one is `{own}`")),
            _ => {
                Err("a websocket can only be resumed after it has failed: its address is in the workflow"
                    .into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line() {
        let mut line = Vec::new();
        let mut of = |payload: &str, limit| {
            write_line(payload.as_bytes(), limit, &mut line);
            String::from_utf8(line.clone()).unwrap()
        };
        assert_eq!(of("{\"a\":\n 1}\n", 99), "{\"a\":\r 1}\n");
        assert_eq!(of(" \n", 99), "\"\"\n");
        assert_eq!(of("0123456789", 5), "012345\n");
    }
}
