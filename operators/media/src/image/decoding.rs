//! Decodes pictures of the usual formats.
//!
//! | format | decoded | not decoded |
//! |---|---|---|
//! | JPEG | baseline, extended and progressive; grey, colour, CMYK | lossless, arithmetic coding |
//! | PNG | all colour types and depths | of an APNG, only the still picture |
//! | WebP | lossy and lossless; the first picture of an animation | |
//! | TIFF | the first page: grey, black and white, RGB, CMYK, of 8 and 16 bits, and RGB of floats; strips and tiles; LZW, Deflate, PackBits, JPEG, fax | palettes |
//! | BMP | palettes, 16 to 32 bits, run lengths | |
//! | GIF | the first picture | |
//! | binary PPM | 8 bits | other kinds of Netpbm |
use crate::Rejected;
use crate::completeness::{jpeg_is_complete, png_is_complete, whole_webp};
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
/// The formats that are decoded, in words.
pub const FORMATS: &str = "JPEG, PNG, WebP, TIFF, BMP, GIF or binary PPM";
/// The usual endings of the names of such files, lower case.
pub const ENDINGS: &[&str] = &["jpg", "jpeg", "png", "webp", "tif", "tiff", "bmp", "gif", "ppm"];

/// Decodes a picture (see [`FORMATS`]) to 8-bit RGB, turned and mirrored according to its EXIF orientation.
/// Transparency is dropped, 16-bit values are rounded. Of several pictures in one file, the first is decoded.
///
/// # Errors
/// `image_invalid`, `image_truncated` or `image_too_large`. The size is read from the header before anything
/// is decoded.
pub fn decode(bytes: &[u8]) -> Result<RgbImage, Rejected> {
    if RawImage::is_one(bytes) {
        return raw(bytes);
    }
    let format = format_of(bytes)?;
    let whole = match format {
        ImageFormat::Jpeg => jpeg_is_complete(bytes).then_some(bytes),
        ImageFormat::Png => png_is_complete(bytes).then_some(bytes),
        ImageFormat::WebP => whole_webp(bytes),
        // Their decoders fill nothing in: they stop where bytes are missing.
        _ => Some(bytes),
    };
    let Some(bytes) = whole else {
        return Err(Rejected::new(
            "image_truncated",
            format!("the {format:?} data ends after {} bytes", bytes.len()),
        ));
    };
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
    if format != ImageFormat::Tiff {
        limits.reserve(decoder.total_bytes()).map_err(|error| rejected(&error))?;
    }
    decoder.set_limits(limits).map_err(|error| rejected(&error))?;
    // Pictures with unreadable metadata are taken as stored.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let stored = DynamicImage::from_decoder(decoder).map_err(|error| rejected(&error))?;
    let mut image = DynamicImage::ImageRgb8(stored.into_rgb8());
    image.apply_orientation(orientation);
    Ok(image.into_rgb8())
}

/// Returns width and height of a picture as stored, from its header alone.
///
/// # Errors
/// `image_invalid` or `image_truncated`.
pub fn size(bytes: &[u8]) -> Result<(u32, u32), Rejected> {
    if RawImage::is_one(bytes) {
        return raw_size(bytes);
    }
    let reader = ImageReader::with_format(Cursor::new(bytes), format_of(bytes)?);
    reader.into_dimensions().map_err(|error| rejected(&error))
}

/// Recognises a format by the first bytes.
fn format_of(bytes: &[u8]) -> Result<ImageFormat, Rejected> {
    use ImageFormat::{Bmp, Gif, Jpeg, Png, Tiff, WebP};
    if bytes.is_empty() {
        return Err(Rejected::new("image_invalid", "there are no bytes"));
    }
    match image::guess_format(bytes) {
        Ok(format @ (Bmp | Gif | Jpeg | Png | Tiff | WebP)) => Ok(format),
        Ok(other) => Err(Rejected::new(
            "image_invalid",
            format!("{other:?} images are not supported; {FORMATS} is; convert it first"),
        )),
        Err(_) => Err(Rejected::new("image_invalid", format!("the bytes are not {FORMATS}"))),
    }
}

fn raw_size(bytes: &[u8]) -> Result<(u32, u32), Rejected> {
    raw_image::size(bytes).map_err(|error| Rejected::new("image_invalid", error.to_string()))
}

/// Decodes an uncompressed picture.
fn raw(bytes: &[u8]) -> Result<RgbImage, Rejected> {
    let (width, height) = raw_size(bytes)?;
    check_size(width, height)?;
    let truncated = |text: String| Rejected::new("image_truncated", text);
    let picture = RawImage::parse(bytes).map_err(|error| truncated(error.to_string()))?;
    RgbImage::from_raw(width, height, picture.pixels.to_vec())
        .ok_or_else(|| truncated(format!("{} bytes for {width}x{height} pixels", bytes.len())))
}

pub(super) fn check_size(width: u32, height: u32) -> Result<(), Rejected> {
    if width == 0 || height == 0 {
        return Err(Rejected::new("image_invalid", format!("it is {width}x{height}")));
    }
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
        _ if is_cut(error) => Rejected::new("image_truncated", error.to_string()),
        _ => Rejected::new("image_invalid", error.to_string()),
    }
}

/// Whether the error, or what caused it, is the end of the bytes.
fn is_cut(error: &ImageError) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>()
            && error.kind() == std::io::ErrorKind::UnexpectedEof
        {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests;
