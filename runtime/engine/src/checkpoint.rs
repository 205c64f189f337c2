//! Checkpoints that outlive the process: the data with which another process continues the run.
//!
//! A checkpoint is of one epoch: everything before it is durable in all sinks. It has the history of every stateful stage
//! up to that epoch (a snapshot and the calls since, only new ones are written), the position of every source, and the
//! committed state of every sink at exactly that epoch, however far the sink has come since. The continuing process undoes
//! later commits, so rows repeated from the checkpoint on come out once. A sink that cannot undo has its present commit
//! there, which may be later: it drops the rows of known epochs. Nothing is written on the threads of the slots.
//!
//! Repetition needs sources that can be read again and epochs that depend on the records alone ([`crate::Cut`]).
use crate::clock::Nanoseconds;
use crate::frame::Epoch;
use crate::store::{Call, EpochLog};
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::SchemaRef;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tidemill_operators::api::{OperatorError, Stateful};

/// Stores checkpoints, one after the other.
pub trait CheckpointWriter: Send {
    /// Makes a checkpoint durable; the previous one may be dropped when this returns.
    ///
    /// # Errors
    /// The reason why it cannot be written, with advice. The previous one must remain valid; the run retries for a while.
    fn write(&mut self, checkpoint: Checkpoint) -> Result<(), String>;
    /// Returns the orders of the last call of [`CheckpointWriter::write`], successful or not, for the journals of sources
    /// that other machines read, by source.
    fn journals(&mut self) -> BTreeMap<String, JournalOrder> {
        BTreeMap::new()
    }
    /// Reads the last checkpoint again, for a restarted host while the others continue.
    ///
    /// # Errors
    /// The reason why it cannot be read, with advice.
    fn past(&mut self) -> Result<Past, String> {
        Err("what keeps the checkpoints of this run cannot read them".to_owned())
    }
}

/// Order for the journal of a source, on the machine that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JournalOrder {
    /// No checkpoint needs the journal before this position; the stream is read on.
    Release(u64),
    /// Stop reading the stream: no checkpoint could be written for too long.
    Hold,
    /// Drop the journal: no process will need it.
    Forget,
}

/// Carries out such orders, by source.
pub type FollowJournals = Arc<dyn Fn(&BTreeMap<String, JournalOrder>) + Send + Sync>;

/// A run that another process can continue.
pub struct Durability {
    /// Writes the checkpoints.
    pub writer: Box<dyn CheckpointWriter>,
    /// The checkpoint to continue from.
    pub past: Option<Past>,
    /// Least engine time between two checkpoints.
    pub interval: Duration,
}

/// Changes since the previous checkpoint.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// Everything before this epoch is durable; [`crate::frame::CLOSED`]: the run has ended, and only its sinks are to be
    /// closed.
    pub epoch: Epoch,
    /// Engine time since the run started, without the time between two processes.
    pub elapsed: Nanoseconds,
    /// The sinks are closed too: there is nothing to continue.
    pub is_complete: bool,
    /// By instance of a stateful stage.
    pub stages: BTreeMap<String, StageChange>,
    /// By source stage.
    pub sources: BTreeMap<String, EpochLog>,
    /// By sink.
    pub sinks: BTreeMap<String, SinkPast>,
    /// Dead letters.
    pub letters: LettersPast,
    /// Restarts of slots in this process.
    pub restarts: u64,
}

/// Change of the state of a stage.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StageChange {
    /// A new state "all of the epochs before this one", replacing everything written before.
    pub snapshot: Option<(Epoch, Arc<Vec<u8>>)>,
    /// Calls of the epochs `from..upto`, which follow the snapshot or the earlier calls; opaque.
    pub calls: Vec<u8>,
    /// See `calls`.
    pub from: Epoch,
    /// See `calls`.
    pub upto: Epoch,
}

/// Committed state of a sink.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkPast {
    /// All earlier epochs are committed.
    pub committed: Epoch,
    /// Number of rows, of all processes.
    pub rows: u64,
    /// Token with which the sink continues; `None`: it cannot be continued, and repeats later rows.
    pub token: Option<Vec<u8>>,
}

/// Written dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LettersPast {
    /// Letters of all epochs before this one.
    pub epoch: Epoch,
    /// Token with which the writer continues.
    pub token: Option<Vec<u8>>,
    /// Their number, of all processes.
    #[serde(default)]
    pub count: u64,
}

