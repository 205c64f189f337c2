//! The log-mel spectrum of a sound.
//!
//! Computes exactly the values of `models/training/frontend.py`, in 64-bit floats because the logarithm of a nearly
//! empty band shows every rounding error.
use realfft::num_complex::Complex64;
use realfft::{RealFftPlanner, RealToComplex};
use std::f64::consts::TAU;
use std::sync::Arc;

/// Largest number of bands.
const MOST_BANDS: usize = 4096;

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
    hann: Vec<f64>,
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
        let MelSettings { sample_rate, window, hop, fft, mels, low, high, floor } = settings;
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
            hann: (0..window).map(|n| 0.5 - 0.5 * (TAU * n as f64 / window as f64).cos()).collect(),
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
        match samples.checked_sub(self.settings.window) {
            Some(rest) => 1 + rest / self.settings.hop,
            None => 0,
        }
    }

    /// Returns the log-mel values of samples between -1 and 1: frame after frame, `mels` values each.
    pub fn compute(&mut self, samples: &[f32]) -> Vec<f32> {
        let MelSettings { window, hop, mels, floor, .. } = self.settings;
        let mut values = Vec::with_capacity(self.frames(samples.len()) * mels);
        for start in (0..self.frames(samples.len())).map(|i| i * hop) {
            // The transform uses its input as scratch space, so the zeros are written again.
            self.frame.fill(0.0);
            for ((to, from), hann) in
                self.frame.iter_mut().zip(&samples[start..start + window]).zip(&self.hann)
            {
                *to = f64::from(*from) * hann;
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
                energy.max(floor).ln() as f32
            }));
        }
        values
    }
}

/// Filter edges are equally spaced on the mel scale of HTK; each filter rises and falls linearly in Hz.
fn bands(settings: &MelSettings) -> Vec<Band> {
    let to_mel = |hz: f64| 2595.0 * (1.0 + hz / 700.0).log10();
    let to_hz = |mel: f64| 700.0 * (10f64.powf(mel / 2595.0) - 1.0);
    let (low, high) = (to_mel(settings.low), to_mel(settings.high));
    let step = (high - low) / (settings.mels + 1) as f64;
    let edge = |i: usize| to_hz(low + step * i as f64);
    (0..settings.mels)
        .map(|band| {
            let (left, centre, right) = (edge(band), edge(band + 1), edge(band + 2));
            let weight = |bin: usize| {
                let hz = bin as f64 * f64::from(settings.sample_rate) / settings.fft as f64;
                ((hz - left) / (centre - left)).min((right - hz) / (right - centre)).max(0.0)
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
