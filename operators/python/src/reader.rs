//! Reads the records that a source in Python gives: more at once than the engine asks for, which then gets them in parts.
use crate::caller::cannot_start;
use crate::process::{Fault, Process, Read};
use crate::protocol::StartError;
use crate::times::Times;
use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch, UInt64Array};
use arrow_schema::{DataType, SchemaRef};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tidemill_operators::api::{DeadLetter, OperatorError, Source, SourcePosition, SourceRead};
use tidemill_operators::record::EventTime;
use tidemill_spec::types::StreamType;

/// Most records of a call.
const ROWS: u64 = 16 << 10;
/// Bytes after which a call gives no further record.
const BYTES: u64 = 4 << 20;
/// Time in which a call answers, also without records.
const WAIT: Duration = Duration::from_millis(200);

/// Starts the process that gives the records.
pub(crate) type Open = Arc<dyn Fn() -> Result<Process, StartError> + Send + Sync>;

/// A source whose code is known.
pub(crate) struct Origin {
    pub(crate) id: String,
    pub(crate) output: StreamType,
    pub(crate) schema: SchemaRef,
    pub(crate) times: Option<Times>,
    pub(crate) open: Open,
    /// Faults in a row after which the run stops.
    pub(crate) restart: u32,
    /// Longest time without a record.
    pub(crate) timeout: Option<Duration>,
    /// Whether it can continue at a position.
    pub(crate) has_position: bool,
}

/// A position: that of Python, in JSON, and the number of records after it. No position: the beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    at: Option<String>,
    after: u64,
}

/// Records that were read and not given to the engine yet.
struct Pending {
    payload: RecordBatch,
    times: Option<Vec<EventTime>>,
    /// Number of each row among the records; `None`: all are rows.
    numbers: Option<Vec<u64>>,
    letters: Vec<(u64, DeadLetter)>,
    sizes: Vec<u32>,
    records: u64,
    given: u64,
    /// The position after the last one.
    next: Place,
    has_caught_up: bool,
}

/// The reader.
pub(crate) struct Reader {
    origin: Arc<Origin>,
    process: Option<Process>,
    pending: Option<Pending>,
    /// Position of the first record that is pending, or of the next one that the process gives.
    base: Place,
    /// Records of the process to leave out: they were given before.
    skip: u64,
    is_over: bool,
    faults: u32,
    silence: Duration,
    sizes: Vec<u32>,
    has_caught_up: bool,
}

impl Reader {
    pub(crate) fn new(origin: Arc<Origin>) -> Self {
        Self {
            origin,
            process: None,
            pending: None,
            base: Place::default(),
            skip: 0,
            is_over: false,
            faults: 0,
            silence: Duration::ZERO,
            sizes: Vec::new(),
            has_caught_up: false,
        }
    }

    fn now(&self) -> Place {
        let given = self.pending.as_ref().map_or(self.skip, |pending| pending.given);
        Place { at: self.base.at.clone(), after: self.base.after + given }
    }

    /// Starts the process at the present position.
    fn process(&mut self) -> Result<&mut Process, Fault> {
        if self.process.is_none() {
            let start = (self.origin.open)();
            let failed = |error| Fault::Failed {
                reason: "python_error".to_owned(),
                detail: cannot_start(&self.origin.id, &error),
            };
            let mut process = start.map_err(failed)?;
            process.expect(&self.origin.output);
            let Place { at, after } = self.now();
            if let Some(at) = &at {
                process.seek(at)?;
            }
            (self.base, self.skip) = (Place { at, after: 0 }, after);
            self.process = Some(process);
        }
        let gone = || Fault::Ended { detail: "the process is gone".to_owned(), row: None };
        self.process.as_mut().ok_or_else(gone)
    }

