//! The steps of a manifest before a model, checked against the declared shapes and made ready to run.
use crate::preprocess::characters::Characters;
use crate::preprocess::fit::FitSteps;
use crate::preprocess::mel::{LogMel, MelSettings};
use crate::preprocess::resample::Resampler;
use crate::preprocess::{Rejected, image, signal, wav};
use crate::tensor::TensorData;
use half::f16;
use tidemill_spec::manifest::{Dimension, InputType, ModelInput, Preprocess};
use tidemill_spec::types::ElementType;

pub use crate::output_steps::{OutputColumn, OutputSteps};

/// One value of a record, as read from a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cell<'a> {
    /// An encoded image or sound.
    Bytes(&'a [u8]),
    /// Text.
    Text(&'a str),
    /// The values of a float tensor.
    Float32(&'a [f32]),
    /// The values of a tensor of 16-bit floats.
    Float16(&'a [f16]),
    /// The values of an integer tensor.
    Int64(&'a [i64]),
    /// The values of a tensor of bytes.
    Uint8(&'a [u8]),
}

/// Message about the steps of an input or output.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StepsError {
    /// Expected and found.
    pub message: String,
}

pub(crate) fn wrong<T>(message: impl Into<String>) -> Result<T, StepsError> {
    Err(StepsError { message: message.into() })
}

/// The conversion of one column's value to one row of a model input.
pub struct InputSteps {
    shape: Vec<usize>,
    element: ElementType,
    kind: InputKind,
}

enum InputKind {
    Image { resize: Option<(u32, u32)>, mean: [f32; 3], std: [f32; 3] },
    Audio(Box<AudioSteps>),
    Fitted(FitSteps),
    Text(Characters),
    Tensor { transpose: Option<usize> },
}

struct AudioSteps {
    sample_rate: u32,
    resample: bool,
    /// For the rate of the previous sound, which is usually that of the next one too.
    resampler: Option<(u32, Resampler)>,
    /// Length; `None` keeps that of the sound.
    samples: Option<usize>,
    /// Seconds beyond which a sound is refused.
    longest: Option<f64>,
    mel: Option<LogMel>,
    after: Vec<AfterMel>,
}

#[derive(Clone, Copy)]
enum AfterMel {
    Standardize,
    Transpose,
}

impl InputSteps {
    /// Prepares the steps of `input`. `shape`: the shape of one row, without the batch.
    ///
    /// # Errors
    /// [`StepsError`] if the steps do not fit the input's type, each other or the shape.
    pub fn new(input: &ModelInput, shape: &[usize]) -> Result<Self, StepsError> {
        let kind = match input.input_type {
            InputType::Image => image_steps(input, shape)?,
            InputType::Audio => audio_steps(input, shape)?,
            InputType::Text => text_steps(input, shape)?,
            InputType::Tensor => {
                let column = column_shape(input, shape)?;
                // By the number of steps: a square matrix has the same shape afterwards.
                let is_exchanged = input.preprocess.len() % 2 == 1;
                let transpose = is_exchanged.then(|| column.last().copied().unwrap_or(1));
                InputKind::Tensor { transpose }
            }
        };
        Ok(Self { shape: shape.to_vec(), element: input.dtype, kind })
    }

    /// Returns the steps with a limit: longer sounds are refused before they are decoded.
    #[must_use]
    pub fn at_most(mut self, seconds: Option<f64>) -> Self {
        if let InputKind::Audio(steps) = &mut self.kind {
            steps.longest = seconds;
        }
        self
    }

    /// Converts one value to one row of the input.
    ///
    /// # Errors
    /// [`Rejected`] if this record's value is unusable.
    pub fn apply(&mut self, cell: Cell<'_>) -> Result<TensorData, Rejected> {
        let mut values = TensorData::zeros(self.element(), 0);
        self.append(cell, &mut values)?;
        Ok(values)
    }

    /// Type of the values.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Appends the values of one row of the input to those of other rows, of type [`InputSteps::element`].
    ///
    /// # Errors
    /// [`Rejected`] if this record's value is unusable; then nothing is appended.
    pub fn append(&mut self, cell: Cell<'_>, values: &mut TensorData) -> Result<(), Rejected> {
        // The steps compute with 32 bits.
        if let TensorData::Float16(narrow) = values
            && !matches!(self.kind, InputKind::Tensor { .. })
        {
            let mut wide = TensorData::Float32(Vec::new());
            self.append(cell, &mut wide)?;
            if let TensorData::Float32(wide) = wide {
                narrow.extend(wide.into_iter().map(f16::from_f32));
            }
            return Ok(());
        }
        match (&mut self.kind, cell, values) {
            (InputKind::Image { resize, mean, std }, Cell::Bytes(bytes), values) => {
                let pixels = match *resize {
                    Some((width, height)) => image::decode_to(bytes, width, height)?,
                    None => image::decode(bytes)?,
                };
                let (width, height) = pixels.dimensions();
                if self.shape[1..] != [height as usize, width as usize] {
                    return Err(Rejected::new(
                        "image_wrong_size",
                        format!(
                            "it is {width}x{height}, the model expects {}x{}",
                            self.shape[2], self.shape[1]
                        ),
                    ));
                }
                match values {
                    TensorData::Float32(values) => image::normalize(&pixels, *mean, *std, values),
                    TensorData::Uint8(values) => image::append_bytes(&pixels, values),
                    _ => return Err(wrong_type()),
                }
            }
            (InputKind::Audio(steps), Cell::Bytes(bytes), TensorData::Float32(values)) => {
                steps.append(bytes, &self.shape, values)?;
            }
            (InputKind::Fitted(steps), Cell::Bytes(bytes), TensorData::Float32(values)) => {
                steps.append(bytes, values)?;
            }
            (InputKind::Fitted(steps), Cell::Bytes(bytes), TensorData::Uint8(values)) => {
                steps.append_bytes(bytes, values)?;
            }
            (InputKind::Text(characters), Cell::Text(text), TensorData::Int64(values)) => {
                characters.append(text, values);
            }
            (InputKind::Tensor { transpose }, Cell::Float32(given), TensorData::Float32(values)) => {
                append_exchanged(given, &self.shape, *transpose, values);
            }
            (InputKind::Tensor { transpose }, Cell::Int64(given), TensorData::Int64(values)) => {
                append_exchanged(given, &self.shape, *transpose, values);
            }
            (InputKind::Tensor { transpose }, Cell::Float16(given), TensorData::Float16(values)) => {
                append_exchanged(given, &self.shape, *transpose, values);
            }
            (InputKind::Tensor { transpose }, Cell::Uint8(given), TensorData::Uint8(values)) => {
                append_exchanged(given, &self.shape, *transpose, values);
            }
            _ => return Err(wrong_type()),
        }
        Ok(())
    }
}

fn wrong_type() -> Rejected {
    Rejected::new("wrong_type", "the value has another type than the manifest declares")
}

impl AudioSteps {
    fn append(&mut self, bytes: &[u8], shape: &[usize], to: &mut Vec<f32>) -> Result<(), Rejected> {
        let mut sound = if self.resample {
            let longest = wav::Longest {
                sample_rate: self.sample_rate,
                // A sound that is cut to a length may be of any length.
                seconds: self.longest.filter(|_| self.samples.is_none()),
            };
            let (sound, rate) = wav::decode_any(bytes, longest)?;
            let sound = self.resampler(rate)?.resample(&sound);
            if sound.iter().any(|sample| !sample.is_finite()) {
                return Err(Rejected::new("audio_invalid", "its samples are too large for 32-bit floats"));
            }
            sound
        } else {
            wav::decode(bytes, self.sample_rate)?
        };
        if let Some(samples) = self.samples {
            sound = signal::pad_or_trim(sound, samples);
        }
        let Some(mel) = &mut self.mel else {
            to.extend_from_slice(&sound);
            return Ok(());
        };
        let mut values = mel.compute(&sound);
        if values.len() != shape.iter().product::<usize>() {
            return Err(Rejected::new(
                "audio_wrong_length",
                format!("{} samples make {} values, the model expects {shape:?}", sound.len(), values.len()),
            ));
        }
        let mut columns = mel.settings().mels;
        let mut steps = self.after.iter().peekable();
        while let Some(step) = steps.next() {
            match step {
                AfterMel::Standardize => signal::standardize(&mut values),
                AfterMel::Transpose if steps.peek().is_none() => {
                    signal::append_transposed(&values, columns, to);
                    return Ok(());
                }
                AfterMel::Transpose => {
                    values = signal::transpose(&values, columns);
                    columns = values.len() / columns;
                }
            }
        }
        to.append(&mut values);
        Ok(())
    }

    fn resampler(&mut self, rate: u32) -> Result<&Resampler, Rejected> {
        if self.resampler.as_ref().is_none_or(|(known, _)| *known != rate) {
            let resampler = Resampler::new(rate, self.sample_rate).ok_or_else(|| {
                Rejected::new(
                    "audio_sample_rate",
                    format!("it has {rate} samples per second, which is impossible"),
                )
            })?;
            self.resampler = Some((rate, resampler));
        }
        match &self.resampler {
            Some((_, resampler)) => Ok(resampler),
            None => Err(Rejected::new("audio_sample_rate", "there is no rate")),
        }
    }
}

/// Shape of one value of the column that a tensor input reads: that of the model's row, with the last two
/// dimensions exchanged if the steps exchange them.
///
/// # Errors
/// [`StepsError`] if there are other steps, or only one dimension to exchange.
pub fn column_shape(input: &ModelInput, row: &[usize]) -> Result<Vec<usize>, StepsError> {
    let mut shape = row.to_vec();
    for step in &input.preprocess {
        if !matches!(step.value, Preprocess::Transpose {}) {
            return wrong(format!("the only step of a tensor is transpose, found {}", step_name(step)));
        }
        let last = shape.len();
        if last < 2 {
            return wrong(format!("transpose needs two dimensions, but the shape is {row:?}"));
        }
        shape.swap(last - 2, last - 1);
    }
    Ok(shape)
}

/// Appends the values of a tensor of shape `row`; with `columns` the given values have that many columns and their last two
/// dimensions exchanged.
fn append_exchanged<T: Copy>(values: &[T], row: &[usize], columns: Option<usize>, to: &mut Vec<T>) {
    match (columns, row) {
        (Some(columns), [.., a, b]) => {
            for matrix in values.chunks((a * b).max(1)) {
                signal::append_transposed(matrix, columns, to);
            }
        }
        _ => to.extend_from_slice(values),
    }
}

fn image_steps(input: &ModelInput, shape: &[usize]) -> Result<InputKind, StepsError> {
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
    let &[3, height, width] = shape else {
        return wrong(format!("an image becomes [3, height, width] values, but the shape is {shape:?}"));
    };
    if let Some(steps) = FitSteps::of(input, shape)? {
        return Ok(InputKind::Fitted(steps));
    }
    let (mut resize, mut normalize) = (None, None);
    for step in &input.preprocess {
        match &step.value {
            Preprocess::Resize { width: w, height: h } if resize.is_none() && normalize.is_none() => {
                let most = image::MAX_SIDE;
                if *w > most || *h > most {
                    return wrong(format!(
                        "the result of resize is {w}x{h}; width and height can be at most {most} pixels"
                    ));
                }
                if (*w as usize, *h as usize) != (width, height) {
                    return wrong(format!(
                        "the result of resize is {w}x{h}, but the shape is {width}x{height}"
                    ));
                }
                resize = Some((*w, *h));
            }
            Preprocess::Normalize { mean, std } if normalize.is_none() => {
                normalize = Some((channels("mean", mean)?, channels("std", std)?));
                if std.iter().any(|value| value.is_nan() || *value <= 0.0) {
                    return wrong("normalize: std must be above 0");
                }
            }
            other => {
                return wrong(format!(
                    "the steps of an image are resize, then normalize; found {}",
                    step_name(other)
                ));
            }
        }
    }
    let (mean, std) = normalize.unwrap_or(([0.0; 3], [1.0; 3]));
    Ok(InputKind::Image { resize, mean, std })
}

fn channels(name: &str, values: &[f64]) -> Result<[f32; 3], StepsError> {
    match values {
        &[r, g, b] => Ok([r as f32, g as f32, b as f32]),
        other => wrong(format!("normalize: {name} needs 3 values (red, green, blue), found {}", other.len())),
    }
}

fn audio_steps(input: &ModelInput, shape: &[usize]) -> Result<InputKind, StepsError> {
    if !matches!(input.dtype, ElementType::Float32 | ElementType::Float16) {
        return wrong(format!("a sound becomes float32 or float16 values, but the input is {}", input.dtype));
    }
    let (mut rate, mut length, mut mel, mut after) = (None, None, None, Vec::new());
    for step in &input.preprocess {
        match &step.value {
            Preprocess::Resample { sample_rate } if rate.is_none() && length.is_none() && mel.is_none() => {
                rate = Some(*sample_rate);
            }
            Preprocess::PadOrTrim { seconds } if length.is_none() && mel.is_none() => {
                length = Some(seconds.0)
            }
            Preprocess::LogMel { sample_rate, window, hop, fft, mels, low, high, floor } if mel.is_none() => {
                let settings = MelSettings {
                    sample_rate: *sample_rate,
                    window: *window as usize,
                    hop: *hop as usize,
                    fft: *fft as usize,
                    mels: *mels as usize,
                    low: *low,
                    high: *high,
                    floor: *floor,
                };
                mel =
                    Some(LogMel::new(settings).map_err(|e| StepsError { message: format!("log_mel: {e}") })?);
            }
            Preprocess::Standardize {} if mel.is_some() => after.push(AfterMel::Standardize),
            Preprocess::Transpose {} if mel.is_some() => after.push(AfterMel::Transpose),
            other => {
                return wrong(format!(
                    "the steps of a sound are resample, pad_or_trim, log_mel, then standardize and transpose; found {}",
                    step_name(other)
                ));
            }
        }
    }
    let wanted = mel.as_ref().map(|mel: &LogMel| mel.settings().sample_rate);
    let Some(sample_rate) = wanted.or(rate) else {
        return wrong("a sound needs the step log_mel or resample, which also sets the sample rate");
    };
    if rate.is_some_and(|rate| rate != sample_rate) {
        return wrong("resample and log_mel have different sample rates");
    }
    if rate.is_some_and(|rate| Resampler::new(rate, rate).is_none()) {
        return wrong(format!("resample has {sample_rate} samples per second, which is impossible"));
    }
    let samples = length
        .map(|nanoseconds| (u128::from(nanoseconds) * u128::from(sample_rate) + 500_000_000) / 1_000_000_000);
    if samples.is_some_and(|samples| samples > u128::from(wav::MAX_SAMPLES)) {
        return wrong(format!("the result of pad_or_trim has more than {} samples", wav::MAX_SAMPLES));
    }
    let samples = samples.map(|samples| samples as usize);
    match &mel {
        Some(mel) => {
            let transposed = after.iter().filter(|step| matches!(step, AfterMel::Transpose)).count() % 2 == 1;
            check_frames(mel, samples, transposed, shape)?;
        }
        None => {
            let any = input.shape.get(1) == Some(&Dimension::Any);
            if shape.len() != 1 || samples.map_or(!any, |samples| any || shape != [samples]) {
                let given = samples.map_or_else(|| "any".to_owned(), |samples| samples.to_string());
                return wrong(format!(
                    "the result of the steps is [batch, {given}] samples, but the shape differs"
                ));
            }
        }
    }
    let resample = rate.is_some();
    let steps = AudioSteps { sample_rate, resample, resampler: None, samples, longest: None, mel, after };
    Ok(InputKind::Audio(Box::new(steps)))
}

/// Checks that the frames of a sound match the shape.
fn check_frames(
    mel: &LogMel,
    samples: Option<usize>,
    transposed: bool,
    shape: &[usize],
) -> Result<(), StepsError> {
    let mels = mel.settings().mels;
    let (&[first, second] | &[1, first, second]) = shape else {
        return wrong(format!("a sound becomes a matrix of frames and mels, but the shape is {shape:?}"));
    };
    let (frames, bands) = if transposed { (second, first) } else { (first, second) };
    let wanted_frames = samples.map_or(frames, |samples| mel.frames(samples));
    if (wanted_frames, mels) != (frames, bands) {
        return wrong(format!(
            "the result of the steps is {wanted_frames} frames of {mels} mels, but the shape is {frames} frames of {bands}"
        ));
    }
    Ok(())
}

fn text_steps(input: &ModelInput, shape: &[usize]) -> Result<InputKind, StepsError> {
    if input.dtype != ElementType::Int64 {
        return wrong(format!("characters become int64 values, but the input is {}", input.dtype));
    }
    let [step] = input.preprocess.as_slice() else {
        return wrong(format!(
            "the only step of a text is characters, found {} steps",
            input.preprocess.len()
        ));
    };
    let Preprocess::Characters { alphabet, length } = &step.value else {
        return wrong(format!("the only step of a text is characters, found {}", step_name(step)));
    };
    if shape != [*length as usize] {
        return wrong(format!("characters become [{length}] values, but the shape is {shape:?}"));
    }
    Ok(InputKind::Text(Characters::new(alphabet, *length as usize)))
}

fn step_name(step: &Preprocess) -> &'static str {
    match step {
        Preprocess::Resize { .. } => "resize",
        Preprocess::FitHeight { .. } => "fit_height",
        Preprocess::Bgr {} => "bgr",
        Preprocess::Normalize { .. } => "normalize",
        Preprocess::Resample { .. } => "resample",
        Preprocess::PadOrTrim { .. } => "pad_or_trim",
        Preprocess::LogMel { .. } => "log_mel",
        Preprocess::Standardize {} => "standardize",
        Preprocess::Transpose {} => "transpose",
        Preprocess::Characters { .. } => "characters",
    }
}
