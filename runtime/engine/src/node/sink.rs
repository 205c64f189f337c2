//! Feeds a sink: rows wait until their epoch is complete, are written in a fixed order and committed. Only then can readers
//! see them, and their latency ends.
//!
//! A sink that can undo commits commits each epoch, others per checkpoint. A restart in this process repeats epochs from a
//! checkpoint on: committed ones are dropped here. Another process continues with the result of [`past`], which is of the
//! checkpoint's epoch if the sink can be cut back to that, and the sink undoes later commits.
mod marks;
mod unpublished;

use self::marks::{Mark, Marks};
use self::unpublished::Unpublished;
use super::{Emit, Node, Processing};
use crate::checkpoint::SinkPast;
use crate::clock::Nanoseconds;
use crate::context::{SlotContext, StageContext};
use crate::faults::Point;
use crate::frame::{CLOSED, Epoch};
use crate::metrics::{SinkMetrics, count};
use crate::order;
use crate::traces::Happening;
use arrow_array::RecordBatch;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidemill_operators::api::{DeadLetter, GroundTruth, OperatorError, Sink};
use tidemill_operators::ground_truth::Score;
use tidemill_operators::record;
use tidemill_spec::publication::Publication;

/// The part of a sink that outlives its slot.
pub(crate) struct SinkCell {
    pub(crate) sink: Box<dyn Sink>,
    /// All epochs before it are in the sink, even if the slot is lost.
    pub(crate) committed: Epoch,
    pub(crate) rows: u64,
    /// Rows that other processes committed.
    pub(crate) rows_before: u64,
    pub(crate) score: Score,
    /// Another process has committed rows that remain valid, and that are not in the score.
    has_past: bool,
    staged_rows: u64,
    staged_score: Score,
    /// Committed rows that become visible when the sink is closed.
    unpublished: Unpublished,
    /// The epoch after the last one that had rows.
    staged_until: Epoch,
    /// States to which the sink can be cut back; `None`: only its present one.
    marks: Option<Marks>,
}

impl SinkCell {
    pub(crate) fn new(sink: Box<dyn Sink>) -> Self {
        Self {
            sink,
            committed: 0,
            rows: 0,
            rows_before: 0,
            score: Score::default(),
            has_past: false,
            staged_rows: 0,
            staged_score: Score::default(),
            unpublished: Unpublished::default(),
            staged_until: 0,
            marks: None,
        }
    }

    /// Prepares a sink for checkpoints of exactly their epoch: it records its state before each epoch of a possible
    /// checkpoint. A sink that is exactly once and publishes only with checkpoints commits no single epochs, and does not.
    pub(crate) fn with_marks(mut self) -> Result<Self, OperatorError> {
        if self.sink.publication() != Publication::EachCheckpoint {
            (self.marks, self.staged_until) = (Some(Marks::default()), self.committed);
            self.mark()?;
        }
        Ok(self)
    }

    /// Records the committed state.
    fn mark(&mut self) -> Result<(), OperatorError> {
        if let Some(marks) = &mut self.marks
            && let Some(token) = self.sink.token()?
        {
            marks.add(Mark { epoch: self.staged_until, rows: self.rows_before + self.rows, token });
        }
        Ok(())
    }

    /// Creates a sink that continues the commits of another process; `rows_before` of its rows are of earlier runs.
    pub(crate) fn continued(sink: Box<dyn Sink>, past: &SinkPast, rows_before: u64) -> Self {
        let rows = past.rows.saturating_sub(rows_before);
        Self { committed: past.committed, rows, rows_before, has_past: past.rows > 0, ..Self::new(sink) }
    }

    /// Judges staged rows. If all rows are judged together and some are not here, there is no result: against the whole
    /// truth, those rows would count as missing.
    fn judge(&mut self, truth: &GroundTruth, batch: &RecordBatch) {
        if truth.is_whole() && self.has_past {
            let mut apart = Score::default();
            apart.judge(truth, batch, &self.score);
            self.staged_score.unknown += apart.unknown;
            return;
        }
        self.staged_score.judge(truth, batch, &self.score);
    }

