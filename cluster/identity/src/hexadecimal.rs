//! Bytes as text that can be read aloud and compared with what other tools print.
use std::fmt;

/// Writes bytes as small hexadecimal digits.
pub(crate) fn write(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// Reads `COUNT` bytes of hexadecimal digits, small or capital; none if it is anything else.
pub(crate) fn read<const COUNT: usize>(text: &str) -> Option<[u8; COUNT]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * COUNT {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut bytes = [0; COUNT];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// `Display`, `FromStr` and serde of a type that is an array of bytes, as hexadecimal text.
macro_rules! as_hexadecimal {
    ($type:ident, $what:literal) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::hexadecimal::write(&self.0, f)
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($type), "({})"), self)
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                $crate::hexadecimal::read(&text)
                    .map(Self)
                    .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a {}", $what)))
            }
        }
    };
}
pub(crate) use as_hexadecimal;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_or_refused() {
        assert_eq!(read::<2>("0aFf"), Some([0x0a, 0xff]));
        for text in ["", "0aF", "0aFfF", "0agf", "+a00", "é00"] {
            assert_eq!(read::<2>(text), None, "{text}");
        }
    }
}
