//! A file that is there whole or not at all.
use crate::exit::{Exit, Failure};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Where it will be.
#[derive(Debug)]
pub(crate) struct WholeFile {
    path: PathBuf,
}

impl WholeFile {
    /// Makes missing folders and tries whether a file can be written there; what is there stays.
    ///
    /// # Errors
    /// When it cannot.
    pub(crate) fn prepare(path: &Path) -> Result<Self, Failure> {
        let file = Self { path: path.to_owned() };
        if path.is_dir() {
            let message = format!("cannot write {}: it is a folder", path.display());
            return Err(Failure::new(Exit::Configuration, message).with_help("write the path of a file"));
        }
        let try_out = || {
            if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                fs::create_dir_all(parent)?;
            }
            let beside = file.beside();
            File::create(&beside)?;
            fs::remove_file(&beside)
        };
        try_out().map_err(|error| file.failure(&error))?;
        Ok(file)
    }

    /// Replaces what is there by this.
    ///
    /// # Errors
    /// When it cannot be written; then what was there stays.
    pub(crate) fn write(&self, content: &[u8]) -> Result<(), Failure> {
        let beside = self.beside();
        let write = || {
            let mut file = File::create(&beside)?;
            file.write_all(content)?;
            file.sync_all()?;
            fs::rename(&beside, &self.path)
        };
        write().map_err(|error| {
            // Best effort: the failure itself is what has to be told.
            let _ = fs::remove_file(&beside);
            self.failure(&error)
        })
    }

    /// In the same folder, so that it can be renamed; of this process only.
    fn beside(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!(".{name}.{}", std::process::id()))
    }

    fn failure(&self, error: &std::io::Error) -> Failure {
        Failure::new(Exit::Configuration, format!("cannot write {}: {error}", self.path.display()))
            .with_help("choose another path for the report, or allow writing there")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_one_stays_until_the_new_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/report.html");
        let file = WholeFile::prepare(&path).unwrap();
        assert!(!path.exists());
        file.write(b"one").unwrap();
        WholeFile::prepare(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        file.write(b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 1, "nothing is left beside it");
        assert!(WholeFile::prepare(folder.path()).is_err());
        assert!(WholeFile::prepare(&path.join("below")).is_err());
    }
}
