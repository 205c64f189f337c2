//! Checks that an encoded image is complete.
//!
//! Decoders silently fill missing parts with grey, as browsers want. In a pipeline a half image gives a wrong
//! answer without explanation. So the structure is walked to its end marker before decoding; no pixel is
//! touched.

/// Whether a JPEG stream reaches its end marker (EOI).
pub(crate) fn jpeg_is_complete(bytes: &[u8]) -> bool {
    let mut at = 2; // after the start marker
    loop {
        // To the next marker. Compressed data may precede it, in which 0xFF 0x00 stands for the byte 0xFF,
        // 0xFF 0xD0..=0xD7 are restarts, and any number of 0xFF is padding.
        while bytes.get(at).is_some_and(|byte| *byte != 0xff) {
            at += 1;
        }
        while bytes.get(at) == Some(&0xff) {
            at += 1;
        }
        match bytes.get(at) {
            None => return false,
            Some(0xd9) => return true,
            Some(0x00 | 0x01 | 0xd0..=0xd8) => at += 1,
            Some(_) => match bytes.get(at + 1..at + 3) {
                // Every other marker starts a segment with its length, including itself.
                Some(&[high, low]) => at += 1 + usize::from(u16::from_be_bytes([high, low])).max(2),
                _ => return false,
            },
        }
    }
}

/// Whether a PNG stream reaches its last chunk (IEND) and all of it.
pub(crate) fn png_is_complete(bytes: &[u8]) -> bool {
    const SIGNATURE: usize = 8;
    const AROUND: usize = 12; // length, name and checksum of a chunk
    let mut at = SIGNATURE;
    while let Some(&[a, b, c, d, ref name @ ..]) = bytes.get(at..at + 8) {
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        at = match at.checked_add(AROUND).and_then(|end| end.checked_add(length)) {
            Some(end) => end,
            None => return false,
        };
        if name == b"IEND" {
            return at <= bytes.len();
        }
    }
    false
}

/// Returns the bytes of a WebP file without what follows it, unless some of its chunks are cut off.
pub(crate) fn whole_webp(bytes: &[u8]) -> Option<&[u8]> {
    const HEADER: usize = 8; // name and length of a chunk
    let end_of = |at: usize| {
        let length: [u8; 4] = bytes.get(at.checked_add(4)?..at.checked_add(HEADER)?)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(length)).ok()?.checked_add(at + HEADER)
    };
    // The length of the file counts from the name of its kind on.
    let end = end_of(0)?;
    let mut at = HEADER + 4;
    while at < end {
        let next = end_of(at).filter(|next| *next <= bytes.len().min(end))?;
        at = next + next % 2;
    }
    Some(&bytes[..end.min(bytes.len())])
}
