//! Reads a perceptron from an ONNX file.
use super::messages::{FLOAT, Graph, Model, Node, Tensor};
use super::{Network, Port};
use prost::Message;
use std::collections::HashMap;

/// Why a file is no perceptron that can be trained.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// It is no ONNX file.
    #[error("it is no ONNX file: {0}")]
    Format(#[from] prost::DecodeError),
    /// It has another form.
    #[error("it is no perceptron: {0}")]
    Form(String),
}

/// Operators of a perceptron.
const OPERATORS: [&str; 10] =
    ["Flatten", "Concat", "Sub", "Div", "Gemm", "MatMul", "Add", "Relu", "Softmax", "LogSoftmax"];

/// Most numbers of an input: there is memory for all of them before the weights are compared with them.
const MOST_NUMBERS: usize = 1 << 24;

/// What is wrong with another one, or with one in another place.
const OTHER: &str =
    "is not where a perceptron has it: linear layers with rectifiers between them can be trained";

/// Weights by name: shape and values.
type Constants = HashMap<String, (Vec<usize>, Vec<f64>)>;

/// Reads a file.
///
/// # Errors
/// It is no ONNX file, or one of another form; the text names the operator that does not fit.
pub fn read(bytes: &[u8]) -> Result<Network, OnnxError> {
    let graph = Model::decode(bytes)?.graph.ok_or_else(|| form("it has no graph"))?;
    let constants: Constants =
        graph.initializer.iter().filter_map(|tensor| Some((tensor.name.clone(), numbers(tensor)?))).collect();
    let ports = ports(&graph, &constants)?;
    let width: usize = ports.iter().map(|port| port.shape.iter().product::<usize>()).sum();
    let mut walk = Walk {
        flat: ports.iter().enumerate().map(|(index, port)| (port.name.clone(), index)).collect(),
        ports,
        constants,
        value: None,
        mean: vec![0.0; width],
        scale: vec![1.0; width],
        sizes: vec![width],
        parameters: Vec::new(),
        state: State::Inputs,
    };
    graph.node.iter().try_for_each(|node| walk.step(node))?;
    let is_output = graph.output.iter().any(|output| Some(&output.name) == walk.value.as_ref());
    if !matches!(walk.state, State::Layer | State::Probabilities) || !is_output {
        return Err(form("its output is not that of a linear layer"));
    }
    let Walk { ports, mean, scale, sizes, parameters, .. } = walk;
    Ok(Network { ports, mean, scale, sizes, parameters })
}

fn form(text: impl Into<String>) -> OnnxError {
    OnnxError::Form(text.into())
}

/// Returns the values of a tensor of 32-bit floats.
fn numbers(tensor: &Tensor) -> Option<(Vec<usize>, Vec<f64>)> {
    let shape: Vec<usize> =
        tensor.dims.iter().map(|size| usize::try_from(*size).ok()).collect::<Option<_>>()?;
    let raw = tensor.raw_data.as_chunks::<4>().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
    let values: Vec<f64> = match tensor.raw_data.is_empty() {
        false => raw.collect(),
        true => tensor.float_data.iter().map(|value| f64::from(*value)).collect(),
    };
    let count = shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size))?;
    (tensor.data_type == FLOAT && values.len() == count).then_some((shape, values))
}

fn ports(graph: &Graph, constants: &Constants) -> Result<Vec<Port>, OnnxError> {
    let inputs = graph.input.iter().filter(|input| !constants.contains_key(&input.name));
    let port = |input: &super::messages::Port| {
        let tensor = input.kind.as_ref().and_then(|kind| kind.tensor.as_ref());
        let shape = tensor.and_then(|tensor| tensor.shape.as_ref());
        let sizes = shape.map(|shape| &shape.dim[..]).unwrap_or_default().iter().skip(1);
        let sizes: Option<Vec<usize>> = sizes.map(|size| usize::try_from(size.value?).ok()).collect();
        let is_bounded = |sizes: &Vec<usize>| {
            let count = sizes.iter().try_fold(1usize, |count, size| count.checked_mul(*size));
            !sizes.is_empty() && count.is_some_and(|count| (1..=MOST_NUMBERS).contains(&count))
        };
        match sizes.filter(is_bounded) {
            Some(shape) => Ok(Port { name: input.name.clone(), shape }),
            None => {
                let text =
                    format!("its input `{}` has no fixed size of at most {MOST_NUMBERS} numbers", input.name);
                Err(form(text))
            }
        }
    };
    inputs.map(port).collect()
}

/// What was found last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Inputs,
    /// A product without a bias yet.
    Product,
    Layer,
    Rectified,
    Probabilities,
}

