//! Traces: the paths of a few records through the stages of a run, on all its hosts.
//!
//! Every record carries the number of its source and its place there. These and the seed of the run decide which
//! records are traced, and the names of their traces and spans, so that each host knows them by itself: a record
//! carries nothing for it. A span is of an operator and what happened there. Its parent is what happened before, at
//! the operator that the record came from or in transit. A record that comes to an operator more than once (after a
//! restart, in several batches) has its span there more than once.
//!
//! Times are of the clock of the run, which hosts follow, counted from 1970.
use crate::channel::ChannelId;
use crate::clock::Nanoseconds;
use crate::graph::{Graph, Program};
use arrow_array::RecordBatch;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidemill_operators::api::DeadLetter;
use tidemill_operators::record::{METADATA_COLUMNS, Metadata};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Largest number of waiting spans: more are dropped, and counted.
pub(crate) const MOST: usize = 8192;
/// Largest number of spans in one notice.
pub(crate) const MOST_TOLD: usize = 512;
/// Largest number of letters of a name in a span of another host.
const LONGEST: usize = 256;

/// The selection of records of a run that are traced.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TraceOptions {
    /// Share of the records of each source, 0 to 1.
    pub share: f64,
    /// Seed of the names of traces, which differ in other runs.
    pub seed: u64,
    /// Nanoseconds since 1970 at engine time 0; known when the run begins.
    #[doc(hidden)]
    pub zero: i64,
}

impl TraceOptions {
    /// Selects this share of the records.
    pub fn new(share: f64, seed: u64) -> Self {
        Self { share, seed, zero: 0 }
    }

    /// Sets the time from a clock of the run.
    #[expect(
        clippy::disallowed_methods,
        reason = "those who read a trace have it beside traces of other systems"
    )]
    pub(crate) fn at(self, now: Nanoseconds, dilation: f64) -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let since = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
        Self { zero: since - real(now, dilation), ..self }
    }
}

fn real(time: Nanoseconds, dilation: f64) -> i64 {
    if dilation == 1.0 { time } else { (time as f64 * dilation) as i64 }
}

/// An event in the life of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Happening {
    /// It was due, and left its source.
    Source,
    /// It was sent by one stage and came to another one: waiting for credit, the link, and the network.
    Transfer,
    /// It waited for a batch, for a copy of the model, or for its epoch.
    Queue,
    /// It was computed, with the batch that it was in.
    Compute,
    /// It came to a sink, and was committed there.
    Sink,
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Transfer => "transfer",
            Self::Queue => "queue",
            Self::Compute => "compute",
            Self::Sink => "sink",
        })
    }
}

/// Something that happened to a traced record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The trace: all spans of one record of a source have it.
    pub trace: TraceId,
    /// Its name within the trace.
    pub id: u64,
    /// The span before; none: this is the first.
    pub parent: Option<u64>,
    /// The event.
    pub what: Happening,
    /// Operator, source or sink.
    pub operator: String,
    /// Of a transfer: the operator that sent it.
    pub from: Option<String>,
    /// Stage of the plan.
    pub stage: String,
    /// Worker of the plan.
    pub worker: String,
    /// Nanoseconds since 1970.
    pub begin: i64,
    /// Nanoseconds since 1970.
    pub end: i64,
    /// Records that were in the same batch, with this one.
    pub batch: u64,
    /// Place of the record in its source.
    pub sequence: u64,
}

impl Span {
    /// Returns whether it is no larger than spans of a host.
    pub(crate) fn is_small(&self) -> bool {
        let names = [Some(&self.operator), self.from.as_ref(), Some(&self.stage), Some(&self.worker)];
        names.into_iter().flatten().all(|name| name.len() <= LONGEST)
    }
}

/// Name of a trace; never all zeros.
pub type TraceId = [u8; 16];

/// Returns the usual name of a trace: 32 hexadecimal digits.
pub fn trace_name(trace: &TraceId) -> String {
    format!("{:032x}", u128::from_be_bytes(*trace))
}

/// A record of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Origin {
    source: u32,
    sequence: u64,
}

/// The path by which a record of a source comes to a stage.
#[derive(Debug, Clone)]
struct Before {
    operator: String,
    is_source: bool,
    /// Over a channel between slots.
    is_sent: bool,
}

