//! `rate_limit`: at most so many records per second.
//!
//! A token bucket: `rps` tokens come each second, up to `burst`, and each record takes one. Records that have to wait hold up
//! the frames after them, so a source with `freshness: latest` drops what is old instead. With `excess: reject` they are taken
//! out, and counted.
use crate::matching::Condition;
use crate::passage::Passage;
use crate::policy::{Kind, Policy, Site, Verdict, options};
use arrow_array::BooleanArray;
use serde::Deserialize;
use serde_json::Value;
use std::time::{Duration, Instant};
use tidemill_spec::types::StreamType;

/// See the module.
pub const KIND: Kind = Kind {
    name: "rate_limit",
    help: "at most so many records per second",
    example: r#"{"match": "camera == 'cam3'", "rps": 5, "burst": 10, "excess": "reject"}"#,
    make,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    /// The records that are limited. Default: all.
    #[serde(rename = "match")]
    matches: Option<String>,
    /// Records per second; none: no limit.
    rps: Option<f64>,
    /// Records that may come at once. Default: those of one second, at least one.
    burst: Option<f64>,
    #[serde(default)]
    excess: Excess,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Excess {
    #[default]
    Wait,
    Reject,
}

struct RateLimit {
    condition: Option<Condition>,
    rps: f64,
    burst: f64,
    excess: Excess,
    tokens: f64,
    filled: Option<Instant>,
}

fn make(value: &Value, _: &Site) -> Result<Box<dyn Policy>, String> {
    let Options { matches, rps, burst, excess } = options(value)?;
    let rps = rps.unwrap_or(f64::INFINITY);
    if rps.is_nan() || rps <= 0.0 {
        return Err(format!("`rps` is {rps}: it must be more than 0"));
    }
    let burst = burst.unwrap_or_else(|| rps.max(1.0));
    if burst.is_nan() || burst < 1.0 {
        return Err(format!("`burst` is {burst}: it must be at least 1"));
    }
    let condition = matches.map(Condition::new);
    Ok(Box::new(RateLimit { condition, rps, burst, excess, tokens: burst, filled: None }))
}

impl Policy for RateLimit {
    fn look(&mut self, frame: &mut Passage<'_>) -> Result<Verdict, String> {
        if self.rps.is_infinite() {
            return Ok(Verdict::Pass);
        }
        let limited = match &mut self.condition {
            Some(condition) => Some(condition.find(frame.records()?)?.holds),
            None => None,
        };
        let rows = frame.rows()?;
        let wanted = limited.as_ref().map_or(rows, BooleanArray::true_count) as f64;
        if let Some(before) = self.filled {
            let passed = frame.now.saturating_duration_since(before).as_secs_f64();
            self.tokens = (self.tokens + passed * self.rps).min(self.burst);
        }
        self.filled = Some(frame.now);
        // A frame with more rows than the bucket holds waits for a full one, and leaves it in debt.
        let needed = if self.excess == Excess::Wait { wanted.min(self.burst) } else { wanted };
        if self.tokens >= needed {
            self.tokens -= wanted;
            return Ok(Verdict::Pass);
        }
        if self.excess == Excess::Wait {
            let seconds = (needed - self.tokens) / self.rps;
            return Ok(Verdict::Wait(Duration::from_secs_f64(seconds.clamp(1e-6, 3600.0))));
        }
        let keep = (0..rows).map(|row| {
            let is_limited = limited.as_ref().is_none_or(|limited| limited.value(row));
            if is_limited && self.tokens < 1.0 {
                return false;
            }
            self.tokens -= f64::from(u8::from(is_limited));
            true
        });
        let keep: BooleanArray = keep.map(Some).collect();
        frame.keep(&keep)?;
        Ok(Verdict::Pass)
    }

    fn fits(&mut self, columns: &StreamType) -> Result<(), String> {
        self.condition.as_ref().map_or(Ok(()), |condition| condition.fits(columns))
    }

    fn state(&self) -> Vec<u8> {
        self.tokens.to_le_bytes().to_vec()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        let tokens = state.try_into().map(f64::from_le_bytes).map_err(|_| "this is no number of tokens")?;
        self.tokens = if tokens.is_finite() { tokens.min(self.burst) } else { self.burst };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Bench, cameras};
    use serde_json::json;

    #[test]
    fn records_pass_at_the_rate_and_in_their_order() {
        let mut bench = Bench::new("rate_limit", &json!({"rps": 10, "burst": 2}));
        assert_eq!(bench.look(&cameras(&["a", "b"])).0, Verdict::Pass);
        let (verdict, _) = bench.look(&cameras(&["c"]));
        assert_eq!(verdict, Verdict::Wait(Duration::from_millis(100)));
        bench.advance(Duration::from_millis(100));
        assert_eq!(bench.look(&cameras(&["c"])).0, Verdict::Pass);
        // More rows than the bucket holds: they pass once it is full, and the next ones wait for all of them.
        bench.advance(Duration::from_secs(5));
        assert_eq!(bench.look(&cameras(&["d"; 5])).0, Verdict::Pass);
        assert_eq!(bench.look(&cameras(&["e"])).0, Verdict::Wait(Duration::from_millis(400)));
    }

    #[test]
    fn excess_of_one_camera_is_taken_out_and_the_others_pass() {
        let options = json!({"match": "camera == 'noisy'", "rps": 1, "burst": 2, "excess": "reject"});
        let mut bench = Bench::new("rate_limit", &options);
        let (verdict, left) = bench.look(&cameras(&["noisy", "a", "noisy", "noisy", "b", "noisy"]));
        assert_eq!((verdict, left), (Verdict::Pass, cameras(&["noisy", "a", "noisy", "b"])));
        assert_eq!(bench.rejected(), 2);
    }

    #[test]
    fn a_new_limit_keeps_the_tokens() {
        let mut bench = Bench::new("rate_limit", &json!({"rps": 1, "burst": 5}));
        bench.look(&cameras(&["a"; 5]));
        bench.replace("rate_limit", &json!({"rps": 10, "burst": 5}));
        assert_eq!(bench.look(&cameras(&["a"])).0, Verdict::Wait(Duration::from_millis(100)));
    }
}
