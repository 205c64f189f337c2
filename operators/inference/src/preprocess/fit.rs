//! Images whose aspect ratio matters, such as lines of text: scaled to the model's height, padded on the right. Also the
//! order of the colours.
use super::{Rejected, image};
use crate::steps::StepsError;
use ::image::RgbImage;
use tidemill_spec::manifest::{ModelInput, Preprocess};

/// The conversion of an encoded image to values, for inputs with the steps `fit_height` or `bgr`.
#[derive(Debug, Clone, PartialEq)]
pub struct FitSteps {
    height: u32,
    width: u32,
    scaling: Scaling,
    bgr: bool,
    mean: [f32; 3],
    std: [f32; 3],
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Scaling {
    /// The image must have the size already.
    None,
    /// To the size, ignoring its ratio.
    Stretch,
    /// To the height; the rest of the width is 0.
    Fit,
}

impl FitSteps {
    /// Returns the steps of an image input of `[3, height, width]` values; `None` if neither `fit_height` nor `bgr` is
    /// among them.
    ///
    /// # Errors
    /// Steps in another order than `resize` or `fit_height`, `bgr`, `normalize`, or with another size.
    pub fn of(input: &ModelInput, shape: &[usize]) -> Result<Option<Self>, StepsError> {
        let ours = |step: &Preprocess| matches!(step, Preprocess::FitHeight { .. } | Preprocess::Bgr {});
        let &[3, height, width] = shape else { return Ok(None) };
        if !input.preprocess.iter().any(|step| ours(step)) {
            return Ok(None);
        }
        let wrong = |message: String| Err(StepsError { message });
        let size = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        let mut steps = Self {
            height: size(height),
            width: size(width),
            scaling: Scaling::None,
            bgr: false,
            mean: [0.0; 3],
            std: [1.0; 3],
        };
        // Each step has a rank in the order; the next one must rank higher.
        let mut place = 0;
        for step in &input.preprocess {
            let (this, given) = match &step.value {
                Preprocess::Resize { width, height } => (1, Some((*width, *height, Scaling::Stretch))),
                Preprocess::FitHeight { width, height } => (1, Some((*width, *height, Scaling::Fit))),
                Preprocess::Bgr {} => (2, None),
                Preprocess::Normalize { .. } => (3, None),
                _ => (0, None),
            };
            if this <= place {
                return wrong(
                    "the steps of an image are resize or fit_height, then bgr, then normalize, each at most once".into(),
                );
            }
            place = this;
            steps.bgr |= this == 2;
            if let Some((width, height, scaling)) = given {
                steps.scaling = scaling;
                if width > image::MAX_SIDE || height > image::MAX_SIDE {
                    let most = image::MAX_SIDE;
                    return wrong(format!(
                        "the result of the step is {width}x{height}; width and height can be at most {most} pixels"
                    ));
                }
                if (width, height) != (steps.width, steps.height) {
                    let (w, h) = (steps.width, steps.height);
                    return wrong(format!(
                        "the result of the step is {width}x{height}, but the shape is {w}x{h}"
                    ));
                }
            }
            if let Preprocess::Normalize { mean, std } = &step.value {
                let (&[a, b, c], &[d, e, f]) = (mean.as_slice(), std.as_slice()) else {
                    return wrong("normalize: mean and std need 3 values each".into());
                };
                if [d, e, f].iter().any(|value| value.is_nan() || *value <= 0.0) {
                    return wrong("normalize: std must be above 0".into());
                }
                steps.mean = [a as f32, b as f32, c as f32];
                steps.std = [d as f32, e as f32, f as f32];
            }
        }
        Ok(Some(steps))
    }

    /// Appends the values of one image: channel, row, column.
    ///
    /// # Errors
    /// [`Rejected`] if it cannot be decoded or, without scaling, has another size; then nothing is appended.
    pub fn append(&self, bytes: &[u8], values: &mut Vec<f32>) -> Result<(), Rejected> {
        let scales = self.std.map(|std| 1.0 / std);
        let value = |channel: usize, pixel| (f32::from(pixel) / 255.0 - self.mean[channel]) * scales[channel];
        self.append_values(&self.scaled(bytes)?, values, value);
        Ok(())
    }

    /// Appends the raw bytes, for models that normalize them themselves.
    ///
    /// # Errors
    /// See [`FitSteps::append`].
    pub fn append_bytes(&self, bytes: &[u8], values: &mut Vec<u8>) -> Result<(), Rejected> {
        self.append_values(&self.scaled(bytes)?, values, |_, pixel| pixel);
        Ok(())
    }

    /// Returns the pixels of an image in the size of the model, or narrower.
    fn scaled(&self, bytes: &[u8]) -> Result<RgbImage, Rejected> {
        let pixels = image::decode(bytes)?;
        Ok(match self.scaling {
            Scaling::Stretch => image::resize(pixels, self.width, self.height),
            Scaling::Fit => {
                let width = self.fitted_width(pixels.width(), pixels.height());
                image::resize(pixels, width, self.height)
            }
            Scaling::None if pixels.dimensions() == (self.width, self.height) => pixels,
            Scaling::None => {
                let (w, h) = pixels.dimensions();
                let message = format!("it is {w}x{h}, the model expects {}x{}", self.width, self.height);
                return Err(Rejected::new("image_wrong_size", message));
            }
        })
    }

