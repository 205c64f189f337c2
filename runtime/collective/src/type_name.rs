//! Names of types of elements that are moved and not combined.
use serde::{Deserialize, Serialize};

/// Bytes of a name, at most.
pub const MOST: usize = 24;

/// The name of a type of elements that are only moved, where it is none of [`Element`](crate::element::Element): `float64`, `complex64`.
/// Ranks compare it. The empty one, which is the default: the type is one of those.
///
/// ```
/// # use tidemill_collective::type_name::TypeName;
/// assert_eq!(TypeName::new("float64").map(|name| name.to_string()), Some("float64".to_owned()));
/// assert_eq!(TypeName::new("a name of more than 24 letters"), None);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TypeName {
    /// Zeros after the name.
    bytes: [u8; MOST],
}

impl TypeName {
    /// Returns a name. None: it is too long, or has something else than visible letters of ASCII.
    pub fn new(name: &str) -> Option<Self> {
        if !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        let mut bytes = [0; MOST];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(Self { bytes })
    }

    /// Returns whether it is the empty one.
    pub fn is_empty(&self) -> bool {
        self.bytes[0] == 0
    }

    /// The name with zeros after it.
    pub(crate) fn to_bytes(self) -> [u8; MOST] {
        self.bytes
    }

    /// Reads what [`Self::to_bytes`] gives.
    pub(crate) fn of_bytes(bytes: &[u8; MOST]) -> Option<Self> {
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(MOST);
        let (name, rest) = bytes.split_at(length);
        let is_name = rest.iter().all(|byte| *byte == 0);
        std::str::from_utf8(name).ok().filter(|_| is_name).and_then(Self::new)
    }
}

impl std::fmt::Display for TypeName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.bytes
            .iter()
            .take_while(|byte| **byte != 0)
            .try_for_each(|byte| write!(f, "{}", char::from(*byte)))
    }
}

impl std::fmt::Debug for TypeName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TypeName({self})")
    }
}

impl From<TypeName> for String {
    fn from(name: TypeName) -> Self {
        name.to_string()
    }
}

impl TryFrom<String> for TypeName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::new(&name)
            .ok_or_else(|| format!("the name of a type has at most {MOST} visible letters of ASCII"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_from_bytes_and_packets() {
        for text in ["", "float64", "datetime64[ns]", &"x".repeat(MOST)] {
            let name = TypeName::new(text).unwrap();
            assert_eq!((name.to_string().as_str(), name.is_empty()), (text, text.is_empty()));
            assert_eq!(TypeName::of_bytes(&name.to_bytes()), Some(name));
            let packet = serde_json::to_string(&name).unwrap();
            assert_eq!(packet, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<TypeName>(&packet).unwrap(), name);
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in ["a b", "größe", "a\0b", "\n", &"x".repeat(MOST + 1)] {
            assert_eq!(TypeName::new(text), None, "{text:?}");
            assert!(serde_json::from_str::<TypeName>(&serde_json::to_string(text).unwrap()).is_err());
        }
        let mut bytes = TypeName::new("float64").unwrap().to_bytes();
        bytes[MOST - 1] = b'x';
        assert_eq!(TypeName::of_bytes(&bytes), None, "something comes after its end");
        bytes[0] = 0xff;
        assert_eq!(TypeName::of_bytes(&bytes), None);
    }
}