    /// Reads ahead once; returns whether something came, or the end.
    fn fetch(&mut self) -> Result<bool, Fault> {
        let read = self.process()?.read(ROWS, BYTES, WAIT)?;
        let Some(read) = read else {
            self.is_over = true;
            self.process = None;
            return Ok(true);
        };
        let pending = self.pending(read)?;
        if pending.given == pending.records {
            self.base = pending.next.clone();
        }
        if pending.records == 0 {
            self.silence += WAIT;
            if self.origin.timeout.is_some_and(|timeout| self.silence >= timeout) {
                return Err(self.process()?.hangs());
            }
            return Ok(false);
        }
        (self.faults, self.silence) = (0, Duration::ZERO);
        if pending.given < pending.records {
            self.pending = Some(pending);
        }
        Ok(true)
    }

    fn pending(&mut self, read: Read) -> Result<Pending, Fault> {
        let broken = |what: String| Fault::Ended { detail: what, row: None };
        let schema = Arc::clone(&self.origin.schema);
        let mut payload =
            RecordBatch::try_new(schema, read.given.columns).map_err(|error| broken(error.to_string()))?;
        let letter = |reason: String, detail: String| DeadLetter {
            id: None,
            time: None,
            reason: reason.into(),
            detail,
            values: Default::default(),
        };
        let mut letters: Vec<(u64, DeadLetter)> = read
            .given
            .rejected
            .into_iter()
            .map(|rejected| (u64::from(rejected.row), letter(rejected.reason, rejected.detail)))
            .collect();
        let records = payload.num_rows() as u64 + letters.len() as u64;
        let mut numbers = read.given.origins.map(|rows| rows.into_iter().map(u64::from).collect::<Vec<_>>());
        let mut taken: Vec<u64> = numbers.clone().unwrap_or_else(|| (0..records).collect());
        taken.extend(letters.iter().map(|(number, _)| *number));
        taken.sort_unstable();
        let is_sorted = numbers.as_ref().is_none_or(|numbers| numbers.is_sorted());
        if !is_sorted || !taken.into_iter().eq(0..records) {
            return Err(broken("the numbers of its records do not count them".to_owned()));
        }
        let mut times = None;
        if let Some(column) = self.origin.times {
            let found = column.read(&payload);
            let good: Vec<u64> =
                (0..).zip(&found).filter(|(_, time)| time.is_some()).map(|(row, _)| row).collect();
            if good.len() < found.len() {
                let all = numbers.take().unwrap_or_else(|| (0..records).collect());
                for (row, time) in found.iter().enumerate() {
                    if time.is_none() {
                        let detail = "the event time is empty or out of range".to_owned();
                        letters.push((all[row], letter("bad_value".to_owned(), detail)));
                    }
                }
                numbers = Some(good.iter().map(|row| all[*row as usize]).collect());
                payload = arrow_select::take::take_record_batch(&payload, &UInt64Array::from(good))
                    .map_err(|error| broken(error.to_string()))?;
            }
            times = Some(found.into_iter().flatten().collect());
        }
        letters.sort_by_key(|(number, _)| *number);
        let rows = row_sizes(&payload);
        let sizes = match &numbers {
            None => rows,
            Some(numbers) => {
                let mut sizes = vec![0; records as usize];
                numbers.iter().zip(rows).for_each(|(number, size)| sizes[*number as usize] = size);
                sizes
            }
        };
        let left_out = self.skip.min(records);
        self.skip -= left_out;
        letters.retain(|(number, _)| *number >= left_out);
        let next = match read.position.as_str() {
            "" => Place { at: self.base.at.clone(), after: self.base.after + records },
            position => Place { at: Some(position.to_owned()), after: 0 },
        };
        let has_caught_up = read.has_caught_up;
        Ok(Pending { payload, times, numbers, letters, sizes, records, given: left_out, next, has_caught_up })
    }

