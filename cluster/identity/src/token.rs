//! Tokens: secrets as text, of which only a hash is kept.
use std::fmt;
use std::str::FromStr;

use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::base32;
use crate::fingerprint::sha256;
use crate::hexadecimal::as_hexadecimal;

const ID: usize = 5;
const SECRET: usize = 20;
const CHECK: usize = 5;
/// Characters after the prefix: five bits each.
const LENGTH: usize = (ID + SECRET + CHECK) * 8 / 5;

/// The id by which people name a token, once its secret is gone: ten hexadecimal digits that are no secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(pub(crate) [u8; ID]);

as_hexadecimal!(TokenId, "token's id: 10 hexadecimal digits");

impl FromStr for TokenId {
    type Err = TokenIdError;

    fn from_str(text: &str) -> Result<Self, TokenIdError> {
        crate::hexadecimal::read(text.trim())
            .map(Self)
            .ok_or_else(|| TokenIdError { found: text.chars().take(20).collect() })
    }
}

/// A text that is no id of a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not the id of a token: write its ten hexadecimal digits from the list of tokens")]
pub struct TokenIdError {
    found: String,
}

/// The stored part of a token: the SHA-256 of its 160 random bits. They cannot be guessed, so that no slow hash is
/// needed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenHash([u8; 32]);

as_hexadecimal!(TokenHash, "hash of a token");

/// Why a text is no token. The errors are about its form only, and none repeats it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It begins with something else.
    #[error("this is not a token: expected {expected} and {LENGTH} characters")]
    Prefix {
        /// Its expected beginning.
        expected: &'static str,
    },
    /// It is a token for something else.
    #[error("this is {found}; here {expected} is needed")]
    Kind {
        /// The expected kind.
        expected: &'static str,
        /// The kind found.
        found: &'static str,
    },
    /// Characters are missing, or there are too many.
    #[error("the token has {found} characters after {prefix}, but must have {LENGTH}: copy all of it")]
    Length {
        /// Its beginning.
        prefix: &'static str,
        /// Number of characters that follow.
        found: usize,
    },
    /// A character that tokens do not have.
    #[error("the token is mistyped: no token has {found:?}, which is its character {place} after {prefix}")]
    Character {
        /// Its beginning.
        prefix: &'static str,
        /// The character.
        found: char,
        /// Its place, counted from 1.
        place: usize,
    },
    /// All characters could be such of a token, but together they are not.
    #[error("the token is mistyped: its characters do not fit together; copy it again")]
    Checksum,
}

/// The parts of a token of either kind.
struct Parts {
    id: TokenId,
    secret: Zeroizing<[u8; SECRET]>,
}

struct Kind {
    prefix: &'static str,
    name: &'static str,
}

const JOIN: Kind = Kind { prefix: "tmj_", name: "a join token (tmj_…)" };
const ACCESS: Kind = Kind { prefix: "tmp_", name: "an access token of a person (tmp_…)" };

impl Parts {
    fn draw() -> Result<Self, NoRandomness> {
        let random = SystemRandom::new();
        let (mut id, mut secret) = ([0; ID], Zeroizing::new([0; SECRET]));
        random.fill(&mut id).map_err(|_| NoRandomness)?;
        random.fill(&mut *secret).map_err(|_| NoRandomness)?;
        Ok(Self { id: TokenId(id), secret })
    }

    fn check(&self, kind: &Kind) -> [u8; CHECK] {
        let all = Zeroizing::new([kind.prefix.as_bytes(), &self.id.0, &*self.secret].concat());
        let hash = sha256(&all);
        let mut check = [0; CHECK];
        check.copy_from_slice(&hash[..CHECK]);
        check
    }

    fn reveal(&self, kind: &Kind) -> Zeroizing<String> {
        let bytes = Zeroizing::new([&self.id.0[..], &*self.secret, &self.check(kind)].concat());
        let text = Zeroizing::new(base32::encode(&bytes));
        Zeroizing::new(format!("{}{}", kind.prefix, *text))
    }

    fn parse(text: &str, kind: &Kind) -> Result<Self, TokenError> {
        let text = text.trim();
        let begins =
            |prefix: &str| text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
        if !begins(kind.prefix) {
            let other = [JOIN, ACCESS].into_iter().find(|other| begins(other.prefix));
            return Err(match other {
                Some(other) => TokenError::Kind { expected: kind.name, found: other.name },
                None => TokenError::Prefix { expected: kind.prefix },
            });
        }
        let (prefix, rest) = (kind.prefix, &text[kind.prefix.len()..]);
        let found = rest.chars().count();
        if found != LENGTH {
            return Err(TokenError::Length { prefix, found });
        }
        let bytes = base32::decode(rest);
        let bytes = bytes.map_err(|(place, found)| TokenError::Character { prefix, found, place })?;
        let bytes = Zeroizing::new(bytes);
        let (mut id, mut secret) = ([0; ID], Zeroizing::new([0; SECRET]));
        id.copy_from_slice(&bytes[..ID]);
        secret.copy_from_slice(&bytes[ID..ID + SECRET]);
        let parts = Self { id: TokenId(id), secret };
        if parts.check(kind) != bytes[ID + SECRET..] {
            return Err(TokenError::Checksum);
        }
        Ok(parts)
    }
}

