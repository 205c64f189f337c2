//! `image_directory`: the pictures of a folder, by name.
//!
//! ```yaml
//! - {id: images, kind: image_directory, key: key, rate: 40/s, options: {path: data/images}}
//! ```
//! Every `.jpg`, `.jpeg`, `.png`, `.webp`, `.tif`, `.tiff`, `.bmp`, `.gif` or `.ppm` file is one record `{key: text, image: image}`; the key is the name without its
//! extension. Pictures stay encoded and are decoded where they are used; only their header is read here. Dead letters:
//! `file_name_invalid` (not UTF-8), `file_empty`, `file_too_large` (`max_file`, default 64MiB), `file_unreadable`,
//! `image_unreadable` (no header), `image_too_large` (more than `max_pixels`, default 64 million, by the header).
//!
//! ```
//! use tidemill_operators::api::SourceRead;
//! use tidemill_operators::kind::EndContext;
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::SourceFile, yaml};
//! let folder = tempfile::tempdir().unwrap();
//! std::fs::write(folder.path().join("broken.png"), "no picture").unwrap();
//! let id = "images".into();
//! let context = EndContext::new(&id, folder.path());
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "path: .")).unwrap();
//! let images = Registry::builtin().source("image_directory").unwrap().bind(&context, &options).unwrap();
//! assert_eq!(images.output.to_string(), "{key: text, image: image}");
//! let mut reader = (images.make)().unwrap();
//! let Ok(SourceRead::Rows { dead_letters, .. }) = reader.read(8, 1 << 20) else { panic!() };
//! assert_eq!(dead_letters[0].reason, "image_unreadable");
//! ```
use super::directory::Folder;
use crate::api::BoundSource;
use crate::kind::{EndContext, SourceKind};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_media::image::ENDINGS;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::units::Bytes;
use tidemill_spec::value::Value;

/// The kind `image_directory`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct ImageDirectory;

/// Options of `image_directory`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Options {
    /// The folder, relative to the workflow file.
    path: Located<String>,
    /// Largest picture, in pixels (width times height). Default: 64000000.
    #[serde(default = "default_pixels")]
    max_pixels: u64,
    /// Largest file. Default: 64MiB.
    #[serde(default = "super::lines::default_max_file")]
    max_file: Bytes,
}

fn default_pixels() -> u64 {
    64_000_000
}

impl SourceKind for ImageDirectory {
    fn kind(&self) -> &'static str {
        "image_directory"
    }

    fn summary(&self) -> &'static str {
        "The pictures of a folder, by name."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn shown_by_opening(&self) -> &'static str {
        "is a folder with pictures"
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let options: Options = options.deserialize_into()?;
        let output =
            StreamType::new([Column::new("key", ColumnType::Text), Column::new("image", ColumnType::Image)]);
        let max_pixels = options.max_pixels;
        let folder = Folder {
            path: context.path(&options.path),
            endings: ENDINGS.iter().map(|ending| (*ending).to_owned()).collect(),
            gives_names: false,
            has_whole_keys: false,
            file_limit: options.max_file.0.min(super::lines::MAX_FILE_LIMIT),
            check: Arc::new(move |bytes| check(bytes, max_pixels)),
        };
        folder.bind(self.kind(), context, &options.path, output)
    }
}

