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
use crate::units::TimeSpan;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

mod boxes;
mod check;
mod constant;
mod decoder;
mod dimension;
mod feature;
mod load;
mod picture;
mod state;

pub use boxes::{Activation, Background, BoxDecoding, BoxForm, BoxScores, Grid, GridForm, Level};
pub use check::{BLANK_COLUMN, BLANK_DESCRIPTION, BLANK_LICENCE, BLANK_ORIGIN};
pub use constant::{Constant, ConstantValue};
pub use decoder::{Cache, Decoder, Encoded, Mask, Tokenizer};
pub use dimension::Dimension;
pub use feature::{Feature, Missing};
pub use picture::{Align, Filter, Round};
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
    /// Files of backends that load another file than `file`, by backend. If each backend has one, `file` can be left
    /// out. A model with a decoder cannot have them.
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
    /// Backends that run it, the preferred first. Only a `published` model has none.
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
    /// Measured quality of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<Metric>,
}

/// The file of a model for one backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Artifact {
    /// Path of the file, in a format that the backend reads; relative as `file` of the manifest.
    pub file: Located<String>,
    /// sha256 of the file, 64 hexadecimal digits.
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub sha256: Located<String>,
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

/// One step from a column's value to the model's tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Preprocess {
    /// Image: scale to this size in pixels. Before all steps, a picture is rotated by its EXIF orientation.
    Resize {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// How pixels are averaged.
        #[serde(default)]
        filter: Filter,
    },
    /// Image: scale to this height and keep the ratio of the sides, as for lines of text. The image is on the left, and
    /// the rest of the width is 0 after all steps; a wider image is compressed to the width.
    FitHeight {
        /// Height in pixels.
        height: u32,
        /// Width of the model's input in pixels. Without it the width follows from the picture (`any` in `shape`), and
        /// records are run one by one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        width: Option<u32>,
        /// Least width without `width`; the rest of a narrower picture is 0 after all steps. Default: 1.
        #[serde(default = "one")]
        least: u32,
        /// Whether a part of a pixel is one more, or is cut off. Default: up.
        #[serde(default)]
        round: Round,
        /// How pixels are averaged.
        #[serde(default)]
        filter: Filter,
    },
    /// Image: scale until the shorter side has this many pixels and keep the ratio of the sides; usually before
    /// `center_crop`.
    ShorterSide {
        /// Length of the shorter side in pixels.
        pixels: u32,
        /// How pixels are averaged.
        #[serde(default)]
        filter: Filter,
    },
    /// Image: cut this size out of the middle. A side that is shorter is padded with 0.
    CenterCrop {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
    /// Image: scale to fit into this size and keep the ratio of the sides, then fill the rest. Boxes that `decode_boxes`
    /// finds refer to the picture before it.
    Letterbox {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// Value of each channel in the rest, 0 to 255. Default: 114, the grey of YOLO.
        #[serde(default = "picture::grey")]
        fill: u8,
        /// Place of the picture. Default: center.
        #[serde(default)]
        align: Align,
        /// Whether pictures that are smaller are scaled up. Default: true.
        #[serde(default = "picture::yes")]
        enlarge: bool,
        /// How pixels are averaged.
        #[serde(default)]
        filter: Filter,
    },
    /// Image: fill the shorter side until both are equal; usually before `resize`. Boxes that `decode_boxes` finds refer
    /// to the picture before it.
    Square {
        /// Value of each channel in the rest, 0 to 255. Default: 0.
        #[serde(default)]
        fill: u8,
        /// Place of the picture. Default: center.
        #[serde(default)]
        align: Align,
    },
    /// Image: one channel of brightness (`0.299 R + 0.587 G + 0.114 B`) instead of three of colour.
    Grey {},
    /// Image: blue, green, red instead of red, green, blue; `mean` and `std` of `normalize` have that order too.
    Bgr {},
    /// Image: `(value / divide_by - mean) / std` per channel. Without this step, values are from 0 to 1.
    Normalize {
        /// Mean of each channel. Default: 0.
        #[serde(default)]
        mean: Vec<f64>,
        /// Standard deviation of each channel. Default: 1.
        #[serde(default)]
        std: Vec<f64>,
        /// Divisor of the pixels' values, which are from 0 to 255; 1 keeps them. Default: 255.
        #[serde(default = "picture::most")]
        divide_by: f64,
    },
    /// Audio: resample a sound of any rate to this one; the first step. Without it the sound must have the rate of
    /// `log_mel`. The results are those of `scipy.signal.resample_poly` with its defaults (a sinc with a Kaiser window,
    /// beta 5, over 10 periods of the lower rate to each side); a model that was trained with another filter may give
    /// scores that differ.
    Resample {
        /// Samples per second that the model was trained with.
        sample_rate: u32,
    },
    /// Audio: cut or fill with silence to this length.
    PadOrTrim {
        /// Length.
        seconds: TimeSpan,
    },
    /// Audio: multiply the samples, which are from -1 to 1, by this number: 32768 for models trained on 16-bit integers.
    Gain {
        /// The factor.
        factor: f64,
    },
    /// Audio: logarithmic mel spectrogram `[frames, mels]`; frame i holds the samples from `i * hop`, only full
    /// frames count: `(samples - window) / hop + 1`, rounded down.
    LogMel {
        /// Samples per second that the model was trained with.
        sample_rate: u32,
        /// Samples of one window.
        window: u32,
        /// Samples between windows.
        hop: u32,
        /// Samples of one Fourier transform.
        fft: u32,
        /// Number of mel bands.
        mels: u32,
        /// Lowest frequency in Hz.
        low: f64,
        /// Highest frequency in Hz.
        high: f64,
        /// Least energy before the logarithm.
        floor: f64,
    },
    /// Audio: subtract the mean, divide by the standard deviation; of the samples, or after `log_mel` of its values.
    Standardize {},
    /// Swap the last two dimensions.
    Transpose {},
    /// Text: one number per character, its position in the alphabet; converts capitals that are not in it to lower
    /// case, and leaves out other characters.
    Characters {
        /// All known characters in order.
        alphabet: String,
        /// Length of the result; shorter texts are padded, longer ones truncated. Without it texts keep their length (`any`
        /// in `shape`), and those of a batch are padded to the longest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        length: Option<u32>,
        /// Number of the first character of the alphabet. Default: 1.
        #[serde(default = "one")]
        first: u32,
        /// Number of padding. Default: 0.
        #[serde(default)]
        padding: u32,
        /// Number of characters that are not in the alphabet. Default: they are left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unknown: Option<u32>,
        /// Whether each character becomes a vector with a 1 at its position in the alphabet; others are all 0, and `first`,
        /// `padding` and `unknown` do not matter. Default: false.
        #[serde(default)]
        one_hot: bool,
    },
    /// Text: numbers of tokens, by a `tokenizer.json` of Hugging Face's tokenizers. Several inputs of a model may read the
    /// same column, each with another result; the text is split once.
    Tokenize {
        /// The file `tokenizer.json`, relative to the manifest.
        file: Located<String>,
        /// Values of this input. Default: ids.
        #[serde(default)]
        give: TokenValues,
        /// Tokens of a text: longer texts are truncated, shorter ones padded. If it is missing, texts keep their length
        /// (`any` in `shape`), and those of a batch are padded to the longest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        length: Option<u32>,
        /// Most tokens of a text if `length` is missing; longer texts are truncated. Default: 512.
        #[serde(default = "most_tokens")]
        most: u32,
        /// Whether the special tokens of the tokenizer are added, such as `[CLS]` and `[SEP]`. Default: true.
        #[serde(default = "picture::yes")]
        special: bool,
    },
    /// Bytes: the first and the last ones, each as its value; what is missing between them is padding.
    Ends {
        /// Number of bytes from the start, without blanks there.
        first: u32,
        /// Number of bytes from the end, without blanks there. Default: 0.
        #[serde(default)]
        last: u32,
        /// Value for missing bytes.
        padding: u32,
    },
}

