//! A running `slices`: the sounds whose windows have not all left, and the last samples of each key.
use crate::api::{DeadLetter, OperatorError, Output, StateKeys, Stateful, TakesKeys};
use crate::record::{
    EventTime, METADATA_COLUMNS, Metadata, batch_bytes, binary, int64, text, unfold_metadata,
};
use crate::relational::snapshot;
use arrow_array::{
    Array, ArrayRef, BinaryArray, FixedSizeListArray, Float32Array, Float64Array, Int64Array, RecordBatch,
    StringArray, UInt32Array, UInt64Array,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use arrow_select::take::take;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tidemill_media::Rejected;
use tidemill_media::resample::Resampler;
use tidemill_media::wav::{Longest, decode, decode_any};

/// Format of the snapshots.
const TAG: [u8; 8] = *b"SLCS0001";
/// Samples after which an epoch gets no more windows of whole sounds: 32 MiB. Few in the tests of this crate.
const EPOCH_SAMPLES: usize = if cfg!(test) { 500 } else { 8 << 20 };
const SECOND: f64 = 1_000_000.0;

/// Settings that all copies of one `slices` share.
pub(super) struct Setup {
    pub(super) operator: u64,
    pub(super) rate: u32,
    /// Samples of a window, and from one to the next.
    pub(super) length: usize,
    pub(super) every: usize,
    /// Samples of silence before the start of a sound and after its end.
    pub(super) before: usize,
    pub(super) after: usize,
    /// Whether a window at the end of a sound is filled with silence.
    pub(super) pads: bool,
    /// Payload positions.
    pub(super) audio: usize,
    pub(super) key: Option<usize>,
    pub(super) number: Option<usize>,
    pub(super) kept: Vec<usize>,
    pub(super) input: SchemaRef,
    pub(super) output: SchemaRef,
}

/// Position of the event time among the metadata columns.
const TIME: usize = 3;

impl Setup {
    /// Decodes a sound that is by itself, and adds the silence around it.
    fn whole(&self, bytes: &[u8]) -> Result<Vec<f32>, Rejected> {
        let (sound, rate) = decode_any(bytes, Longest { sample_rate: self.rate, seconds: None })?;
        let resampler = Resampler::new(rate, self.rate).ok_or_else(|| {
            Rejected::new("audio_sample_rate", format!("{rate} samples per second are not supported"))
        })?;
        let sound = resampler.resample(&sound);
        let mut samples = vec![0.0; self.before];
        samples.extend(sound);
        samples.resize(samples.len() + self.after, 0.0);
        if let Some(padded) = self.padded(samples.len()) {
            samples.resize(padded, 0.0);
        }
        Ok(samples)
    }

    /// Microseconds of samples.
    fn time(&self, samples: usize) -> i64 {
        (samples as f64 / f64::from(self.rate) * SECOND).round() as i64
    }

    /// Length of a whole sound of this length with the silence that fills its last window; none if that is full.
    fn padded(&self, samples: usize) -> Option<usize> {
        let full = self.windows(samples);
        let begin = full * self.every;
        let covered = full.checked_sub(1).map_or(0, |last| last * self.every + self.length);
        (self.pads && covered.max(begin) < samples).then(|| begin + self.length)
    }

    /// Full windows of a sound of this length.
    fn windows(&self, samples: usize) -> usize {
        samples.checked_sub(self.length).map_or(0, |rest| rest / self.every + 1)
    }
}

fn broken(error: ArrowError) -> OperatorError {
    OperatorError::new(format!("slices: {error}"))
}

/// Windows that leave together.
#[derive(Default)]
struct Windows {
    rows: Vec<u32>,
    /// Numbers of the windows of each row.
    indices: Vec<u32>,
    /// Event times, microseconds: those of their ends, so that the windows of a sound stay in their order.
    times: Vec<EventTime>,
    starts: Vec<f64>,
    samples: Vec<f32>,
}

impl Windows {
    fn push(&mut self, row: u32, index: u32, time: EventTime, start: f64, samples: &[f32]) {
        self.rows.push(row);
        self.indices.push(index);
        self.times.push(time);
        self.starts.push(start);
        self.samples.extend_from_slice(samples);
    }

    /// Makes records of them, from rows of this batch.
    fn send(self, setup: &Setup, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let mut columns =
            unfold_metadata(batch, &self.rows, &self.indices, setup.operator).map_err(broken)?;
        columns[TIME] = Arc::new(Int64Array::from(self.times));
        let rows = UInt32Array::from(self.rows);
        for column in &setup.kept {
            columns.push(take(batch.column(METADATA_COLUMNS + column), &rows, None).map_err(broken)?);
        }
        columns.push(Arc::new(Float64Array::from(self.starts)));
        let last = setup.output.fields().len() - 1;
        let DataType::FixedSizeList(item, length) = setup.output.field(last).data_type() else {
            return Err(OperatorError::new("slices: the samples are no tensor"));
        };
        let samples = Arc::new(Float32Array::from(self.samples));
        let tensors =
            FixedSizeListArray::try_new(Arc::clone(item), *length, samples, None).map_err(broken)?;
        columns.push(Arc::new(tensors));
        output.push(RecordBatch::try_new(Arc::clone(&setup.output), columns).map_err(broken)?);
        Ok(())
    }
}

/// A sound by itself whose windows have not all left.
struct Waiting {
    /// Its record.
    row: RecordBatch,
    /// Number of its next window.
    next: usize,
    /// Decoded when its first window leaves, and again after a restart.
    samples: Option<Vec<f32>>,
}

impl Waiting {
    fn time(&self) -> EventTime {
        Metadata::of(&self.row).times.value(0)
    }
}

/// The last samples of one key, from the start of the next window on.
#[derive(Debug, Clone, PartialEq)]
struct Heard {
    samples: Vec<f32>,
    /// Event time of their end, microseconds.
    end: EventTime,
    /// Number of the last sound, where they are counted.
    number: Option<i64>,
    /// Samples to pass over before the next window starts, where there is time between windows.
    skip: usize,
    /// Route class of the last sound, by which a state is divided.
    class: u32,
}

impl Heard {
    /// Forgets what was before a gap.
    fn restart(&mut self, setup: &Setup, output: &mut Output) {
        self.samples.clear();
        self.samples.resize(setup.before, 0.0);
        self.skip = 0;
        output.note_rows("gap", 1);
    }
}

/// A running `slices`.
pub(super) struct Running {
    setup: Arc<Setup>,
    waiting: VecDeque<Waiting>,
    keys: BTreeMap<Option<String>, Heard>,
}

impl Running {
    pub(super) fn new(setup: Arc<Setup>) -> Self {
        Self { setup, waiting: VecDeque::new(), keys: BTreeMap::new() }
    }

    /// Appends a chunk to what is held of its key, and cuts off the windows that are complete.
    fn hear(
        &mut self,
        batch: &RecordBatch,
        row: usize,
        (key, mut chunk): (Option<String>, Vec<f32>),
        windows: &mut Windows,
        output: &mut Output,
    ) {
        let setup = &self.setup;
        let metadata = Metadata::of(batch);
        let begin = metadata.times.value(row);
        let end = begin.saturating_add(setup.time(chunk.len()));
        let heard = self.keys.entry(key).or_insert_with(|| Heard {
            samples: vec![0.0; setup.before],
            end: begin,
            number: None,
            skip: 0,
            class: 0,
        });
        let off = begin.saturating_sub(heard.end);
        let tolerance = setup.time(setup.every) / 2;
        let numbers = setup.number.and_then(|column| int64(batch.column(METADATA_COLUMNS + column)));
        let number = numbers.filter(|numbers| numbers.is_valid(row)).map(|numbers| numbers.value(row));
        let is_late = match (heard.number, number) {
            (Some(last), Some(number)) if number == last.saturating_add(1) => false,
            (Some(last), Some(number)) if number <= last && off < -tolerance => true,
            // A number was left out, or the count began anew.
            (Some(_), Some(_)) => {
                heard.restart(setup, output);
                false
            }
            _ if off > tolerance => {
                heard.restart(setup, output);
                false
            }
            _ if off < -tolerance => {
                let known = (off.unsigned_abs() as f64 / SECOND * f64::from(setup.rate)).round() as usize;
                chunk.drain(..known.min(chunk.len()));
                chunk.is_empty()
            }
            _ => false,
        };
        if is_late {
            output.drop_rows("late", 1);
            return;
        }
        (heard.end, heard.number, heard.class) = (end, number, metadata.classes.value(row));
        let passed = heard.skip.min(chunk.len());
        heard.skip -= passed;
        heard.samples.extend_from_slice(&chunk[passed..]);
        let count = setup.windows(heard.samples.len());
        let first = end.saturating_sub(setup.time(heard.samples.len()));
        for index in 0..count {
            let at = index * setup.every;
            let start = first.saturating_add(setup.time(at)) as f64 / SECOND;
            // Times may be off, but a window never comes before its sound, nor two at once.
            let time = first.saturating_add(setup.time(at + setup.length)).max(begin + index as i64);
            windows.push(row as u32, index as u32, time, start, &heard.samples[at..at + setup.length]);
        }
        let used = count * setup.every;
        heard.skip = heard.skip.saturating_add(used.saturating_sub(heard.samples.len()));
        heard.samples.drain(..used.min(heard.samples.len()));
    }

    /// Sends windows of the sound that waits longest, until it has none left or the epoch has enough. Returns
    /// the samples sent.
    fn send_first(&mut self, most: usize, output: &mut Output) -> Result<usize, OperatorError> {
        let setup = Arc::clone(&self.setup);
        let Some(first) = self.waiting.front_mut() else { return Ok(0) };
        let begin = first.time();
        let samples = match &first.samples {
            Some(samples) => samples,
            None => {
                let sounds = binary(first.row.column(METADATA_COLUMNS + setup.audio));
                let sound = sounds.filter(|sounds| sounds.is_valid(0)).map(|sounds| sounds.value(0));
                let empty = || Rejected::new("audio_empty", "there is no sound in the record");
                match sound.ok_or_else(empty).and_then(|bytes| setup.whole(bytes)) {
                    Ok(samples) => &*first.samples.insert(samples),
                    Err(rejected) => {
                        output.dead_letters.push(DeadLetter::of_row(
                            &first.row,
                            0,
                            rejected.reason,
                            rejected.detail,
                        ));
                        self.waiting.pop_front();
                        return Ok(0);
                    }
                }
            }
        };
        let count = setup.windows(samples.len());
        if count == 0 {
            output.drop_rows("short", 1);
        }
        let end = count.min(first.next.saturating_add((most / setup.length).max(1)));
        let mut windows = Windows::default();
        for index in first.next..end {
            let at = index * setup.every;
            let start = (at as f64 - setup.before as f64) / f64::from(setup.rate);
            // A window that ends before the sound does not come before it.
            let length = (at + setup.length).saturating_sub(setup.before);
            let time = begin.saturating_add(setup.time(length).max(index as i64));
            windows.push(0, index as u32, time, start, &samples[at..at + setup.length]);
        }
        let sent = windows.samples.len();
        windows.send(&setup, &first.row, output)?;
        first.next = end;
        if end == count {
            self.waiting.pop_front();
        }
        Ok(sent)
    }

    fn key_schema() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("key", DataType::Utf8, true),
            Field::new("end", DataType::Int64, false),
            Field::new("number", DataType::Int64, true),
            Field::new("skip", DataType::UInt64, false),
            Field::new("class", DataType::UInt32, false),
            Field::new("samples", DataType::Binary, false),
        ]))
    }

    /// The held samples as rows.
    fn key_rows(&self) -> Result<RecordBatch, OperatorError> {
        let heard = || self.keys.values();
        let bytes: Vec<Vec<u8>> =
            heard().map(|of| of.samples.iter().flat_map(|sample| sample.to_le_bytes()).collect()).collect();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.keys.keys().map(Option::as_deref).collect::<StringArray>()),
            Arc::new(Int64Array::from_iter_values(heard().map(|of| of.end))),
            Arc::new(heard().map(|of| of.number).collect::<Int64Array>()),
            Arc::new(UInt64Array::from_iter_values(heard().map(|of| of.skip as u64))),
            Arc::new(UInt32Array::from_iter_values(heard().map(|of| of.class))),
            Arc::new(BinaryArray::from_iter_values(bytes)),
        ];
        RecordBatch::try_new(Self::key_schema(), columns).map_err(broken)
    }

    /// Adds a snapshot's rows that `takes` selects, or all.
    fn add(&mut self, bytes: &[u8], takes: Option<&TakesKeys<'_>>) -> Result<(), OperatorError> {
        let damaged =
            || OperatorError::new("slices: the snapshot is damaged: start the run from the beginning");
        let schemas = [Arc::clone(&self.setup.input), Self::key_schema()];
        let (next, sections) = snapshot::read::<Vec<usize>>(TAG, &schemas, bytes)?;
        let [waiting, keys] = &sections[..] else { return Err(damaged()) };
        let waiting = concat_batches(&schemas[0], waiting).map_err(broken)?;
        let keys = concat_batches(&schemas[1], keys).map_err(broken)?;
        if waiting.num_rows() != next.len() {
            return Err(damaged());
        }
        let metadata = Metadata::of(&waiting);
        let is_taken = |classes: &UInt32Array, first: Option<&ArrayRef>| {
            takes.map(|takes| takes(&StateKeys { classes, first }))
        };
        let taken = is_taken(metadata.classes, None);
        for (row, next) in next.into_iter().enumerate() {
            if taken.as_ref().is_none_or(|taken| taken.value(row)) {
                self.waiting.push_back(Waiting { row: waiting.slice(row, 1), next, samples: None });
            }
        }
        // In the order in which they came.
        self.waiting
            .make_contiguous()
            .sort_by_key(|waiting| (waiting.time(), Metadata::of(&waiting.row).id(0)));
        let names = text(keys.column(0)).ok_or_else(damaged)?;
        let numbers = |at: usize| keys.column(at).as_any();
        let (Some(ends), Some(counts), Some(skips), Some(classes), Some(samples)) = (
            numbers(1).downcast_ref::<Int64Array>(),
            numbers(2).downcast_ref::<Int64Array>(),
            numbers(3).downcast_ref::<UInt64Array>(),
            numbers(4).downcast_ref::<UInt32Array>(),
            binary(keys.column(5)),
        ) else {
            return Err(damaged());
        };
        let taken = is_taken(classes, Some(keys.column(0)));
        for row in 0..keys.num_rows() {
            if taken.as_ref().is_some_and(|taken| !taken.value(row)) {
                continue;
            }
            let (floats, _) = samples.value(row).as_chunks::<4>();
            let heard = Heard {
                samples: floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
                end: ends.value(row),
                number: counts.is_valid(row).then(|| counts.value(row)),
                skip: usize::try_from(skips.value(row)).map_err(|_| damaged())?,
                class: classes.value(row),
            };
            self.keys.insert(names.is_valid(row).then(|| names.value(row).to_owned()), heard);
        }
        Ok(())
    }
}