/// Facts about an instance.
#[derive(Debug)]
struct Place {
    stage: String,
    operator: String,
    worker: String,
    /// By number of the source.
    before: BTreeMap<u32, Before>,
}

/// A channel between slots.
#[derive(Debug)]
struct TracedChannel {
    from: String,
    is_from_source: bool,
    to: String,
    stage: String,
    worker: String,
}

/// Makes spans; shared by the slots of a host. The coordinator has one too, for the spans that hosts send.
pub(crate) struct Tracer {
    options: TraceOptions,
    dilation: f64,
    /// Hashes below are traced.
    limit: u64,
    places: BTreeMap<String, Place>,
    ways: Vec<TracedChannel>,
    waiting: Mutex<VecDeque<Span>>,
    dropped: AtomicU64,
    /// Held by the thread that takes spans and passes them on.
    giving: Mutex<()>,
}

impl Tracer {
    pub(crate) fn new(options: TraceOptions, dilation: f64, program: &Program, graph: &Graph) -> Self {
        let operator_of = |stage: &str| {
            let stage = program.plan.stages.iter().find(|known| known.id == stage);
            stage.map(|stage| stage.operator.clone()).unwrap_or_default()
        };
        let is_source = |operator: &str| program.sources.contains_key(operator);
        let ways = graph.channels.iter().map(|channel| {
            let edge = &program.plan.edges[channel.edge];
            let (from, worker) = (operator_of(&edge.from), &graph.slots[channel.to_slot].worker);
            TracedChannel {
                is_from_source: is_source(&from),
                from,
                to: operator_of(&edge.to),
                stage: edge.to.clone(),
                worker: worker.clone(),
            }
        });
        let ways: Vec<TracedChannel> = ways.collect();
        let mut places = BTreeMap::new();
        for slot in &graph.slots {
            for instance in &slot.instances {
                let mut before = BTreeMap::new();
                for port in &instance.ports {
                    let local = port.local.iter().map(|(from, ..)| &slot.instances[*from].operator);
                    let sent = port.remote.iter().map(|(id, _)| &ways[*id].from);
                    // Where a stage has both before it, only the sender is certain.
                    let is_sent = port.local.is_empty();
                    for operator in local.chain(sent) {
                        for (number, source) in program.sources.keys().enumerate() {
                            if reaches(program, source, operator) {
                                let of = Before {
                                    operator: operator.clone(),
                                    is_source: is_source(operator),
                                    is_sent,
                                };
                                before.entry(number as u32).or_insert(of);
                            }
                        }
                    }
                }
                let place = Place {
                    stage: instance.stage.clone(),
                    operator: instance.operator.clone(),
                    worker: slot.worker.clone(),
                    before,
                };
                places.insert(instance.instance.clone(), place);
            }
        }
        let limit = match options.share {
            share if share >= 1.0 => u64::MAX,
            share if share > 0.0 => (share * u64::MAX as f64) as u64,
            _ => 0,
        };
        let (waiting, dropped, giving) = (Mutex::default(), AtomicU64::new(0), Mutex::default());
        Self { options, dilation, limit, places, ways, waiting, dropped, giving }
    }

    fn trace(&self, origin: Origin) -> TraceId {
        let Origin { source, sequence } = origin;
        let [a, b] = [self.options.seed.to_le_bytes(), sequence.to_le_bytes()];
        xxh3_128(&[&a[..], &b, &source.to_le_bytes()].concat()).max(1).to_be_bytes()
    }

    fn is_traced(&self, source: u32, sequence: u64) -> bool {
        // Mixed as splitmix64 does it: this runs for every record at every stage.
        let mut z = self.options.seed
            ^ sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ u64::from(source).rotate_left(40);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let z = z ^ (z >> 31);
        z < self.limit || self.limit == u64::MAX
    }

    /// Returns the traced records of a batch; of several rows of one record, the first.
    fn origins(&self, batch: &RecordBatch) -> Vec<(usize, Origin)> {
        let metadata = Metadata::of(batch);
        let mut found: Vec<(usize, Origin)> = Vec::new();
        let rows = metadata.sources.values().iter().zip(metadata.sequences.values());
        for (row, (source, sequence)) in rows.enumerate() {
            if !self.is_traced(*source, *sequence) {
                continue;
            }
            let origin = Origin { source: *source, sequence: *sequence };
            if found.iter().all(|(_, known)| *known != origin) {
                found.push((row, origin));
            }
        }
        found
    }

