//! A perceptron as an ONNX file.
//!
//! Inputs are flattened and joined, scaled (`Sub`, `Div`), and pass linear layers (`Gemm`) with rectifiers (`Relu`) between them; the output
//! `logits` has a score for each class. [`read`] also takes files of others with that form, with `MatMul` and `Add` instead of `Gemm`, and
//! with a `Softmax` at the end.
//!
//! ```
//! use tidemill_training::onnx::{self, Network, Port};
//! let port = Port { name: "x".into(), shape: vec![2] };
//! let (mean, scale) = (vec![1.0, 0.0], vec![2.0, 1.0]);
//! let network = Network { ports: vec![port], mean, scale, sizes: vec![2, 1], parameters: vec![0.5, 0.25, -1.0] };
//! assert_eq!(onnx::read(&onnx::write(&network))?, network);
//! # Ok::<(), onnx::OnnxError>(())
//! ```
mod messages;
mod reading;

use messages::{
    Attribute, Dimension, FLOAT, Graph, INTEGER, Model, Node, OperatorSet, Shape, Tensor, TensorType, Type,
};
use prost::Message;
pub use reading::{OnnxError, read};

/// Name of the output.
pub const OUTPUT: &str = "logits";

/// Versions that all back ends know.
const IR_VERSION: i64 = 8;
const OPERATOR_SET: i64 = 17;

/// An input of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its shape without the dimension of the batch.
    pub shape: Vec<usize>,
}

/// The content of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// Inputs in the order in which their values are joined.
    pub ports: Vec<Port>,
    /// Subtracted from each value.
    pub mean: Vec<f64>,
    /// Divides each value after that.
    pub scale: Vec<f64>,
    /// Values of all layers, from the inputs to the classes.
    pub sizes: Vec<usize>,
    /// Parameters of the layers: of each the rows of its weights, then the bias.
    pub parameters: Vec<f64>,
}

/// Returns the bytes of a file. Numbers have 32 bits there.
pub fn write(network: &Network) -> Vec<u8> {
    let mut graph = Graph {
        name: "perceptron".to_owned(),
        input: network.ports.iter().map(|port| self::port(&port.name, &port.shape)).collect(),
        output: network.sizes.last().map(|classes| port(OUTPUT, &[*classes])).into_iter().collect(),
        ..Graph::default()
    };
    let mut flat = Vec::new();
    for (index, port) in network.ports.iter().enumerate() {
        if port.shape.len() == 1 {
            flat.push(port.name.clone());
            continue;
        }
        let name = format!("flat_{index}");
        graph.node.push(node("Flatten", &[&port.name], &name, &[("axis", 1)]));
        flat.push(name);
    }
    let mut value = match &flat[..] {
        [one] => one.clone(),
        all => {
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            graph.node.push(node("Concat", &all, "joined", &[("axis", 1)]));
            "joined".to_owned()
        }
    };
    for (operator, name, numbers, neutral) in
        [("Sub", "mean", &network.mean, 0.0), ("Div", "scale", &network.scale, 1.0)]
    {
        if numbers.iter().any(|number| *number != neutral) {
            graph.initializer.push(tensor(name, &[numbers.len()], numbers));
            let output = format!("{operator}_inputs").to_lowercase();
            graph.node.push(node(operator, &[&value, name], &output, &[]));
            value = output;
        }
    }
    let layers = network.sizes.len().saturating_sub(1);
    let mut rest = &network.parameters[..];
    for (index, pair) in network.sizes.windows(2).enumerate() {
        let (inputs, outputs) = (pair[0], pair[1]);
        let (weights, after) = rest.split_at(inputs * outputs);
        let (bias, after) = after.split_at(outputs);
        rest = after;
        let names = [format!("weights_{index}"), format!("bias_{index}")];
        graph.initializer.push(tensor(&names[0], &[outputs, inputs], weights));
        graph.initializer.push(tensor(&names[1], &[outputs], bias));
        let is_last = index + 1 == layers;
        let output = if is_last { OUTPUT.to_owned() } else { format!("layer_{index}") };
        graph.node.push(node("Gemm", &[&value, &names[0], &names[1]], &output, &[("transB", 1)]));
        value = output;
        if !is_last {
            let rectified = format!("rectified_{index}");
            graph.node.push(node("Relu", &[&value], &rectified, &[]));
            value = rectified;
        }
    }
    let model = Model {
        ir_version: IR_VERSION,
        producer_name: "tidemill".to_owned(),
        graph: Some(graph),
        opset_import: vec![OperatorSet { domain: String::new(), version: OPERATOR_SET }],
    };
    model.encode_to_vec()
}

fn node(operator: &str, inputs: &[&str], output: &str, attributes: &[(&str, i64)]) -> Node {
    let attribute = |(name, number): &(&str, i64)| Attribute {
        name: (*name).to_owned(),
        i: *number,
        kind: INTEGER,
        ..Attribute::default()
    };
    Node {
        input: inputs.iter().map(|input| (*input).to_owned()).collect(),
        output: vec![output.to_owned()],
        name: output.to_owned(),
        op_type: operator.to_owned(),
        attribute: attributes.iter().map(attribute).collect(),
    }
}

fn tensor(name: &str, shape: &[usize], values: &[f64]) -> Tensor {
    Tensor {
        dims: shape.iter().map(|size| *size as i64).collect(),
        data_type: FLOAT,
        name: name.to_owned(),
        raw_data: values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect(),
        ..Tensor::default()
    }
}

fn port(name: &str, shape: &[usize]) -> messages::Port {
    let batch = Dimension { value: None, parameter: Some("batch".to_owned()) };
    let sizes = shape.iter().map(|size| Dimension { value: Some(*size as i64), parameter: None });
    let shape = Shape { dim: std::iter::once(batch).chain(sizes).collect() };
    let tensor = TensorType { element: FLOAT, shape: Some(shape) };
    messages::Port { name: name.to_owned(), kind: Some(Type { tensor: Some(tensor) }) }
}
