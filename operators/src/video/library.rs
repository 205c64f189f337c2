//! Location of ffmpeg's libraries.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_avcodec::Library;
use tidemill_machine::places::folders_of_programs_and_libraries;

/// Environment variable that names the folder of the libraries.
pub const VARIABLE: &str = "TIDEMILL_AVCODEC";

/// Advice if the libraries are missing or of another version.
pub const HELP: &str = "run `tidemill doctor --fix` or `scripts/fetch-library.sh avcodec` (needs network and python3), or set TIDEMILL_AVCODEC to a folder \
                        with the libraries of ffmpeg 8, or write `decoder: process`";

/// Loads the libraries: those of the folder that `TIDEMILL_AVCODEC` names, else of the newest folder `avcodec-VERSION` in
/// the first folder that has one (see [`folders_of_programs_and_libraries`], searched from `directory` on). They stay loaded
/// until the process ends.
///
/// # Errors
/// Says what is missing or wrong; [`HELP`] has the advice.
pub fn load(directory: &Path) -> Result<Arc<Library>, String> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        let folder = PathBuf::from(named);
        if !folder.is_dir() {
            return Err(format!("{VARIABLE} names `{}`, which is not a folder", folder.display()));
        }
        return Library::load(&folder).map_err(|error| error.to_string());
    }
    let folders = folders_of_programs_and_libraries(directory);
    match folders.iter().find_map(|folder| newest(folder)) {
        Some(found) => Library::load(&found).map_err(|error| error.to_string()),
        None => {
            let first = folders.first().map(|first| first.display().to_string()).unwrap_or_default();
            let others = folders.len().saturating_sub(1);
            Err(format!("cannot find ffmpeg's libraries (avcodec-*) in {first} and {others} other folders"))
        }
    }
}

/// Returns the folder `avcodec-VERSION` of the newest version in a folder.
fn newest(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    let found = entries.flatten().filter_map(|entry| {
        let name = entry.file_name();
        let version = name.to_str()?.strip_prefix("avcodec-")?;
        let version: Vec<u64> = version.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        entry.path().is_dir().then(|| (version, entry.path()))
    });
    found.max().map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_folder_counts() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(newest(folder.path()), None);
        for name in ["avcodec-62.9.100", "avcodec-62.28.101", "avcodec-next"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("avcodec-99.1"), "no folder").unwrap();
        assert_eq!(newest(folder.path()), Some(folder.path().join("avcodec-62.28.101")));
    }
}
