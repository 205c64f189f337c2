//! The manifest: everything about a state that is not an object, and its format.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::digest::{Digest, Token};
use crate::error::StateError;
use crate::identity::Identity;
use crate::input::InputState;
use crate::limits::Limits;

/// The version of the folder's format. It grows when an older program could not read a state any more, or would misread
/// it. 2: epochs of streams end by marks next to the journal, and files of sinks are identified by their ends.
pub const FORMAT: u32 = 2;
/// The oldest version that this program reads; it writes [`FORMAT`] with the next checkpoint.
const OLDEST: u32 = 1;

/// Whether this program reads a state of that version.
pub fn is_readable(format: u32) -> bool {
    (OLDEST..=FORMAT).contains(&format)
}

/// The version of this program, for the manifests that it writes.
pub const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// Everything about one checkpoint: the positions of sources, stages and sinks, and the objects with the rest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the program that wrote it.
    pub written_by: String,
    /// The identity of the state.
    pub identity: Identity,
    /// The number of this manifest: every commit has a higher one.
    pub checkpoint: u64,
    /// Time of writing, for users.
    pub written_at: String,
    /// The checkpoint covers everything before this epoch; 2^64 - 1: everything.
    pub epoch: u64,
    /// Whether the run has completed and cannot be continued.
    pub complete: bool,
    /// Engine time since the first start, in seconds, over all runs that continued one another.
    pub seconds: f64,
    /// States of stages, by the stage's id.
    pub stages: BTreeMap<String, StageState>,
    /// Positions of sources, by the source's id, in the source's own format.
    pub sources: BTreeMap<String, Value>,
    /// Commits of sinks, by the sink's id.
    pub sinks: BTreeMap<String, SinkState>,
    /// Position of dead letters, in the engine's own format.
    pub letters: Value,
    /// Definitions of the parts of the run, in the application's own format, from which changes are derived. Null in
    /// states of older versions.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub definition: Value,
    /// Inputs of the sources, by the source's id; empty in manifests of earlier versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, InputState>,
    /// Totals over all runs that continued one another.
    #[serde(default)]
    pub totals: Totals,
    /// The limits that have ended a source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<Limits>,
    /// The number of an older checkpoint that is always kept: the last one before a limit ended a source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<u64>,
    /// Kept earlier checkpoints, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub older: Vec<OlderManifest>,
}

/// Totals over all runs that continued one another; 0 in manifests of earlier versions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Processes that have written a checkpoint.
    pub processes: u64,
    /// Restarts of parts of the run within those processes.
    pub restarts: u64,
    /// Dead letters, each once.
    pub dead_letters: u64,
}

/// A kept checkpoint that is not the newest: its manifest is an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OlderManifest {
    /// As in [`Manifest`].
    pub checkpoint: u64,
    /// As in [`Manifest`].
    pub written_at: String,
    /// As in [`Manifest`].
    pub epoch: u64,
    /// Name of the object.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// The digest of its bytes.
    pub checksum: Digest,
}

impl OlderManifest {
    /// Creates the entry for a manifest, and its object's bytes.
    pub(crate) fn new(manifest: &Manifest) -> Result<(Self, Vec<u8>), serde_json::Error> {
        let bytes = encode(manifest)?;
        let checksum = Digest::of(&bytes);
        let (checkpoint, epoch) = (manifest.checkpoint, manifest.epoch);
        let name = format!("{checkpoint:08}-manifest-{checksum}{OBJECT_SUFFIX}");
        let written_at = manifest.written_at.clone();
        Ok((Self { checkpoint, written_at, epoch, name, bytes: bytes.len() as u64, checksum }, bytes))
    }
}

/// State of one stage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageState {
    /// Objects to restore the stage's state: first a snapshot, if there is one, then calls in order.
    pub objects: Vec<ObjectReference>,
}

/// An object, with the facts to verify it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectReference {
    /// Its name in the store.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// The digest of its bytes.
    pub checksum: Digest,
    /// Its content.
    pub content: Content,
}

/// Content of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// The whole state of a stage.
    Snapshot {
        /// It covers everything before this epoch.
        epoch: u64,
    },
    /// The calls of the stage's operator, to be repeated.
    Calls {
        /// The first epoch in it.
        from: u64,
        /// The first epoch after it.
        to: u64,
    },
}

/// Commits of one sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SinkState {
    /// Every epoch before this one is committed.
    pub committed: u64,
    /// Committed rows, over all runs that continued one another.
    pub rows: u64,
    /// Data that the sink gets back when it is opened again.
    pub token: Option<Token>,
}

impl Manifest {
    /// Creates a first manifest, with no stage, source or sink: checkpoint 0, epoch 0.
    pub fn new(identity: Identity) -> Self {
        Self {
            written_by: PROGRAM.to_owned(),
            identity,
            checkpoint: 0,
            written_at: String::new(),
            epoch: 0,
            complete: false,
            seconds: 0.0,
            stages: BTreeMap::new(),
            sources: BTreeMap::new(),
            sinks: BTreeMap::new(),
            letters: Value::Null,
            definition: Value::Null,
            inputs: BTreeMap::new(),
            totals: Totals::default(),
            stopped_at: None,
            pinned: None,
            older: Vec::new(),
        }
    }

