//! Output without a length: a pipe, a terminal, a device.
//!
//! Rows are written at once; nothing is synced or locked. A reader that closes the pipe is no failure: nothing more is
//! written. A write that waits for its reader can be cancelled, so that a run can end although its reader has stopped
//! reading.
use super::rows::Rows;
use super::staging::write_error;
use super::text_file::TextFormat;
use crate::api::{CallOff, OperatorError, Sink};
use arrow_array::RecordBatch;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, PipeReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of one write into a pipe; such writes never block when the system reports room (POSIX: `PIPE_BUF`).
const PIPE_CHUNK: usize = 4096;

/// Keeps the rows of a batch together when several sinks print.
static STANDARD_OUTPUT: Mutex<()> = Mutex::new(());

/// The output; see the module.
pub(super) struct Stream {
    file: File,
    path: PathBuf,
    /// Bytes of one write, at most.
    chunk: usize,
    is_standard_output: bool,
    /// Readable once writing was cancelled.
    called_off: PipeReader,
    call_off: CallOff,
    /// The reader has gone.
    is_closed: bool,
}

impl Stream {
    /// Standard output of the process.
    ///
    /// # Errors
    /// The process has too many files open.
    pub(super) fn standard_output() -> Result<Self, OperatorError> {
        let path = Path::new("standard output");
        let file = io::stdout().as_fd().try_clone_to_owned().map_err(|e| write_error(path, &e))?;
        Self::new(file.into(), path, true)
    }

    /// Opens a pipe or device. Waits, with a log message, for the reader of a named pipe.
    ///
    /// # Errors
    /// It cannot be written; the text names it and gives advice.
    pub(super) fn open(path: &Path) -> Result<Self, OperatorError> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NXIO) => {
                tracing::warn!("`{}` is a pipe without a reader: waiting for one", path.display());
                OpenOptions::new().write(true).open(path)
            }
            opened => opened.map(File::from).map_err(io::Error::from),
        };
        Self::new(file.map_err(|e| write_error(path, &e))?, path, false)
    }

    fn new(file: File, path: &Path, is_standard_output: bool) -> Result<Self, OperatorError> {
        let failed = |e: io::Error| write_error(path, &e);
        let is_regular = file.metadata().map_err(failed)?.is_file();
        let (called_off, caller) = io::pipe().map_err(failed)?;
        Ok(Self {
            file,
            path: path.to_owned(),
            chunk: if is_regular { usize::MAX } else { PIPE_CHUNK },
            is_standard_output,
            called_off,
            // One byte that is never read. If it cannot be written, it is there already.
            call_off: Arc::new(move || drop((&caller).write(&[0]))),
            is_closed: false,
        })
    }

    /// Writes and returns how many bytes were taken: fewer once the reader has gone or writing was cancelled.
    fn write(&mut self, bytes: &[u8]) -> Result<usize, OperatorError> {
        let _together =
            self.is_standard_output.then(|| STANDARD_OUTPUT.lock().unwrap_or_else(PoisonError::into_inner));
        let mut taken = 0;
        while taken < bytes.len() && self.has_room().map_err(|e| write_error(&self.path, &e))? {
            let end = bytes.len().min(taken.saturating_add(self.chunk));
            match self.file.write(&bytes[taken..end]) {
                Ok(written) => taken += written,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) if e.kind() == ErrorKind::BrokenPipe => {
                    self.is_closed = true;
                    break;
                }
                Err(e) => return Err(write_error(&self.path, &e)),
            }
        }
        Ok(taken)
    }

    /// Waits for room; `false` when writing was cancelled.
    fn has_room(&self) -> io::Result<bool> {
        let mut both =
            [PollFd::new(&self.file, PollFlags::OUT), PollFd::new(&self.called_off, PollFlags::IN)];
        loop {
            match poll(&mut both, None) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(both[1].revents().is_empty()),
            }
        }
    }
}

/// Prints rows on arrival.
pub(super) struct Printer {
    rows: Rows,
    format: Arc<dyn TextFormat>,
    stream: Stream,
    /// Nothing was printed yet.
    is_first: bool,
    refused: u64,
}

impl Printer {
    pub(super) fn new(rows: Rows, format: Arc<dyn TextFormat>, stream: Stream) -> Self {
        Self { rows, format, stream, is_first: true, refused: 0 }
    }
}

