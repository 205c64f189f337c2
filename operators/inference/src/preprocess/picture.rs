//! Pictures as models want them: size, place, colours and numbers.
//!
//! Steps that change size and place run in their order; the order of colours, then `normalize` come after them.
use super::{Rejected, filter, image};
use crate::frame::Frame;
use crate::steps::{StepsError, wrong};
use crate::tensor::TensorData;
use ::image::{Rgb, RgbImage, imageops};
use tidemill_media::grey::brightness;
use tidemill_spec::manifest::{self, Align, Dimension, ModelInput, Preprocess, Round};
use tidemill_spec::types::ElementType;

/// The conversion of an encoded picture to the values of one row.
#[derive(Debug, Clone, PartialEq)]
pub struct PictureSteps {
    height: u32,
    /// `None` if it follows from the picture.
    width: Option<u32>,
    sizes: Vec<Sizing>,
    colours: Colours,
    is_channel_last: bool,
    divide_by: f32,
    mean: [f32; 3],
    std: [f32; 3],
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Colours {
    Rgb,
    Bgr,
    Grey,
}

/// A step that changes size or place.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Sizing {
    /// To the size, ignoring the ratio.
    Stretch {
        width: u32,
        height: u32,
        filter: filter::Filter,
    },
    /// To the height; the rest of the width is 0 after all steps.
    FitHeight {
        least: u32,
        round: Round,
        width: Option<u32>,
        height: u32,
        filter: filter::Filter,
    },
    ShorterSide {
        pixels: u32,
        filter: filter::Filter,
    },
    CenterCrop {
        width: u32,
        height: u32,
    },
    Letterbox {
        width: u32,
        height: u32,
        fill: u8,
        align: Align,
        enlarge: bool,
        filter: filter::Filter,
    },
    Square {
        fill: u8,
        align: Align,
    },
}

impl Sizing {
    fn of(step: &Preprocess) -> Option<Self> {
        Some(match *step {
            Preprocess::Resize { width, height, filter } => {
                Self::Stretch { width, height, filter: known(filter) }
            }
            Preprocess::FitHeight { width, height, least, round, filter } => {
                Self::FitHeight { width, height, least, round, filter: known(filter) }
            }
            Preprocess::ShorterSide { pixels, filter } => Self::ShorterSide { pixels, filter: known(filter) },
            Preprocess::CenterCrop { width, height } => Self::CenterCrop { width, height },
            Preprocess::Letterbox { width, height, fill, align, enlarge, filter } => {
                Self::Letterbox { width, height, fill, align, enlarge, filter: known(filter) }
            }
            Preprocess::Square { fill, align } => Self::Square { fill, align },
            _ => return None,
        })
    }

    /// Size after the step, if it does not depend on the picture.
    fn size(&self) -> Option<(u32, u32)> {
        match *self {
            Self::Stretch { width, height, .. }
            | Self::FitHeight { width: Some(width), height, .. }
            | Self::CenterCrop { width, height }
            | Self::Letterbox { width, height, .. } => Some((width, height)),
            Self::ShorterSide { .. } | Self::Square { .. } | Self::FitHeight { width: None, .. } => None,
        }
    }
}

fn known(filter: manifest::Filter) -> filter::Filter {
    use filter::Filter as To;
    use manifest::Filter as From;
    match filter {
        From::PillowBilinear => To::PillowBilinear,
        From::PillowNearest => To::PillowNearest,
        From::PillowBox => To::PillowBox,
        From::PillowBicubic => To::PillowBicubic,
        From::PillowLanczos => To::PillowLanczos,
        From::OpencvNearest => To::OpencvNearest,
        From::OpencvLinear => To::OpencvLinear,
        From::OpencvCubic => To::OpencvCubic,
        From::OpencvLanczos4 => To::OpencvLanczos4,
        From::OpencvArea => To::OpencvArea,
    }
}

