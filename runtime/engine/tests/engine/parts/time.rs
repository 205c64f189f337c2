//! Manual time: a run advances because the test advances time, and waits where the test makes it wait.
use arrow_array::RecordBatch;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tidemill_engine::clock::{Clock, ManualClock, Nanoseconds};
use tidemill_engine::{Run, RunError, RunReport};

pub(crate) const MILLISECOND: Nanoseconds = 1_000_000;

/// Polls before a test counts as hanging: long on a busy machine, and less than the minute after which the runner ends a
/// test without a reason.
const POLLS: usize = 60_000;
/// Lets other threads run. No result depends on its length.
const POLL: Duration = Duration::from_micros(500);

/// Polls until `what` holds, advancing the run's time by `step`.
pub(crate) fn passes(clock: &ManualClock, step: Nanoseconds, what: impl Fn() -> bool) {
    for _ in 0..POLLS {
        if what() {
            return;
        }
        std::thread::park_timeout(POLL);
        // Also without a step: the slots wake up and check.
        clock.advance(step);
    }
    panic!("it does not come to pass by {} ms", clock.now() / MILLISECOND);
}

/// Polls until `what` holds while time stands still.
pub(crate) fn until(clock: &ManualClock, what: impl Fn() -> bool) {
    passes(clock, 0, what);
}

/// Advances time until the run has ended well.
pub(crate) fn drive(run: &Run, clock: &ManualClock) -> RunReport {
    outcome(run, clock).expect("the run succeeds")
}

/// Advances time until the run has ended.
pub(crate) fn outcome(run: &Run, clock: &ManualClock) -> Result<RunReport, RunError> {
    for _ in 0..POLLS {
        if let Some(result) = run.wait_for(POLL) {
            return result;
        }
        clock.advance(5 * MILLISECOND);
    }
    let report = run.report();
    run.stopper().abort();
    panic!("the run hangs: {report:#?}")
}

/// Returns the action of an operator that takes this much of the run's time per row.
pub(crate) fn takes(
    clock: &Arc<ManualClock>,
    each: Nanoseconds,
) -> impl Fn(&RecordBatch) + Send + Sync + 'static {
    let clock = Arc::clone(clock);
    move |batch| {
        let end = clock.now() + each * batch.num_rows() as Nanoseconds;
        while clock.now() < end {
            std::thread::park_timeout(POLL);
        }
    }
}

/// Blocks callers until it is opened.
#[derive(Default)]
pub(crate) struct Gate {
    /// Whether it is open, and the number of waiting callers.
    state: Mutex<(bool, usize)>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn closed() -> Arc<Self> {
        Arc::default()
    }

    /// Waits until it is open.
    pub(crate) fn pass(&self) {
        let mut state = self.state.lock().expect("not poisoned");
        state.1 += 1;
        while !state.0 {
            state = self.opened.wait(state).expect("not poisoned");
        }
        state.1 -= 1;
    }

    pub(crate) fn open(&self) {
        self.state.lock().expect("not poisoned").0 = true;
        self.opened.notify_all();
    }

    /// Whether a caller waits.
    pub(crate) fn holds(&self) -> bool {
        let state = self.state.lock().expect("not poisoned");
        !state.0 && state.1 > 0
    }
}
