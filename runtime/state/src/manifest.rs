//! What a checkpoint consists of.
use crate::identity::Identity;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::BTreeMap;

/// Version of the format of folders that this program writes, and the only one that it reads.
pub const FORMAT: u32 = 1;

/// A checkpoint. Sources and letters are JSON that only the engine reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// See [`FORMAT`].
    pub format: u32,
    /// Version of the program that wrote it.
    pub written_by: String,
    /// Whose state it is.
    pub identity: Identity,
    /// Number of the checkpoint, from 1.
    pub checkpoint: u64,
    /// When it was written, RFC 3339.
    pub written_at: String,
    /// Everything before this epoch is done; 2^64 - 1: everything is.
    pub epoch: u64,
    /// Nothing is left to do.
    pub complete: bool,
    /// Engine time since the run began, nanoseconds, without the time between two processes.
    pub elapsed: i64,
    /// By instance.
    pub stages: BTreeMap<String, StageState>,
    /// Epoch logs by source stage.
    pub sources: BTreeMap<String, serde_json::Value>,
    /// By sink.
    pub sinks: BTreeMap<String, SinkState>,
    /// The file of dead letters.
    pub letters: serde_json::Value,
}

impl Manifest {
    /// Of a run that has done nothing yet.
    pub fn new(identity: Identity) -> Self {
        Self {
            format: FORMAT,
            written_by: env!("CARGO_PKG_VERSION").to_owned(),
            identity,
            checkpoint: 0,
            written_at: String::new(),
            epoch: 0,
            complete: false,
            elapsed: 0,
            stages: BTreeMap::new(),
            sources: BTreeMap::new(),
            sinks: BTreeMap::new(),
            letters: serde_json::Value::Null,
        }
    }

    /// All objects that it needs.
    pub fn objects(&self) -> impl Iterator<Item = &ObjectReference> {
        self.stages.values().flat_map(|stage| &stage.objects)
    }
}

/// The state of one stage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageState {
    /// A snapshot and the calls since, in order.
    pub objects: Vec<ObjectReference>,
}

/// An object, and how to see whether it is whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectReference {
    /// Its name in `objects/`.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// XXH3 with 128 bits, hexadecimal.
    pub checksum: String,
    /// What it is.
    pub content: Content,
}

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// A state "all of the epochs before this one".
    Snapshot {
        /// The epoch.
        epoch: u64,
    },
    /// What changed a state in the epochs `from..upto`.
    Calls {
        /// The first.
        from: u64,
        /// The first that is not in it.
        upto: u64,
    },
}

/// What a sink has committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkState {
    /// All epochs before this one.
    pub committed: u64,
    /// Rows.
    pub rows: u64,
    /// What it continues from.
    pub token: Option<Token>,
}

/// Bytes that only their owner understands; text where they are text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token(pub Vec<u8>);

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => serializer.collect_seq(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => Ok(Self(text.into_bytes())),
            bytes => serde_json::from_value(bytes).map(Self).map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back() {
        for bytes in [b"{\"length\":5}".to_vec(), vec![0xff, 0, 1], Vec::new()] {
            let text = serde_json::to_string(&Token(bytes.clone())).unwrap();
            assert_eq!(serde_json::from_str::<Token>(&text).unwrap().0, bytes);
        }
    }
}
