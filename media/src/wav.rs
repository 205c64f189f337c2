//! Sound: WAV bytes to mono samples.
//!
//! Read are RIFF files and those beyond 4 GiB (RF64, BW64) with whole numbers of 8 to 32 bits, floats of 32 and 64 bits, A-law and mu-law, with
//! the extended format too. Whoever writes into a pipe does not know the length and writes 0 or the largest number: then the samples
//! go to the end of the file.
use crate::Rejected;
use crate::resample::RATES;
use header::Header;

mod header;

/// Most samples (all channels together) that one record may have: 64 million.
pub const MAX_SAMPLES: u32 = 64 << 20;

/// Decodes WAV bytes to mono samples between -1 and 1 (the mean of the channels; integers are divided by
/// the largest magnitude of their width, so 16-bit ones by 32768).
///
/// # Errors
/// `audio_invalid`, `audio_truncated`, `audio_empty`, `audio_too_long`, or `audio_sample_rate` if the
/// rate differs from `sample_rate` (in Hz), with what to do.
pub fn decode(bytes: &[u8], sample_rate: u32) -> Result<Vec<f32>, Rejected> {
    let header = Header::of(bytes)?;
    if header.sample_rate != sample_rate {
        return Err(Rejected::new(
            "audio_sample_rate",
            format!(
                "it has {} samples a second, the model wants {sample_rate}; convert it first, for instance \
                 `ffmpeg -i IN.wav -ar {sample_rate} OUT.wav`",
                header.sample_rate
            ),
        ));
    }
    samples(&header, bytes.len())
}

/// Looks at the chunks without decoding: whether there are a format and samples. Which format it is, and whether all samples are
/// there, is found when they are decoded.
///
/// # Errors
/// `audio_invalid`, `audio_truncated` before the first sample, `audio_empty`.
pub fn check(bytes: &[u8]) -> Result<(), Rejected> {
    let header = Header::of(bytes)?;
    if header.data.is_empty() {
        return Err(empty());
    }
    Ok(())
}

fn empty() -> Rejected {
    Rejected::new("audio_empty", "there are no samples")
}

/// How long a sound may be that is brought to another rate; looked at before its samples are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Longest {
    /// Samples a second that it will have, in Hz. Then, too, it may have [`MAX_SAMPLES`].
    pub sample_rate: u32,
    /// In seconds; none: as long as that allows.
    pub seconds: Option<f64>,
}

impl Longest {
    /// `frames`: samples of each channel, by the header.
    fn check(&self, frames: u32, rate: u32) -> Result<(), Rejected> {
        let seconds = f64::from(frames) / f64::from(rate.max(1));
        if let Some(most) = self.seconds
            && seconds > most
        {
            let detail = format!("it lasts {seconds:.1} s, the model writes down at most {most:.1} s");
            return Err(Rejected::new("audio_too_long", detail));
        }
        let wanted = seconds * f64::from(self.sample_rate);
        if wanted > f64::from(MAX_SAMPLES) {
            let detail = format!(
                "its {frames} samples would become {wanted:.0} at {} a second, at most {MAX_SAMPLES} are possible",
                self.sample_rate
            );
            return Err(Rejected::new("audio_too_long", detail));
        }
        Ok(())
    }
}

/// Like [`decode`], for a sound of any rate; returns the rate too.
///
/// # Errors
/// As for [`decode`], but for the rate; `audio_too_long` also if it is longer than `longest`.
pub fn decode_any(bytes: &[u8], longest: Longest) -> Result<(Vec<f32>, u32), Rejected> {
    let header = Header::of(bytes)?;
    // Rates that no sound has are refused later, with their own words.
    if RATES.contains(&header.sample_rate) {
        let frames = header.length / header.frame_length().max(1) as u64;
        longest.check(u32::try_from(frames).unwrap_or(u32::MAX), header.sample_rate)?;
    }
    Ok((samples(&header, bytes.len())?, header.sample_rate))
}

fn samples(header: &Header<'_>, length: usize) -> Result<Vec<f32>, Rejected> {
    let width = header.width()?;
    let (channels, frame) = (usize::from(header.channels), header.frame_length());
    if channels == 0 {
        return Err(Rejected::new("audio_invalid", "it has no channels"));
    }
    let samples = header.length / width as u64;
    if samples > u64::from(MAX_SAMPLES) {
        return Err(Rejected::new(
            "audio_too_long",
            format!("it has {samples} samples, at most {MAX_SAMPLES} are decoded"),
        ));
    }
    if header.length > header.data.len() as u64 {
        return Err(Rejected::new("audio_truncated", format!("the WAV data ends after {length} bytes")));
    }
    // A part of a frame at the end is left out.
    let data = &header.data[..header.data.len() / frame * frame];
    if data.is_empty() {
        return Err(empty());
    }
    let mut mono = Vec::with_capacity(data.len() / frame);
    let scale = 1.0 / channels as f64;
    for frame in data.chunks_exact(frame) {
        let mut values = frame.chunks_exact(width).map(|sample| header.coding.value(sample));
        let value = match channels {
            1 => values.next().unwrap_or_default() as f32,
            _ => (values.map(|value| f64::from(value as f32)).sum::<f64>() * scale) as f32,
        };
        if !value.is_finite() {
            return Err(Rejected::new("audio_invalid", "a sample is not a finite number"));
        }
        mono.push(value);
    }
    Ok(mono)
}

#[cfg(test)]
mod tests;
