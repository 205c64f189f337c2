//! Waits that plans choose from, and the intervals of waits that a bound counts.
//!
//! A wait is any number of seconds, and a program has a column for each. So where a bound must hold for all of them,
//! the levels divide them into intervals: a bound counts the shortest wait of an interval in the time of a path, and
//! the longest in the capacity of a worker. The narrower the intervals, the closer the bound; `exact/narrow_waits.rs`
//! narrows those that matter.
use super::tuning::{LONGEST_WAIT, MOST_HALVED, SAME_WAIT};
use crate::problem::Problem;

/// Waits by worker class, each ascending.
#[derive(Debug, Clone)]
pub(super) struct WaitLevels {
    by_class: Vec<Vec<Option<f64>>>,
    /// Whether a level covers all waits between the previous one and itself.
    pub(super) is_every: bool,
    /// Waits in seconds that differ by less are equal.
    same: f64,
}

impl WaitLevels {
    /// The waits of a problem; with `is_every`, also the time of the longest path, and the longest wait for workers
    /// without a limit.
    pub(super) fn of(problem: &Problem, is_every: bool) -> Self {
        let limits = &problem.limits;
        let longest = limits.latency.iter().map(|limit| limits.path_seconds(limit)).fold(0.0, f64::max);
        let levels: Vec<Option<f64>> = match limits.latency.is_empty() {
            true => vec![None],
            false => {
                let mut waits = limits.waits();
                if is_every {
                    waits.extend([longest, LONGEST_WAIT].into_iter().filter(|wait| *wait > 0.0));
                    waits.sort_by(f64::total_cmp);
                    waits.dedup();
                }
                waits.into_iter().map(Some).collect()
            }
        };
        let is_every = is_every && !limits.latency.is_empty();
        Self {
            by_class: vec![levels; problem.worker_classes.len()],
            is_every,
            same: SAME_WAIT * longest.max(0.0),
        }
    }

    /// No waits, for plans.
    pub(super) fn none(problem: &Problem) -> Self {
        let levels = Self::of(problem, true);
        Self { by_class: vec![Vec::new(); problem.worker_classes.len()], is_every: false, ..levels }
    }

    /// Waits of a class, each with the shortest that it covers.
    pub(super) fn of_class(&self, class: usize) -> impl Iterator<Item = (Option<f64>, Option<f64>)> + '_ {
        let levels = &self.by_class[class];
        levels.iter().enumerate().map(|(index, &wait)| match self.is_every {
            true => (wait, index.checked_sub(1).map_or(Some(0.0), |before| levels[before])),
            false => (wait, wait),
        })
    }

    /// Splits an interval of a class; returns whether the level is new.
    pub(super) fn cut(&mut self, class: usize, wait: f64) -> bool {
        let levels = &mut self.by_class[class];
        let is_new = wait > self.same
            && levels.iter().flatten().all(|known| (known - wait).abs() > self.same)
            && wait.is_finite();
        if is_new {
            let place = levels.partition_point(|known| known.is_some_and(|known| known < wait));
            levels.insert(place, Some(wait));
        }
        is_new
    }

    /// Halves all intervals except the last, that of workers without a limit, while there are few; returns whether any
    /// level is new.
    pub(super) fn halve(&mut self) -> bool {
        let mut is_new = false;
        let few: Vec<usize> =
            (0..self.by_class.len()).filter(|class| self.by_class[*class].len() <= MOST_HALVED).collect();
        for class in few {
            let intervals: Vec<(f64, f64)> =
                self.of_class(class).filter_map(|(wait, shortest)| shortest.zip(wait)).collect();
            for (shortest, wait) in intervals.into_iter().filter(|(_, wait)| *wait < LONGEST_WAIT) {
                is_new |= self.cut(class, 0.5 * (shortest + wait));
            }
        }
        is_new
    }
}
