//! How far a simulation is, on stderr: a line that is redrawn on a terminal, else a line every few seconds.
use crate::figures::{grouped, seconds};
use crate::terminal::Terminal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tidemill_engine::clock::{Clock, WallClock};
use tidemill_simulator::Progress;

/// Seconds between plain lines.
const PLAIN_EVERY: f64 = 5.0;

/// Shows how far a simulation is.
pub(super) struct Line {
    bar: Option<ProgressBar>,
    terminal: Terminal,
    clock: WallClock,
    next_plain: f64,
}

impl Line {
    /// Shows nothing yet.
    pub(super) fn new(terminal: Terminal) -> Self {
        let bar = terminal.animates().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, terminal, clock: WallClock::default(), next_plain: PLAIN_EVERY }
    }

    /// Shows the newest state.
    pub(super) fn show(&mut self, progress: &Progress) {
        let now = self.clock.now() as f64 / 1e9;
        match &self.bar {
            Some(bar) => {
                bar.set_message(text(progress, now));
                bar.tick();
            }
            None if now >= self.next_plain => {
                self.next_plain = now + PLAIN_EVERY;
                self.terminal.note(&text(progress, now));
            }
            None => {}
        }
    }

    /// Takes the line away.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn text(progress: &Progress, elapsed: f64) -> String {
    let mut text = format!(
        "simulated {} of {}, {} events",
        seconds(progress.seconds),
        seconds(progress.of),
        grouped(progress.events)
    );
    if progress.seconds > 0.0 && elapsed > 0.5 {
        let left = elapsed * (progress.of - progress.seconds) / progress.seconds;
        text.push_str(&format!(", about {} left", seconds(left)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_how_far_and_how_long_yet() {
        let progress = Progress { seconds: 1800.0, of: 3600.0, events: 1_234_567 };
        assert_eq!(
            text(&progress, 3.0),
            "simulated 30 min 0 s of 60 min 0 s, 1 234 567 events, about 3.0 s left"
        );
        assert_eq!(text(&progress, 0.1), "simulated 30 min 0 s of 60 min 0 s, 1 234 567 events");
    }
}
