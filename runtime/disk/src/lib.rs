//! What decides what outlasts a loss of power: waiting for the disk, and changing the names of files. Whoever promises that something
//! survives does it through these functions, so that a test can watch a folder ([`Watch`]) and look at what a loss of power may leave
//! of it at any moment. Nobody watches elsewhere, and they do what the functions of the standard library do.
//!
//! Nothing but what was synced is sure to outlast a loss of power: the bytes of a file by [`sync_data`] or [`sync_all`], its name by
//! [`sync_folder`].
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod survivors;
mod watching;

pub use survivors::{Image, Loss};
pub use watching::Watch;

use std::fs::File;
use std::io;
use std::path::Path;

/// What is done.
#[derive(Clone, Copy)]
enum Operation<'a> {
    SyncFile(&'a File),
    SyncFolder(&'a Path),
    Rename(&'a Path, &'a Path),
    Remove(&'a Path),
}

/// Waits until the bytes of a file are on the disk, with its length.
///
/// # Errors
/// Of the system. What could not be synced must be written again, for the system forgets the failure.
pub fn sync_data(file: &File) -> io::Result<()> {
    watching::watched(Operation::SyncFile(file), || file.sync_data())
}

/// Waits until a file is on the disk with all that is known of it, but for its name.
///
/// # Errors
/// As [`sync_data`].
pub fn sync_all(file: &File) -> io::Result<()> {
    watching::watched(Operation::SyncFile(file), || file.sync_all())
}

/// Waits until the names in a folder are on the disk.
///
/// # Errors
/// Of the system; some file systems cannot do this.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    watching::watched(Operation::SyncFolder(path), || File::open(path)?.sync_all())
}

/// Gives a file another name, in place of a file that has it.
///
/// # Errors
/// Of the system.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    watching::watched(Operation::Rename(from, to), || std::fs::rename(from, to))
}

/// Removes a file.
///
/// # Errors
/// Of the system.
pub fn remove(path: &Path) -> io::Result<()> {
    watching::watched(Operation::Remove(path), || std::fs::remove_file(path))
}
