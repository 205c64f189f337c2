//! Progress of long work on stderr: a line that is redrawn on a terminal, else a line every few seconds.
use crate::terminal::Terminal;
use crate::visible::visible;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tidemill_app::listener::Listener;
use tidemill_engine::clock::{Clock, WallClock};

/// Seconds between plain lines.
const PLAIN_EVERY: f64 = 5.0;

/// Shows progress.
pub(crate) struct StatusLine {
    bar: Option<ProgressBar>,
    terminal: Terminal,
    clock: WallClock,
    next_plain: f64,
}

impl StatusLine {
    /// Shows nothing yet.
    pub(crate) fn new(terminal: Terminal) -> Self {
        let bar = terminal.animates().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, terminal, clock: WallClock::default(), next_plain: PLAIN_EVERY }
    }

    /// Shows the newest state; `text` gets the elapsed seconds.
    pub(crate) fn show(&mut self, text: impl Fn(f64) -> String) {
        let now = self.clock.now() as f64 / 1e9;
        match &self.bar {
            Some(bar) => {
                bar.set_message(visible(&text(now)).into_owned());
                bar.tick();
            }
            None if now >= self.next_plain => {
                self.next_plain = now + PLAIN_EVERY;
                self.terminal.note(&text(now));
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
}
