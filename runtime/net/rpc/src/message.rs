//! Requests and responses: a message with what goes with it.
use std::time::Duration;

/// Bytes of metadata of a call.
pub const MOST_METADATA: usize = 16 << 10;

/// Names and values that go with a message, in their order. Values of names that end with `-bin` are bytes, others text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata(Vec<(String, Vec<u8>)>);

impl Metadata {
    /// Adds a value. Names are written in lower case.
    pub fn add(&mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) {
        self.0.push((name.into().to_ascii_lowercase(), value.into()));
    }

    /// Returns the first value of a name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// All names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns it as bytes: for each pair the length of the name and of the value (4 bytes, little endian, each), and both.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, value) in &self.0 {
            for length in [name.len(), value.len()] {
                bytes.extend_from_slice(&(length as u32).to_le_bytes());
            }
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(value);
        }
        bytes
    }

    /// Reads [`Metadata::to_bytes`]; none: it is damaged.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let mut pairs = Vec::new();
        while !bytes.is_empty() {
            let (name, rest) = bytes.split_first_chunk::<4>()?;
            let (value, rest) = rest.split_first_chunk::<4>()?;
            let (name, rest) = rest.split_at_checked(u32::from_le_bytes(*name) as usize)?;
            let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*value) as usize)?;
            pairs.push((String::from_utf8(name.to_vec()).ok()?, value.to_vec()));
            bytes = rest;
        }
        Some(Self(pairs))
    }
}

impl FromIterator<(String, Vec<u8>)> for Metadata {
    fn from_iter<T: IntoIterator<Item = (String, Vec<u8>)>>(pairs: T) -> Self {
        Self(pairs.into_iter().collect())
    }
}

/// A message to a method.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request<T> {
    /// The message.
    pub message: T,
    /// What goes with it.
    pub metadata: Metadata,
    /// The time after which nobody waits for the reply any more; at the side of the server, what is left of it.
    pub timeout: Option<Duration>,
}

impl<T> Request<T> {
    /// Makes a request without metadata and timeout.
    pub fn new(message: T) -> Self {
        Self { message, metadata: Metadata::default(), timeout: None }
    }

    /// Sets the timeout.
    #[must_use]
    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The message.
    pub fn into_inner(self) -> T {
        self.message
    }
}

impl<T> From<T> for Request<T> {
    fn from(message: T) -> Self {
        Self::new(message)
    }
}

/// A reply.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Response<T> {
    /// The message.
    pub message: T,
    /// What goes with it.
    pub metadata: Metadata,
}

impl<T> Response<T> {
    /// Makes a response without metadata.
    pub fn new(message: T) -> Self {
        Self { message, metadata: Metadata::default() }
    }

    /// The message.
    pub fn into_inner(self) -> T {
        self.message
    }
}

impl<T> From<T> for Response<T> {
    fn from(message: T) -> Self {
        Self::new(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_comes_back_and_damaged_one_is_refused() {
        let mut metadata = Metadata::default();
        metadata.add("Trace-Id", "7");
        metadata.add("key-bin", vec![0, 255]);
        let bytes = metadata.to_bytes();
        assert_eq!(Metadata::from_bytes(&bytes), Some(metadata.clone()));
        assert_eq!(metadata.get("trace-id"), Some(&b"7"[..]));
        for end in 1..bytes.len() {
            assert_ne!(Metadata::from_bytes(&bytes[..end]), Some(metadata.clone()));
        }
        assert_eq!(Metadata::from_bytes(&[255; 9]), None);
    }
}
