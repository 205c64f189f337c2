//! Adds copies of a model: when it delays the others and processors are idle.
//!
//! Everything else runs on as many threads as it has parts. Only a model that computes all the time while processors are
//! idle deserves a second copy, which needs its memory once more and does not reduce the latency of a light load. So the
//! load is observed during the run, and a copy is added when in [`WINDOWS`] consecutive windows
//!
//! - the model computed for at least [`HELD_UP`] of the time, in all its copies;
//! - this process left at least [`IDLE`] of a processor unused;
//! - its threads got the processors while they computed, which fails if other programs take them.
//!
//! The last two do not apply to a model on another device: there only the computing time reported by its executor counts.
//!
//! A copy stays to the end. Results leave in the order of the records, for any number of copies.
use crate::clock::Nanoseconds;

/// Length of a window, nanoseconds of engine time.
pub(crate) const WINDOW: Nanoseconds = 100_000_000;
/// Windows with one finding before a copy is added.
const WINDOWS: u32 = 2;
/// Windows ignored after that: the copy is loaded, and then catches up.
const PAUSE: u32 = 3;
/// Share of its time that a bottleneck model computes.
const HELD_UP: f64 = 0.9;
/// Unused processors from which a copy helps.
const IDLE: f64 = 0.25;
/// Share of the time in which models compute that the process has the processor.
const GOT: f64 = 0.9;

/// The load of one model so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Load {
    /// Total computing time of all its copies, nanoseconds.
    pub(crate) busy: Nanoseconds,
    pub(crate) copies: usize,
    /// Whether it computes on the processors of this machine.
    pub(crate) on_processors: bool,
}

/// Observation at one time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Look {
    /// Engine time.
    pub(crate) now: Nanoseconds,
    /// Processor time of the process, nanoseconds.
    pub(crate) processor: Nanoseconds,
    pub(crate) models: Vec<Load>,
}

/// Compares looks; see the module.
#[derive(Debug)]
pub(crate) struct Scaling {
    processors: f64,
    /// Copies of one model, at most.
    most: usize,
    last: Option<Look>,
    /// The model that was the bottleneck, and in how many windows.
    found: Option<(usize, u32)>,
    pause: u32,
}

impl Scaling {
    pub(crate) fn new(processors: usize, most: usize) -> Self {
        Self { processors: processors as f64, most, last: None, found: None, pause: 0 }
    }

    /// Returns the model that should get a further copy now.
    pub(crate) fn advance(&mut self, look: Look) -> Option<usize> {
        let Some(last) = &self.last else {
            self.last = Some(look);
            return None;
        };
        let window = look.now - last.now;
        if window < WINDOW {
            return None;
        }
        let held_up = self.holds_up(last, &look, window as f64);
        self.last = Some(look);
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        self.found = held_up.map(|model| match self.found {
            Some((same, windows)) if same == model => (model, windows + 1),
            _ => (model, 1),
        });
        match self.found {
            Some((model, WINDOWS..)) => {
                (self.found, self.pause) = (None, PAUSE);
                Some(model)
            }
            _ => None,
        }
    }