    /// Gives the next of the pending records.
    fn take(&mut self, rows: usize, bytes: usize) -> Option<SourceRead> {
        let pending = self.pending.as_mut()?;
        let first = pending.given;
        let mut sum = 0usize;
        let mut last = first;
        while last < pending.records && last - first < rows as u64 && (last == first || sum < bytes) {
            sum += pending.sizes[last as usize] as usize;
            last += 1;
        }
        pending.given = last;
        let (from, to) = match &pending.numbers {
            None => (first as usize, last as usize),
            Some(numbers) => (
                numbers.partition_point(|number| *number < first),
                numbers.partition_point(|number| *number < last),
            ),
        };
        let letters = pending.letters.extract_if(.., |(number, _)| *number < last);
        let dead_letters: Vec<DeadLetter> = letters.map(|(_, letter)| letter).collect();
        let offsets = match (&pending.numbers, dead_letters.is_empty()) {
            (Some(numbers), false) => Some(numbers[from..to].iter().map(|number| number - first).collect()),
            _ => None,
        };
        self.sizes = pending.sizes[first as usize..last as usize].to_vec();
        let is_last = last == pending.records;
        self.has_caught_up = is_last && pending.has_caught_up;
        let payload = pending.payload.slice(from, to - from);
        let times = pending.times.as_ref().map(|times| times[from..to].to_vec());
        if is_last && let Some(done) = self.pending.take() {
            self.base = done.next;
        }
        Some(SourceRead::Rows { payload, times, dead_letters, offsets })
    }

    /// Starts anew at the present position, if the source can and has not failed too often.
    fn recover(&mut self, fault: Fault) -> Result<(), OperatorError> {
        self.process = None;
        self.silence = Duration::ZERO;
        let (Fault::Failed { detail, .. } | Fault::Ended { detail, .. } | Fault::TimedOut { detail, .. }) =
            fault;
        if !self.origin.has_position {
            let text = format!("{detail}\nit has no `position` and `seek`, so that it cannot continue");
            return Err(OperatorError::new(text));
        }
        self.faults += 1;
        if self.faults > self.origin.restart {
            let text = format!(
                "it failed {} times in a row (`restart: {}`); the last time:\n{detail}",
                self.faults, self.origin.restart
            );
            return Err(OperatorError::new(text));
        }
        tracing::warn!(source = self.origin.id, "it starts again at its position: {detail}");
        Ok(())
    }
}

impl Source for Reader {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        loop {
            if let Some(read) = self.take(rows, bytes) {
                return Ok(read);
            }
            if self.is_over {
                return Ok(SourceRead::End);
            }
            match self.fetch() {
                Ok(true) => {}
                Ok(false) => return Ok(SourceRead::Idle { watermark: EventTime::MIN }),
                Err(fault) => self.recover(fault)?,
            }
        }
    }

    fn position(&self) -> SourcePosition {
        SourcePosition(serde_json::to_string(&self.now()).unwrap_or_default())
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        let unreadable =
            |_| OperatorError::new(format!("`{}` is no position of a source in Python", position.0));
        let place: Place = serde_json::from_str(&position.0).map_err(unreadable)?;
        if place == self.now() {
            return Ok(());
        }
        if !self.origin.has_position {
            let text = "what it gave cannot be read again: it has no `position` and `seek`";
            return Err(OperatorError::new(text));
        }
        (self.process, self.pending, self.is_over, self.skip) = (None, None, false, 0);
        self.base = place;
        Ok(())
    }

    fn replayable(&self) -> bool {
        self.origin.has_position
    }

    fn sizes(&self) -> Option<&[u32]> {
        Some(&self.sizes)
    }

    fn has_caught_up(&self) -> bool {
        self.has_caught_up
    }
}

