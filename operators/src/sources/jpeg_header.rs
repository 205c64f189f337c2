//! The size of a JPEG picture, from its markers alone: no table is built and nothing is copied.
//!
//! Source: ITU-T T.81, annex B (markers and segments).

/// Returns width and height, or an error message. Formats that no decoder here reads (lossless, hierarchical, arithmetic)
/// and pictures without a size are refused too.
pub(super) fn size(bytes: &[u8]) -> Result<(u16, u16), &'static str> {
    const CUT: &str = "it ends before its frame header";
    let mut at = 2; // behind the start marker
    loop {
        // Skips to the next marker; any number of 0xFF may precede it.
        while *bytes.get(at).ok_or(CUT)? != 0xff {
            at += 1;
        }
        while *bytes.get(at).ok_or(CUT)? == 0xff {
            at += 1;
        }
        match bytes[at] {
            // Baseline, extended sequential and progressive frames: length, precision, height, width.
            0xc0..=0xc2 => {
                let Some(&[_, _, _, a, b, c, d]) = bytes.get(at + 1..at + 8) else { return Err(CUT) };
                return match (u16::from_be_bytes([c, d]), u16::from_be_bytes([a, b])) {
                    (0, _) | (_, 0) => Err("its size is 0"),
                    size => Ok(size),
                };
            }
            0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                return Err("it is lossless, hierarchical or arithmetically coded, which is not supported");
            }
            0xd9 | 0xda => return Err("it has no frame header"),
            // Markers without a length: stuffing, restarts, another start.
            0x00 | 0x01 | 0xd0..=0xd8 => at += 1,
            _ => match bytes.get(at + 1..at + 3) {
                Some(&[high, low]) => at += 1 + usize::from(u16::from_be_bytes([high, low])).max(2),
                _ => return Err(CUT),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{ImageFormat, ImageReader};
    use proptest::prelude::*;
    use std::io::Cursor;

    fn encoded(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        image::RgbImage::new(width, height).write_to(&mut bytes, ImageFormat::Jpeg).unwrap();
        bytes.into_inner()
    }

    #[test]
    fn kinds_and_sizes_that_no_decoder_reads_are_refused() {
        let good = encoded(20, 10);
        assert_eq!(size(&good), Ok((20, 10)));
        let frame = good.windows(2).position(|two| two == [0xff, 0xc0]).unwrap();
        let with = |offset: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[frame + offset] = value;
            size(&bytes)
        };
        assert!(with(1, 0xc3).is_err() && with(1, 0xc9).is_err());
        assert!(with(6, 0).is_err(), "height 0");
        assert!(with(8, 0).is_err(), "width 0");
        assert_eq!(with(5, 1), Ok((20, 256 + 10)));
        assert!(size(&good[..frame + 8]).is_err());
        assert!(size(b"\xff\xd8\xff\xd9").is_err());
        assert!(size(b"\xff\xd8\xff").is_err());
    }

    proptest! {
        #[test]
        fn it_is_what_the_decoder_says(width in 1u32..300, height in 1u32..300, cut in 0usize..4000) {
            let whole = encoded(width, height);
            prop_assert_eq!(size(&whole), Ok((width as u16, height as u16)));
            let part = &whole[..cut.min(whole.len())];
            let reader = ImageReader::with_format(Cursor::new(part), ImageFormat::Jpeg);
            if let Ok(decoded) = reader.into_dimensions() {
                prop_assert_eq!(size(part).map(|(w, h)| (u32::from(w), u32::from(h))), Ok(decoded));
            }
        }

        #[test]
        fn random_bytes_never_panic(rest: Vec<u8>) {
            let _ = size(&[b"\xff\xd8\xff".as_slice(), &rest].concat());
            let _ = size(&rest);
        }
    }
}
