//! Reports of a run, in figures.
mod device;

pub use device::DeviceReport;

use crate::clock::{Clock, ClockFigures, Nanoseconds};
use crate::emulation::{Emulated, EmulationReport};
use crate::feeds::{FeedTable, RunFeeds};
use crate::graph::{MetricsTable, Program, SlotSpec};
use crate::letters::{LetterGroup, LetterSample, Letters};
use crate::metrics::{EdgeMetrics, LatencySummary, SinkMetrics, StageMetrics};
use crate::processor::ProcessorTime;
use crate::promise::Promise;
use crate::samples::{Sample, Sampler};
use crate::traces::{Tracer, Traces};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidemill_link::transport::PathFigures;
use tidemill_operators::measures::Measures;
use tidemill_operators::track_truth::TrackMeasures;
use tidemill_spec::publication::Publication;
use tidemill_spec::workflow::WhenCut;

/// State of a run that reports need.
pub(crate) struct RunFacts {
    pub(crate) metrics: MetricsTable,
    pub(crate) letters: Arc<Letters>,
    pub(crate) sampler: Option<Arc<Sampler>>,
    pub(crate) tracer: Option<Arc<Tracer>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) started: AtomicI64,
    /// Engine time of the processes that this one continues.
    pub(crate) elapsed_before: AtomicI64,
    pub(crate) ended: Mutex<Option<Nanoseconds>>,
    /// Sources had more than the run has read.
    pub(crate) cut_short: AtomicBool,
    pub(crate) program: Program,
    pub(crate) slots: Vec<SlotFacts>,
    pub(crate) restarts: AtomicU64,
    pub(crate) emulated: Option<Emulated>,
    /// Names of hosts that are processes of their own, and the figures of their clocks, by number.
    pub(crate) hosts: Vec<String>,
    /// The hosts among them that have opened their files.
    pub(crate) opened: Vec<AtomicBool>,
    pub(crate) clocks: Mutex<BTreeMap<usize, ClockFigures>>,
    /// The paths of hosts, by number, and the hosts of the places that they lead to.
    pub(crate) paths: Mutex<BTreeMap<usize, Vec<PathFigures>>>,
    pub(crate) places: Mutex<BTreeMap<String, String>>,
    /// The feeds of its live sources.
    pub(crate) feeds: RunFeeds,
    /// When figures of hosts came last, by number.
    pub(crate) heard: Mutex<BTreeMap<usize, Nanoseconds>>,
    /// By sink.
    pub(crate) promises: BTreeMap<String, Promise>,
}

/// A slot as reports see it.
pub(crate) struct SlotFacts {
    name: String,
    instances: Vec<String>,
    processor: Arc<ProcessorTime>,
}

impl SlotFacts {
    pub(crate) fn of(slot: &SlotSpec, processor: Arc<ProcessorTime>) -> Self {
        let instances = slot.instances.iter().map(|instance| instance.instance.clone()).collect();
        Self { name: slot.name.clone(), instances, processor }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn processor_nanoseconds(&self) -> u64 {
        self.processor.nanoseconds()
    }

    /// Shows the count of another process.
    pub(crate) fn set_processor(&self, time: Duration) {
        self.processor.set(time);
    }
}

/// Progress so far; cheap to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Progress {
    /// Records that sources have read, including unusable ones, as a checkpoint counts them.
    pub emitted: u64,
    /// Records that reached the sinks.
    pub arrived: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Engine seconds since the start.
    pub seconds: f64,
}

impl Progress {
    pub(crate) fn of(facts: &RunFacts) -> Self {
        let emitted =
            facts.program.plan.stages.iter().filter(|s| facts.program.sources.contains_key(&s.operator));
        let emitted = emitted.filter_map(|stage| facts.metrics.stages.get(&stage.id));
        Self {
            emitted: emitted
                .map(|stage| {
                    stage.records_out.load(Ordering::Relaxed)
                        + stage.dead_letters.counts().values().sum::<u64>()
                })
                .sum(),
            arrived: facts.metrics.sinks.values().map(|sink| sink.records.load(Ordering::Relaxed)).sum(),
            dead_letters: facts.letters.total(),
            seconds: (facts.clock.now() - facts.started.load(Ordering::Acquire)) as f64 / 1e9,
        }
    }
}

