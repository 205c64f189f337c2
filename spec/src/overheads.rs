//! Overheads of the engine on a type of worker, in addition to the calls of operators: measured once, with an engine
//! that runs idle operators. Planners and simulators add them to service and transfer times.
use crate::service_times::Distribution;
use crate::units::{Percentile, TimeSpan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The engine's own times on a type of worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Overheads {
    /// From when a record is due until its source has given it.
    pub source: OverheadTime,
    /// From one slot to another of the same place, which sleeps before.
    pub hand_over: OverheadTime,
    /// From one slot to another as bytes, of a record that is nearly empty: encoding, copying, decoding and waking.
    pub frame: OverheadTime,
    /// How much longer that takes for each MiB of the record.
    pub frame_per_mebibyte: TimeSpan,
    /// Around the call of a model: from its stage to its executor and back.
    pub call: OverheadTime,
}

/// How long something takes, with a record at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OverheadTime {
    /// Mean.
    pub mean: TimeSpan,
    /// Median.
    pub p50: TimeSpan,
    /// 90th percentile.
    pub p90: TimeSpan,
    /// 99th percentile.
    pub p99: TimeSpan,
}

impl OverheadTime {
    /// Returns the distribution to draw from: linear between the percentiles, scaled to the mean.
    pub fn distribution(&self) -> Distribution {
        let seconds = |span: TimeSpan| span.0 as f64 / 1e9;
        let known = [(0.5, seconds(self.p50)), (0.9, seconds(self.p90)), (0.99, seconds(self.p99))];
        let mean = seconds(self.mean);
        Distribution::of_percentiles(&known, Some(mean)).unwrap_or(Distribution::Mean(mean))
    }

    /// Returns the seconds at a percentile.
    pub fn at(&self, percentile: Percentile) -> f64 {
        self.distribution().at(percentile.0 / 100.0)
    }

    /// Changes each figure.
    pub fn map(&self, change: impl Fn(TimeSpan) -> TimeSpan) -> Self {
        let [mean, p50, p90, p99] = [self.mean, self.p50, self.p90, self.p99].map(change);
        Self { mean, p50, p90, p99 }
    }

    /// Whether the percentiles ascend.
    pub fn is_in_order(&self) -> bool {
        self.p50 <= self.p90 && self.p90 <= self.p99
    }
}

impl Overheads {
    /// Returns the times by their keys.
    pub fn times(&self) -> [(&'static str, OverheadTime); 4] {
        [("source", self.source), ("hand_over", self.hand_over), ("frame", self.frame), ("call", self.call)]
    }

    /// Changes each figure.
    pub fn map(&self, change: impl Fn(TimeSpan) -> TimeSpan) -> Self {
        Self {
            source: self.source.map(&change),
            hand_over: self.hand_over.map(&change),
            frame: self.frame.map(&change),
            frame_per_mebibyte: change(self.frame_per_mebibyte),
            call: self.call.map(&change),
        }
    }

    /// Returns the additional seconds of a record with this number of bytes as a frame, compared with an empty one.
    pub fn of_bytes(&self, bytes: f64) -> f64 {
        self.frame_per_mebibyte.0 as f64 / 1e9 * bytes / f64::from(1 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_what_is_drawn_is_the_measured_one() {
        let us = |n: u64| TimeSpan(n * 1000);
        let time = OverheadTime { mean: us(60), p50: us(50), p90: us(80), p99: us(300) };
        let drawn = time.distribution();
        assert!((drawn.mean() - 60e-6).abs() < 1e-12, "{drawn:?}");
        assert!(drawn.at(0.99) > 4.0 * drawn.at(0.5));
        assert!(time.is_in_order() && !time.map(|span| TimeSpan(1_000_000 - span.0)).is_in_order());
    }
}
