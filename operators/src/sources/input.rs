//! The bytes of a text source: a file or a stream (standard input, a pipe, a device), compressed or not.
//!
//! The first bytes, not the name, show whether data is compressed; lines of connections never are. Offsets count
//! decompressed bytes; seeking back in compressed data decompresses from the start again.
use super::followed::Followed;
use super::received::LineStream;
use crate::api::Unread;
use flate2::bufread::GzDecoder;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use schemars::JsonSchema;
use serde::Deserialize;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidemill_journal::{Cursor, CutLine, Journal};

/// Polling interval for a stream that does not exist yet.
const LOOK: Duration = Duration::from_millis(50);
/// Polls, 10 s, after which a message is logged.
const TELL: u32 = 200;
/// Most bytes of a partial line in a message.
const SHOWN: usize = 240;

/// Compression format, detected from the first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    Gzip,
    Zstd,
}

impl Compression {
    /// Returns the format of data with these first bytes, and whether more of them are needed to decide.
    fn of(head: &[u8]) -> (Option<Self>, bool) {
        const GZIP: &[u8] = b"\x1f\x8b";
        const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
        // After its first byte, 0x50 to 0x5f: a skippable frame, with which the output of `pzstd` starts.
        const SKIPPED: &[u8] = b"\x2a\x4d\x18";
        let rest = match head {
            [0x50..=0x5f, rest @ ..] => rest,
            head => {
                return match head {
                    GZIP => (Some(Self::Gzip), false),
                    ZSTD => (Some(Self::Zstd), false),
                    head => (None, GZIP.starts_with(head) || ZSTD.starts_with(head)),
                };
            }
        };
        ((rest == SKIPPED).then_some(Self::Zstd), rest != SKIPPED && SKIPPED.starts_with(rest))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    fn decoder(self, bytes: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
        Ok(match self {
            Self::Gzip => Box::new(Members(Some(GzDecoder::new(BufReader::new(bytes))))),
            Self::Zstd => unpacked_zstd(bytes)?,
        })
    }

    /// Rewords a decoder's error for users.
    fn explain(self, error: &io::Error) -> io::Error {
        let name = self.name();
        let text = match error.kind() {
            ErrorKind::UnexpectedEof => format!("the {name} data end too early: the file was truncated"),
            _ => format!("the {name} data are damaged ({error})"),
        };
        io::Error::new(error.kind(), text)
    }
}

#[cfg(feature = "formats")]
fn unpacked_zstd(bytes: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    Ok(Box::new(zstd::Decoder::new(bytes)?))
}

/// Stands in for the decoder.
#[cfg(not(feature = "formats"))]
fn unpacked_zstd(_: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    let text = "this build lacks zstd: decompress the data with `zstd -d`, or build the command with \
                `cargo build -p tidemill --features formats`";
    Err(io::Error::new(ErrorKind::Unsupported, text))
}

/// The target of a source's `path`.
#[derive(Clone)]
pub(super) struct Origin {
    path: PathBuf,
    /// Description, if it can be read only once.
    stream: Option<String>,
    way: StreamOpening,
    /// Journal through which it is read.
    journal: Option<Arc<Journal>>,
}

/// How a stream is opened.
#[derive(Clone)]
enum StreamOpening {
    /// By its path, which was checked.
    Found,
    /// By its path, which need not exist yet.
    Named(Lasts),
    /// From the network.
    Received(Arc<dyn LineStream>),
    /// A file that grows, which is no stream: it can be read again.
    Followed(Arc<Followed>),
}

/// Whether a stream that is named as one has an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Lasts {
    /// Its end is the end of the source.
    UntilEnd,
    /// A named pipe, whose writer can leave and be replaced by another.
    Forever,
}

impl Origin {
    /// `written`: the path in the workflow; `path`: resolved relative to the workflow file.
    pub(super) fn of(written: &str, path: PathBuf) -> Self {
        if is_standard_input(written) {
            // A file redirected with `<` can be opened again.
            let stdin = Path::new("/dev/stdin");
            let stream = !std::fs::metadata(stdin).is_ok_and(|m| m.is_file() || m.is_dir());
            let stream = stream.then(|| "standard input".to_owned());
            return Self { path: stdin.into(), stream, way: StreamOpening::Found, journal: None };
        }
        let stream = std::fs::metadata(&path).ok().and_then(|m| kind_of_stream(&m)).map(|kind| {
            let real = path.canonicalize().unwrap_or_else(|_| path.clone());
            format!("the {kind} `{}`", real.display())
        });
        Self { path, stream, way: StreamOpening::Found, journal: None }
    }

