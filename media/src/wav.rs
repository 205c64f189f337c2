//! Sound: WAV bytes to mono samples.
use crate::Rejected;
use crate::resample::RATES;
use hound::{SampleFormat, WavReader};
use std::borrow::Cow;
use std::io::Cursor;

/// Most samples (all channels together) that one record may have: 64 million.
pub const MAX_SAMPLES: u32 = 64 << 20;

/// Decodes WAV bytes to mono samples between -1 and 1 (the mean of the channels; integers are divided by
/// the largest magnitude of their width, so 16-bit ones by 32768).
///
/// # Errors
/// `audio_invalid`, `audio_truncated`, `audio_empty`, `audio_too_long`, or `audio_sample_rate` if the
/// rate differs from `sample_rate` (in Hz), with what to do.
pub fn decode(bytes: &[u8], sample_rate: u32) -> Result<Vec<f32>, Rejected> {
    let plain = plain(bytes);
    let reader = WavReader::new(Cursor::new(&*plain)).map_err(|error| rejected(&error, bytes.len()))?;
    let spec = reader.spec();
    if spec.sample_rate != sample_rate {
        return Err(Rejected::new(
            "audio_sample_rate",
            format!(
                "it has {} samples a second, the model wants {sample_rate}; convert it first, for instance \
                 `ffmpeg -i IN.wav -ar {sample_rate} OUT.wav`",
                spec.sample_rate
            ),
        ));
    }
    samples(reader, bytes.len())
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
    let plain = plain(bytes);
    let reader = WavReader::new(Cursor::new(&*plain)).map_err(|error| rejected(&error, bytes.len()))?;
    let spec = reader.spec();
    // Rates that no sound has are refused later, with their own words.
    if RATES.contains(&spec.sample_rate) {
        longest.check(reader.len() / u32::from(spec.channels.max(1)), spec.sample_rate)?;
    }
    Ok((samples(reader, bytes.len())?, spec.sample_rate))
}

/// The file as `hound` reads it right: it knows no byte that fills a chunk up to an even length, and takes the lowest bits of
/// a sample where a format with extensions has the valid ones at the top.
fn plain(bytes: &[u8]) -> Cow<'_, [u8]> {
    const EXTENSIBLE: [u8; 2] = [0xfe, 0xff];
    let (mut at, mut format, mut has_filling) = (12, None, false);
    while let Some(header) = bytes.get(at..at + 8) {
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        let after = at.saturating_add(8).saturating_add(length);
        match &header[..4] {
            b"data" => break,
            b"fmt " => format = bytes.get(at..after),
            _ => {}
        }
        has_filling |= length % 2 == 1;
        at = after.saturating_add(length % 2);
    }
    let (Some(format), Some(data)) = (format, bytes.get(at..).filter(|rest| rest.starts_with(b"data")))
    else {
        return Cow::Borrowed(bytes);
    };
    let is_at_the_top = format.len() >= 28 && format[8..10] == EXTENSIBLE && format[22..24] != format[26..28];
    if !has_filling && !is_at_the_top {
        return Cow::Borrowed(bytes);
    }
    let mut plain = [&bytes[..12], format, data].concat();
    if is_at_the_top {
        // As many valid bits as a sample has: the lowest are 0.
        plain.copy_within(12 + 22..12 + 24, 12 + 26);
    }
    Cow::Owned(plain)
}

