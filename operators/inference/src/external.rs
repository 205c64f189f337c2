//! Files beside an ONNX file that hold its weights.
use crate::wire::{FieldValue, Fields, WireError};
use std::collections::BTreeSet;

/// Largest nesting of graphs that is read.
const DEEPEST: usize = 16;

/// Returns the names of the files beside an ONNX file in which weights are, in their order by name. A file of another format has none.
///
/// ```
/// // A model with a graph (7) with a weight (5) whose data (13) are at the location `w.data`.
/// let entry = [&[0x0a, 8][..], b"location", &[0x12, 6], b"w.data"].concat();
/// let weight = [&[0x6a, entry.len() as u8][..], &entry].concat();
/// let graph = [&[0x2a, weight.len() as u8][..], &weight].concat();
/// let model = [&[0x3a, graph.len() as u8][..], &graph].concat();
/// assert_eq!(tidemill_inference::external::files(&model), ["w.data"]);
/// assert!(tidemill_inference::external::files(b"no model").is_empty());
/// ```
pub fn files(model: &[u8]) -> Vec<String> {
    let mut found = BTreeSet::new();
    let read = Fields::of(model).try_for_each(|field| match field? {
        (7, value) => graph(value.message(), 0, &mut found),
        _ => Ok(()),
    });
    match read {
        Ok(()) => found.into_iter().collect(),
        Err(WireError) => Vec::new(),
    }
}

fn graph(fields: Fields<'_>, depth: usize, found: &mut BTreeSet<String>) -> Result<(), WireError> {
    for field in fields {
        match field? {
            // Its operators.
            (1, value) => {
                for field in value.message() {
                    if let (5, attribute) = field? {
                        self::attribute(attribute.message(), depth, found)?;
                    }
                }
            }
            (5, value) => tensor(value, found)?,
            _ => {}
        }
    }
    Ok(())
}

fn attribute(fields: Fields<'_>, depth: usize, found: &mut BTreeSet<String>) -> Result<(), WireError> {
    for field in fields {
        match field? {
            (5 | 10, value) => tensor(value, found)?,
            (6 | 11, value) if depth < DEEPEST => graph(value.message(), depth + 1, found)?,
            _ => {}
        }
    }
    Ok(())
}

fn tensor(value: FieldValue<'_>, found: &mut BTreeSet<String>) -> Result<(), WireError> {
    for field in value.message() {
        let (13, entry) = field? else { continue };
        let (mut key, mut text) = (None, None);
        for field in entry.message() {
            match field? {
                (1, value) => key = value.text(),
                (2, value) => text = value.text(),
                _ => {}
            }
        }
        if key.as_deref() == Some("location") {
            found.extend(text);
        }
    }
    Ok(())
}
