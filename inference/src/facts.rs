//! What an ONNX file says of itself, read without a backend.
use rten_onnx::onnx::{DataType, ModelProto, ValueInfoProto};
use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use tidemill_spec::types::ElementType;

/// Element type of a model's input or output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortElement {
    /// One that Tidemill can feed or read.
    Known(ElementType),
    /// Another one, by its ONNX name in lower case (`float16`, `string`).
    Other(String),
}

impl fmt::Display for PortElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortElement::Known(element) => f.write_str(crate::tensor::element_name(*element)),
            PortElement::Other(name) => f.write_str(name),
        }
    }
}

/// One dimension of a declared shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dimension {
    /// Always this size.
    Fixed(usize),
    /// Any size; the name is the file's (empty if it gives none).
    Free(String),
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dimension::Fixed(size) => write!(f, "{size}"),
            Dimension::Free(name) if name.is_empty() => f.write_str("?"),
            Dimension::Free(name) => f.write_str(name),
        }
    }
}

/// A named input or output as the file declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Name.
    pub name: String,
    /// Element type.
    pub element: PortElement,
    /// Shape, the batch dimension included; `None` if the file does not give the rank.
    pub shape: Option<Vec<Dimension>>,
}

impl Port {
    /// The shape in words: `[batch, 3, 128, 128] float32`.
    pub fn type_text(&self) -> String {
        match &self.shape {
            Some(shape) => {
                let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
                format!("[{}] {}", shape.join(", "), self.element)
            }
            None => format!("{} of any shape", self.element),
        }
    }
}

/// What an ONNX file says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFacts {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes, external data not counted.
    pub file_bytes: u64,
    /// sha256 of the file, lower-case hexadecimal.
    pub sha256: String,
    /// Inputs in order, weights not counted.
    pub inputs: Vec<Port>,
    /// Outputs in order.
    pub outputs: Vec<Port>,
    /// Version of the standard operator set it uses.
    pub opset: Option<i64>,
    /// Number of weights (elements of all initialisers).
    pub parameters: u64,
    /// Number of operators in the main graph.
    pub nodes: usize,
    /// The program that wrote it.
    pub producer: Option<String>,
}

/// Why a file could not be read as a model.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// The file cannot be read.
    #[error("cannot read the model file {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is not an ONNX model.
    #[error("{} is not an ONNX model: {reason}; write it with an ONNX exporter or fetch it again", path.display())]
    NotOnnx {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Reads the facts of an ONNX file.
///
/// # Errors
/// [`FactsError`] if the file cannot be read or is not an ONNX model.
pub fn inspect(path: &Path) -> Result<ModelFacts, FactsError> {
    let bytes =
        std::fs::read(path).map_err(|source| FactsError::Unreadable { path: path.to_owned(), source })?;
    inspect_bytes(path, &bytes)
}

/// The facts of an ONNX file that was read already; `path` is only kept.
///
/// # Errors
/// [`FactsError::NotOnnx`].
pub fn inspect_bytes(path: &Path, bytes: &[u8]) -> Result<ModelFacts, FactsError> {
    let not_onnx = |reason: String| FactsError::NotOnnx { path: path.to_owned(), reason };
    if bytes.is_empty() {
        return Err(not_onnx("it is empty".to_owned()));
    }
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(not_onnx("it is a Git LFS pointer; run `git lfs pull`".to_owned()));
    }
    let model = ModelProto::parse_buf(bytes).map_err(|error| not_onnx(error.to_string()))?;
    let graph = model.graph.ok_or_else(|| not_onnx("it has no graph".to_owned()))?;
    if graph.output.is_empty() {
        return Err(not_onnx("its graph has no outputs".to_owned()));
    }
    // Old exporters list the weights among the inputs.
    let weights: HashSet<&str> = graph.initializer.iter().filter_map(|t| t.name.as_deref()).collect();
    let parameters = graph
        .initializer
        .iter()
        .map(|t| t.dims.iter().fold(1u64, |n, d| n.saturating_mul(u64::try_from(*d).unwrap_or(0))))
        .fold(0u64, u64::saturating_add);
    Ok(ModelFacts {
        path: path.to_owned(),
        file_bytes: bytes.len() as u64,
        sha256: sha256_text(bytes),
        inputs: graph.input.iter().map(port).filter(|p| !weights.contains(p.name.as_str())).collect(),
        outputs: graph.output.iter().map(port).collect(),
        opset: model
            .opset_import
            .iter()
            .find(|set| set.domain.as_deref().unwrap_or("").is_empty())
            .and_then(|set| set.version),
        parameters,
        nodes: graph.node.len(),
        producer: model.producer_name.filter(|name| !name.is_empty()),
    })
}

/// sha256 in lower-case hexadecimal.
pub(crate) fn sha256_text(bytes: &[u8]) -> String {
    use sha2::Digest;
    use std::fmt::Write;
    sha2::Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn port(info: &ValueInfoProto) -> Port {
    let tensor = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
    let element = match tensor.and_then(|t| t.elem_type) {
        Some(DataType::FLOAT) => PortElement::Known(ElementType::Float32),
        Some(DataType::INT64) => PortElement::Known(ElementType::Int64),
        Some(other) => PortElement::Other(other.name().unwrap_or("unknown").to_lowercase()),
        None => PortElement::Other("not a tensor".to_owned()),
    };
    let shape = tensor.and_then(|t| t.shape.as_ref()).map(|shape| {
        shape
            .dim
            .iter()
            .map(|dim| match dim.dim_value.and_then(|size| usize::try_from(size).ok()) {
                Some(size) if size > 0 => Dimension::Fixed(size),
                _ => Dimension::Free(dim.dim_param.clone().unwrap_or_default()),
            })
            .collect()
    });
    Port { name: info.name.clone().unwrap_or_default(), element, shape }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn testdata(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
    }

    #[test]
    fn a_file_tells_its_ports() {
        let facts = inspect(&testdata("text_sum.onnx")).unwrap();
        let inputs: Vec<String> =
            facts.inputs.iter().map(|p| format!("{} {}", p.name, p.type_text())).collect();
        assert_eq!(inputs, ["text [batch, 6] int64", "extra [batch, 2] float32"]);
        assert_eq!(facts.outputs[0].type_text(), "[batch, 5] float32");
        assert_eq!((facts.opset, facts.parameters, facts.nodes), (Some(17), 16, 3));
    }

    #[test]
    fn other_files_are_refused_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.onnx");
        assert!(matches!(inspect(&path), Err(FactsError::Unreadable { .. })));
        for text in ["", "hello, this is no model", "version https://git-lfs.github.com/spec/v1\n"] {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(inspect(&path), Err(FactsError::NotOnnx { .. })), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>) {
            let _ = inspect_bytes(Path::new("x"), &bytes);
        }

        #[test]
        fn a_damaged_file_never_panics(at in 0usize..377, value: u8) {
            let mut bytes = std::fs::read(testdata("text_sum.onnx")).unwrap();
            bytes[at] = value;
            let _ = inspect_bytes(Path::new("x"), &bytes);
            let _ = inspect_bytes(Path::new("x"), &bytes[..at]);
        }
    }
}
