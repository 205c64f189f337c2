//! What stands in `manifest.json` of a bucket: the state's manifest, and who has the state.
use crate::lease::Lease;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::hash::{BuildHasher, Hasher, RandomState};
use tidemill_state::{FORMAT, is_readable};

/// One that was read, or is to be written. No two that were written have the same bytes, so an ETag stands for just one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Document {
    /// As in the manifest of a folder, at the same place, so that programs of other versions are told in the same way.
    pub(crate) format: u32,
    /// Higher by one for each process that has taken the state.
    pub(crate) fence: u64,
    /// Who wrote it last: a random text for each process that has taken the state.
    pub(crate) writer: String,
    /// How often the writer has written.
    pub(crate) write: u64,
    /// Who has the state; none: it was given back.
    pub(crate) lease: Option<Lease>,
    /// The state's own manifest as it was given; none: there is none yet.
    pub(crate) state: Option<Box<RawValue>>,
}

impl Document {
    /// For a state that nobody has had.
    pub(crate) fn new() -> Self {
        Self { format: FORMAT, fence: 0, writer: String::new(), write: 0, lease: None, state: None }
    }

    /// None: it is damaged, or of another version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let found = serde_json::from_slice(bytes).ok().filter(|document: &Self| is_readable(document.format));
        // What is written is of this version.
        found.map(|document| Self { format: FORMAT, ..document })
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// As taken by somebody.
    pub(crate) fn taken(mut self, writer: &str, lease: Lease) -> Self {
        self.fence += 1;
        (self.writer, self.write, self.lease) = (writer.to_owned(), 0, Some(lease));
        self
    }
}

/// A text that no other process has.
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
