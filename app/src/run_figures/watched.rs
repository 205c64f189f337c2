//! An active run under observation.
use super::change::{Change, DeviceCounts, LONG, Recent, RecentOfStage, Sample, Seen, StageCounts, stage_of};
use super::{
    Computed, CostFigures, DeviceFigures, LevelFigures, LinkFigures, PathState, RoleFigures, RunFigures,
    RunPlace, SinkFigures, SourceFigures, StageFigures, limit, predicted_cost,
};
use crate::measured::{Measured, MeasuredLevel};
use crate::metrics::ObservedRun;
use crate::slo_watch::{SloWatch, Violations};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidemill_engine::{CPU, Observer, StageMetrics, batches_away};
use tidemill_spec::plan::Plan;
use tidemill_spec::workflow::Slo;

/// Seconds between two samples of the counters.
const BETWEEN: f64 = 1.0;

/// An active run, with its counters of the last seconds and its service levels.
pub struct Watched {
    observer: Observer,
    slo: SloWatch,
    samples: VecDeque<Sample>,
    /// In the order of the plan.
    stages: Vec<RecentOfStage>,
    /// In the order of the plan.
    edges: Vec<Recent>,
    sinks: BTreeMap<String, Recent>,
    /// By level: windows looked at and missed when one was over last, and whether that was missed.
    windows: BTreeMap<&'static str, ((u64, u64), Option<bool>)>,
}

impl Watched {
    /// A watch of a run that starts now.
    pub fn new(observer: Observer, levels: &Slo) -> Self {
        let program = observer.program();
        let plan = &program.plan;
        Self {
            slo: SloWatch::new(levels, program),
            samples: VecDeque::new(),
            stages: plan.stages.iter().map(|_| Default::default()).collect(),
            edges: plan.edges.iter().map(|_| Recent::default()).collect(),
            sinks: program.sinks.keys().map(|sink| (sink.clone(), Recent::default())).collect(),
            windows: BTreeMap::new(),
            observer,
        }
    }

    /// Whether it watches the run of this observer.
    pub fn is_of(&self, observer: &Observer) -> bool {
        self.observer.is_of(observer)
    }

    /// Looks at the run, several times a second; `now`: real seconds since any time.
    pub fn look(&mut self, now: f64) {
        self.slo.look(&self.observer, self.observer.program());
        self.count_windows();
        if self.samples.back().is_none_or(|last| now - last.at >= BETWEEN) {
            self.sample(now);
        }
    }

    /// Whether the window was missed that was over last, by level.
    fn count_windows(&mut self) {
        for (level, windows) in self.slo.violations().iter() {
            let (all, missed) = windows.counts();
            let (before, is_missed) = self.windows.entry(level).or_default();
            if all > before.0 {
                *is_missed = Some(missed > before.1);
                *before = (all, missed);
            }
        }
    }

    /// Looks once more, at the end.
    pub fn look_at_last(&mut self, now: f64) {
        self.slo.look_at_last(&self.observer, self.observer.program());
        self.count_windows();
        self.sample(now);
    }

    fn sample(&mut self, at: f64) {
        let observer = self.observer.clone();
        let plan = &observer.program().plan;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stages = plan.stages.iter().zip(&mut self.stages).map(|(stage, recent)| {
            let Some(metrics) = observer.stage(&stage.id) else { return StageCounts::default() };
            recent.advance(&metrics);
            StageCounts {
                taken: get(&metrics.records_in),
                given: get(&metrics.records_out),
                batches: get(&metrics.batches),
                computing: get(&metrics.computing) as f64 / 1e9,
                processor: metrics.processor.seconds(),
                on_device: DeviceCounts {
                    batches: get(&metrics.device_batches),
                    round_trips: get(&metrics.device_round_trips),
                    sent: get(&metrics.device_sent),
                    received: get(&metrics.device_received),
                },
            }
        });
        let stages = stages.collect();
        let edges = plan.edges.iter().zip(&mut self.edges).map(|(edge, recent)| {
            let Some(metrics) = observer.edge(&edge.from, &edge.to, edge.input) else { return (0, 0) };
            recent.advance(&metrics.transfer);
            (get(&metrics.records), get(&metrics.bytes))
        });
        let edges = edges.collect();
        let sinks = self.sinks.iter_mut().filter_map(|(sink, recent)| {
            let metrics = observer.sink(sink)?;
            recent.advance(&metrics.latency);
            Some((sink.clone(), get(&metrics.records)))
        });
        let sinks = sinks.collect();
        let slots = observer.slots().iter().map(|slot| slot.processor_seconds).collect();
        let run = observer.seconds();
        self.samples.push_back(Sample { at, run, stages, edges, sinks, slots });
        if self.samples.len() > LONG + 1 {
            self.samples.pop_front();
        }
    }

