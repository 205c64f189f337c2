//! Steps from the value of a column to the tensor of a model.
use super::{Align, Filter, Round};
use crate::span::Located;
use crate::units::TimeSpan;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
        #[serde(default = "super::picture::grey")]
        fill: u8,
        /// Place of the picture. Default: center.
        #[serde(default)]
        align: Align,
        /// Whether pictures that are smaller are scaled up. Default: true.
        #[serde(default = "super::picture::yes")]
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
        #[serde(default = "super::picture::most")]
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
    /// Audio, tensor: multiply the values by a number and add another one. Samples are from -1 to 1: `{factor: 32768}` for
    /// models trained on 16-bit integers. A tensor must be of floats.
    Gain {
        /// The factor.
        factor: f64,
        /// The number to add. Default: 0.
        #[serde(default)]
        add: f64,
    },
    /// Audio, tensor of samples: logarithmic mel spectrogram `[frames, mels]`; frame i holds the samples from `i * hop`, only
    /// full frames count: `(samples - window) / hop + 1`, rounded down. A tensor, such as a window of the operator `slices`, has
    /// the samples of these frames and no more. What librosa computes with `center=False` has `in_middle: true, scale: slaney`.
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
        /// Whether `floor` is added to each energy instead. Default: false.
        #[serde(default)]
        add_floor: bool,
        /// Whether the logarithm is that to the base 10 instead of the natural one. Default: false.
        #[serde(default)]
        log10: bool,
        /// Scale and weights of the bands. Default: htk.
        #[serde(default)]
        scale: MelScale,
        /// Weights of the samples of a window. Default: hann.
        #[serde(default)]
        taper: Taper,
        /// Whether the window is in the middle of `fft` samples: frame i then holds the samples from
        /// `i * hop + (fft - window) / 2`, and `(samples - fft) / hop + 1` frames count. Default: false.
        #[serde(default)]
        in_middle: bool,
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
        /// in `shape`), and those of other lengths are run apart.
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
        /// (`any` in `shape`); those of a batch are padded to the longest if an input with `give: mask` reads the same
        /// column, else those of other lengths are run apart.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        length: Option<u32>,
        /// Most tokens of a text if `length` is missing; longer texts are truncated. Default: 512.
        #[serde(default = "most_tokens")]
        most: u32,
        /// Whether the special tokens of the tokenizer are added, such as `[CLS]` and `[SEP]`. Default: true.
        #[serde(default = "super::picture::yes")]
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

/// Scale on which the bands of a mel spectrogram are equally wide.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MelScale {
    /// That of HTK and torchaudio; the largest weight of a band is 1.
    #[default]
    Htk,
    /// That of Slaney, the default of librosa; a band has the area 1.
    Slaney,
}

/// Weights of the samples of a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Taper {
    /// Hann, periodic, as `scipy.signal.get_window("hann")`.
    #[default]
    Hann,
    /// Hann, symmetric, as `numpy.hanning`.
    HannSymmetric,
    /// Hamming, periodic, as `scipy.signal.get_window("hamming")`.
    Hamming,
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
