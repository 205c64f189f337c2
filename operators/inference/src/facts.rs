//! Facts in an ONNX file, read without a backend.
mod description;

use self::description::{Graph, describe, maker};
pub(crate) use self::description::{computes_with_8_bits, element};
use crate::ort_format;
use crate::zip_map;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use tidemill_spec::digest::sha256;
use tidemill_spec::types::ElementType;

/// Name of the type of a port that is a sequence, a map or an optional value.
const NO_TENSOR: &str = "not a tensor";

/// Element type of a model's input or output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortElement {
    /// A type that Tidemill can feed or read.
    Known(ElementType),
    /// Another type, by its ONNX name in lower case (`uint16`, `bfloat16`).
    Other(String),
}

impl fmt::Display for PortElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortElement::Known(element) => element.fmt(f),
            PortElement::Other(name) => f.write_str(name),
        }
    }
}

/// One dimension of a declared shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dimension {
    /// Always this size.
    Fixed(usize),
    /// Any size; the name is the file's (empty if it has none).
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

/// A declared input or output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Name.
    pub name: String,
    /// Element type.
    pub element: PortElement,
    /// Shape, including the batch dimension; `None` if the file omits the rank.
    pub shape: Option<Vec<Dimension>>,
}

impl Port {
    /// A port without a name that is a sequence, a map or an optional value.
    pub(crate) fn of_no_tensor() -> Self {
        Self { name: String::new(), element: PortElement::Other(NO_TENSOR.to_owned()), shape: None }
    }

    /// Formats the shape: `[batch, 3, 128, 128] float32`.
    pub fn type_text(&self) -> String {
        match &self.shape {
            Some(shape) => {
                let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
                format!("[{}] {}", shape.join(", "), self.element)
            }
            None if self.element == PortElement::Other(NO_TENSOR.to_owned()) => NO_TENSOR.to_owned(),
            None => format!("{} of any shape", self.element),
        }
    }
}

/// Facts in an ONNX file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFacts {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes, excluding external data.
    pub file_bytes: u64,
    /// sha256 of the file, lower-case hexadecimal.
    pub sha256: String,
    /// Inputs in order, excluding weights.
    pub inputs: Vec<Port>,
    /// Outputs in order.
    pub outputs: Vec<Port>,
    /// Version of the standard operator set it uses.
    pub opset: Option<i64>,
    /// Number of weights: elements of all initialisers, and floats of the operators of `ai.onnx.ml`, such as trees.
    pub parameters: u64,
    /// Number of operators in the main graph.
    pub nodes: usize,
    /// Whether it computes with weights or values of 8 bits.
    pub is_quantised: bool,
    /// The program that wrote it.
    pub producer: Option<String>,
    /// Outputs that the file gives as a sequence of maps from classes to numbers; they are read as tensors, `[records,
    /// classes]`.
    pub maps: Vec<String>,
    /// Metadata of its maker, by name: an alphabet, labels, a licence. The classes of an output that is a map are under its name,
    /// one in each line.
    pub metadata: BTreeMap<String, String>,
    /// Operators of the main graph and how often it has them: `Conv`, or `ai.onnx.ml.ZipMap` with the name of a domain other
    /// than that of the standard.
    pub operators: BTreeMap<String, usize>,
    /// The operator that gives the values of an output, by the output's name; `Cast`, `Reshape` and the like are passed over.
    pub makers: BTreeMap<String, String>,
    /// Labels of the classes in the operators of `ai.onnx.ml`, in order.
    pub class_labels: Vec<String>,
}

impl ModelFacts {
    /// Facts of a model that has no file here.
    pub(crate) fn of_nothing(path: &Path) -> Self {
        Self { sha256: String::new(), ..Self::of_bytes(path, &[]) }
    }

    /// Facts of a file of any format, read already: only its size and digest. A backend adds what the file declares.
    pub fn of_bytes(path: &Path, bytes: &[u8]) -> Self {
        Self {
            path: path.to_owned(),
            file_bytes: bytes.len() as u64,
            sha256: sha256(bytes),
            inputs: Vec::new(),
            outputs: Vec::new(),
            opset: None,
            parameters: 0,
            nodes: 0,
            is_quantised: false,
            producer: None,
            maps: Vec::new(),
            metadata: BTreeMap::new(),
            operators: BTreeMap::new(),
            makers: BTreeMap::new(),
            class_labels: Vec::new(),
        }
    }

    /// Whether the model may refuse values because they are none of its categories.
    pub fn has_categories(&self) -> bool {
        ["OneHotEncoder", "LabelEncoder", "CategoryMapper"]
            .iter()
            .any(|name| self.operators.contains_key(&format!("ai.onnx.ml.{name}")))
    }

    /// Whether an operator is of this domain, such as `ai.onnx.ml`.
    pub fn uses(&self, domain: &str) -> bool {
        let of_domain = |name: &String| name.rsplit_once('.').is_some_and(|(of, _)| of == domain);
        self.operators.keys().any(of_domain)
    }
}