impl PictureSteps {
    /// Prepares the steps of a picture input whose rows have this shape.
    ///
    /// # Errors
    /// Steps in another order than sizes, colours, `normalize`, or with another result than the shape.
    pub fn new(input: &ModelInput, shape: &[usize]) -> Result<Self, StepsError> {
        match input.dtype {
            ElementType::Float32 | ElementType::Float16 => {}
            ElementType::Uint8 => {
                if input.preprocess.iter().any(|step| matches!(step.value, Preprocess::Normalize { .. })) {
                    return wrong(
                        "the result of normalize is not uint8; a model that reads uint8 normalizes it itself",
                    );
                }
            }
            other => {
                return wrong(format!(
                    "an image becomes float32, float16 or uint8 values, but the input is {other}"
                ));
            }
        }
        let is_grey = input.preprocess.iter().any(|step| matches!(step.value, Preprocess::Grey {}));
        let channels = if is_grey { 1 } else { 3 };
        let (height, width, is_channel_last) = match *shape {
            [c, height, width] if c == channels => (height, width, false),
            [height, width, c] if c == channels => (height, width, true),
            [height, width] if is_grey => (height, width, false),
            _ => {
                return wrong(format!(
                    "an image becomes [{channels}, height, width] or [height, width, {channels}] values, but the shape is {shape:?}"
                ));
            }
        };
        let side = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        let mut steps = Self {
            height: side(height),
            width: Some(side(width)),
            sizes: Vec::new(),
            colours: if is_grey { Colours::Grey } else { Colours::Rgb },
            is_channel_last,
            divide_by: 255.0,
            mean: [0.0; 3],
            std: [1.0; 3],
        };
        // Each step has a rank in the order; only sizes may follow their own kind.
        let mut place = 0;
        for step in &input.preprocess {
            let sizing = Sizing::of(step);
            let this = match &step.value {
                _ if sizing.is_some() => 1,
                Preprocess::Grey {} | Preprocess::Bgr {} => 2,
                Preprocess::Normalize { .. } => 3,
                _ => 0,
            };
            if this < place || this == 0 || (this == place && this > 1) {
                return wrong(
                    "the steps of an image are those of its size (resize, letterbox, square, shorter_side, center_crop, \
                     fit_height), then grey or bgr, then normalize",
                );
            }
            place = this;
            if let Preprocess::Bgr {} = step.value {
                steps.colours = Colours::Bgr;
            }
            if let Some(sizing) = sizing {
                steps.add(sizing)?;
            }
            if let Preprocess::Normalize { mean, std, divide_by } = &step.value {
                steps.mean = per_channel("mean", mean, channels, 0.0)?;
                steps.std = per_channel("std", std, channels, 1.0)?;
                steps.divide_by = *divide_by as f32;
                if steps.std.iter().chain([&steps.divide_by]).any(|value| value.is_nan() || *value <= 0.0) {
                    return wrong("normalize: std and divide_by must be above 0");
                }
            }
        }
        if let Some(Sizing::FitHeight { width: None, height, .. }) = steps.sizes.last() {
            if *height != steps.height || !input.shape.contains(&Dimension::Any) {
                return wrong(format!(
                    "the result of fit_height is {height} pixels high and of `any` width, but the shape differs"
                ));
            }
            steps.width = None;
        } else if input.shape.contains(&Dimension::Any) {
            return wrong("only fit_height without a width gives pictures of `any` size");
        }
        if let Some((w, h)) = steps.sizes.last().and_then(Sizing::size)
            && (w, h) != (steps.width.unwrap_or(w), steps.height)
        {
            return wrong(format!("the result of the step is {w}x{h}, but the shape is {width}x{height}"));
        }
        Ok(steps)
    }

    fn add(&mut self, sizing: Sizing) -> Result<(), StepsError> {
        let most = image::MAX_SIDE;
        let (width, height) = match sizing {
            Sizing::ShorterSide { pixels, .. } => (pixels, pixels),
            _ => sizing.size().unwrap_or((1, 1)),
        };
        if width > most || height > most {
            return wrong(format!(
                "the result of the step is {width}x{height}; width and height can be at most {most} pixels"
            ));
        }
        if matches!(self.sizes.last(), Some(Sizing::FitHeight { .. })) {
            return wrong("fit_height is the last step that changes the size");
        }
        self.sizes.push(sizing);
        Ok(())
    }

    /// Appends the values of one picture; returns the part of it that the model sees.
    ///
    /// # Errors
    /// [`Rejected`] if it cannot be decoded or has another size after the steps; then nothing is appended.
    pub fn append(&self, bytes: &[u8], values: &mut TensorData) -> Result<Frame, Rejected> {
        let (pixels, frame) = self.sized(bytes)?;
        let is_fitted = matches!(self.sizes.last(), Some(Sizing::FitHeight { .. }));
        let width = self.row_width(&pixels);
        if pixels.height() != self.height
            || if is_fitted { pixels.width() > width } else { pixels.width() != width }
        {
            let (w, h) = pixels.dimensions();
            let message = format!("it is {w}x{h}, the model expects {width}x{}", self.height);
            return Err(Rejected::new("image_wrong_size", message));
        }
        match values {
            TensorData::Float32(values) => self.append_floats(&pixels, values),
            TensorData::Uint8(values) => self.append_bytes(&pixels, values),
            _ => {
                let detail = "the value has another type than the manifest declares";
                return Err(Rejected::new("wrong_type", detail));
            }
        }
        Ok(frame)
    }