/// Bytes of each row.
fn row_sizes(payload: &RecordBatch) -> Vec<u32> {
    let mut sizes = vec![0u32; payload.num_rows()];
    let mut fixed = 0u32;
    for column in payload.columns() {
        let ends = match column.data_type() {
            DataType::Utf8 => column.as_string::<i32>().value_offsets(),
            DataType::Binary => column.as_binary::<i32>().value_offsets(),
            DataType::FixedSizeList(item, length) => {
                fixed += *length as u32 * item.data_type().primitive_width().unwrap_or(8) as u32;
                continue;
            }
            other => {
                fixed += other.primitive_width().unwrap_or(1) as u32;
                continue;
            }
        };
        sizes.iter_mut().zip(ends.windows(2)).for_each(|(size, pair)| *size += (pair[1] - pair[0]) as u32);
    }
    sizes.iter_mut().for_each(|size| *size = size.saturating_add(fixed));
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Launch;
    use crate::protocol::Role;
    use std::path::PathBuf;
    use tidemill_operators::record::payload_schema;
    use tidemill_spec::types::{Column, ColumnType};

    const MODULE: &str = "
class Rows:
    def __init__(self):
        self.n = 0
    def __iter__(self):
        while self.n < 100:
            n, self.n = self.n, self.n + 1
            yield {'n': n if n % 10 else 'no', 'at': None if n == 55 else n * 2}
    def position(self):
        return self.n
    def seek(self, position):
        self.n = position
";

    /// Numbers of the records that are read from a position, -1 for a dead letter, and the positions between the reads.
    fn read(reader: &mut Reader, rows: usize) -> Vec<(SourcePosition, Vec<i64>)> {
        let mut found = Vec::new();
        loop {
            let position = reader.position();
            match reader.read(rows, usize::MAX).unwrap() {
                SourceRead::End => return found,
                SourceRead::Idle { .. } => {}
                SourceRead::Rows { payload, times, dead_letters, offsets } => {
                    let records = payload.num_rows() + dead_letters.len();
                    let mut numbers = vec![-1; records];
                    let column = payload.column(0).as_primitive::<arrow_array::types::Int64Type>();
                    for (row, number) in column.values().iter().enumerate() {
                        let at = offsets.as_ref().map_or(row, |offsets| offsets[row] as usize);
                        numbers[at] = *number;
                        assert_eq!(times.as_ref().unwrap()[row], number * 2000);
                    }
                    assert_eq!(reader.sizes().unwrap().len(), records);
                    found.push((position, numbers));
                }
            }
        }
    }

    #[test]
    fn reading_goes_on_at_every_position_that_was_told() {
        let python = std::env::var_os("TIDEMILL_TEST_PYTHON").unwrap_or_else(|| "python3".into());
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ops.py"), MODULE).unwrap();
        let output =
            StreamType::new([Column::new("n", ColumnType::Int64), Column::new("at", ColumnType::Int64)]);
        let launch = Launch {
            operator: "rows".into(),
            interpreter: PathBuf::from(python),
            arguments: None,
            folder: folder.path().to_owned(),
            module: "ops.py".into(),
            name: "Rows".into(),
            is_class: true,
            batch: false,
            role: Role::Source,
            parameters: serde_json::json!({}),
            input: StreamType::default(),
            output: Some(output.clone()),
            timeout: Duration::from_secs(30),
        };
        if Process::start(&launch).is_err() {
            eprintln!("skipped: no Python 3.9 or newer; TIDEMILL_TEST_PYTHON names one");
            return;
        }
        let times = Times::of(&"at".into(), crate::times::TimeUnit::Ms, &output).unwrap();
        let origin = Arc::new(Origin {
            id: "rows".into(),
            schema: payload_schema(&output),
            output,
            times: Some(times),
            open: Arc::new(move || Process::start(&launch)),
            restart: 0,
            timeout: None,
            has_position: true,
        });
        let expected: Vec<i64> = (0..100).map(|n| if n % 10 == 0 || n == 55 { -1 } else { n }).collect();
        let parts = read(&mut Reader::new(Arc::clone(&origin)), 7);
        assert!(parts.iter().flat_map(|(_, numbers)| numbers).eq(&expected));
        for (position, numbers) in parts.iter().step_by(4) {
            let mut reader = Reader::new(Arc::clone(&origin));
            reader.seek(position).unwrap();
            let rest: Vec<i64> = read(&mut reader, 5).into_iter().flat_map(|(_, numbers)| numbers).collect();
            assert_eq!(&rest[..numbers.len()], numbers, "{position:?}");
            assert_eq!(rest, expected[expected.len() - rest.len()..]);
        }
    }
}
