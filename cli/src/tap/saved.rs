//! Pictures and sounds of a tap as files.
use super::picture::png;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_operators::format::MediaFormat;
use tidemill_operators::record::{EventTime, RecordId};

/// The folder of the files.
pub(super) struct Folder {
    path: PathBuf,
    edge: String,
}

impl Folder {
    /// # Errors
    /// The folder cannot be made.
    pub(super) fn open(path: &Path, edge: &str) -> Result<Self, Failure> {
        std::fs::create_dir_all(path).map_err(|error| failure(path, &error))?;
        Ok(Self { path: path.to_owned(), edge: edge.to_owned() })
    }

    /// Writes a medium; `None`: it is no picture and no sound. A record that comes again has the same name.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(
        &self,
        time: EventTime,
        id: &RecordId,
        column: Option<&str>,
        bytes: &[u8],
    ) -> Result<Option<PathBuf>, Failure> {
        let Some((ending, bytes)) = encoded(bytes) else { return Ok(None) };
        let id: String = id[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        let column = column.map(|column| format!("-{column}")).unwrap_or_default();
        let path = self.path.join(format!("{}-{time}-{id}{column}.{ending}", self.edge));
        std::fs::write(&path, bytes).map_err(|error| failure(&path, &error))?;
        Ok(Some(path))
    }
}

fn failure(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Kind::Unavailable, format!("cannot write `{}`: {error}", path.display()))
}

/// The end of the file's name and its content: as it is, but PNG for what no program opens.
fn encoded(bytes: &[u8]) -> Option<(&'static str, Cow<'_, [u8]>)> {
    match MediaFormat::of(bytes)? {
        MediaFormat::Ppm => png(bytes).map(|png| ("png", Cow::Owned(png))),
        format => Some((format.ending(), bytes.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_operators::raw_image::RawImage;

    #[test]
    fn files_have_the_form_that_their_names_say() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(&place.path().join("a/b"), "cam1").unwrap();
        let mut raw = Vec::new();
        RawImage::write_header(2, 1, &mut raw);
        raw.extend([255, 0, 0, 0, 0, 255]);
        let write = |bytes: &[u8], column| folder.write(7, &[0xab; 16], column, bytes).unwrap();
        let path = write(&raw, None).unwrap();
        assert!(path.ends_with("a/b/cam1-7-abababab.png"), "{path:?}");
        let read = image::open(&path).unwrap().into_rgb8();
        assert_eq!(read.into_raw(), [255, 0, 0, 0, 0, 255]);
        let jpeg = write(b"\xff\xd8\xff\xe0....", Some("image")).unwrap();
        assert!(jpeg.ends_with("cam1-7-abababab-image.jpg"), "{jpeg:?}");
        assert_eq!(write(b"RIFF....WAVE", None).unwrap().extension().unwrap(), "wav");
        assert_eq!(write(b"OggS\0\x02", None).unwrap().extension().unwrap(), "ogg");
        assert_eq!(write(b"II*\0\x08\0\0\0", None).unwrap().extension().unwrap(), "tiff");
        assert_eq!(write(b"no picture", None), None);
    }
}
