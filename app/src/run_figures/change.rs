//! Counters of a run as they were some seconds ago, and what changed since.
use super::{SourceState, Times};
use crate::slo_watch::percentile_of;
use std::collections::{BTreeMap, VecDeque};
use tidemill_engine::{Latencies, LatencyWindow, StageMetrics};

/// Samples over which rates and times are.
pub(super) const SAMPLES: usize = 5;
/// Samples over which it is said whether a plan holds.
pub(super) const LONG: usize = 10;
/// Lag from which a source counts as behind, in seconds.
const BEHIND: f64 = 1.0;
/// Expected records in the window from which a source that gave none counts as silent.
const EXPECTED: f64 = 3.0;

/// Counters of a stage.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct StageCounts {
    pub(super) taken: u64,
    pub(super) given: u64,
    pub(super) batches: u64,
    /// Seconds that its batches took, each once.
    pub(super) computing: f64,
    /// Seconds of processor time.
    pub(super) processor: f64,
    pub(super) on_device: DeviceCounts,
}

/// Counters of a stage whose model is on a device.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct DeviceCounts {
    pub(super) batches: u64,
    pub(super) round_trips: u64,
    /// Bytes to it.
    pub(super) sent: u64,
    /// Bytes from it.
    pub(super) received: u64,
}

/// Counters at a point of time.
pub(super) struct Sample {
    /// Real seconds.
    pub(super) at: f64,
    /// Engine seconds of the run, which a dilation stretches.
    pub(super) run: f64,
    /// In the order of the plan.
    pub(super) stages: Vec<StageCounts>,
    /// In the order of the plan: records and bytes.
    pub(super) edges: Vec<(u64, u64)>,
    /// Arrivals.
    pub(super) sinks: BTreeMap<String, u64>,
    /// Seconds of processor time, in the order of the slots.
    pub(super) slots: Vec<f64>,
}

/// Times that were added in the last samples.
#[derive(Default)]
pub(super) struct Recent {
    window: LatencyWindow,
    parts: VecDeque<Vec<(f64, u64)>>,
}

impl Recent {
    pub(super) fn advance(&mut self, latencies: &Latencies) {
        self.parts.push_back(self.window.advance(latencies));
        if self.parts.len() > SAMPLES {
            self.parts.pop_front();
        }
    }

    /// Milliseconds and how many records, ascending.
    pub(super) fn all(&self) -> Vec<(f64, u64)> {
        let mut all: Vec<(f64, u64)> = self.parts.iter().flatten().copied().collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all
    }

    pub(super) fn times(&self) -> Times {
        let all = self.all();
        Times {
            count: all.iter().map(|(_, n)| n).sum(),
            p50_ms: percentile_of(&all, 50.0).unwrap_or_default(),
            p99_ms: percentile_of(&all, 99.0).unwrap_or_default(),
        }
    }
}

/// Times of a stage that were added in the last samples.
#[derive(Default)]
pub(super) struct RecentOfStage {
    pub(super) queue: Recent,
    pub(super) compute: Recent,
    /// Of a model on a device: client, network, queue, computation.
    pub(super) on_device: [Recent; 4],
}

impl RecentOfStage {
    pub(super) fn advance(&mut self, metrics: &StageMetrics) {
        let StageMetrics { device_client, device_network, device_queue, device_compute, .. } = metrics;
        self.queue.advance(&metrics.queue);
        self.compute.advance(&metrics.compute);
        let parts = [device_client, device_network, device_queue, device_compute];
        self.on_device.iter_mut().zip(parts).for_each(|(recent, latencies)| recent.advance(latencies));
    }
}

/// The stage of an instance: partitions are `stage#0`.
pub(super) fn stage_of(instance: &str) -> &str {
    match instance.rsplit_once('#') {
        Some((stage, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => stage,
        _ => instance,
    }
}

/// Changes between the first and the last sample.
pub(super) struct Change<'a> {
    /// Seconds of the run; real ones where those of the run stand still, as they do once it has ended.
    pub(super) seconds: f64,
    /// Real seconds.
    real: f64,
    ends: Option<(&'a Sample, &'a Sample)>,
}

impl<'a> Change<'a> {
    pub(super) fn of(samples: &'a VecDeque<Sample>) -> Self {
        Self::over(samples, SAMPLES)
    }

    /// Covers at most `most` samples.
    pub(super) fn over(samples: &'a VecDeque<Sample>, most: usize) -> Self {
        let first = samples.len().saturating_sub(most + 1);
        match (samples.get(first), samples.back()) {
            (Some(first), Some(last)) if last.at > first.at => {
                let (real, run) = (last.at - first.at, last.run - first.run);
                Self { seconds: if run > 0.0 { run } else { real }, real, ends: Some((first, last)) }
            }
            _ => Self { seconds: 0.0, real: 0.0, ends: None },
        }
    }
}

impl Change<'_> {
    /// Returns the change of a counter, per second.
    pub(super) fn per_second(&self, counter: impl Fn(&Sample) -> Option<u64>) -> Option<f64> {
        let (first, last) = self.ends?;
        Some(counter(last)?.saturating_sub(counter(first)?) as f64 / self.seconds)
    }

    /// Returns the change of a stage's counter, per second.
    pub(super) fn of_stage(&self, at: usize, counter: impl Fn(&StageCounts) -> u64) -> Option<f64> {
        self.per_second(|sample| sample.stages.get(at).map(&counter))
    }

    /// Part of the time of the run that a stage computes; of several copies and partitions all together.
    pub(super) fn computing(&self, at: usize) -> Option<f64> {
        self.share(|sample| sample.stages.get(at).map(|counts| counts.computing), self.seconds)
    }

    /// Returns the change of processor time per second of real time.
    pub(super) fn processor(&self, time: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        self.share(time, self.real)
    }

    fn share(&self, time: impl Fn(&Sample) -> Option<f64>, seconds: f64) -> Option<f64> {
        let (first, last) = self.ends?;
        Some((time(last)? - time(first)?).max(0.0) / seconds)
    }
}

/// Observations of a source.
pub(super) struct Seen {
    pub(super) is_ended: bool,
    pub(super) given: u64,
    pub(super) per_second: f64,
    pub(super) wanted: Option<f64>,
    pub(super) behind: f64,
    pub(super) window: f64,
}

impl Seen {
    pub(super) fn state(&self) -> SourceState {
        let expected = self.wanted.map_or(f64::INFINITY, |wanted| wanted * self.window);
        match self {
            _ if self.is_ended => SourceState::Ended,
            _ if self.given == 0 => SourceState::Starting,
            _ if self.per_second == 0.0 && self.window > 0.0 && expected >= EXPECTED => SourceState::Silent,
            _ if self.behind > BEHIND => SourceState::Behind,
            _ => SourceState::Running,
        }
    }
}

#[cfg(test)]
mod tests;