    /// Rows of a finished commit become visible at `now`, or wait for the end.
    fn publish(&mut self, rows: &Unpublished, now: Nanoseconds, metrics: &SinkMetrics) {
        if self.sink.is_closed() {
            return;
        }
        match self.sink.publication() {
            Publication::AtEnd => self.unpublished.append(rows),
            // It was seen when it arrived.
            Publication::OnArrival => {}
            Publication::EachEpoch | Publication::EachCheckpoint => {
                metrics.latency.record_all(rows.times().map(|(intended, rows)| (now - intended, rows)));
            }
        }
    }

    /// Closes the sink; rows that become visible only then count from the time that `now` returns afterwards. `cut_short`:
    /// there was more to read.
    pub(crate) fn close(
        &mut self,
        now: impl Fn() -> Nanoseconds,
        metrics: Option<&SinkMetrics>,
        cut_short: bool,
    ) -> Result<(), OperatorError> {
        self.sink.close()?;
        let rows = std::mem::take(&mut self.unpublished);
        if let Some(metrics) = metrics {
            // No more rows come: missing ones are wrong, as far as the run has come.
            match cut_short {
                true => self.score.settle_so_far(),
                false => self.score.settle(),
            }
            self.tell_score(metrics);
            if let Some(measures) = self.score.track_measures() {
                let _ = metrics.tracks.set(measures); // closed once
            }
            // Without the rows of the process before they would be of a part.
            if let Some(measures) = self.score.measures().filter(|_| !self.has_past) {
                let _ = metrics.measures.set(measures);
            }
            let now = now();
            metrics.latency.record_all(rows.times().map(|(intended, rows)| (now - intended, rows)));
        }
        Ok(())
    }

    /// Ends the sink where another process will continue it.
    pub(crate) fn suspend(&mut self) -> Result<(), OperatorError> {
        self.sink.suspend()
    }

    /// Discards uncommitted rows.
    pub(crate) fn rollback(&mut self) -> Result<(), OperatorError> {
        self.staged_rows = 0;
        self.staged_score = Score::default();
        self.sink.rollback()
    }

    /// Returns the rows that the sink could not deliver.
    fn commit(
        &mut self,
        epoch: Epoch,
        metrics: &SinkMetrics,
    ) -> Result<Vec<(Epoch, DeadLetter)>, OperatorError> {
        self.sink.commit(epoch)?;
        let letters = self.sink.take_dead_letters();
        self.staged_rows = self.staged_rows.saturating_sub(letters.len() as u64);
        self.committed = epoch;
        self.rows += std::mem::take(&mut self.staged_rows);
        self.mark()?;
        self.score.add(std::mem::take(&mut self.staged_score));
        self.tell_score(metrics);
        metrics.committed.store(self.rows, Ordering::Relaxed);
        metrics.closed.store(self.sink.is_closed(), Ordering::Release);
        Ok(letters)
    }

    fn tell_score(&self, metrics: &SinkMetrics) {
        metrics.correct.store(self.score.correct, Ordering::Relaxed);
        metrics.scored.store(self.score.scored, Ordering::Relaxed);
        metrics.independent.store(self.score.independent, Ordering::Relaxed);
        metrics.without_truth.store(self.score.unknown, Ordering::Relaxed);
    }
}

/// Shared between the slot and the run.
pub(crate) type SharedSink = Arc<Mutex<SinkCell>>;

