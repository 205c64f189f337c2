//! Locks that let only one run at a time write a file.
//!
//! The lock is on the open file: it ends with its process, however that ends, and leaves nothing in the file system.
use super::staging::write_error;
use crate::api::OperatorError;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

/// Takes the lock of an output file. Devices and pipes have none: several writers do no harm there.
///
/// # Errors
/// Another run writes the file; the text says which process.
pub(super) fn lock(file: &File, path: &Path) -> Result<(), OperatorError> {
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(());
    }
    taken(file, path, file.try_lock())
}

/// Checks whether the lock could be taken, and releases it. A run that locks the file meanwhile gets an error naming this
/// process; two that only check do not see each other.
///
/// # Errors
/// See [`lock`].
pub(crate) fn check_free(path: &Path, of: &Path) -> Result<(), OperatorError> {
    if !path.metadata().is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    let file = OpenOptions::new().write(true).open(path).map_err(|error| write_error(of, &error))?;
    taken(&file, of, file.try_lock_shared())
}

fn taken(file: &File, path: &Path, tried: Result<(), TryLockError>) -> Result<(), OperatorError> {
    match tried {
        Err(TryLockError::WouldBlock) => Err(OperatorError::new(format!(
            "`{}` is being written by {}: wait for its end, or choose another path",
            path.display(),
            holder(file).unwrap_or_else(|| "another run".to_owned())
        ))),
        // Some network file systems have no locks; then nothing protects the file.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Returns the holder of the lock, if the system reports it.
#[cfg(target_os = "linux")]
fn holder(file: &File) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let process = tidemill_machine::lock_holder(file.metadata().ok()?.ino())?;
    if process == std::process::id() {
        return Some("this very run".to_owned());
    }
    Some(match tidemill_machine::Process::of(process).command().as_str() {
        "" => format!("process {process}"),
        command => format!("process {process} ({command})"),
    })
}

#[cfg(not(target_os = "linux"))]
fn holder(_: &File) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_says_who_holds_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let open = || OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let first = open();
        lock(&first, &path).unwrap();
        let error = lock(&open(), &path).unwrap_err();
        assert!(error.message.contains("out.jsonl` is being written by "), "{error}");
        #[cfg(target_os = "linux")]
        assert!(error.message.contains("this very run"), "{error}");
        assert_eq!(check_free(&path, &path).unwrap_err().message, error.message);
        drop(first);
        check_free(&path, &path).unwrap();
        check_free(&folder.path().join("none"), &path).unwrap();
        lock(&open(), &path).unwrap();
    }
}