/// Checks the header of a picture.
///
/// # Errors
/// Reason and detail: it is no picture in a known format, or has more pixels.
pub fn check(bytes: &[u8], max_pixels: u64) -> Result<(), (&'static str, String)> {
    let unreadable = |e: &dyn std::fmt::Display| {
        // Some of the decoder's messages end with a line break.
        ("image_unreadable", format!("no header of a picture: {e}").trim_end().to_owned())
    };
    // The decoder would build the tables of every JPEG, which is most of the work for a small one.
    let (width, height) = if bytes.starts_with(b"\xff\xd8\xff") {
        let (width, height) = super::jpeg_header::size(bytes).map_err(|e| unreadable(&e))?;
        (u32::from(width), u32::from(height))
    } else {
        tidemill_media::image::size(bytes).map_err(|rejected| unreadable(&rejected.detail))?
    };
    if u64::from(width) * u64::from(height) > max_pixels {
        return Err((
            "image_too_large",
            format!("{width} x {height} pixels, at most {max_pixels} are allowed"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{binary, text};
    use crate::sources::test::{bind, check_seeks, drain};
    use crate::testing::only;
    use std::io::Cursor;

    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        image::RgbImage::new(width, height)
            .write_to(&mut Cursor::new(&mut bytes), image::ImageFormat::Png)
            .unwrap();
        bytes
    }

    /// A PNG whose header says 50 000 x 50 000.
    fn bomb() -> Vec<u8> {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        bytes.extend(50_000u32.to_be_bytes());
        bytes.extend(50_000u32.to_be_bytes());
        bytes.extend([8, 2, 0, 0, 0]);
        let mut crc = !0u32;
        for byte in &bytes[12..29] {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            }
        }
        bytes.extend((!crc).to_be_bytes());
        bytes.extend(b"\0\0\0\0IDAT\x35\xaf\x06\x1e");
        bytes
    }

    #[test]
    fn good_and_bad_pictures() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        write("b.png", &png(2, 3));
        write("a.PNG", &png(4, 4));
        write("c.jpg", b"");
        write("d.jpeg", b"\xff\xd8 no more");
        write("e.png", &bomb());
        write("f.png", &[0; 5000]);
        write("i.jpg", b"\xff\xd8\xff\xe0\0\x10 no frame");
        write("notes.txt", b"not a picture");
        write(".hidden.png", b"");
        use std::os::unix::ffi::OsStrExt;
        std::fs::write(folder.path().join(std::ffi::OsStr::from_bytes(b"h\xff.png")), png(2, 2)).unwrap();
        std::fs::create_dir(folder.path().join("g.png")).unwrap();
        let source = bind(&ImageDirectory, folder.path(), "path: .\nmax_file: 4kB").unwrap();
        let (batches, dead) = drain(&source, 100, usize::MAX);
        assert_eq!(text(batches[0].column(0)).unwrap().iter().flatten().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(binary(batches[0].column(1)).unwrap().value(1), png(2, 3));
        let reasons: Vec<_> = dead.iter().map(|(at, d)| (*at, &*d.reason)).collect();
        assert_eq!(
            reasons,
            [
                (2, "file_empty"),
                (3, "image_unreadable"),
                (4, "image_too_large"),
                (5, "file_too_large"),
                (6, "file_name_invalid"),
                (7, "image_unreadable")
            ]
        );
        assert!(dead[2].1.detail.contains("`e.png`: 50000 x 50000"), "{}", dead[2].1.detail);
        check_seeks(&source);
    }

    #[test]
    fn all_formats_are_read() {
        use image::ImageFormat::{Bmp, Gif, Jpeg, Tiff, WebP};
        let folder = tempfile::tempdir().unwrap();
        for (name, format) in
            [("a.bmp", Bmp), ("b.gif", Gif), ("c.JPG", Jpeg), ("d.tif", Tiff), ("e.webp", WebP)]
        {
            let mut bytes = Vec::new();
            image::RgbImage::new(5, 4).write_to(&mut Cursor::new(&mut bytes), format).unwrap();
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        std::fs::write(folder.path().join("f.ppm"), b"P6\n1 1\n255\nabc").unwrap();
        let (batches, dead) =
            drain(&bind(&ImageDirectory, folder.path(), "path: .").unwrap(), 100, usize::MAX);
        assert!(dead.is_empty(), "{dead:?}");
        let keys = text(batches[0].column(0)).unwrap();
        assert_eq!(keys.iter().flatten().collect::<Vec<_>>(), ["a", "b", "c", "d", "e", "f"]);
        let (_, dead) = drain(
            &bind(&ImageDirectory, folder.path(), "{path: ., max_pixels: 19}").unwrap(),
            100,
            usize::MAX,
        );
        assert_eq!(dead.iter().filter(|(_, letter)| letter.reason == "image_too_large").count(), 5);
    }

    #[test]
    fn missing_folders_are_errors_with_advice() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        for (path, message) in
            [("nowhere", "does not exist"), ("file", "is not a folder"), (".", "no file in")]
        {
            let error = only(bind(&ImageDirectory, folder.path(), &format!("path: {path}")).err().unwrap());
            assert_eq!((error.code, error.line(), error.column()), ("E0609", Some(1), Some(7)));
            assert!(error.message.contains(message), "{error}");
            assert!(error.help.is_some());
        }
    }

    #[test]
    fn two_files_with_one_key_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.jpg", "a.b.png", "c.png"] {
            std::fs::write(folder.path().join(name), png(1, 1)).unwrap();
        }
        let source = bind(&ImageDirectory, folder.path(), "path: .").unwrap();
        std::fs::write(folder.path().join("a.png"), png(1, 1)).unwrap();
        let error = only(bind(&ImageDirectory, folder.path(), "path: .").err().unwrap());
        assert_eq!(error.code, "E0609");
        assert!(error.message.contains("`a.jpg` and `a.png` in"), "{error}");
        // A later file does not become a second record either.
        let Err(error) = (source.make)() else { panic!("there are two") };
        assert!(error.message.contains("would have the same key"), "{error}");
    }

    #[test]
    fn a_changed_folder_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.png", "b.png", "c.png"] {
            std::fs::write(folder.path().join(name), png(1, 1)).unwrap();
        }
        let source = bind(&ImageDirectory, folder.path(), "path: .").unwrap();
        let mut reader = (source.make)().unwrap();
        reader.read(2, 1 << 20).unwrap();
        let position = reader.position();
        std::fs::remove_file(folder.path().join("a.png")).unwrap();
        let error = (source.make)().unwrap().seek(&position).unwrap_err();
        assert!(error.message.contains("have changed"), "{error}");
    }
}