    /// Runs the steps that change size and place.
    fn sized(&self, bytes: &[u8]) -> Result<(RgbImage, Frame), Rejected> {
        // Uncompressed pictures are scaled where they are, without a copy.
        if let [Sizing::Stretch { width, height, filter: filter::Filter::PillowBilinear }] = self.sizes[..] {
            return Ok((image::decode_to(bytes, width, height)?, Frame::WHOLE));
        }
        let (mut pixels, mut frame) = (image::decode(bytes)?, Frame::WHOLE);
        for sizing in &self.sizes {
            (pixels, frame) = self.step(*sizing, pixels, frame)?;
        }
        Ok((pixels, frame))
    }

    fn step(&self, sizing: Sizing, pixels: RgbImage, frame: Frame) -> Result<(RgbImage, Frame), Rejected> {
        let (w, h) = pixels.dimensions();
        Ok(match sizing {
            Sizing::Stretch { width, height, filter } => {
                (filter::scaled(pixels, width, height, filter), frame)
            }
            Sizing::FitHeight { width, height, round, least, filter } => {
                let fitted = self.fitted_width(w, h, round);
                let share = fitted as f32 / width.unwrap_or(fitted.max(least)) as f32;
                (filter::scaled(pixels, fitted, height, filter), frame.inside([0.0, 0.0, share, 1.0]))
            }
            Sizing::ShorterSide { pixels: side, filter } => {
                // As torchvision: the longer side is cut off, not rounded.
                let longer =
                    |other: u32, this: u32| (u64::from(side) * u64::from(other) / u64::from(this)) as u32;
                let (width, height) = if w <= h { (side, longer(h, w)) } else { (longer(w, h), side) };
                if width.max(height) > image::MAX_SIDE {
                    let most = image::MAX_SIDE;
                    let detail = format!("it becomes {width}x{height}, at most {most} pixels are possible");
                    return Err(Rejected::new("image_too_large", detail));
                }
                (filter::scaled(pixels, width, height, filter), frame)
            }
            Sizing::CenterCrop { width, height } => {
                // As torchvision: half of an odd rest is rounded to an even number; where it is filled, one more at the end.
                let start = |from: u32, to: u32| {
                    let rest = i64::from(from) - i64::from(to);
                    if rest < 0 { rest / 2 } else { (rest as f64 / 2.0).round_ties_even() as i64 }
                };
                let (x, y) = (start(w, width), start(h, height));
                let moved = moved(&pixels, (width, height), (-x, -y), 0);
                (moved, frame.inside(place((width, height), (-x, -y), (w, h))))
            }
            Sizing::Letterbox { width, height, fill, align, enlarge, filter } => {
                let ratio = (f64::from(width) / f64::from(w)).min(f64::from(height) / f64::from(h));
                let ratio = if enlarge { ratio } else { ratio.min(1.0) };
                let side = |from: u32, most: u32| {
                    let side = f64::from(from) * ratio;
                    // As the makers do: Ultralytics rounds and centres, YOLOX cuts off and aligns.
                    let side = if align == Align::Center { side.round_ties_even() } else { side + 1e-9 };
                    (side as u32).clamp(1, most)
                };
                let (inner_w, inner_h) = (side(w, width), side(h, height));
                let at = match align {
                    Align::Center => (i64::from((width - inner_w) / 2), i64::from((height - inner_h) / 2)),
                    Align::TopLeft => (0, 0),
                };
                let scaled = filter::scaled(pixels, inner_w, inner_h, filter);
                let placed = moved(&scaled, (width, height), at, fill);
                (placed, frame.inside(place((width, height), at, (inner_w, inner_h))))
            }
            Sizing::Square { fill, align } => {
                let side = w.max(h);
                let at = match align {
                    Align::Center => (i64::from((side - w) / 2), i64::from((side - h) / 2)),
                    Align::TopLeft => (0, 0),
                };
                if u64::from(side) * u64::from(side) > image::MAX_PIXELS {
                    let detail = format!("as a square it has {side}x{side} pixels");
                    return Err(Rejected::new("image_too_large", detail));
                }
                let placed = if w == h { pixels } else { moved(&pixels, (side, side), at, fill) };
                (placed, frame.inside(place((side, side), at, (w, h))))
            }
        })
    }