fn samples(mut reader: WavReader<Cursor<&[u8]>>, length: usize) -> Result<Vec<f32>, Rejected> {
    let spec = reader.spec();
    let channels = usize::from(spec.channels);
    let samples = reader.len();
    if channels == 0 || samples == 0 {
        return Err(Rejected::new("audio_empty", "there are no samples"));
    }
    if samples > MAX_SAMPLES {
        return Err(Rejected::new(
            "audio_too_long",
            format!("it has {samples} samples, at most {MAX_SAMPLES} are decoded"),
        ));
    }
    // The header may promise more than there is.
    let mut interleaved = Vec::with_capacity((samples as usize).min(length));
    match spec.sample_format {
        SampleFormat::Float => {
            for sample in reader.samples::<f32>() {
                let sample = sample.map_err(|error| rejected(&error, length))?;
                if !sample.is_finite() {
                    return Err(Rejected::new("audio_invalid", "a sample is not a finite number"));
                }
                interleaved.push(sample);
            }
        }
        SampleFormat::Int => {
            let scale = 1.0 / f64::from(spec.bits_per_sample.saturating_sub(1)).exp2();
            for sample in reader.samples::<i32>() {
                let sample = sample.map_err(|error| rejected(&error, length))?;
                interleaved.push((f64::from(sample) * scale) as f32);
            }
        }
    }
    if channels == 1 {
        return Ok(interleaved);
    }
    let scale = 1.0 / channels as f64;
    let mean = |frame: &[f32]| (frame.iter().map(|sample| f64::from(*sample)).sum::<f64>() * scale) as f32;
    Ok(interleaved.chunks_exact(channels).map(mean).collect())
}

