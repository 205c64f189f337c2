//! The metrics of runs that go on in this process, or that this process coordinates.
use super::family::{Family, Labels};
use super::inventory as of;
use crate::slo_watch::Violations;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use tidemill_engine::{BatchSizes, Observer, RunReport, StageMetrics, StageReport};
use tidemill_spec::workflow::{Slo, WhenCut};

/// A run to tell of.
pub struct ObservedRun {
    /// Its workflow.
    pub workflow: String,
    /// Its name, in a cluster.
    pub run: Option<String>,
    /// What it does.
    pub observer: Observer,
    /// The levels that count.
    pub levels: Slo,
    /// Windows in which they were looked at and missed.
    pub violations: Violations,
    /// In a cluster, by worker of the plan: the worker of the cluster.
    pub places: BTreeMap<String, String>,
}

/// Tells of several runs: each metric once, with the values of all.
pub struct RunsCollector<F>(pub F);

impl<F> fmt::Debug for RunsCollector<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunsCollector").finish_non_exhaustive()
    }
}

impl<F: Fn() -> Vec<ObservedRun> + Send + Sync + 'static> Collector for RunsCollector<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let observed = (self.0)().into_iter();
        let runs: Vec<Told> = observed.map(|run| Told { report: run.observer.report(), run }).collect();
        let encoder = &mut encoder;
        stages(&runs, encoder)?;
        sources(&runs, encoder)?;
        edges(&runs, encoder)?;
        losses(&runs, encoder)?;
        sinks(&runs, encoder)?;
        levels(&runs, encoder)?;
        whole(&runs, encoder)
    }
}

/// A run and its report as of now.
struct Told {
    run: ObservedRun,
    report: RunReport,
}

impl Told {
    fn labels(&self) -> Labels {
        let mut labels = vec![("workflow", self.run.workflow.clone())];
        labels.extend(self.run.run.clone().map(|run| ("run", run)));
        labels
    }

    fn with(&self, name: &'static str, value: &str) -> Labels {
        let mut labels = self.labels();
        labels.push((name, value.to_owned()));
        labels
    }

    fn of_stage(&self, stage: &StageReport) -> Labels {
        let mut labels = self.labels();
        labels.extend([
            ("operator", stage.operator.clone()),
            ("stage", stage.stage.clone()),
            ("worker", stage.worker.clone()),
        ]);
        labels.extend(self.run.places.get(&stage.worker).map(|place| ("cluster_worker", place.clone())));
        labels.extend(stage.variant.clone().map(|variant| ("variant", variant)));
        labels
    }

    fn of_edge(&self, from: &str, to: &str) -> Labels {
        self.with("edge", &format!("{from}->{to}"))
    }
}

/// All stages of all runs, with their labels and counters.
fn all(runs: &[Told]) -> impl Iterator<Item = (&Told, &StageReport, Labels, std::sync::Arc<StageMetrics>)> {
    runs.iter().flat_map(|told| {
        told.report.stages.iter().filter_map(move |stage| {
            let metrics = told.run.observer.stage(&stage.stage)?;
            Some((told, stage, told.of_stage(stage), metrics))
        })
    })
}

