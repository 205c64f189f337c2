//! Sound: from one number of samples a second to another.
//!
//! A polyphase filter: the sound is thought of as filled up with zeros to a rate that both rates divide, a low-pass
//! filter takes out what the lower of the two rates cannot hold, and every so many of its values are kept. The filter
//! is a sinc with a Kaiser window (beta 5) over 10 periods of the lower rate to each side; so the results are those of
//! `scipy.signal.resample_poly` with its defaults.
use std::f64::consts::PI;

/// Rates that a sound may have, in Hz.
pub const RATES: std::ops::RangeInclusive<u32> = 1_000..=192_000;
/// Periods of the lower rate that the filter takes in to each side.
const PERIODS: usize = 10;
/// Form of the Kaiser window: higher is steeper to the sides and blunter in the middle.
const BETA: f64 = 5.0;

/// Brings sounds of one rate to another.
///
/// ```
/// use tidemill_media::resample::Resampler;
/// let resampler = Resampler::new(8000, 16000).expect("both are rates of sounds");
/// assert_eq!(resampler.resample(&[0.5; 100]).len(), 200);
/// ```
#[derive(Debug, Clone)]
pub struct Resampler {
    up: usize,
    down: usize,
    /// Symmetric; the middle is at `half`.
    filter: Vec<f64>,
    half: usize,
}

impl Resampler {
    /// From one rate to another, in Hz; `None` if one of them is outside of [`RATES`].
    pub fn new(from: u32, to: u32) -> Option<Self> {
        if !RATES.contains(&from) || !RATES.contains(&to) {
            return None;
        }
        let divisor = greatest_common_divisor(from, to);
        let (up, down) = ((to / divisor) as usize, (from / divisor) as usize);
        let half = PERIODS * up.max(down);
        let cutoff = 1.0 / up.max(down) as f64;
        let window =
            |distance: f64| bessel(BETA * (1.0 - distance * distance).max(0.0).sqrt()) / bessel(BETA);
        let tap = |k: usize| {
            let at = k as f64 - half as f64;
            sinc(at * cutoff) * window(at / half as f64)
        };
        let mut filter: Vec<f64> = (0..=2 * half).map(tap).collect();
        // A constant stays what it is.
        let scale = up as f64 / filter.iter().sum::<f64>();
        filter.iter_mut().for_each(|tap| *tap *= scale);
        Some(Self { up, down, filter, half })
    }

    /// The sound at the other rate; its length is that of the sound times the rates' ratio, rounded up.
    pub fn resample(&self, sound: &[f32]) -> Vec<f32> {
        if self.up == self.down {
            return sound.to_vec();
        }
        let length = (sound.len() * self.up).div_ceil(self.down);
        (0..length).map(|i| self.value(sound, i * self.down)).collect()
    }

    /// The value at a place that is counted in steps of the common rate.
    fn value(&self, sound: &[f32], at: usize) -> f32 {
        let first = at.saturating_sub(self.half).div_ceil(self.up);
        let last = ((at + self.half) / self.up).min(sound.len().saturating_sub(1));
        let mut sum = 0.0;
        for (i, sample) in sound.iter().enumerate().take(last + 1).skip(first) {
            sum += f64::from(*sample) * self.filter[self.half + at - i * self.up];
        }
        sum as f32
    }
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) }
}

/// Modified Bessel function of the first kind, order 0, by its series.
fn bessel(x: f64) -> f64 {
    let (mut sum, mut term, mut n) = (1.0, 1.0, 1.0);
    while term > sum * 1e-17 {
        term *= (x / (2.0 * n)).powi(2);
        sum += term;
        n += 1.0;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by inference/testdata/make_testdata.py.
    #[derive(serde::Deserialize)]
    struct Reference {
        from: u32,
        to: u32,
        sound: Vec<f32>,
        resampled: Vec<f32>,
    }

    #[test]
    fn values_are_those_of_the_reference() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/resampled.json");
        let cases: Vec<Reference> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert!(cases.len() >= 4);
        for case in cases {
            let resampled = Resampler::new(case.from, case.to).unwrap().resample(&case.sound);
            assert_eq!(resampled.len(), case.resampled.len(), "{} to {}", case.from, case.to);
            for (i, (found, wanted)) in resampled.iter().zip(&case.resampled).enumerate() {
                assert!((found - wanted).abs() < 1e-6, "{} to {}: {i}: {found} {wanted}", case.from, case.to);
            }
        }
    }

    #[test]
    fn the_same_rate_changes_nothing() {
        assert_eq!(Resampler::new(16000, 16000).unwrap().resample(&[0.25, -1.0]), [0.25, -1.0]);
        assert!(Resampler::new(8000, 16000).unwrap().resample(&[]).is_empty());
    }

    #[test]
    fn a_tone_keeps_its_pitch_and_what_does_not_fit_goes() {
        let tone = |hertz: f64, rate: f64, n: usize| -> Vec<f32> {
            (0..n).map(|i| (2.0 * PI * hertz * i as f64 / rate).sin() as f32).collect()
        };
        let up = Resampler::new(8000, 16000).unwrap().resample(&tone(440.0, 8000.0, 2000));
        let wanted = tone(440.0, 16000.0, 4000);
        assert!(up[100..3900].iter().zip(&wanted[100..3900]).all(|(a, b)| (a - b).abs() < 0.01));
        let down = Resampler::new(44100, 16000).unwrap().resample(&tone(12000.0, 44100.0, 4410));
        assert!(down[50..1500].iter().all(|value| value.abs() < 0.01), "above half of the new rate");
    }

    #[test]
    fn rates_that_no_sound_has_are_refused() {
        assert!(Resampler::new(0, 16000).is_none());
        assert!(Resampler::new(u32::MAX, 16000).is_none());
        assert!(Resampler::new(191_999, 16000).is_some());
    }
}
