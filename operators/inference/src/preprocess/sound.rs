//! Sounds as models want them: samples at the right rate, of the right length, or their spectrum.
use super::mel::{LogMel, MelScale, MelSettings, Taper};
use super::resample::Resampler;
use super::{Rejected, signal, wav};
use crate::steps::{StepsError, step_name, wrong};
use tidemill_spec::manifest::{self, Dimension, ModelInput, Preprocess};
use tidemill_spec::types::ElementType;

/// The conversion of an encoded sound to the values of one row.
pub struct SoundSteps {
    sample_rate: u32,
    resample: bool,
    /// For the rate of the previous sound, which is usually that of the next one too.
    resampler: Option<(u32, Resampler)>,
    /// Length; `None` keeps that of the sound.
    samples: Option<usize>,
    /// Seconds beyond which a sound is refused.
    longest: Option<f64>,
    /// Factor of the samples, and what is added.
    gain: (f32, f32),
    /// Whether the samples get a mean of 0 and a standard deviation of 1.
    standardized: bool,
    mel: Option<LogMel>,
    after: Vec<AfterMel>,
}

#[derive(Clone, Copy)]
enum AfterMel {
    Standardize,
    Transpose,
}

impl SoundSteps {
    /// Sets a limit: longer sounds are refused before they are decoded.
    pub(crate) fn limit(&mut self, seconds: Option<f64>) {
        self.longest = seconds;
    }

    /// Appends the values of one sound, a row of this shape.
    ///
    /// # Errors
    /// [`Rejected`] if it cannot be decoded or has another length; then nothing is appended.
    pub fn append(&mut self, bytes: &[u8], shape: &[usize], to: &mut Vec<f32>) -> Result<(), Rejected> {
        let sound = if self.resample {
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
        self.append_samples(sound, shape, to)
    }

    /// Appends the values of samples at the rate of the model, a row of this shape.
    ///
    /// # Errors
    /// [`Rejected`] if they are of another length; then nothing is appended.
    pub(crate) fn append_samples(
        &mut self,
        mut sound: Vec<f32>,
        shape: &[usize],
        to: &mut Vec<f32>,
    ) -> Result<(), Rejected> {
        if let Some(samples) = self.samples {
            sound = signal::pad_or_trim(sound, samples);
        }
        let (factor, add) = self.gain;
        if self.gain != (1.0, 0.0) {
            sound.iter_mut().for_each(|sample| *sample = *sample * factor + add);
        }
        if self.standardized {
            signal::standardize(&mut sound);
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

impl SoundSteps {
    /// Prepares the steps of a sound input whose rows have this shape.
    ///
    /// # Errors
    /// Steps in another order, or with another result than the shape.
    pub fn new(input: &ModelInput, shape: &[usize]) -> Result<Self, StepsError> {
        if !matches!(input.dtype, ElementType::Float32 | ElementType::Float16) {
            return wrong(format!(
                "a sound becomes float32 or float16 values, but the input is {}",
                input.dtype
            ));
        }
        let (mut rate, mut length, mut mel, mut after) = (None, None, None, Vec::new());
        let (mut gain, mut standardized) = ((1.0, 0.0), false);
        for step in &input.preprocess {
            match &step.value {
                Preprocess::Resample { sample_rate }
                    if rate.is_none() && length.is_none() && mel.is_none() =>
                {
                    rate = Some(*sample_rate);
                }
                Preprocess::PadOrTrim { seconds } if length.is_none() && mel.is_none() => {
                    length = Some(seconds.0)
                }
                step @ Preprocess::LogMel { .. } if mel.is_none() => {
                    let Some(settings) = mel_settings(step) else { continue };
                    mel = Some(
                        LogMel::new(settings).map_err(|e| StepsError { message: format!("log_mel: {e}") })?,
                    );
                }
                Preprocess::Gain { factor, add } if mel.is_none() && !standardized => {
                    gain = (*factor as f32, *add as f32);
                }
                Preprocess::Standardize {} if mel.is_some() => after.push(AfterMel::Standardize),
                Preprocess::Standardize {} => standardized = true,
                Preprocess::Transpose {} if mel.is_some() => after.push(AfterMel::Transpose),
                other => {
                    return wrong(format!(
                        "the steps of a sound are resample, pad_or_trim, gain, log_mel, then standardize and transpose; found {}",
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
        let samples = length.map(|nanoseconds| {
            (u128::from(nanoseconds) * u128::from(sample_rate) + 500_000_000) / 1_000_000_000
        });
        if samples.is_some_and(|samples| samples > u128::from(wav::MAX_SAMPLES)) {
            return wrong(format!("the result of pad_or_trim has more than {} samples", wav::MAX_SAMPLES));
        }
        let samples = samples.map(|samples| samples as usize);
        match &mel {
            Some(mel) => {
                let transposed =
                    after.iter().filter(|step| matches!(step, AfterMel::Transpose)).count() % 2 == 1;
                check_frames(mel, samples, transposed, shape)?;
            }
            None => {
                let any = input.shape.contains(&Dimension::Any);
                let samples_of = match shape {
                    [1, inner @ ..] if inner.len() == 1 => inner,
                    shape => shape,
                };
                if samples_of.len() != 1 || samples.map_or(!any, |samples| any || samples_of != [samples]) {
                    let given = samples.map_or_else(|| "any".to_owned(), |samples| samples.to_string());
                    return wrong(format!(
                        "the result of the steps is [batch, {given}] samples, but the shape differs"
                    ));
                }
            }
        }
        let resample = rate.is_some();
        Ok(Self {
            sample_rate,
            resample,
            resampler: None,
            samples,
            longest: None,
            gain,
            standardized,
            mel,
            after,
        })
    }
}

/// The settings of a `log_mel`; `None` for other steps.
pub(crate) fn mel_settings(step: &Preprocess) -> Option<MelSettings> {
    let Preprocess::LogMel {
        sample_rate,
        window,
        hop,
        fft,
        mels,
        low,
        high,
        floor,
        add_floor,
        log10,
        scale,
        taper,
        in_middle,
    } = *step
    else {
        return None;
    };
    Some(MelSettings {
        sample_rate,
        window: window as usize,
        hop: hop as usize,
        fft: fft as usize,
        mels: mels as usize,
        low,
        high,
        floor,
        adds_floor: add_floor,
        log10,
        scale: match scale {
            manifest::MelScale::Htk => MelScale::Htk,
            manifest::MelScale::Slaney => MelScale::Slaney,
        },
        taper: match taper {
            manifest::Taper::Hann => Taper::Hann,
            manifest::Taper::HannSymmetric => Taper::HannSymmetric,
            manifest::Taper::Hamming => Taper::Hamming,
        },
        in_middle,
    })
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
