//! Service levels during a run: the number of windows that missed them.
use crate::measured::{Counters, Measured};
use crate::slo::{RATE_TOLERANCE, Verdict};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_engine::{LatencyWindow, Observer, Program};
use tidemill_spec::workflow::Slo;

/// Numbers of observed and missed windows of one service level.
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

    /// Returns all windows and the missed ones.
    pub fn counts(&self) -> (u64, u64) {
        (self.all.load(Ordering::Relaxed), self.missed.load(Ordering::Relaxed))
    }
}

/// The windows by service level: `rate`, `accuracy`, `latency`, if the workflow has them.
pub type Violations = Arc<BTreeMap<&'static str, Windows>>;

/// Seconds that [`SloWatch::late`] covers.
const LATE: f64 = 10.0;
/// Least seconds for a meaningful rate: records come by ticks, and a starting run is slower.
const SHORTEST: f64 = 4.0;

/// By sink: milliseconds and number of records, ascending.
type Arrived = BTreeMap<String, Vec<(f64, u64)>>;

/// Observes a run, once per window.
pub struct SloWatch {
    slo: Slo,
    violations: Violations,
    /// Seconds.
    window: f64,
    tick: f64,
    /// At the end of the last window.
    last: Counters,
    /// Counters at the start of the last windows, and the arrivals in each.
    windows: VecDeque<(Counters, Arrived)>,
    latencies: BTreeMap<String, LatencyWindow>,
    late: Measured,
}

impl SloWatch {
    /// Starts to observe a run.
    pub fn new(slo: &Slo, program: &Program) -> Self {
        let names = [
            ("rate", slo.rate.is_some()),
            ("accuracy", slo.accuracy.is_some()),
            ("latency", slo.latency.is_some()),
        ];
        let wanted = names.into_iter().filter(|(_, wanted)| *wanted);
        // At least ten records, or a rate is meaningless.
        let window = slo.rate.as_ref().map_or(1.0, |rate| (10.0 / rate.0.max(1e-6)).max(1.0));
        Self {
            slo: slo.clone(),
            violations: Arc::new(wanted.map(|(name, _)| (name, Windows::default())).collect()),
            window,
            tick: program.plan.tick.0 as f64 / 1e9,
            last: Counters::default(),
            windows: VecDeque::new(),
            latencies: program.sinks.keys().map(|sink| (sink.clone(), LatencyWindow::default())).collect(),
            late: Measured::default(),
        }
    }

    /// The observed levels.
    pub fn levels(&self) -> &Slo {
        &self.slo
    }

    /// The counts, which are updated.
    pub fn violations(&self) -> Violations {
        Arc::clone(&self.violations)
    }

    /// Measurements of about the last ten seconds; empty for a run that has just started.
    pub fn late(&self) -> &Measured {
        &self.late
    }

    /// Judges a window if one has ended.
    pub fn look(&mut self, observer: &Observer, program: &Program) {
        let length = observer.progress().seconds - self.last.seconds;
        if !(0.0..self.window).contains(&length) {
            self.advance(observer, program, true);
        }
    }

    /// Looks once more at the end of the run: records since the last window form no window, but belong to the latest
    /// measurements.
    pub fn look_at_last(&mut self, observer: &Observer, program: &Program) {
        let length = observer.progress().seconds - self.last.seconds;
        self.advance(observer, program, !(0.0..self.window).contains(&length));
    }

    /// `is_whole`: a window has ended.
    fn advance(&mut self, observer: &Observer, program: &Program, is_whole: bool) {
        let now = Counters::now(observer, program);
        if now.has_begun_again(&self.last) {
            self.windows.clear();
            self.last = now;
            return;
        }
        let arrived: Arrived = self
            .latencies
            .iter_mut()
            .filter_map(|(sink, window)| Some((sink.clone(), window.advance(&observer.sink(sink)?.latency))))
            .collect();
        let measured = Measured::between(&self.last, &now, &arrived, &self.slo, observer, program);
        self.judge(&measured, is_whole);
        self.windows.push_back((std::mem::replace(&mut self.last, now), arrived));
        let is_old = |begin: &Counters, last: &Counters| last.seconds - begin.seconds >= LATE;
        while self.windows.get(1).is_some_and(|(begin, _)| is_old(begin, &self.last)) {
            self.windows.pop_front();
        }
        self.late = self.since_a_while(observer, program);
    }

    /// Counts a window; for a part of one only the accuracy, which is that of the whole run.
    fn judge(&self, measured: &Measured, is_whole: bool) {
        let levels = measured.levels(&self.slo);
        for level in levels.iter().filter(|level| is_whole || level.level == "accuracy") {
            let Some(windows) = self.violations.get(level.level) else { continue };
            match (&self.slo.rate, level.level) {
                (Some(wanted), "rate") => {
                    let Some(rate) = level.value else { continue };
                    // Records come by ticks, so one tick's worth may fall into the next window.
                    let least = wanted.0 * (measured.seconds - self.tick) * (1.0 - RATE_TOLERANCE);
                    windows.add(rate * measured.seconds + 1e-6 < least.floor());
                }
                _ => level.missed_by.into_iter().for_each(|by| windows.add(by > 0.0)),
            }
        }
    }

    fn since_a_while(&self, observer: &Observer, program: &Program) -> Measured {
        let Some((begin, _)) = self.windows.front() else { return Measured::default() };
        let mut arrived = Arrived::new();
        for (sink, more) in self.windows.iter().flat_map(|(_, arrived)| arrived) {
            arrived.entry(sink.clone()).or_default().extend(more);
        }
        arrived.values_mut().for_each(|all| all.sort_by(|a, b| a.0.total_cmp(&b.0)));
        let mut late = Measured::between(begin, &self.last, &arrived, &self.slo, observer, program);
        late.sources.retain(|_, source| source.has_begun && late.seconds >= SHORTEST);
        late
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

/// Adds the number of missed windows to each verdict.
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