/// A checkpoint to continue from.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Past {
    /// See [`Checkpoint`].
    pub epoch: Epoch,
    /// See [`Checkpoint`].
    pub elapsed: Nanoseconds,
    /// By instance of a stateful stage.
    pub stages: BTreeMap<String, StagePast>,
    /// By source stage.
    pub sources: BTreeMap<String, EpochLog>,
    /// By sink.
    pub sinks: BTreeMap<String, SinkPast>,
    /// Dead letters; its token is for the caller that makes the writer.
    pub letters: LettersPast,
}

/// The history of a stage, assembled from its changes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StagePast {
    /// The newest snapshot.
    pub snapshot: (Epoch, Vec<u8>),
    /// The calls since, in order.
    pub calls: Vec<Vec<u8>>,
}

/// Header of calls.
#[derive(Serialize, Deserialize)]
enum Head {
    /// Calls in order; their rows follow, in streams of these lengths in bytes.
    Calls { calls: Vec<Called>, streams: Vec<usize> },
    /// One call in the format of earlier versions; its rows follow.
    Apply { epoch: Epoch, port: usize, bytes: usize },
    /// One call in that format, without rows.
    Advance { epoch: Epoch, watermark: i64 },
}

#[derive(Serialize, Deserialize)]
enum Called {
    /// Its rows are the next batch of this stream.
    Apply {
        epoch: Epoch,
        port: usize,
        stream: usize,
    },
    Advance {
        epoch: Epoch,
        watermark: i64,
    },
}

/// Replaces the state of an operator by a snapshot, which may be damaged: a panic of the operator, or of the column reader,
/// is an error too. The operator is unusable afterwards.
pub(crate) fn restore(operator: &mut dyn Stateful, snapshot: &[u8]) -> Result<(), OperatorError> {
    catch_unwind(AssertUnwindSafe(|| operator.restore(snapshot))).unwrap_or_else(|_| {
        Err(OperatorError::new("the snapshot is damaged: start the run from the beginning"))
    })
}

/// Encodes calls: a line of JSON, then their rows as Arrow IPC streams, one per schema, because a schema takes more bytes
/// than a few rows. Several results may be concatenated.
pub(crate) fn encode(calls: &[(Epoch, Call)]) -> Result<Vec<u8>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("a call cannot be written: {error}");
    if calls.is_empty() {
        return Ok(Vec::new());
    }
    let mut writers: Vec<(SchemaRef, StreamWriter<Vec<u8>>)> = Vec::new();
    let mut called = Vec::with_capacity(calls.len());
    for (epoch, call) in calls {
        let epoch = *epoch;
        let (port, batch) = match call {
            Call::Advance(watermark) => {
                called.push(Called::Advance { epoch, watermark: *watermark });
                continue;
            }
            Call::Apply(port, batch) => (*port, batch),
        };
        let schema = batch.schema();
        let stream = match writers.iter().position(|(known, _)| *known == schema) {
            Some(stream) => stream,
            None => {
                let writer = StreamWriter::try_new(Vec::new(), &schema).map_err(|error| failed(&error))?;
                writers.push((schema, writer));
                writers.len() - 1
            }
        };
        writers[stream].1.write(batch).map_err(|error| failed(&error))?;
        called.push(Called::Apply { epoch, port, stream });
    }
    let streams = writers.into_iter().map(|(_, writer)| writer.into_inner());
    let streams: Vec<Vec<u8>> = streams.collect::<Result<_, _>>().map_err(|error| failed(&error))?;
    let head = Head::Calls { calls: called, streams: streams.iter().map(Vec::len).collect() };
    let mut out = serde_json::to_vec(&head).map_err(|error| failed(&error))?;
    out.push(b'\n');
    streams.iter().for_each(|stream| out.extend_from_slice(stream));
    Ok(out)
}

fn damaged(error: &dyn std::fmt::Display) -> String {
    format!("calls of the state cannot be read: {error}")
}

fn cut_off() -> String {
    damaged(&"they are cut off")
}

/// Returns the stream of this length at the front.
fn rows_of<'a>(left: &mut &'a [u8], bytes: usize) -> Result<StreamReader<Cursor<&'a [u8]>>, String> {
    let (rows, rest) = left.split_at_checked(bytes).ok_or_else(cut_off)?;
    *left = rest;
    StreamReader::try_new(Cursor::new(rows), None).map_err(|error| damaged(&error))
}

/// Decodes the calls that [`encode`] wrote.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<(Epoch, Call)>, String> {
    // Arrow checks its input, but not everywhere: input that makes it panic is damaged too.
    catch_unwind(|| decode_calls(bytes)).unwrap_or_else(|_| Err(damaged(&"their rows are none")))
}

