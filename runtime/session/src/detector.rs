//! Judges a path by the hellos that come over it, on a clock that is given.
use std::time::Duration;
use tidemill_link::transport::Health;

/// Most intervals without a hello that a path may have after irregular ones.
const MOST: u32 = 10;
/// Number of hellos after which an irregularity counts half.
const FADES: i32 = 40;
/// Longest interval of hellos.
pub(crate) const LONGEST: Duration = Duration::from_secs(10);
/// Longest time that a path which comes and goes must be up before it is preferred again.
const LONGEST_TRIAL: Duration = Duration::from_secs(60);

/// How often the two sides of a path greet, and when it counts as silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hellos {
    /// Time between two hellos on a path that carries lanes. Default: 50 ms.
    pub every: Duration,
    /// Time between two hellos on one that carries none. Default: 1 s.
    pub idle: Duration,
    /// Missing hellos after which a path is silent. Default: 3.
    pub misses: u32,
    /// Time that a path must be up before lanes move back to it. Default: 1 s; doubles each time that it falls silent
    /// within a minute.
    pub trial: Duration,
}

impl Default for Hellos {
    fn default() -> Self {
        Self {
            every: Duration::from_millis(50),
            idle: Duration::from_secs(1),
            misses: 3,
            trial: Duration::from_secs(1),
        }
    }
}

/// Judges one path. All times are since the same moment.
#[derive(Debug)]
pub(crate) struct Detector {
    settings: Hellos,
    health: Health,
    /// When the newest hello came.
    heard: Duration,
    /// Since when hellos of this side are sent that the other one has not heard; none: it has heard all.
    unheard: Option<Duration>,
    /// Time until the next hello, as the other side said.
    expected: Duration,
    /// Time that a hello takes there and back; zero: not known.
    pub(crate) round_trip: Duration,
    /// The longest recent time between two hellos beyond what was expected.
    irregular: Duration,
    up_since: Duration,
    silent_since: Duration,
    /// It is silent because its connection broke: the other side did that, or is gone.
    is_broken: bool,
    /// Times that it fell silent recently.
    falls: u32,
    /// Times in all.
    pub(crate) silences: u64,
}

impl Detector {
    pub(crate) fn new(settings: Hellos) -> Self {
        let zero = Duration::ZERO;
        Self {
            settings,
            health: Health::Unknown,
            heard: zero,
            unheard: None,
            expected: settings.every,
            round_trip: zero,
            irregular: zero,
            up_since: zero,
            silent_since: zero,
            is_broken: false,
            falls: 0,
            silences: 0,
        }
    }

    pub(crate) fn health(&self) -> Health {
        self.health
    }

    pub(crate) fn silent_since(&self) -> Duration {
        self.silent_since
    }

    /// Time without a hello after which the path is silent: more than usual after hellos that were late.
    pub(crate) fn patience(&self) -> Duration {
        let usual = self.expected * self.settings.misses;
        usual.max(self.expected + self.irregular * 3 / 2).min(self.expected * MOST)
    }

    /// Notes that this side sends a hello.
    pub(crate) fn sends(&mut self, now: Duration) {
        self.unheard.get_or_insert(now);
    }

    /// Notes a hello. `interval`: time until the next one. `arrives`: the other side has heard this side since the hello
    /// before; only then the path works.
    pub(crate) fn heard(&mut self, now: Duration, interval: Duration, arrives: bool) {
        if self.health == Health::Up {
            let late = now.saturating_sub(self.heard).saturating_sub(self.expected);
            let faded = self.irregular.mul_f64(0.5_f64.powf(1.0 / f64::from(FADES)));
            self.irregular = faded.max(late);
        } else if arrives {
            if self.health == Health::Silent && now.saturating_sub(self.up_since) > LONGEST_TRIAL {
                self.falls = 0;
            }
            (self.health, self.up_since) = (Health::Up, now);
        }
        self.heard = now;
        self.expected = interval.clamp(Duration::from_millis(1), LONGEST);
        if arrives {
            self.unheard = None;
        }
    }

