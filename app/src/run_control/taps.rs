//! Taps of a run from another program: after the answer, messages until one of both ends.
//!
//! A message is a line of JSON, [`Message`], and as many bytes as it says: records in Arrow's stream format.
use super::{Answer, MOST, PATIENCE, Question, RunControl, connect, is_trusted, limited, say};
use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidemill_engine::Tap;
use tidemill_operators::record::record_schema;
use tidemill_spec::types::StreamType;

/// Time after which a side looks whether the other one is still there.
const LOOK: Duration = Duration::from_millis(100);
/// Largest message.
const LARGEST: usize = 1 << 30;

/// The beginning of a tap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    /// The process of the run.
    pub process: u32,
    /// The name of its workflow.
    pub workflow: String,
    /// The type of the records.
    pub stream: StreamType,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    Records { missed: u64, bytes: usize },
    End { missed: u64 },
}

/// Sends what passes a tap until the run or the other side ends.
pub(super) fn serve(stream: &UnixStream, tap: &Tap, is_over: &AtomicBool) -> io::Result<()> {
    stream.set_write_timeout(Some(LOOK))?;
    let mut missed = 0;
    loop {
        // What passed before the end is shown.
        let was_over = is_over.load(Ordering::Acquire);
        let read = tap.read(if was_over { Duration::ZERO } else { LOOK });
        missed += read.missed;
        let (message, bytes) = match read.batch {
            Some(batch) => {
                let bytes = encoded(&batch)?;
                (Message::Records { missed, bytes: bytes.len() }, bytes)
            }
            None if was_over => (Message::End { missed }, Vec::new()),
            None if is_gone(stream) => return Ok(()),
            None => continue,
        };
        let mut line = serde_json::to_vec(&message)?;
        line.push(b'\n');
        write(stream, &line, is_over)?;
        write(stream, &bytes, is_over)?;
        missed = 0;
        if matches!(message, Message::End { .. }) {
            return Ok(());
        }
    }
}

fn encoded(batch: &RecordBatch) -> io::Result<Vec<u8>> {
    let written = StreamWriter::try_new(Vec::new(), &batch.schema()).and_then(|mut writer| {
        writer.write(batch)?;
        writer.into_inner()
    });
    written.map_err(io::Error::other)
}

/// Writes all of it, however slowly the other side reads; that is no reason to wait when the run is over.
fn write(mut stream: &UnixStream, mut bytes: &[u8], is_over: &AtomicBool) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
                    && !is_over.load(Ordering::Acquire) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_gone(stream: &UnixStream) -> bool {
    let mut asked = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut asked, Some(&Timespec::default())).is_ok() && !asked[0].revents().is_empty()
}

/// What came from a run.
#[derive(Debug)]
pub enum Passed {
    /// Records with metadata columns, and the number of those before them that found no room.
    Records(RecordBatch, u64),
    /// Nothing came in time.
    Nothing,
    /// The run has ended; this many found no room at last.
    End(u64),
}

/// A tap of a run on this machine; ends when it is dropped.
pub struct Tapping {
    stream: BufReader<UnixStream>,
    begun: Begun,
}

impl Tapping {
    /// Looks at the records that pass a source or an operator from now on.
    ///
    /// # Errors
    /// The run does not answer, or cannot show them: the inner error says why.
    pub fn begin(process: u32, edge: &str) -> io::Result<Answer<Self>> {
        let stream = connect(&RunControl::name_of(process))?;
        if !is_trusted(&stream)? {
            return Err(io::Error::new(ErrorKind::PermissionDenied, "it belongs to another user"));
        }
        limited(&stream)?;
        say(&stream, &Question::Tap { edge: edge.to_owned() })?;
        let mut stream = BufReader::new(stream);
        let begun: Answer<Begun> = serde_json::from_str(&line(&mut stream)?)?;
        Ok(begun.map(|begun| Self { stream, begun }))
    }

    /// Returns what is known from the beginning.
    pub fn begun(&self) -> &Begun {
        &self.begun
    }

    /// Waits for records for at most this time.
    ///
    /// # Errors
    /// The run is gone without a word, or sends something else.
    pub fn next(&mut self, most: Duration) -> io::Result<Passed> {
        if self.stream.buffer().is_empty() && !is_readable(self.stream.get_ref(), most)? {
            return Ok(Passed::Nothing);
        }
        match serde_json::from_str(&line(&mut self.stream)?)? {
            Message::End { missed } => Ok(Passed::End(missed)),
            Message::Records { missed, bytes } if bytes <= LARGEST => {
                let mut content = vec![0; bytes];
                self.stream.read_exact(&mut content)?;
                let mut reader = StreamReader::try_new(&content[..], None).map_err(io::Error::other)?;
                let batch = reader.next().transpose().map_err(io::Error::other)?;
                let batch = batch.filter(|batch| batch.schema() == record_schema(&self.begun.stream));
                let batch = batch.ok_or_else(|| io::Error::from(ErrorKind::InvalidData))?;
                Ok(Passed::Records(batch, missed))
            }
            Message::Records { .. } => Err(ErrorKind::InvalidData.into()),
        }
    }
}

fn line(stream: &mut BufReader<UnixStream>) -> io::Result<String> {
    let mut line = String::new();
    match stream.take(MOST).read_line(&mut line)? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        _ => Ok(line),
    }
}

fn is_readable(stream: &UnixStream, most: Duration) -> io::Result<bool> {
    let most = Timespec::try_from(most.min(PATIENCE)).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&most)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
