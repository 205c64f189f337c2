//! Images: decode, resize, normalise.
use crate::Rejected;
use crate::filter::{self, Filter, scaled};
use crate::raw_image::RawImage;
use decoding::check_size;
use image::RgbImage;

pub use decoding::{ENDINGS, FORMATS, MAX_DECODE_BYTES, MAX_PIXELS, MAX_SIDE, decode, size};

mod decoding;

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
}