/// Values of tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenValues {
    /// The token's number.
    #[default]
    Ids,
    /// 1 for a token, 0 for padding.
    Mask,
    /// The number of the part of a text that it belongs to.
    Types,
}

fn one() -> u32 {
    1
}

fn most_tokens() -> u32 {
    512
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

/// One step from the model's tensor to the column's value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Postprocess {
    /// The mean over the first dimension, such as the tokens of a text: the first step.
    MeanPool {
        /// Input of the model that is 0 at places that do not count, such as `attention_mask`. Default: all count.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mask: Option<Located<String>>,
    },
    /// One place of the first dimension, such as the first token of a text or one of the scores: the first step.
    Pick {
        /// The place, from 0 on; -1 is the last.
        at: i32,
    },
    /// Probabilities over the last dimension.
    Softmax {},
    /// Divide by the Euclidean length.
    L2Norm {},
    /// `1 / (1 + exp(-x))` of each value.
    Sigmoid {},
    /// Swap the last two dimensions.
    Transpose {},
    /// The largest value: a float64, usually the score of the label that `argmax` gives.
    Max {},
    /// The label of the largest value: text. Without labels its position: an int64.
    Argmax {
        /// Labels in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        labels: Vec<String>,
        /// File with a label in each line, or a JSON list (`.json`), relative to the manifest, instead of `labels`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels_file: Option<Located<String>>,
        /// Name of an entry in the metadata of the model file, instead of `labels`: a label in each line, or a dictionary
        /// as Ultralytics writes (`names`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels_metadata: Option<String>,
    },
    /// The largest values, largest first: a tensor `[k]` of them, of their positions, or of their labels.
    TopK {
        /// Number of values.
        k: u32,
        /// Result. Default: labels if there are any, else positions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        give: Option<TopValues>,
        /// Labels in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        labels: Vec<String>,
        /// File with a label in each line, or a JSON list (`.json`), relative to the manifest, instead of `labels`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels_file: Option<Located<String>>,
        /// Name of an entry in the metadata of the model file, instead of `labels`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels_metadata: Option<String>,
    },
    /// Greedy CTC decoding: text. Of scores `[steps, classes]`, or of the best classes `[steps]`.
    CtcDecode {
        /// All characters in order, or those after the characters of `alphabet_metadata`.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        alphabet: String,
        /// Name of an entry in the metadata of the model file that contains the characters, one per line.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        alphabet_metadata: Option<String>,
        /// File with the text of one class in each line, relative to the manifest, instead of `alphabet`. The blank has no
        /// line, or one that is never used if there are as many lines as classes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        alphabet_file: Option<Located<String>>,
        /// Texts of the classes in `alphabet_file`; not to be written.
        #[serde(skip)]
        #[schemars(skip)]
        classes: Vec<String>,
        /// Index of the blank.
        blank: u32,
    },
    /// Boxes from the places of a detection head, best first: a tensor `[most, 6]` of left, top, width and height as
    /// shares of the picture (0 to 1), score, and the class's number. Boxes that overlap better ones are left out
    /// (non-maximum suppression); where there are fewer than `most`, the rest is 0.
    DecodeBoxes(BoxDecoding),
    /// Boxes around lines of text, from a map of the probability of text at each place of the picture (differentiable
    /// binarization, DB): a tensor `[most, 6]` as that of `decode_boxes`, with class 0, in reading order: line by line
    /// from the top, each from the left. The boxes are upright, which suits slanted lines badly.
    TextBoxes(TextDecoding),
}

