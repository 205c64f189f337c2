//! Transfer of kept records from the hosts of a run to its coordinator: each when it is kept, one per message. Source
//! records may be on another host, from which the coordinator requests them.
use super::{Sample, Sampler, hash};
use crate::clock::Nanoseconds;
use arrow_array::{
    ArrayRef, FixedSizeBinaryArray, Int8Array, Int64Array, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use tidemill_operators::record::{Metadata, record_schema, source_id};
use tidemill_spec::types::{Column, ColumnType, StreamType};

/// Most bytes of a transferred record; a larger one is not shown.
const LARGEST: usize = 16 << 20;
/// Most sources of a sink's record.
const MOST_SOURCES: usize = 256;

/// A record that reached a sink of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SampleMessage {
    pub(crate) sink: String,
    /// Key under which it is kept.
    key: u64,
    /// In Arrow's stream format.
    pub(crate) record: Vec<u8>,
    latency: Nanoseconds,
    right: Option<bool>,
    sources: FoundSources,
}

/// By source: the source record, in Arrow's stream format.
pub(crate) type FoundSources = BTreeMap<String, Vec<u8>>;

fn encode(record: &RecordBatch) -> Option<Vec<u8>> {
    let mut writer = StreamWriter::try_new(Vec::new(), &record.schema()).ok()?;
    writer.write(record).ok()?;
    writer.into_inner().ok().filter(|bytes| bytes.len() <= LARGEST)
}

/// Decodes one record; `None` for anything else.
fn decode(bytes: &[u8]) -> Option<RecordBatch> {
    // Arrow checks its input, but not everywhere: input that makes it panic is no record either.
    let read = || StreamReader::try_new(Cursor::new(bytes), None).ok()?.next()?.ok();
    let batch = catch_unwind(AssertUnwindSafe(read)).ok().flatten()?;
    (batch.num_rows() == 1).then_some(batch)
}

fn decode_all(sources: &FoundSources) -> BTreeMap<String, RecordBatch> {
    sources.iter().filter_map(|(source, bytes)| Some((source.clone(), decode(bytes)?))).collect()
}

fn encode_all(sources: &BTreeMap<String, RecordBatch>) -> FoundSources {
    sources.iter().filter_map(|(source, record)| Some((source.clone(), encode(record)?))).collect()
}

/// Returns the hash of a sink's record; `None` without an id, or if its first columns are not those of records.
fn hash_of(record: &RecordBatch) -> Option<u64> {
    let has_id = record.schema_ref().fields().len() >= tidemill_operators::record::METADATA_COLUMNS;
    let of = || has_id.then(|| hash(&Metadata::of(record).id(0)));
    catch_unwind(AssertUnwindSafe(of)).ok().flatten()
}

/// Returns whether it is a valid record.
pub(crate) fn is_record(bytes: &[u8]) -> bool {
    decode(bytes).is_some_and(|record| hash_of(&record).is_some())
}

/// An encoded record with a text.
pub(crate) fn example() -> Option<Vec<u8>> {
    let stream = StreamType::new([Column::new("key", ColumnType::Text)]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeBinaryArray::new(16, source_id(1, 7).to_vec().into(), None)),
        Arc::new(UInt32Array::from(vec![1])),
        Arc::new(UInt64Array::from(vec![7])),
        Arc::new(Int64Array::from(vec![0])),
        Arc::new(Int64Array::from(vec![5])),
        Arc::new(UInt32Array::from(vec![0])),
        Arc::new(Int8Array::from(vec![1])),
        Arc::new(StringArray::from(vec!["three words here"])),
    ];
    encode(&RecordBatch::try_new(record_schema(&stream), columns).ok()?)
}

impl SampleMessage {
    /// Returns whether it is within the limit of a host.
    pub(crate) fn is_small(&self) -> bool {
        let mut records = self.sources.values().chain([&self.record]);
        self.sources.len() <= MOST_SOURCES && records.all(|record| record.len() <= LARGEST)
    }
}

/// The part of a host.
impl Sampler {
    /// Returns the records kept since the last call.
    pub(crate) fn news(&self) -> Vec<SampleMessage> {
        let mut news = Vec::new();
        for (sink, samples) in &self.sinks {
            let fresh: Vec<(u64, Sample)> = {
                let classes = samples.lock();
                let mut told = samples.told.lock().unwrap_or_else(PoisonError::into_inner);
                let kept: BTreeSet<u64> = classes.iter().flat_map(BTreeMap::keys).copied().collect();
                told.retain(|hash| kept.contains(hash));
                let fresh = classes.iter().flatten().filter(|(hash, _)| told.insert(**hash));
                fresh.map(|(key, sample)| (*key, sample.clone())).collect()
            };
            news.extend(fresh.iter().filter_map(|(key, sample)| {
                Some(SampleMessage {
                    sink: sink.clone(),
                    key: *key,
                    record: encode(&sample.record)?,
                    latency: sample.latency,
                    right: sample.right,
                    sources: encode_all(&sample.sources),
                })
            }));
        }
        news
    }