    /// Assumes without a check: a file, unless it is standard input.
    pub(super) fn assumed(written: &str, path: PathBuf) -> Self {
        let stream = is_standard_input(written).then(|| "standard input".to_owned());
        Self { path, stream, way: StreamOpening::Found, journal: None }
    }

    /// A stream of the machine that reads it, which cannot be checked before.
    pub(super) fn named(path: PathBuf, lasts: Lasts) -> Self {
        let stream = Some(format!("the stream `{}`", path.display()));
        Self { path, stream, way: StreamOpening::Named(lasts), journal: None }
    }

    /// Lines from the network.
    pub(super) fn received(stream: Arc<dyn LineStream>) -> Self {
        let (stream, way) = (Some(stream.in_words()), StreamOpening::Received(stream));
        Self { path: PathBuf::new(), stream, way, journal: None }
    }

    /// A file that is read while it grows.
    pub(super) fn followed(path: PathBuf, file: Arc<Followed>) -> Self {
        Self { path, stream: None, way: StreamOpening::Followed(file), journal: None }
    }

    /// Whether it is a file that is read while it grows.
    pub(super) fn is_followed(&self) -> bool {
        matches!(self.way, StreamOpening::Followed(_))
    }

    /// Whether its records come when they come: the next one is not waited for.
    pub(super) fn comes_in_time(&self) -> bool {
        self.stream.is_some() || self.is_followed()
    }

    /// Whether it is received over the network.
    pub(super) fn is_received(&self) -> bool {
        matches!(self.way, StreamOpening::Received(_))
    }

    /// The fate of its data that nobody has read when the process dies.
    pub(super) fn unread(&self) -> Unread {
        match &self.way {
            StreamOpening::Received(stream) => stream.unread(),
            StreamOpening::Found | StreamOpening::Named(_) | StreamOpening::Followed(_) => Unread::Stays,
        }
    }

    /// Whether compressed data is detected. Lines of connections are not compressed together: a line with such first bytes
    /// is one bad line, which must not affect the lines of others.
    fn may_be_packed(&self) -> bool {
        !self.is_received()
    }

    /// Returns a copy that is read through a journal.
    pub(super) fn journalled(&self, journal: Arc<Journal>) -> Self {
        Self { journal: Some(journal), ..self.clone() }
    }

    /// The journal through which it is read.
    pub(super) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.as_ref()
    }

    /// The path that is opened.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Description of the input, if it can be read only once.
    pub(super) fn stream(&self) -> Option<&str> {
        self.stream.as_deref()
    }

    /// Opens it. A pipe without a writer is opened at once; reading waits for the writer.
    pub(super) fn open(&self) -> io::Result<Input> {
        if let StreamOpening::Followed(file) = &self.way {
            return Ok(Input { bytes: Bytes::Followed(Arc::clone(file)), offset: 0 });
        }
        if self.stream.is_none() {
            let file = File::open(&self.path)?;
            // Opening a folder works on some systems, reading it does not.
            if file.metadata()?.is_dir() {
                return Err(ErrorKind::IsADirectory.into());
            }
            return Input::of_file(file);
        }
        match &self.journal {
            None => Input::of_stream(Stream(Arc::new(self.open_stream()?)), self.may_be_packed()),
            Some(journal) => {
                let cut = match &self.way {
                    // A client that sends the same lines as an earlier one does not send all of them again.
                    StreamOpening::Received(stream) => {
                        let mut is_new = false;
                        let cut = journal.attach_any(|| {
                            is_new = true;
                            stream.open(true)
                        })?;
                        if is_new {
                            stream.journalled(journal);
                        }
                        cut
                    }
                    StreamOpening::Found | StreamOpening::Named(_) | StreamOpening::Followed(_) => {
                        journal.attach(|| self.open_stream())?
                    }
                };
                if let Some(CutLine { bytes, at }) = cut {
                    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]);
                    tracing::warn!(
                        "{}: skipping an incomplete line of the earlier process, because another stream \
                         follows, which continues after byte {at}: {text}",
                        self.stream.as_deref().unwrap_or_default(),
                    );
                }
                Input::of_journal(Arc::clone(journal), self.may_be_packed())
            }
        }
    }

    fn open_stream(&self) -> io::Result<File> {
        match &self.way {
            StreamOpening::Received(stream) => return stream.open(false),
            StreamOpening::Named(lasts) => return self.open_named(*lasts),
            StreamOpening::Found | StreamOpening::Followed(_) => {}
        }
        if self.path == Path::new("/dev/stdin") {
            // Opening it by its path would fail for a socket.
            return Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?));
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        Ok(File::from(rustix::fs::open(&self.path, flags, Mode::empty())?))
    }
}