    /// Width of an image of this size scaled to the model's height; a too wide one is squeezed.
    fn fitted_width(&self, width: u32, height: u32, round: Round) -> u32 {
        let (scaled, height) = (u64::from(width) * u64::from(self.height), u64::from(height.max(1)));
        let scaled = if round == Round::Up { scaled.div_ceil(height) } else { scaled / height };
        u32::try_from(scaled).unwrap_or(u32::MAX).clamp(1, self.width.unwrap_or(image::MAX_SIDE))
    }

    /// Width of the model's input for a picture that was scaled.
    fn row_width(&self, pixels: &RgbImage) -> u32 {
        match (self.width, self.sizes.last()) {
            (Some(width), _) => width,
            (None, Some(Sizing::FitHeight { least, .. })) => pixels.width().max(*least),
            (None, _) => pixels.width(),
        }
    }

    fn append_floats(&self, pixels: &RgbImage, values: &mut Vec<f32>) {
        let is_whole = pixels.width() == self.row_width(pixels);
        if is_whole && self.colours == Colours::Rgb && !self.is_channel_last && self.divide_by == 255.0 {
            return image::normalize(pixels, self.mean, self.std, values);
        }
        let scales = self.std.map(|std| 1.0 / std);
        // A table of 256 values for each channel.
        let tables: [[f32; 256]; 3] = std::array::from_fn(|channel| {
            std::array::from_fn(|pixel| {
                (pixel as f32 / self.divide_by - self.mean[channel]) * scales[channel]
            })
        });
        self.append_values(pixels, values, |channel, pixel| tables[channel][usize::from(pixel)]);
    }

    /// Appends the raw bytes, for models that normalize them themselves.
    fn append_bytes(&self, pixels: &RgbImage, values: &mut Vec<u8>) {
        let is_whole = pixels.width() == self.row_width(pixels);
        if is_whole && self.colours == Colours::Rgb && !self.is_channel_last {
            return image::append_bytes(pixels, values);
        }
        self.append_values(pixels, values, |_, pixel| pixel);
    }

    /// The padding of `fit_height` stays 0, which after `normalize` is the mean.
    fn append_values<T: Copy + Default>(
        &self,
        pixels: &RgbImage,
        values: &mut Vec<T>,
        value_of: impl Fn(usize, u8) -> T,
    ) {
        let given = pixels.width() as usize;
        let (width, height) = (self.row_width(pixels) as usize, self.height as usize);
        let channels = if self.colours == Colours::Grey { 1 } else { 3 };
        let start = values.len();
        values.resize(start + channels * height * width, T::default());
        let values = &mut values[start..];
        let colour = |pixel: &[u8; 3], channel: usize| match self.colours {
            Colours::Rgb => pixel[channel],
            Colours::Bgr => pixel[2 - channel],
            Colours::Grey => brightness(*pixel),
        };
        let (source, _) = pixels.as_raw().as_chunks::<3>();
        if self.is_channel_last {
            for (row, source) in values.chunks_exact_mut(channels * width).zip(source.chunks_exact(given)) {
                for (values, pixel) in row.chunks_exact_mut(channels).zip(source) {
                    for (channel, value) in values.iter_mut().enumerate() {
                        *value = value_of(channel, colour(pixel, channel));
                    }
                }
            }
            return;
        }
        for (channel, plane) in values.chunks_exact_mut(height * width).enumerate() {
            for (row, source) in plane.chunks_exact_mut(width).zip(source.chunks_exact(given)) {
                for (value, pixel) in row.iter_mut().zip(source) {
                    *value = value_of(channel, colour(pixel, channel));
                }
            }
        }
    }
}

/// A canvas of one colour with the picture at a place, of which parts may lie outside.
fn moved(pixels: &RgbImage, (width, height): (u32, u32), (x, y): (i64, i64), fill: u8) -> RgbImage {
    let mut canvas = RgbImage::from_pixel(width, height, Rgb([fill; 3]));
    imageops::replace(&mut canvas, pixels, x, y);
    canvas
}

/// Left, top, width and height of a picture in a canvas, as shares of the canvas.
fn place((width, height): (u32, u32), (x, y): (i64, i64), (w, h): (u32, u32)) -> [f32; 4] {
    let (width, height) = (f64::from(width), f64::from(height));
    [x as f64 / width, y as f64 / height, f64::from(w) / width, f64::from(h) / height]
        .map(|share| share as f32)
}

