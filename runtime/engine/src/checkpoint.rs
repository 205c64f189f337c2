//! Checkpoints that outlive the process: what another process needs to continue the run.
//!
//! A checkpoint is of one epoch: everything before it is durable in all sinks. It has the past of every stateful stage up to
//! that epoch (a snapshot and the calls since, of which only the new ones are written), where every source stood, and
//! what every sink has committed, which may be more: a sink drops the rows of epochs that it knows, so that what is repeated from
//! the checkpoint on comes out once. Nothing is written on the threads of the slots.
//!
//! Repeating needs sources that can be read again and epochs that depend on the records alone ([`crate::Cut`]).
use crate::clock::Nanoseconds;
use crate::frame::Epoch;
use crate::store::{Call, EpochLog};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

/// Keeps checkpoints, one after the other.
pub trait CheckpointWriter: Send {
    /// Makes a checkpoint durable; the one before may be forgotten when this returns.
    ///
    /// # Errors
    /// Why it cannot be written, and what to do. The one before must still hold; the run tries again for a while.
    fn write(&mut self, checkpoint: Checkpoint) -> Result<(), String>;
    /// Reads the last checkpoint again, for a host that is started again while the others go on.
    ///
    /// # Errors
    /// Why it cannot be read, and what to do.
    fn past(&mut self) -> Result<Past, String> {
        Err("what keeps the checkpoints of this run cannot read them".to_owned())
    }
}

/// A run that another process can continue.
pub struct Durability {
    /// Takes the checkpoints.
    pub writer: Box<dyn CheckpointWriter>,
    /// The checkpoint to continue from.
    pub past: Option<Past>,
    /// Least engine time between two checkpoints.
    pub interval: Duration,
}

/// What is new since the checkpoint before.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// Everything before this epoch is durable; [`crate::frame::CLOSED`]: the run has come to its end, and only its sinks are to be closed.
    pub epoch: Epoch,
    /// Engine time since the run began, the time between two processes left out.
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
}

/// What has become of the state of a stage.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StageChange {
    /// A new state "all of the epochs before this one", in place of all that was written before.
    pub snapshot: Option<(Epoch, Arc<Vec<u8>>)>,
    /// Calls of the epochs `from..upto`, which follow the snapshot or what was written before; opaque.
    pub calls: Vec<u8>,
    /// See `calls`.
    pub from: Epoch,
    /// See `calls`.
    pub upto: Epoch,
}

/// What a sink has committed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkPast {
    /// All epochs before it.
    pub committed: Epoch,
    /// Rows, of all processes.
    pub rows: u64,
    /// What the sink continues from; none: it cannot be continued, and repeats what it has given since.
    pub token: Option<Vec<u8>>,
}

/// The dead letters that were written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LettersPast {
    /// Those of all epochs before this one.
    pub epoch: Epoch,
    /// What the writer continues from.
    pub token: Option<Vec<u8>>,
}

/// A checkpoint to continue from.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Past {
    /// As in [`Checkpoint`].
    pub epoch: Epoch,
    /// As in [`Checkpoint`].
    pub elapsed: Nanoseconds,
    /// By instance of a stateful stage.
    pub stages: BTreeMap<String, StagePast>,
    /// By source stage.
    pub sources: BTreeMap<String, EpochLog>,
    /// By sink.
    pub sinks: BTreeMap<String, SinkPast>,
    /// Dead letters; its token is for whoever makes the writer.
    pub letters: LettersPast,
}

/// The past of a stage, put together from its changes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StagePast {
    /// The newest snapshot.
    pub snapshot: (Epoch, Vec<u8>),
    /// The calls since, in order.
    pub calls: Vec<Vec<u8>>,
}

/// What is written in front of each call.
#[derive(Serialize, Deserialize)]
enum Head {
    Apply { epoch: Epoch, port: usize, bytes: usize },
    Advance { epoch: Epoch, watermark: i64 },
}

/// Calls as bytes: for each a line of JSON, then its rows as an Arrow IPC stream.
pub(crate) fn encode(calls: &[(Epoch, Call)]) -> Result<Vec<u8>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("a call cannot be written: {error}");
    let mut out = Vec::new();
    for (epoch, call) in calls {
        let mut rows = Vec::new();
        let head = match call {
            Call::Advance(watermark) => Head::Advance { epoch: *epoch, watermark: *watermark },
            Call::Apply(port, batch) => {
                let mut writer =
                    StreamWriter::try_new(&mut rows, &batch.schema()).map_err(|error| failed(&error))?;
                writer.write(batch).and_then(|()| writer.finish()).map_err(|error| failed(&error))?;
                drop(writer);
                Head::Apply { epoch: *epoch, port: *port, bytes: rows.len() }
            }
        };
        serde_json::to_writer(&mut out, &head).map_err(|error| failed(&error))?;
        out.push(b'\n');
        out.extend_from_slice(&rows);
    }
    Ok(out)
}

/// The calls that [`encode`] wrote.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<(Epoch, Call)>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("calls of the state cannot be read: {error}");
    let (mut calls, mut left) = (Vec::new(), bytes);
    while !left.is_empty() {
        let end = left.iter().position(|byte| *byte == b'\n').ok_or_else(|| failed(&"they are cut off"))?;
        let head: Head = serde_json::from_slice(&left[..end]).map_err(|error| failed(&error))?;
        left = &left[end + 1..];
        match head {
            Head::Advance { epoch, watermark } => calls.push((epoch, Call::Advance(watermark))),
            Head::Apply { epoch, port, bytes } => {
                let (rows, rest) = left.split_at_checked(bytes).ok_or_else(|| failed(&"they are cut off"))?;
                left = rest;
                let reader =
                    StreamReader::try_new(Cursor::new(rows), None).map_err(|error| failed(&error))?;
                for batch in reader {
                    calls.push((epoch, Call::Apply(port, batch.map_err(|error| failed(&error))?)));
                }
            }
        }
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};

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
    }
}
