//! Steps from the tensor of a model to the value of a column.
use super::BoxDecoding;
use crate::span::Located;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One step from the model's tensor to the column's value. Steps compute with 64 bits if the output is float64, int64 or
/// int32, else with 32; those that find boxes, characters or parts of a text always with 32.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Postprocess {
    /// The mean over the first dimension, such as the tokens of a text: the first step. Of whole numbers it is a float.
    MeanPool {
        /// Input of the model that is 0 at places that do not count, such as `attention_mask`. Default: all count.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mask: Option<Located<String>>,
    },
    /// One place of the first dimension, such as the first token of a text or one of the scores. After `softmax`, the
    /// probability of one class; as the first step, also of an output of any length.
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
        /// File with a label in each line, or a JSON list or dictionary (`.json`), relative to the manifest, instead of
        /// `labels`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels_file: Option<Located<String>>,
        /// Name of an entry in the metadata of the model file, instead of `labels`: a label in each line, or a list or
        /// dictionary as Python or JSON writes it, such as `names` of Ultralytics. The classes of an output that is a map (`ZipMap`) are an entry of its name.
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
        /// File with a label in each line, or a JSON list or dictionary (`.json`), relative to the manifest, instead of
        /// `labels`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels_file: Option<Located<String>>,
        /// Name of an entry in the metadata of the model file, instead of `labels`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels_metadata: Option<String>,
    },
    /// The labelled parts of a text, from scores `[tokens, classes]` of the tokens of `tokenize`, such as named entities:
    /// text, a JSON list in the order of the text, of `{"start": 0, "end": 5, "label": "PER", "score": 0.99, "text":
    /// "Alice"}`. `start` and `end` count characters, `score` is the mean over the tokens; `softmax` before this step makes
    /// probabilities of logits.
    Entities {
        /// Labels in order, such as `[O, B-PER, I-PER]`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        labels: Vec<String>,
        /// File with a label in each line, or a JSON list or dictionary (`.json`), relative to the manifest, instead of
        /// `labels`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels_file: Option<Located<String>>,
        /// Name of an entry in the metadata of the model file, instead of `labels`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels_metadata: Option<String>,
        /// Tokens that are one part. Default: bio.
        #[serde(default)]
        scheme: EntityScheme,
        /// Labels whose parts are left out, without `B-` and `I-`. Default: `[O]`.
        #[serde(default = "outside")]
        ignore: Vec<String>,
    },
    /// The text with a label at each character, from scores `[characters, classes]` of the characters of `characters`,
    /// such as vowel signs or borders of words: text. Characters that the model does not read stay as they are.
    Join {
        /// Labels in order; `""` for none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        labels: Vec<String>,
        /// File with a label in each line, or a JSON list or dictionary (`.json`), relative to the manifest, instead of
        /// `labels`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels_file: Option<Located<String>>,
        /// Name of an entry in the metadata of the model file, instead of `labels`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels_metadata: Option<String>,
        /// Whether a label is before its character instead of after it. Default: false.
        #[serde(default)]
        before: bool,
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

/// Tokens that are one labelled part of a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntityScheme {
    /// Tokens of one label that follow each other, up to one with `B-`, as `aggregation_strategy="simple"` of Hugging
    /// Face's pipelines.
    #[default]
    Bio,
    /// The same, where `S-` and `U-` begin a part and end it, and `E-` and `L-` end one.
    Bioes,
    /// Each word, with label and score of its first token, as for parts of speech. Words are those of the tokenizer.
    Words,
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
    #[serde(default = "super::boxes::most")]
    pub most: u32,
}

fn outside() -> Vec<String> {
    vec!["O".to_owned()]
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
