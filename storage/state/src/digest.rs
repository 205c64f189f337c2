//! Digests, and bytes as hexadecimal digits in JSON.

use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

/// The XXH3 digest of some bytes, 128 bits; 32 hexadecimal digits in JSON.
///
/// It detects damage and change. It does not protect against forgery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(pub u128);

impl Digest {
    /// Returns the digest of these bytes, equal on every machine and in every version.
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxh3_128(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bytes = from_hex(&text)?;
        let bytes = <[u8; 16]>::try_from(bytes).map_err(|_| format!("`{text}` is not 32 digits long"))?;
        Ok(Self(u128::from_be_bytes(bytes)))
    }
}

/// Data that a sink gets back when it is opened again: any bytes; hexadecimal digits in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Token(pub Vec<u8>);

impl From<Token> for String {
    fn from(token: Token) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits = token.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
    }
}

impl TryFrom<String> for Token {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        from_hex(&text).map(Self)
    }
}

fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    let bytes = bytes.collect::<Option<Vec<u8>>>().filter(|_| rest.is_empty());
    bytes.ok_or_else(|| format!("`{text}` is not an even number of hexadecimal digits in small letters"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_digests_survive_json() {
        let token = Token((0..=255).collect());
        let text = serde_json::to_string(&token).unwrap();
        assert!(text.starts_with("\"000102") && text.ends_with("feff\""));
        assert_eq!(serde_json::from_str::<Token>(&text).unwrap(), token);
        let digest = Digest(0x0123);
        let text = serde_json::to_string(&digest).unwrap();
        assert_eq!(text, format!("\"{:0>32}\"", "123"));
        assert_eq!(serde_json::from_str::<Digest>(&text).unwrap(), digest);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["\"0\"", "\"0g\"", "\"ÄÄ\"", "7"] {
            assert!(serde_json::from_str::<Token>(text).is_err(), "{text}");
        }
        assert!(serde_json::from_str::<Digest>("\"0123\"").is_err());
    }

    /// States of earlier versions are still read, so this must not change.
    #[test]
    fn the_digest_stays_what_it_is() {
        assert_eq!(Digest::of(b"").to_string(), "99aa06d3014798d86001c324468d497f");
    }
}
