//! Records kept for inspection during a run: some of those that reached a sink, with the source records that they came
//! from.
//!
//! Their ids, which are hashes, decide which ones are kept, unless the newest are wanted ([`Newest`]). Each sink keeps the
//! records with the lowest ids, so every record has an equal chance, a replay keeps the same ones, and memory does not grow
//! with the run. If a sink has ground truth, right and wrong answers are kept separately. Source records are kept for a
//! while (a number of bytes), so that an arriving record finds its origins.
mod message;

pub(crate) use message::{FoundSources, SampleMessage, example, is_record};

use crate::clock::Nanoseconds;
use arrow_array::{Array, RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidemill_operators::api::GroundTruth;
use tidemill_operators::ground_truth::{Verdict, judge};
use tidemill_operators::record::{self, Metadata, RecordId, batch_bytes};

/// Settings for kept records; see [`crate::RunOptions::samples`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SampleOptions {
    /// Records of each sink that are right, or without ground truth.
    pub most: usize,
    /// Records of each sink that are wrong.
    pub most_wrong: usize,
    /// Bytes of the newest source records, all sources together.
    pub recent_bytes: usize,
    /// The sources of a sink's records, by sink id.
    pub links: BTreeMap<String, Vec<SourceLink>>,
    /// Keep the newest records instead of those with the lowest ids.
    pub newest: Option<Newest>,
}

/// The newest records of a sink: one per interval, so that a run can be inspected at any time with little traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Newest {
    /// At most one record of a class in this time.
    pub every: Nanoseconds,
    /// Most bytes of a kept record: a larger one is left out, and so is a larger source record.
    pub most_bytes: usize,
}

/// The link from a sink's record to the source record that it came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceLink {
    /// Source id.
    pub source: String,
    /// Equal columns of the source and of the sink, for records that came to the sink through a join and carry the number
    /// of another source.
    pub columns: Option<(String, String)>,
}

/// A record that reached a sink.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Increases with the time of arrival if the newest are kept; else 0.
    pub number: u64,
    /// One row, metadata columns included.
    pub record: RecordBatch,
    /// From the intended emission to the arrival.
    pub latency: Nanoseconds,
    /// Right or wrong, if ground truth has it.
    pub right: Option<bool>,
    /// One row of each source that was found, by source id; metadata columns included.
    pub sources: BTreeMap<String, RecordBatch>,
}

/// Keeps records; shared by all slots.
pub(crate) struct Sampler {
    options: SampleOptions,
    sinks: BTreeMap<String, SinkSamples>,
    recent: BTreeMap<String, Mutex<Recent>>,
    /// Engine time of the last inspection; on a host: of the last report of one.
    looked: AtomicI64,
}

/// Time after an inspection for which hosts send the newest records.
const SHOWN: Nanoseconds = 30_000_000_000;

struct SinkSamples {
    /// Hashes from here on are not needed for any class.
    limit: AtomicU64,
    classes: Mutex<Classes>,
    /// Hashes already sent to the coordinator.
    told: Mutex<BTreeSet<u64>>,
}

/// Records by hash: without ground truth, right ones, wrong ones.
type Classes = [BTreeMap<u64, Sample>; 3];

#[derive(Default)]
struct Recent {
    batches: VecDeque<RecordBatch>,
    bytes: usize,
}

impl Sampler {
    pub(crate) fn new(options: SampleOptions) -> Self {
        let links = options.links.values().flatten();
        let recent = links.map(|link| (link.source.clone(), Mutex::default())).collect();
        let sink = |id: &String| {
            let limit = AtomicU64::new(u64::MAX);
            (id.clone(), SinkSamples { limit, classes: Mutex::default(), told: Mutex::default() })
        };
        let sinks = options.links.keys().map(sink).collect();
        Self { options, sinks, recent, looked: AtomicI64::new(Nanoseconds::MIN) }
    }

    /// Records a batch that a source sends.
    pub(crate) fn sent(&self, source: &str, batch: &RecordBatch) {
        let Some(recent) = self.recent.get(source) else { return };
        let budget = self.options.recent_bytes / self.recent.len().max(1);
        let mut recent = recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.bytes += batch_bytes(batch);
        recent.batches.push_back(batch.clone());
        while recent.bytes > budget
            && let Some(oldest) = recent.batches.pop_front()
        {
            recent.bytes -= batch_bytes(&oldest).min(recent.bytes);
        }
    }

