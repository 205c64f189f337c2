//! Addresses of racks.
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Addresses with the same first bits, such as `10.1.2.0/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

/// A text that is no prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no prefix of addresses such as 10.1.2.0/24")]
pub struct PrefixError(String);

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let wrong = || PrefixError(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits > most { Err(wrong()) } else { Ok(Self { address, bits }) }
    }
}

impl TryFrom<String> for Prefix {
    type Error = PrefixError;

    fn try_from(text: String) -> Result<Self, PrefixError> {
        text.parse()
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.bits)
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.to_string()
    }
}

impl Prefix {
    /// Whether an address has it. An IPv4 address within an IPv6 one counts as IPv4.
    pub fn holds(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(address)) => {
                let differs = u32::from(ours) ^ u32::from(address);
                differs.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(ours), IpAddr::V6(address)) => {
                let differs = u128::from(ours) ^ u128::from(address);
                differs.leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }
}

/// Whether the other end of a flow is in the rack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// It is.
    Inside,
    /// It is not.
    Outside,
}

/// The addresses of a rack, and of others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Racks {
    /// Prefixes of this rack.
    pub own: Vec<Prefix>,
    /// Prefixes beyond it that count; none: all. Prefixes of this rack may lie within them.
    #[serde(default)]
    pub others: Vec<Prefix>,
}

impl Racks {
    /// Returns where the other end of a flow is; none: it does not count, such as what a host sends to itself.
    pub fn place(&self, local: IpAddr, peer: IpAddr) -> Option<Place> {
        let holds = |prefixes: &[Prefix]| prefixes.iter().any(|prefix| prefix.holds(peer));
        if local == peer {
            return None;
        }
        if holds(&self.own) {
            return Some(Place::Inside);
        }
        let counts =
            if self.others.is_empty() { !peer.to_canonical().is_loopback() } else { holds(&self.others) };
        counts.then_some(Place::Outside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("it is an address")
    }

    fn prefix(text: &str) -> Prefix {
        text.parse().expect("it is a prefix")
    }

    #[test]
    fn addresses_are_matched_by_bits() {
        assert!(prefix("10.1.2.128/25").holds(address("10.1.2.200")));
        assert!(!prefix("10.1.2.128/25").holds(address("10.1.2.100")));
        assert!(prefix("10.1.2.3").holds(address("::ffff:10.1.2.3")));
        assert!(prefix("0.0.0.0/0").holds(address("1.2.3.4")));
        assert!(!prefix("0.0.0.0/0").holds(address("fd00::1")));
        assert!(prefix("fd00:7::/32").holds(address("fd00:7:1::9")));
        assert!(!prefix("fd00:7::/32").holds(address("fd00:8::9")));
        for text in ["", "10.1.2.0/33", "::/129", "10.1.2/24", "10.1.2.0/x", "rack"] {
            assert_eq!(text.parse::<Prefix>(), Err(PrefixError(text.to_owned())));
        }
        assert_eq!(prefix("fd00::/8").to_string(), "fd00::/8");
    }

    #[test]
    fn a_rack_knows_its_own() {
        let racks = Racks { own: vec![prefix("10.1.2.0/24")], others: Vec::new() };
        let place = |peer| racks.place(address("10.1.2.1"), address(peer));
        assert_eq!(place("10.1.2.9"), Some(Place::Inside));
        assert_eq!(place("10.1.3.9"), Some(Place::Outside));
        assert_eq!(place("10.1.2.1"), None, "to itself");
        assert_eq!(place("127.0.0.1"), None);
        let named = Racks { others: vec![prefix("10.1.0.0/16")], ..racks };
        assert_eq!(named.place(address("10.1.2.1"), address("10.1.3.9")), Some(Place::Outside));
        assert_eq!(named.place(address("10.1.2.1"), address("8.8.8.8")), None);
    }
}