fn stages(runs: &[Told], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut records = Family::begin(encoder, &of::RECORDS)?;
    for (_, stage, labels, _) in all(runs) {
        for (direction, value) in [("in", stage.records_in), ("out", stage.records_out)] {
            let mut labels = labels.clone();
            labels.push(("direction", direction.to_owned()));
            records.count(&labels, value)?;
        }
    }
    let mut batches = Family::begin(encoder, &of::BATCHES)?;
    for (_, stage, labels, _) in all(runs) {
        batches.count(&labels, stage.batches)?;
    }
    let mut restarts = Family::begin(encoder, &of::RESTARTS)?;
    for (_, stage, labels, _) in all(runs) {
        restarts.count(&labels, stage.restarts)?;
    }
    let mut state = Family::begin(encoder, &of::STATE)?;
    for (_, stage, labels, _) in all(runs) {
        state.value(&labels, stage.state_bytes as f64)?;
    }
    let mut waiting = Family::begin(encoder, &of::WAITING)?;
    for (_, _, labels, metrics) in all(runs).filter(|(_, stage, ..)| stage.variant.is_some()) {
        waiting.value(&labels, metrics.waiting.get() as f64)?;
    }
    let mut queue = Family::begin(encoder, &of::QUEUE)?;
    for (_, _, labels, metrics) in all(runs) {
        queue.times(&labels, &metrics.queue)?;
    }
    let mut compute = Family::begin(encoder, &of::COMPUTE)?;
    for (_, _, labels, metrics) in all(runs) {
        compute.times(&labels, &metrics.compute)?;
    }
    let mut processor = Family::begin(encoder, &of::PROCESSOR)?;
    for (_, stage, labels, _) in all(runs) {
        processor.sum(&labels, stage.processor_seconds)?;
    }
    let mut sizes = Family::begin(encoder, &of::BATCH_SIZE)?;
    for (_, _, labels, metrics) in all(runs).filter(|(_, stage, ..)| stage.variant.is_some()) {
        let (cumulative, sum, count) = metrics.batch_sizes.buckets();
        sizes.histogram(&labels, &BatchSizes::BOUNDS, cumulative, sum as f64, count)?;
    }
    Ok(())
}

fn sources(runs: &[Told], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let wanted = |told: &Told, stage: &StageReport| {
        let source = told.run.observer.program().sources.get(&stage.operator)?;
        Some(source.rate_per_second)
    };
    let of_sources = || all(runs).filter(move |(told, stage, ..)| wanted(told, stage).is_some());
    let mut lag = Family::begin(encoder, &of::SCHEDULE_LAG)?;
    for (_, stage, labels, _) in of_sources().filter(|(_, stage, ..)| stage.schedule_lag_ms > 0.0) {
        lag.value(&labels, stage.schedule_lag_ms / 1e3)?;
    }
    let mut behind = Family::begin(encoder, &of::BEHIND)?;
    for (_, _, labels, metrics) in of_sources() {
        behind.value(&labels, metrics.behind.load(Ordering::Relaxed) as f64 / 1e9)?;
    }
    let mut rates = Family::begin(encoder, &of::WANTED_RATE)?;
    for (told, stage, labels, _) in of_sources() {
        if let Some(Some(rate)) = wanted(told, stage) {
            let share = told.run.observer.program().plan.stages.iter().find(|one| one.id == stage.stage);
            rates.value(&labels, rate * share.map_or(1.0, |stage| stage.share))?;
        }
    }
    let mut ended = Family::begin(encoder, &of::ENDED)?;
    for (_, _, labels, metrics) in of_sources() {
        ended.value(&labels, f64::from(u8::from(metrics.ended.load(Ordering::Relaxed))))?;
    }
    Ok(())
}

fn edges(runs: &[Told], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let sent = || {
        let edges = runs.iter().flat_map(|told| told.report.edges.iter().map(move |edge| (told, edge)));
        edges.filter(|(_, edge)| edge.records > 0)
    };
    let mut records = Family::begin(encoder, &of::EDGE_RECORDS)?;
    for (told, edge) in sent() {
        records.count(&told.of_edge(&edge.from, &edge.to), edge.records)?;
    }
    let mut bytes = Family::begin(encoder, &of::EDGE_BYTES)?;
    for (told, edge) in sent() {
        bytes.count(&told.of_edge(&edge.from, &edge.to), edge.bytes)?;
    }
    let counted = || {
        runs.iter().flat_map(|told| {
            let edges = told.run.observer.program().plan.edges.iter();
            edges.filter_map(move |edge| {
                let metrics = told.run.observer.edge(&edge.from, &edge.to, edge.input)?;
                Some((told.of_edge(&edge.from, &edge.to), metrics))
            })
        })
    };
    let mut waiting = Family::begin(encoder, &of::EDGE_WAITING)?;
    for (labels, metrics) in counted().filter(|(_, edge)| edge.records.load(Ordering::Relaxed) > 0) {
        waiting.value(&labels, metrics.waiting.get() as f64)?;
    }
    let mut transfer = Family::begin(encoder, &of::TRANSFER)?;
    for (labels, metrics) in counted() {
        transfer.times(&labels, &metrics.transfer)?;
    }
    cuts(runs, encoder)
}

