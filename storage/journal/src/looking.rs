//! Journals that another process may have open.
use crate::again;
use crate::error::JournalError;
use crate::format::Origin;
use crate::journal::{Extent, Journal};
use crate::segments;
use std::fs::File;
use std::path::Path;

impl Journal {
    /// Reads the extent of the journal in a folder, also while a process has it open; none where there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn look(folder: &Path) -> Result<Option<Extent>, JournalError> {
        let listed = segments::list(folder)?;
        let (Some(first), Some(last)) = (listed.first(), listed.last()) else { return Ok(None) };
        let (_, found) = segments::read(folder, last.first)?;
        Ok(Some(Extent {
            first: first.first,
            end: found.end + found.torn.len() as u64,
            records: found.sequence,
            segments: listed.len(),
            bytes: listed.iter().map(|segment| segment.bytes).sum(),
        }))
    }

    /// Returns the bytes of the files with data from an offset of the stream on, also while a process has the journal
    /// open.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn bytes_from(folder: &Path, from: u64) -> Result<u64, JournalError> {
        let listed = segments::list(folder)?;
        let before = listed.windows(2).take_while(|pair| pair[1].first <= from).count();
        Ok(listed[before..].iter().map(|segment| segment.bytes).sum())
    }

    /// Returns the end of the last complete line, given the extent from [`Journal::look`]: another stream continues
    /// there, and only the one with the rest of that line continues at the end.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn end_of_lines(folder: &Path, extent: &Extent) -> Result<u64, JournalError> {
        let mut limit = extent.end;
        for segment in segments::list(folder)?.iter().rev() {
            let (bytes, found) = segments::read(folder, segment.first)?;
            if let Some(end) = found.end_of_lines(&bytes, limit) {
                return Ok(end);
            }
            limit = limit.min(segment.first);
        }
        Ok(limit)
    }

    /// Whether the bytes of the journal in a folder come from this stream, as far as the system identifies it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn is_of(folder: &Path, stream: &File) -> Result<bool, JournalError> {
        let listed = segments::list(folder)?;
        let Some(last) = listed.last() else { return Ok(false) };
        let (_, found) = segments::read(folder, last.first)?;
        Ok(Origin::of(stream).is_ok_and(|origin| origin == found.head.origin))
    }

    /// Deletes the first segments of the journal in a folder, as [`Journal::release`], for another process that has it
    /// open.
    ///
    /// # Errors
    /// A segment cannot be deleted.
    pub fn release_in(folder: &Path, before: u64) -> Result<(), JournalError> {
        let listed = segments::list(folder)?;
        // The one noted as the last may have a successor already.
        let last = segments::read_last(folder)?.unwrap_or(u64::MAX);
        for pair in listed.windows(2).take_while(|pair| pair[1].first <= before && pair[0].first < last) {
            if pair[0].first == 0 {
                again::keep_beginning(folder);
            }
            segments::remove(&segments::path_of(folder, pair[0].first))?;
        }
        Ok(())
    }
}
