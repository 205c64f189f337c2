//! Writes small ONNX models.
#![allow(dead_code, reason = "no test needs all of it")]

/// Numbers of ONNX element types.
pub(crate) const FLOAT: u64 = 1;
pub(crate) const UINT8: u64 = 2;
pub(crate) const FLOAT16: u64 = 10;
pub(crate) const INT64: u64 = 7;
pub(crate) const BOOL: u64 = 9;

/// A message of protocol buffers.
#[derive(Default, Clone)]
pub(crate) struct Message(pub(crate) Vec<u8>);

impl Message {
    pub(crate) fn varint(mut self, mut value: u64) -> Self {
        while value > 127 {
            self.0.push(value as u8 | 128);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }
    pub(crate) fn number(self, field: u64, value: u64) -> Self {
        self.varint(field << 3).varint(value)
    }
    pub(crate) fn bytes(self, field: u64, bytes: &[u8]) -> Self {
        let mut message = self.varint(field << 3 | 2).varint(bytes.len() as u64);
        message.0.extend_from_slice(bytes);
        message
    }
    pub(crate) fn text(self, field: u64, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }
    pub(crate) fn message(self, field: u64, message: &Message) -> Self {
        self.bytes(field, &message.0)
    }
}

pub(crate) fn node(operator: &str, from: &str, to: &str, attributes: &[Message]) -> Message {
    let node = Message::default().text(1, from).text(2, to).text(4, operator);
    attributes.iter().fold(node, |node, attribute| node.message(5, attribute))
}

pub(crate) fn cast(from: &str, to: &str, element: u64) -> Message {
    node("Cast", from, to, &[Message::default().text(1, "to").number(3, element).number(20, 2)])
}

pub(crate) fn port(name: &str, element: u64, row: &[u64]) -> Message {
    let batch = Message::default().text(2, "batch");
    let shape = row.iter().fold(Message::default().message(1, &batch), |shape, size| {
        shape.message(1, &Message::default().number(1, *size))
    });
    let tensor = Message::default().number(1, element).message(2, &shape);
    Message::default().text(1, name).message(2, &Message::default().message(1, &tensor))
}

/// An attribute that is an integer.
pub(crate) fn integer(name: &str, value: i64) -> Message {
    Message::default().text(1, name).number(3, value as u64).number(20, 2)
}

/// An attribute that is a text.
pub(crate) fn text(name: &str, value: &str) -> Message {
    Message::default().text(1, name).text(4, value).number(20, 3)
}

/// An operator of several inputs.
pub(crate) fn joining(operator: &str, from: &[&str], to: &str, attributes: &[Message]) -> Message {
    let node = from.iter().fold(Message::default(), |node, from| node.text(1, from));
    let node = node.text(2, to).text(4, operator);
    attributes.iter().fold(node, |node, attribute| node.message(5, attribute))
}

/// Weights of 32-bit floats.
pub(crate) fn floats(name: &str, shape: &[u64], values: &[f32]) -> Message {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let sizes = shape.iter().fold(Message::default(), |weights, size| weights.number(1, *size));
    sizes.number(2, FLOAT).text(8, name).bytes(9, &bytes)
}

/// Weights of int64.
pub(crate) fn integers(name: &str, values: &[i64]) -> Message {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Message::default().number(1, values.len() as u64).number(2, INT64).text(8, name).bytes(9, &bytes)
}

/// The bytes of a model of one input and one output.
pub(crate) fn model(
    opset: u64,
    nodes: &[Message],
    weights: &[Message],
    input: &Message,
    output: &Message,
) -> Vec<u8> {
    let graph = nodes.iter().fold(Message::default().text(2, "graph"), |graph, node| graph.message(1, node));
    let graph = weights.iter().fold(graph, |graph, weight| graph.message(5, weight));
    let graph = graph.message(11, input).message(12, output);
    let opset = Message::default().text(1, "").number(2, opset);
    Message::default().number(1, 8).message(7, &graph).message(8, &opset).0
}
