//! Event times of frames: the clock of this machine, or that of the camera.
//!
//! | `clock` | time of a frame |
//! |---|---|
//! | `arrival` | when its data arrived here |
//! | `camera` | when the camera took it, as it says in its sender reports (RTCP); until the first one, and where its clock is off by more than a minute, the arrival |
//!
//! The clock of this machine is read when the source starts, and then followed by one that is never set. It is read again
//! where it has gone ahead by more than a second: that is a jump. Times of a camera always increase: where its clock is
//! set back, its frames are a microsecond apart until it has caught up.
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidemill_operators::record::EventTime;

/// Difference between the clock of a camera and ours from which on it is not believed, microseconds.
const FARTHEST: i64 = 60_000_000;
/// Change of a clock that is a jump, microseconds.
const JUMP: i64 = 1_000_000;

/// Returns the present time on a clock that is never set.
#[allow(clippy::disallowed_methods, reason = "cameras follow no simulated time")]
pub fn monotonic() -> Instant {
    Instant::now()
}

/// Microseconds since 1970, as the clock of this machine has it.
#[allow(clippy::disallowed_methods, reason = "cameras follow no simulated time")]
fn system() -> EventTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// The clock of arrivals; it never goes back.
#[derive(Debug, Clone)]
pub struct Arrivals {
    start: Instant,
    /// Time at the start.
    base: EventTime,
    jumps: u64,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self { start: monotonic(), base: system(), jumps: 0 }
    }
}

impl Arrivals {
    /// Returns the present time, microseconds since 1970.
    pub fn now(&mut self) -> EventTime {
        let elapsed = self.start.elapsed();
        self.at(elapsed, system())
    }

    /// Jumps so far.
    pub fn jumps(&self) -> u64 {
        self.jumps
    }

    fn at(&mut self, elapsed: Duration, system: EventTime) -> EventTime {
        let elapsed = i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX);
        let followed = self.base.saturating_add(elapsed);
        if system.saturating_sub(followed) > JUMP {
            self.base = system.saturating_sub(elapsed);
            self.jumps += 1;
            return system;
        }
        followed
    }
}

/// Times of the frames of one camera by its own clock.
#[derive(Debug, Clone, Default)]
pub struct CameraClock {
    /// Media time of a report, seconds, and the camera's clock then, microseconds since 1970.
    report: Option<(f64, EventTime)>,
    jumps: u64,
}

impl CameraClock {
    /// Forgets the reports: a new connection counts media time from elsewhere.
    pub fn reset(&mut self) {
        self.report = None;
    }

    /// Notes a sender report: at this media time, seconds, the camera's clock was `ntp`, in units of 2^-32 s since 1900.
    pub fn report(&mut self, media: f64, ntp: u64) {
        const BETWEEN_1900_AND_1970: i64 = 2_208_988_800;
        let micros = ((ntp & 0xFFFF_FFFF) * 1_000_000) >> 32;
        let seconds = (ntp >> 32) as i64 - BETWEEN_1900_AND_1970;
        let time = seconds * 1_000_000 + micros as i64;
        if self.report.is_some_and(|report| (by(report, media) - time).abs() > JUMP) {
            self.jumps += 1;
        }
        self.report = Some((media, time));
    }

    /// Returns the time of a frame of this media time, seconds, that arrived at `arrival`.
    pub fn time(&self, media: f64, arrival: EventTime) -> EventTime {
        let time = self.report.map(|report| by(report, media));
        time.filter(|time| time.saturating_sub(arrival).saturating_abs() <= FARTHEST).unwrap_or(arrival)
    }

    /// Whether the camera tells times, and they are not believed.
    pub fn is_wrong(&self, media: f64, arrival: EventTime) -> bool {
        self.report
            .is_some_and(|report| by(report, media).saturating_sub(arrival).saturating_abs() > FARTHEST)
    }

    /// Jumps so far.
    pub fn jumps(&self) -> u64 {
        self.jumps
    }
}

fn by((media, time): (f64, EventTime), at: f64) -> EventTime {
    time.saturating_add(((at - media) * 1e6).round() as i64)
}

