//! Metrics of active runs in this process, or coordinated by it.
use super::family::{Family, Labels};
use super::inventory as of;
use crate::slo_watch::Violations;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidemill_engine::{
    CPU, EdgeMetrics, Metric, MetricOf, MetricValue, Observer, Served, SinkMetrics, StageMetrics,
};
use tidemill_operators::feeds::FeedState;
use tidemill_spec::plan::Stage;
use tidemill_spec::workflow::{Slo, WhenCut};

/// A run to report on.
pub struct ObservedRun {
    /// Its workflow.
    pub workflow: String,
    /// Its name, in a cluster.
    pub run: Option<String>,
    /// Observes the run.
    pub observer: Observer,
    /// The levels that count.
    pub levels: Slo,
    /// Windows in which they were looked at and missed.
    pub violations: Violations,
    /// In a cluster, by worker of the plan: the worker of the cluster.
    pub places: BTreeMap<String, String>,
}

/// Metrics of several runs: each metric once, with the values of all.
pub struct RunsCollector<F>(pub F);

impl<F> fmt::Debug for RunsCollector<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunsCollector").finish_non_exhaustive()
    }
}

impl<F: Fn() -> Vec<ObservedRun> + Send + Sync + 'static> Collector for RunsCollector<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut values = RunValues::default();
        for run in (self.0)() {
            run.stages(&mut values);
            run.edges(&mut values);
            run.sinks(&mut values);
            run.feeds(&mut values);
            run.levels(&mut values);
            run.whole(&mut values);
        }
        for metric in of::runs() {
            let mut family = Family::begin(&mut encoder, metric)?;
            for (labels, value) in values.0.get(metric.name).into_iter().flatten() {
                family.show(labels, value)?;
            }
        }
        Ok(())
    }
}

