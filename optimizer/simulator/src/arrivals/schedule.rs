//! Switches between levels of a load, and their effect on the load.
use super::Trace;

/// A load above a level by at most this share still fits: rounding errors.
const TOLERANCE: f64 = 1e-9;

/// Rules for following a change of the load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Switching {
    /// Least seconds between two switches, and the time that the load must have fitted into a lower level before a
    /// switch down.
    pub dwell: f64,
    /// Seconds from a change of the load until another level can serve it: detection, starting workers, loading models.
    pub reaction: f64,
}

/// A period at one level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spell {
    /// Start in seconds.
    pub begin: f64,
    /// End in seconds.
    pub end: f64,
    /// Position of the level.
    pub level: usize,
}

/// Usage of a level by a load.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LevelUse {
    /// Seconds in which the load needs this level.
    pub needed: f64,
    /// Seconds at this level.
    pub seconds: f64,
    /// Load meanwhile within the level, in seconds of the nominal rate.
    pub served: f64,
    /// Seconds at this level with a higher load.
    pub over_seconds: f64,
    /// Load in excess of it, in seconds of the nominal rate.
    pub over: f64,
}

/// The level in service over time, over one round of the trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// From the start of the trace to its end, one after the other.
    pub spells: Vec<Spell>,
    /// By level.
    pub levels: Vec<LevelUse>,
    /// Switches in one round.
    pub switches: usize,
    /// Length of the trace in seconds.
    pub seconds: f64,
}

impl Schedule {
    /// Follows a trace. `tops` are the largest factors of the levels, ascending; the last level also serves higher
    /// loads.
    ///
    /// Switches up as soon as the load needs it, and down once the load has fitted into the lower level for the dwell
    /// time; never before the dwell time after the last switch. The result is for a round after others, because a trace
    /// repeats.
    pub fn new(trace: &Trace, tops: &[f64], switching: Switching) -> Self {
        let length = trace.seconds();
        let Switching { dwell, reaction } = switching;
        let rounds = 2.0 + ((dwell + reaction) / length).ceil();
        let end = (rounds + 1.0) * length;
        let level_of = |factor: f64| {
            let fits = tops.iter().position(|top| factor <= top * (1.0 + TOLERANCE));
            fits.unwrap_or(tops.len().saturating_sub(1))
        };
        // Changes of the needed level, with the time of detection.
        let mut changes: Vec<(f64, usize)> = Vec::new();
        let first_round = -(reaction / length).ceil() - 1.0;
        for round in 0..(rounds - first_round) as usize + 1 {
            let offset = (first_round + round as f64) * length + reaction;
            for (begin, _, factor) in trace.parts() {
                let (at, level) = (offset + begin, level_of(factor));
                match changes.last_mut() {
                    // Only the last one before the start counts.
                    Some(last) if at <= 0.0 => *last = (0.0, level),
                    Some((_, before)) if *before == level => {}
                    _ => changes.push((at.max(0.0), level)),
                }
            }
        }
        changes.retain(|(at, _)| *at < end);
        let switches = followed(&changes, end, dwell, tops.len());
        let window = (rounds * length, end);
        Self::told(trace, tops, &switches, window, level_of)
    }

    /// The effect of the switches on the trace within a window of one round.
    fn told(
        trace: &Trace,
        tops: &[f64],
        switches: &[(f64, usize)],
        (from, to): (f64, f64),
        level_of: impl Fn(f64) -> usize,
    ) -> Self {
        let mut spells: Vec<Spell> = Vec::new();
        for (index, (at, level)) in switches.iter().enumerate() {
            let end = switches.get(index + 1).map_or(to, |(next, _)| *next).min(to);
            let begin = at.max(from);
            if end > begin {
                spells.push(Spell { begin: begin - from, end: end - from, level: *level });
            }
        }
        let counted = switches.iter().skip(1).filter(|(at, _)| (from..to).contains(at)).count();
        let mut levels = vec![LevelUse::default(); tops.len()];
        let mut spell = 0;
        for (begin, end, factor) in trace.parts() {
            levels[level_of(factor)].needed += end - begin;
            while spell < spells.len() && spells[spell].end <= begin {
                spell += 1;
            }
            for spell in spells[spell..].iter().take_while(|spell| spell.begin < end) {
                let seconds = end.min(spell.end) - begin.max(spell.begin);
                let (level, top) = (&mut levels[spell.level], tops[spell.level]);
                level.seconds += seconds;
                if factor > top * (1.0 + TOLERANCE) {
                    level.over_seconds += seconds;
                    level.over += (factor - top) * seconds;
                    level.served += top * seconds;
                } else {
                    level.served += factor * seconds;
                }
            }
        }
        Self { spells, levels, switches: counted, seconds: trace.seconds() }
    }

