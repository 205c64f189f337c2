use super::*;
use proptest::prelude::*;
use serde::Deserialize;

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
    let stored = RgbImage::from_fn(32, 16, |x, _| image::Rgb(if x < 16 { [250, 0, 0] } else { [0, 0, 250] }));
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
    for bytes in [&b""[..], b"RIFF....WAVEfmt ", b"hello", b"\0\0\0\x20ftypavif\0\0\0\0"] {
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
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

/// A file and its pixels, made by `testdata/make_pictures.py`.
#[derive(Deserialize)]
struct Reference {
    name: String,
    file: String,
    size: (u32, u32),
    pixels: String,
}

fn references() -> Vec<(Reference, Vec<u8>)> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/pictures.json");
    let references: Vec<Reference> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let with_bytes = references.into_iter().map(|reference| {
        let file = bytes(&reference.file);
        (reference, file)
    });
    with_bytes.collect()
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let (pairs, _) = hexadecimal.as_bytes().as_chunks::<2>();
    pairs.iter().map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn every_format_is_read_as_by_pillow() {
    let references = references();
    assert_eq!(references.len(), 36);
    for (Reference { name, size: expected_size, pixels, .. }, file) in references {
        let picture = decode(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(picture.dimensions(), expected_size, "{name}");
        let stored =
            if name.ends_with("turned") { (expected_size.1, expected_size.0) } else { expected_size };
        assert_eq!(size(&file).unwrap(), stored, "{name}");
        let expected = bytes(&pixels);
        let off = picture.as_raw().iter().zip(&expected).map(|(a, b)| a.abs_diff(*b));
        let most = match name.as_str() {
            name if name.starts_with("jpeg") || name.starts_with("webp lossy") => 3,
            name if name.contains("CMYK") => 1,
            _ => 0,
        };
        assert_eq!(picture.as_raw().len(), expected.len(), "{name}");
        assert!(off.clone().max() <= Some(most), "{name}: off by {:?}", off.max());
    }
}

/// Data after the picture may be missing: other frames, other pages, metadata.
#[test]
fn no_part_of_a_file_is_taken_for_the_whole() {
    for (Reference { name, .. }, file) in references() {
        let whole = decode(&file).unwrap();
        for length in 0..file.len() {
            match decode(&file[..length]) {
                Ok(part) => {
                    assert!(part == whole, "{name}: {length} of {} bytes", file.len());
                    // All of these must be there, but for a byte that fills the last chunk up.
                    let is_whole = length + 1 == file.len() && name.starts_with("webp");
                    assert!(
                        is_whole || !(name.starts_with("webp") || name.starts_with("png")),
                        "{name}: {length}"
                    );
                }
                Err(error) => {
                    assert!(error.reason == "image_truncated" || error.reason == "image_invalid", "{error}")
                }
            }
        }
    }
}

/// Each header states a size that no file so short has.
#[test]
fn sizes_are_checked_before_decoding() {
    let (mut bmp, mut gif, mut webp) =
        (encoded(4, 3, ImageFormat::Bmp), encoded(4, 3, ImageFormat::Gif), encoded(4, 3, ImageFormat::WebP));
    bmp[18..22].copy_from_slice(&20_000u32.to_le_bytes());
    gif[6..10].copy_from_slice(&[0xff; 4]);
    // Width and height less one, of 14 bits each.
    webp[21..25].copy_from_slice(&(15_999u32 << 14 | 15_999).to_le_bytes());
    for bytes in [bmp, gif, webp] {
        let rejected = decode(&bytes).unwrap_err();
        assert_eq!(rejected.reason, "image_too_large", "{rejected}");
    }
    let mut tiff = encoded(4, 3, ImageFormat::Tiff);
    let width = tiff.windows(4).position(|tag| tag == [0, 1, 4, 0] || tag == [0, 1, 3, 0]).unwrap();
    tiff[width + 2..width + 12].copy_from_slice(&[4, 0, 1, 0, 0, 0, 0, 0x50, 0, 0]);
    assert_eq!(decode(&tiff).unwrap_err().reason, "image_too_large");
    let mut empty = encoded(4, 3, ImageFormat::Bmp);
    empty[18..22].copy_from_slice(&[0; 4]);
    assert_eq!(decode(&empty).unwrap_err().reason, "image_invalid");
}

#[test]
fn a_length_beyond_the_file_reserves_nothing() {
    // A WebP file whose metadata claim 4 GiB.
    let (_, file) = references().into_iter().find(|(reference, _)| reference.name == "webp turned").unwrap();
    let mut bytes = file.clone();
    let chunk = bytes.windows(4).position(|name| name == b"EXIF").unwrap();
    bytes[chunk + 4..chunk + 8].copy_from_slice(&[0xff; 4]);
    assert_eq!(decode(&bytes).unwrap_err().reason, "image_truncated");
    // The same behind the end by the header, where the decoder would look.
    let mut bytes = file;
    let length = bytes.len();
    bytes.extend(b"XMP \xff\xff\xff\xff");
    assert!(decode(&bytes).is_ok(), "{length} bytes are the picture");
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes: Vec<u8>, kind in 0usize..7) {
        let starts: [&[u8]; 7] = [
            b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\xff\0\0\0WEBPVP8X", b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08", b"BM", b"GIF89a",
        ];
        let _ = decode(&[starts[kind], &bytes].concat());
    }
}

/// In each file every byte changes, to several values.
#[test]
fn damaged_images_never_panic() {
    for (_, file) in references() {
        for at in 0..file.len() {
            for mask in [0x01, 0x80, 0xff] {
                let mut bytes = file.clone();
                bytes[at] ^= mask;
                let _ = decode(&bytes);
                let _ = size(&bytes);
            }
        }
    }
}