    /// Returns the metadata of a batch that has traced records.
    pub(crate) fn metadata(&self, batch: &RecordBatch) -> Option<RecordBatch> {
        if self.origins(batch).is_empty() {
            return None;
        }
        let columns: Vec<usize> = (0..METADATA_COLUMNS).collect();
        batch.project(&columns).ok()
    }

    fn id(trace: &TraceId, what: Happening, operator: &str) -> u64 {
        let bytes = [&trace[..], &[what as u8], operator.as_bytes()].concat();
        // All zeros is no span.
        xxh3_64(&bytes).max(1)
    }

    fn time(&self, time: Nanoseconds) -> i64 {
        self.options.zero + real(time, self.dilation)
    }

    /// Records an event of the records of a batch at an instance of a stage. `follows`: the event there before, if
    /// any.
    pub(crate) fn happened(
        &self,
        instance: &str,
        (follows, what): (Option<Happening>, Happening),
        batch: &RecordBatch,
        (begin, end): (Nanoseconds, Nanoseconds),
    ) {
        let origins = self.origins(batch);
        if origins.is_empty() {
            return;
        }
        let Some(place) = self.places.get(instance) else { return };
        for (_, origin) in origins {
            let trace = self.trace(origin);
            let parent = match (follows, place.before.get(&origin.source)) {
                (Some(follows), _) => Some(Self::id(&trace, follows, &place.operator)),
                (None, Some(before)) if before.is_sent => {
                    Some(Self::id(&trace, Happening::Transfer, &way(&before.operator, &place.operator)))
                }
                (None, Some(before)) => Some(Self::id(&trace, last(before.is_source), &before.operator)),
                (None, None) => None,
            };
            self.add(Span {
                trace,
                id: Self::id(&trace, what, &place.operator),
                parent,
                what,
                operator: place.operator.clone(),
                from: None,
                stage: place.stage.clone(),
                worker: place.worker.clone(),
                begin: self.time(begin.min(end)),
                end: self.time(end),
                batch: batch.num_rows() as u64,
                sequence: origin.sequence,
            });
        }
    }

    /// Records that records left a source; each was due at its own time.
    pub(crate) fn left(&self, instance: &str, batch: &RecordBatch, now: Nanoseconds) {
        let metadata = Metadata::of(batch);
        for (row, origin) in self.origins(batch) {
            let times = (metadata.intended.value(row).min(now), now);
            self.began(instance, origin, batch.num_rows() as u64, times);
        }
    }

    /// Begins the path of a record at its source.
    fn began(&self, instance: &str, origin: Origin, batch: u64, (begin, end): (Nanoseconds, Nanoseconds)) {
        let Some(place) = self.places.get(instance) else { return };
        let trace = self.trace(origin);
        self.add(Span {
            trace,
            id: Self::id(&trace, Happening::Source, &place.operator),
            parent: None,
            what: Happening::Source,
            operator: place.operator.clone(),
            from: None,
            stage: place.stage.clone(),
            worker: place.worker.clone(),
            begin: self.time(begin),
            end: self.time(end),
            batch,
            sequence: origin.sequence,
        });
    }

    /// Records that a record of a source could not be read: its path ends where it begins.
    pub(crate) fn unread(
        &self,
        (instance, operator): (&str, &str),
        (source, sequence): (u32, u64),
        letter: &mut DeadLetter,
        now: Nanoseconds,
    ) {
        if self.is_traced(source, sequence) {
            self.began(instance, Origin { source, sequence }, 1, (now, now));
            self.mark_one(operator, (source, sequence), letter);
        }
    }

    /// Records that records came over a channel. By the clocks of two hosts they may seem to have come before they
    /// were sent: then they took no time.
    pub(crate) fn came(&self, channel: ChannelId, batch: &RecordBatch, sent: Nanoseconds, now: Nanoseconds) {
        let origins = self.origins(batch);
        if origins.is_empty() {
            return;
        }
        let Some(over) = self.ways.get(channel) else { return };
        for (_, origin) in origins {
            let trace = self.trace(origin);
            self.add(Span {
                trace,
                id: Self::id(&trace, Happening::Transfer, &way(&over.from, &over.to)),
                parent: Some(Self::id(&trace, last(over.is_from_source), &over.from)),
                what: Happening::Transfer,
                operator: over.to.clone(),
                from: Some(over.from.clone()),
                stage: over.stage.clone(),
                worker: over.worker.clone(),
                begin: self.time(sent.min(now)),
                end: self.time(now),
                batch: batch.num_rows() as u64,
                sequence: origin.sequence,
            });
        }
    }