/// Ages of the beginning of a run and of the arrivals at its sinks: comparable with those of another run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// Since the beginning of its schedule, which includes the engine time of the processes that it continues. In the
    /// run of the next plan it is later by the time that the sources lost between the two.
    pub since_beginning: Duration,
    /// Since the first and since the last arrival, by sink; sinks without arrivals are left out.
    pub arrivals: BTreeMap<String, (Duration, Duration)>,
}

impl Timing {
    pub(crate) fn of(facts: &RunFacts) -> Self {
        let now = facts.clock.now();
        let since = |time: Nanoseconds| Duration::from_nanos(u64::try_from(now - time).unwrap_or(0));
        let begins = facts.started.load(Ordering::Acquire) - facts.elapsed_before.load(Ordering::Acquire);
        let arrivals = facts.metrics.sinks.iter().filter_map(|(sink, metrics)| {
            let first = metrics.first_arrival.load(Ordering::Relaxed);
            let last = metrics.last_arrival.load(Ordering::Relaxed);
            (first != 0).then(|| (sink.clone(), (since(first), since(last))))
        });
        Self { since_beginning: since(begins), arrivals: arrivals.collect() }
    }
}

/// A stage's figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct StageReport {
    /// Stage id.
    pub stage: String,
    /// Operator, source or sink id.
    pub operator: String,
    /// Chosen model, if it has one.
    pub variant: Option<String>,
    /// Worker id.
    pub worker: String,
    /// Records in (replays included).
    pub records_in: u64,
    /// Records out (replays included).
    pub records_out: u64,
    /// Batches computed.
    pub batches: u64,
    /// Waiting before the computation.
    pub queue: LatencySummary,
    /// Computation, of the whole batch.
    pub compute: LatencySummary,
    /// Transfer into the stage from other slots.
    pub transfer: LatencySummary,
    /// Records lost on purpose, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Records that continued with a note, by reason (replays included).
    pub notes: BTreeMap<String, u64>,
    /// Records that could not be processed, by reason.
    pub dead_letters: BTreeMap<String, u64>,
    /// Bytes of state at the end.
    pub state_bytes: u64,
    /// Largest lag against the open-loop schedule, milliseconds; sources only.
    pub schedule_lag_ms: f64,
    /// Newest event time of a source's records, in microseconds since 1970, where this process has read them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest_time: Option<i64>,
    /// Restarts after a panic.
    pub restarts: u64,
    /// Copies of the model that were added during the run.
    #[serde(skip_serializing_if = "is_none")]
    pub copies_added: u64,
    /// The device of the model, as its executor reports it: `cpu` for the processors of this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Where the time of its batches went; none: no other device than the processors of a worker has computed any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_device: Option<DeviceReport>,
    /// Seconds of processor time of other threads for this stage alone: those of a model, those that read a source.
    /// The work of a stage on the thread of its slot is in [`SlotReport`], with the other stages there.
    pub processor_seconds: f64,
}

fn is_none(number: &u64) -> bool {
    *number == 0
}

fn is_first(input: &u32) -> bool {
    *input == 0
}

/// A slot's figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SlotReport {
    /// `worker/slot group`, with `/partition` after the first.
    pub slot: String,
    /// Stages on it, partitions as `stage#0`.
    pub stages: Vec<String>,
    /// Seconds of processor time of its thread.
    pub processor_seconds: f64,
}

/// An edge's figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EdgeReport {
    /// Sending stage.
    pub from: String,
    /// Receiving stage.
    pub to: String,
    /// Input of the receiving stage: a join may take the same stage as several.
    #[serde(skip_serializing_if = "is_first")]
    pub input: u32,
    /// Records sent between slots (replays included); 0 inside a slot.
    pub records: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Records lost on purpose, by reason.
    pub drops: BTreeMap<String, u64>,
    /// For an edge that another variant answers while it is cut: the records that the variant has answered, and those
    /// that the other side has (replays included).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<Answered>,
}

