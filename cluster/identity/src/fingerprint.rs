//! Fingerprints, which distinguish authorities.
use std::str::FromStr;

use ring::digest::{SHA256, digest};

use crate::hexadecimal::{as_hexadecimal, read};

/// The SHA-256 of a certificate of an authority, all of it in DER. As text 64 small hexadecimal digits, as browsers
/// and `openssl x509 -fingerprint -sha256` show; their capital letters and colons are read, too.
///
/// It is the fingerprint of the certificate and not of its key: so a peer in between can change nothing in the
/// certificate, neither its dates nor its permitted use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub(crate) [u8; 32]);

as_hexadecimal!(Fingerprint, "fingerprint: 64 hexadecimal digits");

/// A text that is no fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FingerprintError {
    /// Digits are missing, or there are too many.
    #[error("a fingerprint has 64 hexadecimal digits, these are {found}: copy all of it")]
    Length {
        /// Number of characters, without colons.
        found: usize,
    },
    /// A character that is no digit.
    #[error("{found:?} is not a hexadecimal digit (0-9, a-f): a fingerprint has 64 of them")]
    Digit {
        /// The first such character.
        found: char,
    },
}

impl Fingerprint {
    /// The fingerprint of a certificate in DER.
    pub fn of(certificate: &[u8]) -> Self {
        Self(sha256(certificate))
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let digits: String = text.trim().chars().filter(|character| *character != ':').collect();
        if let Some(found) = digits.chars().find(|character| !character.is_ascii_hexdigit()) {
            return Err(FingerprintError::Digit { found });
        }
        read(&digits).map(Self).ok_or(FingerprintError::Length { found: digits.len() })
    }
}

/// The SHA-256 of bytes.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = digest(&SHA256, bytes);
    let mut result = [0; 32];
    result.copy_from_slice(digest.as_ref());
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_those_of_other_tools() {
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let fingerprint = Fingerprint::of(b"abc");
        assert_eq!(fingerprint.to_string(), text);
        let shouted: String = text
            .to_uppercase()
            .as_bytes()
            .chunks(2)
            .map(|pair| String::from_utf8_lossy(pair).into_owned() + ":")
            .collect();
        assert_eq!(shouted.trim_end_matches(':').parse(), Ok(fingerprint));
        let json = serde_json::to_string(&fingerprint).unwrap();
        assert_eq!(serde_json::from_str::<Fingerprint>(&json).unwrap(), fingerprint);
    }

    #[test]
    fn what_is_wrong_is_told() {
        assert_eq!("ab:cd".parse::<Fingerprint>(), Err(FingerprintError::Length { found: 4 }));
        let text = format!("{}g", "a".repeat(63));
        assert_eq!(text.parse::<Fingerprint>(), Err(FingerprintError::Digit { found: 'g' }));
    }
}
