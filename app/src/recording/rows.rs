//! The reads of a source that has no form of its own for journals: a line of JSON for each, [`Read`], and its rows after
//! it, in Arrow's stream format.
use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::SchemaRef;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read as _, Write};
use std::path::{Path, PathBuf};
use tidemill_operators::api::{DeadLetter, OperatorError, Source, SourcePosition, SourceRead};
use tidemill_operators::record::EventTime;
use tidemill_state::Digest;

/// Largest read.
const LARGEST: usize = 2 << 30;

/// The line before the rows of a read.
#[derive(Debug, Serialize, Deserialize)]
struct Read {
    /// Bytes of the rows.
    bytes: usize,
    /// Their digest.
    digest: String,
    times: Option<Vec<EventTime>>,
    offsets: Option<Vec<u64>>,
    dead_letters: Vec<DeadLetter>,
    /// Nothing came, and nothing older will.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idle: Option<EventTime>,
}

/// The file being written.
pub(super) struct RowsFile {
    path: PathBuf,
    file: File,
}

impl RowsFile {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: File::create(path)? })
    }

    /// Adds a read, before anybody has it.
    pub(super) fn add(&mut self, read: &SourceRead) -> Result<(), OperatorError> {
        let failed = |error: &dyn std::fmt::Display| {
            OperatorError::new(format!("the recording `{}` cannot be written: {error}", self.path.display()))
        };
        let (times, offsets, dead_letters, idle, rows) = match read {
            SourceRead::Rows { payload, times, dead_letters, offsets } => {
                let rows = encoded(payload).map_err(|error| failed(&error))?;
                (times.clone(), offsets.clone(), dead_letters.clone(), None, rows)
            }
            SourceRead::Idle { watermark } => (None, None, Vec::new(), Some(*watermark), Vec::new()),
            SourceRead::End => return Ok(()),
        };
        let digest = Digest::of(&rows).to_string();
        let line = Read { bytes: rows.len(), digest, times, offsets, dead_letters, idle };
        let mut all = serde_json::to_vec(&line).map_err(|error| failed(&error))?;
        all.push(b'\n');
        all.extend_from_slice(&rows);
        self.file.write_all(&all).map_err(|error| failed(&error))
    }
}

fn encoded(payload: &RecordBatch) -> Result<Vec<u8>, arrow_schema::ArrowError> {
    let mut writer = StreamWriter::try_new(Vec::new(), &payload.schema())?;
    writer.write(payload)?;
    writer.into_inner()
}

/// Reads what [`RowsFile`] wrote.
pub(super) struct RowsReader {
    path: PathBuf,
    file: BufReader<File>,
    schema: SchemaRef,
    /// Reads so far.
    number: u64,
}

impl RowsReader {
    pub(super) fn open(path: &Path, schema: SchemaRef) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: BufReader::new(File::open(path)?), schema, number: 0 })
    }

    fn damaged(&self, why: impl std::fmt::Display) -> OperatorError {
        let (path, number) = (self.path.display(), self.number);
        OperatorError::new(format!("the recording is damaged: `{path}`, read {number}: {why}"))
    }
}

impl Source for RowsReader {
    /// Reads as many rows as were read: whoever asks takes as many as belong to the replay.
    fn read(&mut self, _rows: usize, _bytes: usize) -> Result<SourceRead, OperatorError> {
        self.number += 1;
        let mut line = Vec::new();
        self.file.read_until(b'\n', &mut line).map_err(|error| self.damaged(error))?;
        if line.pop() != Some(b'\n') {
            // The process was killed while it wrote the line.
            return Ok(SourceRead::End);
        }
        let read: Read = serde_json::from_slice(&line).map_err(|error| self.damaged(error))?;
        if let Some(watermark) = read.idle {
            return Ok(SourceRead::Idle { watermark });
        }
        if read.bytes > LARGEST {
            return Err(self.damaged("its length is wrong"));
        }
        let mut rows = vec![0; read.bytes];
        match self.file.read_exact(&mut rows) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(SourceRead::End),
            read => read.map_err(|error| self.damaged(error))?,
        }
        if Digest::of(&rows).to_string() != read.digest {
            return Err(self.damaged("its digest is wrong"));
        }
        let mut batches = StreamReader::try_new(&rows[..], None).map_err(|error| self.damaged(error))?;
        let payload = batches.next().transpose().map_err(|error| self.damaged(error))?;
        let payload = payload.ok_or_else(|| self.damaged("it has no rows"))?;
        if payload.schema() != self.schema {
            return Err(OperatorError::new("the source gives other columns than the recorded one"));
        }
        let Read { times, offsets, dead_letters, .. } = read;
        Ok(SourceRead::Rows { payload, times, dead_letters, offsets })
    }

    fn position(&self) -> SourcePosition {
        SourcePosition::default()
    }

    fn seek(&mut self, _: &SourcePosition) -> Result<(), OperatorError> {
        Err(OperatorError::new("rows of a recording are read from the beginning"))
    }

    fn replayable(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, Int64Array};
    use std::sync::Arc;

    fn payload(numbers: &[i64]) -> RecordBatch {
        let column: ArrayRef = Arc::new(Int64Array::from(numbers.to_vec()));
        RecordBatch::try_from_iter([("n", column)]).unwrap()
    }

    fn rows(numbers: &[i64], letters: usize) -> SourceRead {
        let letter = DeadLetter {
            id: None,
            time: Some(7),
            reason: "wrong".into(),
            detail: "it is\nwrong".into(),
            values: tidemill_operators::values::Values::new(),
        };
        let offsets = (letters > 0).then(|| (0..numbers.len() as u64).collect());
        let times = Some(numbers.iter().map(|number| number * 10).collect());
        SourceRead::Rows { payload: payload(numbers), times, dead_letters: vec![letter; letters], offsets }
    }

    fn written(path: &Path) {
        let mut file = RowsFile::create(path).unwrap();
        for read in [rows(&[1, 2], 0), SourceRead::Idle { watermark: -5 }, rows(&[], 2), rows(&[3], 0)] {
            file.add(&read).unwrap();
        }
        file.add(&SourceRead::End).unwrap();
    }

    fn all(path: &Path) -> Result<Vec<String>, OperatorError> {
        let mut reader = RowsReader::open(path, payload(&[]).schema()).unwrap();
        let mut all = Vec::new();
        loop {
            match reader.read(1, 1)? {
                SourceRead::End => return Ok(all),
                read => all.push(format!("{read:?}")),
            }
        }
    }

    #[test]
    fn what_was_read_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        written(&path);
        let expected = [rows(&[1, 2], 0), SourceRead::Idle { watermark: -5 }, rows(&[], 2), rows(&[3], 0)];
        assert_eq!(all(&path).unwrap(), expected.map(|read| format!("{read:?}")));
    }

    #[test]
    fn a_torn_file_ends_early_and_a_changed_one_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        written(&path);
        let whole = std::fs::read(&path).unwrap();
        let reads = all(&path).unwrap();
        for end in 0..whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            let torn = all(&path).unwrap();
            assert!(torn.len() < reads.len() && reads.starts_with(&torn), "{end}");
        }
        // The last byte of the rows of the first read.
        let at = whole.windows(9).position(|part| part == b"{\"bytes\":").unwrap();
        assert_eq!(at, 0);
        let second = whole.windows(9).skip(1).position(|part| part == b"{\"bytes\":").unwrap();
        let mut changed = whole.clone();
        changed[second - 20] ^= 1;
        std::fs::write(&path, &changed).unwrap();
        let error = all(&path).unwrap_err().message;
        assert!(error.contains("read 1: its digest is wrong"), "{error}");
    }
}