    /// Returns the current figures of the run.
    pub fn figures(&self, name: &str, place: &RunPlace) -> RunFigures {
        let program = self.observer.program();
        let plan = &program.plan;
        let progress = self.observer.progress();
        let change = Change::of(&self.samples);
        let links = self.links(plan, &change);
        let stages = self.stages(plan, place, &change, &links);
        let sources = self.sources(&stages, &change);
        let (workers, cost) = self.workers(plan, place, &change, &links);
        RunFigures {
            run: name.to_owned(),
            workflow: place.workflow.clone(),
            state: place.state,
            taken: Some(crate::machine::now()),
            seconds: progress.seconds,
            window_seconds: change.seconds,
            plan_version: plan.plan_version,
            emitted: progress.emitted,
            arrived: self.committed(),
            dead_letters: progress.dead_letters,
            restarts: self.observer.restarts(),
            limit: limit(&stages),
            levels: self.levels(),
            sinks: self.sinks(&change),
            stages,
            sources,
            links,
            workers,
            paths: self.observer.paths().into_iter().map(PathState::of).collect(),
            feeds: self.observer.feeds(),
            losses: Vec::new(),
            cost,
        }
    }

    /// The run, for a monitoring system.
    pub fn observed(&self, name: Option<&str>, place: &RunPlace) -> ObservedRun {
        ObservedRun {
            workflow: place.workflow.clone(),
            run: name.map(str::to_owned),
            observer: self.observer.clone(),
            levels: self.slo.levels().clone(),
            violations: self.slo.violations(),
            places: place.places.clone(),
        }
    }

    /// Returns how long ago a worker of the plan was heard; none: it was not.
    pub fn silence(&self, worker: &str) -> Option<Duration> {
        self.observer.silence(worker)
    }

    /// The windows in which service levels were looked at and missed.
    pub fn violations(&self) -> Violations {
        self.slo.violations()
    }

    /// Returns recent measurements.
    pub fn late(&self) -> &Measured {
        self.slo.late()
    }

    /// Records that sinks have, each once: what was repeated after a restart has arrived again.
    fn committed(&self) -> u64 {
        let sinks = self.sinks.keys().filter_map(|sink| self.observer.sink(sink));
        sinks.map(|metrics| metrics.committed.load(Ordering::Relaxed)).sum()
    }

    fn stages(
        &self,
        plan: &Plan,
        place: &RunPlace,
        change: &Change<'_>,
        links: &[LinkFigures],
    ) -> Vec<StageFigures> {
        let of_slots = self.busy_of_slots(change);
        let all = plan.stages.iter().zip(&self.stages).enumerate().map(|(at, (stage, recent))| {
            let Some(metrics) = self.observer.stage(&stage.id) else {
                return StageFigures::still(stage, place);
            };
            let into = links.iter().filter(|link| link.to == stage.id);
            let transfer =
                into.clone().map(|link| link.transfer).max_by(|a, b| a.p99_ms.total_cmp(&b.p99_ms));
            let busy = match &stage.variant {
                Some(_) => {
                    let begun = u64::from(batches_away(stage, &plan.devices));
                    let copies = begun + metrics.copies_added.load(Ordering::Relaxed);
                    let computing = change.computing(at);
                    computing.map(|all| all / copies as f64 / f64::from(stage.partitions.max(1)))
                }
                None => of_slots.get(stage.id.as_str()).copied(),
            };
            StageFigures {
                in_per_second: change.of_stage(at, |counts| counts.taken).unwrap_or(0.0),
                out_per_second: change.of_stage(at, |counts| counts.given).unwrap_or(0.0),
                records_in: metrics.records_in.load(Ordering::Relaxed),
                records_out: metrics.records_out.load(Ordering::Relaxed),
                queue: recent.queue.times(),
                compute: recent.compute.times(),
                on_device: on_device(&metrics, recent, change, at),
                transfer: transfer.unwrap_or_default(),
                busy: busy.map(|busy| busy.min(1.0)),
                waiting: metrics.waiting.get() + into.map(|link| link.waiting).sum::<u64>(),
                drops: metrics.drops.counts(),
                dead_letters: metrics.dead_letters.counts(),
                restarts: metrics.restarts.load(Ordering::Relaxed),
                state_bytes: metrics.state_bytes.load(Ordering::Relaxed),
                ..StageFigures::still(stage, place)
            }
        });
        all.collect()
    }