pub(crate) fn lock(cell: &SharedSink) -> MutexGuard<'_, SinkCell> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the data with which another process continues the sink in a checkpoint of `epoch`; data before `from` is not
/// needed any more. It is durable when this returns, which waits for the disk: rows are committed meanwhile.
pub(crate) fn past(
    cell: &SharedSink,
    (from, epoch): (Epoch, Epoch),
    is_complete: bool,
) -> Result<SinkPast, OperatorError> {
    let (past, flush) = {
        let mut cell = lock(cell);
        let (token, flush) = match is_complete {
            true => (None, None),
            false => (cell.sink.token()?, cell.sink.flush()),
        };
        let now = SinkPast { committed: cell.committed, rows: cell.rows_before + cell.rows, token };
        let mark = cell.marks.as_mut().filter(|_| !is_complete).and_then(|marks| {
            marks.forget(from);
            marks.at(epoch)
        });
        // The continuing process repeats the rows after the checkpoint.
        let past = match mark {
            Some(Mark { rows, token, .. }) if epoch <= now.committed => {
                SinkPast { committed: epoch, rows: *rows, token: Some(token.clone()) }
            }
            _ => now,
        };
        (past, flush)
    };
    flush.map_or(Ok(()), |flush| flush())?;
    Ok(past)
}

pub(crate) struct SinkNode {
    slot: Rc<SlotContext>,
    stage: StageContext,
    cell: SharedSink,
    metrics: Arc<SinkMetrics>,
    truth: Option<GroundTruth>,
    pending: BTreeMap<Epoch, Vec<RecordBatch>>,
    /// Intended times of rows that are not visible yet, by the first epoch of their common commit.
    unpublished: BTreeMap<Epoch, Unpublished>,
    /// Copied from the cell, to recognise rows of committed epochs without a lock.
    committed: Epoch,
    /// Progress of this incarnation: less than the committed epoch during a replay.
    reached: Epoch,
    publication: Publication,
    /// Metadata of uncommitted batches with traced records, with their epochs and times of arrival.
    traced: Vec<(Epoch, Nanoseconds, RecordBatch)>,
    writing: bool,
}

impl SinkNode {
    pub(crate) fn new(
        slot: Rc<SlotContext>,
        stage: StageContext,
        cell: SharedSink,
        metrics: Arc<SinkMetrics>,
        truth: Option<GroundTruth>,
    ) -> Self {
        let (committed, publication) = {
            let cell = lock(&cell);
            (cell.committed, cell.sink.publication())
        };
        let _ = metrics.publication.set(publication); // an earlier incarnation has said the same
        metrics.judged_whole.store(truth.as_ref().is_some_and(GroundTruth::is_whole), Ordering::Relaxed);
        Self {
            slot,
            stage,
            cell,
            metrics,
            truth,
            pending: BTreeMap::new(),
            unpublished: BTreeMap::new(),
            committed,
            reached: 0,
            publication,
            traced: Vec::new(),
            writing: false,
        }
    }

    /// All epochs before it are permanently in the sink and have been recomputed here; see
    /// [`super::egress::Egress::durable`].
    pub(crate) fn durable(&self) -> Epoch {
        self.committed.min(self.reached)
    }

    /// The first epoch of the common commit with this one.
    fn first_of_commit(&self, epoch: Epoch) -> Epoch {
        match self.publication {
            Publication::OnArrival | Publication::EachEpoch => epoch,
            Publication::EachCheckpoint | Publication::AtEnd => {
                epoch / self.slot.checkpoint_every * self.slot.checkpoint_every
            }
        }
    }

    /// Writes rows for those who wait for them.
    fn show(&mut self, epoch: Epoch, batch: &RecordBatch) -> Result<(), OperatorError> {
        let mut cell = lock(&self.cell);
        cell.sink.write(batch)?;
        cell.staged_until = cell.staged_until.max(epoch + 1);
        cell.staged_rows += (batch.num_rows() as u64).saturating_sub(cell.sink.refused());
        if let Some(truth) = &self.truth {
            cell.judge(truth, batch);
        }
        drop(cell);
        let now = self.slot.now();
        let intended = record::Metadata::of(batch).intended.values();
        self.metrics.latency.record_all(intended.iter().map(|intended| (now - intended, 1)));
        Ok(())
    }