    /// Returns the switches per day.
    pub fn switches_per_day(&self) -> f64 {
        self.switches as f64 * 86_400.0 / self.seconds
    }

    /// Returns the share of the time in which the load exceeds its level.
    pub fn over_time(&self) -> f64 {
        self.levels.iter().map(|level| level.over_seconds).sum::<f64>() / self.seconds
    }

    /// Returns the share of the load in excess of its level.
    pub fn over_load(&self) -> f64 {
        let over: f64 = self.levels.iter().map(|level| level.over).sum();
        let served: f64 = self.levels.iter().map(|level| level.served).sum();
        if over + served > 0.0 { over / (over + served) } else { 0.0 }
    }
}

/// Times and levels of all switches; the first is the initial level.
fn followed(changes: &[(f64, usize)], end: f64, dwell: f64, count: usize) -> Vec<(f64, usize)> {
    let Some((_, mut level)) = changes.first().copied() else { return vec![(0.0, 0)] };
    let mut switches = vec![(0.0, level)];
    let mut free_from = 0.0_f64;
    // Time at which the load last stopped exceeding each level.
    let mut exceeded_until = vec![f64::NEG_INFINITY; count];
    for (index, (from, needed)) in changes.iter().enumerate() {
        let until = changes.get(index + 1).map_or(end, |(next, _)| *next);
        let mut now = *from;
        while level != *needed {
            let (at, next) = if *needed > level {
                (free_from.max(now), *needed)
            } else {
                let at = free_from.max(now).max(exceeded_until[level - 1] + dwell);
                let fits = |lower: &usize| exceeded_until[*lower] + dwell <= at;
                (at, (*needed..level).find(fits).unwrap_or(level - 1))
            };
            if at >= until {
                break;
            }
            (now, level, free_from) = (at, next, at + dwell);
            switches.push((at, level));
        }
        exceeded_until[..*needed].fill(until);
    }
    switches
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of 60 s.
    fn trace(factors: &[f64]) -> Trace {
        let parts = factors.iter().enumerate().map(|(index, factor)| (60.0 * index as f64, *factor));
        Trace::new(parts.collect()).unwrap()
    }

    fn spells(schedule: &Schedule) -> Vec<(f64, f64, usize)> {
        schedule.spells.iter().map(|spell| (spell.begin, spell.end, spell.level)).collect()
    }

    const TOPS: [f64; 3] = [1.0, 2.0, 4.0];

    #[test]
    fn without_dwell_and_reaction_the_load_is_followed() {
        let trace = trace(&[1.0, 3.0, 1.5, 0.0]);
        let schedule = Schedule::new(&trace, &TOPS, Switching { dwell: 0.0, reaction: 0.0 });
        assert_eq!(
            spells(&schedule),
            [(0.0, 60.0, 0), (60.0, 120.0, 2), (120.0, 180.0, 1), (180.0, 240.0, 0)]
        );
        assert_eq!((schedule.switches, schedule.over_time(), schedule.over_load()), (3, 0.0, 0.0));
        assert_eq!(schedule.levels[0].needed, 120.0);
        assert_eq!(schedule.levels[2].served, 180.0);
        assert_eq!(schedule.switches_per_day(), 3.0 * 360.0);
    }

    #[test]
    fn a_lower_level_is_taken_when_the_load_has_fitted_for_the_dwell_time() {
        let trace = trace(&[3.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        let schedule = Schedule::new(&trace, &TOPS, Switching { dwell: 150.0, reaction: 0.0 });
        // From 60 s on it fits level 1; the minute at 2.0 keeps it from level 0 until 240 s + 150 s.
        assert_eq!(spells(&schedule), [(0.0, 210.0, 2), (210.0, 390.0, 1), (390.0, 600.0, 0)]);
        assert_eq!((schedule.switches, schedule.over_time()), (3, 0.0));
    }

    #[test]
    fn a_rise_soon_after_a_switch_is_missed_for_the_dwell_time() {
        let trace = trace(&[1.0, 1.0, 1.0, 1.0, 1.5, 4.0, 4.0, 1.0, 1.0, 1.0]);
        let schedule = Schedule::new(&trace, &TOPS, Switching { dwell: 100.0, reaction: 0.0 });
        // Switches to level 1 at 240 s, so level 2 has to wait from 300 s to 340 s.
        assert_eq!(
            spells(&schedule),
            [(0.0, 240.0, 0), (240.0, 340.0, 1), (340.0, 520.0, 2), (520.0, 600.0, 0)]
        );
        let missed = schedule.levels[1];
        assert_eq!((missed.over_seconds, missed.over), (40.0, 80.0));
        assert!((schedule.over_time() - 40.0 / 600.0).abs() < 1e-12);
        assert!((schedule.over_load() - 80.0 / 990.0).abs() < 1e-12);
    }

    #[test]
    fn the_reaction_comes_on_top() {
        let trace = trace(&[1.0, 1.0, 4.0, 1.0]);
        let schedule = Schedule::new(&trace, &TOPS, Switching { dwell: 0.0, reaction: 20.0 });
        assert_eq!(spells(&schedule), [(0.0, 140.0, 0), (140.0, 200.0, 2), (200.0, 240.0, 0)]);
        assert_eq!((schedule.levels[0].over_seconds, schedule.levels[0].over), (20.0, 60.0));
        assert_eq!(schedule.levels[2].served, 40.0 * 4.0 + 20.0);
    }

    #[test]
    fn a_dwell_time_longer_than_the_trace_ends_at_the_highest_level() {
        let trace = trace(&[1.0, 4.0]);
        let schedule = Schedule::new(&trace, &TOPS, Switching { dwell: 1000.0, reaction: 0.0 });
        assert_eq!(spells(&schedule), [(0.0, 120.0, 2)]);
        assert_eq!((schedule.switches, schedule.over_time()), (0, 0.0));
    }

    #[test]
    fn what_no_level_serves_is_over_the_highest() {
        let trace = trace(&[1.0, 9.0]);
        let schedule = Schedule::new(&trace, &TOPS, Switching { dwell: 0.0, reaction: 0.0 });
        assert_eq!(schedule.levels[2].over, 5.0 * 60.0);
        let one = Schedule::new(&trace, &[10.0], Switching { dwell: 0.0, reaction: 0.0 });
        assert_eq!((spells(&one), one.switches), (vec![(0.0, 120.0, 0)], 0));
    }

    #[test]
    fn all_time_and_load_is_accounted_for() {
        for seed in 0..50u32 {
            let factors: Vec<f64> =
                (0..40u32).map(|at| f64::from((seed * 31 + at * at * 17) % 47) / 10.0).collect();
            let trace = trace(&factors);
            let switching =
                Switching { dwell: f64::from(seed * 13 % 400), reaction: f64::from(seed * 7 % 200) };
            let schedule = Schedule::new(&trace, &TOPS, switching);
            let sum = |of: fn(&LevelUse) -> f64| schedule.levels.iter().map(of).sum::<f64>();
            assert!((sum(|level| level.seconds) - 2400.0).abs() < 1e-6, "{seed}");
            assert!((sum(|level| level.needed) - 2400.0).abs() < 1e-6, "{seed}");
            let load = trace.mean_factor() * 2400.0;
            assert!((sum(|level| level.served + level.over) - load).abs() < 1e-6, "{seed}");
            let between = schedule.spells.windows(2).skip(1);
            assert!(
                between.into_iter().all(|two| two[0].end - two[0].begin >= switching.dwell - 1e-6),
                "{seed}"
            );
            assert!(
                schedule
                    .spells
                    .windows(2)
                    .all(|two| two[0].end == two[1].begin && two[0].level != two[1].level)
            );
        }
    }
}