fn decode_calls(bytes: &[u8]) -> Result<Vec<(Epoch, Call)>, String> {
    let (mut all, mut left) = (Vec::new(), bytes);
    while !left.is_empty() {
        let end = left.iter().position(|byte| *byte == b'\n').ok_or_else(cut_off)?;
        let head: Head = serde_json::from_slice(&left[..end]).map_err(|error| damaged(&error))?;
        left = &left[end + 1..];
        match head {
            Head::Calls { calls, streams } => {
                let mut readers = Vec::with_capacity(streams.len());
                for bytes in streams {
                    readers.push(rows_of(&mut left, bytes)?);
                }
                for call in calls {
                    all.push(match call {
                        Called::Advance { epoch, watermark } => (epoch, Call::Advance(watermark)),
                        Called::Apply { epoch, port, stream } => {
                            let next =
                                readers.get_mut(stream).and_then(Iterator::next).ok_or_else(cut_off)?;
                            (epoch, Call::Apply(port, next.map_err(|error| damaged(&error))?))
                        }
                    });
                }
            }
            Head::Advance { epoch, watermark } => all.push((epoch, Call::Advance(watermark))),
            Head::Apply { epoch, port, bytes } => {
                for batch in rows_of(&mut left, bytes)? {
                    all.push((epoch, Call::Apply(port, batch.map_err(|error| damaged(&error))?)));
                }
            }
        }
    }
    Ok(all)
}

/// Calls encoded by this version, for tests that mutate them.
pub(crate) fn example() -> Result<Vec<u8>, String> {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "", "three words here"]));
    let of =
        |columns: Vec<(&str, ArrayRef)>| RecordBatch::try_from_iter(columns).map_err(|error| damaged(&error));
    let both = of(vec![("n", Arc::clone(&numbers)), ("t", texts)])?;
    encode(&[
        (4, Call::Apply(0, of(vec![("n", numbers)])?)),
        (4, Call::Advance(-5)),
        (7, Call::Apply(1, both.slice(1, 2))),
        (7, Call::Apply(1, both)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_come_back_as_they_were() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "", "\n{"]));
        let first = RecordBatch::try_from_iter([("n", Arc::clone(&numbers))]).expect("a batch");
        let second = RecordBatch::try_from_iter([("n", numbers), ("t", texts)]).expect("a batch");
        let calls =
            vec![(4, Call::Apply(0, first)), (4, Call::Advance(-5)), (7, Call::Apply(1, second.slice(1, 2)))];
        let bytes = encode(&calls).expect("encodes");
        assert_eq!(format!("{:?}", decode(&bytes).expect("decodes")), format!("{calls:?}"));
        for cut in 1..bytes.len() {
            let found = decode(&bytes[..cut]).map_or(0, |calls| calls.len());
            assert!(found < calls.len(), "{cut} bytes");
        }
        // Objects of several checkpoints are concatenated.
        let twice = [bytes.as_slice(), &bytes].concat();
        assert_eq!(decode(&twice).expect("decodes").len(), 2 * calls.len());
    }

    #[test]
    fn many_small_calls_share_a_schema() {
        let row: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let batch = RecordBatch::try_from_iter([("n", row)]).expect("a batch");
        let calls = |n: u64| (0..n).map(|epoch| (epoch, Call::Apply(0, batch.clone()))).collect::<Vec<_>>();
        let bytes = |n| encode(&calls(n)).expect("encodes").len();
        assert!((bytes(101) - bytes(1)) / 100 * 3 < bytes(1) * 2, "{} and {} bytes", bytes(1), bytes(101));
    }

    /// A state of an earlier version.
    #[test]
    fn calls_that_stand_one_by_one_are_read() {
        let row: ArrayRef = Arc::new(Int64Array::from(vec![7]));
        let batch = RecordBatch::try_from_iter([("n", row)]).expect("a batch");
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).expect("a writer");
        writer.write(&batch).expect("written");
        let rows = writer.into_inner().expect("ended");
        let mut bytes =
            format!("{{\"Apply\":{{\"epoch\":3,\"port\":1,\"bytes\":{}}}}}\n", rows.len()).into_bytes();
        bytes.extend(rows);
        bytes.extend(b"{\"Advance\":{\"epoch\":4,\"watermark\":-5}}\n");
        let expected = [(3, Call::Apply(1, batch)), (4, Call::Advance(-5))];
        assert_eq!(format!("{:?}", decode(&bytes).expect("decodes")), format!("{expected:?}"));
    }
}
