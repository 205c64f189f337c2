//! Taps: the records that pass a source or an operator, for somebody who looks at a run.
//!
//! While nobody looks, a batch costs one relaxed load. While somebody does, batches wait in bounded memory; what finds no
//! room there is counted, and nothing waits for the one who looks.
use crate::report::Observer;
use arrow_array::{RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_operators::record::batch_bytes;
use tidemill_spec::types::StreamType;

/// Most bytes that wait in a tap.
const MOST_BYTES: usize = 16 << 20;
/// Most records that wait in a tap.
const MOST_RECORDS: usize = 1024;
/// Most taps of a stage.
const MOST_TAPS: usize = 8;

/// The taps of a stage.
#[derive(Debug, Default)]
pub struct Tapped {
    open: AtomicUsize,
    taps: Mutex<Vec<Arc<Waiting>>>,
}

impl Tapped {
    /// A batch leaves the stage.
    pub(crate) fn pass(&self, batch: &RecordBatch) {
        if self.open.load(Ordering::Relaxed) > 0 {
            locked(&self.taps).iter().for_each(|tap| tap.give(batch));
        }
    }

    fn add(&self, waiting: &Arc<Waiting>) -> bool {
        let mut taps = locked(&self.taps);
        let has_room = taps.len() < MOST_TAPS;
        if has_room {
            taps.push(Arc::clone(waiting));
            self.open.store(taps.len(), Ordering::Relaxed);
        }
        has_room
    }

    fn remove(&self, waiting: &Arc<Waiting>) {
        let mut taps = locked(&self.taps);
        taps.retain(|tap| !Arc::ptr_eq(tap, waiting));
        self.open.store(taps.len(), Ordering::Relaxed);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What waits in a tap.
#[derive(Debug, Default)]
struct Waiting {
    queue: Mutex<Queue>,
    grown: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    batches: VecDeque<RecordBatch>,
    records: usize,
    bytes: usize,
    missed: u64,
}

impl Waiting {
    fn give(&self, batch: &RecordBatch) {
        let (rows, bytes) = (batch.num_rows(), batch_bytes(batch));
        let mut queue = locked(&self.queue);
        let taken = if queue.records + rows <= MOST_RECORDS && queue.bytes + bytes <= MOST_BYTES {
            Some(batch.clone())
        } else if queue.records == 0 {
            first_rows(batch, bytes)
        } else {
            None
        };
        queue.missed += (rows - taken.as_ref().map_or(0, RecordBatch::num_rows)) as u64;
        if let Some(taken) = taken {
            queue.records += taken.num_rows();
            queue.bytes += batch_bytes(&taken);
            queue.batches.push_back(taken);
            drop(queue);
            self.grown.notify_all();
        }
    }
}

/// Copies as many of the first rows as fit, at least one, so that the others stay in no memory.
fn first_rows(batch: &RecordBatch, bytes: usize) -> Option<RecordBatch> {
    let of_a_row = (bytes / batch.num_rows()).max(1);
    let few = (MOST_BYTES / of_a_row).clamp(1, MOST_RECORDS);
    if few >= batch.num_rows() {
        return Some(batch.clone());
    }
    take_record_batch(batch, &UInt32Array::from_iter_values(0..few as u32)).ok()
}

/// Why an edge cannot be tapped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TapError {
    /// There is no source or operator of this name.
    #[error("the workflow has no source or operator `{edge}`; it has {}", known.join(", "))]
    Unknown {
        /// The name.
        edge: String,
        /// The names of all.
        known: Vec<String>,
    },
    /// It is a sink: nothing leaves it.
    #[error("`{sink}` is a sink; it writes what comes from {}: tap that", from.join(" and "))]
    Sink {
        /// The name.
        sink: String,
        /// What it reads.
        from: Vec<String>,
    },
    /// The records are in other processes.
    #[error("the workers of this run are processes of their own; a tap reaches only runs in one process")]
    Elsewhere,
    /// Too many look at the same time.
    #[error("{} others tap `{edge}` now", MOST_TAPS)]
    TooMany {
        /// The name.
        edge: String,
    },
}

/// What came from a tap.
#[derive(Debug)]
pub struct TapRead {
    /// Records with metadata columns; none came in time if it is missing.
    pub batch: Option<RecordBatch>,
    /// Records that passed since the last read and found no room.
    pub missed: u64,
}

/// Records that pass a source or an operator, from now on; ends when it is dropped.
pub struct Tap {
    stream: StreamType,
    waiting: Arc<Waiting>,
    observer: Observer,
    /// The stages of the operator.
    stages: Vec<String>,
}

impl Tap {
    /// Returns the type of the records.
    pub fn stream(&self) -> &StreamType {
        &self.stream
    }

    /// Takes the oldest batch that waits, or waits for one for at most this time.
    pub fn read(&self, most: Duration) -> TapRead {
        let queue = locked(&self.waiting.queue);
        let is_empty = |queue: &mut Queue| queue.batches.is_empty();
        let waited = self.waiting.grown.wait_timeout_while(queue, most, is_empty);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let batch = queue.batches.pop_front();
        if let Some(batch) = &batch {
            queue.records -= batch.num_rows();
            queue.bytes -= batch_bytes(batch);
        }
        TapRead { batch, missed: std::mem::take(&mut queue.missed) }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        for stage in &self.stages {
            if let Some(metrics) = self.observer.stage(stage) {
                metrics.tapped.remove(&self.waiting);
            }
        }
    }
}

impl Observer {
    /// Returns the names of all sources and operators, which can be tapped.
    pub fn edges(&self) -> Vec<String> {
        let program = &self.0.program;
        let operators: BTreeSet<&String> = program.operators.values().map(|operator| &operator.id).collect();
        program.sources.keys().chain(operators).cloned().collect()
    }

    /// Shows the records that leave a source or an operator from now on. The run never waits for the tap. A part of the
    /// run that is restarted may send records twice.
    ///
    /// # Errors
    /// There is no such edge, it is in another process, or too many look at it.
    pub fn tap(&self, edge: &str) -> Result<Tap, TapError> {
        let program = &self.0.program;
        let operator = program.operators.values().find(|operator| operator.id == edge);
        let source = program.sources.get(edge).map(|source| &source.output);
        let Some(stream) = source.or(operator.map(|operator| &operator.output)) else {
            return Err(self.no_edge(edge));
        };
        if !self.0.hosts.is_empty() {
            return Err(TapError::Elsewhere);
        }
        let stages = program.plan.stages.iter().filter(|stage| stage.operator == edge);
        let tap = Tap {
            stream: stream.clone(),
            waiting: Arc::default(),
            observer: self.clone(),
            stages: stages.map(|stage| stage.id.clone()).collect(),
        };
        let metrics = tap.stages.iter().filter_map(|stage| self.stage(stage));
        for metrics in metrics.collect::<Vec<_>>() {
            if !metrics.tapped.add(&tap.waiting) {
                return Err(TapError::TooMany { edge: edge.to_owned() });
            }
        }
        Ok(tap)
    }

    fn no_edge(&self, name: &str) -> TapError {
        let program = &self.0.program;
        if program.sinks.contains_key(name) {
            let operators: BTreeMap<&String, &String> =
                program.plan.stages.iter().map(|stage| (&stage.id, &stage.operator)).collect();
            let into = program
                .plan
                .edges
                .iter()
                .filter(|edge| operators.get(&edge.to).is_some_and(|to| *to == name));
            let from: BTreeSet<&String> =
                into.filter_map(|edge| operators.get(&edge.from).copied()).collect();
            return TapError::Sink {
                sink: name.to_owned(),
                from: from.into_iter().map(|of| format!("`{of}`")).collect(),
            };
        }
        TapError::Unknown { edge: name.to_owned(), known: self.edges() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, BinaryArray};

    fn batch(rows: usize, size: usize) -> RecordBatch {
        let picture = vec![7u8; size];
        let column: ArrayRef = Arc::new(BinaryArray::from_iter_values((0..rows).map(|_| &picture[..])));
        RecordBatch::try_from_iter([("image", column)]).unwrap()
    }

    fn waiting(tapped: &Tapped) -> Arc<Waiting> {
        let waiting = Arc::default();
        assert!(tapped.add(&waiting));
        waiting
    }

    #[test]
    fn what_waits_is_bounded_and_the_rest_is_counted() {
        let tapped = Tapped::default();
        let waits = waiting(&tapped);
        for _ in 0..3000 {
            tapped.pass(&batch(1, 1));
        }
        let state = |waits: &Waiting| {
            let queue = locked(&waits.queue);
            (queue.records, queue.missed)
        };
        assert_eq!(state(&waits), (MOST_RECORDS, 3000 - MOST_RECORDS as u64));
        // Large ones: as many as fit, and one that is larger than the limit where nothing waits.
        let large = waiting(&tapped);
        for _ in 0..5 {
            tapped.pass(&batch(1, MOST_BYTES / 2 - 100));
        }
        assert_eq!(state(&large), (2, 3));
        let huge = waiting(&tapped);
        tapped.pass(&batch(3, MOST_BYTES));
        assert_eq!(state(&huge), (1, 2));
        assert!(locked(&huge.queue).bytes < 2 * MOST_BYTES, "the others of the batch are in no memory");
    }

    #[test]
    fn a_batch_of_many_small_rows_is_shown_in_part() {
        let tapped = Tapped::default();
        let waits = waiting(&tapped);
        tapped.pass(&batch(5000, 1));
        assert_eq!(locked(&waits.queue).records, MOST_RECORDS);
        assert_eq!(locked(&waits.queue).missed, 5000 - MOST_RECORDS as u64);
    }

    #[test]
    fn taps_are_few_and_leave_nothing() {
        let tapped = Tapped::default();
        let all: Vec<_> = (0..MOST_TAPS).map(|_| waiting(&tapped)).collect();
        assert!(!tapped.add(&Arc::default()));
        all.iter().for_each(|waiting| tapped.remove(waiting));
        assert_eq!(tapped.open.load(Ordering::Relaxed), 0);
        tapped.pass(&batch(1, 1));
        assert!(all.iter().all(|waiting| locked(&waiting.queue).batches.is_empty()));
    }
}
