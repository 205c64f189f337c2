//! Settings of `decode_boxes`: the forms in which detectors give boxes and scores.
use crate::span::Located;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Form of the boxes of a detection head. Its tensor is `[places, numbers]` for each picture, or `[numbers, places]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BoxDecoding {
    /// Meaning of the first four numbers of a place. Default: center.
    #[serde(default)]
    pub form: BoxForm,
    /// Meaning of the numbers after them. Default: best.
    #[serde(default)]
    pub scores: BoxScores,
    /// Number of classes, with that of the background, if other numbers follow their scores, such as those of masks or
    /// keypoints, which are left out. Default: all numbers are scores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<u32>,
    /// Output of the file with the scores, `[places, classes]`, if the tensor has boxes only; `scores` is then `each`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores_from: Option<Located<String>>,
    /// Output of the file with a score for any object, `[places, 1]` or `[places]`, which multiplies the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objectness_from: Option<Located<String>>,
    /// Function of the scores, if the file gives logits. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// Place of a class that means that nothing is there; it is left out, and the other classes are numbered from 0.
    /// Default: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<Background>,
    /// Cells to which the four numbers refer, for heads that the file does not decode itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grid: Option<Grid>,
    /// Further outputs of a head that has several, one entry for each stride of `grid` after the first, which is the output
    /// itself with `scores_from` and `objectness_from`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<Level>,
    /// Width and height, in pixels, of the picture to which the first four numbers refer. Default: they are shares of it;
    /// with `grid`, pixels of the model's input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picture: Option<[f32; 2]>,
    /// Whether numbers come before places in the tensor. Default: false.
    #[serde(default)]
    pub transposed: bool,
    /// Least score of a box, 0 to 1; boxes below it are left out.
    pub threshold: f32,
    /// Largest overlap with a better box (intersection over union), 0 to 1; boxes above it are left out.
    pub iou: f32,
    /// Whether only boxes of the same class are compared. Default: false, all are.
    #[serde(default)]
    pub per_class: bool,
    /// Whether boxes are cut off at the edges of the picture before they are compared, as torchvision and MMDetection
    /// do, instead of after it, as Ultralytics and YOLOX do. Default: false.
    #[serde(default)]
    pub clip_first: bool,
    /// Largest number of boxes in a picture. Only the 30000 places with the best scores are compared. Default: 64.
    #[serde(default = "most")]
    pub most: u32,
}

pub(super) fn most() -> u32 {
    64
}

/// Meaning of the four numbers of a box.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BoxForm {
    /// Horizontal and vertical place of the centre, width, height.
    #[default]
    Center,
    /// Left, top, right, bottom.
    Corners,
    /// Top, left, bottom, right.
    TopLeftCorners,
    /// Left, top, width, height.
    LeftTop,
}

/// Meaning of the numbers after the box, which give its class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BoxScores {
    /// The best class's score and its number.
    #[default]
    Best,
    /// A score for each class.
    Each,
    /// A score for any object, then one for each class: their product counts.
    Objectness,
}

/// Function from logits to scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `1 / (1 + exp(-x))` of each.
    Sigmoid,
    /// Probabilities over the classes.
    Softmax,
}

/// Place of the background among the classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Background {
    /// The first class, as in SSD.
    First,
    /// The last class, as in DETR.
    Last,
}

/// Cells of a detection head: for each stride all rows of cells from the top, each from the left, and in each cell its
/// anchors. The tensor of a stride may also be maps: `[numbers, rows, columns]`, `[rows, columns, numbers]`, with the
/// numbers of all anchors, or `[anchors, rows, columns, numbers]`, `[rows, columns, anchors, numbers]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Grid {
    /// Meaning of the four numbers.
    pub form: GridForm,
    /// Pixels of the model's input between cells, in the order of the tensor, such as `[8, 16, 32]`.
    pub strides: Vec<u32>,
    /// Width and height in pixels of the anchors of a cell, for each stride. Default: one without a size, or with
    /// `distances` as many as the tensor has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anchors: Vec<Vec<[f32; 2]>>,
    /// Whether all cells come with their first anchor, then all with the second one. Default: as the shape says, true for
    /// `[anchors, rows, columns, numbers]` and false for maps with the numbers of all anchors; false for
    /// `[places, numbers]`, which does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchors_first: Option<bool>,
    /// Place of a cell's point in it, 0 for its corner and 0.5 for its middle. Default: 0; 0.5 with `ssd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<f32>,
    /// Scales of place and size with `ssd`. Default: `[0.1, 0.2]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variance: Option<[f32; 2]>,
}

/// Meaning of the four numbers of a place beside its cell; `s` is the stride.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GridForm {
    /// YOLOX, YuNet: centre `(cell + x) * s`, size `exp(w) * s`.
    Yolox,
    /// YOLOv5 and v7: centre `(2 sigmoid(x) - 0.5 + cell) * s`, size `(2 sigmoid(w))^2 * anchor`; scores are logits.
    Yolov5,
    /// YOLOv2 to v4: centre `(sigmoid(x) + cell) * s`, size `exp(w) * anchor`; scores are logits.
    Yolov4,
    /// SCRFD, FCOS, NanoDet: distances from the cell's point to the four sides, in strides.
    Distances,
    /// PicoDet, GFL, YOLOv8 before its last layer: the distances of `distances`, each the mean of a distribution over 0, 1,
    /// 2 and so on, whose logits the tensor has.
    Distributions,
    /// SSD, RetinaFace: centre and size relative to the anchor, by `variance`.
    Ssd,
}

/// One further level of a head with several outputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// Output of the file with the boxes.
    pub boxes: Located<String>,
    /// Output of the file with the scores. Default: they follow the boxes in the same tensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores: Option<Located<String>>,
    /// Output of the file with the score for any object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objectness: Option<Located<String>>,
}
