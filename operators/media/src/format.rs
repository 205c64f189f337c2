//! Formats of pictures and sounds, recognised by their first bytes.
//!
//! ```
//! use tidemill_media::format::MediaFormat;
//! let format = MediaFormat::of(b"GIF89a...").unwrap();
//! assert_eq!((format.media_type(), format.ending(), format.is_picture()), ("image/gif", "gif", true));
//! assert_eq!(MediaFormat::of(b"<svg/>"), None);
//! ```
//! These are the formats that [`image::decode`](crate::image::decode) and [`wav::decode`](crate::wav::decode) read. Whether
//! the rest of the bytes is in order shows only when they are decoded.
use crate::compressed;
use crate::raw_image::RawImage;
use image::ImageFormat;

/// A format of pictures or sounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MediaFormat {
    /// JPEG.
    Jpeg,
    /// PNG.
    Png,
    /// WebP.
    WebP,
    /// TIFF.
    Tiff,
    /// BMP.
    Bmp,
    /// GIF.
    Gif,
    /// Binary PPM: not compressed, as the frames of videos are.
    Ppm,
    /// WAV.
    Wav,
    /// FLAC.
    Flac,
    /// Ogg.
    Ogg,
    /// MP3.
    Mp3,
}

impl MediaFormat {
    /// All formats.
    pub const ALL: [Self; 11] = [
        Self::Jpeg,
        Self::Png,
        Self::WebP,
        Self::Tiff,
        Self::Bmp,
        Self::Gif,
        Self::Ppm,
        Self::Wav,
        Self::Flac,
        Self::Ogg,
        Self::Mp3,
    ];

    /// Recognises the format of these bytes; `None` for others, and for pictures in other formats.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        if RawImage::is_one(bytes) {
            return Some(Self::Ppm);
        }
        match image::guess_format(bytes) {
            Ok(ImageFormat::Jpeg) => return Some(Self::Jpeg),
            Ok(ImageFormat::Png) => return Some(Self::Png),
            Ok(ImageFormat::WebP) => return Some(Self::WebP),
            Ok(ImageFormat::Tiff) => return Some(Self::Tiff),
            Ok(ImageFormat::Gif) => return Some(Self::Gif),
            // Many texts start with these two letters; the reserved fields of a picture are 0.
            Ok(ImageFormat::Bmp) => return (bytes.get(6..10) == Some(&[0; 4])).then_some(Self::Bmp),
            _ => {}
        }
        if matches!(bytes.get(..4), Some(b"RIFF" | b"RF64" | b"BW64")) {
            return (bytes.get(8..12) == Some(b"WAVE")).then_some(Self::Wav);
        }
        match compressed::Format::of(bytes)? {
            compressed::Format::Flac => Some(Self::Flac),
            compressed::Format::Ogg => Some(Self::Ogg),
            // Other bytes start with the same eleven bits.
            compressed::Format::Mp3 => compressed::is_mp3(bytes).then_some(Self::Mp3),
        }
    }

    /// The media type, as on the web.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Jpeg => "image/jpeg",
            Self::Png => "image/png",
            Self::WebP => "image/webp",
            Self::Tiff => "image/tiff",
            Self::Bmp => "image/bmp",
            Self::Gif => "image/gif",
            Self::Ppm => "image/x-portable-pixmap",
            Self::Wav => "audio/wav",
            Self::Flac => "audio/flac",
            Self::Ogg => "audio/ogg",
            Self::Mp3 => "audio/mpeg",
        }
    }

    /// The usual ending of the names of such files.
    pub const fn ending(self) -> &'static str {
        match self {
            Self::Jpeg => "jpg",
            Self::Png => "png",
            Self::WebP => "webp",
            Self::Tiff => "tiff",
            Self::Bmp => "bmp",
            Self::Gif => "gif",
            Self::Ppm => "ppm",
            Self::Wav => "wav",
            Self::Flac => "flac",
            Self::Ogg => "ogg",
            Self::Mp3 => "mp3",
        }
    }

    /// Whether it is a format of pictures, not of sounds.
    pub const fn is_picture(self) -> bool {
        !matches!(self, Self::Wav | Self::Flac | Self::Ogg | Self::Mp3)
    }

    /// Whether browsers show or play it.
    pub const fn is_of_browsers(self) -> bool {
        !matches!(self, Self::Tiff | Self::Ppm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn encoded_pictures_are_recognised() {
        let picture = image::RgbImage::new(3, 2);
        for (format, expected) in [
            (ImageFormat::Jpeg, MediaFormat::Jpeg),
            (ImageFormat::Png, MediaFormat::Png),
            (ImageFormat::WebP, MediaFormat::WebP),
            (ImageFormat::Tiff, MediaFormat::Tiff),
            (ImageFormat::Bmp, MediaFormat::Bmp),
            (ImageFormat::Gif, MediaFormat::Gif),
        ] {
            let mut bytes = Cursor::new(Vec::new());
            picture.write_to(&mut bytes, format).unwrap();
            let bytes = bytes.into_inner();
            assert_eq!(MediaFormat::of(&bytes), Some(expected));
            assert!(expected.is_picture());
            assert_eq!(crate::image::decode(&bytes).unwrap().dimensions(), (3, 2), "it is decoded, too");
        }
        let mut raw = Vec::new();
        RawImage::write_header(1, 1, &mut raw);
        assert_eq!(MediaFormat::of(&raw), Some(MediaFormat::Ppm));
    }

    #[test]
    fn sounds_are_recognised() {
        for (start, expected) in [
            (&b"RIFF\x24\0\0\0WAVEfmt "[..], MediaFormat::Wav),
            (b"RF64\xff\xff\xff\xffWAVEds64", MediaFormat::Wav),
            (b"fLaC\0\0\0\x22", MediaFormat::Flac),
            (b"OggS\0\x02", MediaFormat::Ogg),
            (b"ID3\x04\0\0\0\0\0\0", MediaFormat::Mp3),
            (&[0xff, 0xfb, 0x90, 0x64], MediaFormat::Mp3),
            (&[0xff, 0xf3, 0x40, 0xc4], MediaFormat::Mp3),
        ] {
            assert_eq!(MediaFormat::of(start), Some(expected), "{start:?}");
            assert!(!expected.is_picture());
        }
    }

    #[test]
    fn other_bytes_are_none() {
        // A text in UTF-16, texts that begin like a picture, a film, a drawing with a script.
        for bytes in [
            &[0xff, 0xfe, b'a', 0][..],
            b"BMW and others",
            b"BM",
            b"RIFF\x24\0\0\0AVI LIST",
            b"RIFF",
            b"<svg onload=alert(1)>",
            b"",
        ] {
            assert_eq!(MediaFormat::of(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn endings_are_those_that_the_sources_read() {
        for format in MediaFormat::ALL {
            let endings = if format.is_picture() { crate::image::ENDINGS } else { crate::wav::ENDINGS };
            assert!(endings.contains(&format.ending()), "{format:?}");
            let kind = if format.is_picture() { "image/" } else { "audio/" };
            assert!(format.media_type().starts_with(kind), "{format:?}");
        }
    }
}
