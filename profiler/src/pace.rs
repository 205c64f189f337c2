//! The processor's pace: the time of a fixed computation. Processors of virtual machines are shared, and clock rates
//! change. A call that is measured while everything takes 1.5 times as long belongs to another machine, even if its samples
//! agree with each other.
use crate::state::TaskState;
use crate::statistics::quantile;
use std::hint::black_box;
use tidemill_machine::thread_time;

/// Numbers in the computation, 1 MiB: some of them are not in the caches of one core.
const NUMBERS: usize = 1 << 18;
/// Passes, for about a millisecond.
const PASSES: usize = 8;
/// Runs of which the fastest counts: an accidental interruption is no change of pace.
const RUNS: usize = 5;

/// Tolerated slowdown of the processor against its best pace.
const DRIFT: f64 = 0.1;

/// Measures the processor time of the fixed computation, in nanoseconds.
pub(crate) fn pace() -> u64 {
    let mut numbers = vec![1.0_f32; NUMBERS];
    let mut once = || {
        let begun = thread_time();
        for _ in 0..PASSES {
            numbers.iter_mut().for_each(|number| *number = *number * 0.999 + 0.001);
            black_box(&mut numbers);
        }
        u64::try_from((thread_time() - begun).as_nanos()).unwrap_or(u64::MAX)
    };
    (0..RUNS).map(|_| once()).min().unwrap_or(0)
}

/// Slowdown of the processor against its best pace while a task was measured: 1.2 is 20 %. 1 if unknown.
pub(crate) fn slowness(state: &TaskState, best: u64) -> f64 {
    match best {
        0 => 1.0,
        best => (state.slowest_pace as f64 / best as f64).max(1.0),
    }
}

/// Whether a slowdown exceeds the normal variation of a processor.
pub(crate) fn is_another(slowness: f64) -> bool {
    slowness > 1.0 + DRIFT
}

/// Whether the samples of a task have another pace than the best one, or contradict themselves: waiting cannot make a model
/// faster, since other work has evicted its data from the caches.
pub(crate) fn has_drifted(state: &TaskState, best: u64) -> bool {
    is_another(slowness(state, best)) || is_quicker_after_a_pause(state)
}

fn is_quicker_after_a_pause(state: &TaskState) -> bool {
    let median = |samples: &[u64]| {
        let mut samples = samples.to_vec();
        samples.sort_unstable();
        quantile(&samples, 0.5)
    };
    let back_to_back = state.batches.get(&1).filter(|samples| !samples.is_empty());
    back_to_back.is_some_and(|samples| {
        !state.after_pause.is_empty() && median(&state.after_pause) * (1.0 + DRIFT) < median(samples)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slower_processor_is_noticed_and_a_steady_one_is_not() {
        let of = |slowest_pace| TaskState { slowest_pace, ..TaskState::default() };
        assert!(has_drifted(&of(1200), 1000) && !has_drifted(&of(1050), 1000));
        assert!(!has_drifted(&of(0), 1000), "measured by an earlier version");
        assert!((slowness(&of(1500), 1000) - 1.5).abs() < 1e-9);
    }

    #[test]
    fn a_call_that_is_quicker_after_a_pause_denies_the_others() {
        let of = |after_pause: u64| TaskState {
            batches: [(1, vec![16_400; 9])].into(),
            after_pause: vec![after_pause; 9],
            ..TaskState::default()
        };
        assert!(has_drifted(&of(14_000), 0));
        assert!(!has_drifted(&of(16_000), 0) && !has_drifted(&of(20_000), 0));
    }

    #[test]
    fn the_computation_takes_time() {
        assert!(pace() > 0);
    }
}
