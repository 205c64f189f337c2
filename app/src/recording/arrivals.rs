//! When the records of a source were read: a line of JSON for each read.
use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_engine::clock::{Clock, WallClock};

/// A line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Arrival {
    /// Records read so far, with those of this read.
    records: u64,
    /// Microseconds since the beginning of the recording.
    at: i64,
}

/// The file being written.
pub(super) struct Arrivals {
    path: PathBuf,
    file: File,
    clock: Arc<WallClock>,
    records: u64,
    /// Why nothing more is written.
    failure: Option<io::Error>,
}

impl Arrivals {
    pub(super) fn create(path: &Path, clock: Arc<WallClock>) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: File::create(path)?, clock, records: 0, failure: None })
    }

    /// These many records came.
    pub(super) fn add(&mut self, records: u64) {
        self.records += records;
        if records > 0 && self.failure.is_none() {
            let arrival = Arrival { records: self.records, at: self.clock.now() / 1000 };
            let mut line = serde_json::to_vec(&arrival).expect("numbers are JSON");
            line.push(b'\n');
            self.failure = self.file.write_all(&line).err();
        }
    }

    pub(super) fn records(&self) -> u64 {
        self.records
    }

    pub(super) fn failure(&mut self) -> Option<Failure> {
        self.failure.take().map(|error| super::cannot("written", &self.path, &error))
    }
}

/// The file being read.
pub(super) struct Times {
    path: PathBuf,
    lines: io::Lines<BufReader<File>>,
    number: usize,
    /// The last line read; no record is beyond the last one of the file.
    last: Arrival,
}

impl Times {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let lines = BufReader::new(File::open(path)?).lines();
        Ok(Self { path: path.to_owned(), lines, number: 0, last: Arrival { records: 0, at: 0 } })
    }

    /// Returns when a record came, counted from 0, and how many came until then with it; `None`: it is not known. To be
    /// asked in order.
    ///
    /// # Errors
    /// The file is damaged; the text names the line.
    pub(super) fn of(&mut self, record: u64) -> Result<Option<(i64, u64)>, String> {
        while self.last.records <= record {
            let Some(line) = self.lines.next() else { return Ok(None) };
            self.number += 1;
            let line = line.map_err(|error| self.damaged(&error))?;
            match serde_json::from_str(&line) {
                Ok(arrival) => self.last = arrival,
                // The process was killed while it wrote the last one.
                Err(_) if self.lines.next().is_none() => return Ok(None),
                Err(error) => return Err(self.damaged(&error)),
            }
        }
        Ok(Some((self.last.at, self.last.records)))
    }

    fn damaged(&self, error: &dyn std::fmt::Display) -> String {
        format!("the recording is damaged: `{}`, line {}: {error}", self.path.display(), self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let mut arrivals = Arrivals::create(&path, Arc::new(WallClock::new())).unwrap();
        [3, 0, 1, 5].into_iter().for_each(|records| arrivals.add(records));
        assert_eq!((arrivals.records(), arrivals.failure().is_none()), (9, true));
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3);
        let mut times = Times::open(&path).unwrap();
        let mut until = |record| times.of(record).unwrap().map(|(_, until)| until);
        assert_eq!([0, 2, 3, 4, 8].map(&mut until), [3, 3, 4, 9, 9].map(Some));
        assert_eq!(until(9), None);
    }

    #[test]
    fn a_torn_line_is_the_end_and_a_wrong_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let of = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let mut times = Times::open(&path).unwrap();
            (times.of(1), times.of(3))
        };
        let whole = "{\"records\":2,\"at\":7}\n";
        assert_eq!(of(&format!("{whole}{{\"rec")), (Ok(Some((7, 2))), Ok(None)));
        let (first, second) = of(&format!("{whole}nonsense\n{whole}"));
        assert_eq!(first, Ok(Some((7, 2))));
        assert!(second.unwrap_err().contains("line 2"));
    }
}
