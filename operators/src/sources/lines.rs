//! Records of a text, one after the other, with exact positions and bounded memory.
use super::input::{Input, Origin};
use memchr::memchr;
use std::io::{self, ErrorKind};
use std::ops::Range;
use tidemill_spec::units::Bytes;

/// Limit of the largest file of a folder source: two such files fit into one batch.
pub(super) const MAX_FILE_LIMIT: u64 = 512 << 20;
/// Bytes per read.
const CHUNK: usize = 64 << 10;
/// Bytes without a line break after which the search ends.
const UNBROKEN: u64 = 1 << 30;

/// The default of `max_file`.
pub(super) fn default_max_file() -> Bytes {
    Bytes(64 << 20)
}

/// Position of a reader of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Bytes before the next line.
    pub(super) offset: u64,
    /// Number of the next line, counted from 1.
    pub(super) line: u64,
    /// A quote that is open at a line break before this offset is known not to be closed; 0: unknown.
    pub(super) open_until: u64,
}

/// Result of [`Lines::next`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextLine {
    /// A record; it starts at this line.
    Record(u64),
    /// A record that starts at this line and is longer than the limit; it was skipped.
    TooLong(u64),
    /// The line `line` alone, because the quoted field that opens in line `quote` is not closed; reading continues with the
    /// line after `line`.
    OpenQuote {
        /// The line.
        line: u64,
        /// Line of the quote.
        quote: u64,
    },
    /// The end.
    End,
}

/// State within a record with quoted fields: only a quote at the start of a field opens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    FieldStart,
    Plain,
    Quoted,
    /// After a quote inside quotes: the end of the field, or the first half of `""`.
    QuoteSeen,
}

/// State of the quotes of a record.
#[derive(Debug, Clone, Copy)]
struct Quoting {
    state: State,
    /// Line of the last opening quote.
    opened: u64,
}

impl Quoting {
    /// Processes a part of a line. An error is the number of bytes before an invalid one: text after the quote that would
    /// close a multi-line field. Such a quote opens another field, and the first one was a stray.
    fn take(&mut self, part: &[u8], line: u64) -> Result<(), usize> {
        if !matches!(self.state, State::Quoted | State::QuoteSeen) && memchr(b'"', part).is_none() {
            match part.last() {
                Some(b',') => self.state = State::FieldStart,
                Some(_) => self.state = State::Plain,
                None => {}
            }
            return Ok(());
        }
        for (at, byte) in part.iter().enumerate() {
            self.state = match (self.state, byte) {
                (State::FieldStart, b'"') => {
                    self.opened = line;
                    State::Quoted
                }
                (State::QuoteSeen, b'"') => State::Quoted,
                (State::Quoted, b'"') => State::QuoteSeen,
                (State::Quoted, _) => State::Quoted,
                (_, b',') => State::FieldStart,
                (State::QuoteSeen, byte) if self.opened < line && !byte.is_ascii_whitespace() => {
                    return Err(at);
                }
                _ => State::Plain,
            };
        }
        Ok(())
    }
}

/// A record to return to.
#[derive(Debug, Clone)]
struct Held {
    record: Range<usize>,
    begin: usize,
    place: Place,
    before: Place,
}

/// Reads records that end at a line break; with `quotes`, a line break within a quoted field does not count.
///
/// A quote that opens a field may remain open: because the text ends, `limit` bytes later, or before text that cannot
/// follow a closing quote. Then its record is unusable. Only its first line is given up: the lines after it are read again
/// as if it were not there.
pub(super) struct Lines {
    input: Input,
    buffer: Vec<u8>,
    /// Bytes of the buffer in use.
    filled: usize,
    /// Offset in the buffer of the next record.
    begin: usize,
    record: Range<usize>,
    place: Place,
    /// Start of the last record found.
    before: Place,
    held: Option<Held>,
    may_wait: bool,
    ended: bool,
    /// Permanent failure, returned by every later call.
    failed: Option<(ErrorKind, String)>,
    limit: usize,
    quotes: bool,
    chunk: usize,
    unbroken: u64,
}

impl Lines {
    /// Opens the input; skips a byte order mark at its start.
    pub(super) fn open(origin: &Origin, limit: usize, quotes: bool) -> io::Result<Self> {
        Self::with_chunks(origin, limit, quotes, CHUNK)
    }