fn rejected(error: &hound::Error, length: usize) -> Rejected {
    match error {
        // The reader reports the end of the bytes in both ways.
        hound::Error::IoError(_) => {
            Rejected::new("audio_truncated", format!("the WAV data ends after {length} bytes"))
        }
        hound::Error::FormatError(text) if text.contains("enough bytes") => {
            Rejected::new("audio_truncated", format!("the WAV data ends after {length} bytes"))
        }
        other => Rejected::new("audio_invalid", other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hound::{WavSpec, WavWriter};
    use proptest::prelude::*;

    fn spec(channels: u16, bits: u16, sample_format: SampleFormat) -> WavSpec {
        WavSpec { channels, sample_rate: 8000, bits_per_sample: bits, sample_format }
    }

    fn wav(spec: WavSpec, samples: &[f32]) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        let mut writer = WavWriter::new(&mut bytes, spec).unwrap();
        for sample in samples {
            match spec.sample_format {
                SampleFormat::Float => writer.write_sample(*sample).unwrap(),
                SampleFormat::Int => {
                    let scale = (1i64 << (spec.bits_per_sample - 1)) as f32;
                    writer.write_sample((sample * scale) as i32).unwrap();
                }
            }
        }
        writer.finalize().unwrap();
        bytes.into_inner()
    }

    #[test]
    fn all_sample_formats_give_the_same() {
        let samples = [0.0, 0.5, -0.5, 0.25, -1.0];
        for (bits, format) in [
            (8, SampleFormat::Int),
            (16, SampleFormat::Int),
            (24, SampleFormat::Int),
            (32, SampleFormat::Int),
            (32, SampleFormat::Float),
        ] {
            let decoded = decode(&wav(spec(1, bits, format), &samples), 8000).unwrap();
            assert_eq!(decoded, samples, "{bits} bits {format:?}");
        }
    }

    #[test]
    fn channels_are_averaged() {
        let bytes = wav(spec(2, 16, SampleFormat::Int), &[0.5, -0.25, 0.0, 0.5]);
        assert_eq!(decode(&bytes, 8000).unwrap(), [0.125, 0.25]);
    }

    #[test]
    fn another_rate_says_what_to_do() {
        let rejected = decode(&wav(spec(1, 16, SampleFormat::Int), &[0.5]), 16000).unwrap_err();
        assert_eq!(rejected.reason, "audio_sample_rate");
        assert!(rejected.detail.contains("8000") && rejected.detail.contains("-ar 16000"), "{rejected}");
    }

    #[test]
    fn any_rate_is_told() {
        let bytes = wav(spec(1, 16, SampleFormat::Int), &[0.5, -0.5]);
        let longest = Longest { sample_rate: 16000, seconds: None };
        assert_eq!(decode_any(&bytes, longest), Ok((vec![0.5, -0.5], 8000)));
        assert_eq!(decode_any(&bytes[..bytes.len() - 1], longest).unwrap_err().reason, "audio_truncated");
        let short = Longest { seconds: Some(1.5 / 8000.0), ..longest };
        assert_eq!(decode_any(&bytes, short).unwrap_err().reason, "audio_too_long");
    }

    /// 5 million samples of 1 kHz would be 80 million of 16 kHz.
    #[test]
    fn a_sound_that_would_become_too_long_is_refused_by_its_header() {
        let slow = WavSpec { sample_rate: 1000, ..spec(1, 8, SampleFormat::Int) };
        let mut bytes = wav(slow, &[0.5; 4]);
        let data = bytes.len() - 4;
        bytes[data - 4..data].copy_from_slice(&5_000_000u32.to_le_bytes());
        let longest = Longest { sample_rate: 16000, seconds: None };
        let rejected = decode_any(&bytes, longest).unwrap_err();
        assert_eq!(rejected.reason, "audio_too_long", "{rejected}");
        assert!(rejected.detail.contains("80000000 at 16000 a second"), "{rejected}");
        assert_eq!(
            decode_any(&bytes, Longest { sample_rate: 8000, ..longest }).unwrap_err().reason,
            "audio_truncated"
        );
    }

    /// The bytes that fill a chunk up to an even length are in no length.
    #[test]
    fn chunks_of_odd_lengths_are_passed_over() {
        let bytes = wav(spec(1, 16, SampleFormat::Int), &[0.5, -0.5]);
        let data = bytes.windows(4).position(|four| four == b"data").unwrap();
        let with = |more: &[u8]| [&bytes[..data], more, &bytes[data..]].concat();
        let odd = b"LIST\x03\0\0\0abc\0";
        for more in [&odd[..], b"bext\x02\0\0\0ab", &[&odd[..], &odd[..]].concat()] {
            assert_eq!(decode(&with(more), 8000), Ok(vec![0.5, -0.5]), "{more:?}");
        }
        // Without that byte, as some write them.
        assert_eq!(decode(&with(&odd[..11]), 8000), Ok(vec![0.5, -0.5]));
    }

    /// 24 valid bits in samples of 32 are the upper ones where the format has extensions.
    #[test]
    fn valid_bits_are_the_upper_ones() {
        let (half, format) = (0.5f32, spec(1, 32, SampleFormat::Int));
        let mut bytes = wav(format, &[half, -half]);
        let place = bytes.windows(4).position(|four| four == b"fmt ").unwrap();
        assert_eq!(bytes[place + 8..place + 10], [0xfe, 0xff], "it is written with extensions");
        bytes[place + 26..place + 28].copy_from_slice(&24u16.to_le_bytes());
        assert_eq!(decode(&bytes, 8000), Ok(vec![half, -half]));
    }

    #[test]
    fn an_empty_sound_is_empty() {
        assert_eq!(
            decode(&wav(spec(1, 16, SampleFormat::Int), &[]), 8000).unwrap_err().reason,
            "audio_empty"
        );
    }

    #[test]
    fn not_a_number_is_refused() {
        let bytes = wav(spec(1, 32, SampleFormat::Float), &[f32::NAN]);
        assert_eq!(decode(&bytes, 8000).unwrap_err().reason, "audio_invalid");
    }

    #[test]
    fn every_truncation_is_found() {
        for whole in [
            wav(spec(2, 16, SampleFormat::Int), &[0.1; 40]),
            wav(spec(1, 32, SampleFormat::Float), &[0.1; 9]),
        ] {
            for length in 0..whole.len() {
                let rejected = decode(&whole[..length], 8000).expect_err("a part is not a whole");
                assert_eq!(rejected.reason, "audio_truncated", "{length} bytes: {rejected}");
            }
        }
    }

    proptest! {
        #[test]
        fn damaged_sounds_never_panic(at in 0usize..124, value: u8) {
            let mut bytes = wav(spec(2, 16, SampleFormat::Int), &[0.1; 40]);
            bytes[at] = value;
            let _ = decode(&bytes, 8000);
        }

        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>) {
            let _ = decode(&bytes, 8000);
            let mut start = b"RIFF\x40\0\0\0WAVE".to_vec();
            start.extend(bytes);
            let _ = decode(&start, 8000);
        }
    }
}
