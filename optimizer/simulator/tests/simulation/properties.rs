//! Invariants of every simulation.
use crate::plans::{pair, shared};
use proptest::prelude::*;
use tidemill_optimizer::planner::{Planner, SearchLimits};
use tidemill_optimizer::planners::exact::Exact;
use tidemill_problems::small_problem;
use tidemill_simulator::{Arrivals, Ended, Options, Spacing, Times, simulate};

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// No record is lost or created, and no worker is busy for more than all the time.
    #[test]
    fn what_goes_in_comes_out(
        rate in 1.0f64..200.0,
        seconds in prop::array::uniform3(0.0001f64..0.05),
        random in any::<bool>(),
        calls in 1u32..3,
        seed in any::<u64>(),
    ) {
        let case = pair([rate, rate], seconds);
        let spacing = if random { Spacing::Poisson } else { Spacing::Constant };
        let arrivals = Arrivals { spacing, trace: None };
        let simulation = case.simulate(&arrivals, |options| {
            (options.seconds, options.seed, options.calls_at_once) = (20.0, seed, calls);
        });
        prop_assert_eq!((simulation.ended, simulation.on_the_way, simulation.unmatched), (Ended::Complete, 0, 0));
        for source in &simulation.sources {
            prop_assert_eq!(source.records, simulation.sinks[0].records);
            prop_assert!(source.due >= source.records);
        }
        for worker in &simulation.workers {
            prop_assert!((0.0..=1.0).contains(&worker.utilization));
        }
        for stage in &simulation.stages {
            prop_assert!(stage.queue_mean <= stage.queue_max as f64);
        }
        let latency = simulation.sinks[0].arrival;
        prop_assert!(latency.p50 <= latency.p90 && latency.p90 <= latency.p99 && latency.p99 <= latency.max);
        let least = seconds[0].max(seconds[1]) + seconds[2];
        prop_assert!(latency.count == 0 || latency.mean >= least * 0.999_999);
    }

    /// Served records are limited by the workers' capacity, and otherwise equal the arrivals.
    #[test]
    fn the_rate_is_that_of_the_sources_or_the_capacity(
        rate in 20.0f64..400.0,
        seconds in 0.002f64..0.02,
        workers in 1usize..5,
    ) {
        let shares = vec![1.0 / workers as f64; workers];
        let simulation = shared(rate, seconds, &shares).simulate(&Arrivals::constant(), |o| o.seconds = 60.0);
        let expected = rate.min(workers as f64 / seconds);
        prop_assert!((simulation.sinks[0].rate / expected - 1.0).abs() < 0.03,
            "{} instead of {expected}", simulation.sinks[0].rate);
    }

    /// Equal seeds give equal results, different seeds different ones.
    #[test]
    fn the_seed_decides(seed in 0u64..1000) {
        let case = pair([50.0, 50.0], [0.01, 0.005, 0.002]);
        let run = |seed| case.simulate(&Arrivals::poisson(), |options| (options.seconds, options.seed) = (10.0, seed));
        prop_assert_eq!(run(seed), run(seed));
        prop_assert_ne!(run(seed).sinks[0].arrival.mean, run(seed + 1).sinks[0].arrival.mean);
    }
}

/// Plans of the exact planner keep their rate, and workers are as busy as planned, for any shape of the problem.
#[test]
fn planned_problems_keep_their_rate() {
    let (mut simulated, mut even) = (0, 0);
    for seed in 0..40 {
        let problem = small_problem(seed);
        let outcome = Exact.plan(&problem, &SearchLimits::default()).unwrap();
        let Some(solution) = outcome.solution else { continue };
        let times = Times::of_modes(&problem, &solution);
        // Some links are too slow for the default lead of sources.
        let options = Options { seconds: 120.0, lead_ticks: u32::MAX, ..Options::of(&problem) };
        let simulation = simulate(&problem, &solution, &times, &Arrivals::constant(), &options).unwrap();
        simulated += 1;
        assert_eq!((simulation.ended, simulation.on_the_way), (Ended::Complete, 0), "seed {seed}");
        // Where operators change the number of records, a join meets fewer partners than the lower of its rates.
        let rate = problem.operators[0].rate;
        if problem.operators.iter().all(|operator| (operator.rate / rate - 1.0).abs() < 1e-9) {
            even += 1;
            assert!(simulation.achieved() > 0.9, "seed {seed}: {}", simulation.achieved());
        }
        assert!(simulation.workers.iter().all(|worker| worker.utilization <= 1.0));
    }
    assert!(simulated >= 20 && even >= 5, "{simulated}, {even}");
}
