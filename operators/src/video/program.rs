//! Location of the ffmpeg program.
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tidemill_machine::places::folders_of_programs_and_libraries;

/// Environment variable that names the program.
pub const VARIABLE: &str = "TIDEMILL_FFMPEG";

/// Advice if ffmpeg is missing.
pub const HELP: &str = "run `scripts/fetch-library.sh ffmpeg` (needs network and python3) or `apt-get install ffmpeg`, or set \
                        TIDEMILL_FFMPEG to the program; version 5.1 or newer. Containers: an image of `scripts/image.sh --ffmpeg`";

/// Error if ffmpeg is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The variable does not name a program.
    #[error("{VARIABLE} names `{0}`, which is not a program")]
    Named(PathBuf),
    /// It was not found.
    #[error("cannot find ffmpeg in PATH, {first} and {others} other folders", first = .first.display())]
    NotFound {
        /// The first folder searched.
        first: PathBuf,
        /// Number of further folders.
        others: usize,
    },
}

/// Finds the program: `TIDEMILL_FFMPEG`, else the newest `ffmpeg*` of the first folder that has one (see
/// [`folders_of_programs_and_libraries`], searched from `directory` on), else `ffmpeg` in `PATH`.
///
/// # Errors
/// [`Missing`]; [`HELP`] has the advice.
pub fn find(directory: &Path) -> Result<PathBuf, Missing> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        let path = PathBuf::from(named);
        return if is_program(&path) { Ok(path) } else { Err(Missing::Named(path)) };
    }
    let folders = folders_of_programs_and_libraries(directory);
    if let Some(found) = folders.iter().find_map(|folder| newest(folder)) {
        return Ok(found);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path =
        std::env::split_paths(&path).map(|folder| folder.join("ffmpeg")).find(|path| is_program(path));
    in_path.ok_or_else(|| Missing::NotFound {
        first: folders.first().cloned().unwrap_or_default(),
        others: folders.len().saturating_sub(1),
    })
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|of| of.is_file() && of.permissions().mode() & 0o111 != 0)
}

/// Returns the newest program named `ffmpeg` or `ffmpeg-VERSION` in a folder.
fn newest(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    let programs = entries.flatten().filter_map(|entry| {
        let version = version_of(&entry.file_name())?;
        is_program(&entry.path()).then(|| (version, entry.path()))
    });
    programs.max().map(|(_, path)| path)
}

/// Returns the numbers in `ffmpeg-7.0.2` or `ffmpeg-linux-x86_64-v7.0.2`, none for `ffmpeg`; `None` for other files.
fn version_of(name: &OsStr) -> Option<Vec<u64>> {
    let rest = name.to_str()?.strip_prefix("ffmpeg")?;
    if rest.is_empty() {
        return Some(Vec::new());
    }
    let last = rest.strip_prefix('-')?.rsplit('-').next()?;
    last.trim_start_matches('v').split('.').map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_program_of_a_folder_counts() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(newest(folder.path()), None);
        for (name, mode) in [
            ("ffmpeg-linux-x86_64-v7.0.2", 0o755),
            ("ffmpeg-linux-x86_64-v10.1", 0o755),
            ("ffmpeg", 0o755),
            ("ffmpeg-99", 0o644),
            ("ffmpeg-license.txt", 0o755),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        assert_eq!(newest(folder.path()), Some(folder.path().join("ffmpeg-linux-x86_64-v10.1")));
    }
}