    fn write_before(&mut self, epoch: Epoch) -> Result<(), OperatorError> {
        let mut cell = lock(&self.cell);
        let mut letters = Vec::new();
        while let Some(first) = self.pending.first_entry() {
            let of = *first.key();
            if epoch != CLOSED && of >= epoch {
                break;
            }
            let Some(batch) = order::join(first.remove()).map(order::by_origin) else { continue };
            cell.sink.at_epoch(of);
            cell.sink.write(&batch)?;
            cell.staged_until = of + 1;
            cell.staged_rows += (batch.num_rows() as u64).saturating_sub(cell.sink.refused());
            if let Some(truth) = &self.truth {
                cell.judge(truth, &batch);
            }
            // A checkpoint may be of any epoch.
            if cell.marks.is_some() && self.pending.first_key_value().is_some_and(|(next, _)| *next < epoch) {
                letters.append(&mut cell.commit(of + 1, &self.metrics)?);
            }
        }
        let sink = &self.stage.operator;
        self.slot.reach(Point::Committing { sink, epoch });
        letters.append(&mut cell.commit(epoch, &self.metrics)?);
        for (of, letter) in letters {
            self.stage.dead_letter(&self.slot, of, letter);
        }
        self.slot.reach(Point::Committed { sink, epoch });
        self.committed = epoch;
        let now = self.slot.now();
        while let Some(first) = self.unpublished.first_entry().filter(|first| *first.key() < epoch) {
            cell.publish(&first.remove(), now, &self.metrics);
        }
        for (_, arrived, metadata) in self.traced.extract_if(.., |(of, ..)| *of < epoch) {
            self.slot.trace(&self.stage, (None, Happening::Sink), &metadata, (arrived, now));
        }
        Ok(())
    }
}

impl Node for SinkNode {
    fn receive(&mut self, _port: usize, epoch: Epoch, batch: RecordBatch, _out: &mut Emit) {
        if epoch < self.committed {
            return;
        }
        let now = self.slot.now();
        let rows = batch.num_rows() as u64;
        count(&self.stage.metrics.records_in, rows);
        count(&self.metrics.records, rows);
        let _ = self.metrics.first_arrival.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        self.metrics.last_arrival.store(now, Ordering::Relaxed);
        let metadata = record::Metadata::of(&batch);
        // Rows of a batch often have one intended time.
        let runs =
            || metadata.intended.values().chunk_by(|a, b| a == b).map(|run| (run[0], run.len() as u64));
        self.metrics.arrival.record_all(runs().map(|(intended, rows)| (now - intended, rows)));
        let is_shown = self.publication == Publication::OnArrival;
        if !is_shown {
            let unpublished = self.unpublished.entry(self.first_of_commit(epoch)).or_default();
            runs().for_each(|(intended, rows)| unpublished.add(intended, rows));
        }
        if let Some(sampler) = &self.slot.sampler {
            sampler.arrived(&self.stage.operator, &batch, now, self.truth.as_ref());
        }
        if let Some(metadata) = self.slot.tracer.as_ref().and_then(|tracer| tracer.metadata(&batch)) {
            self.traced.push((epoch, now, metadata));
        }
        if !is_shown {
            self.pending.entry(epoch).or_default().push(batch);
            return;
        }
        self.writing = true;
        let shown = self.show(epoch, &batch);
        self.writing = false;
        if let Err(error) = shown {
            self.stage.operator_failed(&self.slot, error);
        }
    }

    fn run(&mut self, frontier: Epoch, _out: &mut Emit) {
        let upto = match frontier {
            CLOSED => CLOSED,
            epoch => self.first_of_commit(epoch),
        };
        self.reached = self.reached.max(upto);
        if upto <= self.committed {
            return;
        }
        self.writing = true;
        let written = self.write_before(upto);
        self.writing = false;
        if let Err(error) = written {
            self.stage.operator_failed(&self.slot, error);
        }
    }

