//! The description of a model in an ONNX file, as protobuf. Field numbers are those of onnx.proto.
use super::{Dimension, Port, PortElement};
use crate::wire::{FieldValue, Fields, WireError};
use std::collections::{BTreeMap, HashMap, HashSet};
use tidemill_spec::types::ElementType;

#[derive(Default)]
pub(super) struct Description {
    pub(super) producer: Option<String>,
    pub(super) opset: Option<i64>,
    pub(super) has_graph: bool,
    pub(super) graph: Graph,
    pub(super) metadata: BTreeMap<String, String>,
}

#[derive(Default)]
pub(super) struct Graph {
    pub(super) inputs: Vec<Port>,
    pub(super) outputs: Vec<Port>,
    pub(super) weights: HashSet<String>,
    pub(super) parameters: u64,
    pub(super) nodes: usize,
    pub(super) is_quantised: bool,
    pub(super) operators: BTreeMap<String, usize>,
    pub(super) makers: HashMap<String, Maker>,
    pub(super) labels: Vec<String>,
}

/// The operator that gives a tensor, and its first input.
#[derive(Clone)]
pub(super) struct Maker {
    operator: String,
    input: Option<String>,
}

/// Returns the operator whose values a tensor has, before operators that only change their form.
pub(super) fn maker(makers: &HashMap<String, Maker>, name: &str) -> Option<String> {
    const FORMS: [&str; 5] = ["Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze"];
    let mut found = makers.get(name)?;
    // A damaged file may have a circle.
    for _ in 0..16 {
        match found.input.as_ref().filter(|_| FORMS.contains(&found.operator.as_str())) {
            Some(input) => found = makers.get(input)?,
            None => break,
        }
    }
    Some(found.operator.clone())
}

