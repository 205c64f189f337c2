//! The chunks of a WAV file: coding and place of its samples.
use super::FORMATS;
use crate::Rejected;

/// Lengths from here on are unknown, as written into pipes; no supported file is this long.
const UNKNOWN: u32 = 0x7fff_0000;
/// The bytes after the format's number in the identity of an extended format.
const IDENTITY: [u8; 14] = [0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71];

/// Coding of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    /// A whole number, unsigned with 8 bits, else signed.
    Int,
    Float,
    ALaw,
    MuLaw,
    /// Another format, by its number.
    Other(u16),
}

/// Format and place of the samples of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header<'a> {
    pub(super) coding: Coding,
    pub(super) channels: u16,
    pub(super) sample_rate: u32,
    /// Bits of a sample, by the format.
    bits: u16,
    /// Bytes of a sample of all channels together, by the format.
    block: u16,
    /// Bytes of the samples, by the file: more than available where it was cut off.
    pub(super) length: u64,
    /// The available samples.
    pub(super) data: &'a [u8],
}

impl<'a> Header<'a> {
    /// Reads the chunks up to the samples. Wrong lengths are errors, and reading never exceeds the available bytes.
    pub(super) fn of(bytes: &'a [u8]) -> Result<Self, Rejected> {
        let cut =
            || Rejected::new("audio_truncated", format!("the WAV data ends after {} bytes", bytes.len()));
        let Some((head, name)) = bytes.get(..4).zip(bytes.get(8..12)) else {
            let is_begun = [&b"RIFF"[..], b"RF64", b"BW64"].iter().any(|kind| begins(bytes, kind));
            return Err(if is_begun { cut() } else { no_header(bytes) });
        };
        let is_large = matches!(head, b"RF64" | b"BW64");
        if !(is_large || head == b"RIFF") || name != b"WAVE" {
            return Err(no_header(bytes));
        }
        // By the file; the bytes after its own length.
        let whole = u64::from(u32_at(bytes, 4).ok_or_else(cut)?) + 8;
        let (mut format, mut large_length) = (None, None);
        let mut at = 12usize;
        loop {
            let id = bytes.get(at..at.saturating_add(4)).ok_or_else(cut)?;
            let length = u32_at(bytes, at + 4).ok_or_else(cut)?;
            let content = &bytes[at + 8..];
            if id == b"data" {
                let Some(format) = format else {
                    return Err(Rejected::new("audio_invalid", "there is no format before the samples"));
                };
                // An empty one ends with the file or before other chunks, which the file's length includes.
                let is_closed = whole == bytes.len() as u64 || whole == bytes.len() as u64 + 1;
                let length = match length {
                    u32::MAX if is_large && large_length.is_some_and(|length| length > 0) => large_length,
                    0 if is_closed => Some(0),
                    0 => None,
                    length if length >= UNKNOWN && length as usize > content.len() => None,
                    length => Some(u64::from(length)),
                };
                let length = length.filter(|length| *length < u64::MAX >> 1);
                let length = length.unwrap_or(content.len() as u64);
                let there = usize::try_from(length).unwrap_or(usize::MAX).min(content.len());
                return Ok(Self { length, data: &content[..there], ..format });
            }
            let after = at.saturating_add(8).saturating_add(length as usize);
            let content = &content[..content.len().min(length as usize)];
            match id {
                b"fmt " => format = Some(Self::of_format(content, length).ok_or_else(cut)??),
                b"ds64" => large_length = u64_at(content, 8),
                _ => {}
            }
            // Chunks start at even places, which some writers ignore.
            at = after.saturating_add(usize::from(length % 2 == 1 && !is_name(bytes, after)));
        }
    }

    /// Parses the format, without samples. None: it is cut off.
    fn of_format(content: &[u8], length: u32) -> Option<Result<Self, Rejected>> {
        if length < 16 {
            return Some(Err(Rejected::new(
                "audio_invalid",
                format!("the format has {length} bytes, at least 16 are needed"),
            )));
        }
        if content.len() < length as usize {
            return None;
        }
        let mut number = u16_at(content, 0)?;
        if number == 0xfffe {
            number = match content.get(24..40) {
                Some(identity) if identity[2..] == IDENTITY => u16_at(identity, 0)?,
                _ => number,
            };
        }
        let coding = match number {
            1 => Coding::Int,
            3 => Coding::Float,
            6 => Coding::ALaw,
            7 => Coding::MuLaw,
            other => Coding::Other(other),
        };
        let (channels, sample_rate) = (u16_at(content, 2)?, u32_at(content, 4)?);
        let (block, bits) = (u16_at(content, 12)?, u16_at(content, 14)?);
        Some(Ok(Self { coding, channels, sample_rate, bits, block, length: 0, data: &[] }))
    }

