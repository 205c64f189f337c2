//! One run at a time writes a file.
//!
//! The lock is on the open file: it goes with the process that holds it, however that ends, and leaves nothing behind.
use crate::api::OperatorError;
use std::fs::{File, TryLockError};
use std::path::Path;

/// Takes the lock of an output file. Devices and pipes have none: writing there together harms nobody.
///
/// # Errors
/// Another run writes the file; the text says which process.
pub(super) fn lock(file: &File, path: &Path) -> Result<(), OperatorError> {
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(());
    }
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(OperatorError::new(format!(
            "`{}` is being written by {}: wait for its end, or choose another path",
            path.display(),
            holder(file).unwrap_or_else(|| "another run".to_owned())
        ))),
        // Some network file systems know no locks; then there is only care.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Who holds the lock, as far as the system tells.
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
    use std::fs::OpenOptions;

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
        drop(first);
        lock(&open(), &path).unwrap();
    }
}