impl Stateful for Running {
    fn apply(&mut self, _: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let setup = Arc::clone(&self.setup);
        let Some(key) = setup.key else {
            for row in 0..batch.num_rows() {
                self.waiting.push_back(Waiting { row: batch.slice(row, 1), next: 0, samples: None });
            }
            return Ok(());
        };
        let sounds = binary(batch.column(METADATA_COLUMNS + setup.audio));
        let keys = text(batch.column(METADATA_COLUMNS + key));
        let mut windows = Windows::default();
        for row in 0..batch.num_rows() {
            let sound = sounds.filter(|sounds| sounds.is_valid(row)).map(|sounds| sounds.value(row));
            let empty = || Rejected::new("audio_empty", "there is no sound in the record");
            match sound.ok_or_else(empty).and_then(|bytes| decode(bytes, setup.rate)) {
                Ok(chunk) => {
                    let key = keys.filter(|keys| keys.is_valid(row)).map(|keys| keys.value(row).to_owned());
                    self.hear(batch, row, (key, chunk), &mut windows, output);
                }
                Err(rejected) => {
                    output.dead_letters.push(DeadLetter::of_row(
                        batch,
                        row,
                        rejected.reason,
                        rejected.detail,
                    ));
                }
            }
        }
        windows.send(&setup, batch, output)
    }