struct Walk {
    ports: Vec<Port>,
    constants: Constants,
    /// Values that are an input, perhaps flattened.
    flat: HashMap<String, usize>,
    /// The value that all inputs have become.
    value: Option<String>,
    mean: Vec<f64>,
    scale: Vec<f64>,
    sizes: Vec<usize>,
    parameters: Vec<f64>,
    state: State,
}

impl Walk {
    fn step(&mut self, node: &Node) -> Result<(), OnnxError> {
        let name = if node.name.is_empty() { node.output.first() } else { Some(&node.name) };
        let called = format!("{} `{}`", node.op_type, name.map_or("", String::as_str));
        let wrong = |why: &str| form(format!("{called} {why}"));
        if !OPERATORS.contains(&node.op_type.as_str()) {
            return Err(wrong(OTHER));
        }
        let output = node.output.first().ok_or_else(|| wrong("has no output"))?.clone();
        let first = node.input.first().ok_or_else(|| wrong("has no input"))?.clone();
        let integer = |name: &str, default: i64| {
            node.attribute.iter().find(|one| one.name == name).map_or(default, |one| one.i)
        };
        match node.op_type.as_str() {
            "Flatten" if integer("axis", 1) == 1 && self.value.is_none() => {
                let index = *self.flat.get(&first).ok_or_else(|| wrong("flattens no input"))?;
                self.flat.insert(output, index);
                return Ok(());
            }
            "Concat" if self.value.is_none() && matches!(integer("axis", 0), 1 | -1) => {
                let order: Option<Vec<usize>> =
                    node.input.iter().map(|input| self.flat.get(input).copied()).collect();
                let order = order.filter(|order| self.is_whole(order));
                let order = order.ok_or_else(|| wrong("does not join each input once"))?;
                self.ports = order.iter().map(|index| self.ports[*index].clone()).collect();
                self.value = Some(output);
                return Ok(());
            }
            _ => {}
        }
        if self.value.is_none() {
            // A single input needs no `Concat`.
            self.value = (self.ports.len() == 1 && self.flat.contains_key(&first)).then(|| first.clone());
        }
        if self.value.as_ref() != Some(&first) {
            return Err(wrong("does not read what comes before it"));
        }
        let constant = |index: usize| node.input.get(index).and_then(|input| self.constants.get(input));
        let width = self.sizes.last().copied().unwrap_or_default();
        self.state = match (node.op_type.as_str(), self.state) {
            ("Sub" | "Div", State::Inputs) => {
                let numbers = constant(1).map(|(_, values)| values.clone());
                let numbers = numbers.filter(|values| values.len() == width);
                let numbers = numbers.ok_or_else(|| wrong("has not a number for each input"))?;
                match node.op_type == "Sub" {
                    true => self.mean = numbers,
                    false => self.scale = numbers,
                }
                State::Inputs
            }
            ("Gemm" | "MatMul", State::Inputs | State::Rectified) => {
                let float =
                    |name: &str| node.attribute.iter().find(|one| one.name == name).map_or(1.0, |one| one.f);
                if integer("transA", 0) != 0 || float("alpha") != 1.0 || float("beta") != 1.0 {
                    return Err(wrong("is no plain product"));
                }
                let rows_are_outputs = integer("transB", 0) != 0;
                let weights = constant(1).ok_or_else(|| wrong("has no weights of 32-bit floats"))?;
                let (weights, outputs) = rows(weights, width, rows_are_outputs)
                    .ok_or_else(|| wrong("has weights of another size"))?;
                let bias = match (node.op_type == "Gemm", node.input.len()) {
                    (true, 3..) => Some(constant(2).ok_or_else(|| wrong("has no bias of 32-bit floats"))?),
                    _ => None,
                };
                let bias = bias.map(|(_, bias)| bias.clone());
                self.parameters.extend(weights);
                self.sizes.push(outputs);
                match bias {
                    Some(bias) if bias.len() == outputs => {
                        self.parameters.extend(bias);
                        State::Layer
                    }
                    Some(_) => return Err(wrong("has a bias of another size")),
                    None if node.op_type == "Gemm" => {
                        self.parameters.extend(std::iter::repeat_n(0.0, outputs));
                        State::Layer
                    }
                    None => State::Product,
                }
            }
            ("Add", State::Product) => {
                let bias = constant(1).filter(|(_, bias)| bias.len() == width);
                let bias = bias.ok_or_else(|| wrong("has a bias of another size"))?.1.clone();
                self.parameters.extend(bias);
                State::Layer
            }
            ("Relu", State::Layer) => State::Rectified,
            ("Softmax" | "LogSoftmax", State::Layer) => State::Probabilities,
            _ => return Err(wrong(OTHER)),
        };
        self.value = Some(output);
        Ok(())
    }

    /// Whether these are all inputs, each once.
    fn is_whole(&self, order: &[usize]) -> bool {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        sorted.into_iter().eq(0..self.ports.len())
    }
}

