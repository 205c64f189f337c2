//! `network://NAME@HOST:PORT`: TCP between the programs of one network. Both sides begin with the length of the network's name and the
//! name, and a side takes nothing from one that begins otherwise: a program of another network, a browser, a port scanner.
//!
//! It proves nothing about the other side. That is the part of the certificates, which work over this transport as over all others.
//!
//! ```
//! use tidemill_extension::network::Network;
//! use tidemill_link::transport::{Address, register};
//! assert!(register(Network));
//! let address: Address = "network://tests@127.0.0.1:4100".parse().unwrap();
//! assert_eq!(address.beside().to_string(), "network://tests@127.0.0.1:0");
//! ```
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use tidemill_link::transport::{Acceptor, Address, Line, Stream, Transport};

/// The transport; see the module.
pub struct Network;

/// Returns the name of the network, and the transport below with its place.
fn parts(place: &str) -> io::Result<(&str, &'static dyn Transport, &str)> {
    let parts = place.split_once('@').filter(|(name, _)| (1..256).contains(&name.len()));
    let (name, at) = parts.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it names no network"))?;
    Ok((name, Address::tcp(at).transport()?, at))
}

impl Transport for Network {
    fn scheme(&self) -> &'static str {
        "network"
    }

    fn form(&self) -> &'static str {
        "NAME@HOST:PORT"
    }

    fn is_place(&self, place: &str) -> bool {
        parts(place).is_ok_and(|(_, tcp, at)| tcp.is_place(at))
    }

    fn anywhere(&self) -> &'static str {
        "local@127.0.0.1:0"
    }

    fn beside(&self, place: &str) -> String {
        format!("{}@127.0.0.1:0", parts(place).map_or("local", |(name, ..)| name))
    }

    fn listen(&self, place: &str) -> io::Result<Box<dyn Acceptor>> {
        let (name, tcp, at) = parts(place)?;
        Ok(Box::new(Listening { name: name.to_owned(), inner: tcp.listen(at)? }))
    }

    fn dial(&self, place: &str, timeout: Duration) -> io::Result<Box<dyn Stream>> {
        let (name, tcp, at) = parts(place)?;
        Ok(Box::new(Named::new(name, tcp.dial(at, timeout)?)))
    }
}

struct Listening {
    name: String,
    inner: Box<dyn Acceptor>,
}

impl Acceptor for Listening {
    fn place(&self) -> String {
        format!("{}@{}", self.name, self.inner.place())
    }

    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(Named::new(&self.name, self.inner.accept()?)))
    }

    fn readable(&self) -> BorrowedFd<'_> {
        self.inner.readable()
    }
}

/// A connection, and how much of the beginning was sent and read.
struct Named {
    inner: Box<dyn Stream>,
    beginning: Vec<u8>,
    sent: usize,
    read: usize,
}

impl Named {
    fn new(name: &str, inner: Box<dyn Stream>) -> Self {
        // The length comes first, so that no name is the beginning of another one.
        let beginning = [&[name.len() as u8][..], name.as_bytes()].concat();
        Self { inner, beginning, sent: 0, read: 0 }
    }
}

impl Stream for Named {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.read < self.beginning.len() {
            let (expected, mut space) = (&self.beginning[self.read..], [0; 256]);
            match self.inner.read(&mut space[..expected.len()])? {
                0 => return Ok(0),
                count if expected.starts_with(&space[..count]) => self.read += count,
                _ => return Err(io::Error::new(ErrorKind::PermissionDenied, "it is of another network")),
            }
        }
        self.inner.read(into)
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        while self.sent < self.beginning.len() {
            self.sent += self.inner.write(&[IoSlice::new(&self.beginning[self.sent..])])?;
        }
        self.inner.write(parts)
    }

    fn line(&self) -> Arc<dyn Line> {
        self.inner.line()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries again until it need not wait.
    fn wait<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let done = |result: &io::Result<T>| !matches!(result, Err(e) if e.kind() == ErrorKind::WouldBlock);
        std::iter::repeat_with(&mut act).find(done).unwrap()
    }

    #[test]
    fn only_sides_of_one_network_connect() {
        let listening = Network.listen("ab@127.0.0.1:0").unwrap();
        let dial = |place: &str| Network.dial(place, Duration::from_secs(60)).unwrap();
        for (name, is_read) in [("ab", true), ("a", false), ("abc", false)] {
            let mut dialled = dial(&listening.place().replacen("ab", name, 1));
            let mut accepted = wait(|| listening.accept()).unwrap();
            assert_eq!(wait(|| dialled.write(&[IoSlice::new(b"x")])).unwrap(), 1);
            assert_eq!(wait(|| accepted.read(&mut [0; 8])).ok(), is_read.then_some(1), "{name}");
        }
        assert!(!Network.is_place("127.0.0.1:0") && !Network.is_place("@127.0.0.1:0"));
    }
}
