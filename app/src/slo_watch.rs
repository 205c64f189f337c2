//! Service levels while a run goes on: how many windows of it missed them.
use crate::delivery::Delivery;
use crate::slo::{RATE_TOLERANCE, Verdict};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_engine::{LatencyWindow, Observer, Program};
use tidemill_spec::workflow::Slo;

/// Windows looked at and missed, of one service level.
#[derive(Debug, Default)]
pub struct Windows {
    all: AtomicU64,
    missed: AtomicU64,
}

impl Windows {
    fn add(&self, missed: bool) {
        self.all.fetch_add(1, Ordering::Relaxed);
        self.missed.fetch_add(u64::from(missed), Ordering::Relaxed);
    }

    /// All and those that missed it.
    pub fn counts(&self) -> (u64, u64) {
        (self.all.load(Ordering::Relaxed), self.missed.load(Ordering::Relaxed))
    }
}

/// The windows by service level: `rate`, `accuracy`, `latency`, where the workflow has them.
pub type Violations = Arc<BTreeMap<&'static str, Windows>>;

/// Looks at a run, once a window.
pub struct SloWatch {
    slo: Slo,
    violations: Violations,
    /// Seconds.
    window: f64,
    tick: f64,
    begun: f64,
    /// Records of each source at the beginning of the window.
    sources: BTreeMap<String, u64>,
    /// What had come and was lost until then.
    delivery: Delivery,
    latencies: BTreeMap<String, LatencyWindow>,
}

impl SloWatch {
    /// A watch of a run that begins now.
    pub fn new(slo: &Slo, program: &Program) -> Self {
        let names = [
            ("rate", slo.rate.is_some()),
            ("accuracy", slo.accuracy.is_some()),
            ("latency", slo.latency.is_some()),
        ];
        let wanted = names.into_iter().filter(|(_, wanted)| *wanted);
        // Ten records at least, or a rate says nothing.
        let window = slo.rate.as_ref().map_or(1.0, |rate| (10.0 / rate.0.max(1e-6)).max(1.0));
        Self {
            slo: slo.clone(),
            violations: Arc::new(wanted.map(|(name, _)| (name, Windows::default())).collect()),
            window,
            tick: program.plan.tick.0 as f64 / 1e9,
            begun: 0.0,
            sources: program.sources.keys().map(|source| (source.clone(), 0)).collect(),
            delivery: Delivery::default(),
            latencies: program.sinks.keys().map(|sink| (sink.clone(), LatencyWindow::default())).collect(),
        }
    }

    /// The counts, which go on changing.
    pub fn violations(&self) -> Violations {
        Arc::clone(&self.violations)
    }

    /// Judges a window if one is over.
    pub fn look(&mut self, observer: &Observer, program: &Program) {
        let now = observer.progress().seconds;
        let length = now - self.begun;
        if self.violations.is_empty() || length < self.window {
            return;
        }
        self.begun = now;
        let slowest = self.slowest_source(observer, program);
        if let (Some(wanted), Some(windows), Some(records)) =
            (&self.slo.rate, self.violations.get("rate"), slowest)
        {
            // Records come by ticks, so one tick's worth may fall into the next window.
            let least = wanted.0 * (length - self.tick) * (1.0 - RATE_TOLERANCE);
            let now = Delivery::so_far(observer, program);
            let share =
                now.since(&std::mem::replace(&mut self.delivery, now.clone())).share(program.sinks.keys());
            windows.add(records as f64 * share < least.floor());
        }
        if let (Some(wanted), Some(windows)) = (&self.slo.accuracy, self.violations.get("accuracy")) {
            let shares = program.sinks.keys().filter_map(|sink| {
                let sink = observer.sink(sink)?;
                let scored = sink.scored.load(Ordering::Relaxed);
                (scored > 0).then(|| sink.correct.load(Ordering::Relaxed) as f64 * 100.0 / scored as f64)
            });
            if let Some(worst) = shares.min_by(f64::total_cmp) {
                windows.add(worst < wanted.0);
            }
        }
        if let (Some(wanted), Some(windows)) = (&self.slo.latency, self.violations.get("latency")) {
            let percentile = wanted.percentile.0;
            let slowest = self.latencies.iter_mut().filter_map(|(sink, window)| {
                let added = window.advance(&observer.sink(sink)?.latency);
                percentile_of(&added, percentile)
            });
            if let Some(slowest) = slowest.max_by(f64::total_cmp) {
                windows.add(slowest >= wanted.below.0 as f64 / 1e6);
            }
        }
    }

    /// Records of the source that gave fewest in this window; sources that have ended owe none.
    fn slowest_source(&mut self, observer: &Observer, program: &Program) -> Option<u64> {
        let mut slowest: Option<u64> = None;
        for (source, before) in &mut self.sources {
            let stages = program.plan.stages.iter().filter(|stage| stage.operator == *source);
            let metrics: Vec<_> = stages.filter_map(|stage| observer.stage(&stage.id)).collect();
            let now: u64 = metrics.iter().map(|stage| stage.records_out.load(Ordering::Relaxed)).sum();
            let ended = metrics.iter().all(|stage| stage.ended.load(Ordering::Acquire));
            let records = now.saturating_sub(std::mem::replace(before, now));
            if !ended {
                slowest = Some(slowest.map_or(records, |least| least.min(records)));
            }
        }
        slowest
    }
}

/// The value that a share `percentile` (0..100) of counted values, ascending, does not exceed.
pub fn percentile_of(counted: &[(f64, u64)], percentile: f64) -> Option<f64> {
    let all: u64 = counted.iter().map(|(_, count)| count).sum();
    let rank = (all as f64 * percentile / 100.0).ceil().max(1.0) as u64;
    let mut seen = 0;
    counted.iter().find_map(|(value, count)| {
        seen += count;
        (seen >= rank).then_some(*value)
    })
}

/// Tells each verdict how many windows missed it.
pub fn add_windows(verdicts: &mut [Verdict], violations: &Violations) {
    for verdict in verdicts {
        let (all, missed) = violations.get(verdict.slo).map_or((0, 0), Windows::counts);
        (verdict.windows, verdict.windows_missed) = (all, missed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_counted() {
        let counted = [(1.0, 98), (5.0, 1), (9.0, 1)];
        let of = |percentile| percentile_of(&counted, percentile).unwrap();
        assert_eq!(
            [of(0.0), of(50.0), of(98.0), of(98.5), of(99.0), of(100.0)],
            [1.0, 1.0, 1.0, 5.0, 5.0, 9.0]
        );
        assert_eq!(percentile_of(&[], 50.0), None);
    }
}