    fn processing(&self) -> Option<Processing> {
        self.writing.then(|| Processing {
            stage: self.stage.stage.clone(),
            operator: self.stage.operator.clone(),
            batch: None,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
    use super::*;
    use arrow_array::{
        ArrayRef, FixedSizeBinaryArray, Int8Array, Int64Array, StringArray, UInt32Array, UInt64Array,
    };
    use std::collections::HashMap;
    use tidemill_operators::measures::Measure;
    use tidemill_operators::record::{record_schema, source_id};
    use tidemill_operators::text_truth::{TextTruth, Unit};
    use tidemill_spec::types::{Column, ColumnType, StreamType};

    struct Nowhere;

    impl Sink for Nowhere {
        fn write(&mut self, _batch: &RecordBatch) -> Result<(), OperatorError> {
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
    }

    fn row(key: &str, text: &str) -> RecordBatch {
        let columns = ["key", "text"].map(|name| Column::new(name, ColumnType::Text));
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(FixedSizeBinaryArray::new(16, source_id(0, 0).to_vec().into(), None)),
            Arc::new(UInt32Array::from(vec![0])),
            Arc::new(UInt64Array::from(vec![0])),
            Arc::new(Int64Array::from(vec![0])),
            Arc::new(Int64Array::from(vec![0])),
            Arc::new(UInt32Array::from(vec![0])),
            Arc::new(Int8Array::from(vec![1])),
            Arc::new(StringArray::from(vec![key])),
            Arc::new(StringArray::from(vec![text])),
        ];
        RecordBatch::try_new(record_schema(&StreamType::new(columns)), arrays).unwrap()
    }

    fn truth() -> GroundTruth {
        let right = HashMap::from([("a".to_owned(), "ab".to_owned()), ("b".to_owned(), "cdef".to_owned())]);
        GroundTruth {
            key: "key".into(),
            prediction: "text".into(),
            answers: Arc::default(),
            once: false,
            tracks: None,
            texts: Some(Arc::new(TextTruth::new(&right, None, Unit::Characters).unwrap())),
            measure: Measure::Equal,
        }
    }

    /// Half of a run against all of the truth would be half right, however good it is.
    #[test]
    fn a_part_of_what_is_judged_as_a_whole_is_not_judged() {
        for (rows, expected) in [(0, (2, 6)), (1, (0, 0))] {
            let past = SinkPast { committed: 3, rows, token: None };
            let metrics = SinkMetrics::default();
            let mut cell = SinkCell::continued(Box::new(Nowhere), &past, rows);
            cell.judge(&truth(), &row("a", "ab"));
            cell.judge(&truth(), &row("x", "?"));
            cell.commit(4, &metrics).unwrap();
            cell.close(|| 0, Some(&metrics), false).unwrap();
            let told = (metrics.correct.load(Ordering::Relaxed), metrics.scored.load(Ordering::Relaxed));
            assert_eq!((told, metrics.without_truth.load(Ordering::Relaxed)), (expected, 1));
        }
        let mut answers = truth();
        answers.answers = Arc::new(HashMap::from([("a".to_owned(), "ab".to_owned())]));
        answers.texts = None;
        let past = SinkPast { committed: 3, rows: 1, token: None };
        let mut cell = SinkCell::continued(Box::new(Nowhere), &past, 1);
        cell.judge(&answers, &row("a", "ab"));
        assert_eq!(cell.staged_score.scored, 1, "what is right by itself is counted by whoever has it");
    }

    /// During the run, pending rows are not counted as missing.
    #[test]
    fn what_has_not_come_is_wrong_once_the_sink_is_closed() {
        let (mut cell, metrics) = (SinkCell::new(Box::new(Nowhere)), SinkMetrics::default());
        let told = || (metrics.correct.load(Ordering::Relaxed), metrics.scored.load(Ordering::Relaxed));
        cell.judge(&truth(), &row("a", "ab"));
        cell.commit(1, &metrics).unwrap();
        assert_eq!(told(), (2, 2));
        cell.close(|| 0, Some(&metrics), false).unwrap();
        assert_eq!(told(), (2, 6));
    }
}
