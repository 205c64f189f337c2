//! Compressed sounds: FLAC, Ogg Vorbis and MP3.
//!
//! [`wav`](crate::wav) gives them here by their first bytes. Their structure is walked before decoding,
//! because decoders pass over damaged parts as players want: every page of an Ogg file has its checksum and
//! its number, every frame of an MP3 file follows the one before it, and a FLAC file has a checksum of all
//! its samples.
//!
//! | format | decoded | compared with ffmpeg 7.0 |
//! |---|---|---|
//! | FLAC | 4 to 32 bits | the same samples |
//! | Ogg Vorbis | one stream | within 0.1 of 1/32768 |
//! | MP3 | layer III of MPEG 1, 2 and 2.5 | within 0.1 of 1/32768 |
//!
//! Measured on twenty seconds of tones and noise at 16 and 44.1 kHz: MP3 is off by 0.01 (the root of the mean
//! square), Vorbis by 0.001, in units of 1/32768.
//!
//! An encoder of MP3 adds samples before and after the sound, and says in its first frame how many. They are
//! dropped, as ffmpeg does, so that a sound has its length from before encoding. Without that frame nothing
//! is dropped. The last page of an Ogg file says where the sound ends; ffmpeg ignores it in files whose sound
//! fits into one page.
use crate::Rejected;
use crate::wav::MAX_SAMPLES;
use std::io::{Cursor, ErrorKind};
use symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::default::formats::{FlacReader, MpaReader, OggReader};
use symphonia::default::get_codecs;

mod mp3;
mod ogg;

/// Format of a compressed sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Flac,
    Ogg,
    Mp3,
}

impl Format {
    /// Recognises a format by the first bytes.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        match without_tag(bytes) {
            [b'f', b'L', b'a', b'C', ..] => Some(Self::Flac),
            [b'O', b'g', b'g', b'S', ..] => Some(Self::Ogg),
            // All tags of this kind but those before FLAC are of MP3.
            [0xff, 0xe0..=0xff, ..] => Some(Self::Mp3),
            _ if bytes.starts_with(b"ID3") => Some(Self::Mp3),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Flac => "FLAC",
            Self::Ogg => "Ogg",
            Self::Mp3 => "MP3",
        }
    }
}

/// Whether the bytes, which start like MP3, have a tag or the header of a frame there.
pub(crate) fn is_mp3(bytes: &[u8]) -> bool {
    bytes.starts_with(b"ID3") || mp3::begins(bytes)
}

/// Returns the bytes behind the ID3 tags with the title and the like: pictures in them may be large.
fn without_tag(bytes: &[u8]) -> &[u8] {
    let mut rest = bytes;
    while let Some([b'I', b'D', b'3', _, _, flags, length @ ..]) = rest.get(..10) {
        // Seven bits of each byte count.
        let length = length.iter().fold(0, |sum, byte| sum << 7 | usize::from(byte & 0x7f));
        let footer = if flags & 0x10 == 0 { 0 } else { 10 };
        rest = rest.get(10 + length + footer..).unwrap_or_default();
    }
    rest
}

/// Checks the structure and reads the header. As of WAV, a sound that is cut off passes.
///
/// # Errors
/// `audio_invalid`, `audio_empty`.
pub(crate) fn check(format: Format, bytes: &[u8]) -> Result<(), Rejected> {
    match guarded(format, || Sound::open(format, bytes).map(|_| ())) {
        Err(rejected) if rejected.reason != "audio_truncated" => Err(rejected),
        _ => Ok(()),
    }
}

/// Decodes a sound that passes these checks of its sample rate and its length (samples of each channel, by
/// the header), to the means of its channels, and returns its rate too.
///
/// # Errors
/// `audio_invalid`, `audio_truncated`, `audio_empty`, `audio_too_long`, and those of the checks.
pub(crate) fn decode(
    format: Format,
    bytes: &[u8],
    accepts: impl FnOnce(u32, u32) -> Result<(), Rejected>,
) -> Result<(Vec<f32>, u32), Rejected> {
    guarded(format, || {
        let sound = Sound::open(format, bytes)?;
        let rate = sound.sample_rate;
        accepts(rate, sound.frames.map_or(0, |frames| u32::try_from(frames).unwrap_or(u32::MAX)))?;
        Ok((sound.samples()?, rate))
    })
}

/// The decoders stop at some damaged data by a panic, which must not end what else runs.
fn guarded<T>(format: Format, run: impl FnOnce() -> Result<T, Rejected>) -> Result<T, Rejected> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|_| {
        Err(invalid(format!("the {} data are damaged: the decoder stopped", format.name())))
    })
}

/// A compressed sound whose header is read.
struct Sound<'a> {
    format: Format,
    reader: Box<dyn FormatReader + 'a>,
    track: u32,
    codec: AudioCodecParameters,
    sample_rate: u32,
    /// Samples of each channel, by the header.
    frames: Option<u64>,
    length: usize,
}

