//! Content of `manifest.json` in a bucket: the state's manifest, and the holder of the state.
use crate::lease::Lease;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::hash::{BuildHasher, Hasher, RandomState};
use tidemill_state::{FORMAT, is_readable};

/// A document, read or to be written. No two written ones have equal bytes, so an ETag identifies one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Document {
    /// As in the manifest of a folder, at the same position, so that programs of other versions get the same error.
    pub(crate) format: u32,
    /// Higher by one for each process that has taken the state.
    pub(crate) fence: u64,
    /// The last writer: a random text for each process that has taken the state.
    pub(crate) writer: String,
    /// Number of the writer's writes.
    pub(crate) write: u64,
    /// The holder of the state; none: it was given back.
    pub(crate) lease: Option<Lease>,
    /// The state's own manifest, unchanged; none: there is none yet.
    pub(crate) state: Option<Box<RawValue>>,
}

impl Document {
    /// A document for a new state.
    pub(crate) fn new() -> Self {
        Self { format: FORMAT, fence: 0, writer: String::new(), write: 0, lease: None, state: None }
    }

    /// Parses a document. None: it is damaged, or of another version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let found = serde_json::from_slice(bytes).ok().filter(|document: &Self| is_readable(document.format));
        // Written documents are of this version.
        found.map(|document| Self { format: FORMAT, ..document })
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Hands the document to a new holder.
    pub(crate) fn taken(mut self, writer: &str, lease: Lease) -> Self {
        self.fence += 1;
        (self.writer, self.write, self.lease) = (writer.to_owned(), 0, Some(lease));
        self
    }
}

/// A text unique to this process.
pub(crate) fn random_name() -> String {
    let number = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", number(), number())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_stays_as_it_was_to_the_byte() {
        let text = "{\"format\":1, \"manifest\": {\n \"b\": 1.50,  \"a\": 2}}";
        let state = RawValue::from_string(text.to_owned()).expect("JSON");
        let document = Document { state: Some(state), ..Document::new() };
        let document = document.taken(&random_name(), Lease::of_this_process());
        let again = Document::decode(&document.encode().expect("JSON")).expect("the same format");
        assert_eq!(again.state.as_ref().map(|state| state.get()), Some(text));
        assert_eq!((&again.writer, again.write), (&document.writer, document.write));
        assert!(again.lease == document.lease && again.fence == 1);
        assert!(Document::decode(b"{\"format\":1").is_none());
        let other = Document { format: FORMAT + 1, ..document };
        assert!(Document::decode(&other.encode().expect("JSON")).is_none());
    }
}
