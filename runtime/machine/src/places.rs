//! Folders of libraries and programs that are found at run time, and of Tidemill's cache.
use std::path::{Path, PathBuf};

/// Returns the folders for libraries and programs, by priority: `.tidemill/lib` of `directory`, of the current
/// directory and of the folders above each, `lib` of [`cache_folder`] and of the user's data
/// (`~/.local/share/tidemill/lib`), the folder of the program and the `lib` and `lib/tidemill` next to it, the packages of
/// Python in the same environment, `LD_LIBRARY_PATH`.
pub fn folders_of_programs_and_libraries(directory: &Path) -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let mut folders = Vec::new();
    let current = std::env::current_dir().unwrap_or_default();
    for start in [std::path::absolute(directory).unwrap_or_default(), current] {
        folders.extend(start.ancestors().map(|folder| folder.join(".tidemill/lib")));
    }
    folders.extend([cache_folder(), data_folder()].into_iter().flatten().map(|folder| folder.join("lib")));
    if let Ok(program) = std::env::current_exe() {
        folders.extend(beside(&program));
    }
    if let Some(paths) = variable("LD_LIBRARY_PATH") {
        folders.extend(std::env::split_paths(&paths).filter(|folder| folder.is_absolute()));
    }
    folders
}

/// Returns Tidemill's cache folder: `$TIDEMILL_CACHE`, `$XDG_CACHE_HOME/tidemill` or `~/.cache/tidemill`.
pub fn cache_folder() -> Option<PathBuf> {
    let given = std::env::var_os("TIDEMILL_CACHE").map(PathBuf::from).filter(|path| path.is_absolute());
    given.or_else(|| user_folder("XDG_CACHE_HOME", ".cache"))
}

/// Returns the value of `$TIDEMILL_CACHE` if [`cache_folder`] ignores it: a path that is not absolute would mean
/// another folder in each working directory.
pub fn unheeded_cache_folder() -> Option<PathBuf> {
    let given = std::env::var_os("TIDEMILL_CACHE").filter(|value| !value.is_empty()).map(PathBuf::from);
    given.filter(|path| !path.is_absolute())
}

/// Tidemill's folder in the user's data: `$XDG_DATA_HOME/tidemill` or `~/.local/share/tidemill`.
fn data_folder() -> Option<PathBuf> {
    user_folder("XDG_DATA_HOME", ".local/share")
}

fn user_folder(variable: &str, in_home: &str) -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let parent = folder(variable).or_else(|| folder("HOME").map(|home| home.join(in_home)));
    parent.map(|parent| parent.join("tidemill"))
}

/// Library folders of an installed program: its own, or `lib` next to `bin`.
fn beside(program: &Path) -> Vec<PathBuf> {
    let Some(folder) = program.parent() else { return Vec::new() };
    let mut folders = vec![folder.to_owned()];
    if let Some(prefix) = folder.parent() {
        folders.extend([prefix.join("lib/tidemill"), prefix.join("lib")]);
        folders.extend(of_packages(prefix));
    }
    folders
}

/// Folders of the packages of Python that have such libraries and programs, in the environment at `prefix`: for a command that pip
/// has installed there.
fn of_packages(prefix: &Path) -> Vec<PathBuf> {
    const WITHIN: [&str; 4] =
        ["onnxruntime/capi", "highspy", "imageio_ffmpeg/binaries", "opencv_python_headless.libs"];
    let versions = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
    let versions =
        versions.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("python3")));
    let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path()).collect();
    versions.sort();
    let packages =
        versions.iter().flat_map(|version| ["site-packages", "dist-packages"].map(|name| version.join(name)));
    packages
        .flat_map(|folder| WITHIN.map(|within| folder.join(within)))
        .filter(|folder| folder.is_dir())
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn an_installed_program_has_its_libraries_beside_it() {
        let folders = beside(Path::new("/opt/tidemill/bin/tidemill"));
        let expected = ["/opt/tidemill/bin", "/opt/tidemill/lib/tidemill", "/opt/tidemill/lib"];
        assert_eq!(folders, expected.map(PathBuf::from));
    }

    #[test]
    fn a_command_of_pip_finds_the_packages_of_its_environment() {
        let prefix = std::env::temp_dir().join(format!("tidemill-places-{}", std::process::id()));
        let package = prefix.join("lib/python3.12/site-packages/onnxruntime/capi");
        std::fs::create_dir_all(&package).unwrap();
        let folders = beside(&prefix.join("bin/tidemill"));
        std::fs::remove_dir_all(&prefix).unwrap();
        assert_eq!(folders.last(), Some(&package));
        assert_eq!(folders.len(), 4);
    }
}
