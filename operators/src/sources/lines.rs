//! Records of a text file, one after the other, with exact positions and bounded memory.
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::Path;
use tidemill_spec::units::Bytes;

/// Largest file that a folder source may be told to read: two of them fit into one batch.
pub(super) const MAX_FILE_LIMIT: u64 = 512 << 20;

/// The default of `max_file`.
pub(super) fn default_max_file() -> Bytes {
    Bytes(64 << 20)
}

/// Where a reader of lines is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Bytes before the next line.
    pub(super) offset: u64,
    /// Number of the next line, counted from 1.
    pub(super) line: u64,
}

/// What one call of [`Lines::next`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// A record; it starts at this line.
    Record(u64),
    /// A record that starts at this line and is longer than the limit; it was skipped.
    TooLong(u64),
    /// The end of the file.
    End,
}

/// Where in a record with quoted fields a reader is: only a quote at the beginning of a field opens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quoting {
    FieldStart,
    Plain,
    Quoted,
    /// Behind a quote inside quotes: the end of the field, or the first half of `""`.
    QuoteSeen,
}

impl Quoting {
    /// The state behind `part`.
    fn after(mut self, part: &[u8]) -> Self {
        if !matches!(self, Self::Quoted | Self::QuoteSeen) && !part.contains(&b'"') {
            return Self::Plain;
        }
        for byte in part {
            self = match (self, byte) {
                (Self::FieldStart | Self::QuoteSeen, b'"') => Self::Quoted,
                (Self::Quoted, b'"') => Self::QuoteSeen,
                (Self::Quoted, _) => Self::Quoted,
                (_, b',') => Self::FieldStart,
                _ => Self::Plain,
            };
        }
        self
    }
}

/// Reads records that end at a line break; with `quotes`, a line break within a quoted field does not count.
pub(super) struct Lines {
    reader: BufReader<File>,
    place: Place,
    limit: usize,
    quotes: bool,
}

impl Lines {
    /// Opens a file; a byte order mark at its beginning is skipped.
    pub(super) fn open(path: &Path, limit: usize, quotes: bool) -> io::Result<Self> {
        let file = File::open(path)?;
        // Opening a folder works on some systems, reading it does not.
        if file.metadata()?.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let mut lines = Self {
            reader: BufReader::with_capacity(64 << 10, file),
            place: Place { offset: 0, line: 1 },
            limit,
            quotes,
        };
        if lines.reader.fill_buf()?.starts_with(b"\xef\xbb\xbf") {
            lines.reader.consume(3);
            lines.place.offset = 3;
        }
        Ok(lines)
    }

    /// Where the next record starts.
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Goes to a place that `place` gave.
    pub(super) fn seek(&mut self, place: Place) -> io::Result<()> {
        self.reader.seek(SeekFrom::Start(place.offset))?;
        self.place = place;
        Ok(())
    }

    /// Puts the next record that is not blank into `record`, without its line break. A record longer than the limit
    /// is skipped up to the next line break, without being kept: inside quotes too, so that one stray quote does not
    /// swallow the rest of the file.
    pub(super) fn next(&mut self, record: &mut Vec<u8>) -> io::Result<Found> {
        loop {
            record.clear();
            let line = self.place.line;
            let (mut quoting, mut long, mut any) = (Quoting::FieldStart, false, false);
            loop {
                let buffer = match self.reader.fill_buf() {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    other => other?,
                };
                if buffer.is_empty() {
                    break;
                }
                any = true;
                let end = buffer.iter().position(|b| *b == b'\n');
                let part = &buffer[..end.unwrap_or(buffer.len())];
                if !long {
                    if self.quotes {
                        quoting = quoting.after(part);
                    }
                    long = record.len() + part.len() > self.limit;
                    if long {
                        record.clear();
                    } else {
                        record.extend_from_slice(part);
                    }
                }
                let used = part.len() + usize::from(end.is_some());
                self.reader.consume(used);
                self.place.offset += used as u64;
                if end.is_some() {
                    self.place.line += 1;
                    if long || quoting != Quoting::Quoted {
                        break;
                    }
                    record.push(b'\n');
                }
            }
            if long {
                return Ok(Found::TooLong(line));
            }
            if !any {
                return Ok(Found::End);
            }
            if record.last() == Some(&b'\r') {
                record.pop();
            }
            if !record.trim_ascii().is_empty() {
                return Ok(Found::Record(line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(text: &[u8], limit: usize, quotes: bool) -> Vec<(Found, Vec<u8>)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mut lines = Lines::open(file.path(), limit, quotes).unwrap();
        let mut result = Vec::new();
        let mut record = Vec::new();
        loop {
            let place = lines.place();
            let found = lines.next(&mut record).unwrap();
            // Reading the same place again gives the same record.
            let (before, after) = (record.clone(), lines.place());
            lines.seek(place).unwrap();
            assert_eq!((lines.next(&mut record).unwrap(), &record, lines.place()), (found, &before, after));
            if found == Found::End {
                return result;
            }
            result.push((found, record.clone()));
        }
    }

    #[test]
    fn blank_lines_long_lines_quotes() {
        assert_eq!(
            all(b"\xef\xbb\xbfa\r\n\n  \nbb\n12345\nlast", 4, false),
            [
                (Found::Record(1), b"a".to_vec()),
                (Found::Record(4), b"bb".to_vec()),
                (Found::TooLong(5), vec![]),
                (Found::Record(6), b"last".to_vec()),
            ]
        );
        assert_eq!(
            all(b"a,\"b\nc\"\nd\n", 100, true),
            [(Found::Record(1), b"a,\"b\nc\"".to_vec()), (Found::Record(3), b"d".to_vec())]
        );
        // Behind the beginning of a field a quote is a character like any other.
        assert_eq!(
            all(b"a,5\"\nb,\"\"\"\n\"\n", 100, true),
            [(Found::Record(1), b"a,5\"".to_vec()), (Found::Record(2), b"b,\"\"\"\n\"".to_vec())]
        );
        // A stray quote costs one record, not the file.
        assert_eq!(
            all(b"\"\n1234567\nx\n", 6, true),
            [(Found::TooLong(1), vec![]), (Found::Record(3), b"x".to_vec())]
        );
    }

    #[test]
    fn a_long_line_takes_no_memory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // A sparse file: 256 MiB of zeros in one line.
        file.as_file().set_len(256 << 20).unwrap();
        let mut lines = Lines::open(file.path(), 1 << 10, false).unwrap();
        let mut record = Vec::new();
        assert_eq!(lines.next(&mut record).unwrap(), Found::TooLong(1));
        assert!(record.capacity() < 1 << 20);
        assert_eq!(lines.next(&mut record).unwrap(), Found::End);
    }

    proptest! {
        #[test]
        fn any_bytes(text in prop::collection::vec(prop::sample::select(b"ab\"\n\r,".to_vec()), 0..200), limit in 1usize..20) {
            let found = all(&text, limit, false);
            let expected = text.split(|b| *b == b'\n').filter(|l| l.len() > limit || !l.trim_ascii().is_empty()).count();
            prop_assert_eq!(found.len(), expected);
            all(&text, limit, true);
        }
    }
}
