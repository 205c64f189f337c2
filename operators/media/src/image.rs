//! Images: decode, resize, normalise.
use crate::Rejected;
use crate::completeness::{jpeg_is_complete, png_is_complete};
use crate::filter::{self, Filter, scaled};
use crate::raw_image::{self, RawImage};
use image::error::ImageError;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, RgbImage};
use std::io::Cursor;

/// Longest side to decode, pixels.
pub const MAX_SIDE: u32 = 16_384;
/// Most pixels to decode: 64 million.
pub const MAX_PIXELS: u64 = 64 << 20;
/// Most memory for decoding one image, bytes.
pub const MAX_DECODE_BYTES: u64 = 512 << 20;

/// Decodes JPEG, PNG or binary PPM (see [`raw_image`](crate::raw_image)) to 8-bit RGB, turned and mirrored according to
/// its EXIF orientation. Transparency is dropped, 16-bit values are rounded.
///
/// # Errors
/// `image_invalid`, `image_truncated` or `image_too_large`. The size is read from the header before anything is
/// decoded.
pub fn decode(bytes: &[u8]) -> Result<RgbImage, Rejected> {
    if bytes.is_empty() {
        return Err(Rejected::new("image_invalid", "there are no bytes"));
    }
    if RawImage::is_one(bytes) {
        return raw(bytes);
    }
    let format = image::guess_format(bytes)
        .map_err(|_| Rejected::new("image_invalid", "the bytes are neither JPEG nor PNG nor binary PPM"))?;
    let complete = match format {
        ImageFormat::Jpeg => jpeg_is_complete(bytes),
        ImageFormat::Png => png_is_complete(bytes),
        other => {
            return Err(Rejected::new(
                "image_invalid",
                format!("{other:?} images are not supported; JPEG, PNG and binary PPM are"),
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
    check_size(width, height)?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_DECODE_BYTES);
    let mut reader = reader();
    reader.limits(limits.clone());
    let mut decoder = reader.into_decoder().map_err(|error| rejected(&error))?;
    // The pixels count towards the memory limit of the decoder.
    limits.reserve(decoder.total_bytes()).map_err(|error| rejected(&error))?;
    decoder.set_limits(limits).map_err(|error| rejected(&error))?;
    // Pictures with unreadable metadata are taken as stored.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let stored = DynamicImage::from_decoder(decoder).map_err(|error| rejected(&error))?;
    let mut image = DynamicImage::ImageRgb8(stored.into_rgb8());
    image.apply_orientation(orientation);
    Ok(image.into_rgb8())
}

/// Decodes an uncompressed picture.
fn raw(bytes: &[u8]) -> Result<RgbImage, Rejected> {
    let (width, height) =
        raw_image::size(bytes).map_err(|error| Rejected::new("image_invalid", error.to_string()))?;
    check_size(width, height)?;
    let truncated = |text: String| Rejected::new("image_truncated", text);
    let picture = RawImage::parse(bytes).map_err(|error| truncated(error.to_string()))?;
    RgbImage::from_raw(width, height, picture.pixels.to_vec())
        .ok_or_else(|| truncated(format!("{} bytes for {width}x{height} pixels", bytes.len())))
}

fn check_size(width: u32, height: u32) -> Result<(), Rejected> {
    if width > MAX_SIDE || height > MAX_SIDE || u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(Rejected::new(
            "image_too_large",
            format!(
                "it is {width}x{height}; at most {MAX_SIDE} pixels per side and {MAX_PIXELS} in all are supported"
            ),
        ));
    }
    Ok(())
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

/// Decodes as [`decode`], then resizes as [`resize`]. Uncompressed pictures are resized where they are, without a copy.
///
/// # Errors
/// As [`decode`].
pub fn decode_to(bytes: &[u8], width: u32, height: u32) -> Result<RgbImage, Rejected> {
    decode_scaled(bytes, width, height, Filter::PillowBilinear)
}

/// Decodes as [`decode`], then scales as [`scaled`]. Uncompressed pictures are scaled where they are, without a copy.
///
/// # Errors
/// As [`decode`].
pub fn decode_scaled(bytes: &[u8], width: u32, height: u32, filter: Filter) -> Result<RgbImage, Rejected> {
    if RawImage::is_one(bytes)
        && let Ok(picture) = RawImage::parse(bytes)
        && (picture.width, picture.height) != (width, height)
    {
        check_size(picture.width, picture.height)?;
        return Ok(filter::scale(picture, width, height, filter));
    }
    decode(bytes).map(|image| scaled(image, width, height, filter))
}

/// Resizes with a bilinear filter that averages when it shrinks (the filter of PIL's `BILINEAR`, with equal bytes on
/// every processor). The aspect ratio is not kept.
pub fn resize(image: RgbImage, width: u32, height: u32) -> RgbImage {
    scaled(image, width, height, Filter::PillowBilinear)
}

/// Appends values 0..=1 minus `mean` and divided by `std`, both for each channel (R, G, B), in the order channel,
/// row, column.
pub fn normalize(image: &RgbImage, mean: [f32; 3], std: [f32; 3], values: &mut Vec<f32>) {
    let (pixels, _) = image.as_raw().as_chunks::<3>();
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, the only thing that the function asks for.
        #[expect(unsafe_code, reason = "a function compiled for processors with more instructions")]
        return unsafe { normalize_with_avx2(pixels, mean, std, values) };
    }
    normalize_pixels(pixels, mean, std, values);
}

/// Does the same as [`normalize_pixels`], compiled for processors with AVX2. No operation is contracted, so values are the same
/// bit for bit.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn normalize_with_avx2(pixels: &[[u8; 3]], mean: [f32; 3], std: [f32; 3], values: &mut Vec<f32>) {
    normalize_pixels(pixels, mean, std, values);
}

#[inline(always)]
fn normalize_pixels(pixels: &[[u8; 3]], mean: [f32; 3], std: [f32; 3], values: &mut Vec<f32>) {
    // Arrays and not `step_by`, which the compiler does not vectorise.
    values.reserve(3 * pixels.len());
    for channel in 0..3 {
        let (mean, scale) = (mean[channel], 1.0 / std[channel]);
        values.extend(pixels.iter().map(|pixel| (f32::from(pixel[channel]) / 255.0 - mean) * scale));
    }
}

/// Appends the values unchanged, in that order: for models that normalize them themselves.
pub fn append_bytes(image: &RgbImage, values: &mut Vec<u8>) {
    let (pixels, _) = image.as_raw().as_chunks::<3>();
    values.reserve(3 * pixels.len());
    for channel in 0..3 {
        values.extend(pixels.iter().map(|pixel| pixel[channel]));
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

    proptest! {
        /// The filter agrees with that of `image`, which computes with floating-point numbers.
        #[test]
        fn sizes_change_as_by_floating_point(width in 1u32..70, height in 1u32..70, to_width in 1u32..70, to_height in 1u32..70) {
            let image = RgbImage::from_fn(width, height, |x, y| {
                let mixed = (x * 31 + y * 17) ^ (x * y);
                image::Rgb([mixed as u8, (mixed * 7) as u8, (mixed >> 1) as u8])
            });
            let expected =
                image::imageops::resize(&image, to_width, to_height, image::imageops::FilterType::Triangle);
            let resized = resize(image, to_width, to_height);
            prop_assert_eq!(resized.dimensions(), (to_width, to_height));
            for (ours, theirs) in resized.as_raw().iter().zip(expected.as_raw()) {
                prop_assert!(ours.abs_diff(*theirs) <= 2, "{} for {}", ours, theirs);
            }
        }
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
    fn frames_are_read_as_they_are() {
        let mut bytes = Vec::new();
        RawImage::write_header(2, 1, &mut bytes);
        bytes.extend([1, 2, 3, 4, 5, 6]);
        let frame = decode(&bytes).unwrap();
        assert_eq!((frame.dimensions(), frame.as_raw().as_slice()), ((2, 1), &[1, 2, 3, 4, 5, 6][..]));
        assert_eq!(decode(&bytes[..bytes.len() - 1]).unwrap_err().reason, "image_truncated");
        assert_eq!(decode(b"P6\n40000 40000\n255\n").unwrap_err().reason, "image_too_large");
        assert_eq!(decode(b"P6\n2 1\n15\n......").unwrap_err().reason, "image_invalid");
    }

    /// EXIF data with an orientation only: a TIFF header and a directory of one entry.
    fn exif(orientation: u8) -> Vec<u8> {
        let mut bytes = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".to_vec();
        bytes.extend([orientation, 0, 0, 0, 0, 0, 0, 0]);
        bytes
    }

    fn png_with_exif(orientation: u8) -> Vec<u8> {
        let bytes = encoded(4, 3, ImageFormat::Png);
        // After the signature and the header, of 8 and 25 bytes.
        let (start, rest) = bytes.split_at(33);
        let mut chunk = b"eXIf".to_vec();
        chunk.extend(exif(orientation));
        let length = u32::try_from(chunk.len() - 4).unwrap().to_be_bytes();
        [start, &length, &chunk, &checksum(&chunk).to_be_bytes(), rest].concat()
    }

    #[test]
    fn pictures_are_turned_as_their_metadata_say() {
        let stored = decode(&encoded(4, 3, ImageFormat::Png)).unwrap();
        for orientation in 0..=9 {
            let shown = decode(&png_with_exif(orientation)).unwrap();
            let size = if (5..=8).contains(&orientation) { (3, 4) } else { (4, 3) };
            assert_eq!(shown.dimensions(), size, "{orientation}");
            for (x, y, pixel) in shown.enumerate_pixels() {
                // Place of the stored pixel, by the definition of the eight values; others mean nothing.
                let (from_x, from_y) = match orientation {
                    2 => (3 - x, y),
                    3 => (3 - x, 2 - y),
                    4 => (x, 2 - y),
                    5 => (y, x),
                    6 => (y, 2 - x),
                    7 => (3 - y, 2 - x),
                    8 => (3 - y, x),
                    _ => (x, y),
                };
                assert_eq!(pixel, stored.get_pixel(from_x, from_y), "{orientation} at {x}, {y}");
            }
        }
    }

    #[test]
    fn a_photo_taken_upright_stands_upright() {
        let stored =
            RgbImage::from_fn(32, 16, |x, _| image::Rgb(if x < 16 { [250, 0, 0] } else { [0, 0, 250] }));
        let mut bytes = Vec::new();
        let mut encoder = image::codecs::jpeg::JpegEncoder::new(&mut bytes);
        image::ImageEncoder::set_exif_metadata(&mut encoder, exif(6)).unwrap();
        stored.write_with_encoder(encoder).unwrap();
        let shown = decode(&bytes).unwrap();
        assert_eq!(shown.dimensions(), (16, 32));
        assert!(shown.get_pixel(8, 4).0[0] > 200 && shown.get_pixel(8, 28).0[2] > 200);
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
    fn vectors_give_the_same_values() {
        // Each channel has each value, and the width is no multiple of a vector's.
        let image = RgbImage::from_fn(37, 7, |x, y| {
            let at = x + 37 * y;
            image::Rgb([at as u8, (at * 3) as u8, (at * 7) as u8])
        });
        let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        let (mut values, mut bytes) = (vec![9.0], vec![9]);
        normalize(&image, mean, std, &mut values);
        let mut everywhere = vec![9.0];
        normalize_pixels(image.as_raw().as_chunks::<3>().0, mean, std, &mut everywhere);
        assert!(values == everywhere, "with the vectors of this processor and of every one");
        append_bytes(&image, &mut bytes);
        assert_eq!((values.len(), bytes.len()), (1 + 3 * 37 * 7, 1 + 3 * 37 * 7));
        let right = (0..3).flat_map(|channel| image.pixels().map(move |pixel| (channel, pixel.0[channel])));
        for ((value, byte), (channel, right)) in values[1..].iter().zip(&bytes[1..]).zip(right) {
            let normal = (f32::from(right) / 255.0 - mean[channel]) * (1.0 / std[channel]);
            assert_eq!((value.to_bits(), *byte), (normal.to_bits(), right));
        }
    }

    /// Prints the time that a frame's preparation takes, the best of many:
    /// `cargo test --release -p tidemill-media --lib time_of -- --ignored --nocapture`.
    #[test]
    #[ignore = "long: make test-long"]
    #[expect(clippy::disallowed_methods, reason = "measures real time")]
    fn time_of_a_preparation() {
        fn best<T>(mut run: impl FnMut() -> T) -> std::time::Duration {
            let times = (0..300).map(|_| {
                let start = std::time::Instant::now();
                std::hint::black_box(run());
                start.elapsed()
            });
            times.min().unwrap()
        }
        let mut frame = Vec::new();
        RawImage::write_header(640, 360, &mut frame);
        frame.extend((0..3 * 640 * 360u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8));
        let decoded = decode(&frame).unwrap();
        println!("640 x 360, read: {:?}; copied: {:?}", best(|| decode(&frame)), best(|| decoded.clone()));
        for side in [320, 416, 640] {
            let small = resize(decoded.clone(), side, side);
            let (mut values, mut bytes) = (Vec::new(), Vec::new());
            let resized = best(|| resize(decoded.clone(), side, side));
            let in_place = best(|| decode_to(&frame, side, side));
            let normalized = best(|| {
                values.clear();
                normalize(&small, [0.4, 0.5, 0.6], [0.2, 0.3, 0.4], &mut values);
            });
            let appended = best(|| {
                bytes.clear();
                append_bytes(&small, &mut bytes);
            });
            println!(
                "to {side} x {side}, copied and resized: {resized:?}; in place: {in_place:?}; normalised: {normalized:?}; bytes: {appended:?}"
            );
        }
    }

    #[test]
    fn pictures_are_resized_where_they_are() {
        let picture = |width: u32, height: u32| {
            let mut bytes = Vec::new();
            RawImage::write_header(width, height, &mut bytes);
            bytes.extend((0..3 * width * height).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8));
            bytes
        };
        // Large ones between small ones, whose intermediate pictures are not kept.
        for (size, to) in
            [((64, 36), (32, 32)), ((64, 36), (64, 36)), ((9, 7), (20, 30)), ((3000, 2000), (2500, 1999))]
        {
            let bytes = picture(size.0, size.1);
            let copied = resize(decode(&bytes).unwrap(), to.0, to.1);
            assert!(decode_to(&bytes, to.0, to.1).unwrap() == copied, "{size:?} to {to:?}");
        }
        let mut cut = picture(64, 36);
        cut.truncate(3000);
        assert_eq!(decode_to(&cut, 32, 32).unwrap_err().reason, "image_truncated");
        let mut huge = Vec::new();
        RawImage::write_header(20_000, 1, &mut huge);
        huge.resize(huge.len() + 60_000, 0);
        assert_eq!(decode_to(&huge, 32, 32).unwrap_err().reason, "image_too_large");
        assert_eq!(decode_to(b"P6\n", 32, 32).unwrap_err().reason, "image_invalid");
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
