//! Merges lines from TCP connections into one stream of whole lines, for a journal or a reader of lines.
//!
//! One thread accepts connections, one more per connection reads it. Whole lines go into a pipe; its other end is read. A
//! full pipe holds up the connections, and so the senders. A partial line of a broken connection is left out.
use super::received::LineStream;
use crate::api::Unread;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::fs::File;
use std::io::{self, ErrorKind, PipeWriter, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Connections read at one time; others wait until one of them ends.
const MOST: usize = 64;
/// Bytes per read.
const CHUNK: usize = 64 << 10;
/// Time to wait for an address that an earlier process may still hold.
const TAKEN: Duration = Duration::from_secs(10);
/// Interval of these attempts.
const LOOK: Duration = Duration::from_millis(100);
/// Timeout of connecting.
const DIALLING: Duration = Duration::from_secs(5);
/// Shortest and longest pause between attempts to connect.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// Silence after which a connection is probed.
const SILENCE: Duration = Duration::from_secs(30);

/// The side that makes the connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Side {
    /// Others connect to this address.
    Listen(String),
    /// This side connects to this address, repeatedly.
    Connect(String),
}

/// Source of lines.
#[derive(Debug, Clone)]
pub(super) struct Connections {
    pub(super) side: Side,
    /// Longest line in bytes; a longer one is cut just beyond it, so that the reader notices.
    pub(super) limit: usize,
    /// Number of connections after which the lines end; `None`: never.
    pub(super) count: Option<u64>,
}

impl LineStream for Connections {
    fn in_words(&self) -> String {
        match &self.side {
            Side::Listen(address) => format!("connections to `{address}`"),
            Side::Connect(address) => format!("a connection to `{address}`"),
        }
    }

    /// Starts reading lines; returns the pipe to read them from.
    fn open(&self, _is_journalled: bool) -> io::Result<File> {
        let (reader, writer) = io::pipe()?;
        let lines = Arc::new(Lines {
            pipe: Mutex::new(writer),
            limit: self.limit,
            open: Mutex::default(),
            ended: Condvar::new(),
        });
        let count = self.count.unwrap_or(u64::MAX);
        match &self.side {
            Side::Listen(address) => {
                let listener = listen(address)?;
                let address = address.clone();
                spawn("tm-tcp-listen", move || lines.listen(&listener, &address, count))?;
            }
            Side::Connect(address) => {
                let address = address.clone();
                spawn("tm-tcp", move || lines.connect(&address, count))?;
            }
        }
        Ok(File::from(OwnedFd::from(reader)))
    }

