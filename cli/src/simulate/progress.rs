//! Progress of a simulation, in words.
use tidemill_app::figures::{grouped, seconds};
use tidemill_simulator::Progress;

/// Formats the progress, and, after some seconds, the remaining time.
pub(super) fn text(progress: &Progress, elapsed: f64) -> String {
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
        assert_eq!(text(&progress, 3.0), "simulated 30 min of 1 h, 1 234 567 events, about 3.0 s left");
        assert_eq!(text(&progress, 0.1), "simulated 30 min of 1 h, 1 234 567 events");
    }
}
