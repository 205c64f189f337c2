//! The files of the repository, as git sees them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository's root folder.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the repository")
}

/// Every file that is in git or could be added to it, relative to the root, in order of its name.
///
/// New files count, so that a rule is broken before the commit and not after it.
pub(crate) fn files() -> Vec<PathBuf> {
    let output = Command::new("git")
        // A checkout may belong to another user than the tester, in a container for instance.
        .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).expect("file names are UTF-8");
    let mut files: Vec<PathBuf> = listed
        .split_terminator('\0')
        .map(PathBuf::from)
        .filter(|file| root().join(file).is_file()) // deleted, but not yet committed
        .collect();
    files.sort();
    files.dedup();
    assert!(files.len() > 10, "git lists the repository's files");
    files
}

/// The files with one of these extensions.
pub(crate) fn files_with_extension(extensions: &[&str]) -> Vec<PathBuf> {
    files()
        .into_iter()
        .filter(|file| file.extension().and_then(|e| e.to_str()).is_some_and(|e| extensions.contains(&e)))
        .collect()
}

/// The content of a text file; `None` for a binary one.
pub(crate) fn text(file: &Path) -> Option<String> {
    let bytes =
        std::fs::read(root().join(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    if bytes.contains(&0) { None } else { String::from_utf8(bytes).ok() }
}
