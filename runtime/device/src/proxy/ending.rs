//! Ends of sessions that the device decides.
use super::Event;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ends a session from another thread, before its next run or when it has nothing to do. The client is told the reason, and every
/// call before the run has had its reply.
#[derive(Debug, Clone, Default)]
pub struct Ending(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    farewell: Option<Farewell>,
    wakes: Option<Sender<Event>>,
}

/// The last message of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Farewell {
    pub(super) reason: String,
    /// The whole device is drained, not this session alone.
    pub(super) is_drained: bool,
}

impl Ending {
    /// Ends it.
    pub fn end(&self, reason: &str) {
        self.end_by(Farewell { reason: reason.to_owned(), is_drained: false });
    }

    /// Ends it with all others of the device, which is drained and serves nobody any more.
    pub fn drain(&self, reason: &str) {
        self.end_by(Farewell { reason: reason.to_owned(), is_drained: true });
    }

    fn end_by(&self, farewell: Farewell) {
        let mut state = self.state();
        state.farewell.get_or_insert(farewell);
        if let Some(wakes) = &state.wakes {
            // It may have ended already.
            let _ = wakes.send(Event::End);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether it is to end.
    pub fn is_due(&self) -> bool {
        self.state().farewell.is_some()
    }

    pub(super) fn farewell(&self) -> Option<Farewell> {
        self.state().farewell.clone()
    }

    /// Wakes the proxy that waits for calls; none: there is none any more.
    pub(super) fn wakes(&self, events: Option<Sender<Event>>) {
        self.state().wakes = events;
    }
}