    /// Records a batch that arrives at a sink.
    pub(crate) fn arrived(
        &self,
        sink: &str,
        batch: &RecordBatch,
        now: Nanoseconds,
        truth: Option<&GroundTruth>,
    ) {
        let Some(samples) = self.sinks.get(sink) else { return };
        let metadata = Metadata::of(batch);
        let limit = samples.limit.load(Ordering::Relaxed);
        for row in 0..batch.num_rows() {
            let hash = match self.options.newest {
                None => hash(&metadata.id(row)),
                // The lowest keys are kept, which are those of the latest time.
                Some(newest) => u64::MAX - u64::try_from(now / newest.every.max(1)).unwrap_or(0),
            };
            if hash >= limit {
                continue;
            }
            let verdict = truth.and_then(|truth| judge(truth, batch, row)).unwrap_or(Verdict::Unknown);
            let right = match verdict {
                Verdict::Unknown => None,
                Verdict::Right => Some(true),
                Verdict::Wrong => Some(false),
            };
            let mut classes = samples.lock();
            let make = || {
                let record = one_row(batch, row)?;
                if self.options.newest.is_some_and(|newest| batch_bytes(&record) > newest.most_bytes) {
                    return None;
                }
                let latency = now - metadata.intended.value(row);
                let sources = self.sources_of(sink, batch, row);
                Some(Sample { number: self.number(hash), record, latency, right, sources })
            };
            if !self.insert(&mut classes, hash, right, make) {
                continue;
            }
            // A sink with ground truth may always see its first wrong record; one without has one class only.
            if self.options.newest.is_none() && truth.is_none() && classes[0].len() >= self.options.most {
                let last = classes[0].last_key_value().map_or(u64::MAX, |(hash, _)| *hash);
                samples.limit.store(last, Ordering::Relaxed);
            }
        }
    }

    /// Keeps a record if its hash is among the lowest of its class.
    fn insert(
        &self,
        classes: &mut Classes,
        hash: u64,
        right: Option<bool>,
        make: impl FnOnce() -> Option<Sample>,
    ) -> bool {
        let (class, most) = self.class(right);
        let kept = &mut classes[class];
        let last = kept.last_key_value().map(|(hash, _)| *hash);
        if most == 0 || kept.contains_key(&hash) || (kept.len() >= most && last.is_some_and(|l| hash > l)) {
            return false;
        }
        let Some(sample) = make() else { return false };
        kept.insert(hash, sample);
        if kept.len() > most {
            kept.pop_last();
        }
        true
    }

    fn number(&self, hash: u64) -> u64 {
        if self.options.newest.is_some() { u64::MAX - hash } else { 0 }
    }

    fn class(&self, right: Option<bool>) -> (usize, usize) {
        match right {
            None => (0, self.options.most),
            Some(true) => (1, self.options.most),
            Some(false) => (2, self.options.most_wrong),
        }
    }

    fn sources_of(&self, sink: &str, batch: &RecordBatch, row: usize) -> BTreeMap<String, RecordBatch> {
        let links = self.options.links.get(sink).map_or(&[][..], Vec::as_slice);
        let found = links.iter().filter_map(|link| {
            let recent = self.recent.get(&link.source)?.lock().unwrap_or_else(PoisonError::into_inner);
            let record = recent.find(link, batch, row)?;
            let is_kept = self.options.newest.is_none_or(|newest| batch_bytes(&record) <= newest.most_bytes);
            is_kept.then(|| (link.source.clone(), record))
        });
        found.collect()
    }

    /// Records an inspection at `now`.
    pub(crate) fn show_from(&self, now: Nanoseconds) {
        self.looked.fetch_max(now, Ordering::Relaxed);
    }

    /// Returns whether records are sent now: the newest only during an inspection, so that none leaves its worker without need.
    pub(crate) fn is_shown(&self, now: Nanoseconds) -> bool {
        self.options.newest.is_none() || self.is_looked_at(now)
    }

    /// Returns whether the newest records are being inspected.
    pub(crate) fn is_looked_at(&self, now: Nanoseconds) -> bool {
        let looked = self.looked.load(Ordering::Relaxed);
        self.options.newest.is_some() && now.saturating_sub(SHOWN) < looked
    }

    /// Returns the kept records of a sink: wrong ones first, then right ones, then those without ground truth.
    pub(crate) fn of(&self, sink: &str) -> Vec<Sample> {
        let Some(samples) = self.sinks.get(sink) else { return Vec::new() };
        let classes = samples.lock();
        classes.iter().rev().flat_map(|class| class.values().cloned()).collect()
    }
}

