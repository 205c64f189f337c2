//! Names of workers, locations and tiers.
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Letters that a name may have.
pub const NAME_LENGTH: usize = 63;

/// The name of a worker, a location or a tier: 1 to 63 lower-case letters, digits, `-`, `_` and `.`, the first one a letter or a digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// A text that cannot be a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} cannot be a name: 1 to 63 lower-case letters, digits, `-`, `_` and `.`, the first one a letter or a digit{example}"
)]
pub struct NameError {
    found: String,
    example: String,
}

impl Name {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn fits(text: &str) -> bool {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        text.len() <= NAME_LENGTH
            && text.starts_with(plain)
            && text.chars().all(|character| plain(character) || "-_.".contains(character))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if Self::fits(text) {
            return Ok(Self(text.to_owned()));
        }
        let better: String = text.trim().to_lowercase().chars().take(NAME_LENGTH).collect();
        let better = better.replace([' ', '/', ':'], "-");
        let example = if Self::fits(&better) { format!("; for example `{better}`") } else { String::new() };
        Err(NameError { found: text.chars().take(NAME_LENGTH + 1).collect(), example })
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for text in ["a", "edge-1", "rack2.hall_3", "7", &"x".repeat(63)] {
            assert_eq!(text.parse::<Name>().unwrap().as_str(), text);
        }
        for text in ["", "-a", ".", "a/b", "a b", "ä", "A", "a\n", &"x".repeat(64)] {
            assert!(text.parse::<Name>().is_err(), "{text}");
        }
        let error = "Edge 1".parse::<Name>().unwrap_err().to_string();
        assert!(error.contains("\"Edge 1\"") && error.ends_with("for example `edge-1`"), "{error}");
    }
}