/// Source of the answers to the records of an edge with `when_cut: degrade`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Answered {
    /// Records that were answered on the sending side.
    pub here: u64,
    /// Records that were answered on the receiving side.
    pub there: u64,
}

/// A sink's figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SinkReport {
    /// Sink id.
    pub sink: String,
    /// Records committed (each once); into a pipe, those that were written before its reader went away.
    pub records: u64,
    /// The output of the sink has no reader any more: the reader of its pipe went away.
    pub reader_gone: bool,
    /// Records per second between the first and the last arrival, each once.
    pub rate_per_second: f64,
    /// The guarantee of how often each row comes, and the reason.
    pub promise: Promise,
    /// When readers can see records that arrived.
    pub publication: Publication,
    /// From the intended emission until readers of the sink can see the record.
    pub latency: LatencySummary,
    /// From the intended emission to the arrival in the sink's memory (replays included).
    pub arrival: LatencySummary,
    /// Milliseconds by which latency may be wrong, because records came from hosts with other clocks; none: one clock measured it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_plus_minus_ms: Option<f64>,
    /// Share of exact matches in percent, where ground truth is given; of tracks IDF1, of scores the area under the ROC
    /// curve, of boxes the mean average precision. Numbers have none.
    pub accuracy_percent: Option<f64>,
    /// Exact matches.
    pub correct: u64,
    /// Records with ground truth; those after the last checkpoint of a process that was lost count again when they
    /// come again. Of texts it is characters, those of all right texts once the sink is closed; of tracks it is
    /// boxes, and 0 until then. Both are judged as a whole: it is 0 where the sink continues rows of another process.
    pub scored: u64,
    /// Number of independent samples with the same uncertainty as this share: as many as were scored, but for tracks,
    /// which are scored by their boxes; 0 if the uncertainty is not known.
    pub independent: u64,
    /// Of tracks that are judged: measures beside IDF1, once the sink is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracks: Option<TrackMeasures>,
    /// Measures beside the share of right answers, once the sink is closed: of classes, numbers, scores or boxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measures: Option<Measures>,
    /// Records whose key has no ground truth.
    pub without_truth: u64,
}

/// A host that is a process of its own.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostReport {
    /// The worker of the plan.
    pub host: String,
    /// Largest difference between its clock and the coordinator's, in milliseconds of engine time, as far as it could
    /// be known.
    pub clock_plus_minus_ms: f64,
    /// Rate by which the coordinator's clock is faster than the host's own, in parts per million; it is corrected
    /// for.
    pub clock_drift_ppm: f64,
    /// Shortest round trip of a request for the time, milliseconds.
    pub round_trip_ms: f64,
}

/// Report of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunReport {
    /// All sources ended and everything is committed; `false` after an abort or while the run continues.
    pub complete: bool,
    /// Sources had more than the run has read: it was limited or stopped. Known once it has ended.
    pub cut_short: bool,
    /// Engine seconds from start to end.
    pub seconds: f64,
    /// Stages in the order of the plan.
    pub stages: Vec<StageReport>,
    /// Slots in the order in which data reaches them first.
    pub slots: Vec<SlotReport>,
    /// Edges in the order of the plan.
    pub edges: Vec<EdgeReport>,
    /// Sinks.
    pub sinks: Vec<SinkReport>,
    /// All dead letters.
    pub dead_letters: u64,
    /// The first dead letters.
    pub dead_letter_samples: Vec<LetterSample>,
    /// Dead letters by operator and reason, with the first ones of each.
    pub dead_letter_groups: Vec<LetterGroup>,
    /// Restarts of slots.
    pub restarts: u64,
    /// Hosts that are processes of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostReport>,
    /// The feeds of live sources, by source.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub feeds: FeedTable,
    /// Work of emulated workers and wires, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulation: Option<EmulationReport>,
}

/// Gives reports of a run, and their underlying figures to callers that need other percentiles or histograms.
#[derive(Clone)]
pub struct Observer(pub(crate) Arc<RunFacts>);

impl Observer {
    /// Returns the present report.
    pub fn report(&self) -> RunReport {
        report(&self.0, false)
    }