/// Result of `top_k`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TopValues {
    /// The values.
    Values,
    /// Their positions in the output: int64.
    Positions,
    /// Their labels: text.
    Labels,
}

/// Settings for boxes around text. The tensor is `[height, width]` or `[1, height, width]` for each picture, with values
/// from 0 to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextDecoding {
    /// Value above which a place belongs to text, 0 to 1. Places that touch, even by a corner, are one line. Default: 0.3.
    #[serde(default = "text_threshold")]
    pub threshold: f32,
    /// Least mean value of a line, 0 to 1; lines below it are left out. Default: 0.5.
    #[serde(default = "text_score")]
    pub score: f32,
    /// Growth of a box, because models mark only the middle of a line. Each side moves out by this number times area
    /// divided by circumference. Default: 1.6.
    #[serde(default = "text_growth")]
    pub grow: f32,
    /// Least number of places of a line in width and height, before it grows; smaller lines are left out. Default: 3.
    #[serde(default = "least_text")]
    pub least: u32,
    /// Largest number of boxes in a picture; keeps those with the best scores. Default: 64.
    #[serde(default = "boxes::most")]
    pub most: u32,
}

fn text_threshold() -> f32 {
    0.3
}

fn text_score() -> f32 {
    0.5
}

fn text_growth() -> f32 {
    1.6
}

fn least_text() -> u32 {
    3
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
