//! A log of whole lines. Each is written at once, so that it survives a kill of the process. Nothing is synced: after a
//! power loss the last lines may be missing or torn.
use super::lock::lock;
use super::staging::write_error;
use crate::api::OperatorError;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file; see the module.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    /// Creates the log (parent folders too); an older one is emptied.
    ///
    /// # Errors
    /// The file cannot be written, or another run is writing it; the text names it and gives advice.
    pub fn create(path: &Path) -> Result<Self, OperatorError> {
        let failed = |e: std::io::Error| write_error(path, &e);
        if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(failed)?;
        lock(&file, path)?;
        if file.metadata().is_ok_and(|found| found.is_file()) {
            file.set_len(0).map_err(failed)?;
        }
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends a line, including its line break.
    ///
    /// # Errors
    /// It cannot be written; a part of the line may be.
    pub fn append(&mut self, line: &[u8]) -> Result<(), OperatorError> {
        self.file.write_all(line).map_err(|e| write_error(&self.path, &e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_there_at_once_and_one_run_writes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/log");
        for content in ["first", "second"] {
            let mut log = LogFile::create(&path).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
            log.append(content.as_bytes()).unwrap();
            log.append(b"\n").unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{content}\n"));
            assert!(LogFile::create(&path).unwrap_err().message.contains("is being written by"));
        }
        assert!(LogFile::create(Path::new("/dev/full")).unwrap().append(b"x").is_err());
    }
}
