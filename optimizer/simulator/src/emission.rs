//! Groups of sources and the due times of their next records.

use crate::arrivals::{Arrivals, Spacing};
use crate::frontier::{Epoch, EpochCounts};
use crate::network::{Nanoseconds, nanoseconds};
use std::collections::VecDeque;
use tidemill_random::{Random, mixed};
use tidemill_spec::emission::offset;

/// Most due but unemitted records to count one by one.
const MOST_COUNTED: u64 = 20_000_000;

/// Sources whose records meet, and their emissions.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) sources: Vec<Emitter>,
    /// Records in flight, by epoch.
    pub(crate) on_the_way: EpochCounts,
    /// The next record is due and has to wait.
    pub(crate) is_held_back: bool,
    /// Start of the present delay of records.
    pub(crate) late_since: Option<Nanoseconds>,
    schedule: Schedule,
}

/// One source.
#[derive(Debug, Clone)]
pub(crate) struct Emitter {
    /// Position in the problem.
    pub(crate) source: usize,
    rate: f64,
    /// Number of the next record, which is the number of those emitted.
    pub(crate) number: u64,
    /// Records that were due before the counted time.
    pub(crate) early: u64,
    /// Due time of the next record; none: there is no further one.
    pub(crate) due: Option<Nanoseconds>,
    /// Its key.
    pub(crate) key: u64,
}

/// Maps the number of a record to its due time.
#[derive(Debug)]
struct Schedule {
    /// Keys per second: the rate of the slowest source.
    rate: f64,
    /// Seconds at which the first key is due.
    phase: f64,
    /// Of a Poisson process: times of keys from `first` on, in seconds at the nominal rate.
    points: VecDeque<f64>,
    first: u64,
    random: Random,
}

impl Schedule {
    /// Nominal seconds and key of record `number` of a source.
    fn nominal(&mut self, number: u64, source_rate: f64, spacing: Spacing) -> (f64, u64) {
        // Several records of a faster source belong to one key.
        let keys = number as f64 * self.rate / source_rate;
        // The quotient of equal rates is exact; others may lie a rounding error below a whole number.
        let key = (keys + 1e-9).floor().max(0.0);
        match spacing {
            Spacing::Constant => (number as f64 / source_rate + self.phase, key as u64),
            Spacing::Poisson => {
                let part = (keys - key).max(0.0);
                let key = key as u64;
                while self.first + (self.points.len() as u64) < key + 2 {
                    let last = self.points.back().copied().unwrap_or(0.0);
                    let gap = -(1.0 - self.random.unit()).ln() / self.rate;
                    self.points.push_back(last + gap);
                }
                let at = (key - self.first) as usize;
                let (begin, end) = (self.points[at], self.points[at + 1]);
                (begin + part * (end - begin), key)
            }
        }
    }
}

impl Group {
    /// Creates a group of sources (position in the problem, rate); `number` distinguishes groups with one seed.
    pub(crate) fn new(sources: &[(usize, f64)], number: u64, seed: u64, aligned: bool) -> Self {
        let rate = sources.iter().map(|(_, rate)| *rate).fold(f64::INFINITY, f64::min);
        let mut random = Random::of_seed(mixed(seed).wrapping_add(mixed(number ^ 0x5EED)));
        let phase = if aligned { 0.0 } else { random.unit() / rate };
        let emitter = |(source, rate): &(usize, f64)| Emitter {
            source: *source,
            rate: *rate,
            number: 0,
            early: 0,
            due: None,
            key: 0,
        };
        Self {
            sources: sources.iter().map(emitter).collect(),
            on_the_way: EpochCounts::default(),
            is_held_back: false,
            late_since: None,
            schedule: Schedule { rate, phase, points: VecDeque::new(), first: 0, random },
        }
    }

    /// Due time and key of record `number` of a source (position in the group).
    fn due(&mut self, position: usize, number: u64, arrivals: &Arrivals) -> (Nanoseconds, u64) {
        let rate = self.sources[position].rate;
        let (nominal, key) = self.schedule.nominal(number, rate, arrivals.spacing);
        let due = match (&arrivals.trace, arrivals.spacing) {
            (None, Spacing::Constant) => {
                offset(number, rate).saturating_add(nanoseconds(self.schedule.phase))
            }
            (None, Spacing::Poisson) => nanoseconds(nominal),
            (Some(trace), _) => nanoseconds(trace.time_of(nominal)),
        };
        (due, key)
    }

    /// Due time of the last record with the event time of the next one, where `together` consecutive records share it;
    /// none: it is the last one itself.
    pub(crate) fn last_of_time(
        &mut self,
        position: usize,
        together: u32,
        arrivals: &Arrivals,
    ) -> Option<Nanoseconds> {
        let (next, together) = (self.sources[position].number, u64::from(together.max(1)));
        let last = next - next % together + (together - 1);
        (last > next).then(|| self.due(position, last, arrivals).0)
    }

