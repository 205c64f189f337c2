//! Pixels of pictures, and parts of them.
use crate::raw_image::RawImage;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageReader, Limits};
use std::borrow::Cow;
use std::io::Cursor;

/// Longest side that is decoded, in pixels, and most memory for it, in bytes; as for model inputs.
const MAX_SIDE: u32 = 16_384;
const MAX_BYTES: u64 = 512 << 20;

/// A picture as red, green and blue of each pixel, row by row.
pub(super) struct Pixels<'a> {
    pub(super) width: u32,
    pub(super) height: u32,
    values: Cow<'a, [u8]>,
}

impl<'a> Pixels<'a> {
    /// Returns the pixels of a picture in a column; uncompressed ones are not copied.
    ///
    /// # Errors
    /// A stable code and a message if it is unreadable.
    pub(super) fn of(bytes: &'a [u8]) -> Result<Self, (&'static str, String)> {
        if RawImage::is_one(bytes) {
            let picture = RawImage::parse(bytes).map_err(|error| ("image_invalid", error.to_string()))?;
            return Ok(Self {
                width: picture.width,
                height: picture.height,
                values: Cow::Borrowed(picture.pixels),
            });
        }
        let picture = decode(bytes).map_err(|error| ("image_invalid", error.to_string()))?.into_rgb8();
        let (width, height) = picture.dimensions();
        Ok(Self { width, height, values: Cow::Owned(picture.into_raw()) })
    }

    /// Appends a part as an uncompressed picture. It lies within the picture and is not empty.
    pub(super) fn append_part(&self, [left, top, right, bottom]: [u32; 4], to: &mut Vec<u8>) {
        RawImage::write_header(right - left, bottom - top, to);
        for row in top as usize..bottom as usize {
            let start = row * self.width as usize;
            to.extend_from_slice(&self.values[3 * (start + left as usize)..3 * (start + right as usize)]);
        }
    }
}

/// Decodes a picture, turned and mirrored according to its metadata.
fn decode(bytes: &[u8]) -> image::ImageResult<DynamicImage> {
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(MAX_SIDE), Some(MAX_SIDE));
    limits.max_alloc = Some(MAX_BYTES);
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?;
    reader.limits(limits.clone());
    let mut decoder = reader.into_decoder()?;
    limits.reserve(decoder.total_bytes())?;
    decoder.set_limits(limits)?;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut picture = DynamicImage::from_decoder(decoder)?;
    picture.apply_orientation(orientation);
    Ok(picture)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_same_from_any_format() {
        let picture = image::RgbImage::from_fn(5, 4, |x, y| image::Rgb([x as u8 * 40, y as u8 * 50, 7]));
        let mut raw = Vec::new();
        RawImage::write_header(5, 4, &mut raw);
        raw.extend(picture.as_raw());
        let mut png = Vec::new();
        picture.write_to(&mut Cursor::new(&mut png), image::ImageFormat::Png).unwrap();
        for bytes in [&raw, &png] {
            let pixels = Pixels::of(bytes).unwrap_or_else(|(_, why)| panic!("{why}"));
            let mut part = Vec::new();
            pixels.append_part([1, 2, 3, 4], &mut part);
            let part = RawImage::parse(&part).unwrap();
            assert_eq!((part.width, part.height), (2, 2));
            assert_eq!(part.pixels, [40, 100, 7, 80, 100, 7, 40, 150, 7, 80, 150, 7]);
        }
        for broken in [&b""[..], b"P6\n9 9\n255\n", &png[..30]] {
            assert_eq!(Pixels::of(broken).err().unwrap().0, "image_invalid");
        }
    }
}
