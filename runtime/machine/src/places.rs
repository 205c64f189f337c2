//! Folders of libraries and programs that are found at run time, and of Tidemill's cache.
use std::path::{Path, PathBuf};

/// Returns the folders for libraries and programs, by priority: `.tidemill/lib` of `directory`, of the current
/// directory and of the folders above each, `lib` of [`cache_folder`] and of the user's data
/// (`~/.local/share/tidemill/lib`), the folder of the program and the `lib` and `lib/tidemill` next to it,
/// `LD_LIBRARY_PATH`.
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
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_program_has_its_libraries_beside_it() {
        let folders = beside(Path::new("/opt/tidemill/bin/tidemill"));
        let expected = ["/opt/tidemill/bin", "/opt/tidemill/lib/tidemill", "/opt/tidemill/lib"];
        assert_eq!(folders, expected.map(PathBuf::from));
    }
}
