//! The log-mel spectrum of a sound.
//!
//! Computes exactly the values of `models/training/frontend.py`, or with other settings those of librosa, in 64-bit floats
//! because the logarithm of a nearly empty band shows every rounding error.
use realfft::num_complex::Complex64;
use realfft::{RealFftPlanner, RealToComplex};
use std::f64::consts::TAU;
use std::sync::Arc;

/// Largest number of bands.
const MOST_BANDS: usize = 4096;

/// The scale on which bands are equally wide, and their weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MelScale {
    /// `2595 log10(1 + f / 700)`; the largest weight of each band is 1.
    #[default]
    Htk,
    /// Of Slaney's Auditory Toolbox: linear up to 1000 Hz, then logarithmic; each band has the area 1.
    Slaney,
}

/// The weights of the samples in a frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Taper {
    /// Hann, periodic.
    #[default]
    Hann,
    /// Hann, symmetric: its last sample has the weight 0 too.
    HannSymmetric,
    /// Hamming, periodic.
    Hamming,
}

impl Taper {
    fn weights(self, window: usize) -> Vec<f64> {
        let (middle, period) = match self {
            Self::Hann => (0.5, window),
            Self::HannSymmetric => (0.5, (window - 1).max(1)),
            Self::Hamming => (0.54, window),
        };
        (0..window).map(|n| middle - (1.0 - middle) * (TAU * n as f64 / period as f64).cos()).collect()
    }
}

/// Settings of a log-mel spectrum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MelSettings {
    /// Samples per second.
    pub sample_rate: u32,
    /// Samples in a frame.
    pub window: usize,
    /// Samples from one frame to the next.
    pub hop: usize,
    /// Points of the Fourier transform, at least `window`.
    pub fft: usize,
    /// Number of bands.
    pub mels: usize,
    /// Lowest frequency, Hz.
    pub low: f64,
    /// Highest frequency, Hz; at most half of the sample rate.
    pub high: f64,
    /// Smallest energy, so that the logarithm exists.
    pub floor: f64,
    /// Whether `floor` is added to each energy instead.
    pub adds_floor: bool,
    /// Whether the logarithm is that to the base 10.
    pub log10: bool,
    /// Scale of the bands.
    pub scale: MelScale,
    /// Weights of the samples in a frame.
    pub taper: Taper,
    /// Whether the window is in the middle of `fft` samples, all of which a frame has.
    pub in_middle: bool,
}

impl MelSettings {
    /// Samples of a frame.
    fn width(&self) -> usize {
        if self.in_middle { self.fft } else { self.window }
    }

    /// Returns the number of full frames in this number of samples.
    pub fn frames(&self, samples: usize) -> usize {
        match samples.checked_sub(self.width()) {
            Some(rest) => 1 + rest / self.hop,
            None => 0,
        }
    }

    /// Returns the least number of samples with this number of frames.
    pub fn samples(&self, frames: usize) -> usize {
        frames.checked_sub(1).map_or(0, |rest| rest.saturating_mul(self.hop).saturating_add(self.width()))
    }
}

/// Invalid settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MelSettingsError(String);

/// A triangular filter: weights of consecutive bins.
struct Band {
    first_bin: usize,
    weights: Vec<f64>,
}

/// Computes log-mel spectra with fixed settings.
pub struct LogMel {
    settings: MelSettings,
    taper: Vec<f64>,
    bands: Vec<Band>,
    transform: Arc<dyn RealToComplex<f64>>,
    frame: Vec<f64>,
    spectrum: Vec<Complex64>,
    power: Vec<f64>,
}

impl LogMel {
    /// Prepares the window, the filters and the transform.
    ///
    /// # Errors
    /// [`MelSettingsError`] with a description if the settings contradict each other.
    pub fn new(settings: MelSettings) -> Result<Self, MelSettingsError> {
        let MelSettings { sample_rate, window, hop, fft, mels, low, high, floor, .. } = settings;
        let wrong = |text: String| Err(MelSettingsError(text));
        if window == 0 || hop == 0 || mels == 0 || sample_rate == 0 {
            return wrong("sample_rate, window, hop and mels must be above 0".to_owned());
        }
        if mels > MOST_BANDS {
            return wrong(format!("mels ({mels}) must be at most {MOST_BANDS}"));
        }
        if fft < window || fft > 1 << 20 {
            return wrong(format!("fft ({fft}) must be at least window ({window}) and at most 1048576"));
        }
        let half = f64::from(sample_rate) / 2.0;
        if !(0.0 <= low && low < high && high <= half) {
            return wrong(format!("0 <= low ({low}) < high ({high}) <= sample_rate / 2 ({half}) must hold"));
        }
        if !(floor > 0.0 && floor.is_finite()) {
            return wrong(format!("floor ({floor}) must be above 0"));
        }
        let transform = RealFftPlanner::<f64>::new().plan_fft_forward(fft);
        Ok(Self {
            settings,
            taper: settings.taper.weights(window),
            bands: bands(&settings),
            frame: transform.make_input_vec(),
            spectrum: transform.make_output_vec(),
            power: vec![0.0; fft / 2 + 1],
            transform,
        })
    }

