//! Reports beside the results of a run. A file is complete or absent, an older one stays until then; a device or a pipe is
//! written directly.
use crate::failure::{Failure, Kind};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tidemill_operators::sinks::whole_file::WholeFile;

/// Opened before the run starts, so that an unwritable report is noticed early.
pub struct OutputFile {
    path: PathBuf,
    target: Target,
}

enum Target {
    Whole(WholeFile),
    Stream(File),
}

impl OutputFile {
    /// Creates missing folders and takes the path.
    ///
    /// # Errors
    /// When nothing can be written there, or another run is writing it.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let configuration = |message: String| Failure::new(Kind::Configuration, message);
        let is_stream = path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
        let target =
            match is_stream {
                true => OpenOptions::new().write(true).open(path).map(Target::Stream).map_err(|error| {
                    configuration(format!("`{}` cannot be written: {error}", path.display()))
                })?,
                false => Target::Whole(
                    WholeFile::create(path, true).map_err(|error| configuration(error.to_string()))?,
                ),
            };
        Ok(Self { path: path.to_owned(), target })
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// When it cannot be written; then the file is unchanged.
    pub fn write(self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        let Self { path, target } = self;
        let unwritten = |message: String| {
            Failure::new(Kind::Unavailable, message)
                .with_help("this does not affect the committed rows of the sinks")
        };
        let filled = |file: File| {
            let mut out = BufWriter::new(file);
            fill(&mut out)?;
            out.flush()
        };
        match target {
            Target::Stream(file) => filled(file).map_err(|error| unwritten(cannot(&path, &error))),
            Target::Whole(file) => {
                let content = file.content().and_then(filled);
                content.map_err(|error| unwritten(cannot(&path, &error)))?;
                file.finish().map_err(|error| unwritten(error.to_string()))
            }
        }
    }
}

fn cannot(path: &Path, error: &io::Error) -> String {
    format!("`{}` cannot be written: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_one_stays_until_the_new_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/report.html");
        for content in ["one", "two"] {
            let before = std::fs::read(&path).ok();
            let file = OutputFile::create(&path).unwrap();
            assert_eq!(std::fs::read(&path).ok(), before);
            file.write(|out| out.write_all(content.as_bytes())).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), content.as_bytes());
        }
        let failed = OutputFile::create(&path).unwrap().write(|_| Err(io::Error::other("no more")));
        assert!(failed.unwrap_err().to_string().contains("no more"));
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(
            std::fs::read_dir(folder.path().join("new")).unwrap().count(),
            1,
            "nothing is left beside it"
        );
        assert!(OutputFile::create(folder.path()).is_err());
        assert!(OutputFile::create(&path.join("below")).is_err());
    }

    #[test]
    fn a_device_is_written_as_it_is() {
        OutputFile::create(Path::new("/dev/null")).unwrap().write(|out| out.write_all(b"x")).unwrap();
        let full = OutputFile::create(Path::new("/dev/full")).unwrap().write(|out| out.write_all(b"x"));
        let failure = full.unwrap_err().to_string();
        assert!(failure.contains("No space left"), "{failure}");
    }
}
