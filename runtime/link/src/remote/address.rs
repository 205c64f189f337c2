//! Where a side listens.
use serde::{Deserialize, Serialize};
use std::fmt::{Display, Formatter};
use std::path::PathBuf;
use std::str::FromStr;

/// Where a side listens: `tcp://127.0.0.1:4100`, `unix:///run/tidemill.sock`, `unix://@tidemill-4711`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Address {
    /// Host and port. Port 0 lets the system choose one where it is bound.
    Tcp(String),
    /// A socket file, for processes of one host. Who may write the file may connect.
    Unix(PathBuf),
    /// A name that the system keeps as long as somebody listens there, with no file (an abstract socket), for processes of one
    /// host. Both sides must be processes of one user, which each looks at: there is no file whose rights would say so. An empty
    /// name lets the side that listens choose one.
    Abstract(String),
}

/// A text that is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address: tcp://HOST:PORT, unix://PATH or unix://@NAME")]
pub struct AddressError(String);

impl Display for Address {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(host) => write!(f, "tcp://{host}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Abstract(name) => write!(f, "unix://@{name}"),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError(text.into());
        if let Some(name) = text.strip_prefix("unix://@") {
            return Ok(Self::Abstract(name.into()));
        }
        if let Some(path) = text.strip_prefix("unix://") {
            return if path.is_empty() { Err(error()) } else { Ok(Self::Unix(path.into())) };
        }
        let rest = text.strip_prefix("tcp://").ok_or_else(error)?;
        let (host, port) = rest.rsplit_once(':').ok_or_else(error)?;
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(error());
        }
        Ok(Self::Tcp(rest.into()))
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
        for text in tcp.into_iter().chain(["unix:///run/x.sock", "unix://@tidemill-1", "unix://@"]) {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
            let json = serde_json::to_string(text).unwrap();
            assert_eq!(serde_json::from_str::<Address>(&json).unwrap().to_string(), text);
        }
        for text in
            ["", "tcp://", "tcp://host", "tcp://host:", "tcp://:1", "tcp://h:70000", "unix://", "udp://h:1"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
