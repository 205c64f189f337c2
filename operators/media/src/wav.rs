//! Decodes WAV bytes to mono samples, and those of the other formats in [`FORMATS`], which it recognises by
//! their first bytes.
//!
//! Of WAV it supports RIFF files and those beyond 4 GiB (RF64, BW64) with whole numbers of 8 to 32 bits,
//! floats of 32 and 64 bits, A-law and mu-law, also in the extended format. A writer into a pipe does not
//! know the length and writes 0 or the largest number: then the samples extend to the end of the file.
use crate::Rejected;
use crate::compressed::{self, Format};
use crate::resample::RATES;
use header::Header;

mod header;

/// Most samples (all channels together) of one record: 64 million.
pub const MAX_SAMPLES: u32 = 64 << 20;
/// The formats that are decoded, in words.
pub const FORMATS: &str = "WAV, FLAC, Ogg Vorbis or MP3";
/// The usual endings of the names of such files, lower case.
pub const ENDINGS: &[&str] = &["wav", "flac", "ogg", "oga", "mp3"];

/// Decodes a sound (see [`FORMATS`]) to mono samples between -1 and 1 (the mean of the channels; integers are
/// divided by the largest magnitude of their width, so 16-bit ones by 32768).
///
/// # Errors
/// `audio_invalid`, `audio_truncated`, `audio_empty`, `audio_too_long`, or `audio_sample_rate`, with a
/// correction, if the rate differs from `sample_rate` (in Hz).
pub fn decode(bytes: &[u8], sample_rate: u32) -> Result<Vec<f32>, Rejected> {
    let check_rate = |found: u32| {
        if found == sample_rate {
            return Ok(());
        }
        Err(Rejected::new(
            "audio_sample_rate",
            format!(
                "it has {found} samples per second, the model expects {sample_rate}; convert it first, for instance \
                 `ffmpeg -i IN.wav -ar {sample_rate} OUT.wav`"
            ),
        ))
    };
    if let Some(format) = Format::of(bytes) {
        return compressed::decode(format, bytes, |rate, _| check_rate(rate)).map(|(samples, _)| samples);
    }
    let header = Header::of(bytes)?;
    check_rate(header.sample_rate)?;
    samples(&header, bytes.len())
}

/// Checks the chunks without decoding: there must be a format and samples. Decoding checks the format itself
/// and the number of samples. Of other formats the header is read, of Ogg every page.
///
/// # Errors
/// `audio_invalid`, `audio_truncated` before the first sample, `audio_empty`.
pub fn check(bytes: &[u8]) -> Result<(), Rejected> {
    if let Some(format) = Format::of(bytes) {
        return compressed::check(format, bytes);
    }
    let header = Header::of(bytes)?;
    if header.data.is_empty() {
        return Err(empty());
    }
    Ok(())
}

fn empty() -> Rejected {
    Rejected::new("audio_empty", "there are no samples")
}

/// Limits on a sound that is converted to another rate, checked before its samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Longest {
    /// Its rate after the conversion, in Hz, at which [`MAX_SAMPLES`] applies too.
    pub sample_rate: u32,
    /// Seconds; none: limited by the samples only.
    pub seconds: Option<f64>,
}

impl Longest {
    /// Checks the number of `frames` (samples of each channel) from the header.
    fn check(&self, frames: u32, rate: u32) -> Result<(), Rejected> {
        let seconds = f64::from(frames) / f64::from(rate.max(1));
        if let Some(most) = self.seconds
            && seconds > most
        {
            let detail = format!("it lasts {seconds:.1} s, the model accepts at most {most:.1} s");
            return Err(Rejected::new("audio_too_long", detail));
        }
        let wanted = seconds * f64::from(self.sample_rate);
        if wanted > f64::from(MAX_SAMPLES) {
            let detail = format!(
                "its {frames} samples would become {wanted:.0} at {} per second, at most {MAX_SAMPLES} are possible",
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
/// As for [`decode`], except for the rate; `audio_too_long` also if it exceeds `longest`.
pub fn decode_any(bytes: &[u8], longest: Longest) -> Result<(Vec<f32>, u32), Rejected> {
    if let Some(format) = Format::of(bytes) {
        return compressed::decode(format, bytes, |rate, frames| match RATES.contains(&rate) {
            true => longest.check(frames, rate),
            false => Ok(()),
        });
    }
    let header = Header::of(bytes)?;
    // Rates out of range are rejected later, with their own message.
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
            format!("it has {samples} samples, at most {MAX_SAMPLES} are supported"),
        ));
    }
    if header.length > header.data.len() as u64 {
        return Err(Rejected::new("audio_truncated", format!("the WAV data ends after {length} bytes")));
    }
    // Drops an incomplete frame at the end.
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
