//! Runs that wait for workers: parked, and woken by a worker that joins.
use super::{End, is_cancelled};
use crate::api::RunState;
use crate::clock::instant;
use crate::controller::{Shared, launcher, locked, placing};
use std::time::Duration;

/// Interval of looks for workers by a waiting run that is not woken.
const PAUSE_WITHOUT_WORKERS: Duration = Duration::from_secs(5);

/// Waits until a worker is there for each role that was never placed, without another process or thread. Returns how the run ends where it
/// ends before.
pub(super) fn wait_for_workers(shared: &Shared, name: &str, version: u64) -> Option<End> {
    let waits = |waits: bool| {
        locked(&shared.runs).get_mut(name).into_iter().for_each(|live| live.waits_for_workers = waits);
    };
    // Before the first look: a worker that comes after it wakes this thread.
    waits(true);
    let end = look_for_workers(shared, name, version);
    waits(false);
    end
}

fn look_for_workers(shared: &Shared, name: &str, version: u64) -> Option<End> {
    let begun = instant();
    let mut is_told = false;
    while let Some(role) = placing::without_place(shared, name, version) {
        if is_cancelled(shared, name) {
            return Some(End::Over(RunState::Cancelled, None));
        }
        if shared.is_ending() {
            return Some(End::SteppedDown);
        }
        is_told |= locked(&shared.waited).contains(name);
        if !is_told && begun.elapsed() >= shared.expected() {
            is_told = true;
            shared.tell("run_waits", Some(name), None, &launcher::waits_text(name, &role));
        }
        // A worker that may take the role wakes this thread. Other changes, such as a library that was installed, are seen after the pause.
        let pause = if is_told { PAUSE_WITHOUT_WORKERS } else { shared.expected() };
        std::thread::park_timeout(pause.min(PAUSE_WITHOUT_WORKERS));
    }
    None
}
