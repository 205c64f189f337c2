//! Where libraries and programs that are found at run time may be, and where Tidemill keeps what can be had again.
use std::path::{Path, PathBuf};

/// Folders for libraries and programs, the first that has one counts: `.tidemill/lib` of `directory`, of the current
/// directory and of the folders above each, `lib` of [`cache_folder`] and of the user's data
/// (`~/.local/share/tidemill/lib`), the folder of the program and the `lib` and `lib/tidemill` beside it,
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

/// Tidemill's folder for what can be had again: `$TIDEMILL_CACHE`, `$XDG_CACHE_HOME/tidemill` or
/// `~/.cache/tidemill`.
pub fn cache_folder() -> Option<PathBuf> {
    let given = std::env::var_os("TIDEMILL_CACHE").map(PathBuf::from).filter(|path| path.is_absolute());
    given.or_else(|| user_folder("XDG_CACHE_HOME", ".cache"))
}

/// What `$TIDEMILL_CACHE` says if [`cache_folder`] does not heed it: a path that is not absolute means another folder
/// in each place.
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

/// Where an installed program has its libraries: with itself, or in `lib` next to `bin`.
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