/// Returns weights with a row for each output, and how many there are.
fn rows(weights: &(Vec<usize>, Vec<f64>), width: usize, is_so: bool) -> Option<(Vec<f64>, usize)> {
    let (shape, values) = weights;
    match (&shape[..], is_so) {
        ([outputs, inputs], true) if *inputs == width => Some((values.clone(), *outputs)),
        ([inputs, outputs], false) if *inputs == width => {
            let places = (0..*outputs).flat_map(|row| (0..*inputs).map(move |column| column * outputs + row));
            Some((places.map(|place| values[place]).collect(), *outputs))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{node, port, tensor, write};
    use super::*;
    use crate::onnx::messages::{Attribute, OperatorSet};

    /// Numbers that 32 bits hold exactly.
    fn network() -> Network {
        let sizes = vec![7, 3, 2];
        let count = 3 * 8 + 2 * 4;
        let parameters = (0..count).map(|index| f64::from(index) / 8.0 - 2.0).collect();
        let port = |name: &str, shape: &[usize]| Port { name: name.into(), shape: shape.to_vec() };
        Network {
            ports: vec![port("text", &[2, 2]), port("numbers", &[3])],
            mean: (0..7).map(f64::from).collect(),
            scale: vec![1.0, 2.0, 1.0, 4.0, 1.0, 1.0, 0.5],
            sizes,
            parameters,
        }
    }

    fn changed(change: impl Fn(&mut Graph)) -> Result<Network, OnnxError> {
        let mut model = Model::decode(&write(&network())[..]).unwrap();
        change(model.graph.as_mut().unwrap());
        read(&model.encode_to_vec())
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read(&write(&network())).unwrap(), network());
        let plain = Network { mean: vec![0.0; 7], scale: vec![1.0; 7], ..network() };
        assert_eq!(read(&write(&plain)).unwrap(), plain);
        let model = Model::decode(&write(&plain)[..]).unwrap();
        let operators: Vec<String> = model.graph.unwrap().node.into_iter().map(|node| node.op_type).collect();
        assert_eq!(operators, ["Flatten", "Concat", "Gemm", "Relu", "Gemm"], "nothing that does nothing");
    }

    /// Other programs write products and biases apart, weights by inputs, and numbers in another field.
    #[test]
    fn files_of_others_are_read() {
        let mut graph = Graph {
            input: vec![port("x", &[2])],
            output: vec![port("probabilities", &[3])],
            ..Graph::default()
        };
        let weights = tensor("w", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let mut bias = tensor("b", &[3], &[0.5, 1.5, 2.5]);
        bias.float_data = vec![0.5, 1.5, 2.5];
        bias.raw_data.clear();
        graph.initializer = vec![weights, bias];
        graph.node = vec![
            node("MatMul", &["x", "w"], "product", &[]),
            node("Add", &["product", "b"], "scores", &[]),
            node("Softmax", &["scores"], "probabilities", &[("axis", -1)]),
        ];
        let opset_import = vec![OperatorSet { domain: String::new(), version: 13 }];
        let model = Model { ir_version: 8, graph: Some(graph), opset_import, ..Model::default() };
        let network = read(&model.encode_to_vec()).unwrap();
        assert_eq!(network.parameters, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0, 0.5, 1.5, 2.5]);
        assert_eq!(network.sizes, [2, 3]);
    }

    #[test]
    fn other_forms_are_refused() {
        let refused = |expected: &str, change: &dyn Fn(&mut Graph)| {
            let error = changed(change).unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        };
        refused("Conv `layer_0` is not where a perceptron has it", &|graph| {
            graph.node[4].op_type = "Conv".to_owned();
        });
        refused("Tanh", &|graph| graph.node[5].op_type = "Tanh".to_owned());
        refused("weights of another size", &|graph| graph.initializer[2].dims.reverse());
        refused("no weights of 32-bit floats", &|graph| graph.initializer[2].data_type = 7);
        refused("not a number for each input", &|graph| {
            graph.initializer[0] = tensor("mean", &[1], &[2.0]);
        });
        refused("does not join each input once", &|graph| graph.node[1].input.truncate(1));
        refused("is no plain product", &|graph| {
            graph.node[4].attribute.push(Attribute { name: "alpha".into(), f: 0.5, ..Attribute::default() });
        });
        refused("its output is not that of a linear layer", &|graph| graph.node.truncate(6));
        refused("does not read what comes before it", &|graph| {
            graph.node[6].input[0] = "joined".to_owned();
        });
        refused("has no fixed size", &|graph| graph.input[1] = port("numbers", &[]));
        refused("has no fixed size of at most", &|graph| {
            graph.input[1] = port("numbers", &[1 << 40, 1 << 40]);
        });
        assert!(matches!(read(b"no model"), Err(OnnxError::Format(_) | OnnxError::Form(_))));
        assert!(read(b"").is_err());
    }
}
