//! The metrics of runs that go on in this process, or that this process coordinates.
use super::family::{Family, Labels};
use super::inventory as of;
use crate::slo_watch::Violations;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_engine::{BatchSizes, EdgeMetrics, Observer, RunReport, StageMetrics, StageReport};
use tidemill_spec::plan::PlanEdge;
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

    /// The edges of the plan that `counts` holds of.
    fn edges(&self, counts: impl Fn(&PlanEdge) -> bool) -> Vec<Between> {
        let observer = &self.run.observer;
        let edges = observer.program().plan.edges.iter().filter(|edge| counts(edge));
        let counted = edges.filter_map(|edge| {
            let metrics = observer.edge(&edge.from, &edge.to, edge.input)?;
            Some(((edge.from.as_str(), edge.to.as_str()), metrics))
        });
        by_ends(counted).into_iter().map(|((from, to), all)| self.between(from, to, all)).collect()
    }

    fn between(&self, from: &str, to: &str, all: Vec<Arc<EdgeMetrics>>) -> Between {
        Between { labels: self.with("edge", &format!("{from}->{to}")), all, now: self.run.observer.now() }
    }
}

/// What goes from one stage to another. A join may take a stage as several of its inputs: these are edges of their own with the same
/// labels, and a series may be there only once.
struct Between {
    labels: Labels,
    all: Vec<Arc<EdgeMetrics>>,
    /// Engine time.
    now: i64,
}

/// Groups what edges have by the stages that they lead from and to.
fn by_ends<'a, T>(
    edges: impl Iterator<Item = ((&'a str, &'a str), T)>,
) -> BTreeMap<(&'a str, &'a str), Vec<T>> {
    let mut found: BTreeMap<_, Vec<T>> = BTreeMap::new();
    edges.for_each(|(ends, own)| found.entry(ends).or_default().push(own));
    found
}

impl Between {
    fn sum(&self, of: impl Fn(&EdgeMetrics) -> u64) -> u64 {
        self.all.iter().map(|edge| of(edge)).sum()
    }

    fn counted(&self, of: impl Fn(&EdgeMetrics) -> &AtomicU64) -> u64 {
        self.sum(|edge| of(edge).load(Ordering::Relaxed))
    }

    /// 1 where it holds of any of them.
    fn any(&self, of: impl Fn(&EdgeMetrics) -> bool) -> f64 {
        f64::from(u8::from(self.all.iter().any(|edge| of(edge))))
    }

    /// How long they were cut, seconds.
    fn cut_seconds(&self) -> f64 {
        let of = |edge: &EdgeMetrics| {
            let going_on = match edge.cut_since.load(Ordering::Relaxed) {
                0 => 0,
                since => (self.now - since).max(0),
            };
            edge.cut_nanoseconds.load(Ordering::Relaxed) as f64 + going_on as f64
        };
        self.all.iter().map(|edge| of(edge)).sum::<f64>() / 1e9
    }

    /// Records that were lost on purpose, by reason.
    fn drops(&self) -> BTreeMap<String, u64> {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for (reason, value) in self.all.iter().flat_map(|edge| edge.drops.counts()) {
            *sums.entry(reason).or_default() += value;
        }
        sums
    }
}