    /// By stage: the part of its time that the thread of its slot computes; of several slots the busiest.
    fn busy_of_slots(&self, change: &Change<'_>) -> BTreeMap<String, f64> {
        let mut busy: BTreeMap<String, f64> = BTreeMap::new();
        for (at, slot) in self.observer.slots().iter().enumerate() {
            let Some(part) = change.processor(|sample| sample.slots.get(at).copied()) else { continue };
            for stage in slot.stages.iter().map(|instance| stage_of(instance)) {
                let known = busy.entry(stage.to_owned()).or_default();
                *known = known.max(part);
            }
        }
        busy
    }

    fn sources(&self, stages: &[StageFigures], change: &Change<'_>) -> Vec<SourceFigures> {
        let program = self.observer.program();
        let shares =
            |id: &str| program.plan.stages.iter().find(|one| one.id == id).map_or(1.0, |one| one.share);
        let all = stages.iter().filter_map(|stage| {
            let source = program.sources.get(&stage.operator)?;
            let metrics = self.observer.stage(&stage.stage)?;
            let wanted = source.rate_per_second.map(|rate| rate * shares(&stage.stage));
            let behind = metrics.behind.load(Ordering::Relaxed) as f64 / 1e9;
            let seen = Seen {
                is_ended: metrics.ended.load(Ordering::Acquire),
                given: stage.records_out,
                per_second: stage.out_per_second,
                wanted,
                behind,
                window: change.seconds,
            };
            Some(SourceFigures {
                source: stage.operator.clone(),
                stage: stage.stage.clone(),
                state: seen.state(),
                wanted_per_second: wanted,
                per_second: stage.out_per_second,
                behind_seconds: behind,
            })
        });
        all.collect()
    }

    fn sinks(&self, change: &Change<'_>) -> Vec<SinkFigures> {
        let all = self.sinks.iter().filter_map(|(sink, recent)| {
            let metrics = self.observer.sink(sink)?;
            let scored = metrics.scored.load(Ordering::Relaxed);
            let correct = metrics.correct.load(Ordering::Relaxed);
            Some(SinkFigures {
                sink: sink.clone(),
                promise: self.observer.promise(sink).map(ToString::to_string).unwrap_or_default(),
                records: metrics.committed.load(Ordering::Relaxed),
                per_second: change.per_second(|sample| sample.sinks.get(sink).copied()).unwrap_or(0.0),
                latency: recent.times(),
                accuracy_percent: (scored > 0).then(|| correct as f64 * 100.0 / scored as f64),
                scored,
            })
        });
        all.collect()
    }

    fn links(&self, plan: &Plan, change: &Change<'_>) -> Vec<LinkFigures> {
        let worker = |id: &str| {
            let stage = plan.stages.iter().find(|stage| stage.id == id);
            stage.map(|stage| stage.worker.clone()).unwrap_or_default()
        };
        let all = plan.edges.iter().zip(&self.edges).enumerate().filter_map(|(at, (edge, recent))| {
            let metrics = self.observer.edge(&edge.from, &edge.to, edge.input)?;
            Some(LinkFigures {
                from: edge.from.clone(),
                to: edge.to.clone(),
                input: edge.input,
                from_worker: worker(&edge.from),
                to_worker: worker(&edge.to),
                records: metrics.records.load(Ordering::Relaxed),
                bytes: metrics.bytes.load(Ordering::Relaxed),
                per_second: change
                    .per_second(|sample| sample.edges.get(at).map(|counts| counts.0))
                    .unwrap_or(0.0),
                bytes_per_second: change
                    .per_second(|sample| sample.edges.get(at).map(|counts| counts.1))
                    .unwrap_or(0.0),
                transfer: recent.times(),
                waiting: metrics.waiting.get(),
                drops: metrics.drops.counts(),
            })
        });
        all.collect()
    }

    /// Returns the current traffic between stages.
    pub fn traffic(&self) -> Vec<LinkFigures> {
        self.links(&self.observer.program().plan, &Change::of(&self.samples))
    }

