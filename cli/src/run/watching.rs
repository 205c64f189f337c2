//! A run while it goes on: what looks at it, and what may end it before its sources do.
use crate::interrupt::Interrupt;
use crate::progress::ProgressLine;
use crate::report::series::Recorder;
use crate::terminal::Terminal;
use std::time::Duration;
use tidemill_app::letters::LetterLimit;
use tidemill_app::listener::Listener;
use tidemill_app::preparation::Prepared;
use tidemill_app::slo_watch::SloWatch;
use tidemill_engine::{Observer, Run, RunError, RunReport};

/// How often the progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks that an interrupted run gets to end in order: about a second.
const LOOKS_AFTER_INTERRUPT: u32 = 9;

/// Who looks at a run while it goes on.
pub(super) struct Watchers {
    /// Levels that are missed for a while.
    pub(super) slo: SloWatch,
    /// Curves for the report page, where there is one.
    pub(super) recorder: Option<Recorder>,
}

impl Watchers {
    pub(super) fn look(&mut self, observer: &Observer, prepared: &Prepared, is_last: bool) {
        match is_last {
            true => self.slo.look_at_last(observer, &prepared.program),
            false => self.slo.look(observer, &prepared.program),
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.look(observer, is_last);
        }
    }
}

/// What may end a run before its sources do.
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
                ends.terminal.note("finishing the output files; a second signal leaves at once");
                looks_left = 0;
            }
            _ => looks_left -= 1,
        }
    }
}