    /// Bytes of a sample of one channel.
    ///
    /// # Errors
    /// `audio_invalid`: unsupported kind of samples.
    pub(super) fn width(&self) -> Result<usize, Rejected> {
        let bits = self.bits;
        match (self.coding, bits) {
            (Coding::Int, 1..=32) | (Coding::Float, 32 | 64) | (Coding::ALaw | Coding::MuLaw, 8) => {}
            (coding, _) => {
                let kind = coding.name();
                return Err(Rejected::new(
                    "audio_invalid",
                    format!(
                        "its samples are {kind} of {bits} bits, which are not supported; convert it first, for instance \
                         `ffmpeg -i IN.wav -c:a pcm_s16le OUT.wav`"
                    ),
                ));
            }
        }
        Ok(self.sample_length())
    }

    fn sample_length(&self) -> usize {
        let least = usize::from(self.bits.div_ceil(8)).max(1);
        let (block, channels) = (usize::from(self.block), usize::from(self.channels).max(1));
        // A number of 24 bits may take 32, with the upper ones valid.
        let has_room = self.coding == Coding::Int
            && block.is_multiple_of(channels)
            && (least..=4).contains(&(block / channels));
        if has_room { block / channels } else { least }
    }

    /// Bytes of a sample of all channels.
    pub(super) fn frame_length(&self) -> usize {
        self.sample_length() * usize::from(self.channels)
    }
}

impl Coding {
    fn name(self) -> String {
        let name = match self {
            Self::Int => "whole numbers",
            Self::Float => "floats",
            Self::ALaw => "A-law",
            Self::MuLaw => "mu-law",
            Self::Other(2) => "Microsoft ADPCM",
            Self::Other(0x11) => "IMA ADPCM",
            Self::Other(0x31) => "GSM 6.10",
            Self::Other(0x50 | 0x55) => "MPEG sound",
            Self::Other(number) => return format!("in the format {number:#06x}"),
        };
        name.to_owned()
    }

    /// The value of a sample, -1 to 1 except for floats; 0 for kinds that [`Header::width`] rejects.
    pub(super) fn value(self, sample: &[u8]) -> f64 {
        match (self, sample) {
            (Self::Int, [byte]) => (f64::from(*byte) - 128.0) / 128.0,
            (Self::Int, [a, b]) => f64::from(i16::from_le_bytes([*a, *b])) / 32_768.0,
            (Self::Int, [a, b, c]) => f64::from(i32::from_le_bytes([0, *a, *b, *c])) / 2_147_483_648.0,
            (Self::Int, [a, b, c, d]) => f64::from(i32::from_le_bytes([*a, *b, *c, *d])) / 2_147_483_648.0,
            (Self::Float, [a, b, c, d]) => f64::from(f32::from_le_bytes([*a, *b, *c, *d])),
            (Self::Float, [a, b, c, d, e, f, g, h]) => f64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]),
            (Self::ALaw, [byte]) => f64::from(of_a_law(*byte)) / 32_768.0,
            (Self::MuLaw, [byte]) => f64::from(of_mu_law(*byte)) / 32_768.0,
            _ => 0.0,
        }
    }
}

/// Decodes a sample of A-law (ITU-T G.711) to 16 bits.
fn of_a_law(byte: u8) -> i16 {
    let bits = byte ^ 0x55;
    let (segment, step) = ((bits & 0x70) >> 4, i16::from(bits & 0x0f) << 4);
    let size = match segment {
        0 => step + 8,
        segment => (step + 0x108) << (segment - 1),
    };
    if bits & 0x80 == 0 { -size } else { size }
}

/// Decodes a sample of mu-law (ITU-T G.711) to 16 bits.
fn of_mu_law(byte: u8) -> i16 {
    let bits = !byte;
    let size = (((i16::from(bits & 0x0f) << 3) + 0x84) << ((bits & 0x70) >> 4)) - 0x84;
    if bits & 0x80 == 0 { size } else { -size }
}

fn begins(bytes: &[u8], kind: &[u8]) -> bool {
    bytes.starts_with(kind) || kind.starts_with(bytes)
}

fn no_header(bytes: &[u8]) -> Rejected {
    let kind = match bytes {
        [b'R', b'I', b'F', b'X', ..] => " but that of a big-endian WAV (RIFX)",
        [b'r', b'i', b'f', b'f', ..] => " but that of a Wave64 file",
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => " but that of an MP4 file",
        [0x1a, 0x45, 0xdf, 0xa3, ..] => " but that of a Matroska or WebM file",
        [b'F', b'O', b'R', b'M', ..] => " but that of an AIFF file",
        _ => "",
    };
    let help = match kind {
        "" => "",
        _ => "; convert it first, for instance `ffmpeg -i IN -c:a pcm_s16le OUT.wav`",
    };
    Rejected::new("audio_invalid", format!("no header of {FORMATS}{kind}{help}"))
}

/// Whether a chunk's name is at this place.
fn is_name(bytes: &[u8], at: usize) -> bool {
    bytes
        .get(at..at.saturating_add(4))
        .is_some_and(|name| name.iter().all(|byte| matches!(byte, 0x20..=0x7e)))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}