    /// Iterates over the objects that it refers to, stage by stage, without those of older checkpoints.
    pub fn references(&self) -> impl Iterator<Item = &ObjectReference> {
        self.stages.values().flat_map(|stage| &stage.objects)
    }
}

impl ObjectReference {
    /// Creates the reference to these bytes, with a unique name.
    ///
    /// The name is a valid file name for any stage's id, describes the object to a reader of the folder, and is equal
    /// only for equal checkpoint, stage, content and bytes.
    pub fn new(checkpoint: u64, stage: &str, content: Content, bytes: &[u8]) -> Self {
        let plain = |c: char| if is_plain(c) { c } else { '_' };
        let shown: String = stage.chars().take(40).map(|c| plain(c.to_ascii_lowercase())).collect();
        let what = match content {
            Content::Snapshot { epoch } => format!("snapshot-{epoch}"),
            Content::Calls { from, to } => format!("calls-{from}-{to}"),
        };
        let checksum = Digest::of(bytes);
        let told_apart = Digest::of(format!("{checksum}{stage}").as_bytes());
        let name = format!("{checkpoint:08}-{shown}-{what}-{told_apart}{OBJECT_SUFFIX}");
        Self { name, bytes: bytes.len() as u64, checksum, content }
    }
}

/// Suffix of every object's name, so that other files are never mistaken for one.
pub(crate) const OBJECT_SUFFIX: &str = ".object";

/// Whether a store accepts this name: up to 200 of small letters, digits, `-`, `_` and `.`, first a letter or a digit,
/// with `.object` at the end.
pub fn is_object_name(name: &str) -> bool {
    name.len() <= 200
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.ends_with(OBJECT_SUFFIX)
        && name.chars().all(|c| is_plain(c) || c == '.')
}

fn is_plain(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_'
}

/// Content of `manifest.json`. The digest is that of the manifest's text as written there.
#[derive(Serialize, Deserialize)]
struct Envelope {
    format: u32,
    checksum: Digest,
    manifest: Box<RawValue>,
}

/// Fields common to every format.
#[derive(Deserialize)]
struct Version {
    format: u32,
    #[serde(default)]
    manifest: Value,
}

pub(crate) fn encode(manifest: &Manifest) -> Result<Vec<u8>, serde_json::Error> {
    let text = serde_json::to_string_pretty(manifest)?;
    let checksum = Digest::of(text.as_bytes());
    let envelope = Envelope { format: FORMAT, checksum, manifest: RawValue::from_string(text)? };
    let mut bytes = serde_json::to_vec(&envelope)?;
    bytes.push(b'\n');
    Ok(bytes)
}

pub(crate) fn decode(place: &str, bytes: &[u8]) -> Result<Manifest, StateError> {
    let damaged = |reason: String| StateError::Manifest { place: place.to_owned(), reason };
    let version: Version = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if !is_readable(version.format) {
        let written_by = version.manifest["written_by"].as_str().unwrap_or("of unknown version");
        return Err(StateError::Format {
            place: place.to_owned(),
            found: version.format,
            written_by: written_by.to_owned(),
        });
    }
    let envelope: Envelope = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    let text = envelope.manifest.get();
    if Digest::of(text.as_bytes()) != envelope.checksum {
        return Err(damaged("its checksum is another one: it was damaged or edited".to_owned()));
    }
    serde_json::from_str(text).map_err(|error| damaged(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state of an earlier program is continued, one of a later program is not.
    #[test]
    fn earlier_formats_are_read_and_later_ones_refused() {
        let identity = Identity {
            workflow_name: "shop".to_owned(),
            operators: BTreeMap::new(),
            plan: Digest::of(b"one copy"),
        };
        let manifest = Manifest { checkpoint: 2, epoch: 40, ..Manifest::new(identity) };
        let text = String::from_utf8(encode(&manifest).unwrap()).unwrap();
        for format in 0..5 {
            let other = text.replacen(&format!("\"format\":{FORMAT}"), &format!("\"format\":{format}"), 1);
            match decode("here", other.as_bytes()) {
                Ok(read) => assert!(read == manifest && (1..=FORMAT).contains(&format)),
                Err(StateError::Format { found, .. }) => {
                    assert!(found == format && !(1..=FORMAT).contains(&format))
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn any_stage_has_an_object_name() {
        let long = "x".repeat(500);
        let mut names = std::collections::BTreeSet::new();
        let stages = ["a", "A", "a/b", "a_b", "../..", "", "ä", "a\0b", ".", "-", "con", &long, &long[1..]];
        for stage in stages {
            let content = Content::Calls { from: 0, to: u64::MAX };
            let reference = ObjectReference::new(u64::MAX, stage, content, b"bytes");
            assert!(is_object_name(&reference.name), "{stage:?}: {}", reference.name);
            assert!(names.insert(reference.name), "{stage:?}");
        }
        let name = |bytes: &[u8]| ObjectReference::new(1, "a", Content::Snapshot { epoch: 3 }, bytes).name;
        assert!(name(b"x").starts_with("00000001-a-snapshot-3-"));
        assert_ne!(name(b"x"), name(b"y"));
        assert_eq!(name(b"x"), name(b"x"));
    }

    #[test]
    fn other_names_are_refused() {
        for name in ["", ".object", "../x.object", "a/b.object", "A.object", "a.png", "-a.object", "_.object"]
        {
            assert!(!is_object_name(name), "{name}");
        }
    }
}