    /// Computes the due time of the next record of a source (position in the group); none at or after `end`.
    pub(crate) fn plan_next(&mut self, position: usize, arrivals: &Arrivals, end: Nanoseconds) {
        let (due, key) = self.due(position, self.sources[position].number, arrivals);
        let emitter = &mut self.sources[position];
        emitter.due = (due < end).then_some(due);
        emitter.key = key;
        let least = self.sources.iter().map(|emitter| emitter.key).min().unwrap_or(0);
        while self.schedule.first < least && self.schedule.points.len() > 2 {
            self.schedule.points.pop_front();
            self.schedule.first += 1;
        }
    }

    /// Counts the records of a source that were due before `until` and not emitted, and notes those before `from`.
    /// Nothing can be emitted afterwards. Beyond some millions, which only extreme rates leave, the average is added.
    pub(crate) fn missed(
        &mut self,
        position: usize,
        arrivals: &Arrivals,
        (from, until): (Nanoseconds, Nanoseconds),
    ) -> u64 {
        let emitted = self.sources[position].number;
        let mut last = 0;
        loop {
            self.plan_next(position, arrivals, until);
            let emitter = &mut self.sources[position];
            let counted = emitter.number - emitted;
            let Some(due) = emitter.due else { return counted };
            if counted >= MOST_COUNTED {
                let rest = arrivals.nominal_seconds(last, until) * emitter.rate;
                emitter.early += (arrivals.nominal_seconds(last, from) * emitter.rate) as u64;
                return counted + rest as u64;
            }
            emitter.early += u64::from(due < from);
            emitter.number += 1;
            last = due;
        }
    }

    /// The source whose record is due first, with the time.
    pub(crate) fn next(&self) -> Option<(usize, Nanoseconds)> {
        let due = self.sources.iter().enumerate().filter_map(|(index, emitter)| Some((emitter.due?, index)));
        due.min().map(|(due, index)| (index, due))
    }

    /// Whether a record of an epoch has to wait because sources would be too far ahead of the records in flight.
    pub(crate) fn must_wait(&self, epoch: Epoch, lead: Epoch) -> bool {
        self.on_the_way.first().is_some_and(|oldest| epoch > oldest.saturating_add(lead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(spacing: Spacing, rates: &[f64], count: usize) -> Vec<(usize, f64, u64)> {
        let sources: Vec<(usize, f64)> = rates.iter().copied().enumerate().collect();
        let mut group = Group::new(&sources, 0, 1, true);
        let arrivals = Arrivals { spacing, trace: None };
        (0..rates.len()).for_each(|position| group.plan_next(position, &arrivals, Nanoseconds::MAX));
        let mut all = Vec::new();
        for _ in 0..count {
            let (position, due) = group.next().unwrap();
            all.push((position, due as f64 / 1e9, group.sources[position].key));
            group.sources[position].number += 1;
            group.plan_next(position, &arrivals, Nanoseconds::MAX);
        }
        all
    }

    #[test]
    fn even_records_of_two_rates_share_keys() {
        let all = times(Spacing::Constant, &[40.0, 20.0], 6);
        let expected = [(0, 0.0, 0), (1, 0.0, 0), (0, 0.025, 0), (0, 0.05, 1), (1, 0.05, 1), (0, 0.075, 1)];
        assert_eq!(all, expected);
    }

    /// 328 / 40 times 1e9 is below 8.2e9 in floating point: truncated, the record would fall into the previous tick.
    #[test]
    fn a_record_that_is_due_on_a_tick_belongs_to_it() {
        let all = times(Spacing::Constant, &[40.0], 400_000);
        assert!(all.iter().zip(0u64..).all(|((_, due, _), n)| (due * 1e9).round() as u64 == n * 25_000_000));
    }

    /// Beyond the counting limit the number follows from the rate.
    #[test]
    fn very_many_missed_records_are_not_counted_one_by_one() {
        let arrivals = Arrivals { spacing: Spacing::Poisson, trace: None };
        let mut group = Group::new(&[(0, 1e12)], 0, 1, true);
        let missed = group.missed(0, &arrivals, (1_000_000_000, 4_000_000_000)) as f64;
        assert!((missed / 4e12 - 1.0).abs() < 1e-3, "{missed}");
        let early = group.sources[0].early as f64;
        assert!((early / 1e12 - 1.0).abs() < 1e-3, "{early}");
    }

    #[test]
    fn a_poisson_process_has_its_rate_and_partners_come_together() {
        let all = times(Spacing::Poisson, &[50.0, 50.0], 40_000);
        let last = all.last().unwrap();
        // 20,000 keys: the standard error of their time is 0.7 %.
        assert!((last.1 - 400.0).abs() < 12.0, "{}", last.1);
        assert!(all.chunks(2).all(|pair| pair[0].1 == pair[1].1 && pair[0].2 == pair[1].2));
        let gaps: Vec<f64> = all.chunks(2).map(|pair| pair[0].1).collect();
        let gaps: Vec<f64> = gaps.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((variance / mean.powi(2) - 1.0).abs() < 0.05);
    }
}
