//! The journalled stream: a pipe, standard input, a device, a socket.
use crate::format::Origin;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::sync::Arc;

/// Capacity to set for a pipe, where possible: the most that is taken with one wait for the disk.
#[cfg(target_os = "linux")]
const PIPE: usize = 1 << 20;

impl Origin {
    /// Origin of an open stream.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self { boot: boot(), device: found.dev(), inode: found.ino() })
    }
}

/// A stream to take bytes from.
#[derive(Clone)]
pub(crate) struct Stream {
    file: Arc<File>,
    is_pipe: bool,
    pub(crate) origin: Origin,
}

impl Stream {
    pub(crate) fn new(file: File) -> io::Result<Self> {
        let origin = Origin::of(&file)?;
        let is_pipe = cfg!(target_os = "linux") && file.metadata()?.file_type().is_fifo();
        #[cfg(target_os = "linux")]
        if is_pipe && rustix::pipe::fcntl_getpipe_size(&file).is_ok_and(|size| size < PIPE) {
            // The user may have too many large ones already; a small one works as well.
            let _ = rustix::pipe::fcntl_setpipe_size(&file, PIPE);
        }
        Ok(Self { file: Arc::new(file), is_pipe, origin })
    }

    /// Waits until there are bytes, or the end; `false`: not without waiting.
    pub(crate) fn wait(&self, forever: bool) -> io::Result<bool> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            let timeout = if forever { None } else { Some(&now) };
            match poll(&mut [PollFd::new(&*self.file, PollFlags::IN)], timeout) {
                Ok(ready) => return Ok(ready > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Bytes that the system can move, for a ready stream; none: it can only be read. 0: it has ended.
    pub(crate) fn movable(&self) -> io::Result<Option<usize>> {
        match self.is_pipe {
            true => {
                let waiting = rustix::io::ioctl_fionread(&*self.file)?;
                Ok(Some(usize::try_from(waiting).unwrap_or(usize::MAX)))
            }
            false => Ok(None),
        }
    }

    /// Reads the first waiting bytes without taking them; none: not possible with this stream.
    #[cfg(target_os = "linux")]
    pub(crate) fn peek(&self, bytes: usize) -> io::Result<Option<Vec<u8>>> {
        use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, tee};
        if !self.is_pipe {
            return Ok(None);
        }
        let (to_read, to_write) = pipe_with(PipeFlags::CLOEXEC)?;
        let copied = match tee(&*self.file, &to_write, bytes, SpliceFlags::NONBLOCK) {
            Ok(copied) => copied,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => 0,
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        drop(to_write);
        let mut found = Vec::with_capacity(copied);
        File::from(to_read).read_to_end(&mut found)?;
        Ok(Some(found))
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn peek(&self, _: usize) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Moves bytes into a file: at every moment each is either in the pipe or in the file, so that a killed process
    /// loses none. Returns their number; 0: not supported by this file system.
    #[cfg(target_os = "linux")]
    pub(crate) fn move_into(&self, file: &File, at: u64, bytes: usize) -> io::Result<usize> {
        use rustix::pipe::{SpliceFlags, splice};
        let mut to = at;
        let mut moved = 0;
        while moved < bytes {
            match splice(&*self.file, None, file, Some(&mut to), bytes - moved, SpliceFlags::empty()) {
                Ok(0) => break,
                Ok(more) => moved += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) if moved == 0 => return Ok(0),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(moved)
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn move_into(&self, _: &File, _: u64, _: usize) -> io::Result<usize> {
        Ok(0)
    }

    /// Reads some bytes; 0 only at the end.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.wait(true)?;
            match (&*self.file).read(buffer) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                other => return other,
            }
        }
    }
}

/// Identifies the boot of the machine; 0: not known.
pub(crate) fn boot() -> u128 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0)
}

/// Fills `buffer` from an offset in a file.
pub(crate) fn read_exact_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<()> {
    file.read_exact_at(buffer, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::OwnedFd;

    #[test]
    fn what_is_moved_is_in_the_file_and_no_more_in_the_pipe() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let stream = Stream::new(File::from(OwnedFd::from(reader))).unwrap();
        assert!(!stream.wait(false).unwrap());
        writer.write_all(b"one\ntwo\n").unwrap();
        assert!(stream.wait(false).unwrap());
        let file = tempfile::tempfile().unwrap();
        if let Some(waiting) = stream.movable().unwrap() {
            assert_eq!(waiting, 8);
            assert_eq!(stream.move_into(&file, 3, 4).unwrap(), 4);
            let mut found = [0; 4];
            read_exact_at(&file, &mut found, 3).unwrap();
            assert_eq!(&found, b"one\n");
        }
        drop(writer);
        let mut rest = [0; 16];
        let read = stream.read(&mut rest).unwrap();
        assert!(rest[..read].ends_with(b"two\n"));
        assert!(stream.wait(false).unwrap());
        assert!(matches!(stream.movable().unwrap(), None | Some(0)));
        assert_eq!(stream.read(&mut rest).unwrap(), 0);
    }

    #[test]
    fn two_pipes_are_two_streams() {
        let of = || Stream::new(File::from(OwnedFd::from(std::io::pipe().unwrap().0))).unwrap();
        let (one, other) = (of(), of());
        assert_ne!(one.origin, other.origin);
        assert_eq!(one.origin.boot, other.origin.boot);
    }
}
