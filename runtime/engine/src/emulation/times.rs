//! Times until which wires and devices are busy, for all processes of a run that use them: a file in memory that each opens by
//! itself.
//!
//! Using one takes the lock of the file; a killed process releases its lock. The file has no name, so it vanishes when
//! its creator has ended and no other process has it open.
use crate::clock::Nanoseconds;
use rustix::fs::{FlockOperation, MemfdFlags, flock, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

const BYTES: usize = size_of::<Nanoseconds>();

/// A time for each wire, then one for each device.
#[derive(Debug)]
pub(super) struct SharedTimes(Mutex<File>);

impl SharedTimes {
    /// Creates the times of idle wires.
    ///
    /// # Errors
    /// When the system has no descriptor or memory left.
    pub(super) fn create(wires: usize) -> io::Result<Self> {
        let file = memfd_create("tidemill-wires", MemfdFlags::CLOEXEC)?;
        for wire in 0..wires {
            write(&file, wire, Nanoseconds::MIN)?;
        }
        Ok(Self(Mutex::new(file.into())))
    }

    /// Path for other processes of this machine, valid while this one lives.
    pub(super) fn path(&self) -> PathBuf {
        let descriptor = self.lock().as_raw_fd();
        PathBuf::from(format!("/proc/{}/fd/{descriptor}", std::process::id()))
    }

    /// Opens the times that another process, or this one, has made.
    ///
    /// # Errors
    /// That process is gone, is another user's, or on another machine.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(Mutex::new(OpenOptions::new().read(true).write(true).open(path)?)))
    }

    fn lock(&self) -> MutexGuard<'_, File> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the time of a wire exclusively.
    ///
    /// # Errors
    /// There is no such wire.
    pub(super) fn change(
        &self,
        wire: usize,
        change: impl FnOnce(Nanoseconds) -> Nanoseconds,
    ) -> io::Result<Nanoseconds> {
        // Between the threads of this process, which share the lock of the file.
        let file = self.lock();
        flock_again(&file, FlockOperation::LockExclusive)?;
        let changed = read(&file, wire).and_then(|time| {
            let time = change(time);
            write(&*file, wire, time).map(|()| time)
        });
        flock_again(&file, FlockOperation::Unlock)?;
        changed
    }
}

fn flock_again(file: &File, operation: FlockOperation) -> io::Result<()> {
    loop {
        match flock(file, operation) {
            Err(Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
}

fn place(wire: usize) -> u64 {
    (wire * BYTES) as u64
}

fn read(file: &File, wire: usize) -> io::Result<Nanoseconds> {
    let mut bytes = [0; BYTES];
    match pread(file, &mut bytes, place(wire))? {
        BYTES => Ok(Nanoseconds::from_ne_bytes(bytes)),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("there is no wire {wire}"))),
    }
}

fn write(file: impl std::os::fd::AsFd, wire: usize, time: Nanoseconds) -> io::Result<()> {
    match pwrite(file, &time.to_ne_bytes(), place(wire))? {
        BYTES => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_who_open_it_change_the_same_times_one_after_another() {
        let made = SharedTimes::create(3).expect("memory");
        assert_eq!(made.change(1, |time| time).expect("is there"), Nanoseconds::MIN);
        made.change(1, |_| 0).expect("is there");
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let opened = SharedTimes::open(&made.path()).expect("this process lives");
                std::thread::spawn(move || {
                    for _ in 0..500 {
                        opened.change(1, |time| time + 1).expect("is there");
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(made.change(1, |time| time).expect("is there"), 2000);
        assert_eq!(made.change(2, |time| time).expect("is there"), Nanoseconds::MIN);
        assert!(made.change(3, |time| time).is_err());
    }

    #[test]
    fn nothing_is_left_of_it() {
        let path = SharedTimes::create(1).expect("memory").path();
        assert!(SharedTimes::open(&path).is_err(), "{}", path.display());
    }
}
