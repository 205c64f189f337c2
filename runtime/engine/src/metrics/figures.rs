//! All figures of a host as plain data, so that the coordinator of a run can show those of all its hosts.
use super::{BatchSizes, ByReason, EdgeMetrics, Latencies, SinkMetrics, StageMetrics};
use crate::clock::ClockFigures;
use crate::emulation::EmulationReport;
use crate::graph::{Graph, MetricsTable, Program};
use crate::histogram::Histogram;
use crate::report::SlotFacts;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidemill_spec::publication::Publication;

type Reasons = BTreeMap<String, u64>;

/// Of all stages, edges, sinks and slots of a host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    stages: BTreeMap<String, StageFigures>,
    edges: Vec<(Edge, EdgeFigures)>,
    sinks: BTreeMap<String, SinkFigures>,
    /// Nanoseconds of processor time, by slot.
    slots: BTreeMap<String, u64>,
    /// What its worker and its ends of wires did, where they are emulated.
    pub(crate) emulation: Option<EmulationReport>,
    /// How its clock runs beside the coordinator's.
    pub(crate) clock: Option<ClockFigures>,
}

/// What a host has of a plan.
#[derive(Debug, Clone, Default)]
pub(crate) struct Own {
    pub(crate) stages: BTreeSet<String>,
    /// Stages with partitions.
    pub(crate) instances: BTreeSet<String>,
    pub(crate) sinks: BTreeSet<String>,
}

impl Own {
    /// What the slots of a worker have.
    pub(crate) fn of(program: &Program, graph: &Graph, worker: &str) -> Self {
        let mut own = Self::default();
        let slots = graph.slots.iter().filter(|slot| slot.worker == worker);
        for instance in slots.flat_map(|slot| &slot.instances) {
            own.stages.insert(instance.stage.clone());
            own.instances.insert(instance.instance.clone());
            if program.sinks.contains_key(&instance.operator) {
                own.sinks.insert(instance.operator.clone());
            }
        }
        own
    }
}

type Edge = (String, String, u32);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct StageFigures {
    records_in: u64,
    records_out: u64,
    batches: u64,
    batch_sizes: Vec<u64>,
    batch_records: u64,
    queue: Histogram,
    compute: Histogram,
    drops: Reasons,
    notes: Reasons,
    dead_letters: Reasons,
    state_bytes: u64,
    schedule_lag: i64,
    restarts: u64,
    processor: u64,
    copies_added: u64,
    device: Option<String>,
    ended: bool,
}

/// What the sender knows, and what the receiver knows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct EdgeFigures {
    records: u64,
    bytes: u64,
    drops: Reasons,
    transfer: Histogram,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct SinkFigures {
    records: u64,
    latency: Histogram,
    arrival: Histogram,
    publication: Option<Publication>,
    first_arrival: i64,
    last_arrival: i64,
    committed: u64,
    scored: u64,
    correct: u64,
    without_truth: u64,
    closed: bool,
}

impl Latencies {
    fn histogram(&self) -> Histogram {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, histogram: Histogram) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = histogram;
    }
}