    fn with_chunks(origin: &Origin, limit: usize, quotes: bool, chunk: usize) -> io::Result<Self> {
        let mut lines = Self {
            input: origin.open()?,
            buffer: Vec::new(),
            filled: 0,
            begin: 0,
            record: 0..0,
            place: Place { offset: 0, line: 1, open_until: 0 },
            before: Place { offset: 0, line: 1, open_until: 0 },
            held: None,
            may_wait: true,
            ended: false,
            failed: None,
            limit,
            quotes,
            chunk,
            unbroken: UNBROKEN,
        };
        let mark = b"\xef\xbb\xbf";
        if !lines.input.has_beginning() {
            return Ok(lines);
        }
        while lines.filled < mark.len() && mark.starts_with(&lines.buffer[..lines.filled]) && lines.fill()? {}
        if lines.buffer[..lines.filled].starts_with(mark) {
            lines.begin = mark.len();
            lines.place.offset = mark.len() as u64;
        }
        Ok(lines)
    }

    /// Keeps the bytes before the next record, which every later open needs.
    pub(super) fn keep_beginning(&self) -> io::Result<()> {
        self.input.keep_beginning(self.place.offset)
    }

    /// Start of the next record.
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// The last record found, or the line with an open quote, without its line break.
    pub(super) fn record(&self) -> &[u8] {
        &self.buffer[self.record.clone()]
    }

    /// Seeks to a place that `place` returned.
    pub(super) fn seek(&mut self, place: Place) -> io::Result<()> {
        // The data read ahead from a stream is all that exists of it.
        let ahead = (self.filled - self.begin) as u64;
        if !(self.place.offset..=self.place.offset + ahead).contains(&place.offset) {
            self.input.seek(place.offset)?;
            (self.filled, self.begin) = (0, 0);
            (self.ended, self.failed) = (false, None);
        } else {
            self.begin += (place.offset - self.place.offset) as usize;
        }
        (self.record, self.held, self.place) = (0..0, None, place);
        Ok(())
    }

    /// Holds the last record found, to return with [`Lines::release`]. Until then records that are too long are reported
    /// but not skipped.
    pub(super) fn hold(&mut self) {
        let (record, begin) = (self.record.clone(), self.begin);
        self.held = Some(Held { record, begin, place: self.place, before: self.before });
    }

    /// Bytes read beyond the record that is held.
    pub(super) fn ahead(&self) -> usize {
        self.held.as_ref().map_or(0, |held| self.begin - held.begin)
    }

    /// Returns to the record that was held.
    pub(super) fn release(&mut self) {
        if let Some(held) = self.held.take() {
            (self.record, self.begin) = (held.record, held.begin);
            (self.place, self.before) = (held.place, held.before);
        }
    }

    /// Sets whether [`Lines::next`] may wait for the program that writes the input. If it may not and would have to, it
    /// fails with [`ErrorKind::WouldBlock`]; the next call starts with that record again.
    pub(super) fn allow_waiting(&mut self, may_wait: bool) {
        self.may_wait = may_wait;
    }

    /// Puts the last record back, to be found again.
    pub(super) fn put_back(&mut self) {
        (self.begin, self.place) = (self.record.start, self.before);
    }

    /// Reads more into the buffer; `false` at the end.
    fn fill(&mut self) -> io::Result<bool> {
        if let Some((kind, text)) = &self.failed {
            return Err(io::Error::new(*kind, text.clone()));
        }
        if self.ended {
            return Ok(false);
        }
        if !self.may_wait && !self.input.is_ready() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let unused = self.held.as_ref().map_or(self.begin, |held| held.record.start);
        if unused > 0 {
            self.buffer.copy_within(unused..self.filled, 0);
            self.filled -= unused;
            self.begin -= unused;
            self.record = 0..0;
            if let Some(held) = &mut self.held {
                held.begin -= unused;
                held.record = 0..held.record.end - unused;
            }
        }
        if self.buffer.len() < self.filled + self.chunk {
            self.buffer.resize(self.filled + self.chunk, 0);
        }
        match self.input.read(&mut self.buffer[self.filled..self.filled + self.chunk]) {
            Ok(read) => {
                self.filled += read;
                self.ended = read == 0;
                Ok(read > 0)
            }
            // A file that grows may have more later.
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(error),
            Err(error) => {
                self.failed = Some((error.kind(), error.to_string()));
                Err(error)
            }
        }
    }

    /// Removes `length` bytes with `breaks` line breaks from the buffer.
    fn consume(&mut self, length: usize, breaks: u64) {
        self.begin += length;
        self.place.offset += length as u64;
        self.place.line += breaks;
        if self.place.open_until <= self.place.offset {
            self.place.open_until = 0;
        }
    }