/// Of edges of which the workflow says what happens while they are cut.
fn cuts(runs: &[Told], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let counted = || {
        runs.iter().flat_map(|told| {
            let observer = &told.run.observer;
            let edges = observer.program().plan.edges.iter();
            edges.filter_map(move |edge| {
                observer.program().when_cut(edge)?;
                let metrics = observer.edge(&edge.from, &edge.to, edge.input)?;
                Some((told.of_edge(&edge.from, &edge.to), metrics, observer.now()))
            })
        })
    };
    let mut is_cut = Family::begin(encoder, &of::EDGE_CUT)?;
    for (labels, metrics, _) in counted() {
        is_cut.value(&labels, f64::from(u8::from(metrics.cut.get() > 0)))?;
    }
    let mut cuts = Family::begin(encoder, &of::EDGE_CUTS)?;
    for (labels, metrics, _) in counted() {
        cuts.count(&labels, metrics.cuts.load(Ordering::Relaxed))?;
    }
    let mut seconds = Family::begin(encoder, &of::EDGE_CUT_SECONDS)?;
    for (labels, metrics, now) in counted() {
        let going_on = match metrics.cut_since.load(Ordering::Relaxed) {
            0 => 0,
            since => (now - since).max(0),
        };
        let before = metrics.cut_nanoseconds.load(Ordering::Relaxed);
        seconds.sum(&labels, (before as f64 + going_on as f64) / 1e9)?;
    }
    let mut buffered = Family::begin(encoder, &of::EDGE_BUFFERED)?;
    for (labels, metrics, _) in counted() {
        buffered.value(&labels, metrics.buffered.get() as f64)?;
    }
    stand_ins(runs, encoder)
}

/// Of edges whose records another variant answers while they are cut.
fn stand_ins(runs: &[Told], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let counted = || {
        runs.iter().flat_map(|told| {
            let observer = &told.run.observer;
            let edges = observer.program().plan.edges.iter();
            edges.filter_map(move |edge| {
                let when_cut = observer.program().when_cut(edge)?;
                let metrics = observer.edge(&edge.from, &edge.to, edge.input)?;
                matches!(when_cut, WhenCut::Degrade(_)).then(|| (told.of_edge(&edge.from, &edge.to), metrics))
            })
        })
    };
    let mut answers = Family::begin(encoder, &of::EDGE_DEGRADED)?;
    for (labels, metrics) in counted() {
        answers.value(&labels, f64::from(u8::from(metrics.degraded.get() > 0)))?;
    }
    let mut here = Family::begin(encoder, &of::EDGE_ANSWERED_HERE)?;
    for (labels, metrics) in counted() {
        here.count(&labels, metrics.answered_here.load(Ordering::Relaxed))?;
    }
    let mut there = Family::begin(encoder, &of::EDGE_ANSWERED_THERE)?;
    for (labels, metrics) in counted() {
        there.count(&labels, metrics.answered_there.load(Ordering::Relaxed))?;
    }
    Ok(())
}

