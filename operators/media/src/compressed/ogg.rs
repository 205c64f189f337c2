//! The pages of an Ogg file (RFC 3533).
use super::{Format, invalid, truncated};
use crate::Rejected;

/// Bytes of a page before the lengths of its segments.
const HEADER: usize = 27;
/// Flags of a page.
const FIRST: u8 = 2;
const LAST: u8 = 4;

/// A stream of pages.
struct Stream {
    serial: [u8; 4],
    /// Number of its next page.
    next: u32,
    has_ended: bool,
}

/// Checks that every stream has all of its pages, unchanged.
///
/// # Errors
/// `audio_invalid`, `audio_truncated`.
pub(super) fn check(bytes: &[u8]) -> Result<(), Rejected> {
    let cut = || truncated(Format::Ogg, bytes.len());
    let mut streams: Vec<Stream> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let damaged = |what: &str| invalid(format!("the Ogg data {what} at byte {at}"));
        let header = bytes[at..].first_chunk::<HEADER>();
        let begun = bytes[at..].iter().zip(b"OggS\0").all(|(found, expected)| found == expected);
        if !begun {
            return Err(damaged("has no page"));
        }
        let header = header.ok_or_else(cut)?;
        let segments = bytes.get(at + HEADER..at + HEADER + usize::from(header[26])).ok_or_else(cut)?;
        let content: usize = segments.iter().map(|length| usize::from(*length)).sum();
        let end = at + HEADER + segments.len() + content;
        let page = bytes.get(at..end).ok_or_else(cut)?;
        let [_, _, _, _, _, flags, _, _, _, _, _, _, _, _, s0, s1, s2, s3, n0, n1, n2, n3, c0, c1, c2, c3, _] =
            *header;
        if checksum(page) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Err(damaged("has a page with a wrong checksum"));
        }
        let (serial, number) = ([s0, s1, s2, s3], u32::from_le_bytes([n0, n1, n2, n3]));
        let known = streams.iter().position(|stream| stream.serial == serial);
        if known.is_none() {
            if streams.iter().any(|stream| stream.has_ended) {
                return Err(invalid("another stream follows the first; write one stream per file"));
            }
            if flags & FIRST == 0 {
                return Err(damaged("does not begin with the first page of a stream"));
            }
            streams.push(Stream { serial, next: number, has_ended: false });
        }
        let last = streams.len() - 1;
        let stream = &mut streams[known.unwrap_or(last)];
        if stream.has_ended || stream.next != number {
            return Err(damaged("lacks a page"));
        }
        stream.next = number.wrapping_add(1);
        stream.has_ended = flags & LAST != 0;
        at = end;
    }
    if streams.iter().all(|stream| stream.has_ended) { Ok(()) } else { Err(cut()) }
}

/// The checksum of a page, in which its own place counts as zeros.
pub(super) fn checksum(page: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    let step = |sum: u32, byte: u8| sum << 8 ^ TABLE[usize::from((sum >> 24) as u8 ^ byte)];
    let (before, after) = page.split_at(22);
    let sum = before.iter().chain(&[0; 4]).fold(0, |sum, byte| step(sum, *byte));
    after[4..].iter().fold(sum, |sum, byte| step(sum, *byte))
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut value = (at as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            value = if value >> 31 == 1 { value << 1 ^ 0x04c1_1db7 } else { value << 1 };
            bit += 1;
        }
        table[at] = value;
        at += 1;
    }
    table
}