/// Makes times increase.
#[derive(Debug, Clone, Default)]
pub struct Increasing {
    last: Option<EventTime>,
}

impl Increasing {
    /// Returns the time, or the one after the last where it is not later.
    pub fn next(&mut self, time: EventTime) -> EventTime {
        let time = self.last.map_or(time, |last| time.max(last.saturating_add(1)));
        self.last = Some(time);
        time
    }
}

/// Limits the frames of a camera to a rate.
#[derive(Debug, Clone)]
pub struct Limit {
    /// Microseconds between frames.
    distance: i64,
    /// Earliest time of the next frame.
    next: Option<EventTime>,
}

impl Limit {
    /// Creates the limit of so many frames a second.
    pub fn per_second(rate: f64) -> Self {
        Self { distance: ((1e6 / rate) as i64).max(1), next: None }
    }

    /// Whether a frame of this time is taken; times increase.
    pub fn takes(&mut self, time: EventTime) -> bool {
        let next = self.next.unwrap_or(time);
        if time < next {
            return false;
        }
        // On average the rate is kept, and there is no burst after a silence.
        let is_late = time.saturating_sub(next) >= self.distance;
        self.next = Some(if is_late { time } else { next }.saturating_add(self.distance));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_clock_of_this_machine_goes_ahead_and_never_back() {
        let mut clock = Arrivals { start: monotonic(), base: 1_000_000, jumps: 0 };
        let second = Duration::from_secs(1);
        assert_eq!(clock.at(second, 2_000_500), 2_000_000, "it is followed, not read");
        assert_eq!(clock.at(2 * second, 500), 3_000_000, "it was set back");
        assert_eq!((clock.at(3 * second, 900_000_000), clock.jumps()), (900_000_000, 1));
        assert_eq!((clock.at(4 * second, 901_000_000), clock.jumps()), (901_000_000, 1));
        assert!(Arrivals::default().now() > 1_700_000_000_000_000);
    }

    #[test]
    fn the_clock_of_a_camera_is_that_of_its_reports() {
        let ntp = |seconds: u64| (seconds + 2_208_988_800) << 32 | 1 << 31;
        let mut clock = CameraClock::default();
        assert_eq!(clock.time(5.0, 77), 77, "it has told nothing");
        clock.report(10.0, ntp(1000));
        assert_eq!(clock.time(10.25, 1_001_000_000), 1_000_750_000);
        assert_eq!(clock.time(9.0, 1_001_000_000), 999_500_000);
        assert_eq!(clock.time(10.0, 2_000_000_000), 2_000_000_000, "it is not set");
        assert!(clock.is_wrong(10.0, 2_000_000_000) && !clock.is_wrong(10.0, 1_000_000_000));
        clock.report(11.0, ntp(1001));
        assert_eq!(clock.jumps(), 0);
        clock.report(12.0, ntp(1010));
        assert_eq!(clock.jumps(), 1);
        clock.reset();
        assert_eq!(clock.time(5.0, 77), 77);
    }

    #[test]
    fn a_limit_is_kept_on_average() {
        for (distance, rate, expected) in
            [(40_000, 10.0, 100), (40_000, 25.0, 250), (40_000, 100.0, 250), (33_333, 5.0, 50)]
        {
            let mut limit = Limit::per_second(rate);
            let taken = (0..10_000_000 / distance).filter(|frame| limit.takes(frame * distance)).count();
            assert!(taken.abs_diff(expected) <= 1, "{taken} {expected}");
            let later = 100_000_000;
            assert!(limit.takes(later));
            assert_eq!(limit.takes(later + 1), limit.distance <= 1, "a silence is not made up for");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn times_of_a_camera_increase(times in prop::collection::vec(-50i64..50, 1..50)) {
            let mut increasing = Increasing::default();
            let given: Vec<i64> = times.iter().map(|time| increasing.next(*time)).collect();
            prop_assert!(given.windows(2).all(|two| two[0] < two[1]));
            prop_assert_eq!(given[0], times[0]);
            prop_assert!(given.iter().zip(&times).all(|(given, time)| given >= time));
        }
    }
}
