//! Maps of classes to probabilities, with which converters of classifiers end a model by default (the operator `ZipMap`), read as
//! plain tensors.
//!
//! Columns have one shape, and the classes are the same for every record. So the operator is replaced by one that copies its
//! input, `[records, classes]`, when a backend loads the file; the file itself stays.
use crate::facts::{Dimension, Port, PortElement};
use crate::wire::{FieldValue, Fields, WireError};
use tidemill_spec::types::ElementType;

/// ONNX's number of 32-bit floats.
const FLOAT: u64 = 1;

/// An output of a file that is a sequence of maps, one for each record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MapOutput {
    /// Its name.
    pub(crate) name: String,
    /// The classes, in the order of the tensor's columns.
    pub(crate) labels: Vec<String>,
}

impl MapOutput {
    /// The output as a tensor.
    pub(crate) fn port(&self) -> Port {
        Port {
            name: self.name.clone(),
            element: PortElement::Known(ElementType::Float32),
            shape: Some(vec![Dimension::Free(String::new()), Dimension::Fixed(self.labels.len())]),
        }
    }

    /// The classes as a text with one in each line; `None` if one of them has several lines.
    pub(crate) fn lines(&self) -> Option<String> {
        let is_line = |label: &String| !label.contains(['\n', '\r']);
        self.labels
            .iter()
            .all(is_line)
            .then(|| self.labels.iter().map(|label| format!("{label}\n")).collect())
    }
}

/// Returns the outputs of a file that are maps.
pub(crate) fn outputs(file: &[u8]) -> Result<Vec<MapOutput>, WireError> {
    let mut names = Vec::new();
    for graph in graphs(file) {
        for field in graph?.message() {
            if let (12, value) = field? {
                names.push(name(value)?);
            }
        }
    }
    Ok(values(file)?.into_iter().filter(|value| names.contains(&value.name)).collect())
}

/// Returns the values of a file that are maps, outputs and others.
fn values(file: &[u8]) -> Result<Vec<MapOutput>, WireError> {
    let mut values: Vec<MapOutput> = Vec::new();
    for graph in graphs(file) {
        for field in graph?.message() {
            if let (1, value) = field? {
                values.extend(Node::read(value.message())?.map(&values));
            }
        }
    }
    Ok(values)
}

/// Returns the file with tensors instead of the maps among its outputs.
pub(crate) fn as_tensors(file: &[u8]) -> Result<Vec<u8>, WireError> {
    let maps = values(file)?;
    let mut changed = Vec::with_capacity(file.len());
    for field in Fields::of(file) {
        match field? {
            (7, value) => {
                let mut graph = Vec::new();
                for field in value.message() {
                    let (number, value) = field?;
                    match number {
                        1 if Node::read(value.message())?.is_map() => {
                            append(&mut graph, 1, &Node::read(value.message())?.copying());
                        }
                        // An output, or the type of another value.
                        12 | 13 => {
                            let name = name(value)?;
                            match maps.iter().find(|map| map.name == name) {
                                Some(map) => append(&mut graph, number, &declaration(map)),
                                None => copy(&mut graph, number, value)?,
                            }
                        }
                        number => copy(&mut graph, number, value)?,
                    }
                }
                append(&mut changed, 7, &graph);
            }
            (number, value) => copy(&mut changed, number, value)?,
        }
    }
    Ok(changed)
}