    fn holds_up(&self, last: &Look, look: &Look, window: f64) -> Option<usize> {
        let used = (look.processor - last.processor) as f64;
        // A restarted executor starts at 0.
        let busy = |(now, before): (&Load, &Load)| (now.busy - before.busy).max(0) as f64;
        let pairs = || look.models.iter().zip(&last.models);
        let computed: f64 = pairs().filter(|(now, _)| now.on_processors).map(busy).sum();
        let processors_are_short = used > (self.processors - IDLE) * window || used < GOT * computed;
        let shares = pairs().map(|pair| busy(pair) / pair.0.copies as f64 / window);
        let can_grow = |(model, share): &(usize, f64)| {
            let Load { copies, on_processors, .. } = look.models[*model];
            *share >= HELD_UP && copies < self.most && !(on_processors && processors_are_short)
        };
        let held_up = shares.enumerate().filter(can_grow).max_by(|a, b| a.1.total_cmp(&b.1));
        held_up.map(|(model, _)| model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Observations a window apart: shares of the time that each model computed, with its copies, and processors in use.
    fn run(scaling: &mut Scaling, windows: &[(f64, &[(f64, usize)])]) -> Vec<Option<usize>> {
        run_on(true, scaling, windows)
    }

    fn run_on(
        on_processors: bool,
        scaling: &mut Scaling,
        windows: &[(f64, &[(f64, usize)])],
    ) -> Vec<Option<usize>> {
        let models = vec![Load { busy: 0, copies: 1, on_processors }; windows[0].1.len()];
        let mut look = Look { now: 0, processor: 0, models };
        scaling.advance(look.clone());
        let step = |(used, models): &(f64, &[(f64, usize)])| {
            look.now += WINDOW;
            look.processor += (used * WINDOW as f64) as Nanoseconds;
            for (load, (share, copies)) in look.models.iter_mut().zip(*models) {
                load.busy += (share * WINDOW as f64) as Nanoseconds;
                load.copies = *copies;
            }
            scaling.advance(look.clone())
        };
        windows.iter().map(step).collect()
    }

    #[test]
    fn the_model_that_computes_all_the_time_gets_a_copy() {
        let mut scaling = Scaling::new(2, 2);
        let models: &[(f64, usize)] = &[(0.4, 1), (1.0, 1)];
        assert_eq!(run(&mut scaling, &[(1.6, models); 2]), [None, Some(1)]);
    }

    #[test]
    fn processors_do_not_count_for_a_model_on_another_device() {
        let held: &[(f64, usize)] = &[(1.0, 1)];
        for used in [0.1, 2.0] {
            assert_eq!(run_on(false, &mut Scaling::new(2, 2), &[(used, held); 2]), [None, Some(0)], "{used}");
            assert_eq!(run_on(true, &mut Scaling::new(2, 2), &[(used, held); 2]), [None, None], "{used}");
        }
    }

    #[test]
    fn nothing_is_added_without_need_or_room() {
        let one = |used: f64, models: &[(f64, usize)]| {
            run(&mut Scaling::new(2, 2), &[(used, models); 6]).into_iter().flatten().count()
        };
        assert_eq!(one(1.9, &[(0.9, 1), (1.0, 1)]), 0, "no processor is idle");
        assert_eq!(one(0.5, &[(0.2, 1), (0.3, 1)]), 0, "the sources are slow");
        assert_eq!(one(0.7, &[(0.2, 1), (1.0, 1)]), 0, "other programs have the processors");
        assert_eq!(one(1.5, &[(0.2, 1), (2.0, 2)]), 0, "there are as many copies as may be");
        assert_eq!(one(1.5, &[(0.2, 1), (1.0, 2)]), 0, "its copies have time");
    }

    #[test]
    fn one_window_is_not_enough_and_a_copy_gets_time_to_help() {
        let mut scaling = Scaling::new(8, 8);
        let held: &[(f64, usize)] = &[(1.0, 1)];
        let not: &[(f64, usize)] = &[(0.5, 1)];
        let windows = [(1.2, held), (0.7, not), (1.2, held), (1.2, held), (1.2, held), (1.2, held)];
        assert_eq!(run(&mut scaling, &windows), [None, None, None, Some(0), None, None]);
        let held: &[(f64, usize)] = &[(2.0, 2)];
        assert_eq!(run(&mut Scaling::new(8, 8), &[(2.2, held); 2]), [None, Some(0)], "a third one");
    }

    #[test]
    fn short_windows_are_left_out() {
        let mut scaling = Scaling::new(2, 2);
        let look = |now: Nanoseconds| Look {
            now,
            processor: now,
            models: vec![Load { busy: now, copies: 1, on_processors: true }],
        };
        for now in 0..100 {
            assert_eq!(scaling.advance(look(now * WINDOW / 100)), None);
        }
    }
}
