//! Uncompressed pictures: the bytes of a frame of a video or of a part cut out of one.
//!
//! A column of type `image` holds a compressed picture or such a one: binary PPM (Netpbm's `P6`), a header of a few bytes with
//! the size and then one byte for red, green and blue of each pixel, row by row. So a frame needs no type of its own,
//! and its pixels are read in place.
//!
//! ```
//! use tidemill_media::raw_image::RawImage;
//! let mut bytes = Vec::new();
//! RawImage::write_header(2, 1, &mut bytes);
//! bytes.extend([255, 0, 0, 0, 0, 255]);
//! let picture = RawImage::parse(&bytes).unwrap();
//! assert_eq!((picture.width, picture.height, picture.pixels), (2, 1, &[255, 0, 0, 0, 0, 255][..]));
//! ```
use std::io::Write;

/// Longest header to read, bytes, including comments of other programs.
const HEADER: usize = 4096;

/// A picture whose pixels are in the bytes it was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawImage<'a> {
    /// Pixels in a row, at least 1.
    pub width: u32,
    /// Rows, at least 1.
    pub height: u32,
    /// Red, green and blue of each pixel, row by row: `3 * width * height` bytes.
    pub pixels: &'a [u8],
}

/// Why bytes are no such picture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RawImageError {
    /// Another format.
    #[error("the bytes are not binary PPM")]
    Format,
    /// The header has unsupported sizes or depth.
    #[error("the header says {0}; a size of at least 1 x 1 and the largest value 255 are supported")]
    Header(String),
    /// There are fewer bytes than the header states.
    #[error("the picture ends after {found} of {expected} bytes of pixels")]
    Truncated {
        /// Available bytes of pixels.
        found: usize,
        /// Bytes of pixels by the header.
        expected: u64,
    },
}

impl<'a> RawImage<'a> {
    /// Parses the picture in these bytes, without a copy; ignores bytes after the pixels.
    ///
    /// # Errors
    /// See [`RawImageError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, RawImageError> {
        let (width, height, start) = read_header(bytes, b"P6")?;
        let expected = (u64::from(width) * u64::from(height)).saturating_mul(3);
        let rest = &bytes[start..];
        match usize::try_from(expected).ok().and_then(|length| rest.get(..length)) {
            Some(pixels) => Ok(Self { width, height, pixels }),
            None => Err(RawImageError::Truncated { found: rest.len(), expected }),
        }
    }

    /// Whether the bytes start like such a picture.
    pub fn is_one(bytes: &[u8]) -> bool {
        begins(bytes, b"P6")
    }

    /// Appends the header of a picture of this size; its pixels follow.
    pub fn write_header(width: u32, height: u32, bytes: &mut Vec<u8>) {
        // Writing to a vector never fails.
        let _ = write!(bytes, "P6\n{width} {height}\n255\n");
    }
}

/// Returns width and height of such a picture, from its header alone.
///
/// # Errors
/// [`RawImageError::Format`], [`RawImageError::Header`].
pub fn size(bytes: &[u8]) -> Result<(u32, u32), RawImageError> {
    read_header(bytes, b"P6").map(|(width, height, _)| (width, height))
}

fn begins(bytes: &[u8], format: &[u8; 2]) -> bool {
    bytes.starts_with(format) && bytes.get(2).is_some_and(u8::is_ascii_whitespace)
}

/// Returns width, height, and the start of the content, of a picture in this format of Netpbm: `P6`, or `P5`, which has
/// one byte where `P6` has three.
///
/// # Errors
/// [`RawImageError::Format`], [`RawImageError::Header`].
pub fn read_header(bytes: &[u8], format: &[u8; 2]) -> Result<(u32, u32, usize), RawImageError> {
    if !begins(bytes, format) {
        return Err(RawImageError::Format);
    }
    let head = &bytes[..bytes.len().min(HEADER)];
    let mut at = 2;
    let mut numbers = [0u32; 3];
    for number in &mut numbers {
        loop {
            match head.get(at) {
                Some(byte) if byte.is_ascii_whitespace() => at += 1,
                Some(b'#') => at += head[at..].iter().take_while(|byte| **byte != b'\n').count(),
                _ => break,
            }
        }
        let digits = head[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let text = std::str::from_utf8(&head[at..at + digits]).unwrap_or_default();
        *number = text.parse().map_err(|_| RawImageError::Header(format!("`{text}` for a number")))?;
        at += digits;
    }
    let [width, height, most] = numbers;
    // One white space ends the header.
    if width == 0 || height == 0 || most != 255 || !head.get(at).is_some_and(u8::is_ascii_whitespace) {
        return Err(RawImageError::Header(format!("{width} x {height}, largest value {most}")));
    }
    Ok((width, height, at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_of_other_programs_are_read() {
        let picture = RawImage::parse(b"P6 # made by hand\n# twice\n 1\t2 255 abcdef and more").unwrap();
        assert_eq!((picture.width, picture.height, picture.pixels), (1, 2, &b"abcdef"[..]));
        assert_eq!(size(b"P6\n640 480\n255\n"), Ok((640, 480)));
    }

    #[test]
    fn what_is_no_picture_is_told() {
        assert_eq!(RawImage::parse(b"P5\n1 1\n255\nabc"), Err(RawImageError::Format));
        assert_eq!(RawImage::parse(b""), Err(RawImageError::Format));
        for header in [
            &b"P6\n0 1\n255\n"[..],
            b"P6\n1 1\n65535\n",
            b"P6\n1 1\n255",
            b"P6\n1 x",
            b"P6\n99999999999 1\n255\n",
        ] {
            let error = RawImage::parse(header).unwrap_err();
            assert!(matches!(error, RawImageError::Header(_)), "{error}");
        }
        assert_eq!(
            RawImage::parse(b"P6\n2 1\n255\nabcde"),
            Err(RawImageError::Truncated { found: 5, expected: 6 })
        );
        let huge = RawImage::parse(b"P6\n4294967295 4294967295\n255\nabcde");
        assert!(matches!(huge, Err(RawImageError::Truncated { .. })));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(width in 1u32..40, height in 1u32..40, behind in 0usize..5) {
            let pixels: Vec<u8> = (0..3 * width * height).map(|value| (value * 7) as u8).collect();
            let mut bytes = Vec::new();
            RawImage::write_header(width, height, &mut bytes);
            bytes.extend(&pixels);
            bytes.resize(bytes.len() + behind, b'#');
            prop_assert_eq!(RawImage::parse(&bytes), Ok(RawImage { width, height, pixels: &pixels }));
        }

        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>) {
            let _ = RawImage::parse(&[&b"P6\n"[..], &bytes].concat());
            let _ = RawImage::parse(&bytes);
        }
    }
}
