//! A file that others write to while it is read, and its identity after it was renamed.
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirEntryExt, FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes at the beginning that belong to the identity of a file: file systems use the number of a deleted file again.
const HEAD: usize = 256;
/// Bytes per read in the search of the first line.
const CHUNK: usize = 64 << 10;

/// A file, and where it is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    /// Bytes at the beginning that are known, and their hash.
    known: usize,
    hash: u64,
}

impl Identity {
    /// Bytes at the beginning that are known.
    pub(super) fn known(&self) -> usize {
        self.known
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { device, inode, known, hash } = self;
        write!(f, "{device}-{inode}-{known}-{hash:016x}")
    }
}

impl FromStr for Identity {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split('-');
        let mut next = || parts.next().ok_or(());
        let number = |text: &str| text.parse().map_err(drop);
        let (device, inode) = (number(next()?)?, number(next()?)?);
        let known = next()?.parse().map_err(drop)?;
        let hash = u64::from_str_radix(next()?, 16).map_err(drop)?;
        parts.next().is_none().then_some(Self { device, inode, known, hash }).ok_or(())
    }
}

/// See the module.
pub(super) struct Followed {
    file: File,
    device: u64,
    inode: u64,
    /// End of what was read so far.
    read: AtomicU64,
    /// Nobody writes to it any more: its end is the end.
    is_finished: AtomicBool,
}

impl Followed {
    /// Opens the file at a path.
    ///
    /// # Errors
    /// There is none, it cannot be read, or it is no regular file.
    pub(super) fn open(path: &Path) -> io::Result<Arc<Self>> {
        check(&std::fs::metadata(path)?)?;
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        check(&metadata)?;
        let (device, inode) = (metadata.dev(), metadata.ino());
        Ok(Arc::new(Self {
            file,
            device,
            inode,
            read: AtomicU64::new(0),
            is_finished: AtomicBool::new(false),
        }))
    }

    /// Finds a file of which `offset` bytes were read: at `path`, or under another name in that folder.
    pub(super) fn find(path: &Path, identity: &Identity, offset: u64) -> Option<Arc<Self>> {
        let is_it = |path: &Path| {
            let file = Self::open(path).ok()?;
            let length = file.length().ok()?;
            let head = file.head().ok()?;
            let is_same = file.identity(head.get(..identity.known)?, offset) == *identity;
            (is_same && length >= offset).then_some(file)
        };
        if let Some(file) = is_it(path) {
            return Some(file);
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let entries = std::fs::read_dir(folder.unwrap_or(Path::new("."))).ok()?;
        entries.flatten().filter(|entry| entry.ino() == identity.inode).find_map(|entry| is_it(&entry.path()))
    }

    /// The identity of this file, with this beginning, if `offset` bytes of it were read.
    pub(super) fn identity(&self, head: &[u8], offset: u64) -> Identity {
        let known = head.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        Identity { device: self.device, inode: self.inode, known, hash: xxh3_64(&head[..known]) }
    }

    /// The first bytes.
    pub(super) fn head(&self) -> io::Result<Vec<u8>> {
        let mut head = vec![0; HEAD];
        let mut filled = 0;
        while filled < HEAD {
            match self.file.read_at(&mut head[filled..], filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        head.truncate(filled);
        Ok(head)
    }

    /// Bytes at present.
    pub(super) fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// End of what was read so far.
    pub(super) fn read(&self) -> u64 {
        self.read.load(Ordering::Acquire)
    }

    /// The length of another file at this path, if there is one.
    pub(super) fn other_at(&self, path: &Path) -> Option<u64> {
        let found = std::fs::metadata(path).ok()?;
        ((found.dev(), found.ino()) != (self.device, self.inode)).then_some(found.len())
    }

    /// Makes its end the end: a line without a line break is a whole one.
    pub(super) fn finish(&self) {
        self.is_finished.store(true, Ordering::Release);
    }

    pub(super) fn is_finished(&self) -> bool {
        self.is_finished.load(Ordering::Acquire)
    }

    /// Whether it has a whole line that is not empty.
    pub(super) fn has_line(&self) -> io::Result<bool> {
        let (mut offset, mut is_begun) = (0, false);
        let mut chunk = vec![0; CHUNK];
        loop {
            match self.file.read_at(&mut chunk, offset) {
                Ok(0) => return Ok(false),
                Ok(read) => {
                    for byte in &chunk[..read] {
                        match byte {
                            b'\n' if is_begun => return Ok(true),
                            byte => is_begun |= !byte.is_ascii_whitespace(),
                        }
                    }
                    offset += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads from an offset on; fails with [`ErrorKind::WouldBlock`] where nothing is there yet.
    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        // Before reading: what was written until then is read.
        let is_finished = self.is_finished();
        let read = self.file.read_at(buffer, offset)?;
        self.read.store(offset + read as u64, Ordering::Release);
        match read {
            0 if !is_finished && !buffer.is_empty() => Err(ErrorKind::WouldBlock.into()),
            read => Ok(read),
        }
    }
}

/// Refuses what does not grow as a file does.
fn check(found: &Metadata) -> io::Result<()> {
    let kind = found.file_type();
    if kind.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if kind.is_fifo() || kind.is_char_device() || kind.is_socket() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is a stream, which is read once"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_under_another_name_and_not_if_it_is_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, renamed) = (folder.path().join("a.log"), folder.path().join("a.log.1"));
        std::fs::write(&path, "one\ntwo\n").unwrap();
        let file = Followed::open(&path).unwrap();
        let identity = file.identity(&file.head().unwrap(), 4);
        assert_eq!(identity.to_string().parse(), Ok(identity));
        std::fs::rename(&path, &renamed).unwrap();
        std::fs::write(&path, "one\n").unwrap();
        let found = Followed::find(&path, &identity, 4).unwrap();
        assert_eq!((found.other_at(&renamed), found.other_at(&path)), (None, Some(4)));
        assert!(Followed::find(&path, &identity, 9).is_none(), "it is shorter");
        std::fs::write(&renamed, "ONE\ntwo\n").unwrap();
        assert!(Followed::find(&path, &identity, 4).is_none(), "it begins differently");
        for wrong in ["", "1-2-3", "1-2-3-4-5", "x-2-3-4"] {
            assert_eq!(wrong.parse::<Identity>(), Err(()));
        }
    }

    #[test]
    fn a_folder_and_a_device_are_refused() {
        assert_eq!(Followed::open(Path::new("/tmp")).err().unwrap().kind(), ErrorKind::IsADirectory);
        assert_eq!(Followed::open(Path::new("/dev/null")).err().unwrap().kind(), ErrorKind::InvalidInput);
    }
}
