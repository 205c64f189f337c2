//! Records kept on the hosts of a run come to its coordinator: each as it is kept, one a message. What a record came from may have
//! been sent on another host, which the coordinator asks.
use super::{Sample, Sampler, hash};
use crate::clock::Nanoseconds;
use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::sync::PoisonError;
use tidemill_operators::record::Metadata;

/// Bytes of a record that travels, at most; a larger one is not shown.
const LARGEST: usize = 16 << 20;

/// A record that reached a sink of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SampleMessage {
    pub(crate) sink: String,
    /// In Arrow's stream format.
    pub(crate) record: Vec<u8>,
    latency: Nanoseconds,
    right: Option<bool>,
    sources: FoundSources,
}

/// By source: the record that another one came from, in Arrow's stream format.
pub(crate) type FoundSources = BTreeMap<String, Vec<u8>>;

fn encode(record: &RecordBatch) -> Option<Vec<u8>> {
    let mut writer = StreamWriter::try_new(Vec::new(), &record.schema()).ok()?;
    writer.write(record).ok()?;
    writer.into_inner().ok().filter(|bytes| bytes.len() <= LARGEST)
}

/// One record; none: something else.
fn decode(bytes: &[u8]) -> Option<RecordBatch> {
    let batch = StreamReader::try_new(Cursor::new(bytes), None).ok()?.next()?.ok()?;
    (batch.num_rows() == 1).then_some(batch)
}

fn decode_all(sources: &FoundSources) -> BTreeMap<String, RecordBatch> {
    sources.iter().filter_map(|(source, bytes)| Some((source.clone(), decode(bytes)?))).collect()
}

fn encode_all(sources: &BTreeMap<String, RecordBatch>) -> FoundSources {
    sources.iter().filter_map(|(source, record)| Some((source.clone(), encode(record)?))).collect()
}

/// A record of a sink; none: it has no id.
fn hash_of(record: &RecordBatch) -> Option<u64> {
    let has_id = record.schema_ref().fields().len() >= tidemill_operators::record::METADATA_COLUMNS;
    has_id.then(|| hash(&Metadata::of(record).id(0)))
}

/// On a host.
impl Sampler {
    /// Records that were kept since the last call.
    pub(crate) fn news(&self) -> Vec<SampleMessage> {
        let mut news = Vec::new();
        for (sink, samples) in &self.sinks {
            let fresh: Vec<Sample> = {
                let classes = samples.lock();
                let mut told = samples.told.lock().unwrap_or_else(PoisonError::into_inner);
                let kept: BTreeSet<u64> = classes.iter().flat_map(BTreeMap::keys).copied().collect();
                told.retain(|hash| kept.contains(hash));
                let fresh = classes.iter().flatten().filter(|(hash, _)| told.insert(**hash));
                fresh.map(|(_, sample)| sample.clone()).collect()
            };
            news.extend(fresh.iter().filter_map(|sample| {
                Some(SampleMessage {
                    sink: sink.clone(),
                    record: encode(&sample.record)?,
                    latency: sample.latency,
                    right: sample.right,
                    sources: encode_all(&sample.sources),
                })
            }));
        }
        news
    }

    /// Another coordinator is to be told everything.
    pub(crate) fn forget_told(&self) {
        for samples in self.sinks.values() {
            samples.told.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// What the record of a sink on another host came from, as far as it was sent here.
    pub(crate) fn find(&self, sink: &str, record: &[u8]) -> FoundSources {
        let record = decode(record).filter(|record| hash_of(record).is_some());
        record.map(|record| encode_all(&self.sources_of(sink, &record, 0))).unwrap_or_default()
    }
}

/// At the coordinator.
impl Sampler {
    /// Keeps a record that reached a sink of a host, if it is one of those to keep. Its hash, and the sources whose records are not known.
    pub(crate) fn heard(&self, message: &SampleMessage) -> Option<(u64, BTreeSet<String>)> {
        let samples = self.sinks.get(&message.sink)?;
        let record = decode(&message.record)?;
        let hash = hash_of(&record)?;
        let sources = decode_all(&message.sources);
        let links = self.options.links.get(&message.sink).into_iter().flatten();
        let missing = links.filter(|link| !sources.contains_key(&link.source));
        let missing = missing.map(|link| link.source.clone()).collect();
        let (latency, right) = (message.latency, message.right);
        let make = || Some(Sample { record, latency, right, sources });
        self.insert(&mut samples.lock(), hash, right, make).then_some((hash, missing))
    }

    /// Another host had some of what a record came from.
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
