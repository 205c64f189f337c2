//! All figures of a host as plain data, so that the coordinator of a run can show those of all its hosts.
use super::counters::{EdgeFigures, SinkFigures, StageFigures};
use super::table::Counted;
use crate::clock::ClockFigures;
use crate::emulation::EmulationReport;
use crate::feeds::FeedTable;
use crate::graph::{Graph, MetricsTable, Program};
use crate::histogram::Histogram;
use crate::report::SlotFacts;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidemill_link::transport::{PathFigures, Transport, registered};

type Edge = (String, String, u32);

/// Figures of all stages, edges, sinks and slots of a host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Figures that are missing have not changed since the report before: of a host with many stages few change from
    /// one time to the next, and of distributions few buckets.
    is_part: bool,
    stages: BTreeMap<String, StageFigures>,
    edges: BTreeMap<Edge, EdgeFigures>,
    sinks: BTreeMap<String, SinkFigures>,
    /// Nanoseconds of processor time, by slot.
    slots: BTreeMap<String, u64>,
    /// The work of its worker and its ends of wires, where they are emulated.
    pub(crate) emulation: Option<EmulationReport>,
    /// Its clock compared with the coordinator's.
    pub(crate) clock: Option<ClockFigures>,
    /// Its paths to other processes.
    #[serde(default)]
    pub(crate) paths: Vec<PathFigures>,
    /// The feeds of the live sources that it reads.
    #[serde(default)]
    pub(crate) feeds: FeedTable,
}

/// A host's part of a plan.
#[derive(Debug, Clone, Default)]
pub(crate) struct Own {
    pub(crate) stages: BTreeSet<String>,
    /// Stages with partitions.
    pub(crate) instances: BTreeSet<String>,
    pub(crate) sinks: BTreeSet<String>,
}

impl Own {
    /// Returns the part of a worker's slots.
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

impl Figures {
    /// Returns the figures of these stages and sinks, and of the edges into and out of them.
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
            paths: Vec::new(),
            feeds: FeedTable::new(),
        }
    }

    /// Adds the work of its worker and its ends of wires, the figures of its clock, and those of its paths.
    pub(crate) fn with(self, emulation: Option<EmulationReport>, clock: ClockFigures) -> Self {
        let paths = registered().flat_map(Transport::paths).collect();
        Self { emulation, clock: Some(clock), paths, ..self }
    }

    /// Adds the feeds of the sources that it reads.
    pub(crate) fn with_feeds(self, feeds: FeedTable) -> Self {
        Self { feeds, ..self }
    }

    /// Returns the figures that differ from `before`.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        self.is_part = true;
        retain_changed(&mut self.stages, &before.stages);
        retain_changed(&mut self.edges, &before.edges);
        retain_changed(&mut self.sinks, &before.sinks);
        self.slots.retain(|slot, processor| before.slots.get(slot) != Some(processor));
        self.each_distribution(before, |own, before| *own = std::mem::take(own).changed_since(before));
        self
    }

    /// Calls `act` with each distribution and the matching one of `others`, if there is one.
    fn each_distribution(&mut self, others: &Self, act: impl Fn(&mut Histogram, &Histogram)) {
        let stages = pairs(&mut self.stages, &others.stages);
        let edges = pairs(&mut self.edges, &others.edges);
        let sinks = pairs(&mut self.sinks, &others.sinks);
        stages.chain(edges).chain(sinks).for_each(|(own, other)| act(own, other));
    }

    /// Adds the next report. Returns the changed figures, complete.
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
        self.edges.extend(next.edges);
        self.sinks.extend(next.sinks);
        self.slots.extend(next.slots);
        (self.emulation, self.clock) =
            (next.emulation.or(self.emulation.take()), next.clock.or(self.clock.take()));
        changed
    }

    /// Returns whether they can be the counts of a host: no value in them exceeds the range of counters.
    pub(crate) fn is_sound(&self) -> bool {
        let stages = self.stages.values().flat_map(Counted::histograms);
        let edges = self.edges.values().flat_map(Counted::histograms);
        let sinks = self.sinks.values().flat_map(Counted::histograms);
        let is_sound = if self.is_part { Histogram::is_sound_part } else { Histogram::is_sound };
        stages.chain(edges).chain(sinks).all(is_sound)
    }

    /// Adds the counts of a former process of the same host; if these are a part, only to the figures in it.
    pub(crate) fn add(&mut self, before: &Self) {
        let is_all = !self.is_part;
        add_each(&mut self.stages, &before.stages, is_all, Counted::add);
        add_each(&mut self.edges, &before.edges, is_all, Counted::add);
        add_each(&mut self.sinks, &before.sinks, is_all, SinkFigures::add_former);
        add_each(&mut self.slots, &before.slots, is_all, |sum, more| *sum = sum.saturating_add(*more));
        if let Some(before) = &before.emulation {
            self.emulation.get_or_insert_default().add(before);
        }
    }

    /// Shows them as those of the run; `own`: the host's part.
    pub(crate) fn show(self, metrics: &MetricsTable, slots: &[SlotFacts], own: &Own) {
        for (id, figures) in self.stages {
            if let Some(stage) = metrics.stages.get(&id) {
                figures.show(stage, |_| true);
            }
        }
        for (key, figures) in self.edges {
            if let Some(edge) = metrics.edges.get(&key) {
                let (sends, receives) = (own.stages.contains(&key.0), own.stages.contains(&key.1));
                figures.show(edge, |cell| if cell == "transfer" { receives } else { sends });
            }
        }
        for (id, figures) in self.sinks {
            if let Some(sink) = metrics.sinks.get(&id) {
                figures.show(sink, |_| true);
            }
        }
        for slot in slots {
            if let Some(nanoseconds) = self.slots.get(slot.name()) {
                slot.set_processor(Duration::from_nanos(*nanoseconds));
            }
        }
    }
}