    /// Finds the next record that is not empty; [`Lines::record`] returns it. Blanks alone are a record if fields may be
    /// quoted, because they may be a text, and otherwise none. A record longer than the limit is skipped up to the next
    /// line break, without being stored.
    ///
    /// # Errors
    /// When the input cannot be read, when there is no line break within 1 GiB, and as described at
    /// [`Lines::allow_waiting`].
    pub(super) fn next(&mut self) -> io::Result<NextLine> {
        loop {
            let found = self.scan()?;
            let content = if self.quotes { self.record() } else { self.record().trim_ascii() };
            if !matches!(found, NextLine::Record(_)) || !content.is_empty() {
                return Ok(found);
            }
        }
    }

    fn scan(&mut self) -> io::Result<NextLine> {
        self.before = self.place;
        let line = self.place.line;
        let start = self.place.offset;
        let mut quoting = Quoting { state: State::FieldStart, opened: line };
        // Bytes of the record so far, and of its first line with the line break, once known.
        let (mut length, mut first, mut breaks) = (0, None, 0);
        loop {
            let rest = &self.buffer[self.begin + length..self.filled];
            let end = memchr(b'\n', rest);
            // Stops exactly at the limit: the result must not depend on the size of a read.
            let part = &rest[..end.unwrap_or(rest.len()).min(self.limit + 1 - length)];
            let taken = if self.quotes { quoting.take(part, line + breaks) } else { Ok(()) };
            if let Err(before) = taken {
                let until = start + (length + before) as u64;
                return Ok(self.open_quote(first.unwrap_or(length), line, quoting.opened, until));
            }
            length += part.len();
            if length > self.limit {
                return match first {
                    Some(first) => {
                        Ok(self.open_quote(first, line, quoting.opened, start + self.limit as u64))
                    }
                    None => self.skip_line(line),
                };
            }
            if end.is_some() {
                if quoting.state != State::Quoted {
                    self.record = self.begin..self.begin + length;
                    self.consume(length + 1, breaks + 1);
                    break;
                }
                let known = start + (length as u64) < self.place.open_until;
                length += 1;
                breaks += 1;
                first.get_or_insert(length);
                if known {
                    let until = self.place.open_until;
                    return Ok(self.open_quote(length, line, quoting.opened, until));
                }
            } else if !self.fill()? {
                if length == 0 {
                    self.record = 0..0;
                    return Ok(NextLine::End);
                }
                if quoting.state == State::Quoted {
                    let until = start + length as u64;
                    return Ok(self.open_quote(first.unwrap_or(length), line, quoting.opened, until));
                }
                self.record = self.begin..self.begin + length;
                self.consume(length, breaks);
                break;
            }
        }
        if self.record().last() == Some(&b'\r') {
            self.record.end -= 1;
        }
        Ok(NextLine::Record(line))
    }

    /// Gives up the line of `length` bytes, and records that its quote is open up to the offset `until`. Otherwise the same
    /// bytes would be scanned again for each of their lines.
    fn open_quote(&mut self, length: usize, line: u64, quote: u64, until: u64) -> NextLine {
        self.place.open_until = self.place.open_until.max(until);
        self.record = self.begin..self.begin + length;
        let breaks = u64::from(self.record().last() == Some(&b'\n'));
        self.consume(length, breaks);
        self.record.end -= breaks as usize;
        if self.record().last() == Some(&b'\r') {
            self.record.end -= 1;
        }
        NextLine::OpenQuote { line, quote }
    }

    /// Skips the rest of a line that is too long.
    fn skip_line(&mut self, line: u64) -> io::Result<NextLine> {
        self.record = self.begin..self.begin;
        if self.held.is_some() {
            return Ok(NextLine::TooLong(line));
        }
        // Skipped data cannot be read again.
        self.may_wait = true;
        let mut skipped = 0u64;
        loop {
            let rest = &self.buffer[self.begin..self.filled];
            let end = memchr(b'\n', rest);
            let length = end.map_or(rest.len(), |end| end + 1);
            self.record = 0..0;
            self.consume(length, u64::from(end.is_some()));
            skipped += length as u64;
            if end.is_some() {
                return Ok(NextLine::TooLong(line));
            }
            if skipped > self.unbroken {
                return Err(io::Error::other(format!(
                    "line {line} has no end within {}: this is not text with one record per line",
                    Bytes(self.unbroken)
                )));
            }
            match self.fill() {
                Ok(true) => {}
                Ok(false) => return Ok(NextLine::TooLong(line)),
                Err(error) => {
                    if error.kind() == ErrorKind::WouldBlock {
                        self.seek(self.before)?;
                    }
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
