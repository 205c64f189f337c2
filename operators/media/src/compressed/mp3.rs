//! The frames of an MP3 file: ISO/IEC 11172-3 and 13818-3, layer III.
use super::{Format, invalid, truncated};
use crate::Rejected;

/// Bytes of a frame's header.
const HEADER: usize = 4;

/// Header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frame {
    /// Version and sample rate, which do not change.
    stream: (u8, u8),
    /// Bytes with the header.
    length: usize,
    /// Samples of each channel.
    samples: u64,
    /// Bytes between the header and the content.
    side: usize,
}

impl Frame {
    /// None: it is no header. Free bit rates are not supported, as in ffmpeg's decoder.
    fn of(bytes: &[u8]) -> Option<Self> {
        /// kbit/s of MPEG 1, and of MPEG 2 and 2.5.
        const RATES: [[usize; 16]; 2] = [
            [0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0],
            [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0],
        ];
        let &[0xff, second, third, fourth] = bytes.get(..HEADER)? else { return None };
        let (version, layer) = (second >> 3 & 3, second >> 1 & 3);
        if second & 0xe0 != 0xe0 || version == 1 || layer != 1 {
            return None;
        }
        let is_first = version == 3;
        let rate_of = [44_100, 48_000, 32_000].get(usize::from(third >> 2 & 3))?;
        // MPEG 2 has half the sample rates, MPEG 2.5 a quarter.
        let sample_rate = rate_of >> [2, 0, 1, 0][usize::from(version)];
        let kilobits = RATES[usize::from(!is_first)][usize::from(third >> 4)];
        if kilobits == 0 {
            return None;
        }
        let samples = if is_first { 1152 } else { 576 };
        let length = samples / 8 * 1000 * kilobits / sample_rate + usize::from(third >> 1 & 1);
        let is_mono = fourth >> 6 == 3;
        let side = match (is_first, is_mono) {
            (true, false) => 32,
            (true, true) | (false, false) => 17,
            (false, true) => 9,
        };
        Some(Self { stream: (version, third >> 2 & 3), length, samples: samples as u64, side })
    }
}

/// Whether the first bytes are the header of a frame.
pub(super) fn begins(bytes: &[u8]) -> bool {
    Frame::of(bytes).is_some()
}

/// The frames of a file.
pub(super) struct Frames<'a> {
    /// Their bytes, without what is before and after them.
    pub(super) bytes: &'a [u8],
    /// Samples of each channel, with those that the encoder added.
    pub(super) samples: u64,
}

impl<'a> Frames<'a> {
    /// Walks from header to header. What is after the last frame must be a tag or zeros.
    pub(super) fn of(bytes: &'a [u8]) -> Result<Self, Rejected> {
        let start = bytes.iter().take_while(|byte| **byte == 0).count();
        let frames = &bytes[start..];
        let mut first: Option<Frame> = None;
        let (mut at, mut count) = (0, 0u64);
        while at < frames.len() && !is_end(&frames[at..]) {
            if frames.len() - at < HEADER {
                return Err(truncated(Format::Mp3, bytes.len()));
            }
            let frame = match Frame::of(&frames[at..]) {
                Some(frame) if first.is_none_or(|first| first.stream == frame.stream) => frame,
                _ => {
                    return Err(invalid(format!(
                        "the MP3 data has no frame of layer III at byte {}",
                        start + at
                    )));
                }
            };
            if frames.len() - at < frame.length {
                return Err(truncated(Format::Mp3, bytes.len()));
            }
            first.get_or_insert(frame);
            at += frame.length;
            count += 1;
        }
        let Some(first) = first else { return Err(truncated(Format::Mp3, bytes.len())) };
        // The first frame may count the others instead of a sound.
        let told = counted(&frames[..first.length], first);
        let sounding = count - u64::from(told.is_some());
        if told.flatten().is_some_and(|told| sounding < u64::from(told)) {
            return Err(truncated(Format::Mp3, bytes.len()));
        }
        if sounding == 0 {
            return Err(Rejected::new("audio_empty", "there are no samples"));
        }
        Ok(Self { bytes: &frames[..at], samples: sounding * first.samples })
    }
}

/// Whether tags begin here, or only zeros are left.
fn is_end(rest: &[u8]) -> bool {
    [&b"TAG"[..], b"APETAGEX", b"LYRICSBEGIN", b"ID3"].iter().any(|tag| rest.starts_with(tag))
        || rest.iter().all(|byte| *byte == 0)
}

/// Returns the number of frames by the frame of an encoder (`Xing`, `Info`), if this is one and it has the
/// number.
fn counted(bytes: &[u8], frame: Frame) -> Option<Option<u32>> {
    let tag = bytes.get(HEADER + frame.side..)?;
    let [a, b, c, d, _, _, _, flags, count @ ..] = tag.get(..12)? else { return None };
    if !matches!(&[*a, *b, *c, *d], b"Xing" | b"Info") {
        return None;
    }
    let count: [u8; 4] = count.try_into().ok()?;
    Some((flags & 1 == 1).then(|| u32::from_be_bytes(count)))
}
