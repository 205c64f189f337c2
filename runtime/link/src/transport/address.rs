//! Addresses of listeners.
use super::{Transport, registered};
use serde::{Deserialize, Serialize};
use std::fmt::{Display, Formatter};
use std::io;
use std::path::Path;
use std::str::FromStr;

/// The address of a listener: `tcp://127.0.0.1:4100`, `unix:///run/tidemill.sock`, `unix://@tidemill-4711`. The
/// transport of the scheme reads the rest.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    scheme: String,
    place: String,
}

/// A text that is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no address: {forms}")]
pub struct AddressError {
    text: String,
    forms: String,
}

impl Address {
    /// An address of this scheme.
    pub fn new(scheme: &str, place: impl Into<String>) -> Self {
        Self { scheme: scheme.to_owned(), place: place.into() }
    }

    /// A host and a port. Port 0 lets the system choose one where it is bound.
    pub fn tcp(place: impl Into<String>) -> Self {
        Self::new("tcp", place)
    }

    /// A socket file, for processes of one host: who may write the file may connect. With `@` in front a name that the system keeps as
    /// long as a side listens there, with no file (an abstract socket): both sides must be processes of one user, which each checks. `@`
    /// alone lets the side that listens choose the name.
    pub fn unix(path: impl AsRef<Path>) -> Self {
        Self::new("unix", path.as_ref().display().to_string())
    }

    /// Selects the transport.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Returns the part that the transport reads.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Another address of this host and the same transport, which the side that listens chooses.
    pub fn beside(&self) -> Self {
        let place =
            self.transport().map_or_else(|_| String::new(), |transport| transport.beside(&self.place));
        Self::new(&self.scheme, place)
    }

    /// The transport of its scheme.
    ///
    /// # Errors
    /// When none is registered.
    pub fn transport(&self) -> io::Result<&'static dyn Transport> {
        registered().find(|transport| transport.scheme() == self.scheme).ok_or_else(|| {
            io::Error::new(io::ErrorKind::Unsupported, format!("no transport has the scheme {}", self.scheme))
        })
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}", self.scheme, self.place)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let address = text.split_once("://").map(|(scheme, place)| Self::new(scheme, place));
        let is_known =
            |address: &Self| address.transport().is_ok_and(|transport| transport.is_place(address.place()));
        address.filter(is_known).ok_or_else(|| {
            let forms = registered().map(|known| format!("{}://{}", known.scheme(), known.form()));
            AddressError { text: text.to_owned(), forms: forms.collect::<Vec<_>>().join(" or ") }
        })
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_texts() {
        let tcp = ["tcp://127.0.0.1:4100", "tcp://[::1]:0", "tcp://hub.local:1"];
        let others = ["unix:///run/x.sock", "unix://@tidemill-1", "unix://@", "memory://", "memory://a"];
        for text in tcp.into_iter().chain(others) {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
            let json = serde_json::to_string(text).unwrap();
            assert_eq!(serde_json::from_str::<Address>(&json).unwrap().to_string(), text);
        }
        for text in
            ["", "tcp://", "tcp://host", "tcp://host:", "tcp://:1", "tcp://h:70000", "unix://", "udp://h:1"]
        {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("tcp://HOST:PORT or unix://PATH"), "{error}");
        }
        assert_eq!(Address::tcp("hub:7").beside(), Address::tcp("127.0.0.1:0"));
        assert_eq!(Address::unix("/run/x.sock").beside(), Address::unix("@"));
    }
}
