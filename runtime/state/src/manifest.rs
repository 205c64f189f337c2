//! The manifest: everything about a state that is not an object, and how it is written.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::digest::{Digest, Token};
use crate::error::StateError;
use crate::identity::Identity;
use crate::input::InputState;
use crate::limits::Limits;

/// The version of what lies in the folder. It grows when an older program could not read a state any more, or
/// would read it wrongly. 2: epochs of streams end by marks beside the journal, and files of sinks are known by what they end with.
pub const FORMAT: u32 = 2;
/// The oldest version that this program reads; it writes [`FORMAT`] with the next checkpoint.
const OLDEST: u32 = 1;

/// Whether this program reads a state of that version.
pub fn is_readable(format: u32) -> bool {
    (OLDEST..=FORMAT).contains(&format)
}

/// The version of this program, as it stands in the manifests that it writes.
pub const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// Everything about one checkpoint: where sources, stages and sinks are, and which objects hold the rest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the program that wrote it.
    pub written_by: String,
    /// What the state belongs to.
    pub identity: Identity,
    /// The number of this manifest: every commit has a higher one.
    pub checkpoint: u64,
    /// When it was written, for people.
    pub written_at: String,
    /// Everything before this epoch is in the checkpoint; 2^64 - 1: everything is.
    pub epoch: u64,
    /// Whether the run came to its end: there is nothing to go on with.
    pub complete: bool,
    /// Engine time since the first start, in seconds, over all runs that went on from one another.
    pub seconds: f64,
    /// What stages keep, by the stage's id.
    pub stages: BTreeMap<String, StageState>,
    /// Where sources are, by the source's id, in the source's own words.
    pub sources: BTreeMap<String, Value>,
    /// What sinks have committed, by the sink's id.
    pub sinks: BTreeMap<String, SinkState>,
    /// How far dead letters are written, in the engine's own words.
    pub letters: Value,
    /// What the parts of the run are defined by, in the application's own words: what of them has changed can be told by it.
    /// Nothing in states of older versions.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub definition: Value,
    /// What the sources read, by the source's id; empty in manifests of earlier versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, InputState>,
    /// What has come together over all runs that went on from one another.
    #[serde(default)]
    pub totals: Totals,
    /// The limits that have ended a source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<Limits>,
    /// The number of an older checkpoint that is kept however many follow it: the last one before a limit ended a source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<u64>,
    /// Checkpoints before this one that are kept, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub older: Vec<OlderManifest>,
}

/// Figures over all runs that went on from one another; 0 in manifests of earlier versions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Processes that have written a checkpoint.
    pub processes: u64,
    /// Restarts of parts of the run within those processes.
    pub restarts: u64,
    /// Dead letters, each once.
    pub dead_letters: u64,
}

/// A checkpoint that is kept although a newer one is there: its manifest is an object.
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
    /// What is kept of a manifest, and its object's bytes.
    pub(crate) fn new(manifest: &Manifest) -> Result<(Self, Vec<u8>), serde_json::Error> {
        let bytes = encode(manifest)?;
        let checksum = Digest::of(&bytes);
        let (checkpoint, epoch) = (manifest.checkpoint, manifest.epoch);
        let name = format!("{checkpoint:08}-manifest-{checksum}{OBJECT_SUFFIX}");
        let written_at = manifest.written_at.clone();
        Ok((Self { checkpoint, written_at, epoch, name, bytes: bytes.len() as u64, checksum }, bytes))
    }
}

/// What one stage keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageState {
    /// What to read to have the stage's state again: first a snapshot, if there is one, then calls in order.
    pub objects: Vec<ObjectReference>,
}

/// An object, and what it must be when it is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectReference {
    /// Its name in the store.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// The digest of its bytes.
    pub checksum: Digest,
    /// What it holds.
    pub content: Content,
}

/// What an object holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// The whole state of a stage.
    Snapshot {
        /// Of everything before this epoch.
        epoch: u64,
    },
    /// The calls that the stage's operator got, to be made again.
    Calls {
        /// The first epoch in it.
        from: u64,
        /// The first epoch that is not in it.
        to: u64,
    },
}

/// What one sink has committed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SinkState {
    /// Every epoch before this one is out.
    pub committed: u64,
    /// Rows that are out, over all runs that went on from one another.
    pub rows: u64,
    /// What the sink gave to be handed back when it is opened again.
    pub token: Option<Token>,
}

impl Manifest {
    /// A first manifest, with no stage, source or sink: checkpoint 0, epoch 0.
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

    /// The objects that it refers to, stage by stage; those of older checkpoints left out.
    pub fn references(&self) -> impl Iterator<Item = &ObjectReference> {
        self.stages.values().flat_map(|stage| &stage.objects)
    }
}

impl ObjectReference {
    /// The reference to these bytes, with a name of its own.
    ///
    /// The name is one of a file whatever the stage's id holds, says what it is to somebody who looks into the
    /// folder, and is the same only for the same checkpoint, stage, content and bytes.
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

/// What the name of every object ends with, so that other files are never taken for one.
pub(crate) const OBJECT_SUFFIX: &str = ".object";

/// Whether a store takes this name: up to 200 of small letters, digits, `-`, `_` and `.`, first a letter or a digit,
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

/// What stands in `manifest.json`. The digest is that of the manifest's text as it stands there.
#[derive(Serialize, Deserialize)]
struct Envelope {
    format: u32,
    checksum: Digest,
    manifest: Box<RawValue>,
}

/// What every format has, this one and others.
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

    /// A state of a program before this one is gone on with, one of a program after it is not.
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