    fn advance(&mut self, watermark: EventTime, output: &mut Output) -> Result<(), OperatorError> {
        let mut left = EPOCH_SAMPLES;
        while left > 0 && !self.waiting.is_empty() {
            left = left.saturating_sub(self.send_first(left, output)?);
        }
        if watermark == EventTime::MAX {
            self.keys.clear();
        }
        Ok(())
    }

    fn has_more(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn output_watermark(&self, watermark: EventTime) -> EventTime {
        self.waiting.iter().map(Waiting::time).min().map_or(watermark, |time| time.min(watermark))
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        let next: Vec<usize> = self.waiting.iter().map(|waiting| waiting.next).collect();
        let rows = self.waiting.iter().map(|waiting| waiting.row.clone()).collect();
        let sections = [(Arc::clone(&self.setup.input), rows), (Self::key_schema(), vec![self.key_rows()?])];
        snapshot::write(TAG, &next, &sections)
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), OperatorError> {
        self.waiting.clear();
        self.keys.clear();
        self.add(snapshot, None)
    }

    fn is_divisible(&self) -> bool {
        true
    }

    fn take_in(&mut self, snapshot: &[u8], takes: &TakesKeys<'_>) -> Result<(), OperatorError> {
        self.add(snapshot, Some(takes))
    }

    fn state_bytes(&self) -> usize {
        let waiting = self.waiting.iter().map(|waiting| {
            batch_bytes(&waiting.row)
                + waiting.samples.as_ref().map_or(0, |samples| samples.len() * size_of::<f32>())
        });
        let heard =
            self.keys.values().map(|heard| size_of::<Heard>() + heard.samples.len() * size_of::<f32>());
        waiting.sum::<usize>() + heard.sum::<usize>()
    }
}