impl Origin {
    /// Waits until it exists.
    fn open_named(&self, lasts: Lasts) -> io::Result<File> {
        let shown = self.path.display();
        let mut looks = 0u32;
        let found = loop {
            match std::fs::metadata(&self.path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                found => break found?,
            }
            looks += 1;
            if looks == TELL {
                tracing::warn!("waiting for the stream `{shown}`, which does not exist yet");
            }
            std::thread::sleep(LOOK);
        };
        let wrong = |text: String| Err(io::Error::new(ErrorKind::InvalidInput, text));
        let Some(kind) = kind_of_stream(&found) else {
            return wrong(format!(
                "`{shown}` is not a pipe, device or socket: leave out `stream` to read a file"
            ));
        };
        let access = match (lasts, kind) {
            (Lasts::UntilEnd, _) => OFlags::RDONLY,
            // With a writer of our own it has no end.
            (Lasts::Forever, "pipe") => OFlags::RDWR,
            (Lasts::Forever, kind) => {
                return wrong(format!(
                    "`{shown}` is a {kind}, but only a named pipe lasts forever: write `stream: until_end`"
                ));
            }
        };
        let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        Ok(File::from(rustix::fs::open(&self.path, flags, Mode::empty())?))
    }
}

pub(super) fn is_standard_input(written: &str) -> bool {
    matches!(written, "-" | "/dev/stdin" | "/dev/fd/0" | "/proc/self/fd/0")
}

fn kind_of_stream(metadata: &Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    if kind.is_fifo() {
        Some("pipe")
    } else if kind.is_char_device() {
        Some("device")
    } else if kind.is_socket() {
        Some("socket")
    } else {
        None
    }
}

/// A descriptor that may have no data yet.
struct Stream(Arc<File>);

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // Without this, a pipe that never had a writer would look like one that has ended.
            wait(&self.0, None)?;
            match (&*self.0).read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }
}

/// Waits until a read would return data or the end; `false` after `timeout`.
fn wait(file: &File, timeout: Option<&Timespec>) -> io::Result<bool> {
    loop {
        match poll(&mut [PollFd::new(file, PollFlags::IN)], timeout) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

enum Bytes {
    Plain(File),
    Packed(File, Compression, Box<dyn Read + Send>),
    Stream { file: Arc<File>, packed: Option<Compression>, bytes: Box<dyn Read + Send> },
    Journalled(JournalReader),
    Followed(Arc<Followed>),
}

/// Reads a stream through a journal.
struct JournalReader {
    journal: Arc<Journal>,
    cursor: Cursor,
}

impl Read for JournalReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.cursor.read(&self.journal, buffer)?)
    }
}

/// An open input, decompressed.
pub(super) struct Input {
    bytes: Bytes,
    /// Bytes read so far.
    offset: u64,
}

impl Input {
    fn of_file(mut file: File) -> io::Result<Self> {
        let (_, packed) = beginning(&mut file)?;
        file.seek(SeekFrom::Start(0))?;
        let bytes = match packed {
            None => Bytes::Plain(file),
            Some(packed) => {
                let decoder = packed.decoder(file.try_clone()?)?;
                Bytes::Packed(file, packed, decoder)
            }
        };
        Ok(Self { bytes, offset: 0 })
    }

    fn of_stream(mut stream: Stream, may_be_packed: bool) -> io::Result<Self> {
        let file = Arc::clone(&stream.0);
        let (head, packed) = if may_be_packed { beginning(&mut stream)? } else { (Vec::new(), None) };
        let all = io::Cursor::new(head).chain(stream);
        let bytes: Box<dyn Read + Send> = match packed {
            None => Box::new(all),
            Some(packed) => packed.decoder(all)?,
        };
        Ok(Self { bytes: Bytes::Stream { file, packed, bytes }, offset: 0 })
    }