/// The graphs of a file: one.
fn graphs(file: &[u8]) -> impl Iterator<Item = Result<FieldValue<'_>, WireError>> {
    Fields::of(file).filter_map(|field| match field {
        Ok((7, value)) => Some(Ok(value)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}

/// The name of a declared input or output.
fn name(value: FieldValue<'_>) -> Result<String, WireError> {
    for field in value.message() {
        if let (1, value) = field? {
            return Ok(value.text().unwrap_or_default());
        }
    }
    Ok(String::new())
}

/// An operator, as far as maps matter.
#[derive(Debug, Default)]
struct Node {
    operator: String,
    domain: String,
    input: String,
    output: String,
    labels: Vec<String>,
}

impl Node {
    fn read(fields: Fields<'_>) -> Result<Self, WireError> {
        let (mut node, mut attributes) = (Self::default(), Vec::new());
        for field in fields {
            match field? {
                (1, value) if node.input.is_empty() => node.input = value.text().unwrap_or_default(),
                (2, value) if node.output.is_empty() => node.output = value.text().unwrap_or_default(),
                (4, value) => node.operator = value.text().unwrap_or_default(),
                (5, value) => attributes.push(value),
                (7, value) => node.domain = value.text().unwrap_or_default(),
                _ => {}
            }
        }
        if !node.is_map() {
            return Ok(node);
        }
        for attribute in attributes {
            let (mut name, mut labels) = (String::new(), Vec::new());
            for field in attribute.message() {
                match field? {
                    (1, value) => name = value.text().unwrap_or_default(),
                    (8, value) => labels.extend(value.integers()?.iter().map(ToString::to_string)),
                    (9, value) => labels.push(value.text().unwrap_or_default()),
                    _ => {}
                }
            }
            if name.starts_with("classlabels_") && !labels.is_empty() {
                node.labels = labels;
            }
        }
        Ok(node)
    }

    fn is_map(&self) -> bool {
        self.operator == "ZipMap" && self.domain == "ai.onnx.ml"
    }

    /// The map that it gives; `known`: those of the operators before it.
    fn map(&self, known: &[MapOutput]) -> Option<MapOutput> {
        let labels = match self.operator.as_str() {
            "ZipMap" if self.is_map() && !self.labels.is_empty() => self.labels.clone(),
            // Some converters rename outputs so.
            "Identity" => known.iter().find(|value| value.name == self.input)?.labels.clone(),
            _ => return None,
        };
        Some(MapOutput { name: self.output.clone(), labels })
    }

    /// An operator that copies the input of this one.
    fn copying(&self) -> Vec<u8> {
        let mut node = Vec::new();
        append(&mut node, 1, self.input.as_bytes());
        append(&mut node, 2, self.output.as_bytes());
        append(&mut node, 4, b"Identity");
        node
    }
}

/// The declaration of a map as a tensor of floats.
fn declaration(map: &MapOutput) -> Vec<u8> {
    let (mut classes, mut shape, mut tensor, mut kind, mut port) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    integer(&mut classes, 1, map.labels.len() as u64);
    append(&mut shape, 1, &[]);
    append(&mut shape, 1, &classes);
    integer(&mut tensor, 1, FLOAT);
    append(&mut tensor, 2, &shape);
    append(&mut kind, 1, &tensor);
    append(&mut port, 1, map.name.as_bytes());
    append(&mut port, 2, &kind);
    port
}

fn copy(to: &mut Vec<u8>, number: u64, value: FieldValue<'_>) -> Result<(), WireError> {
    match value {
        FieldValue::Integer(value) => integer(to, number, value),
        FieldValue::Bytes(bytes) => append(to, number, bytes),
        // Neither a file nor a graph has one.
        FieldValue::Fixed => return Err(WireError),
    }
    Ok(())
}

fn integer(to: &mut Vec<u8>, number: u64, value: u64) {
    varint(to, number << 3);
    varint(to, value);
}

fn append(to: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    varint(to, number << 3 | 2);
    varint(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value > 127 {
        to.push(value as u8 | 128);
        value >>= 7;
    }
    to.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::inspect_bytes;
    use std::path::Path;

    fn file(name: &str) -> Vec<u8> {
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tables").join(name)).unwrap()
    }

    #[test]
    fn a_map_becomes_a_tensor_with_its_classes() {
        let bytes = file("forest_zipmap.onnx");
        let maps = outputs(&bytes).unwrap();
        assert_eq!(maps.len(), 1);
        assert_eq!((maps[0].name.as_str(), maps[0].labels.len()), ("output_probability", 3));
        let changed = as_tensors(&bytes).unwrap();
        assert_eq!(outputs(&changed), Ok(Vec::new()));
        let facts = |bytes: &[u8]| inspect_bytes(Path::new("m.onnx"), bytes).unwrap();
        let (before, after) = (facts(&bytes), facts(&changed));
        assert_eq!((&before.inputs, &before.outputs), (&after.inputs, &after.outputs));
        assert_eq!((before.nodes, before.parameters), (after.nodes, after.parameters));
        assert_eq!(before.outputs[1].type_text(), "[?, 3] float32");
        assert_eq!(before.maps, ["output_probability"]);
        let labels = &before.metadata["output_probability"];
        assert_eq!(labels.lines().collect::<Vec<_>>(), maps[0].labels);
    }

    #[test]
    fn other_files_stay_as_they_are() {
        let bytes = file("forest.onnx");
        assert_eq!(outputs(&bytes), Ok(Vec::new()));
        assert_eq!(as_tensors(&bytes).unwrap(), bytes);
    }

    proptest::proptest! {
        #[test]
        fn a_damaged_file_never_panics(changes: Vec<(u16, u8)>) {
            let mut bytes = file("forest_zipmap.onnx");
            for (at, value) in changes {
                let length = bytes.len();
                bytes[usize::from(at) % length] = value;
            }
            let _ = as_tensors(&bytes);
        }
    }

    #[test]
    fn classes_of_several_lines_are_no_list() {
        let map = |labels: &[&str]| MapOutput {
            name: "y".to_owned(),
            labels: labels.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(map(&["a", ""]).lines().as_deref(), Some("a\n\n"));
        assert_eq!(map(&["a\nb"]).lines(), None);
    }
}
