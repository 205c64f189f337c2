//! `qos`: small frames before large ones, on all edges that leave the host.
//!
//! Frames up to `small_bytes` pass at once. A larger one waits while many bytes of other large ones wait in their streams and a
//! small frame was seen lately: so the queue that a small frame has to pass through stays short.
use crate::passage::Passage;
use crate::policy::{Kind, Policy, Site, Verdict, options};
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;
use tidemill_spec::units::{Bytes, TimeSpan};

/// See the module.
pub const KIND: Kind =
    Kind { name: "qos", help: "small frames before large ones", example: r#"{"small_bytes": "4KiB"}"#, make };

/// Bytes of large frames that may wait in streams while small frames come.
const QUEUE: u64 = 64 << 10;
/// Time for which a small frame counts.
const LATELY: Duration = Duration::from_millis(200);
/// Pause before a large frame is looked at again.
const PAUSE: Duration = Duration::from_micros(500);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    /// Frames up to this size are small.
    small_bytes: Option<Bytes>,
    /// Bytes of large frames that may wait in streams while small frames come. Default: 64 KiB.
    queue: Option<Bytes>,
    /// Time for which a small frame has an effect. Default: 200 ms.
    lately: Option<TimeSpan>,
}

struct Qos {
    small: u64,
    queue: u64,
    lately: Duration,
}

fn make(value: &Value, _: &Site) -> Result<Box<dyn Policy>, String> {
    let Options { small_bytes, queue, lately } = options(value)?;
    Ok(Box::new(Qos {
        small: small_bytes.map_or(4 << 10, |bytes| bytes.0),
        queue: queue.map_or(QUEUE, |bytes| bytes.0),
        lately: lately.map_or(LATELY, |time| Duration::from_nanos(time.0)),
    }))
}

impl Policy for Qos {
    fn look(&mut self, frame: &mut Passage<'_>) -> Result<Verdict, String> {
        if frame.bytes() <= self.small {
            frame.urgent.seen(frame.now);
            return Ok(Verdict::Pass);
        }
        let (channel, waiting) = (frame.channel, frame.waiting);
        frame.urgent.waits(channel, waiting);
        if frame.urgent.within(self.lately, frame.now) && frame.urgent.waiting() > self.queue {
            return Ok(Verdict::Wait(PAUSE));
        }
        frame.urgent.waits(channel, waiting + frame.bytes());
        Ok(Verdict::Pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Bench, cameras};
    use serde_json::json;

    #[test]
    fn large_frames_wait_only_while_small_ones_come_and_the_queue_is_long() {
        let mut bench = Bench::new("qos", &json!({"small_bytes": "2KiB", "queue": "10KiB"}));
        let large = cameras(&["a long name of a camera"; 600]);
        bench.waiting = 100_000;
        assert_eq!(bench.look(&large).0, Verdict::Pass, "no small frame was seen");
        assert_eq!(bench.look(&cameras(&["a"])).0, Verdict::Pass);
        assert_eq!(bench.look(&large).0, Verdict::Wait(PAUSE));
        bench.waiting = 1000;
        assert_eq!(bench.look(&large).0, Verdict::Pass, "the queue is short");
        bench.waiting = 100_000;
        assert_eq!(bench.look(&large).0, Verdict::Wait(PAUSE));
        bench.advance(Duration::from_millis(201));
        assert_eq!(bench.look(&large).0, Verdict::Pass, "small ones come no more");
    }
}