impl Sink for Printer {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        let rows = batch.num_rows() as u64;
        self.refused = rows;
        if self.stream.is_closed {
            return Ok(());
        }
        let mut text = Vec::new();
        if std::mem::take(&mut self.is_first) {
            self.format.header(&self.rows, &mut text)?;
        }
        let header = text.len();
        self.format.append(&self.rows, batch, &mut text)?;
        let taken = self.stream.write(&text)?;
        let whole = match taken == text.len() {
            true => rows,
            false => self.format.rows_in(&text[header..taken.max(header)]),
        };
        self.refused = rows - whole;
        Ok(())
    }

    fn commit(&mut self, _epoch: u64) -> Result<(), OperatorError> {
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    fn exactly_once(&self) -> bool {
        false
    }

    fn is_closed(&self) -> bool {
        self.stream.is_closed
    }

    fn refused(&self) -> u64 {
        self.refused
    }

    fn call_off(&self) -> Option<CallOff> {
        Some(Arc::clone(&self.stream.call_off))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::test::{answers, bind};
    use crate::sinks::{csv::Csv, jsonl::Jsonl, parquet::Parquet, stdout::Stdout};
    use crate::testing::batch;
    use serde_json::json;
    use std::io::{BufRead, BufReader, Read};
    use std::sync::mpsc;

    /// A named pipe in a folder of its own.
    fn pipe() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        (folder, path)
    }

    fn rows(n: i64) -> RecordBatch {
        let rows: Vec<_> = (0..n).map(|i| json!({"key": "two\n\"lines\"", "n": i})).collect();
        batch(&answers(), &rows)
    }

    #[test]
    fn a_named_pipe_is_written_row_by_row() {
        for (kind, expected) in [
            (&Csv as &dyn crate::kind::SinkKind, "key,n\n\"two\n\"\"lines\"\"\",0\n"),
            (&Jsonl, "{\"key\":\"two\\n\\\"lines\\\"\",\"n\":0}\n"),
        ] {
            let (folder, path) = pipe();
            let reader = std::thread::spawn(move || {
                let mut text = String::new();
                File::open(path).unwrap().read_to_string(&mut text).unwrap();
                text
            });
            let mut sink = (bind(kind, folder.path(), "path: pipe").unwrap().make)().unwrap();
            assert!(!sink.exactly_once());
            sink.write(&rows(1)).unwrap();
            assert_eq!(sink.refused(), 0);
            sink.commit(1).unwrap();
            sink.close().unwrap();
            drop(sink);
            assert_eq!(reader.join().unwrap(), expected);
        }
    }

    #[test]
    fn a_reader_that_goes_away_is_no_failure_and_what_it_was_given_is_known() {
        let (folder, path) = pipe();
        let (sender, given) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut reader = BufReader::with_capacity(64, File::open(path).unwrap());
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            sender.send(line).unwrap();
        });
        let mut sink = (bind(&Jsonl, folder.path(), "path: pipe").unwrap().make)().unwrap();
        // Exceeds the capacity of a pipe.
        sink.write(&rows(20_000)).unwrap();
        reader.join().unwrap();
        assert_eq!(given.recv().unwrap(), "{\"key\":\"two\\n\\\"lines\\\"\",\"n\":0}\n");
        assert!(sink.is_closed());
        assert!((1..20_000).contains(&sink.refused()), "{}", sink.refused());
        sink.write(&rows(3)).unwrap();
        assert_eq!(sink.refused(), 3);
    }

    #[test]
    fn a_write_that_waits_for_its_reader_can_be_called_off() {
        let (folder, path) = pipe();
        let reader = std::thread::spawn(move || File::open(path).unwrap());
        let mut sink = (bind(&Csv, folder.path(), "path: pipe").unwrap().make)().unwrap();
        let _never_read = reader.join().unwrap();
        let call_off = sink.call_off().unwrap();
        let caller = std::thread::spawn(move || call_off());
        sink.write(&rows(20_000)).unwrap();
        caller.join().unwrap();
        assert!(sink.refused() > 0 && !sink.is_closed());
        sink.write(&rows(2)).unwrap();
        assert_eq!(sink.refused(), 2, "for good");
    }

    #[test]
    fn devices_are_written_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let make = |path: &str| (bind(&Jsonl, folder.path(), path).unwrap().make)().unwrap();
        let mut null = make("path: /dev/null");
        null.write(&rows(5)).unwrap();
        assert_eq!((null.refused(), null.is_closed()), (0, false));
        let error = make("path: /dev/full").write(&rows(5)).unwrap_err();
        assert!(error.message.contains("/dev/full") && error.message.contains("free some space"), "{error}");
    }

    #[test]
    fn a_minus_is_standard_output() {
        let folder = tempfile::tempdir().unwrap();
        let bound = bind(&Jsonl, folder.path(), "path: '-'").unwrap();
        assert!(bound.is_standard_output && bound.files.is_empty());
        assert!(bind(&Stdout, folder.path(), "format: table").unwrap().is_standard_output);
        assert!(!bind(&Csv, folder.path(), "path: a-").unwrap().is_standard_output);
        let error = bind(&Parquet, folder.path(), "path: '-'").err().unwrap();
        assert!(error.iter().next().unwrap().message.contains("standard output"), "{error}");
    }
}
