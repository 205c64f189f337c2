//! `fault`: delays frames, or cuts connections, to see how a workflow takes it.
//!
//! Which frames are concerned is computed from their number, so it is the same in each run.
use crate::passage::Passage;
use crate::policy::{Kind, Policy, Site, Verdict, options};
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tidemill_spec::units::TimeSpan;

/// See the module.
pub const KIND: Kind = Kind {
    name: "fault",
    help: "delays frames or cuts the connection, for some percent of them",
    example: r#"{"delay": "200ms", "percent": 5}"#,
    make,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    /// Time for which a frame is held.
    delay: Option<TimeSpan>,
    /// Cut the connection instead of sending the frame. It is made again, and the frame is sent then.
    #[serde(default)]
    abort: bool,
    /// Of all frames. Default: 100 for a delay; needed for `abort`.
    percent: Option<f64>,
}

struct Fault {
    delay: Duration,
    abort: bool,
    percent: f64,
    /// Frames that are held, by channel: their number, and when they leave.
    held: HashMap<u64, (u64, Instant)>,
    /// Frames that were looked at, over all connections: one that was cut is not cut again when it comes again.
    looked: u64,
}

fn make(value: &Value, _: &Site) -> Result<Box<dyn Policy>, String> {
    let Options { delay, abort, percent } = options(value)?;
    if delay.is_none() && !abort {
        return Err("it has neither `delay` nor `abort`".to_owned());
    }
    if abort && percent.is_none() {
        return Err("`abort` needs `percent`: with all frames cut, nothing would arrive".to_owned());
    }
    let percent = percent.unwrap_or(100.0);
    if !(0.0..=100.0).contains(&percent) || abort && percent > 50.0 {
        return Err(format!("`percent` is {percent}: write 0 to 100, or at most 50 with `abort`"));
    }
    let delay = Duration::from_nanos(delay.map_or(0, |delay| delay.0));
    Ok(Box::new(Fault { delay, abort, percent, held: HashMap::new(), looked: 0 }))
}

/// Spreads numbers evenly (the finalizer of splitmix64).
fn spread(number: u64) -> f64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) as f64 / u64::MAX as f64
}

impl Policy for Fault {
    fn look(&mut self, frame: &mut Passage<'_>) -> Result<Verdict, String> {
        if let Some((number, until)) = self.held.get(&frame.channel)
            && *number == frame.number
        {
            let left = until.saturating_duration_since(frame.now);
            return Ok(if left.is_zero() { Verdict::Pass } else { Verdict::Wait(left) });
        }
        self.looked += 1;
        if spread(self.looked) * 100.0 >= self.percent {
            return Ok(Verdict::Pass);
        }
        if self.abort {
            return Ok(Verdict::Cut);
        }
        self.held.insert(frame.channel, (frame.number, frame.now + self.delay));
        Ok(Verdict::Wait(self.delay))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Bench, cameras};
    use serde_json::json;

    #[test]
    fn a_frame_is_held_once() {
        let mut bench = Bench::new("fault", &json!({"delay": "200ms"}));
        assert_eq!(bench.look(&cameras(&["a"])).0, Verdict::Wait(Duration::from_millis(200)));
        bench.advance(Duration::from_millis(150));
        assert_eq!(bench.again(&cameras(&["a"])).0, Verdict::Wait(Duration::from_millis(50)));
        bench.advance(Duration::from_millis(50));
        assert_eq!(bench.again(&cameras(&["a"])).0, Verdict::Pass);
        assert_eq!(bench.look(&cameras(&["b"])).0, Verdict::Wait(Duration::from_millis(200)));
    }

    #[test]
    fn some_percent_are_cut() {
        let mut bench = Bench::new("fault", &json!({"abort": true, "percent": 10}));
        let cuts = (0..2000).filter(|_| bench.look(&cameras(&["a"])).0 == Verdict::Cut).count();
        assert!((150..250).contains(&cuts), "{cuts} of 2000");
    }

    #[test]
    fn a_fault_that_stops_everything_is_refused() {
        for wrong in [
            json!({}),
            json!({"abort": true}),
            json!({"abort": true, "percent": 100}),
            json!({"delay": "1s", "percent": 101}),
        ] {
            assert!(make(&wrong, &Site::default()).is_err(), "{wrong}");
        }
    }
}
