//! Search for libraries that are loaded at run time.
use std::path::{Path, PathBuf};
use tidemill_machine::places::folders_of_programs_and_libraries;
pub use tidemill_machine::places::{cache_folder, unheeded_cache_folder};

/// A library by the names of its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Library {
    /// Prefix of its file names: `libhighs` for `libhighs.so.1.15.1`.
    pub stem: &'static str,
    /// Environment variables that name the library file, strongest first.
    pub variables: &'static [&'static str],
}

/// ONNX Runtime, which runs models.
pub const ONNXRUNTIME: Library =
    Library { stem: "libonnxruntime", variables: &["TIDEMILL_ONNXRUNTIME", "ORT_DYLIB_PATH"] };
/// HiGHS, which solves the programs of the exact planner.
pub const HIGHS: Library = Library { stem: "libhighs", variables: &["TIDEMILL_HIGHS"] };

/// Result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// A variable names this file; nothing else may be used.
    Named {
        /// The variable.
        variable: &'static str,
        /// The file it names, which may be missing.
        path: PathBuf,
    },
    /// Files that exist, best first; may be empty.
    Searched {
        /// The files.
        candidates: Vec<PathBuf>,
        /// The folders searched.
        folders: Vec<PathBuf>,
    },
}

/// Searches a library: its variables, `.tidemill/lib` of `directory`, of the current directory and of the folders above
/// each, `lib` of [`cache_folder`] and of the user's data (`~/.local/share/tidemill/lib`), the folder of the program and
/// the `lib` and `lib/tidemill` beside it, `LD_LIBRARY_PATH`, and the system's folders. In a folder, newer versions come
/// first.
pub fn find(library: &Library, directory: &Path) -> Found {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    for name in library.variables {
        if let Some(path) = variable(name) {
            return Found::Named { variable: name, path: path.into() };
        }
    }
    let mut folders = folders_of_programs_and_libraries(directory);
    for folder in ["/usr/local/lib", "/usr/lib", "/usr/lib64"] {
        folders.push(folder.into());
        folders.push(format!("{folder}/{}-linux-gnu", std::env::consts::ARCH).into());
    }
    search(library, folders)
}

fn search(library: &Library, folders: Vec<PathBuf>) -> Found {
    let mut seen = std::collections::HashSet::new();
    let folders: Vec<PathBuf> = folders.into_iter().filter(|folder| seen.insert(folder.clone())).collect();
    let candidates = folders.iter().flat_map(|folder| libraries(library, folder)).collect();
    Found::Searched { candidates, folders }
}

/// The library files of a folder, newest version first.
fn libraries(library: &Library, folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<(Vec<u64>, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let version = version_of(library.stem, name.to_str()?)?;
            entry.path().is_file().then(|| (version, entry.path()))
        })
        .collect();
    files.sort_by(|a, b| b.cmp(a));
    files.into_iter().map(|(_, path)| path).collect()
}

/// The version in a library's file name: `libonnxruntime.so.1.31.1` is `[1, 31, 1]`, without one `[]`;
/// `None` for other files.
fn version_of(stem: &str, name: &str) -> Option<Vec<u64>> {
    let rest = name.strip_prefix(stem)?;
    if rest == ".dylib" {
        return Some(Vec::new());
    }
    let rest = rest.strip_prefix(".so")?;
    if rest.is_empty() {
        return Some(Vec::new());
    }
    rest.strip_prefix('.')?.split('.').map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_libraries_come_first() {
        let folder = tempfile::tempdir().unwrap();
        for name in
            ["libonnxruntime.so.1.9.0", "libonnxruntime.so", "libonnxruntime.so.1.31.1", "libother.so"]
        {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::write(folder.path().join("libonnxruntime.so.1.31.1.partial"), "").unwrap();
        let names: Vec<String> = libraries(&ONNXRUNTIME, folder.path())
            .iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["libonnxruntime.so.1.31.1", "libonnxruntime.so.1.9.0", "libonnxruntime.so"]);
        assert!(libraries(&HIGHS, Path::new("/no/such/folder")).is_empty());
    }

    #[test]
    fn folders_above_are_searched() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join(".tidemill/lib/libonnxruntime.so.1.31.1");
        std::fs::create_dir_all(library.parent().unwrap()).unwrap();
        std::fs::write(&library, "").unwrap();
        let deep = folder.path().join("a/b");
        let folders = deep.ancestors().map(|f| f.join(".tidemill/lib")).collect();
        let Found::Searched { candidates, .. } = search(&ONNXRUNTIME, folders) else {
            panic!("no variable was read")
        };
        assert_eq!(candidates.first(), Some(&library));
    }
}