    /// Returns the settings.
    pub fn settings(&self) -> &MelSettings {
        &self.settings
    }

    /// Returns the number of full frames in this number of samples.
    pub fn frames(&self, samples: usize) -> usize {
        self.settings.frames(samples)
    }

    /// Returns the log-mel values of samples between -1 and 1: frame after frame, `mels` values each.
    pub fn compute(&mut self, samples: &[f32]) -> Vec<f32> {
        let MelSettings { window, hop, mels, floor, adds_floor, log10, .. } = self.settings;
        let before = (self.settings.width() - window) / 2;
        let mut values = Vec::with_capacity(self.frames(samples.len()) * mels);
        for start in (0..self.frames(samples.len())).map(|i| i * hop + before) {
            // The transform uses its input as scratch space, so the zeros are written again.
            self.frame.fill(0.0);
            for ((to, from), weight) in
                self.frame.iter_mut().zip(&samples[start..start + window]).zip(&self.taper)
            {
                *to = f64::from(*from) * weight;
            }
            self.transform
                .process(&mut self.frame, &mut self.spectrum)
                .expect("the buffers were made by this transform");
            for (power, bin) in self.power.iter_mut().zip(&self.spectrum) {
                *power = bin.norm_sqr();
            }
            values.extend(self.bands.iter().map(|band| {
                let energy: f64 = band
                    .weights
                    .iter()
                    .zip(&self.power[band.first_bin..])
                    .map(|(weight, power)| weight * power)
                    .sum();
                let energy = if adds_floor { energy + floor } else { energy.max(floor) };
                (if log10 { energy.log10() } else { energy.ln() }) as f32
            }));
        }
        values
    }
}

/// Hertz below which the scale of Slaney is linear, and hertz of one mel there.
const LINEAR: (f64, f64) = (1000.0, 200.0 / 3.0);

impl MelScale {
    /// Mels of a factor of e above the linear part.
    fn step() -> f64 {
        27.0 / 6.4f64.ln()
    }

    fn mel(self, hz: f64) -> f64 {
        match self {
            Self::Htk => 2595.0 * (1.0 + hz / 700.0).log10(),
            Self::Slaney if hz < LINEAR.0 => hz / LINEAR.1,
            Self::Slaney => LINEAR.0 / LINEAR.1 + (hz / LINEAR.0).ln() * Self::step(),
        }
    }

    fn hz(self, mel: f64) -> f64 {
        let linear = LINEAR.0 / LINEAR.1;
        match self {
            Self::Htk => 700.0 * (10f64.powf(mel / 2595.0) - 1.0),
            Self::Slaney if mel < linear => mel * LINEAR.1,
            Self::Slaney => LINEAR.0 * ((mel - linear) / Self::step()).exp(),
        }
    }
}