/// The system gives no random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system provides no random bytes")]
pub struct NoRandomness;

/// A kind of token, with the same methods as the other one.
macro_rules! token {
    ($(#[$documentation:meta])* $name:ident, $kind:ident) => {
        $(#[$documentation])*
        pub struct $name(Parts);

        impl $name {
            /// A new one of random bits.
            pub(crate) fn draw() -> Result<Self, NoRandomness> {
                Parts::draw().map(Self)
            }

            /// Returns its name in lists and logs.
            pub fn id(&self) -> TokenId {
                self.0.id
            }

            /// The secret text, to be shown once to the person it is for.
            pub fn reveal(&self) -> Zeroizing<String> {
                self.0.reveal(&$kind)
            }

            /// Returns the stored part.
            pub(crate) fn hash(&self) -> TokenHash {
                TokenHash(sha256(&*self.0.secret))
            }

            /// Returns whether it is the one whose hash was kept. Takes the same time whatever the answer is.
            pub(crate) fn is(&self, hash: &TokenHash) -> bool {
                self.hash().0.ct_eq(&hash.0).into()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                // Not the secret.
                write!(f, concat!(stringify!($name), "({})"), self.0.id)
            }
        }

        impl FromStr for $name {
            type Err = TokenError;

            fn from_str(text: &str) -> Result<Self, TokenError> {
                Parts::parse(text, &$kind).map(Self)
            }
        }
    };
}

token! {
    /// Lets a worker into a cluster: `tmj_` and 48 characters. Some of these are a checksum, so that a mistyped token
    /// differs from an unknown one.
    JoinToken, JOIN
}

token! {
    /// Lets a person in: `tmp_` and 48 characters, otherwise as a [`JoinToken`].
    AccessToken, ACCESS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn join() -> JoinToken {
        JoinToken::draw().unwrap()
    }

    #[test]
    fn tokens_are_texts() {
        let token = join();
        let text = token.reveal();
        assert!(text.starts_with("tmj_") && text.len() == 52, "{}", *text);
        let spaced = format!("  {}\n", text.to_uppercase());
        for text in [text.as_str(), &spaced] {
            let read: JoinToken = text.parse().unwrap();
            assert_eq!(read.id(), token.id());
            assert!(read.is(&token.hash()) && !join().is(&token.hash()));
        }
        assert_eq!(format!("{token:?}"), format!("JoinToken({})", token.id()));
        assert_eq!(token.id().to_string().parse(), Ok(token.id()));
        assert!("12345".parse::<TokenId>().unwrap_err().to_string().contains("ten hexadecimal"));
    }

    #[test]
    fn tokens_that_are_mistyped_are_told_so() {
        let text = join().reveal();
        let wrong = |text: &str| text.parse::<JoinToken>().unwrap_err();
        assert_eq!(wrong("hello"), TokenError::Prefix { expected: "tmj_" });
        assert_eq!(wrong(""), TokenError::Prefix { expected: "tmj_" });
        assert_eq!(wrong(&text[..51]), TokenError::Length { prefix: "tmj_", found: 47 });
        let error = wrong(&AccessToken::draw().unwrap().reveal()).to_string();
        assert!(error.starts_with("this is an access token of a person"), "{error}");
        let error = wrong(&format!("{}!{}", &text[..10], &text[11..]));
        assert_eq!(error, TokenError::Character { prefix: "tmj_", found: '!', place: 7 });
        // Every single wrong character, and every two neighbours that changed places, are noticed.
        for place in 4..52 {
            let mut letters: Vec<char> = text.chars().collect();
            letters[place] = if letters[place] == 'a' { 'b' } else { 'a' };
            assert_eq!(wrong(&letters.iter().collect::<String>()), TokenError::Checksum);
            let mut letters: Vec<char> = text.chars().collect();
            if place < 51 && letters[place] != letters[place + 1] {
                letters.swap(place, place + 1);
                assert_eq!(wrong(&letters.iter().collect::<String>()), TokenError::Checksum);
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_token_or_an_error(text in ".{0,80}", rest in "[0-9a-z]{48}") {
            for text in [text.clone(), format!("tmj_{text}"), format!("tmp_{rest}"), format!("tmj_{rest}")] {
                // No random text has a checksum that is right.
                prop_assert!(text.parse::<JoinToken>().is_err());
                prop_assert!(text.parse::<AccessToken>().is_err());
            }
        }

        #[test]
        fn tokens_come_back(id: [u8; ID], secret: [u8; SECRET]) {
            let token = AccessToken(Parts { id: TokenId(id), secret: Zeroizing::new(secret) });
            let read: AccessToken = token.reveal().parse().unwrap();
            prop_assert_eq!(read.id(), token.id());
            prop_assert!(read.is(&token.hash()));
        }
    }
}