/// Retains the values that have changed.
fn retain_changed<K: Ord, V: PartialEq>(own: &mut BTreeMap<K, V>, before: &BTreeMap<K, V>) {
    own.retain(|key, value| before.get(key) != Some(value));
}

/// Distributions that both have.
fn pairs<'a, K: Ord, V: Counted>(
    own: &'a mut BTreeMap<K, V>,
    others: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = (&'a mut Histogram, &'a Histogram)> {
    let known = own.iter_mut().filter_map(|(key, value)| Some((value, others.get(key)?)));
    known.flat_map(|(own, other)| own.histograms_mut().zip(other.histograms()))
}

/// Adds the former values; `is_all`: also where there is none yet.
fn add_each<K: Ord + Clone, V: Default>(
    own: &mut BTreeMap<K, V>,
    before: &BTreeMap<K, V>,
    is_all: bool,
    add: impl Fn(&mut V, &V),
) {
    for (key, value) in before {
        if is_all || own.contains_key(key) {
            add(own.entry(key.clone()).or_default(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::cells::Cell;
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
            stage.records_in.show(n);
            stage.computing.show(5 * n);
            stage.batch_sizes.record(n);
            stage.queue.record(n as i64 * 1_000_000, n);
            stage.device_network.record(n as i64 * 1_000_000, n);
            stage.device_sent.show(100 * n);
            stage.device_lost.show(n);
            stage.drops.add("late", n);
            stage.schedule_lag.show(n as i64);
        }
        for edge in table.edges.values() {
            edge.records.show(n);
            edge.transfer.record(5_000_000, n);
        }
        for sink in table.sinks.values() {
            sink.records.show(n);
            sink.committed.show(n);
            sink.latency.record(1_000_000, n);
        }
    }

    /// Reported in parts, also when the process before had counts, they equal complete reports.
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
            counted.stages[only].device_compute.record(n * 1_000_000, 2);
            counted.stages[only].records_in.show(n as u64);
            if n == 3 {
                counted.edges[&("a".into(), "b".into(), 0)].records.show(7);
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
        assert_eq!(stage.records_in.read(), 13);
        assert_eq!(stage.queue.summary().count, 13);
        assert_eq!((stage.batch_sizes.read().1, stage.computing.read()), (13, 65));
        assert_eq!((stage.device_network.summary().count, stage.device_network.summary().max_ms), (13, 10.0));
        assert_eq!((stage.device_sent.read(), stage.device_lost.read()), (1300, 13));
        assert_eq!(stage.drops.counts()["late"], 13);
        assert_eq!(stage.schedule_lag.read(), 10, "the largest");
        assert_eq!(shown.stages["a"].records_in.read(), 0, "of another host");
        let edge = &shown.edges[&("a".into(), "b".into(), 0)];
        assert_eq!(
            (edge.records.read(), edge.transfer.summary().count),
            (0, 13),
            "the sender counts records"
        );
        let sink = &shown.sinks["out"];
        assert_eq!((sink.records.read(), sink.committed.read()), (13, 10));
        assert_eq!(sink.latency.summary().count, 13);
    }
}