    /// Returns the progress so far.
    pub fn progress(&self) -> Progress {
        Progress::of(&self.0)
    }

    /// Returns when it began and when records came to its sinks.
    pub fn timing(&self) -> Timing {
        Timing::of(&self.0)
    }

    /// Returns the program of the run.
    pub fn program(&self) -> &Program {
        &self.0.program
    }

    /// Returns whether both are of the same run.
    pub fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the traces of records; none: the run traces none.
    pub fn traces(&self) -> Option<Traces> {
        self.0.tracer.clone().map(Traces)
    }

    /// Returns the present engine time.
    pub fn now(&self) -> Nanoseconds {
        self.0.clock.now()
    }

    /// Returns the engine seconds from the start to the end, or until now.
    pub fn seconds(&self) -> f64 {
        seconds(&self.0)
    }

    /// Returns hosts that are processes of their own and do nothing yet: they are lost, or have not opened their
    /// models and files.
    pub fn opening(&self) -> Vec<String> {
        let hosts = self.0.hosts.iter().zip(&self.0.opened);
        hosts.filter(|(_, opened)| !opened.load(Ordering::Relaxed)).map(|(host, _)| host.clone()).collect()
    }

    /// Returns an upper bound of the dead letters of other processes that are missing: more came than is kept while a
    /// coordinator is away.
    pub fn letters_not_told(&self) -> u64 {
        self.0.letters.lost()
    }

    /// Restarts of slots so far.
    pub fn restarts(&self) -> u64 {
        self.0.restarts.load(Ordering::Relaxed)
    }

    /// Returns the paths of hosts that are processes of their own: the host, the host at the other end (none: the
    /// coordinator), and figures.
    pub fn paths(&self) -> Vec<(String, Option<String>, PathFigures)> {
        let places = self.0.places.lock().unwrap_or_else(PoisonError::into_inner);
        let paths = self.0.paths.lock().unwrap_or_else(PoisonError::into_inner);
        let known = paths.iter().filter_map(|(number, paths)| Some((self.0.hosts.get(*number)?, paths)));
        known
            .flat_map(|(host, paths)| {
                paths.iter().map(|path| {
                    let to = path.peer.as_ref().and_then(|place| places.get(place).cloned());
                    (host.clone(), to, path.clone())
                })
            })
            .collect()
    }

    /// Returns how long ago figures of a host came; none: none have come, or it is no process of its own.
    pub fn silence(&self, host: &str) -> Option<Duration> {
        let number = self.0.hosts.iter().position(|name| name == host)?;
        let at = *self.0.heard.lock().unwrap_or_else(PoisonError::into_inner).get(&number)?;
        Some(Duration::from_nanos(u64::try_from(self.0.clock.now() - at).unwrap_or(0)))
    }

    /// Returns the slots, in the order in which data reaches them first.
    pub fn slots(&self) -> Vec<SlotReport> {
        slots(&self.0).collect()
    }

    /// Returns the guarantee of how often each row of a sink comes, and the reason.
    pub fn promise(&self, sink: &str) -> Option<&Promise> {
        self.0.promises.get(sink)
    }

    /// Returns the figures of a stage.
    pub fn stage(&self, stage: &str) -> Option<Arc<StageMetrics>> {
        self.0.metrics.stages.get(stage).cloned()
    }

    /// Returns the figures of an edge of the plan.
    pub fn edge(&self, from: &str, to: &str, input: u32) -> Option<Arc<EdgeMetrics>> {
        self.0.metrics.edges.get(&(from.to_owned(), to.to_owned(), input)).cloned()
    }

    /// Returns records that reached a sink and were kept, wrong ones first; see [`crate::RunOptions::samples`]. The
    /// newest records of hosts that are processes of their own come only within half a minute of such a call.
    pub fn samples(&self, sink: &str) -> Vec<Sample> {
        if let Some(sampler) = &self.0.sampler {
            sampler.show_from(self.0.clock.now());
        }
        self.0.sampler.as_ref().map_or_else(Vec::new, |sampler| sampler.of(sink))
    }

    /// Returns the figures of a sink.
    pub fn sink(&self, sink: &str) -> Option<Arc<SinkMetrics>> {
        self.0.metrics.sinks.get(sink).cloned()
    }
}