impl<'a> Sound<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// `audio_invalid`, `audio_truncated`, `audio_empty`.
    fn open(format: Format, bytes: &'a [u8]) -> Result<Self, Rejected> {
        let length = bytes.len();
        let bytes = without_tag(bytes);
        let (bytes, walked) = match format {
            Format::Mp3 => {
                let frames = mp3::Frames::of(bytes)?;
                (frames.bytes, Some(frames.samples))
            }
            Format::Ogg => {
                ogg::check(bytes)?;
                (bytes, None)
            }
            Format::Flac => (bytes, None),
        };
        let failed = |error| rejected(format, length, error);
        let stream = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
        let options = FormatOptions::default();
        let reader: Box<dyn FormatReader + 'a> = match format {
            Format::Flac => Box::new(FlacReader::try_new(stream, options).map_err(failed)?),
            Format::Ogg => Box::new(OggReader::try_new(stream, options).map_err(failed)?),
            Format::Mp3 => Box::new(MpaReader::try_new(stream, options).map_err(failed)?),
        };
        let no_sound =
            || invalid(format!("there is no sound in the {} data that can be decoded", format.name()));
        let track = reader.default_track(TrackType::Audio).ok_or_else(no_sound)?;
        let (id, frames) = (track.id, track.num_frames.or(walked));
        let codec =
            track.codec_params.as_ref().and_then(|params| params.audio()).ok_or_else(no_sound)?.clone();
        if codec.codec == CODEC_ID_OPUS {
            return Err(invalid(
                "it is Opus, which is not supported; convert it first, for instance `ffmpeg -i IN OUT.flac`",
            ));
        }
        let sample_rate = codec.sample_rate.ok_or_else(no_sound)?;
        Ok(Self { format, reader, track: id, codec, sample_rate, frames, length })
    }

    /// Decodes all samples: the mean of the channels.
    ///
    /// # Errors
    /// `audio_invalid`, `audio_truncated`, `audio_empty`, `audio_too_long`.
    fn samples(mut self) -> Result<Vec<f32>, Rejected> {
        let too_long = |samples: u64| {
            Rejected::new(
                "audio_too_long",
                format!("it has {samples} samples, at most {MAX_SAMPLES} are supported"),
            )
        };
        let channels = self.codec.channels.as_ref().map_or(1, |channels| channels.count().max(1));
        let by_header = self.frames.unwrap_or(0).saturating_mul(channels as u64);
        if by_header > u64::from(MAX_SAMPLES) {
            return Err(too_long(by_header));
        }
        let (format, length) = (self.format, self.length);
        let failed = |error| rejected(format, length, error);
        let options = AudioDecoderOptions::default().gapless(true).verify(true);
        let mut decoder = get_codecs().make_audio_decoder(&self.codec, &options).map_err(failed)?;
        let (mut mono, mut chunk): (Vec<f32>, Vec<f32>) = (Vec::new(), Vec::new());
        let mut of_stream = None;
        while let Some(packet) = self.reader.next_packet().map_err(failed)? {
            if packet.track_id != self.track {
                continue;
            }
            let decoded = decoder.decode(&packet).map_err(failed)?;
            let form = (decoded.spec().rate(), decoded.spec().channels().count());
            if *of_stream.get_or_insert(form) != form || form.0 != self.sample_rate || form.1 == 0 {
                return Err(invalid("its sample rate or its number of channels changes"));
            }
            decoded.copy_to_vec_interleaved(&mut chunk);
            let samples = (mono.len() * form.1 + chunk.len()) as u64;
            if samples > u64::from(MAX_SAMPLES) {
                return Err(too_long(samples));
            }
            append_mean(&chunk, form.1, &mut mono);
        }
        match self.frames {
            Some(frames) if (mono.len() as u64) < frames => Err(Rejected::new(
                "audio_truncated",
                format!(
                    "there are {} of {frames} samples in {length} bytes of {} data",
                    mono.len(),
                    format.name()
                ),
            )),
            _ if decoder.finalize().verify_ok == Some(false) => {
                Err(invalid(format!("the {} data are damaged: their checksum is wrong", format.name())))
            }
            _ if mono.is_empty() => Err(Rejected::new("audio_empty", "there are no samples")),
            _ if mono.iter().any(|value| !value.is_finite()) => {
                Err(invalid("a sample is not a finite number"))
            }
            _ => Ok(mono),
        }
    }
}

/// Appends the means of the channels, computed as for WAV.
fn append_mean(interleaved: &[f32], channels: usize, mono: &mut Vec<f32>) {
    if channels == 1 {
        mono.extend_from_slice(interleaved);
        return;
    }
    let scale = 1.0 / channels as f64;
    let frames = interleaved.chunks_exact(channels);
    mono.extend(
        frames.map(|frame| (frame.iter().map(|value| f64::from(*value)).sum::<f64>() * scale) as f32),
    );
}

fn invalid(detail: impl Into<String>) -> Rejected {
    Rejected::new("audio_invalid", detail)
}

fn truncated(format: Format, length: usize) -> Rejected {
    Rejected::new("audio_truncated", format!("the {} data ends after {length} bytes", format.name()))
}

fn rejected(format: Format, length: usize, error: Error) -> Rejected {
    match error {
        Error::IoError(cause) if cause.kind() == ErrorKind::UnexpectedEof => truncated(format, length),
        Error::LimitError(limit) => Rejected::new("audio_too_long", format!("the limit {limit} is exceeded")),
        Error::ResetRequired => invalid("another stream follows the first; write one stream per file"),
        error => invalid(format!("the {} data cannot be decoded: {error}", format.name())),
    }
}

#[cfg(test)]
mod tests;
