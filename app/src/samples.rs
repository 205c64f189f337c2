//! Records that reached the sinks of an active run, for display.
use crate::preparation::kinds;
use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use base64::Engine;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_engine::clock::Nanoseconds;
use tidemill_engine::{Newest, Program, Sample, SampleOptions, SourceLink};
use tidemill_operators::format::MediaFormat;
use tidemill_operators::record::METADATA_COLUMNS;
use tidemill_operators::values::row_values;
use tidemill_spec::workflow::{Samples, Workflow};

/// Records of each sink.
pub const MOST: usize = 10;
/// One record of a sink in this time: records with pictures travel from the worker for it.
const EVERY: Nanoseconds = 5_000_000_000;
/// Bytes of a record.
const MOST_BYTES: usize = 256 << 10;
/// Bytes of source records that a process keeps, so that those of a sample are found.
const RECENT_BYTES: usize = 8 << 20;
/// Letters of a value.
const LONGEST: usize = 400;

/// Returns for each sink the links of its records to records of sources.
pub fn links(workflow: &Workflow, program: &Program) -> BTreeMap<String, Vec<SourceLink>> {
    let links = workflow.sinks.iter().map(|sink| {
        let mut sources = BTreeSet::new();
        sources_of(workflow, &sink.input.from.value, &mut sources);
        let input = program.sinks.get(&sink.id.value).map(|sink| &sink.input);
        let links = sources.into_iter().map(|source| {
            let key = program.sources.get(&source).and_then(|source| source.key.clone());
            let key = key.filter(|key| input.is_some_and(|input| input.column(key).is_some()));
            SourceLink { source, columns: key.map(|key| (key.clone(), key)) }
        });
        (sink.id.value.clone(), links.collect())
    });
    links.collect()
}

/// Finds the sources whose single records become those of `id`. After a window a record comes from many.
fn sources_of(workflow: &Workflow, id: &str, found: &mut BTreeSet<String>) {
    if workflow.sources.iter().any(|source| source.id == *id) {
        found.insert(id.to_owned());
    }
    let operator = workflow.operators.iter().find(|operator| operator.id == *id);
    for input in
        operator.filter(|operator| !kinds().operator_of(operator).has_windows).iter().flat_map(|o| &o.inputs)
    {
        sources_of(workflow, &input.from.value, found);
    }
}

/// Returns the options for samples of an active run; none: the workflow turns them off.
pub fn newest(workflow: &Workflow, program: &Program) -> Option<SampleOptions> {
    (workflow.run.samples == Samples::On).then(|| SampleOptions {
        most: MOST,
        most_wrong: MOST,
        recent_bytes: RECENT_BYTES,
        links: links(workflow, program),
        newest: Some(Newest { every: EVERY, most_bytes: MOST_BYTES }),
    })
}

/// A record to look at.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shown {
    /// Values: source (none: of the record itself), column, text.
    pub values: Vec<(Option<String>, String, String)>,
    /// Pictures, sounds and other bytes.
    pub media: Vec<Medium>,
}

/// A picture, a sound, or other bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Medium {
    /// Source; none: the record itself.
    pub source: Option<String>,
    /// Column.
    pub name: String,
    /// By the first bytes; none: nothing that is shown, and no content.
    pub media_type: Option<&'static str>,
    /// Size.
    pub bytes: u64,
    /// In base64.
    pub base64: String,
}

/// The type of a picture or sound that browsers show or play.
fn media_type(bytes: &[u8]) -> Option<&'static str> {
    MediaFormat::of(bytes).filter(|format| format.is_of_browsers()).map(MediaFormat::media_type)
}

/// The values, pictures and sounds of a sample. What a source sent and the record still has is there once.
pub fn show(sample: &Sample) -> Shown {
    let mut shown = Shown::default();
    let own = std::iter::once((None, &sample.record));
    for (source, batch) in own.chain(sample.sources.iter().map(|(id, batch)| (Some(id), batch))) {
        for (name, value) in row_values(batch, 0) {
            if let Some(bytes) = binary(batch, &name) {
                let media_type = media_type(bytes).filter(|_| bytes.len() <= MOST_BYTES);
                let encoded = media_type.map(|_| base64::engine::general_purpose::STANDARD.encode(bytes));
                shown.media.push(Medium {
                    source: source.cloned(),
                    name,
                    media_type,
                    bytes: bytes.len() as u64,
                    base64: encoded.unwrap_or_default(),
                });
                continue;
            }
            let Some(text) = text(&value) else { continue };
            if !shown.values.iter().any(|(_, known, value)| *known == name && *value == text) {
                shown.values.push((source.cloned(), name, text));
            }
        }
    }
    shown
}

fn binary<'a>(batch: &'a RecordBatch, name: &str) -> Option<&'a [u8]> {
    let index = batch.schema_ref().index_of(name).ok().filter(|index| *index >= METADATA_COLUMNS)?;
    let column = batch.column(index).as_binary_opt::<i32>()?;
    column.is_valid(0).then(|| column.value(0))
}

/// A value as text; tensors are left out.
fn text(value: &serde_json::Value) -> Option<String> {
    let text = match value {
        serde_json::Value::Object(_) => return None,
        serde_json::Value::Null => "(empty)".to_owned(),
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => Some(format!("{}…", &text[..end])),
        None => Some(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pictures_and_sounds_are_given_a_type_and_long_values_are_cut() {
        assert_eq!(media_type(b"\x89PNG\r\n\x1a\n"), Some("image/png"));
        assert_eq!(media_type(b"GIF89a"), Some("image/gif"));
        assert_eq!(media_type(b"fLaC\0\0\0\x22"), Some("audio/flac"));
        assert_eq!(media_type(&[0xff, 0xd8, 0xff, 0xe0]), Some("image/jpeg"));
        assert_eq!(media_type(b"RIFF\x24\0\0\0WAVEfmt "), Some("audio/wav"));
        // A drawing may have scripts in it; browsers show no TIFF.
        for other in [&b"<svg onload=alert(1)>"[..], b"<html>", b"II*\0\x08\0\0\0", b"RIFF", b""] {
            assert_eq!(media_type(other), None);
        }
        let long = serde_json::Value::String("ä".repeat(1_000));
        assert_eq!(text(&long).map(|text| text.chars().count()), Some(LONGEST + 1));
        assert_eq!(text(&serde_json::json!({"shape": [1]})), None);
        assert_eq!(text(&serde_json::json!(null)).as_deref(), Some("(empty)"));
    }
}