    /// Gives letters of traced records of a batch the name of their trace, and logs them.
    pub(crate) fn mark(&self, operator: &str, batch: &RecordBatch, letters: &mut [DeadLetter]) {
        if letters.is_empty() {
            return;
        }
        let metadata = Metadata::of(batch);
        for row in 0..batch.num_rows() {
            let (source, sequence) = (metadata.sources.value(row), metadata.sequences.value(row));
            if !self.is_traced(source, sequence) {
                continue;
            }
            let id = metadata.id(row);
            let of_row = letters.iter_mut().filter(|letter| letter.id == Some(id));
            of_row.for_each(|letter| self.mark_one(operator, (source, sequence), letter));
        }
    }

    fn mark_one(&self, operator: &str, (source, sequence): (u32, u64), letter: &mut DeadLetter) {
        let trace = trace_name(&self.trace(Origin { source, sequence }));
        tracing::warn!(
            trace_id = %trace,
            operator = %operator,
            reason = %letter.reason,
            "a record that is traced is a dead letter"
        );
        letter.values.insert("trace_id".to_owned(), trace.into());
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Span>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a span until it is taken, if there is room.
    pub(crate) fn add(&self, span: Span) {
        let mut waiting = self.lock();
        if waiting.len() >= MOST {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.push_back(span);
    }

    /// Takes the oldest spans.
    pub(crate) fn take(&self, most: usize) -> Vec<Span> {
        let mut waiting = self.lock();
        let count = waiting.len().min(most);
        waiting.drain(..count).collect()
    }

    /// Passes waiting spans to `give`, in parts that fit into one notice. When this returns, all spans that any
    /// thread took before have been passed on: a thread does not send its last notice while another one still has
    /// spans.
    pub(crate) fn give_on(&self, mut give: impl FnMut(Vec<Span>)) {
        let _alone = self.giving.lock().unwrap_or_else(PoisonError::into_inner);
        // At most the number that can wait: later spans are for the next call.
        for _ in 0..MOST / MOST_TOLD {
            match self.take(MOST_TOLD) {
                spans if spans.is_empty() => break,
                spans => give(spans),
            }
        }
    }

    /// Returns the number of spans that were dropped for lack of room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Counts spans that another host lost.
    pub(crate) fn lose(&self, spans: u64) {
        let _ = self
            .dropped
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| Some(before.saturating_add(spans)));
    }

    /// Returns the number of spans that were dropped since the last call.
    pub(crate) fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}

/// Returns the last event at an operator.
fn last(is_source: bool) -> Happening {
    if is_source { Happening::Source } else { Happening::Compute }
}

fn way(from: &str, to: &str) -> String {
    format!("{from}\n{to}")
}

/// Returns whether records of a source come to an operator, or are it.
fn reaches(program: &Program, source: &str, operator: &str) -> bool {
    let stage_operator = |stage: &str| {
        let stage = program.plan.stages.iter().find(|known| known.id == stage);
        stage.map_or("", |stage| stage.operator.as_str())
    };
    let (mut open, mut seen) = (vec![operator], std::collections::BTreeSet::new());
    while let Some(id) = open.pop() {
        if id == source {
            return true;
        }
        if seen.insert(id) {
            let edges = program.plan.edges.iter().filter(|edge| stage_operator(&edge.to) == id);
            open.extend(edges.map(|edge| stage_operator(&edge.from)));
        }
    }
    false
}

/// Source of spans while a run continues.
#[derive(Clone)]
pub struct Traces(pub(crate) Arc<Tracer>);

impl Traces {
    /// Removes and returns the oldest waiting spans, at most `most`.
    pub fn take(&self, most: usize) -> Vec<Span> {
        self.0.take(most)
    }

    /// Returns whether this is the only handle and no span waits: the run is gone.
    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && self.0.lock().is_empty()
    }

    /// Returns the number of spans that were dropped for lack of room.
    pub fn dropped(&self) -> u64 {
        self.0.dropped()
    }
}

#[cfg(test)]
mod tests;
