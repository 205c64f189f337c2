//! Order among channels that share the way out of a host.
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Small frames that went or wait lately, which larger ones give way to.
#[derive(Debug, Default)]
pub struct Urgency {
    /// When an urgent frame was last seen.
    last: Option<Instant>,
    /// Bytes of other channels that wait in streams, by channel.
    behind: HashMap<u64, u64>,
}

impl Urgency {
    /// Notes an urgent frame.
    pub fn seen(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// Returns whether an urgent frame was seen within this time.
    pub fn within(&self, time: Duration, now: Instant) -> bool {
        self.last.is_some_and(|last| now.saturating_duration_since(last) <= time)
    }

    /// Notes the bytes of a channel that wait in its stream.
    pub fn waits(&mut self, channel: u64, bytes: u64) {
        if bytes == 0 {
            self.behind.remove(&channel);
        } else {
            self.behind.insert(channel, bytes);
        }
    }

    /// Bytes of all channels that wait in their streams.
    pub fn waiting(&self) -> u64 {
        self.behind.values().sum()
    }
}