fn seconds(facts: &RunFacts) -> f64 {
    let ended = *facts.ended.lock().unwrap_or_else(PoisonError::into_inner);
    (ended.unwrap_or_else(|| facts.clock.now()) - facts.started.load(Ordering::Acquire)) as f64 / 1e9
}

pub(crate) fn report(facts: &RunFacts, complete: bool) -> RunReport {
    let plan = &facts.program.plan;
    // The record waits for the slowest path into a stage.
    let mut transfers: BTreeMap<&str, LatencySummary> = BTreeMap::new();
    for ((_, to, _), edge) in &facts.metrics.edges {
        let way = edge.transfer.summary();
        let slowest = transfers.entry(to.as_str()).or_insert(way);
        if way.mean_ms > slowest.mean_ms {
            *slowest = way;
        }
    }
    let stages = plan.stages.iter().map(|stage| {
        let empty = StageMetrics::default();
        let metrics = facts.metrics.stages.get(&stage.id).map_or(&empty, |metrics| metrics);
        StageReport {
            stage: stage.id.clone(),
            operator: stage.operator.clone(),
            variant: stage.variant.clone(),
            worker: stage.worker.clone(),
            records_in: metrics.records_in.load(Ordering::Relaxed),
            records_out: metrics.records_out.load(Ordering::Relaxed),
            batches: metrics.batches.load(Ordering::Relaxed),
            queue: metrics.queue.summary(),
            compute: metrics.compute.summary(),
            transfer: transfers.get(stage.id.as_str()).copied().unwrap_or_default(),
            drops: metrics.drops.counts(),
            notes: metrics.notes.counts(),
            dead_letters: metrics.dead_letters.counts(),
            state_bytes: metrics.state_bytes.load(Ordering::Relaxed),
            newest_time: match metrics.newest_time.load(Ordering::Relaxed) {
                0 => None,
                time => Some(time - 1),
            },
            schedule_lag_ms: metrics.schedule_lag.load(Ordering::Relaxed) as f64 / 1e6,
            restarts: metrics.restarts.load(Ordering::Relaxed),
            copies_added: metrics.copies_added.load(Ordering::Relaxed),
            device: metrics.device.get().cloned(),
            on_device: DeviceReport::of(metrics),
            processor_seconds: metrics.processor.seconds(),
        }
    });
    let edges = plan.edges.iter().map(|edge| {
        let empty = EdgeMetrics::default();
        let key = (edge.from.clone(), edge.to.clone(), edge.input);
        let metrics = facts.metrics.edges.get(&key).map_or(&empty, |metrics| metrics);
        EdgeReport {
            from: edge.from.clone(),
            to: edge.to.clone(),
            input: edge.input,
            records: metrics.records.load(Ordering::Relaxed),
            bytes: metrics.bytes.load(Ordering::Relaxed),
            drops: metrics.drops.counts(),
            answered: matches!(facts.program.when_cut(edge), Some(WhenCut::Degrade(_))).then(|| Answered {
                here: metrics.answered_here.load(Ordering::Relaxed),
                there: metrics.answered_there.load(Ordering::Relaxed),
            }),
        }
    });
    RunReport {
        complete,
        cut_short: facts.cut_short.load(Ordering::Relaxed),
        seconds: seconds(facts),
        stages: stages.collect(),
        slots: slots(facts).collect(),
        edges: edges.collect(),
        sinks: sinks(facts),
        dead_letters: facts.letters.total(),
        dead_letter_samples: facts.letters.samples(),
        dead_letter_groups: facts.letters.groups(),
        restarts: facts.restarts.load(Ordering::Relaxed),
        hosts: hosts(facts),
        feeds: facts.feeds.status(),
        emulation: facts.emulated.as_ref().map(|emulated| emulated.report(&facts.program)),
    }
}

fn slots(facts: &RunFacts) -> impl Iterator<Item = SlotReport> {
    facts.slots.iter().map(|slot| SlotReport {
        slot: slot.name.clone(),
        stages: slot.instances.clone(),
        processor_seconds: slot.processor.seconds(),
    })
}

