//! `weights`: a backend for linear models in text files.
//!
//! The first line is `linear INPUT NUMBERS OUTPUT`; each further line has the weights and then the bias of one output. In a manifest:
//!
//! ```yaml
//! backends: [weights]
//! artifacts: {weights: {file: size.weights, sha256: ...}}
//! ```
//! ```
//! use tidemill_extension::weights::REGISTRATION;
//! use tidemill_inference::tensor::{Tensor, TensorData};
//! let folder = tempfile::tempdir()?;
//! let file = folder.path().join("sum.weights");
//! std::fs::write(&file, "linear x 2 sum\n1 1 0.5\n")?;
//! let facts = (REGISTRATION.inspect)(&file)?;
//! assert_eq!((facts.inputs[0].type_text(), facts.parameters), ("[batch, 2] float32".to_owned(), 3));
//! let mut sum = (REGISTRATION.open)(folder.path())?.load(&facts)?;
//! let x = Tensor::new(vec![1, 2], TensorData::Float32(vec![3.0, 4.0]))?;
//! assert_eq!(sum.run(&[x], &[0])?[0].as_f32(), Some(&[7.5][..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
use std::path::Path;
use std::sync::Arc;
use tidemill_inference::backend::{Backend, BackendError, Registration, Session};
use tidemill_inference::facts::{Dimension, FactsError, ModelFacts, Port, PortElement};
use tidemill_inference::tensor::{Tensor, TensorData};
use tidemill_spec::types::ElementType;

/// Name in manifests, workflows and plans.
const NAME: &str = "weights";

/// The registration of `weights`; see the module.
pub const REGISTRATION: Registration = Registration {
    inspect: |path| read(path).map(|(facts, _)| facts),
    ..Registration::onnx(NAME, "Linear models in text files.", |_| Ok(Arc::new(Weights)))
};

struct Weights;

/// A loaded model: the weights and the bias of each output, at least one.
struct Linear {
    name: String,
    weights: Vec<Vec<f32>>,
}

/// Reads a file: its facts and its model.
fn read(path: &Path) -> Result<(ModelFacts, Linear), FactsError> {
    let unreadable = |source| FactsError::Unreadable { path: path.to_owned(), source };
    let other = |reason: String| FactsError::Other { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let mut lines = text.lines();
    let Some((input, width, output)) = lines.next().and_then(head) else {
        return Err(other("the first line is not `linear INPUT NUMBERS OUTPUT`".to_owned()));
    };
    let weight = |word: &str| word.parse().ok().filter(|weight: &f32| weight.is_finite());
    let mut weights = Vec::new();
    for (line, number) in lines.zip(2..) {
        match line.split_whitespace().map(weight).collect::<Option<Vec<f32>>>() {
            Some(line) if line.len().checked_sub(1) == Some(width) => weights.push(line),
            _ => return Err(other(format!("line {number} is not {width} weights and a bias"))),
        }
    }
    if weights.is_empty() {
        return Err(other("it has no line with weights".to_owned()));
    }
    let port = |name: &str, size: usize| Port {
        name: name.to_owned(),
        element: PortElement::Known(ElementType::Float32),
        shape: Some(vec![Dimension::Free("batch".to_owned()), Dimension::Fixed(size)]),
    };
    let facts = ModelFacts {
        inputs: vec![port(input, width)],
        outputs: vec![port(output, weights.len())],
        parameters: weights.iter().map(|line| line.len() as u64).sum(),
        ..ModelFacts::of_bytes(path, text.as_bytes())
    };
    Ok((facts, Linear { name: path.display().to_string(), weights }))
}

fn head(line: &str) -> Option<(&str, usize, &str)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["linear", input, width, output] = words[..] else { return None };
    Some((input, width.parse().ok().filter(|width| *width > 0)?, output))
}

impl Backend for Weights {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").to_owned()
    }

    fn load(&self, facts: &ModelFacts) -> Result<Box<dyn Session>, BackendError> {
        let path = facts.path.display().to_string();
        match read(&facts.path) {
            Ok((_, model)) => Ok(Box::new(model)),
            Err(error) => Err(BackendError::Load { backend: NAME, path, reason: error.to_string() }),
        }
    }
}

/// Weighs the numbers of a row; the last weight is the bias.
fn weigh(row: &[f32], weights: &[f32]) -> f32 {
    row.iter().chain(&[1.0]).zip(weights).map(|(number, weight)| number * weight).sum()
}

impl Session for Linear {
    fn run(&mut self, inputs: &[Tensor], outputs: &[usize]) -> Result<Vec<Tensor>, BackendError> {
        let failed = |reason: String| BackendError::Run { backend: NAME, model: self.name.clone(), reason };
        let width = self.weights[0].len() - 1;
        let ([input], [0]) = (inputs, outputs) else {
            return Err(failed(format!("{} inputs and {outputs:?} as outputs", inputs.len())));
        };
        let numbers = input.as_f32().filter(|_| input.shape() == [input.rows(), width]);
        let numbers = numbers.ok_or_else(|| failed(format!("{input} is not float32 [batch, {width}]")))?;
        let rows = numbers.chunks_exact(width);
        let found = rows.flat_map(|row| self.weights.iter().map(move |line| weigh(row, line))).collect();
        let output = Tensor::new(vec![input.rows(), self.weights.len()], TensorData::Float32(found));
        output.map(|output| vec![output]).map_err(|error| failed(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_model_is_refused_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.weights");
        for (text, reason) in [
            ("", "the first line"),
            ("linear x 0 y\n1\n", "the first line"),
            ("linear x 1 y\n", "no line with weights"),
            ("linear x 1 y\n1 2\n\n", "line 3 is not 1 weights and a bias"),
            ("linear x 1 y\n1 nan\n", "line 2"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = read(&path).err().unwrap().to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
        std::fs::write(&path, "linear x 1 y\n1 0\n2 1\n").unwrap();
        let (_, mut model) = read(&path).unwrap();
        let x = Tensor::new(vec![2, 1], TensorData::Float32(vec![3.0, -1.0])).unwrap();
        assert!(model.run(&[x.clone(), x.clone()], &[0]).is_err());
        assert_eq!(model.run(&[x], &[0]).unwrap()[0].as_f32(), Some(&[3.0, 7.0, -1.0, -1.0][..]));
    }
}