impl SinkSamples {
    fn lock(&self) -> MutexGuard<'_, Classes> {
        self.classes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recent {
    /// Returns the newest source record from which the row of a sink came.
    fn find(&self, link: &SourceLink, arrived: &RecordBatch, row: usize) -> Option<RecordBatch> {
        let metadata = Metadata::of(arrived);
        let (source, sequence) = (metadata.sources.value(row), metadata.sequences.value(row));
        let first = Metadata::of(self.batches.front()?);
        if first.sources.value(0) == source {
            return self.batches.iter().rev().find_map(|batch| {
                let at = Metadata::of(batch).sequences.values().binary_search(&sequence).ok()?;
                one_row(batch, at)
            });
        }
        let (own, other) = link.columns.as_ref()?;
        let wanted = arrived.column_by_name(other)?.slice(row, 1);
        if wanted.is_null(0) {
            return None;
        }
        self.batches.iter().rev().find_map(|batch| {
            let column = batch.column_by_name(own)?;
            let at = (0..batch.num_rows()).rev().find(|row| equal(column, *row, &wanted))?;
            one_row(batch, at)
        })
    }
}

/// Returns whether a cell has the only value of `wanted`; keys are texts, whole numbers and bools.
fn equal(column: &arrow_array::ArrayRef, row: usize, wanted: &arrow_array::ArrayRef) -> bool {
    if column.is_null(row) {
        return false;
    }
    if let (Some(a), Some(b)) = (record::text(column), record::text(wanted)) {
        return a.value(row) == b.value(0);
    }
    if let (Some(a), Some(b)) = (record::int64(column), record::int64(wanted)) {
        return a.value(row) == b.value(0);
    }
    matches!((record::boolean(column), record::boolean(wanted)), (Some(a), Some(b)) if a.value(row) == b.value(0))
}

/// Copies one row, without keeping the rest of its batch in memory.
fn one_row(batch: &RecordBatch, row: usize) -> Option<RecordBatch> {
    take_record_batch(batch, &UInt32Array::from(vec![row as u32])).ok()
}

/// Ids are hashes already.
fn hash(id: &RecordId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *id;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{
        ArrayRef, BinaryArray, FixedSizeBinaryArray, Int8Array, Int64Array, StringArray, UInt64Array,
    };
    use std::sync::Arc;
    use tidemill_operators::record::{record_schema, source_id};
    use tidemill_spec::types::{Column, ColumnType, StreamType};

    /// Records `from .. to` of a source with a key and a picture.
    pub(super) fn batch(source: u32, from: u64, to: u64, size: usize) -> RecordBatch {
        let stream =
            StreamType::new([Column::new("key", ColumnType::Text), Column::new("image", ColumnType::Image)]);
        let n = (to - from) as usize;
        let ids: Vec<u8> = (from..to).flat_map(|sequence| source_id(source, sequence)).collect();
        let picture = vec![0u8; size];
        let columns: Vec<ArrayRef> = vec![
            Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
            Arc::new(UInt32Array::from(vec![source; n])),
            Arc::new(UInt64Array::from_iter_values(from..to)),
            Arc::new(Int64Array::from(vec![0; n])),
            Arc::new(Int64Array::from(vec![5; n])),
            Arc::new(UInt32Array::from(vec![0; n])),
            Arc::new(Int8Array::from(vec![1; n])),
            Arc::new(StringArray::from_iter_values((from..to).map(|n| format!("k{n}")))),
            Arc::new(BinaryArray::from_iter_values((from..to).map(|_| &picture[..]))),
        ];
        RecordBatch::try_new(record_schema(&stream), columns).expect("the columns of the stream")
    }

    pub(super) fn options(recent_bytes: usize) -> SampleOptions {
        let link = |source: &str, columns: Option<(&str, &str)>| SourceLink {
            source: source.into(),
            columns: columns.map(|(a, b)| (a.into(), b.into())),
        };
        let links = vec![link("left", None), link("right", Some(("key", "key")))];
        SampleOptions {
            most: 4,
            most_wrong: 3,
            recent_bytes,
            links: BTreeMap::from([("sink".into(), links)]),
            newest: None,
        }
    }

    pub(super) fn keys(samples: &[Sample]) -> Vec<String> {
        let key = |s: &Sample| record::text(s.record.column(7)).expect("a text").value(0).to_owned();
        samples.iter().map(key).collect()
    }

    #[test]
    fn the_same_ones_are_kept_whatever_the_order_and_however_often_they_come() {
        let (forward, backward) = (Sampler::new(options(1 << 20)), Sampler::new(options(1 << 20)));
        for n in 0..50 {
            forward.arrived("sink", &batch(0, n * 10, n * 10 + 10, 1), 25, None);
            backward.arrived("sink", &batch(0, 490 - n * 10, 500 - n * 10, 1), 25, None);
            backward.arrived("sink", &batch(0, 490 - n * 10, 500 - n * 10, 1), 99, None);
        }
        let samples = forward.of("sink");
        assert_eq!(samples.len(), 4);
        assert_eq!(keys(&samples), keys(&backward.of("sink")));
        assert!(backward.of("sink").iter().all(|sample| sample.latency == 20), "the first arrival counts");
        assert!(forward.of("other").is_empty());
    }

    #[test]
    fn wrong_ones_are_kept_beside_right_ones() {
        let answers =
            (0..300).map(|n| (format!("k{n}"), if n % 50 == 0 { "x".into() } else { format!("k{n}") }));
        let truth = GroundTruth {
            tracks: None,
            texts: None,
            measure: tidemill_operators::measures::Measure::Equal,
            key: "key".into(),
            prediction: "key".into(),
            answers: Arc::new(answers.collect()),
            once: false,
        };
        let sampler = Sampler::new(options(0));
        sampler.arrived("sink", &batch(0, 0, 400, 1), 0, Some(&truth));
        let verdicts: Vec<Option<bool>> = sampler.of("sink").iter().map(|sample| sample.right).collect();
        let expected = [[Some(false); 3].as_slice(), &[Some(true); 4], &[None; 4]].concat();
        assert_eq!(verdicts, expected);
    }

    #[test]
    fn the_newest_are_kept_one_in_a_while_and_none_that_is_large() {
        let newest = Some(Newest { every: 10, most_bytes: 2_000 });
        let sampler = Sampler::new(SampleOptions { newest, ..options(1 << 20) });
        let host = Sampler::new(SampleOptions { newest, ..options(1 << 20) });
        for n in 0..100 {
            sampler.sent("left", &batch(0, n, n + 1, if n % 2 == 0 { 1 } else { 3_000 }));
            host.arrived("sink", &batch(0, n, n + 1, 1), 5 + n as i64, None);
            sampler.arrived("sink", &batch(0, n, n + 1, 1), 5 + n as i64, None);
        }
        assert_eq!(keys(&sampler.of("sink")), ["k95", "k85", "k75", "k65"]);
        let numbers: Vec<u64> = sampler.of("sink").iter().map(|sample| sample.number).collect();
        assert_eq!(numbers, [10, 9, 8, 7]);
        assert!(sampler.of("sink").iter().all(|sample| sample.sources.is_empty()), "odd ones are large");
        sampler.arrived("sink", &batch(0, 100, 101, 5_000), 205, None);
        assert_eq!(sampler.of("sink")[0].number, 10, "it is too large");
        // The coordinator keeps the records that a host keeps, also after the host's reset.
        let coordinator = Sampler::new(SampleOptions { newest, ..options(1 << 20) });
        for _ in 0..2 {
            for message in host.news() {
                coordinator.heard(&message);
            }
            assert!(host.news().is_empty(), "told once");
            host.forget_told();
        }
        assert_eq!(keys(&coordinator.of("sink")), keys(&host.of("sink")));
        assert_eq!(coordinator.of("sink").len(), 4);
    }

    #[test]
    fn records_find_what_they_came_from_while_it_is_kept() {
        let sampler = Sampler::new(options(100_000));
        for n in 0..100 {
            sampler.sent("left", &batch(0, n, n + 1, 1000));
            sampler.sent("right", &batch(1, n, n + 1, 1000));
            sampler.sent("none of the sink", &batch(2, n, n + 1, 1000));
        }
        let kept = |name: &str| sampler.recent[name].lock().expect("not poisoned").batches.len();
        assert!((20..50).contains(&kept("left")), "{} of 100 fit", kept("left"));
        let arrived = batch(0, 98, 100, 1);
        sampler.arrived("sink", &arrived, 0, None);
        for sample in sampler.of("sink") {
            let key =
                |batch: &RecordBatch| record::text(batch.column(7)).expect("a text").value(0).to_owned();
            assert_eq!(key(&sample.sources["left"]), key(&sample.record));
            assert_eq!(key(&sample.sources["right"]), key(&sample.record));
            assert!(batch_bytes(&sample.sources["left"]) < 1200, "nothing else is kept alive");
        }
        sampler.arrived("sink", &batch(0, 0, 1, 1), 0, None);
        let oldest =
            sampler.of("sink").into_iter().find(|sample| keys(std::slice::from_ref(sample)) == ["k0"]);
        assert!(oldest.expect("kept").sources.is_empty(), "no longer there");
    }
}
