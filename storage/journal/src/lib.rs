//! Keeps data read from a stream (standard input, a pipe, a device) on disk, so that another process can read it again.
//!
//! A [`Journal`] is a folder with segments of some MiB, which hold the bytes of the stream in records with numbers and
//! checksums. A reader has a [`Cursor`]: it returns the journal's data, and beyond that the stream's, which is in the
//! journal and on the disk (fsync) before any reader gets it. All bytes waiting in a pipe become one record, so a slow
//! disk makes records large, not many. Data no longer needed is [released](Journal::release), a segment at a time; a
//! full journal takes nothing more from the stream.
//!
//! # Durability
//!
//! * The end of a process (`kill -9`): everything survives. The system moves the bytes of a pipe into the file
//!   (`splice`), so at every moment each of them is in the pipe or in the journal. Of a device or a socket, up to 64
//!   KiB can be lost between two system calls, none of which a reader has seen.
//! * The end of the machine: all data given to readers survives. Data taken from the stream and not yet on the disk is
//!   lost, as is the content of a pipe.
//!
//! An incomplete record is cut off, unless the machine has run since: then its bytes are the stream's. A file only
//! grows until the next one follows it, so a killed process leaves the beginning of a record at its end, and nothing
//! else: any other finding is damage, and the journal is rejected. Three cases are not detectable: a file that was cut
//! off (after the data of a checkpoint; before that the bytes are missed), changed bytes in an incomplete record, which
//! has no checksum yet, and, once the machine has stopped, a last record with zeros where the disk may not have
//! written. [Marks](Journal::mark) of readers are on the disk before they count. Half a line at the end waits for its
//! rest if the stream is still the same one; else it is cut off, too.
//!
//! ```
//! use std::io::Write;
//! use std::os::fd::OwnedFd;
//! use tidemill_journal::{Cursor, Journal, LEAST_SIZE};
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("events");
//! let (reader, mut writer) = std::io::pipe()?;
//! writer.write_all(b"one\ntwo\n")?;
//! let journal = Journal::open(&path, 7, LEAST_SIZE)?;
//! journal.attach(|| Ok(OwnedFd::from(reader).into()))?;
//! let (mut cursor, mut bytes) = (Cursor::at(0), [0; 100]);
//! assert_eq!(cursor.read(&journal, &mut bytes)?, 8);
//! drop(journal); // or the process is killed
//!
//! let journal = Journal::open(&path, 7, LEAST_SIZE)?;
//! let mut cursor = Cursor::at(4);
//! assert_eq!(cursor.read(&journal, &mut bytes)?, 4);
//! assert_eq!(bytes[..4], *b"two\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod again;
mod cursor;
mod error;
mod format;
#[doc(hidden)]
pub mod fuzz_entry;
mod journal;
mod looking;
mod marks;
mod segments;
mod stream;

#[cfg(test)]
mod ended_process_tests;
#[cfg(test)]
mod power_loss_tests;
#[cfg(test)]
mod recovery_tests;
#[cfg(test)]
mod segment_loss_tests;

pub use cursor::Cursor;
pub use error::{JournalError, is_of_again, is_of_loss};
pub use journal::{CutLine, Extent, Journal, LEAST_SIZE, SEGMENT};