pub(super) fn describe(bytes: &[u8]) -> Result<Description, WireError> {
    let mut found = Description::default();
    for field in Fields::of(bytes) {
        match field? {
            (2, value) => found.producer = value.text(),
            (7, value) => {
                found.has_graph = true;
                found.graph = graph(value.message())?;
            }
            (14, value) => {
                let (mut key, mut text) = (None, None);
                for field in value.message() {
                    match field? {
                        (1, value) => key = value.text(),
                        (2, value) => text = value.text(),
                        _ => {}
                    }
                }
                found.metadata.extend(key.zip(text));
            }
            (8, value) => {
                let (mut domain, mut version) = (String::new(), None);
                for field in value.message() {
                    match field? {
                        (1, value) => domain = value.text().unwrap_or_default(),
                        (2, value) => version = value.integer(),
                        _ => {}
                    }
                }
                if domain.is_empty() || domain == "ai.onnx" {
                    found.opset = version;
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

fn graph(fields: Fields<'_>) -> Result<Graph, WireError> {
    let mut found = Graph::default();
    for field in fields {
        match field? {
            (1, value) => {
                found.nodes += 1;
                found.is_quantised |= is_of_8_bits(value.message())?;
                found.parameters = found.parameters.saturating_add(constant(value.message())?);
                found.node(value.message())?;
            }
            (5, value) => {
                let (name, elements) = weight(value.message())?;
                found.weights.insert(name);
                found.parameters = found.parameters.saturating_add(elements);
            }
            (11, value) => found.inputs.push(port(value.message())?),
            (12, value) => found.outputs.push(port(value.message())?),
            _ => {}
        }
    }
    Ok(found)
}

impl Graph {
    /// Adds a node's operator, its outputs, and in the domain `ai.onnx.ml` its weights and labels.
    fn node(&mut self, fields: Fields<'_>) -> Result<(), WireError> {
        const TABLES: &str = "ai.onnx.ml";
        let (mut input, mut outputs) = (None, Vec::new());
        let (mut operator, mut domain) = (String::new(), String::new());
        for field in fields {
            match field? {
                (1, value) if input.is_none() => input = value.text(),
                (2, value) => outputs.extend(value.text()),
                (4, value) => operator = value.text().unwrap_or_default(),
                (7, value) => domain = value.text().unwrap_or_default(),
                _ => {}
            }
        }
        if domain == TABLES {
            let attributes = fields.filter_map(|field| match field {
                Ok((5, value)) => Some(Attribute::of(value.message())),
                _ => None,
            });
            for attribute in attributes {
                let Attribute { name, floats, labels } = attribute?;
                // The hit rates of a tree are no weights.
                if !name.ends_with("hitrates") {
                    self.parameters = self.parameters.saturating_add(floats);
                }
                let is_better = operator == "ZipMap" || self.labels.is_empty();
                if name.starts_with("classlabels") && is_better && !labels.is_empty() {
                    self.labels = labels;
                }
            }
        }
        if !domain.is_empty() && domain != "ai.onnx" {
            operator = format!("{domain}.{operator}");
        }
        let maker = Maker { operator: operator.clone(), input };
        self.makers.extend(outputs.into_iter().map(|output| (output, maker.clone())));
        *self.operators.entry(operator).or_default() += 1;
        Ok(())
    }
}

/// An attribute of a node: the number of its floats, and its texts or integers as labels.
#[derive(Default)]
struct Attribute {
    name: String,
    floats: u64,
    labels: Vec<String>,
}

impl Attribute {
    fn of(fields: Fields<'_>) -> Result<Self, WireError> {
        let mut found = Self::default();
        for field in fields {
            match field? {
                (1, value) => found.name = value.text().unwrap_or_default(),
                (7, FieldValue::Fixed) => found.floats += 1,
                (7, FieldValue::Bytes(packed)) => found.floats += packed.len() as u64 / 4,
                (8, value) if found.name.starts_with("classlabels") => {
                    found.labels.extend(value.integers()?.iter().map(ToString::to_string));
                }
                (9, value) if found.name.starts_with("classlabels") => found.labels.extend(value.text()),
                _ => {}
            }
        }
        Ok(found)
    }
}

/// Whether a node computes with 8 bits.
fn is_of_8_bits(fields: Fields<'_>) -> Result<bool, WireError> {
    for field in fields {
        if let (4, value) = field? {
            return Ok(computes_with_8_bits(&value.text().unwrap_or_default()));
        }
    }
    Ok(false)
}

/// Whether the operator of this name computes with 8 bits.
pub(crate) fn computes_with_8_bits(operator: &str) -> bool {
    operator.starts_with("QLinear")
        || ["QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"].contains(&operator)
}

/// Number of elements of a node's constant: some exporters store weights so.
fn constant(fields: Fields<'_>) -> Result<u64, WireError> {
    let (mut is_constant, mut elements) = (false, 0u64);
    for field in fields {
        match field? {
            (4, value) => is_constant = value.text().is_some_and(|name| name == "Constant"),
            (5, value) => {
                for field in value.message() {
                    if let (5, tensor) = field? {
                        elements = elements.saturating_add(weight(tensor.message())?.1);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(if is_constant { elements } else { 0 })
}

/// Name and number of elements of a tensor.
fn weight(fields: Fields<'_>) -> Result<(String, u64), WireError> {
    let (mut name, mut elements) = (String::new(), 1u64);
    for field in fields {
        match field? {
            (1, value) => {
                for size in value.integers()? {
                    elements = elements.saturating_mul(u64::try_from(size).unwrap_or(0));
                }
            }
            (8, value) => name = value.text().unwrap_or_default(),
            _ => {}
        }
    }
    Ok((name, elements))
}

fn port(fields: Fields<'_>) -> Result<Port, WireError> {
    let mut found = Port::of_no_tensor();
    for field in fields {
        match field? {
            (1, value) => found.name = value.text().unwrap_or_default(),
            (2, value) => {
                for field in value.message() {
                    if let (1, tensor) = field? {
                        tensor_type(tensor.message(), &mut found)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

fn tensor_type(fields: Fields<'_>, port: &mut Port) -> Result<(), WireError> {
    for field in fields {
        match field? {
            (1, value) => port.element = element(value.integer().unwrap_or(0)),
            (2, value) => {
                let mut shape = Vec::new();
                for field in value.message() {
                    if let (1, value) = field? {
                        shape.push(dimension(value)?);
                    }
                }
                port.shape = Some(shape);
            }
            _ => {}
        }
    }
    Ok(())
}

fn dimension(value: FieldValue<'_>) -> Result<Dimension, WireError> {
    let mut found = Dimension::Free(String::new());
    for field in value.message() {
        match field? {
            (1, value) => {
                if let Some(size) =
                    value.integer().and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0)
                {
                    found = Dimension::Fixed(size);
                }
            }
            (2, value) => found = Dimension::Free(value.text().unwrap_or_default()),
            _ => {}
        }
    }
    Ok(found)
}

/// Element type by its number in ONNX.
pub(crate) fn element(number: i64) -> PortElement {
    const NAMES: [&str; 17] = [
        "undefined",
        "float32",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "int32",
        "int64",
        "string",
        "bool",
        "float16",
        "float64",
        "uint32",
        "uint64",
        "complex64",
        "complex128",
        "bfloat16",
    ];
    match number {
        1 => PortElement::Known(ElementType::Float32),
        2 => PortElement::Known(ElementType::Uint8),
        3 => PortElement::Known(ElementType::Int8),
        6 => PortElement::Known(ElementType::Int32),
        7 => PortElement::Known(ElementType::Int64),
        8 => PortElement::Known(ElementType::Text),
        9 => PortElement::Known(ElementType::Bool),
        10 => PortElement::Known(ElementType::Float16),
        11 => PortElement::Known(ElementType::Float64),
        other => {
            let name = usize::try_from(other).ok().and_then(|other| NAMES.get(other));
            PortElement::Other(name.map_or_else(|| format!("ONNX type {other}"), |name| (*name).to_owned()))
        }
    }
}
