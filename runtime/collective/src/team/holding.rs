//! Bytes that are held back: while windows are shut, and while a group that goes first sends.
use super::{Running, Team};
use crate::strategy::Strategy;
use std::sync::Arc;
use std::time::Duration;

/// Tells whether the host carries out an operation of a group that goes first.
pub type Gate = Arc<dyn Fn() -> bool + Send + Sync>;

/// Time after which it is looked again whether such an operation still runs.
const LOOK: Duration = Duration::from_micros(500);

/// What holds the bytes of a team.
#[derive(Default)]
pub(super) struct Holding {
    gate: Option<Gate>,
    /// Since when bytes wait.
    since: Option<Duration>,
}

impl Team {
    /// Sends nothing to other hosts from now on while this is true. None: whatever other groups do.
    pub fn set_gate(&mut self, gate: Option<Gate>) {
        self.holding.gate = gate;
    }

    /// Returns the bytes that have come from other hosts and gone to them.
    pub fn moved(&self) -> u64 {
        self.counters.sent.values().chain(self.counters.received.values()).sum()
    }

    /// Takes a strategy that needs the same wires: only its number, its windows, and the groups that go first are others. No
    /// operation may run.
    ///
    /// Returns false, and changes nothing, if it is another one.
    pub fn retime(&mut self, strategy: &Strategy) -> bool {
        let Strategy { epoch, windows, yields, same_wires, .. } = strategy;
        let same = Strategy {
            epoch: *epoch,
            windows: windows.clone(),
            yields: yields.clone(),
            same_wires: *same_wires,
            ..self.strategy.clone()
        };
        if !same_wires || self.running.is_some() || self.failed.is_some() || same != *strategy {
            return false;
        }
        self.strategy = same;
        true
    }

    /// Returns for how long the group may not send between hosts.
    pub(super) fn closed_for(&self) -> Duration {
        let by_windows = self.strategy.windows.as_ref().map_or(0, |windows| {
            let now = u64::try_from((self.clock)().as_micros()).unwrap_or(u64::MAX);
            windows.closed_for(now)
        });
        let by_gate = self.holding.gate.as_ref().is_some_and(|gate| gate());
        Duration::from_micros(by_windows).max(if by_gate { LOOK } else { Duration::ZERO })
    }

    /// Counts the time in which bytes wait.
    pub(super) fn hold(&mut self, running: &Running, is_closed: bool) {
        let is_waiting = |key| self.outbound.get(key).is_some_and(|outbound| !outbound.is_empty());
        let waits = is_closed && running.outbound.iter().any(is_waiting);
        if !waits && self.holding.since.is_none() {
            return;
        }
        let now = (self.clock)();
        let since = std::mem::replace(&mut self.holding.since, waits.then_some(now));
        self.counters.held += since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
    }
}
