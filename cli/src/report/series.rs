//! Time series of a run for the curves of a report. Bounded: a long run has coarser steps, not more of them.
use std::collections::BTreeMap;
use tidemill_app::machine::Usage;
use tidemill_app::slo_watch::percentile_of;
use tidemill_engine::{LatencyWindow, Observer, Program};

/// Most steps kept.
const MOST: usize = 240;
/// Seconds of the first steps.
const FIRST_STEP: f64 = 0.1;

/// One step.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Step {
    /// Seconds since the start at which it ended.
    pub(crate) until: f64,
    /// Its length, seconds.
    pub(crate) length: f64,
    /// Records that reached the sinks in it.
    pub(crate) arrived: u64,
    /// Seconds of processor time in it.
    pub(crate) processor_seconds: f64,
    /// Bytes in memory, the most seen.
    pub(crate) resident: Option<u64>,
    /// Latencies by sink: milliseconds and number of records, ascending.
    pub(crate) latencies: BTreeMap<String, Vec<(f64, u64)>>,
}

impl Step {
    /// A percentile of the latencies of a sink, milliseconds.
    pub(crate) fn percentile(&self, sink: &str, percentile: f64) -> Option<f64> {
        percentile_of(self.latencies.get(sink)?, percentile)
    }

    /// Merges this step and the next one.
    fn merge(mut self, next: Step) -> Step {
        for (sink, added) in next.latencies {
            let values = self.latencies.entry(sink).or_default();
            values.extend(added);
            values.sort_by(|a, b| a.0.total_cmp(&b.0));
            values.dedup_by(|later, kept| {
                let same = later.0 == kept.0;
                if same {
                    kept.1 += later.1;
                }
                same
            });
        }
        self.until = next.until;
        self.length += next.length;
        self.arrived += next.arrived;
        self.processor_seconds += next.processor_seconds;
        self.resident = self.resident.max(next.resident);
        self
    }
}

/// Records steps during a run.
pub(crate) struct Recorder {
    steps: Vec<Step>,
    step: f64,
    last: (f64, u64, Usage),
    windows: BTreeMap<String, LatencyWindow>,
}

impl Recorder {
    /// Starts recording a run.
    pub(crate) fn new(program: &Program) -> Self {
        let usage = Usage::look();
        Self {
            steps: Vec::new(),
            step: FIRST_STEP,
            last: (0.0, 0, usage),
            windows: program.sinks.keys().map(|sink| (sink.clone(), LatencyWindow::default())).collect(),
        }
    }

    /// Adds a step if one has ended; the last one may be shorter.
    pub(crate) fn look(&mut self, observer: &Observer, is_last: bool) {
        let progress = observer.progress();
        let (before, arrived, used) = self.last;
        let length = progress.seconds - before;
        // Looks are always slightly late; three quarters of a step are close enough.
        if length < self.step * 0.75 && !(is_last && progress.arrived > arrived) {
            return;
        }
        let usage = Usage::look();
        let latencies = self.windows.iter_mut().filter_map(|(sink, window)| {
            let added = window.advance(&observer.sink(sink)?.latency);
            (!added.is_empty()).then(|| (sink.clone(), added))
        });
        let step = Step {
            until: progress.seconds,
            length,
            arrived: progress.arrived.saturating_sub(arrived),
            processor_seconds: usage.processor_seconds - used.processor_seconds,
            resident: usage.resident,
            latencies: latencies.collect(),
        };
        self.last = (progress.seconds, progress.arrived, usage);
        self.add(step);
    }

    fn add(&mut self, step: Step) {
        self.steps.push(step);
        if self.steps.len() >= MOST {
            let mut steps = std::mem::take(&mut self.steps).into_iter();
            while let Some(step) = steps.next() {
                self.steps.push(match steps.next() {
                    Some(next) => step.merge(next),
                    None => step,
                });
            }
            self.step *= 2.0;
        }
    }

    /// The steps so far.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_have_coarser_steps_and_lose_nothing() {
        let empty = Usage::default();
        let mut recorder =
            Recorder { steps: Vec::new(), step: FIRST_STEP, last: (0.0, 0, empty), windows: BTreeMap::new() };
        for n in 0..1000 {
            recorder.add(Step {
                until: f64::from(n + 1),
                length: 1.0,
                arrived: 2,
                processor_seconds: 0.5,
                resident: Some(n as u64),
                latencies: BTreeMap::from([("out".into(), vec![(1.0, 1), (f64::from(n + 2), 1)])]),
            });
        }
        let steps = recorder.steps();
        assert!(steps.len() < MOST && steps.len() > MOST / 4, "{}", steps.len());
        assert_eq!(steps.iter().map(|step| step.arrived).sum::<u64>(), 2000);
        assert_eq!(steps.iter().map(|step| step.length).sum::<f64>(), 1000.0);
        assert_eq!(steps.last().unwrap().until, 1000.0);
        let counted = steps.iter().flat_map(|step| &step.latencies["out"]).map(|(_, count)| count);
        assert_eq!(counted.sum::<u64>(), 2000);
        let first = &steps[0];
        assert_eq!(first.percentile("out", 50.0), Some(1.0));
        assert_eq!(first.percentile("out", 100.0), Some(first.length + 1.0));
        assert!(steps.windows(2).all(|pair| pair[0].until < pair[1].until));
    }
}