    fn of_journal(journal: Arc<Journal>, may_be_packed: bool) -> io::Result<Self> {
        let mut reader = JournalReader { journal, cursor: Cursor::default() };
        // Data already inspected may be gone from the journal.
        if may_be_packed && !reader.journal.has_kept_beginning() {
            if let (_, Some(packed)) = beginning(&mut reader)? {
                return Err(io::Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "a journal cannot store {} data, because it must restart in the middle: decompress \
                         them first, for instance with `{} -dc`",
                        packed.name(),
                        packed.name()
                    ),
                ));
            }
            reader.cursor = Cursor::default();
        }
        Ok(Self { bytes: Bytes::Journalled(reader), offset: 0 })
    }

    /// Whether it can be read from its start, which a journal may have dropped.
    pub(super) fn has_beginning(&self) -> bool {
        match &self.bytes {
            Bytes::Journalled(reader) => reader.journal.has_beginning(),
            _ => true,
        }
    }

    /// Keeps the bytes before `end`, which precede all records: every later open needs them.
    pub(super) fn keep_beginning(&self, end: u64) -> io::Result<()> {
        match &self.bytes {
            Bytes::Journalled(reader) => Ok(reader.journal.keep_beginning(end)?),
            _ => Ok(()),
        }
    }

    /// Reads some bytes; 0 only at the end.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let (read, packed) = match &mut self.bytes {
                Bytes::Plain(file) => (file.read(buffer), None),
                Bytes::Packed(_, packed, decoder) => (decoder.read(buffer), Some(*packed)),
                Bytes::Stream { packed, bytes, .. } => (bytes.read(buffer), *packed),
                Bytes::Journalled(reader) => (reader.read(buffer), None),
                Bytes::Followed(file) => (file.read_at(buffer, self.offset), None),
            };
            match read {
                Ok(read) => {
                    self.offset += read as u64;
                    return Ok(read);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(match packed {
                        Some(packed) => packed.explain(&error),
                        None => error,
                    });
                }
            }
        }
    }

    /// Whether [`Input::read`] would return without waiting for another program. Always true for compressed streams,
    /// because the data buffered in their decoder is unknown.
    pub(super) fn is_ready(&self) -> bool {
        match &self.bytes {
            Bytes::Stream { file, packed: None, .. } => {
                wait(file, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap_or(true)
            }
            Bytes::Journalled(reader) => reader.cursor.is_ready(&reader.journal),
            // It never waits: reading says so where nothing is there.
            _ => true,
        }
    }

    /// Continues at this number of bytes from the start.
    pub(super) fn seek(&mut self, offset: u64) -> io::Result<()> {
        match &mut self.bytes {
            Bytes::Plain(file) => {
                file.seek(SeekFrom::Start(offset))?;
                self.offset = offset;
                return Ok(());
            }
            Bytes::Packed(file, packed, decoder) if offset < self.offset => {
                file.seek(SeekFrom::Start(0))?;
                *decoder = packed.decoder(file.try_clone()?)?;
                self.offset = 0;
            }
            Bytes::Journalled(reader) => {
                reader.cursor.seek(&reader.journal, offset)?;
                self.offset = offset;
                return Ok(());
            }
            Bytes::Followed(_) => {
                self.offset = offset;
                return Ok(());
            }
            Bytes::Stream { .. } if offset != self.offset => {
                return Err(io::Error::new(ErrorKind::NotSeekable, "the input cannot be read again"));
            }
            _ => {}
        }
        let mut skipped = vec![0; 64 << 10];
        while self.offset < offset {
            let wanted = skipped.len().min(usize::try_from(offset - self.offset).unwrap_or(usize::MAX));
            if self.read(&mut skipped[..wanted])? == 0 {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "it has become shorter"));
            }
        }
        Ok(())
    }
}

/// Reads as few bytes as show whether the data is compressed; returns them.
fn beginning(bytes: &mut impl Read) -> io::Result<(Vec<u8>, Option<Compression>)> {
    let mut head = Vec::new();
    loop {
        let (packed, is_open) = Compression::of(&head);
        if !is_open {
            return Ok((head, packed));
        }
        let mut next = [0];
        match bytes.read(&mut next) {
            Ok(0) => return Ok((head, None)),
            Ok(_) => head.push(next[0]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The members of a gzip file, one after the other. Zeros between and after them are padding of tapes and archives.
struct Members<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            match first_beyond_zeros(member.get_mut())? {
                None => return Ok(0),
                Some(0x1f) => self.0 = self.0.take().map(|member| GzDecoder::new(member.into_inner())),
                Some(_) => {
                    let text = "after the end of a member there is something else";
                    return Err(io::Error::new(ErrorKind::InvalidData, text));
                }
            }
        }
        Ok(0)
    }
}

/// Skips zeros; returns the next byte, if any.
fn first_beyond_zeros(bytes: &mut impl BufRead) -> io::Result<Option<u8>> {
    loop {
        let read = match bytes.fill_buf() {
            Ok([]) => return Ok(None),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let zeros = read.iter().take_while(|byte| **byte == 0).count();
        let next = read.get(zeros).copied();
        bytes.consume(zeros);
        if next.is_some() {
            return Ok(next);
        }
    }
}

#[cfg(test)]
mod tests;
