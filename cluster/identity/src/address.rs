//! The address that a worker joins by: where the controller is, and by what it is known.
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::fingerprint::{Fingerprint, FingerprintError};

const SCHEME: &str = "tidemill://";

/// The place of a cluster's controller and the fingerprint of its authority: `tidemill://HOST:PORT/FINGERPRINT`. The
/// address alone is enough to verify the controller. Where several controllers share an authority it has all of them:
/// `tidemill://HOST:PORT,HOST:PORT/FINGERPRINT`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JoinAddress {
    host: String,
    port: u16,
    /// Places of other controllers.
    more: Vec<(String, u16)>,
    fingerprint: Fingerprint,
}

/// A text that is no address to join by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinAddressError {
    /// It begins with something else.
    #[error("{found:?} does not start with tidemill://; {WRITE}")]
    Scheme {
        /// Its beginning.
        found: String,
    },
    /// The host is missing or no name.
    #[error("{found:?} is not a host: a name, an IPv4 address, or an IPv6 address in brackets; {WRITE}")]
    Host {
        /// The text in its place.
        found: String,
    },
    /// There is no port.
    #[error("there is no port after {host:?}; {WRITE}")]
    NoPort {
        /// The text before it.
        host: String,
    },
    /// The port is no number that a port may be.
    #[error("{found:?} is not a port: a number from 1 to 65535; {WRITE}")]
    Port {
        /// The text in its place.
        found: String,
    },
    /// The fingerprint is missing: without it any peer could answer.
    #[error("the fingerprint of the authority is missing after {found:?}; {WRITE}")]
    NoFingerprint {
        /// The text before it.
        found: String,
    },
    /// The fingerprint is none.
    #[error("the fingerprint in the address: {0}")]
    Fingerprint(#[from] FingerprintError),
}

const WRITE: &str = "write tidemill://HOST:PORT/FINGERPRINT, as the controller prints it when it starts";

fn short(text: &str) -> String {
    text.chars().take(100).collect()
}

fn is_host(text: &str) -> bool {
    if let Some(inner) = text.strip_prefix('[') {
        return inner.strip_suffix(']').is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok());
    }
    // Digits and dots must be an IPv4 address.
    if text.chars().all(|character| character.is_ascii_digit() || character == '.') {
        return text.parse::<Ipv4Addr>().is_ok();
    }
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

impl JoinAddress {
    /// An address of its parts. An IPv6 address may come without its brackets.
    ///
    /// # Errors
    /// [`JoinAddressError::Host`] and [`JoinAddressError::Port`] when they cannot be such.
    pub fn new(host: &str, port: u16, fingerprint: Fingerprint) -> Result<Self, JoinAddressError> {
        let is_bare = host.parse::<Ipv6Addr>().is_ok();
        let host = if is_bare { format!("[{host}]") } else { host.to_owned() };
        if !is_host(&host) {
            return Err(JoinAddressError::Host { found: short(&host) });
        }
        if port == 0 {
            return Err(JoinAddressError::Port { found: "0".to_owned() });
        }
        Ok(Self { host, port, more: Vec::new(), fingerprint })
    }

    /// Adds the places of another address after its own; places of another authority are left out.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        if other.fingerprint == self.fingerprint {
            let first = [(other.host.clone(), other.port)];
            for place in first.into_iter().chain(other.more.iter().cloned()) {
                if place != (self.host.clone(), self.port) && !self.more.contains(&place) {
                    self.more.push(place);
                }
            }
        }
        self
    }

    /// `HOST:PORT` of all controllers.
    pub fn places(&self) -> Vec<String> {
        let more = self.more.iter().map(|(host, port)| format!("{host}:{port}"));
        std::iter::once(self.host_and_port()).chain(more).collect()
    }

    /// The host: a name, an IPv4 address, or an IPv6 address in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; where there are several controllers, that of the first.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The fingerprint of the authority of the cluster.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// `HOST:PORT`, to connect to.
    pub fn host_and_port(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl fmt::Display for JoinAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.places().join(","), self.fingerprint)
    }
}

impl FromStr for JoinAddress {
    type Err = JoinAddressError;

    fn from_str(text: &str) -> Result<Self, JoinAddressError> {
        let text = text.trim();
        let rest = text
            .strip_prefix(SCHEME)
            .ok_or_else(|| JoinAddressError::Scheme { found: text.chars().take(20).collect() })?;
        let (places, fingerprint) = rest.split_once('/').unwrap_or((rest, ""));
        let mut all: Vec<(&str, u16)> = Vec::new();
        for place in places.split(',') {
            all.push(place_of(place)?);
        }
        let fingerprint = fingerprint.strip_suffix('/').unwrap_or(fingerprint);
        if fingerprint.is_empty() {
            return Err(JoinAddressError::NoFingerprint { found: format!("{SCHEME}{}", short(places)) });
        }
        let fingerprint = fingerprint.parse()?;
        let mut address = None::<Self>;
        for (host, port) in all {
            let one = Self::new(host, port, fingerprint)?;
            address = Some(match address {
                Some(address) => address.and(&one),
                None => one,
            });
        }
        address.ok_or(JoinAddressError::Host { found: String::new() })
    }
}