fn losses(runs: &[Told], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let with_reason = |labels: &Labels, reason: &str| {
        let mut labels = labels.clone();
        labels.push(("reason", reason.to_owned()));
        labels
    };
    let mut dropped = Family::begin(encoder, &of::DROPPED)?;
    for (_, stage, labels, _) in all(runs) {
        for (reason, value) in &stage.drops {
            dropped.count(&with_reason(&labels, reason), *value)?;
        }
    }
    for told in runs {
        for edge in &told.report.edges {
            for (reason, value) in &edge.drops {
                dropped.count(&with_reason(&told.of_edge(&edge.from, &edge.to), reason), *value)?;
            }
        }
    }
    let mut notes = Family::begin(encoder, &of::NOTES)?;
    for (_, stage, labels, _) in all(runs) {
        for (reason, value) in &stage.notes {
            notes.count(&with_reason(&labels, reason), *value)?;
        }
    }
    let mut letters = Family::begin(encoder, &of::LETTERS)?;
    for (_, stage, labels, _) in all(runs) {
        for (reason, value) in &stage.dead_letters {
            letters.count(&with_reason(&labels, reason), *value)?;
        }
    }
    Ok(())
}

fn sinks(runs: &[Told], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = || {
        runs.iter().flat_map(|told| {
            told.report.sinks.iter().filter_map(move |sink| {
                Some((sink, told.with("sink", &sink.sink), told.run.observer.sink(&sink.sink)?))
            })
        })
    };
    let mut records = Family::begin(encoder, &of::SINK_RECORDS)?;
    for (sink, labels, _) in all() {
        records.count(&labels, sink.records)?;
    }
    let mut scored = Family::begin(encoder, &of::SINK_SCORED)?;
    for (sink, labels, _) in all().filter(|(sink, ..)| sink.scored > 0) {
        for (is_right, count) in [("yes", sink.correct), ("no", sink.scored.saturating_sub(sink.correct))] {
            let mut labels = labels.clone();
            labels.push(("is_right", is_right.to_owned()));
            scored.count(&labels, count)?;
        }
    }
    let mut latency = Family::begin(encoder, &of::LATENCY)?;
    for (_, labels, metrics) in all() {
        latency.times(&labels, &metrics.latency)?;
    }
    let mut arrival = Family::begin(encoder, &of::ARRIVAL)?;
    for (_, labels, metrics) in all() {
        arrival.times(&labels, &metrics.arrival)?;
    }
    Ok(())
}

fn levels(runs: &[Told], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut wanted = Family::begin(encoder, &of::LEVEL)?;
    for told in runs {
        let levels = &told.run.levels;
        if let Some(rate) = &levels.rate {
            wanted.value(&told.with("slo", "rate"), rate.value.0)?;
        }
        if let Some(accuracy) = &levels.accuracy {
            wanted.value(&told.with("slo", "accuracy"), accuracy.value.0)?;
        }
        if let Some(latency) = &levels.latency {
            let mut labels = told.with("slo", "latency");
            labels.push(("percentile", latency.percentile.value.to_string()));
            wanted.value(&labels, latency.below.value.0 as f64 / 1e9)?;
        }
    }
    let windows = || {
        runs.iter().flat_map(|told| {
            let levels = told.run.violations.iter();
            levels.map(move |(slo, windows)| (told.with("slo", slo), windows.counts()))
        })
    };
    let mut looked_at = Family::begin(encoder, &of::WINDOWS)?;
    for (labels, (all, _)) in windows() {
        looked_at.count(&labels, all)?;
    }
    let mut missed = Family::begin(encoder, &of::VIOLATIONS)?;
    for (labels, (_, missed_in)) in windows() {
        missed.count(&labels, missed_in)?;
    }
    Ok(())
}

fn whole(runs: &[Told], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut slots = Family::begin(encoder, &of::SLOT_PROCESSOR)?;
    for told in runs {
        for slot in &told.report.slots {
            let mut labels = told.with("slot", &slot.slot);
            labels.push(("stages", slot.stages.join(",")));
            slots.sum(&labels, slot.processor_seconds)?;
        }
    }
    let mut seconds = Family::begin(encoder, &of::SECONDS)?;
    for told in runs {
        seconds.value(&told.labels(), told.report.seconds)?;
    }
    let mut restarts = Family::begin(encoder, &of::SLOT_RESTARTS)?;
    for told in runs {
        restarts.count(&told.labels(), told.report.restarts)?;
    }
    Ok(())
}
