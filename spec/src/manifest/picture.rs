//! Settings of the steps for pictures.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a picture is scaled. Filters of Pillow average over all pixels that a new one covers when they shrink; those of
/// OpenCV (other than `opencv_area`) do not. Models work best with the filter of their training.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// `BILINEAR` of Pillow's `Image.resize`, the default.
    #[default]
    PillowBilinear,
    /// `NEAREST` of Pillow.
    PillowNearest,
    /// `BOX` of Pillow.
    PillowBox,
    /// `BICUBIC` of Pillow.
    PillowBicubic,
    /// `LANCZOS` of Pillow.
    PillowLanczos,
    /// `INTER_NEAREST` of OpenCV's `resize`.
    OpencvNearest,
    /// `INTER_LINEAR` of OpenCV, its default.
    OpencvLinear,
    /// `INTER_CUBIC` of OpenCV.
    OpencvCubic,
    /// `INTER_LANCZOS4` of OpenCV.
    OpencvLanczos4,
    /// `INTER_AREA` of OpenCV.
    OpencvArea,
}

/// Place of a picture in a larger one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Align {
    /// In the middle; an odd rest is larger on the right and at the bottom.
    #[default]
    Center,
    /// At the left and the top.
    TopLeft,
}

/// Rounding of a side of a picture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Round {
    /// A part of a pixel is one more.
    #[default]
    Up,
    /// A part of a pixel is cut off.
    Down,
}

pub(super) fn grey() -> u8 {
    114
}

pub(super) fn yes() -> bool {
    true
}

pub(super) fn most() -> f64 {
    255.0
}