/// Host and port.
fn place_of(place: &str) -> Result<(&str, u16), JoinAddressError> {
    let after_host = if place.starts_with('[') { place.find(']').map_or(0, |at| at + 1) } else { 0 };
    let colon = place[after_host..].rfind(':').map(|at| at + after_host);
    let Some(colon) = colon else {
        if place.is_empty() {
            return Err(JoinAddressError::Host { found: String::new() });
        }
        return Err(JoinAddressError::NoPort { host: short(place) });
    };
    let (host, port) = (&place[..colon], &place[colon + 1..]);
    let wrong_port = || JoinAddressError::Port { found: short(port) };
    let all_digits = port.chars().all(|character| character.is_ascii_digit());
    let number = if all_digits { port.parse().ok() } else { None };
    let number = number.ok_or_else(wrong_port)?;
    if !is_host(host) {
        return Err(JoinAddressError::Host { found: short(host) });
    }
    if number == 0 {
        return Err(wrong_port());
    }
    Ok((host, number))
}

impl TryFrom<String> for JoinAddress {
    type Error = JoinAddressError;

    fn try_from(text: String) -> Result<Self, JoinAddressError> {
        text.parse()
    }
}

impl From<JoinAddress> for String {
    fn from(address: JoinAddress) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FINGERPRINT: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn addresses_are_texts() {
        let all = ["hub.example:4100", "10.0.0.7:1", "[fd00::7]:65535", "Hub_1:80"];
        let several = format!("tidemill://{}/{FINGERPRINT}", all.join(","));
        let address: JoinAddress = several.parse().unwrap();
        assert_eq!(
            (address.places(), address.to_string()),
            (all.map(str::to_owned).to_vec(), several.clone())
        );
        assert_eq!((address.host(), address.port()), ("hub.example", 4100));
        assert_eq!(address.clone().and(&several.parse().unwrap()), address, "each once");
        for place in all {
            let text = format!("tidemill://{place}/{FINGERPRINT}");
            let address: JoinAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(address.host_and_port(), place);
            assert_eq!(format!(" {text}/\n").parse(), Ok(address));
        }
        let bare = JoinAddress::new("fd00::7", 80, FINGERPRINT.parse().unwrap()).unwrap();
        assert_eq!(bare.host(), "[fd00::7]");
    }

    #[test]
    fn what_is_wrong_is_told_with_what_to_write() {
        let cases = [
            ("https://hub:1/x", "\"https://hub:1/x\" does not start with tidemill://"),
            ("tidemill://", "\"\" is not a host"),
            ("tidemill://:80/x", "\"\" is not a host"),
            ("tidemill://hub/x", "there is no port after \"hub\""),
            ("tidemill://[::1]/x", "there is no port after \"[::1]\""),
            ("tidemill://hub:/x", "\"\" is not a port"),
            ("tidemill://hub:70000/x", "\"70000\" is not a port"),
            ("tidemill://hub:+1/x", "\"+1\" is not a port"),
            ("tidemill://hub:0/x", "\"0\" is not a port"),
            ("tidemill://fd00::7:80/x", "\"fd00::7\" is not a host"),
            ("tidemill://10.0.0.700:80/x", "\"10.0.0.700\" is not a host"),
            ("tidemill://me@hub:80/x", "\"me@hub\" is not a host"),
            ("tidemill://hub:80,/x", "\"\" is not a host"),
            ("tidemill://hub:80,hub/x", "there is no port after \"hub\""),
            ("tidemill://hub:80", "the fingerprint of the authority is missing after \"tidemill://hub:80\""),
            ("tidemill://hub:80/", "the fingerprint of the authority is missing"),
        ];
        for (text, word) in cases {
            let error = text.parse::<JoinAddress>().unwrap_err().to_string();
            assert!(
                error.starts_with(word) && error.contains("write tidemill://HOST:PORT"),
                "{text}: {error}"
            );
        }
        let error = format!("tidemill://hub:80/{}", &FINGERPRINT[..63]).parse::<JoinAddress>().unwrap_err();
        assert_eq!(error, JoinAddressError::Fingerprint(FingerprintError::Length { found: 63 }));
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_an_error(text in ".{0,200}", place in "[a-z0-9.:\\[\\]/-]{0,40}") {
            for text in [text.clone(), format!("{SCHEME}{text}"), format!("{SCHEME}{place}/{FINGERPRINT}")] {
                if let Ok(address) = text.parse::<JoinAddress>() {
                    prop_assert_eq!(address.to_string().parse(), Ok(address));
                }
            }
        }

        #[test]
        fn addresses_come_back(host in "[a-z][a-z0-9]{0,20}(\\.[a-z0-9]{1,20}){0,3}", port in 1u16.., bytes: [u8; 32]) {
            let address = JoinAddress::new(&host, port, Fingerprint(bytes)).unwrap();
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }
    }
}