    /// Resets the sent records for a new coordinator.
    pub(crate) fn forget_told(&self) {
        for samples in self.sinks.values() {
            samples.told.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// Returns the source records of another host's record that were sent here.
    pub(crate) fn find(&self, sink: &str, record: &[u8]) -> FoundSources {
        let record = decode(record).filter(|record| hash_of(record).is_some());
        record.map(|record| encode_all(&self.sources_of(sink, &record, 0))).unwrap_or_default()
    }
}

/// The part of the coordinator.
impl Sampler {
    /// Keeps a host's record that reached a sink, if it qualifies. Returns its hash, and the sources whose records are
    /// missing.
    pub(crate) fn heard(&self, message: &SampleMessage) -> Option<(u64, BTreeSet<String>)> {
        let samples = self.sinks.get(&message.sink)?;
        let record = decode(&message.record)?;
        let of_id = hash_of(&record)?;
        let hash = if self.options.newest.is_some() { message.key } else { of_id };
        let sources = decode_all(&message.sources);
        let links = self.options.links.get(&message.sink).into_iter().flatten();
        let missing = links.filter(|link| !sources.contains_key(&link.source));
        let missing = missing.map(|link| link.source.clone()).collect();
        let (latency, right) = (message.latency, message.right);
        let number = self.number(hash);
        let make = || Some(Sample { number, record, latency, right, sources });
        self.insert(&mut samples.lock(), hash, right, make).then_some((hash, missing))
    }

    /// Adds source records from another host.
    pub(crate) fn found(&self, sink: &str, hash: u64, sources: &FoundSources) {
        let Some(samples) = self.sinks.get(sink) else { return };
        let mut classes = samples.lock();
        if let Some(sample) = classes.iter_mut().find_map(|class| class.get_mut(&hash)) {
            for (source, record) in decode_all(sources) {
                sample.sources.entry(source).or_insert(record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{batch, keys, options};
    use super::*;
    use crate::wire;

    fn carried(message: &SampleMessage) -> SampleMessage {
        let bytes = wire::encode(message).expect("plain data");
        assert!(bytes.len() < message.record.len() + 4000, "bytes are bytes: {}", bytes.len());
        wire::decode(&bytes).expect("what was written")
    }

    /// Arbitrary messages of a host have no effect other than not being shown.
    #[test]
    fn mutated_records_are_no_samples_or_some() {
        let (host, coordinator) = (Sampler::new(options(1 << 20)), Sampler::new(options(1 << 20)));
        host.arrived("sink", &batch(0, 0, 10, 1), 25, None);
        let message = host.news().pop().expect("one is kept");
        let mut random = tidemill_random::Random::of_seed(6);
        let mut taken = 0;
        for _ in 0..3000 {
            let mut changed = message.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(changed.record.len());
                changed.record[at] ^= 1 << random.below(8);
            }
            taken += usize::from(coordinator.heard(&changed).is_some());
            host.find("sink", &changed.record);
        }
        assert!(taken < 3000, "nothing was refused");
        let large = SampleMessage { record: vec![0; LARGEST + 1], ..message.clone() };
        assert!(message.is_small() && !large.is_small());
    }

    #[test]
    fn the_coordinator_keeps_what_one_process_would() {
        let (whole, first, second, coordinator) = (
            Sampler::new(options(1 << 20)),
            Sampler::new(options(1 << 20)),
            Sampler::new(options(1 << 20)),
            Sampler::new(options(1 << 20)),
        );
        for n in 0..50 {
            let rows = batch(0, n * 10, n * 10 + 10, 1);
            whole.arrived("sink", &rows, 25, None);
            let host = if n % 2 == 0 { &first } else { &second };
            host.arrived("sink", &rows, 25, None);
            for message in host.news() {
                coordinator.heard(&carried(&message));
            }
        }
        assert_eq!(keys(&coordinator.of("sink")), keys(&whole.of("sink")));
        assert!(coordinator.of("sink").iter().all(|sample| sample.latency == 20));
        assert!(first.news().is_empty() && second.news().is_empty(), "all is told");
        first.forget_told();
        assert_eq!(first.news().len(), 4);
    }

    #[test]
    fn what_a_record_came_from_is_found_on_other_hosts() {
        let [edge, cloud, coordinator] = [(); 3].map(|()| Sampler::new(options(1 << 20)));
        edge.sent("left", &batch(0, 0, 10, 100));
        edge.sent("right", &batch(1, 0, 10, 100));
        cloud.arrived("sink", &batch(0, 3, 4, 1), 30, None);
        let [message] = &cloud.news()[..] else { panic!("one record is kept") };
        let (hash, missing) = coordinator.heard(message).expect("it is kept");
        assert_eq!(missing, ["left".to_owned(), "right".to_owned()].into());
        assert!(coordinator.heard(message).is_none(), "it is known");
        let found = edge.find("sink", &message.record);
        coordinator.found("sink", hash, &found);
        let [sample] = &coordinator.of("sink")[..] else { panic!("one record is kept") };
        assert_eq!(sample.sources.keys().collect::<Vec<_>>(), ["left", "right"]);
        assert_eq!(sample.sources["left"].num_rows(), 1);
        assert!(edge.find("sink", b"no record").is_empty());
        assert!(cloud.find("sink", &message.record).is_empty());
    }

    #[test]
    fn too_large_a_record_does_not_travel() {
        let [cloud, edge] = [(); 2].map(|()| Sampler::new(options(64 << 20)));
        edge.sent("left", &batch(0, 0, 1, LARGEST));
        cloud.arrived("sink", &batch(0, 0, 1, 10), 0, None);
        assert!(edge.find("sink", &cloud.news()[0].record).is_empty());
        cloud.arrived("sink", &batch(0, 1, 2, LARGEST), 0, None);
        assert!(cloud.news().is_empty());
    }
}
