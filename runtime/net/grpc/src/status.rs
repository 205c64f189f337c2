//! Results of calls.

use std::borrow::Cow;
use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal $name:literal,)*) => {
        /// The kind of a result, with the numbers of the protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $($(#[$doc])* $variant = $number,)*
        }

        impl Code {
            /// All codes, by number.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// Name as in the protocol, such as `NOT_FOUND`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Code::$variant => $name,)*
                }
            }
        }
    };
}

codes! {
    /// The call succeeded.
    Ok = 0 "OK",
    /// The caller cancelled the call.
    Cancelled = 1 "CANCELLED",
    /// An error that nothing else is known of.
    Unknown = 2 "UNKNOWN",
    /// The request is wrong, whatever the state of the system.
    InvalidArgument = 3 "INVALID_ARGUMENT",
    /// The time of the call was over before it ended.
    DeadlineExceeded = 4 "DEADLINE_EXCEEDED",
    /// A requested thing does not exist.
    NotFound = 5 "NOT_FOUND",
    /// A thing to be made exists already.
    AlreadyExists = 6 "ALREADY_EXISTS",
    /// The caller may not do this.
    PermissionDenied = 7 "PERMISSION_DENIED",
    /// A limit is reached.
    ResourceExhausted = 8 "RESOURCE_EXHAUSTED",
    /// The system is not in the state that the call needs.
    FailedPrecondition = 9 "FAILED_PRECONDITION",
    /// The call collided with another one.
    Aborted = 10 "ABORTED",
    /// The request reaches past the end of something.
    OutOfRange = 11 "OUT_OF_RANGE",
    /// The method, or something that the call asks for, is not supported.
    Unimplemented = 12 "UNIMPLEMENTED",
    /// Something broke that should hold, such as the protocol.
    Internal = 13 "INTERNAL",
    /// The service cannot be reached now; the call may be tried again.
    Unavailable = 14 "UNAVAILABLE",
    /// Data is lost or damaged for good.
    DataLoss = 15 "DATA_LOSS",
    /// The caller did not say who it is.
    Unauthenticated = 16 "UNAUTHENTICATED",
}

impl Code {
    /// Number as in the protocol.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Finds the code with a number; one that the protocol does not have is `None`.
    pub fn from_number(number: u32) -> Option<Code> {
        Code::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

impl fmt::Display for Code {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.name())
    }
}

/// Result of a call: a code, and for people a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Status {
    /// The kind of the result.
    pub code: Code,
    /// Text for people, empty if there is nothing to say.
    pub message: String,
}

impl Status {
    /// Makes a result.
    pub fn new(code: Code, message: impl Into<String>) -> Status {
        Status { code, message: message.into() }
    }

    /// Makes the result of a call that succeeded.
    pub fn ok() -> Status {
        Status::new(Code::Ok, "")
    }

    pub(crate) fn late() -> Status {
        Status::new(Code::DeadlineExceeded, "the time of the call is over")
    }
}

/// Text of `grpc-message`: what is not printable ASCII, and `%`, as `%XX`.
pub(crate) fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for &byte in message.as_bytes() {
        if (0x20..=0x7e).contains(&byte) && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Reads `grpc-message`. Damaged escapes stay as they are: a bad text must not hide a code.
pub(crate) fn percent_decoded(encoded: &[u8]) -> String {
    let digit = |at: usize| encoded.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut at = 0;
    while let Some(&byte) = encoded.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high << 4 | low) as u8);
                at += 3;
            }
            _ => {
                bytes.push(byte);
                at += 1;
            }
        }
    }
    match String::from_utf8_lossy(&bytes) {
        Cow::Borrowed(text) => text.to_owned(),
        Cow::Owned(text) => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_their_encoding() {
        for text in ["", "plain", "50 % of Größe\nand \u{1F980}", "%41", " spaces "] {
            let encoded = percent_encoded(text);
            assert!(encoded.bytes().all(|byte| (0x20..=0x7e).contains(&byte)), "{encoded}");
            assert_eq!(percent_decoded(encoded.as_bytes()), text);
        }
        assert_eq!(percent_encoded("ä%"), "%C3%A4%25");
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config { failure_persistence: None, ..Default::default() })]

        #[test]
        fn any_message_survives(text: String, bytes: Vec<u8>) {
            assert_eq!(percent_decoded(percent_encoded(&text).as_bytes()), text);
            percent_decoded(&bytes);
        }
    }

    #[test]
    fn damaged_messages_are_read_as_far_as_they_go() {
        assert_eq!(percent_decoded(b"a%"), "a%");
        assert_eq!(percent_decoded(b"a%4"), "a%4");
        assert_eq!(percent_decoded(b"%zz%41"), "%zzA");
        assert_eq!(percent_decoded(b"%FF"), "\u{FFFD}");
    }

    #[test]
    fn codes_have_the_numbers_of_the_protocol() {
        assert_eq!(Code::ALL.len(), 17);
        for (number, code) in (0..).zip(Code::ALL) {
            assert_eq!((code.number(), Code::from_number(number.into())), (number, Some(*code)));
        }
        assert_eq!(Code::from_number(17), None);
        assert_eq!(Status::new(Code::NotFound, "no shop").to_string(), "NOT_FOUND: no shop");
    }
}