impl ByReason {
    fn set(&self, counts: Reasons) {
        let counts = counts.into_iter().map(|(reason, n)| (reason.into(), n)).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn set(counter: &AtomicU64, value: u64) {
    counter.store(value, Ordering::Relaxed);
}

fn add_reasons(to: &mut Reasons, more: &Reasons) {
    for (reason, n) in more {
        *to.entry(reason.clone()).or_default() += n;
    }
}

impl Figures {
    /// Those of these stages and sinks, and of the edges into and out of them.
    pub(crate) fn of(metrics: &MetricsTable, slots: &[SlotFacts], own: &Own) -> Self {
        let stages = metrics.stages.iter().filter(|(id, _)| own.stages.contains(*id));
        let is_own = |from: &String, to: &String| own.stages.contains(from) || own.stages.contains(to);
        let edges = metrics.edges.iter().filter(|((from, to, _), _)| is_own(from, to));
        let sinks = metrics.sinks.iter().filter(|(id, _)| own.sinks.contains(*id));
        Self {
            stages: stages.map(|(id, stage)| (id.clone(), StageFigures::of(stage))).collect(),
            edges: edges.map(|(key, edge)| (key.clone(), EdgeFigures::of(edge))).collect(),
            sinks: sinks.map(|(id, sink)| (id.clone(), SinkFigures::of(sink))).collect(),
            slots: slots.iter().map(|slot| (slot.name().to_owned(), slot.processor_nanoseconds())).collect(),
            emulation: None,
            clock: None,
        }
    }

    /// And what its worker and its ends of wires did, and how its clock runs.
    pub(crate) fn with(self, emulation: Option<EmulationReport>, clock: ClockFigures) -> Self {
        Self { emulation, clock: Some(clock), ..self }
    }

    /// Adds what a former process of the same host has counted.
    pub(crate) fn add(&mut self, before: &Self) {
        for (id, stage) in &before.stages {
            self.stages.entry(id.clone()).or_default().add(stage);
        }
        for (key, edge) in &before.edges {
            match self.edges.iter_mut().find(|(other, _)| other == key) {
                Some((_, own)) => own.add(edge),
                None => self.edges.push((key.clone(), edge.clone())),
            }
        }
        for (id, sink) in &before.sinks {
            self.sinks.entry(id.clone()).or_default().add(sink);
        }
        for (slot, processor) in &before.slots {
            *self.slots.entry(slot.clone()).or_default() += processor;
        }
        if let Some(before) = &before.emulation {
            self.emulation.get_or_insert_default().add(before);
        }
    }

    /// Shows them as those of the run; `own`: what the host has.
    pub(crate) fn show(self, metrics: &MetricsTable, slots: &[SlotFacts], own: &Own) {
        for (id, figures) in self.stages {
            if let Some(stage) = metrics.stages.get(&id) {
                figures.show(stage);
            }
        }
        for (key, figures) in self.edges {
            if let Some(edge) = metrics.edges.get(&key) {
                figures.show(edge, own.stages.contains(&key.0), own.stages.contains(&key.1));
            }
        }
        for (id, figures) in self.sinks {
            if let Some(sink) = metrics.sinks.get(&id) {
                figures.show(sink);
            }
        }
        for slot in slots {
            if let Some(nanoseconds) = self.slots.get(slot.name()) {
                slot.set_processor(Duration::from_nanos(*nanoseconds));
            }
        }
    }
}

impl StageFigures {
    fn of(stage: &StageMetrics) -> Self {
        Self {
            records_in: get(&stage.records_in),
            records_out: get(&stage.records_out),
            batches: get(&stage.batches),
            batch_sizes: stage.batch_sizes.counts.iter().map(get).collect(),
            batch_records: get(&stage.batch_sizes.records),
            queue: stage.queue.histogram(),
            compute: stage.compute.histogram(),
            drops: stage.drops.counts(),
            notes: stage.notes.counts(),
            dead_letters: stage.dead_letters.counts(),
            state_bytes: get(&stage.state_bytes),
            schedule_lag: stage.schedule_lag.load(Ordering::Relaxed),
            restarts: get(&stage.restarts),
            processor: stage.processor.nanoseconds(),
            copies_added: get(&stage.copies_added),
            device: stage.device.get().cloned(),
            ended: stage.ended.load(Ordering::Relaxed),
        }
    }

    fn add(&mut self, before: &Self) {
        self.records_in += before.records_in;
        self.records_out += before.records_out;
        self.batches += before.batches;
        self.batch_sizes.resize(BatchSizes::BOUNDS.len() + 1, 0);
        self.batch_sizes.iter_mut().zip(&before.batch_sizes).for_each(|(own, more)| *own += more);
        self.batch_records += before.batch_records;
        self.queue.add_all(&before.queue);
        self.compute.add_all(&before.compute);
        add_reasons(&mut self.drops, &before.drops);
        add_reasons(&mut self.notes, &before.notes);
        add_reasons(&mut self.dead_letters, &before.dead_letters);
        self.schedule_lag = self.schedule_lag.max(before.schedule_lag);
        self.restarts += before.restarts;
        self.processor += before.processor;
        self.copies_added += before.copies_added;
    }

    fn show(self, stage: &StageMetrics) {
        set(&stage.records_in, self.records_in);
        set(&stage.records_out, self.records_out);
        set(&stage.batches, self.batches);
        stage.batch_sizes.counts.iter().zip(&self.batch_sizes).for_each(|(counter, n)| set(counter, *n));
        set(&stage.batch_sizes.records, self.batch_records);
        stage.queue.set(self.queue);
        stage.compute.set(self.compute);
        stage.drops.set(self.drops);
        stage.notes.set(self.notes);
        stage.dead_letters.set(self.dead_letters);
        set(&stage.state_bytes, self.state_bytes);
        stage.schedule_lag.store(self.schedule_lag, Ordering::Relaxed);
        set(&stage.restarts, self.restarts);
        stage.processor.set(Duration::from_nanos(self.processor));
        set(&stage.copies_added, self.copies_added);
        if let Some(device) = self.device {
            let _ = stage.device.set(device); // known already: it stays the same
        }
        stage.ended.store(self.ended, Ordering::Relaxed);
    }
}

impl EdgeFigures {
    fn of(edge: &EdgeMetrics) -> Self {
        Self {
            records: get(&edge.records),
            bytes: get(&edge.bytes),
            drops: edge.drops.counts(),
            transfer: edge.transfer.histogram(),
        }
    }

    fn add(&mut self, before: &Self) {
        self.records += before.records;
        self.bytes += before.bytes;
        add_reasons(&mut self.drops, &before.drops);
        self.transfer.add_all(&before.transfer);
    }

    fn show(self, edge: &EdgeMetrics, sends: bool, receives: bool) {
        if sends {
            set(&edge.records, self.records);
            set(&edge.bytes, self.bytes);
            edge.drops.set(self.drops);
        }
        if receives {
            edge.transfer.set(self.transfer);
        }
    }
}

impl SinkFigures {
    fn of(sink: &SinkMetrics) -> Self {
        Self {
            records: get(&sink.records),
            latency: sink.latency.histogram(),
            arrival: sink.arrival.histogram(),
            publication: sink.publication.get().copied(),
            first_arrival: sink.first_arrival.load(Ordering::Relaxed),
            last_arrival: sink.last_arrival.load(Ordering::Relaxed),
            committed: get(&sink.committed),
            scored: get(&sink.scored),
            correct: get(&sink.correct),
            without_truth: get(&sink.without_truth),
            closed: sink.closed.load(Ordering::Relaxed),
        }
    }

    /// The rows that a former process committed and that still hold are counted by the one that continues.
    fn add(&mut self, before: &Self) {
        self.records += before.records;
        self.latency.add_all(&before.latency);
        self.arrival.add_all(&before.arrival);
        self.publication = self.publication.or(before.publication);
        if before.first_arrival != 0 {
            self.first_arrival = before.first_arrival;
        }
        self.last_arrival = self.last_arrival.max(before.last_arrival);
        self.scored += before.scored;
        self.correct += before.correct;
        self.without_truth += before.without_truth;
    }

    fn show(self, sink: &SinkMetrics) {
        set(&sink.records, self.records);
        sink.latency.set(self.latency);
        sink.arrival.set(self.arrival);
        if let Some(publication) = self.publication {
            let _ = sink.publication.set(publication); // known already: it stays the same
        }
        sink.first_arrival.store(self.first_arrival, Ordering::Relaxed);
        sink.last_arrival.store(self.last_arrival, Ordering::Relaxed);
        set(&sink.committed, self.committed);
        set(&sink.scored, self.scored);
        set(&sink.correct, self.correct);
        set(&sink.without_truth, self.without_truth);
        sink.closed.store(self.closed, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn table() -> MetricsTable {
        let mut table = MetricsTable::default();
        table.stages.insert("a".into(), Arc::default());
        table.stages.insert("b".into(), Arc::default());
        table.edges.insert(("a".into(), "b".into(), 0), Arc::default());
        table.sinks.insert("out".into(), Arc::default());
        table
    }

    fn fill(table: &MetricsTable, n: u64) {
        for stage in table.stages.values() {
            set(&stage.records_in, n);
            stage.batch_sizes.record(n);
            stage.queue.record(n as i64 * 1_000_000, n);
            stage.drops.add("late", n);
            stage.schedule_lag.store(n as i64, Ordering::Relaxed);
        }
        for edge in table.edges.values() {
            set(&edge.records, n);
            edge.transfer.record(5_000_000, n);
        }
        for sink in table.sinks.values() {
            set(&sink.records, n);
            set(&sink.committed, n);
            sink.latency.record(1_000_000, n);
        }
    }

    #[test]
    fn the_coordinator_shows_what_two_processes_of_a_host_counted() {
        let own = Own { stages: ["b".to_owned()].into(), sinks: ["out".to_owned()].into(), ..Own::default() };
        let (first, second, shown) = (table(), table(), table());
        fill(&first, 3);
        fill(&second, 10);
        let before = Figures::of(&first, &[], &own);
        let mut now = Figures::of(&second, &[], &own);
        now.add(&before);
        now.show(&shown, &[], &own);
        let stage = &shown.stages["b"];
        assert_eq!(get(&stage.records_in), 13);
        assert_eq!(stage.queue.summary().count, 13);
        assert_eq!(stage.batch_sizes.buckets().1, 13);
        assert_eq!(stage.drops.counts()["late"], 13);
        assert_eq!(stage.schedule_lag.load(Ordering::Relaxed), 10, "the largest");
        assert_eq!(get(&shown.stages["a"].records_in), 0, "of another host");
        let edge = &shown.edges[&("a".into(), "b".into(), 0)];
        assert_eq!((get(&edge.records), edge.transfer.summary().count), (0, 13), "the sender counts records");
        let sink = &shown.sinks["out"];
        assert_eq!((get(&sink.records), get(&sink.committed)), (13, 10));
        assert_eq!(sink.latency.summary().count, 13);
    }
}
