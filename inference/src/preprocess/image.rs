//! Images: decode, resize, normalise.
use super::Rejected;
use super::completeness::{jpeg_is_complete, png_is_complete};
use image::error::ImageError;
use image::imageops::FilterType;
use image::{ImageFormat, ImageReader, Limits, RgbImage};
use std::io::Cursor;

/// Longest side that is decoded, pixels.
pub const MAX_SIDE: u32 = 16_384;
/// Most pixels that are decoded: 64 million.
pub const MAX_PIXELS: u64 = 64 << 20;
/// Most memory that decoding one image may take, bytes.
pub const MAX_DECODE_BYTES: u64 = 512 << 20;

/// Decodes JPEG or PNG bytes to 8-bit RGB. Transparency is dropped, 16-bit values are rounded; the
/// orientation in EXIF is not applied.
///
/// # Errors
/// `image_invalid`, `image_truncated` or `image_too_large`. The size is read from the header before
/// anything is decoded.
pub fn decode(bytes: &[u8]) -> Result<RgbImage, Rejected> {
    if bytes.is_empty() {
        return Err(Rejected::new("image_invalid", "there are no bytes"));
    }
    let format = image::guess_format(bytes)
        .map_err(|_| Rejected::new("image_invalid", "the bytes are neither JPEG nor PNG"))?;
    let complete = match format {
        ImageFormat::Jpeg => jpeg_is_complete(bytes),
        ImageFormat::Png => png_is_complete(bytes),
        other => {
            return Err(Rejected::new(
                "image_invalid",
                format!("{other:?} images are not read; JPEG and PNG are"),
            ));
        }
    };
    if !complete {
        return Err(Rejected::new(
            "image_truncated",
            format!("the {format:?} data ends after {} bytes", bytes.len()),
        ));
    }
    let reader = || ImageReader::with_format(Cursor::new(bytes), format);
    let (width, height) = reader().into_dimensions().map_err(|error| rejected(&error))?;
    if width > MAX_SIDE || height > MAX_SIDE || u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(Rejected::new(
            "image_too_large",
            format!(
                "it is {width}x{height}; at most {MAX_SIDE} pixels a side and {MAX_PIXELS} in all are decoded"
            ),
        ));
    }
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_DECODE_BYTES);
    let mut reader = reader();
    reader.limits(limits);
    Ok(reader.decode().map_err(|error| rejected(&error))?.into_rgb8())
}

fn rejected(error: &ImageError) -> Rejected {
    match error {
        ImageError::Limits(_) => Rejected::new("image_too_large", error.to_string()),
        ImageError::IoError(cause) if cause.kind() == std::io::ErrorKind::UnexpectedEof => {
            Rejected::new("image_truncated", error.to_string())
        }
        _ => Rejected::new("image_invalid", error.to_string()),
    }
}

/// Resizes with a bilinear filter that averages when it shrinks (the filter of PIL's `BILINEAR`). The
/// aspect ratio is not kept.
pub fn resize(image: RgbImage, width: u32, height: u32) -> RgbImage {
    if image.dimensions() == (width, height) {
        return image;
    }
    image::imageops::resize(&image, width, height, FilterType::Triangle)
}

/// Appends values 0..=1 minus `mean` and divided by `std`, both for each channel (R, G, B), in the order channel,
/// row, column.
pub fn normalize(image: &RgbImage, mean: [f32; 3], std: [f32; 3], values: &mut Vec<f32>) {
    let pixels = image.as_raw();
    values.reserve(pixels.len());
    for channel in 0..3 {
        let (mean, scale) = (mean[channel], 1.0 / std[channel]);
        values.extend(
            pixels.iter().skip(channel).step_by(3).map(|value| (f32::from(*value) / 255.0 - mean) * scale),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(width: u32, height: u32, format: ImageFormat) -> Vec<u8> {
        let image = RgbImage::from_fn(width, height, |x, y| image::Rgb([(x * 9) as u8, (y * 7) as u8, 128]));
        let mut bytes = Cursor::new(Vec::new());
        image.write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    }

    #[test]
    fn jpeg_and_png_are_decoded() {
        let png = decode(&encoded(20, 10, ImageFormat::Png)).unwrap();
        assert_eq!(png.dimensions(), (20, 10));
        assert_eq!(png.get_pixel(2, 3).0, [18, 21, 128]);
        let jpeg = decode(&encoded(20, 10, ImageFormat::Jpeg)).unwrap();
        assert_eq!(jpeg.dimensions(), (20, 10));
        assert!(jpeg.get_pixel(2, 3).0[2].abs_diff(128) < 12);
    }

    #[test]
    fn every_truncation_is_found() {
        for format in [ImageFormat::Jpeg, ImageFormat::Png] {
            let whole = encoded(20, 10, format);
            for length in 0..whole.len() {
                let reason = decode(&whole[..length]).expect_err("a part is not a whole").reason;
                let expected = if length < 8 { "image_invalid" } else { "image_truncated" };
                assert!(reason == expected || length < 8, "{format:?} of {length} bytes: {reason}");
            }
        }
    }

    #[test]
    fn other_bytes_are_invalid() {
        for bytes in [&b""[..], b"GIF89a..............", b"RIFF....WAVEfmt ", b"hello"] {
            assert_eq!(decode(bytes).unwrap_err().reason, "image_invalid");
        }
    }

    #[test]
    fn the_header_decides_before_decoding() {
        // A PNG of 50 bytes that claims to be 40000x40000 pixels.
        let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
        let mut header = b"IHDR".to_vec();
        header.extend(40_000u32.to_be_bytes());
        header.extend(40_000u32.to_be_bytes());
        header.extend([8, 2, 0, 0, 0]);
        bytes.extend(13u32.to_be_bytes());
        bytes.extend(&header);
        bytes.extend(checksum(&header).to_be_bytes());
        for name in [b"IDAT", b"IEND"] {
            bytes.extend(0u32.to_be_bytes());
            bytes.extend(name);
            bytes.extend(checksum(name).to_be_bytes());
        }
        assert_eq!(decode(&bytes).unwrap_err().reason, "image_too_large");
    }

    fn checksum(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |crc, byte| {
            (0..8)
                .fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
        })
    }

    #[test]
    fn values_are_ordered_by_channel() {
        let image = RgbImage::from_raw(2, 1, vec![0, 51, 102, 255, 204, 153]).unwrap();
        let mut values = Vec::new();
        normalize(&image, [0.0, 0.0, 0.5], [1.0, 0.5, 1.0], &mut values);
        let expected = [0.0, 1.0, 0.4, 1.6, -0.1, 0.1];
        assert!(values.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{values:?}");
    }

    #[test]
    fn resizing_keeps_a_plain_colour() {
        let image = RgbImage::from_pixel(50, 40, image::Rgb([10, 200, 30]));
        let small = resize(image, 8, 8);
        assert_eq!(small.dimensions(), (8, 8));
        assert!(small.pixels().all(|pixel| pixel.0 == [10, 200, 30]));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>, jpeg: bool) {
            let mut start = if jpeg { b"\xff\xd8\xff".to_vec() } else { b"\x89PNG\r\n\x1a\n".to_vec() };
            start.extend(bytes);
            let _ = decode(&start);
        }

        #[test]
        fn damaged_images_never_panic(at in 0usize..600, value: u8, jpeg: bool) {
            let mut bytes = encoded(20, 10, if jpeg { ImageFormat::Jpeg } else { ImageFormat::Png });
            let at = at % bytes.len();
            bytes[at] = value;
            let _ = decode(&bytes);
        }
    }
}