/// All stages of all runs, with their labels and counters.
fn all(runs: &[Told]) -> impl Iterator<Item = (&Told, &StageReport, Labels, Arc<StageMetrics>)> {
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
    let mut computing = Family::begin(encoder, &of::COMPUTING)?;
    for (_, _, labels, metrics) in all(runs) {
        computing.sum(&labels, metrics.computing.load(Ordering::Relaxed) as f64 / 1e9)?;
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
    let edges: Vec<Between> = runs.iter().flat_map(|told| told.edges(|_| true)).collect();
    let sent = || edges.iter().filter(|edge| edge.counted(|one| &one.records) > 0);
    let mut records = Family::begin(encoder, &of::EDGE_RECORDS)?;
    for edge in sent() {
        records.count(&edge.labels, edge.counted(|one| &one.records))?;
    }
    let mut bytes = Family::begin(encoder, &of::EDGE_BYTES)?;
    for edge in sent() {
        bytes.count(&edge.labels, edge.counted(|one| &one.bytes))?;
    }
    let mut waiting = Family::begin(encoder, &of::EDGE_WAITING)?;
    for edge in sent() {
        waiting.value(&edge.labels, edge.sum(|one| one.waiting.get()) as f64)?;
    }
    let mut transfer = Family::begin(encoder, &of::TRANSFER)?;
    for edge in &edges {
        transfer.times_of(&edge.labels, edge.all.iter().map(|one| &one.transfer))?;
    }
    cuts(runs, encoder)
}

/// Of edges of which the workflow says what happens while they are cut.
fn cuts(runs: &[Told], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let of_run = |told: &Told| {
        let program = told.run.observer.program();
        told.edges(|edge| program.when_cut(edge).is_some())
    };
    let edges: Vec<Between> = runs.iter().flat_map(of_run).collect();
    let mut is_cut = Family::begin(encoder, &of::EDGE_CUT)?;
    for edge in &edges {
        is_cut.value(&edge.labels, edge.any(|one| one.cut.get() > 0))?;
    }
    let mut cuts = Family::begin(encoder, &of::EDGE_CUTS)?;
    for edge in &edges {
        cuts.count(&edge.labels, edge.counted(|one| &one.cuts))?;
    }
    let mut seconds = Family::begin(encoder, &of::EDGE_CUT_SECONDS)?;
    for edge in &edges {
        seconds.sum(&edge.labels, edge.cut_seconds())?;
    }
    let mut buffered = Family::begin(encoder, &of::EDGE_BUFFERED)?;
    for edge in &edges {
        buffered.value(&edge.labels, edge.sum(|one| one.buffered.get()) as f64)?;
    }
    stand_ins(runs, encoder)
}

/// Of edges whose records another variant answers while they are cut.
fn stand_ins(runs: &[Told], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let of_run = |told: &Told| {
        let program = told.run.observer.program();
        told.edges(|edge| matches!(program.when_cut(edge), Some(WhenCut::Degrade(_))))
    };
    let edges: Vec<Between> = runs.iter().flat_map(of_run).collect();
    let mut answers = Family::begin(encoder, &of::EDGE_DEGRADED)?;
    for edge in &edges {
        answers.value(&edge.labels, edge.any(|one| one.degraded.get() > 0))?;
    }
    let mut here = Family::begin(encoder, &of::EDGE_ANSWERED_HERE)?;
    for edge in &edges {
        here.count(&edge.labels, edge.counted(|one| &one.answered_here))?;
    }
    let mut there = Family::begin(encoder, &of::EDGE_ANSWERED_THERE)?;
    for edge in &edges {
        there.count(&edge.labels, edge.counted(|one| &one.answered_there))?;
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
    for edge in runs.iter().flat_map(|told| told.edges(|_| true)) {
        for (reason, value) in edge.drops() {
            dropped.count(&with_reason(&edge.labels, &reason), value)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A join that takes a stage as both of its inputs has two edges with one name: a series twice is no valid text.
    #[test]
    fn edges_between_the_same_stages_are_one_series() {
        let edges = [EdgeMetrics::default(), EdgeMetrics::default(), EdgeMetrics::default()].map(Arc::new);
        let ends = [("rows", "join"), ("rows", "join"), ("join", "out")];
        for (edge, records) in edges.iter().zip([3, 4, 5]) {
            edge.records.store(records, Ordering::Relaxed);
            edge.drops.add("late", records);
        }
        edges[1].cut_since.store(1_000_000_000, Ordering::Relaxed);
        edges[0].cut_nanoseconds.store(500_000_000, Ordering::Relaxed);
        let found = by_ends(ends.into_iter().zip(edges.iter().map(Arc::clone)));
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [("join", "out"), ("rows", "join")]);
        let both = Between { labels: Vec::new(), all: found[&ends[0]].clone(), now: 3_000_000_000 };
        assert_eq!((both.counted(|one| &one.records), both.drops()["late"]), (7, 7));
        assert_eq!((both.cut_seconds(), both.any(|one| one.cut.get() > 0)), (2.5, 0.0));
    }
}
