//! The operators of an ONNX file, as far as the checks for known faults of backends need them.
use crate::wire::{FieldValue, Fields, WireError};
use std::collections::HashMap;

/// ONNX's numbers of element types.
pub(super) const INT64: i64 = 7;
/// See [`INT64`].
pub(super) const BOOL: i64 = 9;
/// Largest nesting of graphs that is read.
const DEEPEST: usize = 16;

/// An operator.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) operator: String,
    /// Its name in the file, which may be empty.
    name: String,
    /// Whether it belongs to ONNX's standard set of operators.
    pub(super) is_standard: bool,
    /// Whether it is in the body of a loop or condition.
    pub(super) is_inner: bool,
    /// Names of the values it reads; empty for one that is left out.
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<String>,
    integers: HashMap<String, i64>,
    texts: HashMap<String, String>,
}

impl Node {
    pub(super) fn integer(&self, attribute: &str) -> Option<i64> {
        self.integers.get(attribute).copied()
    }

    pub(super) fn text(&self, attribute: &str) -> Option<&str> {
        self.texts.get(attribute).map(String::as_str)
    }

    /// Its name in messages.
    pub(super) fn called(&self) -> String {
        let name = if self.name.is_empty() { self.outputs.first() } else { Some(&self.name) };
        format!("{} `{}`", self.operator, name.map_or("", String::as_str))
    }
}

/// Constant numbers in the file: weights and `Constant` operators.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    /// The least and the largest, for int64 constants in the file itself.
    pub(super) range: Option<(i64, i64)>,
}

/// Operators and constants of a file.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// Version of the standard set of operators.
    pub(super) opset: i64,
    /// In the order of the file, including those of bodies.
    pub(super) nodes: Vec<Node>,
    pub(super) held: HashMap<String, Held>,
    pub(super) outputs: Vec<String>,
}

/// Reads the operators of a file.
pub(super) fn read(bytes: &[u8]) -> Result<Graph, WireError> {
    let mut graph = Graph::default();
    for field in Fields::of(bytes) {
        match field? {
            (7, value) => graph.add(value.message(), 0)?,
            (8, value) => {
                let (mut domain, mut version) = (String::new(), 0);
                for field in value.message() {
                    match field? {
                        (1, value) => domain = value.text().unwrap_or_default(),
                        (2, value) => version = value.integer().unwrap_or(0),
                        _ => {}
                    }
                }
                if is_standard(&domain) {
                    graph.opset = version;
                }
            }
            _ => {}
        }
    }
    Ok(graph)
}

fn is_standard(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

impl Graph {
    /// Adds the operators and constants of a graph; the numbers are those of onnx.proto.
    fn add(&mut self, fields: Fields<'_>, depth: usize) -> Result<(), WireError> {
        for field in fields {
            match field? {
                (1, value) => self.add_node(value.message(), depth)?,
                (5, value) => {
                    let (name, held) = tensor(value.message())?;
                    self.held.insert(name, held);
                }
                (12, value) if depth == 0 => {
                    for field in value.message() {
                        if let (1, value) = field? {
                            self.outputs.push(value.text().unwrap_or_default());
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn add_node(&mut self, fields: Fields<'_>, depth: usize) -> Result<(), WireError> {
        let mut node = Node { is_standard: true, is_inner: depth > 0, ..Node::default() };
        let (mut held, mut bodies) = (None, Vec::new());
        for field in fields {
            match field? {
                (1, value) => node.inputs.push(value.text().unwrap_or_default()),
                (2, value) => node.outputs.push(value.text().unwrap_or_default()),
                (3, value) => node.name = value.text().unwrap_or_default(),
                (4, value) => node.operator = value.text().unwrap_or_default(),
                (7, value) => node.is_standard = is_standard(&value.text().unwrap_or_default()),
                (5, value) => {
                    let mut name = String::new();
                    let mut integers: Option<Vec<i64>> = None;
                    let mut text = None;
                    for field in value.message() {
                        match field? {
                            (1, value) => name = value.text().unwrap_or_default(),
                            (3, FieldValue::Integer(value)) => integers = Some(vec![value as i64]),
                            (4, value) => text = value.text(),
                            (5, value) => held = Some(tensor(value.message())?.1),
                            (6 | 11, value) => bodies.push(value.message()),
                            (8, value) => integers.get_or_insert_default().extend(value.integers()?),
                            _ => {}
                        }
                    }
                    if name.starts_with("value_int")
                        && let Some(integers) = &integers
                    {
                        held = Some(Held { range: range(integers.iter().copied()) });
                    }
                    if let Some([integer]) = integers.as_deref() {
                        node.integers.insert(name.clone(), *integer);
                    }
                    node.texts.extend(text.map(|text| (name, text)));
                }
                _ => {}
            }
        }
        if node.operator == "Constant"
            && let (Some(held), Some(output)) = (held, node.outputs.first())
        {
            self.held.insert(output.clone(), held);
        }
        self.nodes.push(node);
        if depth < DEEPEST {
            for body in bodies {
                self.add(body, depth + 1)?;
            }
        }
        Ok(())
    }

    /// The operators that read a value.
    pub(super) fn readers<'a>(&'a self, value: &'a str) -> impl Iterator<Item = (&'a Node, usize)> {
        self.nodes.iter().flat_map(move |node| {
            let places = node.inputs.iter().enumerate().filter(move |(_, input)| *input == value);
            places.map(move |(place, _)| (node, place))
        })
    }
}

fn range(values: impl Iterator<Item = i64>) -> Option<(i64, i64)> {
    values.fold(None, |range, value| {
        let (least, most) = range.unwrap_or((value, value));
        Some((least.min(value), most.max(value)))
    })
}

/// Name and content of a tensor.
fn tensor(fields: Fields<'_>) -> Result<(String, Held), WireError> {
    let (mut name, mut element, mut integers, mut raw) = (String::new(), 0, Vec::new(), &[][..]);
    for field in fields {
        match field? {
            (2, value) => element = value.integer().unwrap_or(0),
            (7, value) => integers.extend(value.integers()?),
            (8, value) => name = value.text().unwrap_or_default(),
            (9, FieldValue::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let range = (element == INT64).then(|| {
        let raw = raw.chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap_or_default()));
        range(integers.into_iter().chain(raw))
    });
    Ok((name, Held { range: range.flatten() }))
}