    fn workers(
        &self,
        plan: &Plan,
        place: &RunPlace,
        change: &Change<'_>,
        links: &[LinkFigures],
    ) -> (Vec<RoleFigures>, CostFigures) {
        let slots = self.observer.slots();
        let on = |stage: &str| plan.stages.iter().find(|one| one.id == stage).map(|one| one.worker.as_str());
        let roles = plan.workers.iter().map(|worker| {
            let of_slots = slots.iter().enumerate().filter(|(_, slot)| {
                slot.stages.first().is_some_and(|first| on(stage_of(first)) == Some(worker.id.as_str()))
            });
            let of_slots =
                of_slots.filter_map(|(at, _)| change.processor(|sample| sample.slots.get(at).copied()));
            let of_stages = plan.stages.iter().enumerate().filter(|(_, stage)| stage.worker == worker.id);
            let of_stages = of_stages.filter_map(|(at, _)| {
                change.processor(|sample| sample.stages.get(at).map(|counts| counts.processor))
            });
            RoleFigures::of(worker, plan, place, of_slots.chain(of_stages).sum())
        });
        let roles: Vec<RoleFigures> = roles.collect();
        let priced = roles.iter().filter_map(|role| role.price);
        let compute = priced.clone().next().map(|_| priced.sum::<f64>());
        let prices = plan.edges.iter().filter_map(|edge| Some((edge, edge.price?.0)));
        let network = prices.map(|(edge, price)| {
            let link = links
                .iter()
                .find(|link| (&link.from, &link.to, link.input) == (&edge.from, &edge.to, edge.input));
            link.map_or(0.0, |link| link.bytes_per_second * 3600.0 * price)
        });
        let network = network.reduce(|a, b| a + b);
        let now = compute.or(network).map(|_| compute.unwrap_or(0.0) + network.unwrap_or(0.0));
        (roles, CostFigures { predicted: predicted_cost(plan), now, compute, network })
    }

    fn levels(&self) -> Vec<LevelFigures> {
        let latency = self.slo.levels().latency.as_ref();
        let all = self.levels_now().into_iter().map(|found| {
            let (windows, is_missed) = self.windows.get(found.level).copied().unwrap_or_default();
            let is_missed = if found.planned.is_some() { Some(true) } else { is_missed };
            let percentile = latency.filter(|_| found.level == "latency");
            LevelFigures {
                level: found.level.to_owned(),
                wanted: found.wanted_value,
                percentile: percentile.map(|level| level.percentile.value.0),
                measured: found.value,
                is_missed,
                windows: windows.0,
                windows_missed: windows.1,
            }
        });
        all.collect()
    }

    /// The service levels beside what was measured of late, and what the plan expects.
    pub fn levels_now(&self) -> Vec<MeasuredLevel> {
        let levels = self.slo.late().levels(self.slo.levels()).into_iter();
        match &self.observer.program().plan.predicted {
            Some(predicted) => levels.map(|level| level.beside(predicted)).collect(),
            None => levels.collect(),
        }
    }

    /// Returns the recent computations of each stage.
    pub fn computed(&self) -> BTreeMap<String, Computed> {
        let change = Change::over(&self.samples, LONG);
        let plan = &self.observer.program().plan;
        let all = plan.stages.iter().enumerate().filter_map(|(at, stage)| {
            let records = change.of_stage(at, |counts| counts.taken)? * change.seconds;
            let batches = change.of_stage(at, |counts| counts.batches)? * change.seconds;
            let batch_seconds = change.computing(at)? * change.seconds / batches;
            (batches > 0.0).then(|| (stage.id.clone(), Computed { records, batches, batch_seconds }))
        });
        all.collect()
    }
}

