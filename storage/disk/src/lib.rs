//! Operations that decide what survives a loss of power: syncing and renaming files. Code that promises durability uses
//! these functions, so that a test can watch a folder ([`Watch`]) and inspect the possible contents after a loss of
//! power at any moment. Without a watch they do the same as the standard library.
//!
//! Only synced data is sure to survive a loss of power: the bytes of a file by [`sync_data`] or [`sync_all`], its name
//! by [`sync_folder`].
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod replacing;
mod survivors;
mod watching;

pub use replacing::replace;
pub use survivors::{Image, Loss};
pub use watching::Watch;

use std::fs::File;
use std::io;
use std::path::Path;

/// A watched operation.
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
/// Errors of the system. Data that could not be synced must be written again, because the system forgets the failure.
pub fn sync_data(file: &File) -> io::Result<()> {
    watching::watched(Operation::SyncFile(file), || file.sync_data())
}

/// Waits until a file is on the disk with its metadata, except its name.
///
/// # Errors
/// As [`sync_data`].
pub fn sync_all(file: &File) -> io::Result<()> {
    watching::watched(Operation::SyncFile(file), || file.sync_all())
}

/// Waits until the names in a folder are on the disk.
///
/// # Errors
/// Errors of the system; some file systems do not support this.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    watching::watched(Operation::SyncFolder(path), || File::open(path)?.sync_all())
}

/// Renames a file, replacing one with the new name.
///
/// # Errors
/// Errors of the system.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    watching::watched(Operation::Rename(from, to), || std::fs::rename(from, to))
}

/// Removes a file.
///
/// # Errors
/// Errors of the system.
pub fn remove(path: &Path) -> io::Result<()> {
    watching::watched(Operation::Remove(path), || std::fs::remove_file(path))
}
