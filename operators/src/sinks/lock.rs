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
    let number = file.metadata().ok()?.ino().to_string();
    let process = process_of(&std::fs::read_to_string("/proc/locks").ok()?, &number)?;
    if process == std::process::id() {
        return Some("this very run".to_owned());
    }
    let command = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let words: Vec<_> = command.split(|b| *b == 0).map(String::from_utf8_lossy).collect();
    let command = words.join(" ");
    Some(match command.trim() {
        "" => format!("process {process}"),
        command => format!("process {process} ({command})"),
    })
}

#[cfg(not(target_os = "linux"))]
fn holder(_: &File) -> Option<String> {
    None
}

/// The process with the write lock on a file with this number, from lines such as
/// `3: FLOCK  ADVISORY  WRITE 4711 fe:01:1234 0 EOF`.
#[cfg(target_os = "linux")]
fn process_of(locks: &str, number: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", process, file, ..] = words[..] else { return None };
        (file.rsplit(':').next() == Some(number)).then(|| process.parse().ok()).flatten()
    })
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

    #[test]
    #[cfg(target_os = "linux")]
    fn the_holder_is_found_by_the_number_of_the_file() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:01:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 fe:01:177 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 fe:01:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 14 fe:01:77 0 EOF\n";
        assert_eq!(process_of(locks, "77"), Some(14));
        assert_eq!(process_of(locks, "7"), None);
    }
}