fn per_channel(name: &str, values: &[f64], channels: usize, otherwise: f32) -> Result<[f32; 3], StepsError> {
    match *values {
        [] => Ok([otherwise; 3]),
        [all] => Ok([all as f32; 3]),
        [r, g, b] if channels == 3 => Ok([r as f32, g as f32, b as f32]),
        _ => wrong(format!("normalize: {name} needs {channels} values, found {}", values.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::image::ImageFormat;
    use std::io::Cursor;

    fn input(steps: &str, shape: &str) -> ModelInput {
        let text = format!(
            "{{name: x, column: image, type: image, dtype: float32, shape: [batch, {shape}], preprocess: [{steps}]}}"
        );
        let source = tidemill_spec::span::SourceFile::new("input.yaml", text);
        tidemill_spec::yaml::parse(&source).unwrap().deserialize_into().unwrap()
    }

    fn steps(text: &str, shape: [usize; 3]) -> Result<PictureSteps, StepsError> {
        let [a, b, c] = shape;
        PictureSteps::new(&input(text, &format!("{a}, {b}, {c}")), &shape)
    }

    fn png(width: u32, height: u32, colour: impl Fn(u32, u32) -> [u8; 3]) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        let image = RgbImage::from_fn(width, height, |x, y| Rgb(colour(x, y)));
        image.write_to(&mut bytes, ImageFormat::Png).unwrap();
        bytes.into_inner()
    }

    fn appended(steps: &PictureSteps, bytes: &[u8]) -> Result<(Vec<f32>, Frame), Rejected> {
        let mut values = TensorData::Float32(Vec::new());
        let frame = steps.append(bytes, &mut values)?;
        let TensorData::Float32(values) = values else { panic!("floats stay floats") };
        Ok((values, frame))
    }

    #[test]
    fn a_line_keeps_its_ratio_and_the_rest_is_zero() {
        let text =
            "fit_height: {height: 4, width: 6}, normalize: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}";
        let fit = steps(text, [3, 4, 6]).unwrap();
        let (values, frame) = appended(&fit, &png(4, 8, |_, _| [255, 0, 255])).unwrap();
        // 4x8 becomes 2x4.
        for row in values[..24].chunks(6) {
            assert_eq!(row, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        }
        assert_eq!(values[24], -1.0, "green");
        assert_eq!(frame.original([0.0, 0.0, 2.0 / 6.0, 1.0]), [0.0, 0.0, 1.0, 1.0]);
        assert_eq!(fit.fitted_width(100, 4, Round::Up), 6, "a line that is too wide is squeezed");
        assert_eq!(fit.fitted_width(1, 4000, Round::Up), 1);
        assert_eq!(fit.fitted_width(5, 8, Round::Up), 3, "half a pixel counts");
        assert_eq!(fit.fitted_width(5, 8, Round::Down), 2);
    }

    #[test]
    fn colours_come_in_any_order() {
        let picture = png(6, 4, |_, _| [255, 0, 51]);
        let bgr = steps("resize: {height: 4, width: 6}, bgr: {}", [3, 4, 6]).unwrap();
        let (values, _) = appended(&bgr, &picture).unwrap();
        assert_eq!((values[0], values[24], values[48]), (0.2, 0.0, 1.0));
        let last = steps("bgr: {}, normalize: {divide_by: 1}", [4, 6, 3]).unwrap();
        assert_eq!(appended(&last, &picture).unwrap().0[..4], [51.0, 0.0, 255.0, 51.0]);
        let grey = steps("grey: {}, normalize: {divide_by: 1}", [1, 4, 6]).unwrap();
        // Pillow: Image.new("RGB", (1, 1), (255, 0, 51)).convert("L").getpixel((0, 0))
        assert_eq!(appended(&grey, &picture).unwrap().0, [82.0; 24]);
    }

    #[test]
    fn a_letterbox_keeps_the_ratio_and_knows_its_place() {
        let text = "letterbox: {width: 8, height: 8, fill: 51}";
        let centre = steps(text, [3, 8, 8]).unwrap();
        let wide = png(16, 8, |_, _| [255; 3]);
        let (values, frame) = appended(&centre, &wide).unwrap();
        let rows: Vec<f32> = values[..64].chunks(8).map(|row| row[0]).collect();
        assert_eq!(rows, [0.2, 0.2, 1.0, 1.0, 1.0, 1.0, 0.2, 0.2]);
        assert_eq!(frame.original([0.0, 0.25, 1.0, 0.5]), [0.0, 0.0, 1.0, 1.0]);
        let corner =
            steps("letterbox: {width: 8, height: 8, fill: 51, align: top_left, enlarge: false}", [3, 8, 8])
                .unwrap();
        let (values, frame) = appended(&corner, &png(4, 2, |_, _| [255; 3])).unwrap();
        assert_eq!(values[..8], [1.0, 1.0, 1.0, 1.0, 0.2, 0.2, 0.2, 0.2]);
        assert_eq!(frame.original([0.0, 0.0, 0.5, 0.25]), [0.0, 0.0, 1.0, 1.0]);
    }

    #[test]
    fn squares_and_crops_know_their_place() {
        let text = "square: {align: top_left}, resize: {width: 4, height: 4, filter: pillow_nearest}";
        let (values, frame) =
            appended(&steps(text, [3, 4, 4]).unwrap(), &png(4, 2, |_, _| [255; 3])).unwrap();
        assert_eq!(values[..16], [[1.0; 8], [0.0; 8]].concat());
        assert_eq!(frame.original([0.0, 0.0, 1.0, 0.5]), [0.0, 0.0, 1.0, 1.0]);
        let text = "shorter_side: {pixels: 4}, center_crop: {width: 2, height: 2}, normalize: {divide_by: 1}";
        let crop = steps(text, [3, 2, 2]).unwrap();
        let (values, frame) = appended(&crop, &png(8, 4, |x, y| [x as u8, y as u8, 0])).unwrap();
        assert_eq!(values[..8], [3.0, 4.0, 3.0, 4.0, 1.0, 1.0, 2.0, 2.0]);
        assert_eq!(frame.original([0.0, 0.0, 1.0, 1.0]), [0.375, 0.25, 0.25, 0.5]);
        let padded = steps("center_crop: {width: 4, height: 4}", [3, 4, 4]).unwrap();
        let (values, frame) = appended(&padded, &png(2, 4, |_, _| [255; 3])).unwrap();
        assert_eq!(values[..4], [0.0, 1.0, 1.0, 0.0]);
        assert_eq!(frame.original([0.25, 0.0, 0.5, 1.0]), [0.0, 0.0, 1.0, 1.0]);
        // torchvision pads 1 and 2; of the height it cuts 2 from the top and 1 from the bottom.
        let odd = steps("center_crop: {width: 4, height: 4}, normalize: {divide_by: 1}", [3, 4, 4]).unwrap();
        let (values, frame) = appended(&odd, &png(1, 7, |_, y| [10 + y as u8; 3])).unwrap();
        assert_eq!(values[..8], [0.0, 12.0, 0.0, 0.0, 0.0, 13.0, 0.0, 0.0]);
        assert_eq!(frame.original([0.25, 0.0, 0.25, 1.0])[0], 0.0);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for text in [
            "bgr: {}, fit_height: {height: 4, width: 6}",
            "fit_height: {height: 4, width: 6}, bgr: {}, bgr: {}",
            "fit_height: {height: 4, width: 7}, bgr: {}",
            "fit_height: {height: 4, width: 6}, resize: {height: 4, width: 6}",
            "bgr: {}, normalize: {mean: [0, 0], std: [1, 1]}",
            "bgr: {}, normalize: {mean: [0, 0, 0], std: [1, 1, 0]}",
            "normalize: {divide_by: 0}",
            "grey: {}",
        ] {
            assert!(steps(text, [3, 4, 6]).is_err(), "{text}");
        }
        let large = steps("fit_height: {height: 20000, width: 20000}", [3, 20_000, 20_000]);
        let message = large.unwrap_err().message;
        assert!(message.contains("20000x20000") && message.contains("at most 16384 pixels"), "{message}");
        let unscaled = steps("bgr: {}", [3, 4, 6]).unwrap();
        let small = png(5, 4, |_, _| [0; 3]);
        assert_eq!(appended(&unscaled, &small).unwrap_err().reason, "image_wrong_size");
        assert_eq!(appended(&unscaled, &png(6, 4, |_, _| [0; 3])).unwrap().0.len(), 72);
        let long = steps("shorter_side: {pixels: 8}, center_crop: {width: 6, height: 4}", [3, 4, 6]).unwrap();
        let thin = png(1, 4000, |_, _| [0; 3]);
        assert_eq!(appended(&long, &thin).unwrap_err().reason, "image_too_large");
    }
}
