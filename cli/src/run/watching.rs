//! Watchers of an active run, and reasons to end it before its sources do.
use crate::interrupt::Interrupt;
use crate::progress::ProgressLine;
use crate::report::series::Recorder;
use crate::terminal::Terminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidemill_app::letters::LetterLimit;
use tidemill_app::listener::Listener;
use tidemill_app::run_figures::Watched;
use tidemill_app::slo_watch::Violations;
use tidemill_engine::{Observer, Run, RunError, RunReport};
use tidemill_spec::workflow::Slo;

/// Interval of looks at the progress.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks that an interrupted run gets to end in order: about a second.
const LOOKS_AFTER_INTERRUPT: u32 = 9;

#[expect(clippy::disallowed_methods, reason = "rates are of real time")]
fn instant() -> Instant {
    Instant::now()
}

/// The watch of a run, which metrics read too.
pub(super) fn locked(watched: &Mutex<Watched>) -> MutexGuard<'_, Watched> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watchers of an active run.
pub(super) struct Watchers {
    begun: Instant,
    /// Its figures, and levels that are missed for a while.
    watched: Arc<Mutex<Watched>>,
    /// Curves for the report page, where there is one.
    pub(super) recorder: Option<Recorder>,
}

impl Watchers {
    pub(super) fn new(observer: &Observer, levels: &Slo, recorder: Option<Recorder>) -> Self {
        let watched = Arc::new(Mutex::new(Watched::new(observer.clone(), levels)));
        Self { begun: instant(), watched, recorder }
    }

    pub(super) fn watched(&self) -> Arc<Mutex<Watched>> {
        Arc::clone(&self.watched)
    }

    pub(super) fn violations(&self) -> Violations {
        locked(&self.watched).violations()
    }

    pub(super) fn look(&mut self, observer: &Observer, is_last: bool) {
        let now = self.begun.elapsed().as_secs_f64();
        match is_last {
            true => locked(&self.watched).look_at_last(now),
            false => locked(&self.watched).look(now),
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.look(observer, is_last);
        }
    }
}

/// Reasons to end a run before its sources do.
pub(super) struct Ends<'a> {
    pub(super) interrupt: &'a Interrupt,
    pub(super) letters: Option<LetterLimit>,
    pub(super) terminal: &'a Terminal,
}

/// Waits for the end, shows the progress meanwhile and lets others look, once more at the end.
pub(super) fn watch(
    run: &Run,
    ends: &Ends<'_>,
    mut line: ProgressLine,
    mut look: impl FnMut(bool),
) -> Result<RunReport, RunError> {
    let mut looks_left = LOOKS_AFTER_INTERRUPT;
    loop {
        if let Some(result) = run.wait_for(LOOK_EVERY) {
            look(true);
            line.finish();
            return result;
        }
        let progress = run.progress();
        line.show(&progress);
        look(false);
        if ends.letters.is_some_and(|limit| limit.is_passed_for_good(progress.dead_letters)) {
            run.stopper().abort();
        }
        if !ends.interrupt.is_wanted() {
            continue;
        }
        match looks_left {
            // Something is stuck where nothing can call it off: a disk, a model. What is committed is on the disk.
            0 if !run.is_closing() => {
                line.finish();
                return Ok(run.report());
            }
            0 => {}
            1 if run.is_closing() => {
                ends.terminal.note("finishing the output files; a second signal exits at once");
                looks_left = 0;
            }
            _ => looks_left -= 1,
        }
    }
}
