//! Location of the interpreter.
use std::path::{Path, PathBuf};

/// Returns the program for the option `python`: a program of `PATH` by its name, a file, or that of a virtual environment.
/// Paths start at `base`. Without the option it is that of the program in Python that runs the workflow (`TIDEMILL_PYTHON`), else
/// `python3`.
pub(crate) fn find(written: Option<&str>, base: &Path) -> PathBuf {
    let named = || std::env::var_os("TIDEMILL_PYTHON").filter(|name| !name.is_empty());
    let Some(written) = written else { return named().map_or_else(|| "python3".into(), PathBuf::from) };
    let path = base.join(written);
    if path.is_dir() {
        return path.join("bin/python");
    }
    if written.contains('/') || path.is_file() { path } else { PathBuf::from(written) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_files_and_folders_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join(".venv/bin")).unwrap();
        let found = |written| find(written, folder.path());
        assert_eq!(found(None), Path::new("python3"));
        assert_eq!(found(Some("python3.12")), Path::new("python3.12"));
        assert_eq!(found(Some(".venv")), folder.path().join(".venv/bin/python"));
        assert_eq!(found(Some("/usr/bin/python3")), Path::new("/usr/bin/python3"));
        assert_eq!(found(Some("bin/py")), folder.path().join("bin/py"));
    }
}