    // Their senders got an acknowledgement of the system.
    fn unread(&self) -> Unread {
        Unread::IsLost
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Listens; an earlier process that holds the address gets time to end.
fn listen(address: &str) -> io::Result<TcpListener> {
    for _ in 0..TAKEN.as_millis() / LOOK.as_millis() {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => std::thread::sleep(LOOK),
            other => return other,
        }
    }
    TcpListener::bind(address)
}

/// Reads the lines of all connections.
struct Lines {
    pipe: Mutex<PipeWriter>,
    limit: usize,
    /// Number of open connections.
    open: Mutex<usize>,
    ended: Condvar,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lines {
    /// Whether the reader of the lines has gone.
    fn are_unread(&self) -> bool {
        // The write end of a pipe signals an error when the read end is closed, whatever is polled for.
        let pipe = lock(&self.pipe);
        let mut looked = [PollFd::new(&*pipe, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut looked, Some(&now)).is_ok() && looked[0].revents().intersects(PollFlags::ERR)
    }

    /// Accepts `count` connections.
    fn listen(self: &Arc<Self>, listener: &TcpListener, address: &str, count: u64) {
        let mut taken = 0;
        while taken < count {
            {
                let open = lock(&self.open);
                drop(self.ended.wait_while(open, |open| *open >= MOST));
            }
            match self.accept(listener) {
                Ok(Some((stream, peer))) => {
                    taken += 1;
                    *lock(&self.open) += 1;
                    let lines = Arc::clone(self);
                    let read = move || {
                        tell_end(&peer.to_string(), lines.take(&stream));
                        *lock(&lines.open) -= 1;
                        lines.ended.notify_one();
                    };
                    if let Err(error) = spawn("tm-tcp", read) {
                        *lock(&self.open) -= 1;
                        tracing::warn!(
                            "a connection of {peer} is rejected: cannot start a thread for it: {error}"
                        );
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!("cannot accept connections at {address}: {error}");
                    std::thread::sleep(PAUSES[1]);
                }
            }
        }
    }

    /// Accepts the next connection; `None` if the reader has gone.
    fn accept(&self, listener: &TcpListener) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        let pause = Timespec { tv_sec: 1, tv_nsec: 0 };
        loop {
            match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&pause)) {
                Ok(0) if self.are_unread() => return Ok(None),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return listener.accept().map(Some),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Connects successfully `count` times.
    fn connect(self: &Arc<Self>, address: &str, count: u64) {
        let (mut taken, mut pause, mut is_told) = (0, PAUSES[0], false);
        while taken < count && !self.are_unread() {
            match dial(address) {
                Ok(stream) => {
                    tracing::info!("connected to {address}");
                    (taken, pause, is_told) = (taken + 1, PAUSES[0], false);
                    tell_end(address, self.take(&stream));
                }
                Err(error) if !is_told => {
                    tracing::warn!("cannot reach {address}; trying again: {error}");
                    is_told = true;
                }
                Err(_) => {}
            }
            if taken < count {
                std::thread::sleep(pause.mul_f64(between_half_and_one(taken)));
                pause = (2 * pause).min(PAUSES[1]);
            }
        }
    }

    /// Reads the lines of a connection to its end.
    fn take(&self, stream: &TcpStream) -> io::Result<()> {
        // A peer that vanished silently would hold a place for ever.
        let kept = sockopt::set_socket_keepalive(stream, true)
            .and_then(|()| sockopt::set_tcp_keepidle(stream, SILENCE))
            .and_then(|()| sockopt::set_tcp_keepintvl(stream, SILENCE / 3));
        if let Err(error) = kept {
            tracing::debug!("cannot probe silent connections: {error}");
        }
        self.take_all(stream)
    }

    fn take_all(&self, mut from: impl Read) -> io::Result<()> {
        let (mut buffer, mut filled, mut is_skipping) = (vec![0; CHUNK], 0, false);
        loop {
            if filled == buffer.len() {
                buffer.resize(filled + CHUNK, 0);
            }
            let read = match from.read(&mut buffer[filled..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                other => other?,
            };
            if read == 0 {
                // The end of a connection ends a line too.
                return match filled > 0 && !is_skipping {
                    true => self.write(&[&buffer[..filled], b"\n"].concat()),
                    false => Ok(()),
                };
            }
            let new = memchr::memchr(b'\n', &buffer[filled..filled + read]);
            filled += read;
            if is_skipping {
                let Some(end) = new else {
                    filled = 0;
                    continue;
                };
                // Everything before it was left out already.
                buffer.copy_within(end + 1..filled, 0);
                (filled, is_skipping) = (filled - end - 1, false);
            }
            if let Some(last) = memchr::memrchr(b'\n', &buffer[..filled]) {
                self.write(&buffer[..=last])?;
                buffer.copy_within(last + 1..filled, 0);
                filled -= last + 1;
            }
            if filled > self.limit {
                self.write(&[&buffer[..=self.limit], b"\n"].concat())?;
                (filled, is_skipping) = (0, true);
            }
        }
    }

    /// Writes whole lines.
    fn write(&self, lines: &[u8]) -> io::Result<()> {
        lock(&self.pipe).write_all(lines)
    }
}

fn tell_end(of: &str, ended: io::Result<()>) {
    match ended {
        Ok(()) => tracing::info!("the connection of {of} has ended"),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => {
            tracing::warn!("the connection of {of} is lost: {error}; an incomplete last line is left out")
        }
    }
}

fn dial(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, DIALLING) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Spreads reconnects: clients that lost the same server do not return at once.
fn between_half_and_one(number: u64) -> f64 {
    use std::hash::{BuildHasher, Hasher};
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u64(number ^ CALLS.fetch_add(1, Ordering::Relaxed));
    0.5 + (hasher.finish() >> 11) as f64 / (1u64 << 54) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(limit: usize) -> (Lines, io::PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        (Lines { pipe: Mutex::new(writer), limit, open: Mutex::default(), ended: Condvar::new() }, reader)
    }

    /// The lines that a reader would get if all of `text` came in one piece.
    fn expected(text: &[u8], limit: usize) -> Vec<u8> {
        let mut all = Vec::new();
        let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
        if lines.last().is_some_and(|last| last.is_empty()) {
            lines.pop();
        }
        for line in lines {
            all.extend_from_slice(&line[..line.len().min(limit + 1)]);
            all.push(b'\n');
        }
        all
    }

    /// Returns a text in pieces.
    struct Pieces<'a>(&'a [u8], Vec<usize>);

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let wanted = self.1.pop().unwrap_or(usize::MAX).max(1);
            let bytes = wanted.min(buffer.len()).min(self.0.len());
            buffer[..bytes].copy_from_slice(&self.0[..bytes]);
            self.0 = &self.0[bytes..];
            Ok(bytes)
        }
    }

    proptest! {
        #[test]
        fn lines_come_whole_however_they_are_cut(
            text in "[ab\n]{0,200}",
            pieces in prop::collection::vec(0usize..9, 0..100),
        ) {
            let (lines, mut reader) = lines(5);
            lines.take_all(Pieces(text.as_bytes(), pieces)).unwrap();
            drop(lines);
            let mut found = Vec::new();
            reader.read_to_end(&mut found).unwrap();
            // A long line that arrives with its end is not cut here: its reader does that.
            let cut = expected(&found, 5);
            prop_assert_eq!(cut, expected(text.as_bytes(), 5));
        }
    }

    #[test]
    fn lines_of_many_connections_come_whole() {
        let probe = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = probe.local_addr().unwrap().to_string();
        drop(probe);
        let connections = Connections { side: Side::Listen(address.clone()), limit: 1000, count: Some(4) };
        let mut file = connections.open(false).unwrap();
        let senders: Vec<_> = (0..4)
            .map(|sender| {
                let address = address.clone();
                std::thread::spawn(move || {
                    let mut stream = TcpStream::connect(address).unwrap();
                    for number in 0..500 {
                        let line = format!("{sender} {number} {}\n", "x".repeat(number % 90));
                        let (one, other) = line.as_bytes().split_at(number % line.len());
                        stream.write_all(one).unwrap();
                        stream.write_all(other).unwrap();
                    }
                })
            })
            .collect();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        let mut next = [0; 4];
        for line in text.lines() {
            let mut words = line.split(' ');
            let mut number = || words.next().unwrap().parse::<usize>().unwrap();
            let (sender, number) = (number(), number());
            assert_eq!((number, words.next().unwrap().len()), (next[sender], number % 90), "{line}");
            next[sender] += 1;
        }
        assert_eq!(next, [500; 4]);
    }

    #[test]
    fn a_server_that_comes_back_is_connected_to_again() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        let connections = Connections { side: Side::Connect(address), limit: 1000, count: Some(2) };
        let mut file = connections.open(false).unwrap();
        for text in ["one\ntw", "three\n"] {
            let (mut stream, _) = server.accept().unwrap();
            stream.write_all(text.as_bytes()).unwrap();
        }
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\ntw\nthree\n");
    }

    /// A process whose reader has gone does not keep its address.
    #[test]
    fn nothing_is_taken_when_nobody_reads() {
        let (lines, reader) = lines(10);
        assert!(!lines.are_unread());
        drop(reader);
        assert!(lines.are_unread());
    }
}
