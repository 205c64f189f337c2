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
use tidemill_operators::track_truth::TrackMeasures;
use tidemill_spec::publication::Publication;

type Reasons = BTreeMap<String, u64>;

/// Of all stages, edges, sinks and slots of a host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// What is not in them is as it was told before: of a host with many stages few change from one time to the next, and of
    /// distributions few buckets.
    #[serde(default)]
    is_part: bool,
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
    #[serde(default)]
    computing: u64,
    batch_sizes: Vec<u64>,
    batch_records: u64,
    queue: Histogram,
    compute: Histogram,
    drops: Reasons,
    notes: Reasons,
    dead_letters: Reasons,
    state_bytes: u64,
    schedule_lag: i64,
    behind: i64,
    waiting: u64,
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
    waiting: u64,
    cut: u64,
    delivers: u64,
    buffered: u64,
    cut_since: i64,
    cuts: u64,
    cut_nanoseconds: u64,
    #[serde(default)]
    degraded: u64,
    #[serde(default)]
    answered_here: u64,
    #[serde(default)]
    answered_there: u64,
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
    independent: u64,
    tracks: Option<TrackMeasures>,
    #[serde(default)]
    judged_whole: bool,
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
        let sum = to.entry(reason.clone()).or_default();
        *sum = sum.saturating_add(*n);
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
            is_part: false,
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

    /// What of them is not as it was before.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        self.is_part = true;
        self.stages.retain(|id, stage| before.stages.get(id) != Some(stage));
        let edges: BTreeMap<&Edge, &EdgeFigures> =
            before.edges.iter().map(|(key, edge)| (key, edge)).collect();
        self.edges.retain(|(key, edge)| edges.get(key).is_none_or(|before| *before != edge));
        self.sinks.retain(|id, sink| before.sinks.get(id) != Some(sink));
        self.slots.retain(|slot, processor| before.slots.get(slot) != Some(processor));
        self.each_distribution(before, |own, before| *own = std::mem::take(own).changed_since(before));
        self
    }

    /// Calls `act` with each distribution and the same one of `others`, where these have it.
    fn each_distribution(&mut self, others: &Self, act: impl Fn(&mut Histogram, &Histogram)) {
        for (id, own) in &mut self.stages {
            let Some(other) = others.stages.get(id) else { continue };
            act(&mut own.queue, &other.queue);
            act(&mut own.compute, &other.compute);
        }
        let edges: BTreeMap<&Edge, &EdgeFigures> =
            others.edges.iter().map(|(key, edge)| (key, edge)).collect();
        for (key, own) in &mut self.edges {
            let Some(other) = edges.get(&*key) else { continue };
            act(&mut own.transfer, &other.transfer);
        }
        for (id, own) in &mut self.sinks {
            let Some(other) = others.sinks.get(id) else { continue };
            act(&mut own.latency, &other.latency);
            act(&mut own.arrival, &other.arrival);
        }
    }

    /// Takes what was told next; what of all has changed, whole again.
    pub(crate) fn take(&mut self, mut next: Self) -> Self {
        if !next.is_part {
            *self = next.clone();
            return next;
        }
        next.each_distribution(self, |own, held| {
            let changed = std::mem::replace(own, held.clone());
            own.take_changed(changed);
        });
        let changed = next.clone();
        self.stages.extend(next.stages);
        let mut edges: BTreeMap<Edge, EdgeFigures> = std::mem::take(&mut self.edges).into_iter().collect();
        edges.extend(next.edges);
        self.edges = edges.into_iter().collect();
        self.sinks.extend(next.sinks);
        self.slots.extend(next.slots);
        (self.emulation, self.clock) =
            (next.emulation.or(self.emulation.take()), next.clock.or(self.clock.take()));
        changed
    }

    /// Whether they can be what a host has counted: nothing in them leads out of what is counted with.
    pub(crate) fn is_sound(&self) -> bool {
        let stages = self.stages.values().flat_map(|stage| [&stage.queue, &stage.compute]);
        let edges = self.edges.iter().map(|(_, edge)| &edge.transfer);
        let sinks = self.sinks.values().flat_map(|sink| [&sink.latency, &sink.arrival]);
        let is_sound = if self.is_part { Histogram::is_sound_part } else { Histogram::is_sound };
        stages.chain(edges).chain(sinks).all(is_sound)
    }

    /// Adds what a former process of the same host has counted; where they are a part, of what is in it.
    pub(crate) fn add(&mut self, before: &Self) {
        let is_all = !self.is_part;
        for (id, stage) in &before.stages {
            if is_all || self.stages.contains_key(id) {
                self.stages.entry(id.clone()).or_default().add(stage);
            }
        }
        let mut edges: BTreeMap<Edge, EdgeFigures> = std::mem::take(&mut self.edges).into_iter().collect();
        for (key, edge) in &before.edges {
            if is_all || edges.contains_key(key) {
                edges.entry(key.clone()).or_default().add(edge);
            }
        }
        self.edges = edges.into_iter().collect();
        for (id, sink) in &before.sinks {
            if is_all || self.sinks.contains_key(id) {
                self.sinks.entry(id.clone()).or_default().add(sink);
            }
        }
        for (slot, processor) in &before.slots {
            if is_all || self.slots.contains_key(slot) {
                let sum = self.slots.entry(slot.clone()).or_default();
                *sum = sum.saturating_add(*processor);
            }
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
            computing: get(&stage.computing),
            batch_sizes: stage.batch_sizes.counts.iter().map(get).collect(),
            batch_records: get(&stage.batch_sizes.records),
            queue: stage.queue.histogram(),
            compute: stage.compute.histogram(),
            drops: stage.drops.counts(),
            notes: stage.notes.counts(),
            dead_letters: stage.dead_letters.counts(),
            state_bytes: get(&stage.state_bytes),
            schedule_lag: stage.schedule_lag.load(Ordering::Relaxed),
            behind: stage.behind.load(Ordering::Relaxed),
            waiting: stage.waiting.get(),
            restarts: get(&stage.restarts),
            processor: stage.processor.nanoseconds(),
            copies_added: get(&stage.copies_added),
            device: stage.device.get().cloned(),
            ended: stage.ended.load(Ordering::Relaxed),
        }
    }

    fn add(&mut self, before: &Self) {
        self.records_in = self.records_in.saturating_add(before.records_in);
        self.records_out = self.records_out.saturating_add(before.records_out);
        self.batches = self.batches.saturating_add(before.batches);
        self.computing = self.computing.saturating_add(before.computing);
        self.batch_sizes.resize(BatchSizes::BOUNDS.len() + 1, 0);
        self.batch_sizes
            .iter_mut()
            .zip(&before.batch_sizes)
            .for_each(|(own, more)| *own = own.saturating_add(*more));
        self.batch_records = self.batch_records.saturating_add(before.batch_records);
        self.queue.add_all(&before.queue);
        self.compute.add_all(&before.compute);
        add_reasons(&mut self.drops, &before.drops);
        add_reasons(&mut self.notes, &before.notes);
        add_reasons(&mut self.dead_letters, &before.dead_letters);
        self.schedule_lag = self.schedule_lag.max(before.schedule_lag);
        self.restarts = self.restarts.saturating_add(before.restarts);
        self.processor = self.processor.saturating_add(before.processor);
        self.copies_added = self.copies_added.saturating_add(before.copies_added);
    }

    fn show(self, stage: &StageMetrics) {
        set(&stage.records_in, self.records_in);
        set(&stage.records_out, self.records_out);
        set(&stage.batches, self.batches);
        set(&stage.computing, self.computing);
        stage.batch_sizes.counts.iter().zip(&self.batch_sizes).for_each(|(counter, n)| set(counter, *n));
        set(&stage.batch_sizes.records, self.batch_records);
        stage.queue.set(self.queue);
        stage.compute.set(self.compute);
        stage.drops.set(self.drops);
        stage.notes.set(self.notes);
        stage.dead_letters.set(self.dead_letters);
        set(&stage.state_bytes, self.state_bytes);
        stage.schedule_lag.store(self.schedule_lag, Ordering::Relaxed);
        stage.behind.store(self.behind, Ordering::Relaxed);
        stage.waiting.set(i64::try_from(self.waiting).unwrap_or(i64::MAX));
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
            waiting: edge.waiting.get(),
            cut: edge.cut.get(),
            delivers: edge.delivers.get(),
            buffered: edge.buffered.get(),
            cut_since: edge.cut_since.load(Ordering::Relaxed),
            cuts: get(&edge.cuts),
            cut_nanoseconds: get(&edge.cut_nanoseconds),
            degraded: edge.degraded.get(),
            answered_here: get(&edge.answered_here),
            answered_there: get(&edge.answered_there),
        }
    }

    fn add(&mut self, before: &Self) {
        self.records = self.records.saturating_add(before.records);
        self.bytes = self.bytes.saturating_add(before.bytes);
        self.cuts = self.cuts.saturating_add(before.cuts);
        self.cut_nanoseconds = self.cut_nanoseconds.saturating_add(before.cut_nanoseconds);
        self.answered_here = self.answered_here.saturating_add(before.answered_here);
        self.answered_there = self.answered_there.saturating_add(before.answered_there);
        add_reasons(&mut self.drops, &before.drops);
        self.transfer.add_all(&before.transfer);
    }

    fn show(self, edge: &EdgeMetrics, sends: bool, receives: bool) {
        if sends {
            set(&edge.records, self.records);
            set(&edge.bytes, self.bytes);
            edge.drops.set(self.drops);
            let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            edge.waiting.set(signed(self.waiting));
            edge.cut.set(signed(self.cut));
            edge.delivers.set(signed(self.delivers));
            edge.buffered.set(signed(self.buffered));
            edge.cut_since.store(self.cut_since, Ordering::Relaxed);
            set(&edge.cuts, self.cuts);
            set(&edge.cut_nanoseconds, self.cut_nanoseconds);
            edge.degraded.set(signed(self.degraded));
            set(&edge.answered_here, self.answered_here);
            set(&edge.answered_there, self.answered_there);
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
            independent: get(&sink.independent),
            tracks: sink.tracks.get().copied(),
            judged_whole: sink.judged_whole.load(Ordering::Relaxed),
            without_truth: get(&sink.without_truth),
            closed: sink.closed.load(Ordering::Relaxed),
        }
    }

    /// The rows that a former process committed and that still hold are counted by the one that continues; it alone knows whether it can
    /// judge them where all are judged together.
    fn add(&mut self, before: &Self) {
        self.records = self.records.saturating_add(before.records);
        self.latency.add_all(&before.latency);
        self.arrival.add_all(&before.arrival);
        self.publication = self.publication.or(before.publication);
        if before.first_arrival != 0 {
            self.first_arrival = before.first_arrival;
        }
        self.last_arrival = self.last_arrival.max(before.last_arrival);
        self.judged_whole |= before.judged_whole;
        if !self.judged_whole {
            self.scored = self.scored.saturating_add(before.scored);
            self.correct = self.correct.saturating_add(before.correct);
            self.independent = self.independent.saturating_add(before.independent);
        }
        self.without_truth = self.without_truth.saturating_add(before.without_truth);
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
        set(&sink.independent, self.independent);
        if let Some(tracks) = self.tracks {
            let _ = sink.tracks.set(tracks); // known already: it stays the same
        }
        sink.judged_whole.store(self.judged_whole, Ordering::Relaxed);
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
            set(&stage.computing, 5 * n);
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

    /// Told in parts, also when the process before had counted something, it is what it would be if all were told each time.
    #[test]
    fn what_has_changed_is_as_good_as_all() {
        let own = Own {
            stages: ["a".to_owned(), "b".to_owned()].into(),
            sinks: ["out".to_owned()].into(),
            ..Own::default()
        };
        let (former, counted, shown) = (table(), table(), table());
        fill(&former, 3);
        let before = Figures::of(&former, &[], &own);
        let mut held = Figures::default();
        let mut told: Option<Figures> = None;
        for n in 1..5 {
            let only = if n % 2 == 0 { "a" } else { "b" };
            counted.stages[only].queue.record(n * 1_000_000, 2);
            set(&counted.stages[only].records_in, n as u64);
            if n == 3 {
                set(&counted.edges[&("a".into(), "b".into(), 0)].records, 7);
            }
            let now = Figures::of(&counted, &[], &own);
            let message = match &told {
                Some(told) => now.clone().since(told),
                None => now.clone(),
            };
            assert!(n == 1 || (message.stages.len() == 1 && message.sinks.is_empty()));
            assert!(message.is_sound());
            told = Some(now.clone());
            let mut parts = held.take(message);
            assert_eq!(held, Figures { is_part: false, ..now.clone() });
            parts.add(&before);
            parts.show(&shown, &[], &own);
            let mut all = now;
            all.add(&before);
            let expected = table();
            all.show(&expected, &[], &own);
            assert_eq!(Figures::of(&shown, &[], &own), Figures::of(&expected, &[], &own), "after {n}");
        }
    }

    #[test]
    fn what_is_judged_as_a_whole_is_not_added() {
        let one = SinkFigures { scored: 10, judged_whole: true, ..SinkFigures::default() };
        let (mut lost, mut now) = (SinkFigures::default(), one.clone());
        lost.add(&one);
        now.add(&lost);
        assert_eq!((lost.scored, now.scored), (0, 10));
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
        assert_eq!((stage.batch_sizes.buckets().1, get(&stage.computing)), (13, 65));
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