/// Error of reading a model file.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// The file cannot be read.
    #[error("cannot read the model file {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The file is not in the format of its backend.
    #[error("cannot read {} as a model: {reason}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// Description.
        reason: String,
    },
    /// The file is not an ONNX model.
    #[error("{} is not an ONNX model: {reason}; write it with an ONNX exporter or fetch it again", path.display())]
    NotOnnx {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: String,
    },
}

/// Reads the facts of an ONNX file, or of one in ONNX Runtime's own format.
///
/// # Errors
/// [`FactsError`] if the file cannot be read or is not an ONNX model.
pub fn inspect(path: &Path) -> Result<ModelFacts, FactsError> {
    let bytes =
        std::fs::read(path).map_err(|source| FactsError::Unreadable { path: path.to_owned(), source })?;
    inspect_bytes(path, &bytes)
}

/// Reads the facts from a file's bytes; `path` is only stored.
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
    if ort_format::is_ort(bytes) {
        let damaged = || not_onnx("it is in ONNX Runtime's own format (`.ort`), but damaged".to_owned());
        return ort_format::facts(path, bytes).ok_or_else(damaged);
    }
    if let Some(format) = other_format(bytes) {
        return Err(not_onnx(format.to_owned()));
    }
    let description = describe(bytes).map_err(|error| not_onnx(error.to_string()))?;
    if !description.has_graph {
        return Err(not_onnx("it has no graph".to_owned()));
    }
    let Graph { inputs, mut outputs, weights, parameters, nodes, is_quantised, operators, makers, labels } =
        description.graph;
    let mut metadata = description.metadata;
    let mut maps = Vec::new();
    if outputs.iter().any(|port| matches!(port.element, PortElement::Other(_))) {
        for map in zip_map::outputs(bytes).map_err(|error| not_onnx(error.to_string()))? {
            outputs.iter_mut().filter(|port| port.name == map.name).for_each(|port| *port = map.port());
            if let Some(lines) = map.lines() {
                metadata.entry(map.name.clone()).or_insert(lines);
            }
            maps.push(map.name);
        }
    }
    if outputs.is_empty() {
        return Err(not_onnx("its graph has no outputs".to_owned()));
    }
    let makers = outputs.iter().filter_map(|port| Some((port.name.clone(), maker(&makers, &port.name)?)));
    let makers = makers.collect();
    Ok(ModelFacts {
        path: path.to_owned(),
        file_bytes: bytes.len() as u64,
        sha256: sha256(bytes),
        // Old exporters list the weights among the inputs.
        inputs: inputs.into_iter().filter(|port| !weights.contains(&port.name)).collect(),
        outputs,
        opset: description.opset,
        parameters,
        nodes,
        is_quantised,
        producer: description.producer.filter(|name| !name.is_empty()),
        maps,
        metadata,
        operators,
        makers,
        class_labels: labels,
    })
}

/// Returns the format of a file that is no ONNX model, with advice.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    let is = |at: usize, mark: &[u8]| bytes.get(at..at + mark.len()) == Some(mark);
    if is(4, b"TFL3") {
        Some("it is in the format of TensorFlow Lite (`.tflite`): convert it with tf2onnx")
    } else if is(0, b"PK\x03\x04") {
        Some(
            "it is a zip file, as PyTorch writes them: export it with `torch.onnx.export`, or extract the ONNX file",
        )
    } else if is(0, b"\x89HDF") {
        Some("it is an HDF5 file, as Keras writes them: convert it with tf2onnx")
    } else {
        None
    }
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
        assert_eq!(facts.operators.values().sum::<usize>(), 3);
        assert!(facts.makers.contains_key(&facts.outputs[0].name), "{:?}", facts.makers);
    }

    #[test]
    fn operators_of_tables_name_their_classes() {
        let facts = inspect(&testdata("tables/forest_zipmap.onnx")).unwrap();
        assert!(facts.uses("ai.onnx.ml") && !facts.uses("ai.onnx"));
        assert_eq!(facts.operators.get("ai.onnx.ml.ZipMap"), Some(&1));
        assert!(facts.class_labels.len() > 1, "{:?}", facts.class_labels);
        assert!(facts.parameters > 0, "the thresholds and the values of the leaves");
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

    #[test]
    fn other_formats_are_named() {
        let reason = |bytes: &[u8]| inspect_bytes(Path::new("x"), bytes).unwrap_err().to_string();
        assert!(reason(b"\x18\0\0\0ORTM\0\0").contains("(`.ort`), but damaged"));
        assert!(reason(b"\x18\0\0\0TFL3").contains("TensorFlow Lite"));
        assert!(reason(b"PK\x03\x04abc").contains("torch.onnx.export"));
        assert!(reason(b"PK").contains("it has no graph"));
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