fn hosts(facts: &RunFacts) -> Vec<HostReport> {
    let clocks = facts.clocks.lock().unwrap_or_else(PoisonError::into_inner);
    let hosts = clocks.iter().filter_map(|(number, clock)| Some((facts.hosts.get(*number)?, clock)));
    hosts
        .map(|(host, clock)| HostReport {
            host: host.clone(),
            clock_plus_minus_ms: clock.plus_minus as f64 / 1e6,
            clock_drift_ppm: clock.drift * 1e6,
            round_trip_ms: clock.round_trip as f64 / 1e6,
        })
        .collect()
}

/// Returns a bound of the error of a sink's latency, which is from the clock of a source's host to that of the
/// sink's.
fn plus_minus(sink: &str, facts: &RunFacts, hosts: &[HostReport]) -> Option<f64> {
    let of_worker =
        |worker: &str| hosts.iter().find(|host| host.host == worker).map(|h| h.clock_plus_minus_ms);
    let stages = &facts.program.plan.stages;
    let own = stages.iter().find(|stage| stage.operator == sink)?.worker.as_str();
    let sources = stages.iter().filter(|stage| facts.program.sources.contains_key(&stage.operator));
    let others = sources.filter(|stage| stage.worker != own).filter_map(|stage| of_worker(&stage.worker));
    Some(of_worker(own)? + others.reduce(f64::max)?)
}

/// Returns the rate of records that arrived in this number of seconds, some of which may not be committed yet. A
/// repeated record after a restart arrives again, but does not count again.
fn rate(arrivals: u64, committed: u64, has_repeated: bool, seconds: f64) -> f64 {
    let records = if has_repeated { arrivals.min(committed) } else { arrivals };
    if records > 1 && seconds > 0.0 { (records - 1) as f64 / seconds } else { 0.0 }
}

fn sinks(facts: &RunFacts) -> Vec<SinkReport> {
    let hosts = hosts(facts);
    let sinks = facts.metrics.sinks.iter().map(|(id, metrics)| {
        // No lock: a sink that waits for its reader must not delay the report.
        let (correct, scored) =
            (metrics.correct.load(Ordering::Relaxed), metrics.scored.load(Ordering::Relaxed));
        let measures = metrics.measures.get().cloned();
        let accuracy = measures.as_ref().and_then(Measures::percent);
        let committed = metrics.committed.load(Ordering::Relaxed);
        let arrivals = metrics.records.load(Ordering::Relaxed);
        let has_repeated = facts.restarts.load(Ordering::Relaxed) > 0;
        let first = metrics.first_arrival.load(Ordering::Relaxed);
        let span = (metrics.last_arrival.load(Ordering::Relaxed) - first) as f64 / 1e9;
        SinkReport {
            sink: id.clone(),
            records: committed,
            reader_gone: metrics.closed.load(Ordering::Relaxed),
            rate_per_second: rate(arrivals, committed, has_repeated, span),
            promise: facts.promises[id].clone(),
            publication: metrics.publication.get().copied().unwrap_or(Publication::EachCheckpoint),
            latency: metrics.latency.summary(),
            arrival: metrics.arrival.summary(),
            latency_plus_minus_ms: plus_minus(id, facts, &hosts),
            accuracy_percent: accuracy
                .or_else(|| (scored > 0).then(|| correct as f64 * 100.0 / scored as f64)),
            correct,
            scored,
            independent: metrics.independent.load(Ordering::Relaxed),
            tracks: metrics.tracks.get().copied(),
            measures,
            without_truth: metrics.without_truth.load(Ordering::Relaxed),
        }
    });
    sinks.collect()
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn what_arrived_again_after_a_restart_makes_no_rate_higher() {
        assert_eq!(rate(101, 101, false, 2.0), 50.0);
        assert_eq!(rate(101, 90, false, 2.0), 50.0, "the last ones are not committed yet");
        assert_eq!(rate(151, 101, true, 2.0), 50.0);
        assert_eq!((rate(1, 1, false, 2.0), rate(9, 0, true, 2.0), rate(9, 9, false, 0.0)), (0.0, 0.0, 0.0));
    }
}
