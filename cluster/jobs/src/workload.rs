//! Random traces with the shares that Tiresias published of its testbed's workload (Gu, 2021, section 3.5.1), whose trace is not public.
use crate::models::SKEWS;
use crate::simulator::TracedJob;
use crate::trace::{Costs, Trace};
use crate::{Job, Resources, Time};
use tidemill_random::Random;

/// Number of jobs of the published workload.
pub const PUBLISHED_JOBS: usize = 480;
/// Jobs of 480 by their width.
const WIDTHS: &[(u32, usize)] = &[(1, 240), (2, 40), (4, 80), (8, 90), (16, 25), (32, 5)];
/// Widest small job.
const SMALL: u32 = 4;
/// Shortest, limit between short and long, and longest duration in seconds.
const DURATIONS: [f64; 3] = [120.0, 800.0, 7200.0];
/// Percentages of jobs: small and short, small and long, large and short, large and long.
const BINS: [f64; 4] = [63.5, 12.5, 16.5, 7.5];
/// Mean seconds between submissions.
const GAP: f64 = 30.0;

/// Generates a trace with the published shares: widths, durations by bin, ten models in equal parts, submissions at random with a mean
/// gap of 30 s. The shares are exact, up to rounding, for each width; the seed decides the order and the times.
///
/// The paper gives no distribution within a bin. The density here falls with the power 1.5 of the duration: the mean of a bin is then the
/// geometric mean of its bounds, and the whole work of 480 jobs is about 1.65 million slot-seconds, what 60 GPUs can do in the published
/// makespan of 27,400 s.
///
/// ```
/// use tidemill_jobs::workload::{PUBLISHED_JOBS, published};
/// let trace = published(PUBLISHED_JOBS, 1);
/// assert_eq!(trace.jobs.iter().filter(|job| job.job.tasks == 8).count(), 90);
/// assert_eq!(trace, published(PUBLISHED_JOBS, 1));
/// assert_ne!(trace, published(PUBLISHED_JOBS, 2));
/// ```
pub fn published(jobs: usize, seed: u64) -> Trace {
    let mut random = Random::of_seed(seed);
    let widths = shared(jobs, &WIDTHS.iter().map(|(_, count)| *count as f64).collect::<Vec<_>>());
    let mut kinds: Vec<(u32, f64)> = Vec::with_capacity(jobs);
    for ((width, _), count) in WIDTHS.iter().zip(&widths) {
        let bins = if *width <= SMALL { &BINS[..2] } else { &BINS[2..] };
        for (count, bounds) in shared(*count, bins).into_iter().zip(DURATIONS.windows(2)) {
            // One duration from each of as many equal parts of the distribution: the work hardly depends on the seed.
            let part = |index: usize, random: &mut Random| (index as f64 + random.unit()) / count as f64;
            kinds.extend(
                (0..count).map(|index| (*width, falling(bounds[0], bounds[1], part(index, &mut random)))),
            );
        }
    }
    shuffle(&mut kinds, &mut random);
    let mut models: Vec<usize> = (0..jobs).map(|index| index % SKEWS.len()).collect();
    shuffle(&mut models, &mut random);
    let Costs { checkpoint, resume } = Costs::default();
    let mut submitted = 0.0;
    let traced = kinds.into_iter().zip(models).enumerate().map(|(index, ((tasks, seconds), model))| {
        if index > 0 {
            submitted -= GAP * (1.0 - random.unit()).ln();
        }
        let work = Time::of_seconds(seconds.round() as u64);
        let job = Job::new(
            index.to_string(),
            tasks,
            Resources::of_slots(1),
            Time((submitted * 1e3f64).round() as u64),
        );
        let job = Job { duration: Some(work), skew: Some(SKEWS[model].1), ..job };
        TracedJob { job, work, checkpoint, resume }
    });
    Trace { jobs: traced.collect() }
}

/// Value of a distribution whose density falls with the power 1.5, between two bounds, at a cumulated part.
fn falling(low: f64, high: f64, part: f64) -> f64 {
    let (from, to) = (low.powf(-0.5), high.powf(-0.5));
    (from - part * (from - to)).powi(-2)
}

/// Shares a number by weights, by largest remainders.
fn shared(number: usize, weights: &[f64]) -> Vec<usize> {
    let sum: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|weight| number as f64 * weight / sum).collect();
    let mut counts: Vec<usize> = exact.iter().map(|share| *share as usize).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|one, other| exact[*other].fract().total_cmp(&exact[*one].fract()));
    let missing = number - counts.iter().sum::<usize>();
    for index in order.into_iter().take(missing) {
        counts[index] += 1;
    }
    counts
}

/// Orders at random (Fisher and Yates).
fn shuffle<T>(values: &mut [T], random: &mut Random) {
    for last in (1..values.len()).rev() {
        values.swap(last, random.below(last + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_the_published_ones() {
        for seed in 1..=3 {
            let trace = published(PUBLISHED_JOBS, seed);
            assert_eq!(trace.jobs.len(), PUBLISHED_JOBS);
            for (width, count) in WIDTHS {
                assert_eq!(trace.jobs.iter().filter(|job| job.job.tasks == *width).count(), *count);
            }
            // 480 jobs have 75 % small ones, the bins 76 %: shares of bins hold within small and large jobs.
            let is_short = |job: &&TracedJob| job.work.seconds() <= DURATIONS[1];
            let short = |is_small: bool| {
                let group = trace.jobs.iter().filter(|job| (job.job.tasks <= SMALL) == is_small);
                (group.clone().filter(is_short).count() as f64, group.count() as f64)
            };
            let ((short_small, small), (short_large, large)) = (short(true), short(false));
            assert!((short_small / small - 63.5 / 76.0).abs() < 0.01, "{short_small} of {small}");
            assert!((short_large / large - 16.5 / 24.0).abs() < 0.02, "{short_large} of {large}");
            let work: f64 = trace.jobs.iter().map(|job| f64::from(job.job.tasks) * job.work.seconds()).sum();
            assert!((1.55e6..1.85e6).contains(&work), "{work}");
            let span = trace.jobs.iter().map(|job| job.job.submitted.seconds()).fold(0.0, f64::max);
            assert!((12_000.0..17_000.0).contains(&span), "{span}");
        }
    }

    #[test]
    fn any_number_of_jobs_is_shared() {
        for jobs in [1, 7, 100, 1000] {
            assert_eq!(published(jobs, 5).jobs.len(), jobs);
        }
        assert!(published(0, 5).jobs.is_empty());
        assert_eq!(shared(10, &[1.0, 1.0, 1.0]), [4, 3, 3]);
    }
}
