//! Progress of a run on stderr: a line that is redrawn on a terminal, else a line every few seconds.
use crate::terminal::Terminal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidemill_app::figures::{grouped, rate, seconds};
use tidemill_app::listener::Listener;
use tidemill_engine::{Program, Progress};

/// Seconds between plain lines.
const PLAIN_EVERY: f64 = 5.0;

/// Shows the progress of a run.
pub(crate) struct ProgressLine {
    bar: Option<ProgressBar>,
    terminal: Terminal,
    expected: Arc<OnceLock<Expected>>,
    next_plain: f64,
    /// Records in at the last change, and its time.
    moved: (u64, f64),
}

/// Expected end of a run, as far as known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Expected {
    /// Expected number of records of the sources.
    records: Option<u64>,
    /// Seconds after which they end.
    seconds: Option<f64>,
}

impl Expected {
    /// Computes it from sources and options.
    fn of(program: &Program, records: Option<u64>, duration: Option<Duration>) -> Self {
        let lengths = program.sources.values().map(|source| {
            // A stream can be read only once, by the run.
            let reader = source.stream.is_none().then(|| (source.make)().ok()).flatten();
            let hint = reader.and_then(|reader| reader.len_hint());
            match (hint, records) {
                (Some(hint), Some(limit)) => Some(hint.min(limit)),
                (hint, limit) => hint.or(limit),
            }
        });
        Self { records: lengths.sum(), seconds: duration.map(|duration| duration.as_secs_f64()) }
    }

    /// Computes it on a separate thread: sources are opened for that, which may take long.
    pub(crate) fn later(
        program: &Program,
        records: Option<u64>,
        duration: Option<Duration>,
    ) -> Arc<OnceLock<Self>> {
        let expected = Arc::new(OnceLock::new());
        let (known, program) = (Arc::clone(&expected), program.clone());
        // Without the thread there is no expectation.
        let _ = std::thread::Builder::new()
            .name("expected".into())
            .spawn(move || known.set(Self::of(&program, records, duration)));
        expected
    }

    /// Seconds until the end.
    fn left(&self, progress: &Progress) -> Option<f64> {
        // The time for the last records is unknown once all are read.
        let going = |records: &u64| (1..*records).contains(&progress.emitted);
        let by_records = self.records.filter(going).map(|records| {
            let rest = records.saturating_sub(progress.emitted) as f64;
            rest * progress.seconds / progress.emitted as f64
        });
        let by_time = self.seconds.map(|seconds| (seconds - progress.seconds).max(0.0));
        match (by_records, by_time) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

impl ProgressLine {
    /// Shows nothing yet.
    pub(crate) fn new(terminal: Terminal, expected: Arc<OnceLock<Expected>>) -> Self {
        let bar = terminal.animates().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, terminal, expected, next_plain: PLAIN_EVERY, moved: (0, 0.0) }
    }

    /// Shows the newest state.
    pub(crate) fn show(&mut self, progress: &Progress) {
        if progress.emitted != self.moved.0 {
            self.moved = (progress.emitted, progress.seconds);
        }
        match &self.bar {
            Some(bar) => {
                bar.set_message(self.text(progress));
                bar.tick();
            }
            None if progress.seconds >= self.next_plain => {
                self.next_plain = progress.seconds + PLAIN_EVERY;
                self.terminal.note(&self.text(progress));
            }
            None => {}
        }
    }

    /// Removes the line.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn text(&self, progress: &Progress) -> String {
        let mut text = format!("{} records in", grouped(progress.emitted));
        let expected = self.expected.get().copied().unwrap_or_default();
        if let Some(records) = expected.records {
            text = format!("{} of {} records in", grouped(progress.emitted), grouped(records));
        }
        let per_second =
            if progress.seconds > 0.0 { progress.arrived as f64 / progress.seconds } else { 0.0 };
        text.push_str(&format!(", {} out, {}", grouped(progress.arrived), rate(per_second)));
        if progress.dead_letters > 0 {
            text.push_str(&format!(", {} dead letters", grouped(progress.dead_letters)));
        }
        text.push_str(&format!(", {}", seconds(progress.seconds)));
        // Without progress there is no estimate.
        let stands = progress.seconds - self.moved.1 > PLAIN_EVERY;
        if let Some(left) = expected.left(progress).filter(|_| !stands) {
            text.push_str(&format!(", about {} left", seconds(left)));
        }
        text
    }
}