/// Values by the name of their metric.
#[derive(Default)]
struct RunValues(BTreeMap<&'static str, Vec<(Labels, MetricValue)>>);

impl RunValues {
    fn add(&mut self, metric: &Metric, labels: Labels, value: MetricValue) {
        self.0.entry(metric.name).or_default().push((labels, value));
    }

    /// Adds what a table of counters gives of those that have these labels together.
    fn serve<M>(
        &mut self,
        served: &'static [Served<M>],
        (all, now): (&[Arc<M>], i64),
        labels: &Labels,
        is_of: impl Fn(MetricOf) -> bool,
    ) {
        for served in served.iter().filter(|served| is_of(served.of)) {
            let mut values = all.iter().filter_map(|one| (served.value)(one, now));
            let Some(mut value) = values.next() else { continue };
            values.for_each(|more| value.add(more));
            self.add(&served.metric, with(labels, served.label), value);
        }
    }
}

fn with(labels: &Labels, more: impl IntoIterator<Item = (&'static str, impl Into<String>)>) -> Labels {
    let more = more.into_iter().map(|(name, value)| (name, value.into()));
    labels.iter().cloned().chain(more).collect()
}

impl ObservedRun {
    fn labels(&self) -> Labels {
        let run = self.run.clone().map(|run| ("run", run));
        [("workflow", self.workflow.clone())].into_iter().chain(run).collect()
    }

    fn with(&self, name: &'static str, value: &str) -> Labels {
        with(&self.labels(), [(name, value)])
    }

    fn of_stage(&self, stage: &Stage) -> Labels {
        let own = [("operator", &stage.operator), ("stage", &stage.id), ("worker", &stage.worker)];
        let place = self.places.get(&stage.worker).map(|place| ("cluster_worker", place));
        let variant = stage.variant.as_ref().map(|variant| ("variant", variant));
        with(&self.labels(), own.into_iter().chain(place).chain(variant))
    }

    fn stages(&self, values: &mut RunValues) {
        let program = self.observer.program();
        for stage in &program.plan.stages {
            let Some(metrics) = self.observer.stage(&stage.id) else { continue };
            let (labels, source) = (self.of_stage(stage), program.sources.get(&stage.operator));
            let on_device = metrics.device.get().is_some_and(|device| device != CPU);
            let now = self.observer.now();
            values.serve(StageMetrics::SERVED, (&[metrics], now), &labels, |of| match of {
                MetricOf::Models => stage.variant.is_some(),
                MetricOf::Devices => on_device,
                MetricOf::Sources => source.is_some(),
                _ => true,
            });
            if let Some(rate) = source.and_then(|source| source.rate_per_second) {
                values.add(&of::WANTED_RATE, labels, MetricValue::Gauge(rate * stage.share));
            }
        }
    }

    /// Returns the edges by the stages that they connect: a join may take a stage as several of its inputs. These are separate edges with
    /// the same labels, and a series may occur only once.
    #[allow(clippy::type_complexity, reason = "read once, three lines below")]
    fn edges(&self, values: &mut RunValues) {
        let program = self.observer.program();
        let mut by_ends: BTreeMap<(&str, &str), (Vec<Arc<EdgeMetrics>>, Vec<WhenCut>)> = BTreeMap::new();
        for edge in &program.plan.edges {
            let Some(metrics) = self.observer.edge(&edge.from, &edge.to, edge.input) else { continue };
            let (all, when_cut) = by_ends.entry((&edge.from, &edge.to)).or_default();
            all.push(metrics);
            when_cut.extend(program.when_cut(edge).cloned());
        }
        for ((from, to), (all, when_cut)) in by_ends {
            let labels = self.with("edge", &format!("{from}->{to}"));
            let has_sent = all.iter().any(|edge| edge.records.load(Ordering::Relaxed) > 0);
            values.serve(EdgeMetrics::SERVED, (&all, self.observer.now()), &labels, |of| match of {
                MetricOf::Sent => has_sent,
                MetricOf::WhenCut => !when_cut.is_empty(),
                MetricOf::StandIns => when_cut.iter().any(|what| matches!(what, WhenCut::Degrade(_))),
                _ => true,
            });
        }
    }

    fn sinks(&self, values: &mut RunValues) {
        for sink in self.observer.program().sinks.keys() {
            let Some(metrics) = self.observer.sink(sink) else { continue };
            let labels = self.with("sink", sink);
            values.serve(SinkMetrics::SERVED, (&[metrics], self.observer.now()), &labels, |_| true);
        }
    }

    fn feeds(&self, values: &mut RunValues) {
        for (source, feeds) in self.observer.feeds() {
            for feed in feeds {
                let labels = with(&self.with("source", &source), [("feed", feed.feed.clone())]);
                for state in FeedState::ALL {
                    let is_it = f64::from(u8::from(state == feed.state));
                    values.add(
                        &of::FEED_STATE,
                        with(&labels, [("state", state.name())]),
                        MetricValue::Gauge(is_it),
                    );
                }
                for (metric, count) in [
                    (&of::FEED_CONNECTS, feed.connects),
                    (&of::FEED_RECEIVED, feed.received),
                    (&of::FEED_EMITTED, feed.emitted),
                ] {
                    values.add(metric, labels.clone(), MetricValue::Count(count));
                }
                for (reason, count) in feed.drops {
                    values.add(
                        &of::FEED_DROPS,
                        with(&labels, [("reason", reason)]),
                        MetricValue::Count(count),
                    );
                }
            }
        }
    }

    fn levels(&self, values: &mut RunValues) {
        let Slo { rate, accuracy, latency, survive: _ } = &self.levels;
        let gauge = MetricValue::Gauge;
        if let Some(rate) = rate {
            values.add(&of::LEVEL, self.with("slo", "rate"), gauge(rate.value.0));
        }
        if let Some(accuracy) = accuracy {
            values.add(&of::LEVEL, self.with("slo", "accuracy"), gauge(accuracy.value.0));
        }
        if let Some(latency) = latency {
            let labels =
                with(&self.with("slo", "latency"), [("percentile", latency.percentile.value.to_string())]);
            values.add(&of::LEVEL, labels, gauge(latency.below.value.0 as f64 / 1e9));
        }
        for (slo, windows) in self.violations.iter() {
            let (all, missed) = windows.counts();
            values.add(&of::WINDOWS, self.with("slo", slo), MetricValue::Count(all));
            values.add(&of::VIOLATIONS, self.with("slo", slo), MetricValue::Count(missed));
        }
    }

    fn whole(&self, values: &mut RunValues) {
        for slot in self.observer.slots() {
            let labels = with(&self.with("slot", &slot.slot), [("stages", slot.stages.join(","))]);
            values.add(&of::SLOT_PROCESSOR, labels, MetricValue::Sum(slot.processor_seconds));
        }
        values.add(&of::SECONDS, self.labels(), MetricValue::Gauge(self.observer.seconds()));
        values.add(&of::SLOT_RESTARTS, self.labels(), MetricValue::Count(self.observer.restarts()));
    }
}