/// Filter edges are equally spaced on the mel scale; each filter rises and falls linearly in Hz.
fn bands(settings: &MelSettings) -> Vec<Band> {
    let scale = settings.scale;
    let (low, high) = (scale.mel(settings.low), scale.mel(settings.high));
    let step = (high - low) / (settings.mels + 1) as f64;
    let edge = |i: usize| scale.hz(low + step * i as f64);
    (0..settings.mels)
        .map(|band| {
            let (left, centre, right) = (edge(band), edge(band + 1), edge(band + 2));
            let height = match scale {
                MelScale::Htk => 1.0,
                MelScale::Slaney => 2.0 / (right - left),
            };
            let weight = |bin: usize| {
                let hz = bin as f64 * f64::from(settings.sample_rate) / settings.fft as f64;
                ((hz - left) / (centre - left)).min((right - hz) / (right - centre)).max(0.0) * height
            };
            let bins = settings.fft / 2 + 1;
            let first_bin = (0..bins).find(|bin| weight(*bin) > 0.0).unwrap_or(0);
            let weights = (first_bin..bins).map(weight).take_while(|weight| *weight > 0.0).collect();
            Band { first_bin, weights }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal::standardize;
    use std::path::Path;

    const SETTINGS: MelSettings = MelSettings {
        sample_rate: 8000,
        window: 200,
        hop: 80,
        fft: 256,
        mels: 40,
        low: 60.0,
        high: 3900.0,
        floor: 1e-6,
        adds_floor: false,
        log10: false,
        scale: MelScale::Htk,
        taper: Taper::Hann,
        in_middle: false,
    };

    #[test]
    fn it_equals_the_reference_of_the_training_scripts() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/testdata/logmel_reference.json");
        let reference: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let numbers = |value: &serde_json::Value| -> Vec<f32> {
            value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
        };
        let rows = |name: &str| -> Vec<Vec<f32>> {
            reference[name].as_array().unwrap().iter().map(numbers).collect()
        };
        let samples: Vec<f32> = numbers(&reference["samples"]).iter().map(|v| v / 32768.0).collect();
        let mut values = LogMel::new(SETTINGS).unwrap().compute(&samples);
        let close = |found: &[f32], expected: &[Vec<f32>]| {
            assert_eq!(found.len(), expected.len() * 40);
            for (a, b) in found.iter().zip(expected.iter().flatten()) {
                assert!((a - b).abs() < 2e-4, "{a} is not {b}");
            }
        };
        close(&values, &rows("log_mel"));
        standardize(&mut values);
        close(&values, &rows("standardized"));
    }

    #[derive(serde::Deserialize)]
    struct Spectrum {
        sample_rate: u32,
        window: usize,
        hop: usize,
        fft: usize,
        mels: usize,
        low: f64,
        high: f64,
        floor: f64,
        adds_floor: bool,
        log10: bool,
        scale: String,
        taper: String,
        samples: Vec<i16>,
        values: Vec<Vec<f32>>,
    }

    /// The references are those of librosa; see `testdata/make_spectra.py`.
    #[test]
    fn other_settings_are_those_of_librosa() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/spectra.json");
        let spectra: Vec<Spectrum> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        for of in spectra {
            let settings = MelSettings {
                sample_rate: of.sample_rate,
                window: of.window,
                hop: of.hop,
                fft: of.fft,
                mels: of.mels,
                low: of.low,
                high: of.high,
                floor: of.floor,
                adds_floor: of.adds_floor,
                log10: of.log10,
                scale: if of.scale == "slaney" { MelScale::Slaney } else { MelScale::Htk },
                taper: match of.taper.as_str() {
                    "hamming" => Taper::Hamming,
                    "hann" => Taper::Hann,
                    _ => Taper::HannSymmetric,
                },
                in_middle: true,
            };
            let samples: Vec<f32> = of.samples.iter().map(|sample| f32::from(*sample) / 32768.0).collect();
            let found = LogMel::new(settings).unwrap().compute(&samples);
            let expected = of.values.concat();
            assert_eq!(found.len(), expected.len(), "{settings:?}");
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-4, "{found} is not {expected}: {settings:?}");
            }
            assert!(
                settings.frames(settings.samples(4)) == 4 && settings.frames(settings.samples(4) - 1) == 3
            );
        }
    }

    #[test]
    fn only_full_frames_count() {
        let mel = LogMel::new(SETTINGS).unwrap();
        assert_eq!([0, 199, 200, 279, 280, 32000].map(|n| mel.frames(n)), [0, 0, 1, 1, 2, 398]);
    }

    #[test]
    fn silence_is_the_floor() {
        let values = LogMel::new(SETTINGS).unwrap().compute(&[0.0; 200]);
        assert!(values.iter().all(|v| (*v - 1e-6f32.ln()).abs() < 1e-4));
    }

    #[test]
    fn settings_that_contradict_are_refused() {
        for settings in [
            MelSettings { hop: 0, ..SETTINGS },
            MelSettings { fft: 100, ..SETTINGS },
            MelSettings { high: 5000.0, ..SETTINGS },
            MelSettings { low: 3900.0, ..SETTINGS },
            MelSettings { low: f64::NAN, ..SETTINGS },
            MelSettings { floor: 0.0, ..SETTINGS },
        ] {
            assert!(LogMel::new(settings).is_err(), "{settings:?}");
        }
    }
}