/// Returns the figures of the device of the stage at this place of the plan; none: the processors of the worker compute it.
fn on_device(
    metrics: &StageMetrics,
    recent: &RecentOfStage,
    change: &Change<'_>,
    at: usize,
) -> Option<DeviceFigures> {
    let device = metrics.device.get().filter(|device| *device != CPU)?;
    let per_second = |counter: fn(&DeviceCounts) -> u64| {
        change.of_stage(at, |counts| counter(&counts.on_device)).unwrap_or(0.0)
    };
    let batches = per_second(|counts| counts.batches);
    let [client, network, queue, compute] = recent.on_device.each_ref().map(Recent::times);
    Some(DeviceFigures {
        device: device.clone(),
        client,
        network,
        queue,
        compute,
        round_trips_per_batch: (batches > 0.0).then(|| per_second(|counts| counts.round_trips) / batches),
        sent_bytes_per_second: per_second(|counts| counts.sent),
        received_bytes_per_second: per_second(|counts| counts.received),
        sessions_lost: metrics.device_lost.load(Ordering::Relaxed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::Silent;
    use crate::preparation::{PlanFrom, prepare_here};
    use crate::run_figures::{RunState, Times};
    use std::sync::Arc;
    use tidemill_engine::clock::ManualClock;
    use tidemill_engine::{Run, RunOptions};

    const WORKFLOW: &str = "version: 1
name: shop
sources:
  - {id: rows, kind: csv, rate: 1/s, options: {path: rows.csv, columns: {value: int64}}}
operators:
  - {id: some, kind: filter, input: rows, options: {where: \"value > 1\"}}
sinks:
  - {id: lines, kind: jsonl, input: some, options: {path: lines.jsonl}}
";

    /// A run with a model of two copies, whose time the test advances.
    fn watched() -> (tempfile::TempDir, Run, Arc<ManualClock>, Watched) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("workflow.yaml");
        std::fs::write(&file, WORKFLOW).unwrap();
        std::fs::write(folder.path().join("rows.csv"), "value\n1\n2\n").unwrap();
        let mut program = prepare_here(&file, PlanFrom::Settings(&[]), &Silent).unwrap().program;
        let stage = program.plan.stages.iter_mut().find(|stage| stage.operator == "some").unwrap();
        stage.variant = Some("model".to_owned());
        let clock = Arc::new(ManualClock::new());
        let options = RunOptions { clock: clock.clone(), model_copies: 2, ..RunOptions::default() };
        let run = Run::start(program, options).unwrap();
        let watched = Watched::new(run.observer(), &Slo::default());
        (folder, run, clock, watched)
    }

    /// `tidemill top` of a run on this machine and of a run in a cluster show these figures: both read what is computed here.
    #[test]
    fn a_model_with_two_copies_is_as_busy_here_as_in_a_cluster() {
        let (_folder, run, clock, mut watched) = watched();
        let metrics = run.observer().stage("some").unwrap();
        metrics.copies_added.store(1, Ordering::Relaxed);
        watched.look(0.0);
        // Both compute 1.2 s in one second of the run, which takes two seconds on the clock of the machine.
        clock.advance(1_000_000_000);
        metrics.computing.fetch_add(1_200_000_000, Ordering::Relaxed);
        watched.look(2.0);
        let here = watched.figures("", &RunPlace::here("shop"));
        let in_cluster = RunPlace {
            workflow: "shop".to_owned(),
            state: RunState::Running,
            places: [("local".to_owned(), "hub".to_owned())].into(),
            processors: [("hub".to_owned(), 4.0)].into(),
        };
        let there = watched.figures("night", &in_cluster);
        let model = |figures: &RunFigures| {
            let stage = figures.stages.iter().find(|stage| stage.stage == "some").unwrap();
            (stage.busy.map(|busy| (busy * 1000.0).round()), figures.limit.clone(), figures.window_seconds)
        };
        assert_eq!(model(&here), (Some(600.0), Some("some".to_owned()), 1.0));
        assert_eq!(model(&here), model(&there));
        run.stopper().abort();
        let _ = run.wait();
    }
    #[test]
    fn a_model_on_a_device_tells_where_its_time_goes() {
        let (_folder, run, clock, mut watched) = watched();
        let figures = |watched: &Watched| {
            let figures = watched.figures("", &RunPlace::here("shop"));
            figures.stages.into_iter().find(|stage| stage.stage == "some").unwrap().on_device
        };
        let metrics = run.observer().stage("some").unwrap();
        watched.look(0.0);
        assert_eq!(figures(&watched), None, "it is not known yet where the model is");
        metrics.device.set("proxy".to_owned()).unwrap();
        assert_eq!(figures(&watched).unwrap().round_trips_per_batch, None);
        clock.advance(2_000_000_000);
        metrics.device_network.record(3_000_000, 8);
        metrics.device_compute.record(20_000_000, 8);
        metrics.device_batches.fetch_add(2, Ordering::Relaxed);
        metrics.device_round_trips.fetch_add(3, Ordering::Relaxed);
        metrics.device_sent.fetch_add(5000, Ordering::Relaxed);
        metrics.device_received.fetch_add(100, Ordering::Relaxed);
        metrics.device_lost.fetch_add(1, Ordering::Relaxed);
        watched.look(2.0);
        let times = |p50_ms: f64| Times { count: 8, p50_ms, p99_ms: p50_ms };
        let expected = DeviceFigures {
            device: "proxy".to_owned(),
            network: times(3.0),
            compute: times(20.0),
            round_trips_per_batch: Some(1.5),
            sent_bytes_per_second: 2500.0,
            received_bytes_per_second: 50.0,
            sessions_lost: 1,
            ..DeviceFigures::default()
        };
        assert_eq!(figures(&watched), Some(expected));
        run.stopper().abort();
        let _ = run.wait();
    }
}