    /// Width of an image of this size scaled to the model's height; a too wide one is squeezed.
    fn fitted_width(&self, width: u32, height: u32) -> u32 {
        let scaled = (u64::from(width) * u64::from(self.height)).div_ceil(u64::from(height.max(1)));
        u32::try_from(scaled).unwrap_or(u32::MAX).clamp(1, self.width)
    }

    /// The padding stays 0, which after `normalize` is the mean.
    fn append_values<T: Copy + Default>(
        &self,
        pixels: &RgbImage,
        values: &mut Vec<T>,
        value_of: impl Fn(usize, u8) -> T,
    ) {
        let (width, height) = (self.width as usize, self.height as usize);
        let given = pixels.width() as usize;
        let start = values.len();
        values.resize(start + 3 * height * width, T::default());
        let values = &mut values[start..];
        for channel in 0..3 {
            let from = if self.bgr { 2 - channel } else { channel };
            let rows = values[channel * height * width..].chunks_exact_mut(width);
            for (row, source) in rows.zip(pixels.as_raw().chunks_exact(3 * given)) {
                for (value, pixel) in row.iter_mut().zip(source.iter().skip(from).step_by(3)) {
                    *value = value_of(channel, *pixel);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::image::{ImageFormat, Rgb};
    use std::io::Cursor;

    fn input(text: &str, width: u32) -> ModelInput {
        let text = format!(
            "{{name: x, column: image, type: image, dtype: float32, shape: [batch, 3, 4, {width}], preprocess: [{text}]}}"
        );
        let source = tidemill_spec::span::SourceFile::new("input.yaml", text);
        tidemill_spec::yaml::parse(&source).unwrap().deserialize_into().unwrap()
    }

    fn steps(text: &str, width: u32) -> Result<Option<FitSteps>, StepsError> {
        FitSteps::of(&input(text, width), &[3, 4, width as usize])
    }

    fn png(width: u32, height: u32, colour: [u8; 3]) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        RgbImage::from_pixel(width, height, Rgb(colour)).write_to(&mut bytes, ImageFormat::Png).unwrap();
        bytes.into_inner()
    }

    fn appended(steps: &FitSteps, bytes: &[u8]) -> Result<Vec<f32>, Rejected> {
        let mut values = Vec::new();
        steps.append(bytes, &mut values).map(|()| values)
    }

    #[test]
    fn a_line_keeps_its_ratio_and_the_rest_is_zero() {
        let fit = steps(
            "fit_height: {height: 4, width: 6}, normalize: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}",
            6,
        );
        let fit = fit.unwrap().unwrap();
        let values = appended(&fit, &png(4, 8, [255, 0, 255])).unwrap();
        // 4x8 becomes 2x4.
        let red: Vec<f32> = values[..24].to_vec();
        for row in red.chunks(6) {
            assert_eq!(row, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        }
        assert_eq!(values[24], -1.0, "green");
        assert_eq!(fit.fitted_width(100, 4), 6, "a line that is too wide is squeezed");
        assert_eq!(fit.fitted_width(1, 4000), 1);
        assert_eq!(fit.fitted_width(5, 8), 3, "half a pixel counts");
    }

    #[test]
    fn blue_may_come_first() {
        let steps = steps("fit_height: {height: 4, width: 6}, bgr: {}", 6).unwrap().unwrap();
        let values = appended(&steps, &png(6, 4, [255, 0, 51])).unwrap();
        assert_eq!((values[0], values[24], values[48]), (0.2, 0.0, 1.0));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(steps("resize: {height: 4, width: 6}", 6).unwrap().is_none());
        for text in [
            "bgr: {}, fit_height: {height: 4, width: 6}",
            "fit_height: {height: 4, width: 6}, bgr: {}, bgr: {}",
            "fit_height: {height: 4, width: 7}, bgr: {}",
            "bgr: {}, normalize: {mean: [0, 0], std: [1, 1]}",
            "bgr: {}, normalize: {mean: [0, 0, 0], std: [1, 1, 0]}",
        ] {
            assert!(steps(text, 6).is_err(), "{text}");
        }
        let large =
            FitSteps::of(&input("fit_height: {height: 20000, width: 20000}", 20_000), &[3, 20_000, 20_000]);
        let message = large.unwrap_err().message;
        assert!(message.contains("20000x20000") && message.contains("at most 16384 pixels"), "{message}");
        let unscaled = steps("bgr: {}", 6).unwrap().unwrap();
        assert_eq!(appended(&unscaled, &png(5, 4, [0; 3])).unwrap_err().reason, "image_wrong_size");
        assert_eq!(appended(&unscaled, &png(6, 4, [0; 3])).unwrap().len(), 72);
    }
}