    /// Notes that the connection broke or was refused.
    pub(crate) fn broke(&mut self, now: Duration) {
        if self.health == Health::Up {
            self.fall(now);
            self.is_broken = true;
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Looks at the time. Returns whether the path has just fallen silent.
    pub(crate) fn look(&mut self, now: Duration) -> bool {
        let falls = self.next_look().is_some_and(|until| now > until);
        if falls {
            self.fall(now);
        }
        falls
    }

    /// The next time to look at it; none: nothing changes by itself.
    pub(crate) fn next_look(&self) -> Option<Duration> {
        let patience = self.patience();
        // A hello of this side is acknowledged by the next one of the other side, which has its way to go.
        let unheard = self.unheard.map(|since| since + patience + self.expected + self.round_trip * 3 / 2);
        let until = self.heard + patience;
        (self.health == Health::Up).then(|| unheard.map_or(until, |unheard| unheard.min(until)))
    }

    /// This side stood still for that time: hellos may have come meanwhile.
    pub(crate) fn excuse(&mut self, late: Duration) {
        self.heard += late;
        self.unheard = self.unheard.map(|since| since + late);
    }

    fn fall(&mut self, now: Duration) {
        self.falls = if now.saturating_sub(self.up_since) > LONGEST_TRIAL { 1 } else { self.falls + 1 };
        self.silences += 1;
        (self.health, self.silent_since, self.is_broken) = (Health::Silent, now, false);
    }

    /// Whether lanes may move to it from one that works: it has been up for long enough.
    pub(crate) fn is_steady(&self, now: Duration) -> bool {
        if self.health != Health::Up {
            return false;
        }
        let doublings = self.falls.saturating_sub(1).min(16);
        let trial = if self.silences == 0 { Duration::ZERO } else { self.settings.trial * (1 << doublings) };
        now.saturating_sub(self.up_since) >= trial.min(LONGEST_TRIAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_random::Random;

    const MS: Duration = Duration::from_millis(1);
    const EVERY: Duration = Duration::from_millis(50);

    fn up() -> Detector {
        let mut detector = Detector::new(Hellos::default());
        assert!(!detector.look(1000 * MS), "unknown is not silent");
        detector.heard(1000 * MS, EVERY, true);
        detector
    }

    #[test]
    fn three_missing_hellos_are_silence() {
        let mut detector = up();
        assert!(!detector.look(1150 * MS));
        assert!(detector.look(1151 * MS) && !detector.look(1152 * MS));
        assert_eq!((detector.health(), detector.silent_since()), (Health::Silent, 1151 * MS));
        detector.heard(1400 * MS, EVERY, true);
        assert_eq!(detector.health(), Health::Up);
    }

    /// The hellos of the other side come, and it hears none of this side's.
    #[test]
    fn one_direction_that_fails_is_silence() {
        let mut detector = up();
        let fell = (1..20).map(|n| 1000 * MS + n * EVERY).find(|now| {
            detector.sends(*now);
            detector.heard(*now, EVERY, false);
            detector.look(*now + MS)
        });
        assert_eq!(fell, Some(1250 * MS));
    }

    #[test]
    fn a_long_way_is_not_silence() {
        let mut detector = up();
        detector.round_trip = 600 * MS;
        detector.sends(1010 * MS);
        for n in 1..12 {
            detector.heard(1000 * MS + n * EVERY, EVERY, false);
            assert!(!detector.look(1001 * MS + n * EVERY), "{n}");
        }
    }

    /// Lanes move to a path that stood by: the last hello that the other side heard is older than the new patience.
    #[test]
    fn hellos_that_become_more_frequent_are_not_silence() {
        let mut detector = up();
        detector.heard(1050 * MS, Duration::from_secs(1), true);
        detector.sends(1900 * MS);
        detector.heard(1901 * MS, EVERY, false);
        assert!(!detector.look(1902 * MS));
        detector.heard(1951 * MS, EVERY, true);
        assert!(!detector.look(2050 * MS) && detector.look(2102 * MS));
    }

    #[test]
    fn a_path_with_idle_hellos_waits_longer() {
        let mut detector = up();
        detector.heard(1050 * MS, Duration::from_secs(1), true);
        assert!(!detector.look(4000 * MS) && detector.look(4051 * MS));
    }

    /// The other side says how often it greets, whatever this side would do.
    #[test]
    fn a_side_with_short_intervals_waits_for_one_with_long_ones() {
        let mut detector = Detector::new(Hellos { idle: EVERY, ..Hellos::default() });
        detector.heard(1000 * MS, Duration::from_secs(1), true);
        assert!(!detector.look(3900 * MS) && detector.look(4001 * MS));
    }

    #[test]
    fn late_hellos_make_it_patient_for_a_while() {
        let mut detector = up();
        assert_eq!(detector.patience(), 150 * MS);
        detector.heard(1190 * MS, EVERY, true);
        assert!(
            detector.patience() > 200 * MS && detector.patience() <= 500 * MS,
            "{:?}",
            detector.patience()
        );
        for n in 1..=200 {
            detector.heard(1190 * MS + n * EVERY, EVERY, true);
        }
        assert_eq!(detector.patience(), 150 * MS);
    }

    #[test]
    fn a_side_that_stood_still_does_not_blame_the_path() {
        let mut detector = up();
        detector.excuse(400 * MS);
        assert!(!detector.look(1500 * MS));
    }

    #[test]
    fn a_path_that_flaps_is_tried_for_longer_each_time() {
        let mut detector = up();
        assert!(detector.is_steady(1000 * MS), "the first time it is taken at once");
        let mut now = 1000 * MS;
        for trial in [1, 2, 4, 8, 16, 32, 60, 60] {
            now += 200 * MS;
            assert!(detector.look(now));
            detector.heard(now, EVERY, true);
            let trial = Duration::from_secs(trial);
            assert!(!detector.is_steady(now + trial - MS), "{trial:?}");
            assert!(detector.is_steady(now + trial));
        }
        // It works for a long time.
        for _ in 0..1300 {
            now += EVERY;
            detector.heard(now, EVERY, true);
        }
        assert!(detector.look(now + 151 * MS));
        detector.heard(now + 200 * MS, EVERY, true);
        assert!(detector.is_steady(now + 1200 * MS));
    }

    /// Hellos over TCP are late when a packet is lost, not missing: one in twenty comes with the next one.
    #[test]
    fn five_per_cent_of_lost_packets_are_rarely_silence() {
        let (mut random, mut detector, mut falls) = (Random::of_seed(39), up(), 0);
        let mut now = 1000 * MS;
        let mut late = Duration::ZERO;
        for _ in 0..10_000 {
            now += EVERY;
            let lost = random.unit() < 0.05;
            if detector.look(now) {
                falls += 1;
            }
            late = if lost { late + EVERY } else { Duration::ZERO };
            if !lost {
                detector.heard(now, EVERY, true);
            }
        }
        assert!(falls <= 3, "{falls} in 500 s");
    }
}
