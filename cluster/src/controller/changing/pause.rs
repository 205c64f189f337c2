//! Measures the loss of a run by a change of plan from outside: over two runs of the engine, by the clock of the controller.
use crate::clock::instant;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidemill_engine::Timing;

/// A sink that got nothing for this time before the plan ended is slow anyway: its gap does not measure the change.
const QUIET: Duration = Duration::from_secs(2);
/// Time that a sink without a record is waited for after another one got one. Its pause then counts as at least the time until now.
const PATIENCE: Duration = Duration::from_secs(4);

/// The plan before has been ended, with its last checkpoint.
pub(in crate::controller) struct Suspended {
    /// When that was known.
    at: Instant,
    timing: Timing,
    took: Duration,
}

/// Loss of the run by the change, in milliseconds.
pub(super) struct Pause {
    /// From the last record under the plan before to the first one under the plan that follows, by sink.
    pub(super) of_sinks: BTreeMap<String, f64>,
    pub(super) of_sources: f64,
    pub(super) prepared: f64,
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Positive where `later` is later.
fn between(earlier: Instant, later: Instant) -> f64 {
    match later.checked_duration_since(earlier) {
        Some(time) => milliseconds(time),
        None => -milliseconds(earlier.duration_since(later)),
    }
}

impl Suspended {
    /// Now, by the figures of the plan that was ended; `took`: from the request until the new processes stood ready.
    pub(super) fn of(timing: Timing, took: Duration) -> Self {
        Self { at: instant(), timing, took }
    }

    /// Returns the cost of the change, once it is known. `is_over`: no more records will come.
    pub(super) fn pause(&self, timing: &Timing, is_over: bool) -> Option<Pause> {
        let now = instant();
        let newest = timing.arrivals.values().map(|(first, _)| *first).max();
        let is_waited_for = !is_over && newest.is_none_or(|since| since < PATIENCE);
        let awaited = self.timing.arrivals.iter().filter(|(_, (_, last))| *last < QUIET);
        let is_missing = awaited.clone().any(|(sink, _)| !timing.arrivals.contains_key(sink));
        if is_waited_for && (is_missing || timing.arrivals.is_empty()) {
            return None;
        }
        let pauses = awaited.filter_map(|(sink, (_, last))| {
            let until = match timing.arrivals.get(sink) {
                Some((first, _)) => now.checked_sub(*first)?,
                // Of a run that is over nothing is missing.
                None if is_over => return None,
                None => now,
            };
            Some((sink.clone(), between(self.at.checked_sub(*last)?, until)))
        });
        let begun =
            (self.at.checked_sub(self.timing.since_beginning), now.checked_sub(timing.since_beginning));
        let of_sources = match begun {
            (Some(before), Some(after)) => between(before, after),
            _ => 0.0,
        };
        Some(Pause { of_sinks: pauses.collect(), of_sources, prepared: milliseconds(self.took) })
    }
}

impl Pause {
    /// The longest at any sink, milliseconds; none: no sink had records shortly before the change and after it.
    pub(super) fn at_sinks(&self) -> Option<f64> {
        self.of_sinks.values().copied().reduce(f64::max)
    }
}

/// For people.
pub(super) fn in_words(pause: Option<&Pause>) -> String {
    let Some(pause) = pause else { return "; the length of its pause is not known".to_owned() };
    let at_sinks = match pause.at_sinks() {
        Some(longest) => format!("; sinks paused for {longest:.0} ms at most"),
        None => "; no sink had records shortly before it and after it".to_owned(),
    };
    let Pause { of_sources, prepared, .. } = pause;
    // A source that waits for its next record may continue with it at once.
    let than = if *of_sources < 0.0 { "earlier" } else { "later" };
    let of_sources = of_sources.abs();
    format!("{at_sinks}, sources are {of_sources:.0} ms {than}, after {:.1} s of preparation", prepared / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(all: &[(&str, u64, u64)]) -> BTreeMap<String, (Duration, Duration)> {
        let milliseconds = Duration::from_millis;
        let all = all.iter();
        all.map(|(sink, first, last)| ((*sink).to_owned(), (milliseconds(*first), milliseconds(*last))))
            .collect()
    }

    fn after(all: &[(&str, u64, u64)]) -> Timing {
        Timing { since_beginning: Duration::from_secs(25), arrivals: arrivals(all) }
    }

    /// Ended 15 s ago, with two busy sinks and one that gets few records.
    fn suspended() -> Suspended {
        let before = arrivals(&[("a", 9_000, 100), ("b", 9_000, 900), ("rare", 9_000, 4_000)]);
        let timing = Timing { since_beginning: Duration::from_secs(5), arrivals: before };
        let Some(at) = instant().checked_sub(Duration::from_secs(15)) else {
            panic!("the machine was started just now")
        };
        Suspended { at, timing, took: Duration::from_secs(2) }
    }

    fn rounded(pause: &Pause) -> Vec<(&str, i64)> {
        pause.of_sinks.iter().map(|(sink, pause)| (sink.as_str(), pause.round() as i64)).collect()
    }

    #[test]
    fn the_pause_is_that_of_the_sink_with_the_longest_gap() {
        let suspended = suspended();
        assert!(suspended.pause(&after(&[]), false).is_none());
        assert!(suspended.pause(&after(&[("a", 1_000, 0)]), false).is_none(), "b may come");
        let Some(pause) = suspended.pause(&after(&[("a", 14_800, 0), ("b", 14_000, 0)]), false) else {
            panic!("all have come but the one that gets few")
        };
        let found: Vec<i64> = rounded(&pause).iter().map(|(_, pause)| (pause + 5) / 10 * 10).collect();
        assert_eq!((found, pause.of_sinks.len()), (vec![300, 1_900], 2));
        assert_eq!(pause.at_sinks().map(|longest| (longest / 10.0).round()), Some(190.0));
        assert_eq!(((pause.of_sources / 1e3).round(), pause.prepared), (-5.0, 2000.0));
        let words = in_words(Some(&pause));
        assert!(words.contains("sinks paused for 19") && words.contains(" at most"), "{words}");
    }

    #[test]
    fn a_sink_that_does_not_come_back_has_paused_all_the_while() {
        let suspended = suspended();
        let Some(pause) = suspended.pause(&after(&[("a", 14_000, 0)]), false) else {
            panic!("b got nothing for long enough")
        };
        assert!(pause.of_sinks["b"] >= 15_900.0, "{:?}", pause.of_sinks);
        let Some(pause) = suspended.pause(&after(&[]), true) else { panic!("nothing more comes") };
        assert_eq!(pause.at_sinks(), None);
    }
}
