//! Files that are replaced as a whole.
use crate::{remove, rename, sync_all, sync_folder};
use std::fs::File;
use std::io;
use std::path::Path;

/// Replaces a file by what `write` writes. It has the old contents or the new ones, whatever happens, and the new ones once this returns. The
/// new contents are in a file `NAME.new` beside it until then, which is removed after an error.
///
/// ```
/// use std::io::Write;
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("map.json");
/// tidemill_disk::replace(&path, |file| file.write_all(b"{}"))?;
/// let failed = tidemill_disk::replace(&path, |_| Err(std::io::Error::other("no numbers")));
/// assert_eq!((failed.is_err(), std::fs::read(&path)?), (true, b"{}".to_vec()));
/// assert_eq!(std::fs::read_dir(folder.path())?.count(), 1);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Those of `write` and of the system.
pub fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let written = File::create(&new).and_then(|mut file| {
        write(&mut file)?;
        sync_all(&file)?;
        rename(&new, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        sync_folder(folder.unwrap_or(Path::new(".")))
    });
    written.inspect_err(|_| {
        // It is of no use, and may be what fills the disk.
        let _ = remove(&new);
    })
}
